//! Duplicates that are recognized from memory, and the events that empty it.

use idem_testkit::Decide as _;
use std::time::Duration;

use idem_core::{Retention, Store as _, store::Bookkeeping};
use idem_testkit::memory::QueueOptions;

use super::fixture::{Fixture, Running, message, within};

const MINUTE: Duration = Duration::from_secs(60);

/// The second and third copy need no database, the same key with another payload is a conflict as ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_duplicate_of_a_committed_key_is_told_from_memory_and_a_conflict_is_not() {
    let fixture = Fixture::with(QueueOptions::default());
    let running = Running::new(fixture.worker().cache_for(5 * MINUTE));
    fixture.publish("1", "ok");
    within("the first", fixture.queue.drained()).await;
    fixture.publish("1", "ok");
    fixture.publish("1", "other");
    fixture.publish("1", "ok");
    within("its copies", fixture.queue.drained()).await;
    let summary = running.stop().await.unwrap();
    assert_eq!((summary.processed, summary.duplicates, summary.cache_hits, summary.conflicts), (1, 2, 2, 1));
    assert_eq!(fixture.counted(), [("1".to_owned(), 1)].into());
}

/// A duplicate that was read is known to be committed too; the next process starts with an empty memory.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_was_read_is_remembered() {
    let fixture = Fixture::new();
    for hits in [0, 1] {
        let running = Running::new(fixture.worker().cache_for(5 * MINUTE));
        for _ in 0..2 {
            fixture.publish("1", "ok");
            within("a copy", fixture.queue.drained()).await;
        }
        assert_eq!(running.stop().await.unwrap().cache_hits, 1, "of run {hits}");
    }
    assert_eq!(fixture.counted(), [("1".to_owned(), 1)].into());
}

/// Nothing enters before its commit, and a failed message leaves nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_failed_is_not_remembered() {
    let fixture = Fixture::new();
    let running = Running::new(fixture.worker().cache_for(5 * MINUTE));
    fixture.publish("1", "permanent");
    within("the failure", fixture.queue.drained()).await;
    fixture.script.mend();
    fixture.publish("1", "permanent");
    within("the next copy", fixture.queue.drained()).await;
    let summary = running.stop().await.unwrap();
    assert_eq!((summary.processed, summary.cache_hits), (1, 0));
}

/// An operator's act raises the epoch, and running workers ask the database again within 2 seconds.
#[tokio::test(flavor = "multi_thread")]
async fn another_epoch_empties_the_memory_of_a_running_worker() {
    let fixture = Fixture::new();
    let running = Running::new(fixture.worker().cache_for(5 * MINUTE));
    fixture.publish("1", "ok");
    fixture.publish("2", "permanent");
    within("both", fixture.queue.drained()).await;
    let letter = fixture.dead_letters().await.remove(0);
    assert_eq!(fixture.store.bookkeeping().due_now(&[letter.id], "ann").await.unwrap(), 1);
    running.until("the replay", |running| running.view.summary().replayed == 1).await;
    fixture.queue.publish(message("1", "ok")).unwrap();
    within("the copy", fixture.queue.drained()).await;
    let summary = running.stop().await.unwrap();
    assert_eq!((summary.duplicates, summary.cache_hits), (1, 0));
}

/// A record that may be removed before its time in memory is over is not remembered: its duplicate would be recognized
/// from memory although the record is gone.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_expires_soon_is_not_remembered() {
    let fixture = Fixture::new();
    let short = fixture.consumer().retention(Retention::For(MINUTE)).build().unwrap();
    assert!(short.decisions(vec![message("1", "ok")]).await.unwrap()[0].is_processed());
    // The same consumer, which keeps new records for longer than the old one stays.
    let running = Running::new(fixture.worker().cache_for(5 * MINUTE));
    for _ in 0..3 {
        fixture.publish("1", "ok");
        within("a copy", fixture.queue.drained()).await;
    }
    let summary = running.stop().await.unwrap();
    assert_eq!((summary.duplicates, summary.cache_hits), (3, 0));
}
