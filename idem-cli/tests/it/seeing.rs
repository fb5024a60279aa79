//! `idem show`, `stats`, `workers`, `stuck`, `doctor`, `completions`.

use std::net::Ipv6Addr;

use idem_core::{IdempotencyKey, Store as _, hash::PayloadHash, store::Bookkeeping as _};
use idem_testkit::proxy::Proxy;
use sqlx::Connection as _;

use crate::fixture::{Fixture, agree_on_what_fails, attempt, command, leave_counts, orders, see_what_is_stopped};

#[tokio::test]
async fn show_tells_who_when_and_what_a_redelivery_would_meet() {
    let fixture = Fixture::new().await;
    fixture.deliver(&["order-1"]).await;
    let shown = fixture.idem("show order-1 --json").json();
    let record = &shown["records"][0];
    assert_eq!(
        (&record["consumer"], &record["version"], &record["expired"]),
        (&"orders".into(), &"1.2.3".into(), &false.into())
    );
    assert_eq!(record["payload_hash"].as_str().unwrap().len(), 64);
    assert!(shown["messages"][0].as_str().unwrap().contains("skipped as a duplicate by orders"), "{shown}");
    let shown = fixture.idem("show order-9").ok();
    assert!(shown.contains("no records") && shown.contains("A redelivery is handled: there is no record"), "{shown}");
    let key = IdempotencyKey::new("order-2").unwrap();
    fixture.store.bookkeeping().count_attempt(orders(), &key, PayloadHash::of(b"x")).await.unwrap();
    let shown = fixture.idem("show order-2 --consumer orders --json").json();
    assert_eq!(shown["attempts"][0]["attempts"], 1);
    assert!(shown["messages"][0].as_str().unwrap().contains("attempts go on"), "{shown}");
    fixture.idem("show order-1 --consumer ordres").refused("no consumer");
    fixture.idem_with(&["show", "a\u{1b}[2J"]).refused("that is no key");
    fixture.drop().await;
}

#[tokio::test]
async fn stats_and_workers_count_what_there_is() {
    let fixture = Fixture::new().await;
    fixture.deliver(&["order-1", "order-2"]).await;
    let stats = fixture.idem("stats --json").json();
    let orders = &stats["consumers"][0];
    assert_eq!((&orders["records"], &orders["last_hour"], &orders["failing"]), (&2.into(), &2.into(), &0.into()));
    let workers = fixture.idem("workers --json").json();
    assert_eq!(workers["workers"][0]["version"], "1.2.3");
    assert!(workers["workers"][0]["last_unit"].is_string());
    let people = fixture.idem("workers").ok();
    assert!(people.starts_with("RUN  HOST") && people.contains("1.2.3"), "{people}");
    fixture.drop().await;
}

/// S24: the tables that fill the disk.
#[tokio::test]
async fn s24_stats_tells_what_the_tables_take() {
    let fixture = Fixture::new().await;
    fixture.deliver(&["order-1"]).await;
    fixture
        .run("INSERT INTO dead_letters (consumer, origin, last_origin, reason, attempts, error, payload, payload_bytes, has_payload)
              SELECT id, 'q/1', 'q/1', 'malformed', 1, 'no JSON', decode(repeat('00', 1000), 'hex'), 1000, true FROM consumers
              UNION ALL SELECT id, 'q/2', 'q/2', 'too-large', 1, 'large', NULL, 5000, true FROM consumers")
        .await;
    let stats = fixture.idem("stats --json").json();
    assert_eq!(
        (&stats["consumers"][0]["dead_letters"], &stats["consumers"][0]["dead_letter_bytes"]),
        (&2.into(), &1_000.into())
    );
    let tables = stats["tables"].as_array().unwrap();
    let bytes = |name: &str| tables.iter().find(|row| row["table"] == name).unwrap()["bytes"].as_u64().unwrap();
    assert!(bytes("dead_letters") > 8_192 && bytes("processed_messages") > 8_192, "{tables:?}");
    fixture.drop().await;
}

#[tokio::test]
async fn stuck_names_the_failing_key_and_the_session_that_blocks() {
    let fixture = Fixture::new().await;
    fixture.deliver(&["order-1"]).await;
    for key in ["order-1", "order-2"] {
        let key = IdempotencyKey::new(key).unwrap();
        fixture.store.bookkeeping().count_attempt(orders(), &key, PayloadHash::of(b"x")).await.unwrap();
    }
    // One session holds a lock that another waits for.
    let lock = "SELECT pg_advisory_xact_lock(hashtext(current_schema()))";
    let mut holder = fixture.admin.acquire().await.unwrap();
    sqlx::raw_sql(sqlx::AssertSqlSafe(format!("BEGIN; {lock}"))).execute(&mut *holder).await.unwrap();
    let holding: i32 = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut *holder).await.unwrap();
    let mut waiter = fixture.admin.acquire().await.unwrap();
    let waiting: i32 = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut *waiter).await.unwrap();
    // The waiter is recognised by its consumer's name, which its URL gave it.
    sqlx::raw_sql("SET application_name = 'orders'").execute(&mut *waiter).await.unwrap();
    let waits = async { sqlx::raw_sql(lock).execute(&mut *waiter).await.unwrap() };
    let look = async {
        let mut other = sqlx::PgConnection::connect(&fixture.url).await.unwrap();
        let is_waiting = "SELECT cardinality(pg_blocking_pids($1)) > 0";
        while !sqlx::query_scalar::<_, bool>(is_waiting).bind(waiting).fetch_one(&mut other).await.unwrap() {
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
        let stuck = fixture.idem("stuck --json").json();
        sqlx::raw_sql("ROLLBACK").execute(&mut *holder).await.unwrap();
        stuck
    };
    let (_, stuck) = tokio::join!(waits, look);
    assert_eq!(stuck["failing_keys"].as_array().unwrap().len(), 1, "{stuck}");
    assert_eq!(
        (&stuck["failing_keys"][0]["key"], &stuck["failing_keys"][0]["attempts"]),
        (&"order-2".into(), &1.into())
    );
    let has = |column: &str, pid: i32| stuck["failing_keys"][0][column].as_array().unwrap().contains(&pid.into());
    assert!(has("consumer_in_transaction", waiting) && has("consumer_blocked_by", holding), "{stuck}");
    let sessions = stuck["waiting_sessions"].as_array().unwrap();
    let session = sessions.iter().find(|session| session["pid"] == waiting).unwrap();
    assert_eq!(session["blocked_by"][0], holding, "{stuck}");
    drop(waiter);
    drop(holder);
    fixture.drop().await;
}

