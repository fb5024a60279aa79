//! Rows that are due, through a running worker: batches, order, leases, pauses and stops.

use std::time::Duration;

use idem_core::{
    ConsumerName, IdempotencyKey, Store as _,
    dead_letter::{DUE_LEASE, DeadLetterId, DueRoom},
    hash::PayloadHash,
    store::{Bookkeeping as _, ControlState, RunId},
};
use idem_testkit::memory::{Order, QueueOptions};

use super::fixture::{Fixture, Running, drain, within};

/// Dead letters, oldest first: one of each of these ordering keys, or none, in their order.
async fn set_aside(fixture: &Fixture, letters: &[(String, Option<String>, &str)]) -> Vec<DeadLetterId> {
    for (key, order, payload) in letters {
        match order {
            Some(order) => fixture.publish_ordered(order, key, payload),
            None => fixture.publish(key, payload),
        };
    }
    drain(fixture, fixture.worker().breaker(false)).await;
    let stored = fixture.dead_letters().await;
    assert_eq!(stored.len(), letters.len());
    stored.iter().map(|letter| letter.id).collect()
}

async fn due_now(fixture: &Fixture, ids: &[DeadLetterId]) {
    assert_eq!(fixture.store.bookkeeping().due_now(ids, "ann").await.unwrap(), ids.len() as u64);
}

fn ledger() -> ConsumerName {
    ConsumerName::new("ledger").unwrap()
}

fn waiting(fixture: &Fixture) -> usize {
    fixture.store.kept_dead_letters().iter().filter(|kept| kept.replaying).count()
}

/// T17: a worker takes batches and looks again as soon as there is room, not once with each look at the controls: a thousand rows do not
/// take a thousand times anything. Rows of one key run in the order in which they became dead letters, on several lanes too.
#[tokio::test(flavor = "multi_thread")]
async fn t17_a_thousand_rows_run_at_once_and_in_the_order_of_their_keys() {
    let fixture = Fixture::with(QueueOptions::default().order(Order::ByKey));
    let letters: Vec<_> =
        (0..1_000).map(|n| (format!("{:04}", n), (n % 3 > 0).then(|| format!("o{}", n % 50)), "permanent")).collect();
    let ids = set_aside(&fixture, &letters).await;
    let before = fixture.script.runs().len();
    fixture.script.mend();
    due_now(&fixture, &ids.iter().rev().copied().collect::<Vec<_>>()).await;
    let consumer = fixture.consumer().lanes(3).build().unwrap();
    // Rows that are left wait for no further look at the controls, of which there is one in five seconds.
    let begun = tokio::time::Instant::now();
    let running = Running::new(fixture.worker_of(consumer).control_every(Duration::from_secs(5)));
    running.until("all rows", |running| running.view.summary().replayed == 1_000).await;
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    running.stop().await.unwrap();
    assert_eq!(fixture.counted().len(), 1_000);
    assert!(fixture.counted().values().all(|effects| *effects == 1));
    let runs = fixture.script.runs().split_off(before);
    let stored: Vec<_> = fixture.dead_letters().await.into_iter().map(|row| row.key.unwrap().to_string()).collect();
    for order in 0..50 {
        let of_key = |key: &&String| key.parse::<u32>().is_ok_and(|n| n % 3 > 0 && n % 50 == order);
        let (ran, wanted): (Vec<_>, Vec<_>) =
            (runs.iter().filter(of_key).collect(), stored.iter().filter(of_key).collect());
        assert_eq!(ran, wanted, "of the key o{order}");
    }
}

/// A row of a process that died with it runs alone, its attempt counted before, however many others are taken with it.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_whose_holder_died_runs_alone_and_counted() {
    let fixture = Fixture::new();
    let letters = ["dead", "new"].map(|key| (key.to_owned(), None, "permanent"));
    let ids = set_aside(&fixture, &letters).await;
    fixture.script.mend();
    // Probation is over with these.
    (0..200).for_each(|n| drop(fixture.publish(&format!("good-{n}"), "ok")));
    let running = Running::new(fixture.worker());
    within("draining the queue", fixture.queue.drained()).await;
    let control = fixture.store.bookkeeping();
    let scope = fixture.store.kept_dead_letters()[0].scope;
    control.set_control(scope, ControlState::Paused, "ann", "a death").await.unwrap();
    running.until("the pause", |running| running.view.pause().is_some()).await;
    due_now(&fixture, &ids[..1]).await;
    let taken = control.take_due(&ledger(), RunId(99), DueRoom::rows(1)).await.unwrap();
    assert_eq!(taken.len(), 1);
    fixture.store.advance(DUE_LEASE + Duration::from_secs(1));
    due_now(&fixture, &ids[1..]).await;
    control.set_control(scope, ControlState::Running, "", "").await.unwrap();
    running.until("both rows", |running| running.view.summary().replayed == 2).await;
    running.stop().await.unwrap();
    for (key, counted) in [("dead", 1), ("new", 0)] {
        let hash = PayloadHash::of(b"permanent");
        let next = control.count_attempt(scope, &IdempotencyKey::new(key).unwrap(), hash).await.unwrap();
        assert_eq!(next, counted + 1, "{key}");
    }
}

