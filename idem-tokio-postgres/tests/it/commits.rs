//! Commits whose answer is lost, late or wrong.

use std::time::Duration;

use idem_core::{Concurrency, DedupConsumer, DedupConsumerBuilder, Effects, Ran, ResultBody, RunOnce, RunOnceError};
use idem_testkit::proxy::postgres::PostgresProxy;
use idem_tokio_postgres::PostgresStore;

use crate::{
    consumers::{BOTH, Write, builder, keys, messages, process, write},
    fixture::{Fixture, PATIENCE, authority, authority_of},
    scratch::Scratch,
};

/// A consumer with one lane behind a proxy.
fn behind(proxy: &PostgresProxy, fixture: &Fixture, handlers: Concurrency) -> DedupConsumer<PostgresStore> {
    let store = fixture.options_of(fixture.through(proxy.port())).build().unwrap();
    builder(store, Write).lanes(1).handlers(handlers).build().unwrap()
}

/// BEGIN with the claim, the handlers' statements, the seal with COMMIT; for duplicates BEGIN with the claim, read, and
/// ROLLBACK. Handlers at once cost one round trip together.
#[tokio::test]
async fn a_unit_costs_two_round_trips_beside_its_handlers() {
    let fixture = Fixture::new().await;
    let proxy = PostgresProxy::patient(&authority()).await.unwrap();
    for (handlers, handlers_cost) in BOTH.into_iter().zip([20, 1]) {
        let consumer = behind(&proxy, &fixture, handlers);
        let keys: Vec<String> = keys(40).into_iter().map(|key| format!("{handlers:?}-{key}")).collect();
        let (first, second) = keys.split_at(20);
        assert_eq!(process(&consumer, messages(&first[..2])).await, "PP", "everything is prepared");
        assert_eq!(process(&consumer, messages(&first[..1])).await, "D", "and the claim of one key");
        proxy.round_trips();
        assert_eq!(process(&consumer, messages(second)).await, "P".repeat(20));
        assert_eq!(proxy.round_trips(), 2 + handlers_cost, "{handlers:?}");
        assert_eq!(process(&consumer, messages(second)).await, "D".repeat(20));
        assert_eq!(proxy.round_trips(), 3, "{handlers:?}");
    }
    fixture.drop().await;
}

/// Work that writes an effect and answers.
async fn pay(payments: &RunOnce<PostgresStore>, key: &str, payload: &str) -> Result<Ran, RunOnceError> {
    let paying = payments.run_once(key, payload, |tx| {
        Box::pin(async move {
            let message = tx.message().cloned().unwrap();
            write(&tx.connection(), &message).await?;
            Ok(ResultBody::new("paid").with_status(201))
        })
    });
    paying.await
}

/// V14, V15: a repeat costs one round trip where it is expected to be one, and BEGIN with the claim, look-up and ROLLBACK where it is
/// not; a first run pays for none of that. Neither repeats nor uses of the key for something else write anything or take a
/// transaction's number.
#[tokio::test]
async fn v14_v15_repeats_and_conflicts_cost_one_round_trip_and_write_nothing() {
    let scratch = Scratch::new("v14").await;
    let fixture = Fixture::on(&scratch.url).await;
    let proxy = PostgresProxy::patient(&authority_of(&scratch.url)).await.unwrap();
    let instance = || {
        let builder = RunOnce::builder(fixture.options_of(fixture.through(proxy.port())).build().unwrap(), "payments");
        builder.effects(Effects::InTransaction).final_errors().lanes(1).build_once().unwrap()
    };
    let (here, there) = (instance(), instance());
    let mut first_runs = Vec::new();
    for key in ["0", "1", "2", "3", "4", "5", "6"] {
        proxy.round_trips();
        assert!(!pay(&here, key, "p").await.unwrap().replayed);
        first_runs.push(proxy.round_trips());
    }
    // BEGIN with the claim, the savepoint with the effect, and the result with the seal and COMMIT.
    assert_eq!(first_runs.iter().min(), Some(&3), "{first_runs:?}");
    assert!(pay(&here, "0", "p").await.unwrap().replayed, "the look-up is prepared");
    assert!(matches!(pay(&here, "0", "other").await, Err(RunOnceError::Conflict { .. })), "it is noted");
    for payload in ["p", "other"] {
        proxy.round_trips();
        assert_eq!(pay(&here, "0", payload).await.is_ok(), payload == "p");
        assert_eq!(proxy.round_trips(), 1, "{payload}");
    }
    let mut repeats = Vec::new();
    for key in ["1", "2", "3", "4", "5", "6"] {
        proxy.round_trips();
        assert!(pay(&there, key, "p").await.unwrap().replayed);
        repeats.push(proxy.round_trips());
    }
    assert_eq!((repeats[..4].iter().min(), &repeats[4..]), (Some(&3), &[1, 1][..]), "{repeats:?}");
    // What else the server does, such as a checkpoint, may write meanwhile, and not each time.
    let mut seen = Vec::new();
    for _ in 0..20 {
        let before = fixture.text(WRITTEN).await;
        for _ in 0..5 {
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
    let client = fixture.connect().await;
    client.batch_execute(&format!("ALTER SYSTEM SET synchronous_standby_names = '{name}'")).await.unwrap();
    client.batch_execute("SELECT pg_reload_conf()").await.unwrap();
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
    let consumer = builder(fixture.another(), Write).lanes(1).handlers(Concurrency::pipelined());
    let consumer = limits(consumer).build().unwrap();
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
    let keys = keys(3);
    let seen = tokio::time::timeout(PATIENCE, process(&consumer, messages(&keys))).await;
    assert_eq!(seen.expect("bounded"), "BBB", "held by the commit that hangs, and acknowledged by nobody");
    assert!(fixture.effects().await.is_empty(), "invisible while it hangs");
    hang_commits(&fixture, "").await;
    fixture.until("SELECT count(*) = 3 FROM effects").await;
    let later = patient(builder(fixture.another(), Write)).build().unwrap();
    assert_eq!(process(&later, messages(&keys)).await, "DDD");
    assert_eq!(fixture.effects().await, keys, "each effect once");
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

/// A8: an operator cancels the wait. The server answers with success and a warning, which is handed on as a warning: a
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
