//! S8: the rights of each role.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use idem_core::{
    CancellationToken, ConsumerName, ErrorClass, HandlerError, Message, Store as _, StoreError, Worker,
    cleanup::{Expiring, Removal, Removed},
    dead_letter::DeadLetterId,
    store::Bookkeeping as _,
};
use idem_sql::postgres_roles;
use idem_testkit::memory::{Broker, QueueOptions};
use sqlx::{ConnectOptions as _, PgConnection, postgres::PgConnectOptions};

use super::{
    consumers::{Act, Acting, Write, builder, consumer, msg, process, write},
    fixture::{Fixture, PATIENCE, url},
};

/// A login in one of the groups. Roles belong to the cluster, so its name is the schema's.
pub(super) async fn login(fixture: &Fixture, group: &str) -> PgConnectOptions {
    let name = format!("{}_{group}", fixture.schema);
    fixture.run(format!("CREATE ROLE {name} LOGIN IN ROLE {group}")).await;
    let options: PgConnectOptions = url().parse().unwrap();
    options.username(&name).options([("search_path", fixture.schema.as_str())])
}

pub(super) async fn arrange(fixture: &Fixture) {
    // Roles are the cluster's, and two scripts at once would meet on the same rows of the catalogue.
    fixture
        .run(format!("BEGIN; SELECT pg_advisory_xact_lock(4711); {}; COMMIT", postgres_roles(&fixture.schema)))
        .await;
    fixture.run("GRANT SELECT, INSERT ON effects TO idem_worker").await;
}

pub(super) async fn give_up(fixture: Fixture, groups: &[&str]) {
    for group in groups {
        fixture.run(format!("DROP OWNED BY {0}_{group}; DROP ROLE {0}_{group}", fixture.schema)).await;
    }
    fixture.drop().await;
}