/// J16: a message that waits because its consumer is stopped is in no count of attempts.
#[tokio::test]
async fn j16_stuck_names_consumers_that_are_stopped_or_where_else_to_look() {
    let fixture = Fixture::new().await;
    fixture.deliver(&["order-1"]).await;
    see_what_is_stopped(&fixture.store, |arguments| fixture.idem(arguments)).await;
    fixture.drop().await;
}

/// A message that was set aside is no longer failing, also where a release has left its count; one that was tried since is.
#[tokio::test]
async fn stats_and_stuck_agree_on_what_fails() {
    let fixture = Fixture::new().await;
    fixture.deliver(&["succeeded"]).await;
    attempt(&fixture.store, "expired", "x").await;
    fixture.run("UPDATE message_attempts SET last_at = now() - interval '1 year'").await;
    fixture.idem("cleanup").ok();
    leave_counts(&fixture.store).await;
    let left = "SET attempts = 3, last_at = first_at WHERE idempotency_key = 'left'";
    fixture.run(&format!("UPDATE message_attempts {left}")).await;
    agree_on_what_fails(&fixture.idem("stats --json").json(), &fixture.idem("stuck --json").json());
    fixture.drop().await;
}

/// The finding that says this.
fn finding(answer: &str, part: &str) -> serde_json::Value {
    let report: serde_json::Value = serde_json::from_str(answer).unwrap();
    let mut findings = report["findings"].as_array().unwrap().clone().into_iter();
    let found = findings.find(|finding| finding["finding"].as_str().unwrap().contains(part));
    found.unwrap_or_else(|| panic!("{part} is not found: {answer}"))
}

#[tokio::test]
async fn doctor_names_what_is_wrong_with_its_cure() {
    let fixture = Fixture::empty().await;
    let answer = fixture.idem("doctor");
    assert_eq!(answer.status, 1, "{answer:?}");
    assert!(answer.out.contains("idem migrate up"), "{answer:?}");
    fixture.idem("migrate up").ok();
    fixture.deliver(&["order-1"]).await;
    fixture.idem("consumers pause orders --reason ledger-is-down").ok();
    fixture
        .run("UPDATE processed_messages SET expires_at = now() - interval '1 d'; ALTER TABLE units DISABLE TRIGGER ALL")
        .await;
    let answer = fixture.idem("doctor --json");
    assert_eq!(answer.status, 1);
    let trigger = finding(&answer.out, "refuse_unsealed_commit");
    assert!(trigger["cure"].as_str().unwrap().contains("ENABLE TRIGGER"), "{trigger}");
    fixture.run("ALTER TABLE units ENABLE TRIGGER ALL").await;
    let answer = fixture.idem("doctor --json");
    assert_eq!(answer.status, 1);
    assert_eq!(finding(&answer.out, "cleanup is behind")["level"], "warning");
    let paused = finding(&answer.out, "orders: paused by ada: ledger-is-down, for ");
    assert_eq!(paused["level"], "notice");
    let cure = format!(
        "Run idem --schema {} consumers resume orders, and read docs/internals/alerts.md#idempaused",
        fixture.schema
    );
    assert_eq!(paused["cure"], cure);
    let answer = fixture.idem("doctor --broker-horizon 8d --format json");
    let horizon = finding(&answer.out, "the records of orders are kept for 7 days");
    assert_eq!(horizon["level"], "error");
    assert!(horizon["cure"].as_str().unwrap().contains("idem retention set orders"), "{horizon}");
    assert!(fixture.idem("doctor --broker-horizon 7d").out.contains("are kept for"), "as long is not longer");
    assert!(!fixture.idem("doctor --broker-horizon 6d").out.contains("are kept for"));
    for (bound_to, shown_by) in [
        (
            "kafka:4kL6/orders-v2/group",
            "kafka-configs.sh --describe --all --entity-type topics --entity-name orders-v2",
        ),
        ("rabbitmq:%2f/orders", "rabbitmqctl list_queues"),
        ("sqs:arn:aws:sqs:eu-central-1:123456789012:orders-v3", "URL of orders-v3"),
    ] {
        fixture.run(&format!("UPDATE consumers SET bound_to = '{bound_to}'")).await;
        let report: serde_json::Value =
            serde_json::from_str(&fixture.idem("doctor --broker-horizon 8d --json").out).unwrap();
        let source = &report["sources"][0];
        assert!(source["shown_by"].as_str().unwrap().contains(shown_by), "{source}");
        assert_eq!((&source["retention"], &source["broker_horizon"]), (&"7 days".into(), &"8 days".into()), "{source}");
    }
    // Deliberately wrong settings, for this login alone.
    let url = format!("{}?options=-c%20synchronous_commit%3Doff%20-c%20statement_timeout%3D9s", fixture.url);
    let answer = command(&[("DATABASE_URL", &url), ("IDEM_SCHEMA", &fixture.schema)], &["doctor", "--json"]);
    assert!(finding(&answer.out, "synchronous_commit is off")["cure"].as_str().unwrap().contains("= on"));
    assert!(
        finding(&answer.out, "statement_timeout is 9000 ms")["cure"].as_str().unwrap().contains("--handler-deadline")
    );
    fixture.drop().await;
}

