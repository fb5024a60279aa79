//! One writer at a time: which unit waits for which, how long, and the result.

use idem_testkit::Decide as _;
use std::{sync::Arc, time::Duration};

use idem_core::{
    Decision, ErrorClass, IdempotencyKey, Retention, Store, StoreError,
    hash::PayloadHash,
    store::{Bookkeeping, Claim, ClaimError, UnitOfWork, UnitOptions},
};
use idem_sqlx::{SqliteOptions, SqliteStore};

use super::{Scripted, builder, consumer, fresh, message, messages, names, open, registration, soon};

fn options(busy: Duration) -> UnitOptions {
    UnitOptions::new(idem_core::store::RunId(1), 0, busy, Duration::from_secs(30))
}

const SHORT: Duration = Duration::from_millis(50);

/// Another connection that writes makes the unit held: a batch's keys are then Busy one by one, and no message fails.
#[tokio::test(flavor = "multi_thread")]
async fn a_unit_is_held_while_another_connection_writes() {
    let (file, store) = fresh().await;
    let consumer = builder(&store).handler(Scripted).busy_timeout(SHORT).build().unwrap();
    consumer.decisions(vec![message("old", "1")]).await.unwrap();
    let mut other = file.connect().await;
    sqlx::raw_sql("BEGIN IMMEDIATE; INSERT INTO taken VALUES (2)").execute(&mut other).await.unwrap();
    let decisions = soon(consumer.decisions(messages(&[("a", "1"), ("b", "2")]))).await.unwrap();
    assert_eq!(names(&decisions), ["busy", "busy"]);
    assert_eq!(file.effects().await, ["old=1"]);
    sqlx::raw_sql("COMMIT").execute(&mut other).await.unwrap();
    let decisions = soon(consumer.decisions(messages(&[("a", "1"), ("b", "2")]))).await.unwrap();
    assert_eq!(names(&decisions), ["processed", "processed"]);
}

/// A held unit still reads, which is what a look-up of duplicates needs.
#[tokio::test(flavor = "multi_thread")]
async fn a_held_unit_reads_but_does_not_claim() {
    let (file, store) = fresh().await;
    consumer(&store).decisions(vec![message("old", "1")]).await.unwrap();
    let registered = store.bookkeeping().register(&registration_of_builder(&file).await).await.unwrap();
    let claim = Claim::new(
        registered.scope,
        IdempotencyKey::new("old").unwrap(),
        PayloadHash::of(b"1"),
        registered.hash_rules[0],
        Retention::Forever,
    );
    let mut other = file.connect().await;
    sqlx::raw_sql("BEGIN IMMEDIATE").execute(&mut other).await.unwrap();
    let lane = store.open().await.unwrap();
    let mut unit = store.begin(lane, options(SHORT)).await.unwrap();
    assert!(matches!(unit.claim(std::slice::from_ref(&claim)).await, Err(ClaimError::Held)));
    let found = unit.read(std::slice::from_ref(&claim)).await.unwrap();
    assert_eq!(found[0].as_ref().unwrap().hash, claim.hash);
    unit.check().unwrap();
    unit.rollback().await.unwrap();
}

/// The registration that the consumer of [`super::builder`] made, as the file has it.
async fn registration_of_builder(file: &super::File) -> idem_core::store::Registration {
    let key_rule = file.ask("SELECT key_rules FROM idem_consumers").await.remove(0);
    let rules = file.ask("SELECT hash_rules FROM idem_consumers").await.remove(0);
    registration().key_rule(key_rule).hash_rules(vec![rules])
}

