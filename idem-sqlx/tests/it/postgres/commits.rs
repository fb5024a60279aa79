//! Commits whose answer is lost, late or wrong.

use idem_testkit::Decide as _;
use std::time::Duration;

use idem_core::{
    Decision, DedupConsumer, DedupConsumerBuilder, Effects, ErrorClass, Ran, ResultBody, RunOnce, RunOnceError,
};
use idem_sqlx::PostgresStore;
use idem_testkit::proxy::postgres::{Cut, PostgresProxy};
use sqlx::postgres::{PgConnectOptions, PgSslMode};

use super::{
    consumers::{Write, builder, consumer, keys, messages, process, write},
    fixture::{Fixture, PATIENCE, url},
    scratch::Scratch,
};

/// A consumer with one lane behind a proxy.
async fn behind(fixture: &Fixture, cut: Cut, times: usize) -> (PostgresProxy, DedupConsumer<PostgresStore>) {
    let server: PgConnectOptions = url().parse().unwrap();
    let authority = format!("{}:{}", server.get_host(), server.get_port());
    let proxy = PostgresProxy::cutting(&authority, cut, times).await.unwrap();
    let through = server.host("127.0.0.1").port(proxy.port()).ssl_mode(PgSslMode::Disable);
    let through = through.options([("search_path", fixture.schema.as_str())]);
    let consumer = builder(fixture.options_of(through).build().unwrap(), Write).lanes(1).build().unwrap();
    (proxy, consumer)
}

/// BEGIN, claim, the handlers' statements, and the seal with COMMIT, once the statements are prepared; for duplicates BEGIN,
/// claim, read and ROLLBACK.
#[tokio::test]
async fn a_unit_costs_three_round_trips_beside_its_handlers() {
    let fixture = Fixture::new().await;
    let (proxy, consumer) = behind(&fixture, Cut::Before, 0).await;
    // The claim of one key is another statement than that of many.
    assert_eq!(process(&consumer, messages(&keys(2))).await, "PP");
    assert_eq!(process(&consumer, messages(&keys(1))).await, "D");
    for count in [1, 10, 100] {
        let keys: Vec<String> = keys(count).into_iter().map(|key| format!("{count}-{key}")).collect();
        proxy.round_trips();
        assert_eq!(process(&consumer, messages(&keys)).await, "P".repeat(count));
        assert_eq!(proxy.round_trips(), 3 + count);
        assert_eq!(process(&consumer, messages(&keys)).await, "D".repeat(count));
        assert_eq!(proxy.round_trips(), 4);
    }
    fixture.drop().await;
}

/// Work that writes an effect and answers, on a consumer behind the proxy.
async fn pay(payments: &RunOnce<PostgresStore>, key: &str, payload: &str) -> Result<Ran, RunOnceError> {
    let paying = payments.run_once(key, payload, |tx| {
        Box::pin(async move {
            let message = tx.message().cloned().unwrap();
            write(tx.connection(), &message).await?;
            Ok(ResultBody::new("paid").with_status(201))
        })
    });
    paying.await
}