/// S25: the tenant whose unique keys fill the table is named, by the server's own statistics, which a worker may read.
#[tokio::test]
async fn s25_the_largest_tenant_is_told() {
    let fixture = Fixture::new().await;
    arrange(&fixture).await;
    let store = fixture.options_of(login(&fixture, "idem_worker").await).build().unwrap();
    let name = |name: &str| ConsumerName::new(name).unwrap();
    let usage = async |of: &str| store.bookkeeping().usage(&name(of)).await.unwrap();
    assert_eq!(usage("orders").await.records_of_largest_tenant, None, "nothing was counted yet");
    fixture
        .run("INSERT INTO consumers (tenant, name, bound_to, handler, key_rules, hash_rules, retention)
                SELECT tenant, name, '', '', '', '', interval '7 days'
                FROM (VALUES ('small', 'orders'), ('large', 'orders'), ('', 'other')) AS v (tenant, name);
            INSERT INTO processed_messages (key_id, expires_at, consumer, hash_id, processed_by, idempotency_key, payload_hash)
                SELECT key_id(c.id || '-' || n), now() + interval '1 day', c.id, 1, 1, c.id || '-' || n, sha256('')
                FROM consumers AS c, generate_series(1, CASE c.tenant WHEN 'small' THEN 10 WHEN 'large' THEN 300 ELSE 600 END) AS n;
            ANALYZE processed_messages;")
        .await;
    let orders = usage("orders").await;
    assert_eq!((orders.records, orders.records_of_largest_tenant), (Some(910), Some(300)), "{orders:?}");
    assert_eq!(usage("other").await.records_of_largest_tenant, Some(600));
    assert_eq!(usage("nobody").await.records_of_largest_tenant, None);
    give_up(fixture, &["idem_worker"]).await;
}

#[tokio::test]
async fn s8_a_worker_needs_no_more_than_its_role_and_cannot_touch_a_record() {
    let fixture = Fixture::new().await;
    arrange(&fixture).await;
    let worker = login(&fixture, "idem_worker").await;
    let store = fixture.options_of(worker.clone()).build().unwrap();
    store.bookkeeping().verify().await.unwrap();
    let consumer = consumer(store.clone(), Write);
    assert_eq!(process(&consumer, vec![msg("a"), msg("b")]).await, "PP");
    assert_eq!(process(&consumer, vec![msg("a"), msg("b")]).await, "DD");

    let mut connection = sqlx::ConnectOptions::connect(&worker).await.unwrap();
    for forbidden in [
        "DELETE FROM processed_messages",
        "UPDATE processed_messages SET expires_at = now()",
        "TRUNCATE processed_messages",
        "DELETE FROM units",
        "DELETE FROM dead_letters",
        "UPDATE consumers SET name = 'x'",
        "DELETE FROM audit",
        "UPDATE audit SET who = 'x'",
        // The content of a dead letter.
        "UPDATE dead_letters SET payload = 'x'",
        "UPDATE dead_letters SET idempotency_key = 'x', key_id = NULL",
        "SELECT remove_expired('audit', 1, 0)",
        "ALTER TABLE units DISABLE TRIGGER refuse_unsealed_commit",
        "DROP TABLE processed_messages",
    ] {
        let error = sqlx::raw_sql(forbidden).execute(&mut connection).await.unwrap_err();
        let code = error.as_database_error().and_then(|error| error.code()).map(|code| code.into_owned());
        assert_eq!(code.as_deref(), Some("42501"), "{forbidden}");
    }
    let removal =
        Removal { kind: Expiring::Records, kept: Duration::ZERO, rows_max: 10, timeout: Duration::from_secs(30) };
    let refused = Arc::new(store.clone()).cleaner().remove(&removal).await;
    assert!(matches!(refused, Err(StoreError::Refused { cure, .. }) if cure.contains("idem_cleanup")));

    let cleaner = login(&fixture, "idem_cleanup").await;
    let store = fixture.options_of(worker).cleanup_login(cleaner).build().unwrap();
    fixture.run("UPDATE processed_messages SET expires_at = now() - interval '1 minute'").await;
    assert_eq!(Arc::new(store.clone()).cleaner().remove(&removal).await.unwrap(), Removed::Rows(2));
    drop((connection, consumer, store));
    give_up(fixture, &["idem_worker", "idem_cleanup"]).await;
}

#[tokio::test]
async fn s8_a_login_without_rights_is_refused_with_the_script() {
    let fixture = Fixture::new().await;
    arrange(&fixture).await;
    // The auditor may not even read the version of the schema, cleanup may.
    let groups = ["idem_auditor", "idem_cleanup"];
    for group in groups {
        let login = login(&fixture, group).await;
        let error = fixture.options_of(login).build().unwrap().bookkeeping().verify().await.unwrap_err();
        assert!(
            matches!(&error, StoreError::Schema { cure, .. } if cure.contains("role script")),
            "{group}: {error:?}"
        );
        assert!(error.to_string().contains("INSERT on processed_messages"), "{group}: {error}");
    }
    give_up(fixture, &groups).await;
}

/// The SQLSTATE that a statement is refused with.
async fn refused(connection: &mut PgConnection, statement: &str) -> String {
    let error = sqlx::raw_sql(sqlx::AssertSqlSafe(statement)).execute(connection).await.expect_err(statement);
    error.as_database_error().and_then(|error| error.code()).map(|code| code.into_owned()).unwrap_or_default()
}

/// S51: none of idem's locks can be taken by a login that has no right on the schema, nor by a worker's: advisory locks are open to
/// any login, also those that idem took once.
#[tokio::test]
async fn s51_cleanup_and_migrations_have_locks_that_no_worker_can_take() {
    let fixture = Fixture::new().await;
    arrange(&fixture).await;
    let quoted = fixture.schema.quoted();
    let groups = ["stranger", "idem_worker", "idem_cleanup"];
    fixture.run(format!("CREATE ROLE {}_stranger LOGIN", fixture.schema)).await;
    let options: PgConnectOptions = url().parse().unwrap();
    let mut stranger = options.username(&format!("{}_stranger", fixture.schema)).connect().await.unwrap();
    let mut worker = login(&fixture, "idem_worker").await.connect().await.unwrap();
    let cleaner = fixture.options_of(login(&fixture, "idem_cleanup").await).build().unwrap();
    let mut cleaner = Arc::new(cleaner).cleaner();
    for lock in [
        format!("SELECT FROM {quoted}.migrations FOR KEY SHARE"),
        format!("SELECT FROM {quoted}.migrations FOR UPDATE"),
        format!("LOCK TABLE {quoted}.migrations IN ROW EXCLUSIVE MODE"),
        format!("LOCK TABLE {quoted}.migrations IN SHARE ROW EXCLUSIVE MODE"),
        format!("LOCK TABLE {quoted}.migrations IN ACCESS EXCLUSIVE MODE"),
    ] {
        for login in [&mut stranger, &mut worker] {
            assert_eq!(refused(login, &format!("BEGIN; {lock}")).await, "42501", "{lock}");
            sqlx::raw_sql("ROLLBACK").execute(login).await.unwrap();
        }
    }
    let all = format!(
        "SELECT pg_advisory_lock(hashtextextended('idem:cleanup:{quoted}', 0)),
            pg_advisory_lock(hashtextextended('idem:migrations:{quoted}', 0))"
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(all)).execute(&mut stranger).await.unwrap();
    // A reader's lock keeps no other out.
    let reads = format!("BEGIN; LOCK TABLE {quoted}.migrations IN ACCESS SHARE MODE");
    sqlx::raw_sql(sqlx::AssertSqlSafe(reads)).execute(&mut worker).await.unwrap();
    let removal = Removal { kind: Expiring::Records, kept: Duration::ZERO, rows_max: 10, timeout: PATIENCE };
    assert_eq!(cleaner.remove(&removal).await.unwrap(), Removed::Rows(0));
    let migrated = tokio::time::timeout(PATIENCE, fixture.store.migrate()).await.expect("it waits for no such lock");
    assert_eq!(migrated.unwrap(), Vec::<u32>::new());
    drop((stranger, worker, cleaner));
    give_up(fixture, &groups).await;
}

/// S51: a row with the highest id would end its sequence, and keep every worker from starting.
#[tokio::test]
async fn s51_a_worker_gives_no_row_an_id_of_a_sequence() {
    let fixture = Fixture::new().await;
    arrange(&fixture).await;
    let mut worker = login(&fixture, "idem_worker").await.connect().await.unwrap();
    for forged in [
        "INSERT INTO worker_runs (id, host, process, version) OVERRIDING SYSTEM VALUE VALUES (2147483647, 'x', 1, '1')",
        "INSERT INTO dead_letters (id, consumer, origin, last_origin, reason, attempts, error, payload_bytes, has_payload)
            OVERRIDING SYSTEM VALUE VALUES (9223372036854775807, 1, '', '', '', 1, '', 0, false)",
        "INSERT INTO audit (id, who, action) OVERRIDING SYSTEM VALUE VALUES (9223372036854775807, 'x', 'x')",
        "SELECT setval('audit_id_seq', 1)",
    ] {
        assert_eq!(refused(&mut worker, forged).await, "42501", "{forged}");
    }
    drop(worker);
    give_up(fixture, &["idem_worker"]).await;
}

/// S52: a migration that cannot have its lock ends in bounded time, and names the session that has it.
#[tokio::test]
async fn s52_the_session_that_holds_the_lock_of_migrations_is_named() {
    let fixture = Fixture::new().await;
    let mut holder = fixture.connection.clone().application_name("psql of ann").connect().await.unwrap();
    sqlx::raw_sql("BEGIN; LOCK TABLE migrations IN ACCESS EXCLUSIVE MODE").execute(&mut holder).await.unwrap();
    let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut holder).await.unwrap();
    let error = tokio::time::timeout(PATIENCE, fixture.store.migrate()).await.expect("it is bounded").unwrap_err();
    let idem_sql::MigrateError::Store(error) = error else { panic!("{error:?}") };
    let text = std::error::Error::source(&error).unwrap().to_string();
    assert_eq!(error.class(), ErrorClass::Infrastructure, "{text}");
    assert!(text.contains(&format!("process {pid} (login ")) && text.contains("\"psql of ann\""), "{text}");
    sqlx::raw_sql("ROLLBACK").execute(&mut holder).await.unwrap();
    assert_eq!(fixture.store.migrate().await.unwrap(), Vec::<u32>::new());
    fixture.drop().await;
}