/// Two units of one store take turns in the order in which they ask.
#[tokio::test(flavor = "multi_thread")]
async fn units_of_one_store_take_turns() {
    let (_file, store) = fresh().await;
    let (first, second) = (store.open().await.unwrap(), store.open().await.unwrap());
    let unit = store.begin(first, options(SHORT)).await.unwrap();
    let mut held = store.begin(second, options(SHORT)).await.unwrap();
    assert!(matches!(held.claim(&[]).await, Err(ClaimError::Held)));
    let second = held.rollback().await.unwrap().unwrap();
    let waits = async {
        let mut unit = store.begin(second, options(Duration::from_secs(20))).await.unwrap();
        unit.claim(&[]).await.unwrap();
        unit.rollback().await.unwrap();
    };
    let (ended, ()) = tokio::join!(unit.rollback(), soon(waits));
    ended.unwrap();
}

/// A call of bookkeeping inside a unit of the same store waits for itself: it ends with an error, and in time.
#[tokio::test(flavor = "multi_thread")]
async fn bookkeeping_behind_a_unit_waits_at_most_its_timeout() {
    let (file, _store) = fresh().await;
    let store = SqliteStore::connect(SqliteOptions::new(file.path()).bookkeeping_timeout(SHORT)).await.unwrap();
    let scope = super::registered(&store).await;
    let lane = store.open().await.unwrap();
    let unit = store.begin(lane, options(SHORT)).await.unwrap();
    let key = IdempotencyKey::new("a").unwrap();
    let error = soon(store.bookkeeping().count_attempt(scope, &key, PayloadHash::NONE)).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable { .. }), "{error}");
    // A mere read does not wait at all.
    soon(store.bookkeeping().control(scope)).await.unwrap();
    unit.rollback().await.unwrap();
    assert_eq!(store.bookkeeping().count_attempt(scope, &key, PayloadHash::NONE).await.unwrap(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_lanes_are_refused_by_build() {
    let (_file, store) = fresh().await;
    let error = builder(&store).handler(Scripted).lanes(2).build().unwrap_err();
    assert_eq!((error.field, error.value.as_str()), ("lanes", "2"));
    let capabilities = store.capabilities();
    assert_eq!(capabilities.lanes_max, Some(1));
    assert!(!capabilities.waits_per_key);
}

/// A18: a statement that never ends is interrupted at the handler's deadline, and the lock is free for the next unit.
#[tokio::test(flavor = "multi_thread")]
async fn a18_a_statement_past_the_deadline_is_interrupted() {
    let (file, store) = fresh().await;
    let consumer = builder(&store).handler(Scripted).handler_deadline(Duration::from_millis(200)).build().unwrap();
    let decisions = soon(consumer.decisions(vec![message("a", "block")])).await.unwrap();
    let Decision::Failed(failure) = &decisions[0] else { panic!("{decisions:?}") };
    assert_eq!((failure.class, failure.reason), (ErrorClass::Transient, idem_core::dead_letter::Reason::Deadline));
    let decisions = soon(consumer.decisions(vec![message("a", "1")])).await.unwrap();
    assert_eq!(names(&decisions), ["processed"]);
    assert_eq!(file.effects().await, ["a=1"]);
}

/// Several consumers that share nothing but the file, each sent everything, in another order.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn stores_on_one_file_do_everything_exactly_once() {
    let (file, _store) = fresh().await;
    let keys: Vec<String> = (0..200).map(|number| format!("key-{number:03}")).collect();
    let mut tasks = Vec::new();
    for offset in 0..4 {
        let store = open(&file).await;
        let mut keys = keys.clone();
        keys.rotate_left(offset * 50);
        tasks.push(tokio::spawn(everything(store, keys)));
    }
    for task in tasks {
        soon(task).await.unwrap();
    }
    assert_eq!(file.effects().await, keys.iter().map(|key| format!("{key}=1")).collect::<Vec<_>>());
    assert_eq!(file.recorded().await, keys);
}

/// Hands batches of ten in until each is decided, as a broker would.
async fn everything(store: Arc<SqliteStore>, keys: Vec<String>) {
    let consumer = consumer(&store);
    for batch in keys.chunks(10) {
        loop {
            let decisions = consumer.decisions(batch.iter().map(|key| message(key, "1")).collect()).await.unwrap();
            if decisions.into_iter().all(|decision| decision.into_durable().is_some()) {
                break;
            }
        }
    }
}