/// V14, V15: a repeat costs one round trip where it is expected to be one, and BEGIN, claim, look-up and ROLLBACK where it is not; a
/// first run pays for none of that. Neither repeats nor uses of the key for something else write anything or take a transaction's
/// number.
#[tokio::test]
async fn v14_v15_repeats_and_conflicts_cost_one_round_trip_and_write_nothing() {
    let scratch = Scratch::new("v14").await;
    let fixture = Fixture::on(&scratch.url).await;
    let server: PgConnectOptions = scratch.url.parse().unwrap();
    let proxy = PostgresProxy::cutting(&format!("{}:{}", server.get_host(), server.get_port()), Cut::Before, 0).await;
    let proxy = proxy.unwrap();
    let instance = || {
        let through = server.clone().host("127.0.0.1").port(proxy.port()).ssl_mode(PgSslMode::Disable);
        let through = through.options([("search_path", fixture.schema.as_str())]);
        let builder = RunOnce::builder(fixture.options_of(through).build().unwrap(), "payments");
        builder.effects(Effects::InTransaction).final_errors().lanes(1).build_once().unwrap()
    };
    let (here, there) = (instance(), instance());
    let first_run = 6;
    for key in ["0", "1", "2", "3", "4", "5", "6"] {
        proxy.round_trips();
        assert!(!pay(&here, key, "p").await.unwrap().replayed);
        // BEGIN, claim, savepoint, effect, result, and the seal with COMMIT.
        assert!(key == "0" || proxy.round_trips() == first_run, "{key}");
    }
    assert!(pay(&here, "0", "p").await.unwrap().replayed, "the look-up is prepared");
    assert!(matches!(pay(&here, "0", "other").await, Err(RunOnceError::Conflict { .. })), "it is noted");
    for payload in ["p", "other"] {
        proxy.round_trips();
        assert_eq!(pay(&here, "0", payload).await.is_ok(), payload == "p");
        assert_eq!(proxy.round_trips(), 1, "{payload}");
    }
    for (key, cost) in [("1", None), ("2", Some(4)), ("3", Some(4)), ("4", Some(4)), ("5", Some(1)), ("6", Some(1))] {
        proxy.round_trips();
        assert!(pay(&there, key, "p").await.unwrap().replayed);
        let spent = proxy.round_trips();
        assert!(cost.is_none_or(|cost| spent == cost), "{key}: {spent}");
    }
    // What else the server does, such as a checkpoint, may write meanwhile, and not each time.
    let mut seen = Vec::new();
    for _ in 0..20 {
        let before = fixture.text(WRITTEN).await;
        for _ in 0..10 {
            assert!(pay(&here, "0", "p").await.unwrap().replayed);
            assert!(pay(&here, "0", "other").await.is_err());
        }
        if fixture.text(WRITTEN).await == before {
            fixture.drop().await;
            return scratch.down().await;
        }
        seen.push(before);
    }
    panic!("something was written each time: {seen:?}");
}

const WRITTEN: &str = "SELECT pg_current_wal_insert_lsn()::text || ' ' || pg_snapshot_xmax(pg_current_snapshot())";

/// With a synchronous standby that does not exist, every COMMIT hangs after it is written.
async fn hang_commits(fixture: &Fixture, name: &str) {
    let mut connection = fixture.connect().await;
    let set = format!("ALTER SYSTEM SET synchronous_standby_names = '{name}'");
    sqlx::raw_sql(sqlx::AssertSqlSafe(set)).execute(&mut connection).await.unwrap();
    sqlx::raw_sql("SELECT pg_reload_conf()").execute(&mut connection).await.unwrap();
    fixture.until(&format!("SELECT current_setting('synchronous_standby_names') = '{name}'")).await;
}

const WAITING: &str = "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'SyncRep'";

/// A server of its own, on which every COMMIT hangs, and a consumer that was started before.
async fn rig(
    name: &str,
    limits: impl FnOnce(DedupConsumerBuilder<PostgresStore>) -> DedupConsumerBuilder<PostgresStore>,
) -> (Scratch, Fixture, DedupConsumer<PostgresStore>) {
    let scratch = Scratch::new(name).await;
    let fixture = Fixture::on(&scratch.url).await;
    let consumer = limits(builder(fixture.another(), Write).lanes(1)).build().unwrap();
    consumer.start().await.unwrap();
    hang_commits(&fixture, "nobody").await;
    (scratch, fixture, consumer)
}

/// So long that nothing but the event that a test waits for ends a COMMIT.
fn patient(consumer: DedupConsumerBuilder<PostgresStore>) -> DedupConsumerBuilder<PostgresStore> {
    consumer.commit_timeout(PATIENCE).busy_timeout(PATIENCE)
}

/// Too short for any COMMIT that hangs.
fn hasty(consumer: DedupConsumerBuilder<PostgresStore>) -> DedupConsumerBuilder<PostgresStore> {
    consumer.commit_timeout(Duration::from_millis(500)).busy_timeout(Duration::from_secs(1))
}

/// A7: a COMMIT that hangs is unknown within its limit. The server still holds the keys, so they are busy; when it
/// lets go, the record answers.
#[tokio::test]
async fn a7_a_commit_that_hangs_is_unknown_in_bounded_time() {
    let (scratch, fixture, consumer) = rig("a7", hasty).await;
    for count in [1, 3] {
        let keys: Vec<String> = keys(count).into_iter().map(|key| format!("{count}-{key}")).collect();
        hang_commits(&fixture, "nobody").await;
        let seen = tokio::time::timeout(PATIENCE, process(&consumer, messages(&keys))).await;
        let busy = "B".repeat(count);
        assert_eq!(seen.expect("bounded"), busy, "held by the commit that hangs, and acknowledged by nobody");
        let of_these = format!("SELECT count(*) = {count} FROM effects WHERE key LIKE '{count}-%'");
        assert_eq!(fixture.text(of_these.as_str()).await, "f", "invisible while it hangs");
        hang_commits(&fixture, "").await;
        fixture.until(&of_these).await;
        let later = patient(builder(fixture.another(), Write)).build().unwrap();
        assert_eq!(process(&later, messages(&keys)).await, "D".repeat(count));
        assert_eq!(fixture.text(of_these).await, "t", "each effect once");
    }
    fixture.drop().await;
    scratch.down().await;
}

