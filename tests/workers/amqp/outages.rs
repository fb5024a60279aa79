//! A broker and a database that go away and come back, and workers that die.

use std::{collections::BTreeSet, net::Ipv6Addr};

use idem_testkit::proxy::Proxy;
use lapin::types::AMQPValue;

use super::{
    chain::ids,
    fixture::{Fixture, Ledger, count, quorum, until},
    own_servers::OwnServers,
    queue::{Queue, host},
    shared_chain::pending,
};

/// A25, J9, G12: the broker crashes, the database crashes, both do. The worker waits, says so, and goes on; no message is
/// charged an attempt for it, and nothing is set aside.
#[tokio::test(flavor = "multi_thread")]
async fn a25_j9_outages_are_waited_out_and_charged_to_nobody() {
    let servers = OwnServers::up("amqp-worker-outages", 600, &["postgres", "rabbitmq"]);
    let url = |name| servers.url(name);
    let fixture = Fixture::on_servers("outages", &url("rabbitmq"), &url("rabbitmq_management"), &url("postgres")).await;
    let told = format!("{}_told", fixture.name);
    let told = Queue::create_on(&url("rabbitmq"), &url("rabbitmq_management"), &told, &[]).await;
    servers.restart_in_order("rabbitmq");
    let each = count(10_000, 600);
    let mut worker = fixture.start(&["--attempts", "2", "--batch", "20", "--announce", &told.name]);
    let mut sent = 0;
    for outage in [&["rabbitmq"][..], &["postgres"], &["rabbitmq", "postgres"]] {
        fixture.send(sent..sent + each).await;
        fixture.until_purchases(sent + each / 10).await;
        sent += each;
        servers.restart_all(outage);
        fixture.until_purchases(sent).await;
        assert!(worker.runs(), "after {outage:?}:\n{}", worker.logged());
    }
    fixture.until_settled().await;
    // O9: committed events are sent once the broker is back, under as many ids as there are purchases.
    until("an empty outbox", async || pending(&fixture).await == 0).await;
    let ids = ids(&told).await.into_iter().collect::<BTreeSet<_>>();
    assert_eq!(i64::try_from(ids.len()).expect("a count"), sent);
    let ended = worker.stop().await;
    assert_eq!(ended.count("dead_lettered"), 0);
    assert_eq!(fixture.ledger().await, Ledger::of(0..sent));
    assert!(fixture.dead_letters().await.is_empty());
    fixture.remove().await;
}

/// G30: while the broker is away, `/readyz` and the gauge of the shipped alert say so, until it is back.
#[tokio::test(flavor = "multi_thread")]
async fn g30_a_broker_that_is_away_shows_in_readyz_and_in_the_gauge_of_the_shipped_alert() {
    let alerts = include_str!("../../../deploy/prometheus/alerts.yaml");
    let (_, rule) = alerts.split_once("- alert: IdemBrokerUnreachable").expect("the alert");
    let expression = rule.lines().find_map(|line| line.trim().strip_prefix("expr: ")).expect("its expression");
    assert_eq!(expression, "min by (consumer) (idem_broker_connected) == 0");
    let fixture = Fixture::new("gauge").await;
    let server = host(&fixture.queue.url).to_owned();
    let proxy = Proxy::to(&server).await.unwrap();
    let admin = format!("127.0.0.1:{}", 28_500 + fastrand::u16(..400));
    let broker = fixture.queue.url.replace(&server, proxy.address());
    let worker = fixture.start_with(&fixture.arguments_to(&broker, &fixture.url, &["--admin", &admin]));
    let shows = async |path: &str, text: &str| match Queue::get(&format!("http://{admin}/{path}")).await {
        Ok(answer) => answer.text().await.unwrap_or_default().contains(text),
        Err(_) => false,
    };
    let gauge = |value| format!("idem_broker_connected{{consumer=\"{}\"}} {value}", fixture.name);
    until("a broker", async || shows("readyz", "\"broker\":\"up\"").await).await;
    until("its gauge", async || shows("metrics", &gauge(1)).await).await;
    proxy.refuse(true);
    proxy.cut().await;
    until("its loss", async || shows("readyz", "\"broker\":\"down\",\"broker_down_for\":").await).await;
    until("the alert", async || shows("metrics", &gauge(0)).await).await;
    proxy.refuse(false);
    until("it is back", async || shows("readyz", "\"broker\":\"up\"").await).await;
    until("the end of the alert", async || shows("metrics", &gauge(1)).await).await;
    let ended = worker.stop().await;
    // B-M7: the cause behind it stands in the line.
    let line = ended.log.lines().find(|line| line.contains("the broker cannot be used")).unwrap_or(&ended.log);
    assert!(line.contains("unavailable while") && line.contains("idem waits and tries again: "), "{line}");
    fixture.remove().await;
}