/// A row that fails again is isolated from the others of its batch, which take effect, and from messages of the broker, which run in units
/// of their own.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_fails_again_costs_no_other_anything() {
    let fixture = Fixture::new();
    let letters: Vec<_> = (0..20).map(|n| (format!("r{n}"), None, "fail")).collect();
    let ids = set_aside(&fixture, &letters).await;
    let running = Running::new(fixture.worker());
    due_now(&fixture, &ids).await;
    (0..50).for_each(|n| drop(fixture.publish(&format!("good-{n}"), "ok")));
    running.until("all rows", |running| running.view.summary().replayed == 20).await;
    within("draining the queue", fixture.queue.drained()).await;
    let summary = running.stop().await.unwrap();
    assert_eq!((summary.processed, summary.dead_lettered), (50, 0));
    assert!(fixture.dead_letters().await.iter().all(|letter| letter.replayed.as_ref().unwrap().starts_with("failed")));
    assert_eq!(waiting(&fixture), 0);
}

/// While the consumer is paused nothing is taken; once it is resumed, everything is.
#[tokio::test(flavor = "multi_thread")]
async fn a_paused_consumer_takes_no_rows() {
    let fixture = Fixture::new();
    let letters: Vec<_> = (0..30).map(|n| (format!("r{n}"), None, "permanent")).collect();
    let ids = set_aside(&fixture, &letters).await;
    fixture.script.mend();
    let scope = fixture.store.kept_dead_letters()[0].scope;
    let books = fixture.store.bookkeeping();
    books.set_control(scope, ControlState::Paused, "ann", "a look").await.unwrap();
    due_now(&fixture, &ids).await;
    let running = Running::new(fixture.worker());
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!((running.view.summary().replayed, waiting(&fixture)), (0, 30));
    assert_eq!(books.take_due(&ledger(), RunId(99), DueRoom::rows(1)).await.unwrap().len(), 1, "none was taken");
    books.release_due(RunId(99), &ids).await.unwrap();
    books.set_control(scope, ControlState::Running, "", "").await.unwrap();
    running.until("all rows", |running| running.view.summary().replayed == 30).await;
    running.stop().await.unwrap();
}

/// A worker that stops gives back what it has not run, with nothing charged, and another takes it at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_gives_rows_back_and_charges_nothing() {
    let fixture = Fixture::with(QueueOptions::default().order(Order::ByKey));
    let letters: Vec<_> = (0..10).map(|n| (format!("r{n}"), Some("o".to_owned()), "block, then fail")).collect();
    for _ in 0..100 {
        fixture.script.unblock();
    }
    let ids = set_aside(&fixture, &letters).await;
    let fixture = Fixture { store: fixture.store.clone(), ..Fixture::new() };
    due_now(&fixture, &ids).await;
    let running = Running::new(fixture.worker());
    fixture.script.blocked().await;
    running.cancel();
    fixture.script.mend();
    for _ in 0..100 {
        fixture.script.unblock();
    }
    running.ended().await.unwrap();
    let left = waiting(&fixture);
    assert!(left > 0, "the first held the others up");
    let taken = fixture.store.bookkeeping().take_due(&ledger(), RunId(99), DueRoom::rows(20)).await.unwrap();
    assert_eq!(taken.len(), left);
    assert!(taken.iter().all(|row| !row.was_taken), "they were given back");
    for row in &taken[1..] {
        let key = row.key.clone().unwrap();
        let hash = PayloadHash::of(b"block, then fail");
        assert_eq!(fixture.store.bookkeeping().count_attempt(row.scope, &key, hash).await.unwrap(), 1, "{key}");
    }
}