/// A10, D6: the backend is terminated while it waits: the client sees a broken connection, and the batch is committed.
#[tokio::test]
async fn a10_d6_a_backend_terminated_during_commit_is_unknown_and_resolved() {
    let (scratch, fixture, consumer) = rig("m12", patient).await;
    let keys = keys(100);
    let terminate = async {
        fixture.until(WAITING).await;
        fixture.text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'").await
    };
    let (seen, _) = tokio::join!(process(&consumer, messages(&keys)), terminate);
    assert_eq!(seen, "D".repeat(100), "the record that was read decides");
    assert_eq!(fixture.effects().await, keys);
    hang_commits(&fixture, "").await;
    fixture.drop().await;
    scratch.down().await;
}

/// A8: an operator cancels the wait. The server answers with success and a warning, which sqlx does not hand on: a
/// documented limit, pinned here.
#[tokio::test]
async fn a8_a_cancelled_wait_for_a_standby_counts_as_committed() {
    let (scratch, fixture, consumer) = rig("a8", patient).await;
    let keys = keys(1);
    let cancel = async {
        fixture.until(WAITING).await;
        fixture.text("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'").await
    };
    let (seen, _) = tokio::join!(process(&consumer, messages(&keys)), cancel);
    assert_eq!(seen, "P");
    assert_eq!(fixture.effects().await, keys);
    hang_commits(&fixture, "").await;
    fixture.drop().await;
    scratch.down().await;
}

/// C8: after a restore from a backup, delivering again from before it is all that has to be done: what the backup holds is
/// skipped, and what it lacks takes effect again.
#[tokio::test]
async fn c8_after_a_restore_a_redelivery_makes_everything_whole() {
    let fixture = Fixture::new().await;
    let consumer = consumer(fixture.store.clone(), Write);
    assert_eq!(process(&consumer, messages(&keys(2))).await, "PP");
    let tables = ["processed_messages", "units", "effects"];
    for table in tables {
        fixture.run(format!("CREATE TABLE backup_{table} AS TABLE {table}")).await;
    }
    assert_eq!(process(&consumer, messages(&keys(4))).await, "DDPP");
    // A backup is older than what was acknowledged: records and effects alike are gone.
    let restore = tables.map(|table| format!("TRUNCATE {table}; INSERT INTO {table} TABLE backup_{table};")).concat();
    fixture.run(format!("BEGIN; SET LOCAL session_replication_role = replica; {restore} COMMIT")).await;
    assert_eq!(fixture.effects().await.len(), 2);
    assert_eq!(process(&consumer, messages(&keys(4))).await, "DDPP");
    assert_eq!(fixture.effects().await, fixture.recorded().await);
    assert_eq!(fixture.effects().await.len(), 4);
    fixture.drop().await;
}

/// J6: a full disk is the database's trouble, which no message is charged for, and all is well once there is room.
#[tokio::test]
async fn j6_a_full_disk_is_no_fault_of_the_message() {
    let fixture = Fixture::new().await;
    let consumer = consumer(fixture.store.clone(), Write);
    fixture
        .run(
            "CREATE FUNCTION no_room() RETURNS trigger LANGUAGE plpgsql AS
                 $$ BEGIN RAISE EXCEPTION USING ERRCODE = '53100', MESSAGE = 'could not extend file'; END $$;
             CREATE TRIGGER no_room BEFORE INSERT ON effects FOR EACH ROW EXECUTE FUNCTION no_room()",
        )
        .await;
    for decision in consumer.decisions(messages(&keys(2))).await.unwrap() {
        assert!(
            matches!(&decision, Decision::Failed(failure) if failure.class == ErrorClass::Infrastructure),
            "{decision:?}"
        );
    }
    assert!(
        fixture.recorded().await.is_empty()
            && fixture.texts("SELECT key_id::text FROM message_attempts").await.is_empty()
    );
    fixture.run("DROP TRIGGER no_room ON effects").await;
    assert_eq!(process(&consumer, messages(&keys(2))).await, "PP");
    fixture.drop().await;
}