/// A56: a migration sets sequences forward that are behind their rows, those of consumers and events too.
#[tokio::test]
async fn a56_a_migration_sets_sequences_forward() {
    let fixture = Fixture::new().await;
    fixture
        .run("INSERT INTO audit (who, action) SELECT 'x', 'x' FROM generate_series(1, 9);
            INSERT INTO consumers (tenant, name, bound_to, handler, key_rules, hash_rules)
                SELECT n::text, 'orders', '', '', '', '' FROM generate_series(1, 9) AS n;
            INSERT INTO outbox_destinations (name, id_form) VALUES ('payments', 'uuid8');
            INSERT INTO outbox (key_id, number, destination, consumer, state, event_key, event_hash, payload)
                SELECT gen_random_uuid(), n, d.id, 1, n % 2, 'k', '', '' FROM outbox_destinations AS d, generate_series(1, 9) AS n;
            ALTER SEQUENCE audit_id_seq RESTART; ALTER SEQUENCE consumers_id_seq RESTART; SELECT setval('outbox_numbers', 3)")
        .await;
    let behind = "SELECT table_name || ' ' || next_value || ' ' || highest FROM sequences_behind() ORDER BY 1";
    assert_eq!(fixture.texts(behind).await, ["audit 1 9", "consumers 1 9", "outbox 4 9"]);
    fixture.store.bookkeeping().verify().await.unwrap_err();
    assert_eq!(fixture.store.migrate().await.unwrap(), Vec::<u32>::new());
    assert_eq!(fixture.texts(behind).await, Vec::<String>::new());
    fixture.store.bookkeeping().verify().await.unwrap();
    assert_eq!(fixture.texts("INSERT INTO audit (who, action) VALUES ('x', 'x') RETURNING id").await, ["10"]);
    fixture.drop().await;
}

/// S12: a line of the trail carries the login that wrote it and the server's time; a login with a worker's or cleanup's
/// rights can neither forge, change nor remove one.
#[tokio::test]
async fn s12_the_trail_cannot_be_forged() {
    let fixture = Fixture::new().await;
    arrange(&fixture).await;
    let groups = ["idem_worker", "idem_cleanup"];
    for group in groups {
        let mut connection = login(&fixture, group).await.connect().await.unwrap();
        for forged in [
            "INSERT INTO audit (who, action, at) VALUES ('the boss', 'forget', '2020-01-01')",
            "INSERT INTO audit (who, action, login) VALUES ('the boss', 'forget', 'boss')",
            "UPDATE audit SET login = 'boss'",
            "DELETE FROM audit",
            "TRUNCATE audit",
        ] {
            assert_eq!(refused(&mut connection, forged).await, "42501", "{group}: {forged}");
        }
        let line = "INSERT INTO audit (who, action, details) VALUES ('the boss', 'forget', '')";
        sqlx::raw_sql(line).execute(&mut connection).await.unwrap();
    }
    let logins = "SELECT login FROM audit WHERE who = 'the boss' AND at > now() - interval '1 minute' ORDER BY id";
    assert_eq!(fixture.texts(logins).await, groups.map(|group| format!("{}_{group}", fixture.schema)));
    give_up(fixture, &groups).await;
}

/// S13: cleanup deletes what has expired, in every table, and nothing else, even if it asks for more.
#[tokio::test]
async fn s13_cleanup_deletes_only_what_has_expired() {
    let fixture = Fixture::new().await;
    arrange(&fixture).await;
    let rows = "
        INSERT INTO processed_messages (key_id, expires_at, consumer, hash_id, processed_by, idempotency_key, payload_hash)
        VALUES (key_id('a'), now() - interval '1 s', 1, 1, 1, 'old', sha256('')),
            (key_id('b'), now() + interval '7 d', 1, 1, 1, 'new', sha256(''));
        INSERT INTO audit (at, who, action) VALUES (now() - interval '31 d', 'x', 'old'), (now() - interval '29 d', 'x', 'new');
        INSERT INTO dead_letters (consumer, origin, last_origin, reason, attempts, error, payload, payload_bytes, has_payload, first_at,
            last_at)
        VALUES (1, 'old', '', 'permanent', 1, '', 'x', 1, true, now() - interval '26 h', now() - interval '25 h'),
            (1, 'new', '', 'permanent', 1, '', 'x', 1, true, now() - interval '26 h', now());";
    fixture.run(rows).await;
    let mut connection = login(&fixture, "idem_cleanup").await.connect().await.unwrap();
    for table in [
        "processed_messages",
        "units",
        "message_attempts",
        "dead_letters",
        "worker_runs",
        "audit",
        "forgotten",
        "consumers",
    ] {
        assert_eq!(refused(&mut connection, &format!("DELETE FROM {table}")).await, "42501", "{table}");
    }
    assert_eq!(refused(&mut connection, "SELECT payload FROM dead_letters").await, "42501");
    assert_eq!(refused(&mut connection, "SELECT remove_expired('consumers', 100, 0)").await, "22023");
    for kind in Expiring::ALL {
        for kept in [0_i64, -1_000_000_000_000_000] {
            let remove = format!("SELECT remove_expired('{}', 100, {kept})", kind.table());
            sqlx::raw_sql(sqlx::AssertSqlSafe(remove)).execute(&mut connection).await.unwrap();
        }
    }
    assert_eq!(fixture.recorded().await, ["new"]);
    assert_eq!(fixture.texts("SELECT action FROM audit").await, ["new"]);
    assert_eq!(fixture.texts("SELECT origin FROM dead_letters").await, ["new"]);
    drop(connection);
    give_up(fixture, &["idem_cleanup"]).await;
}

/// S8: a worker sets messages aside and replays them under its role, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s8_a_worker_sets_aside_and_replays_under_its_role() {
    let fixture = Fixture::new().await;
    arrange(&fixture).await;
    let store = fixture.options_of(login(&fixture, "idem_worker").await).build().unwrap();
    let queue = Arc::new(Broker::new()).create("orders", QueueOptions::default()).unwrap();
    let refusing = Arc::new(AtomicBool::new(true));
    let consumer = builder(store.clone(), Acting(Refusing(Arc::clone(&refusing)))).build().unwrap();
    let worker = Worker::builder(consumer, queue.source()).cleanup(None).control_every(Duration::from_millis(50));
    let stop = CancellationToken::new();
    let running = tokio::spawn(worker.build().unwrap().run(stop.clone().cancelled_owned()));
    queue.publish(msg("a")).unwrap();
    fixture.until("SELECT count(*) = 1 FROM dead_letters").await;
    refusing.store(false, Ordering::SeqCst);
    let ids: Vec<i64> =
        fixture.texts("SELECT id FROM dead_letters").await.iter().map(|id| id.parse().unwrap()).collect();
    assert_eq!(store.bookkeeping().due_now(&[DeadLetterId(ids[0])], "ann").await.unwrap(), 1);
    fixture.until("SELECT bool_and(replayed_at IS NOT NULL) FROM dead_letters").await;
    stop.cancel();
    running.await.unwrap().unwrap();
    assert_eq!(fixture.effects().await, ["a"]);
    store.disconnect().await;
    give_up(fixture, &["idem_worker"]).await;
}

/// Refuses messages for good, until it does not.
struct Refusing(Arc<AtomicBool>);

impl Act for Refusing {
    async fn act(&self, message: &Message, connection: &mut PgConnection) -> Result<(), HandlerError> {
        if self.0.load(Ordering::SeqCst) {
            return Err(HandlerError::permanent("not now"));
        }
        Ok(write(connection, message).await?)
    }
}