/// G16: a worker that is killed in its first message, start after start, on a queue that drops a message at its sixth
/// return. All but the one that was running had no part in it, and are handled in the end; that one is set aside by idem.
#[tokio::test(flavor = "multi_thread")]
async fn g16_a_crash_loop_loses_no_message_at_a_delivery_limit() {
    let fixture = Fixture::with("crashes", &[quorum(), ("x-delivery-limit", AMQPValue::LongInt(5))]).await;
    // The tables are there, and so is the consumer.
    assert!(fixture.drain(&[]).await.status.success());
    let mut blocker = fixture.pool().acquire().await.unwrap().detach();
    sqlx::raw_sql("BEGIN; LOCK TABLE purchases IN ACCESS EXCLUSIVE MODE").execute(&mut blocker).await.unwrap();
    fixture.send(0..100).await;
    for crash in 1..=7 {
        let worker = fixture.start(&["--handler-deadline", "5m"]);
        let waits = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'purchases'::regclass";
        let waiting = async || sqlx::query_scalar::<_, i64>(waits).fetch_one(fixture.pool()).await.unwrap() > 0;
        until(&format!("handler {crash}"), waiting).await;
        worker.kill().await;
        let nobody = async || sqlx::query_scalar::<_, i64>(waits).fetch_one(fixture.pool()).await.unwrap() == 0;
        // The server ends what waits for a client that is gone.
        sqlx::query(
            "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE NOT granted AND relation = 'purchases'::regclass",
        )
        .execute(fixture.pool())
        .await
        .unwrap();
        until("the end of what it ran", nobody).await;
    }
    sqlx::raw_sql("ROLLBACK").execute(&mut blocker).await.unwrap();
    let ended = fixture.drain(&[]).await;
    assert!(ended.status.success(), "{}", ended.log);
    let letters = fixture.dead_letters().await;
    assert_eq!(letters, [("attempts-exhausted".to_owned(), 1)].into(), "what was running in five crashes");
    assert_eq!(fixture.purchases().await, 99);
    fixture.until_settled().await;
    fixture.remove().await;
}

/// J2: workers that are killed with their hands full. Their messages come to the others, and nothing happens twice.
#[tokio::test(flavor = "multi_thread")]
async fn j2_workers_that_are_killed_lose_nothing() {
    let (purchases, kills) = (count(50_000, 6_000), count(20, 4));
    let fixture = Fixture::new("kills").await;
    fixture.send(0..purchases).await;
    // Attempts are counted for what a killed worker had in hand; more of them than there are kills.
    let settings = ["--attempts", "100", "--batch", "20"];
    let mut workers = vec![fixture.start(&settings), fixture.start(&settings)];
    for _ in 0..kills {
        let before = fixture.purchases().await;
        fixture.until_purchases((before + purchases / (kills * 2)).min(purchases)).await;
        workers.remove(0).kill().await;
        workers.push(fixture.start(&settings));
    }
    fixture.until_purchases(purchases).await;
    fixture.until_settled().await;
    for worker in workers {
        assert!(worker.stop().await.status.success());
    }
    assert_eq!(fixture.ledger().await, Ledger::of(0..purchases));
    assert!(fixture.dead_letters().await.is_empty(), "{:?}", fixture.dead_letters().await);
    fixture.remove().await;
}

/// J100: each address that a worker is given may be an IPv6 one.
#[tokio::test(flavor = "multi_thread")]
async fn j100_ipv6_addresses_of_database_and_brokers_are_reached() {
    let fixture = Fixture::new("ipv6").await;
    let here = Ipv6Addr::LOCALHOST.into();
    let server = host(&fixture.queue.url).to_owned();
    let (database, broker) =
        (Proxy::between(here, fixture.host()).await.unwrap(), Proxy::between(here, &server).await.unwrap());
    let database = fixture.url.replace(fixture.host(), database.address());
    let (first, away) =
        (fixture.queue.url.replace(&server, broker.address()), fixture.queue.url.replace(&server, "127.0.0.1:1"));
    let runs = [("sqlx", &first, None), ("tokio-postgres", &first, None), ("sqlx", &away, Some(broker.address()))];
    for (number, (store, broker, further)) in (0..).zip(runs) {
        fixture.send([number]).await;
        let mut more = vec!["--store", store, "--until-idle", "1s", "--startup-timeout", "10s"];
        more.extend(further.into_iter().flat_map(|host| ["--amqp-host", host]));
        let ended = fixture.start_with(&fixture.arguments_to(broker, &database, &more)).ended().await;
        assert_eq!(ended.count("processed"), 1, "{store} {further:?}");
    }
    fixture.remove().await;
}