/// The facts that a worker's start notes about its broker; the newest count.
#[tokio::test]
async fn doctor_says_what_the_last_start_found_out_about_its_broker() {
    let fixture = Fixture::new().await;
    fixture.grant_roles().await;
    fixture.deliver(&["order-1"]).await;
    let start = |details: &str| {
        format!(
            "INSERT INTO audit (who, action, consumer, details) SELECT 'run 1', 'start', id, E'{details}' FROM consumers"
        )
    };
    let horizon = |time: &str| format!("UPDATE consumers SET redelivery_horizon = interval '{time}'");
    fixture.run(&horizon("8 days")).await;
    fixture.run(&start("the queue orders has no dead-letter queue")).await;
    let answer = fixture.idem("doctor --json");
    assert_eq!(finding(&answer.out, "the records of orders are kept for 7 days")["level"], "error");
    assert_eq!(finding(&answer.out, "the queue orders has no dead-letter queue")["level"], "warning");
    fixture.run(&horizon("604799 s")).await;
    fixture.run(&start("")).await;
    let answer = fixture.idem("doctor --json");
    assert!(
        !answer.out.contains("are kept for 7 days, and") && !answer.out.contains("dead-letter queue"),
        "{answer:?}"
    );
    fixture.drop().await;
}

#[tokio::test]
async fn doctor_has_nothing_to_say_where_all_is_well() {
    let fixture = Fixture::new().await;
    fixture.grant_roles().await;
    fixture.deliver(&["order-1"]).await;
    let answer = fixture.idem("doctor --json");
    let report: serde_json::Value = serde_json::from_str(&answer.out).unwrap();
    // The server is shared: another test may be in a long transaction. And it is for tests, which need not outlive a crash of the machine.
    // On PostgreSQL 14 every role may create objects in the schema public.
    let of_the_server = [
        "in a transaction since",
        "fsync is off",
        "full_page_writes is off",
        "schema public stands in the search_path",
    ];
    let is_ours = |finding: &&serde_json::Value| {
        !of_the_server.iter().any(|known| finding["finding"].as_str().unwrap().contains(known))
    };
    let ours: Vec<_> = report["findings"].as_array().unwrap().iter().filter(is_ours).collect();
    assert!(ours.is_empty(), "{ours:?}");
    let forecast = &report["forecast"][0];
    assert_eq!((&forecast["last_hour"], &forecast["records_to_come"]), (&1.into(), &168.into()), "{forecast}");
    fixture.drop().await;
}

#[test]
fn completions_need_no_database() {
    for shell in ["bash", "zsh", "fish"] {
        assert!(command(&[], &["completions", shell]).ok().contains("dead-letters"));
    }
}

/// J100: sqlx keeps the brackets of a URL's address.
#[tokio::test(flavor = "multi_thread")]
async fn j100_the_command_reaches_a_database_by_its_ipv6_address() {
    let fixture = Fixture::new().await;
    let (_, server) = fixture.url.rsplit_once('@').unwrap();
    let (server, _) = server.split_once('/').unwrap();
    let proxy = Proxy::between(Ipv6Addr::LOCALHOST.into(), server).await.unwrap();
    let url = fixture.url.replace(server, proxy.address());
    for verb in [&["consumers", "list"][..], &["migrate", "status"]] {
        command(&[("DATABASE_URL", &url), ("IDEM_SCHEMA", &fixture.schema)], verb).ok();
    }
    fixture.drop().await;
}
