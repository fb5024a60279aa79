//! Clocks that jump.

use std::time::Duration;

use idem_core::{config::OlderThanRetention, dead_letter::Reason};

use super::fixture::{Fixture, Running, message, within};

const DAY: Duration = Duration::from_secs(86_400);

/// J14: how old a message is says the database's clock, however far the worker's own wall clock is from it and whenever it
/// jumped. Only the distance of the two matters, so the database's is what moves here.
#[tokio::test(start_paused = true)]
async fn j14_the_wall_clock_of_a_worker_expires_nothing() {
    let fixture = Fixture::new();
    let policy = OlderThanRetention::DeadLetter;
    let running = Running::new(fixture.worker().older_than_retention(policy).breaker(false));
    let started = fixture.store.now();
    // The records are kept for 7 days. Each jump is as if the worker's wall clock had gone back by a month.
    for jump in 0..3 {
        let now = started + jump * 30 * DAY;
        fixture.queue.publish(message(&format!("young-{jump}"), "ok").with_sent_at(now - 6 * DAY)).unwrap();
        fixture.queue.publish(message(&format!("old-{jump}"), "ok").with_sent_at(now - 8 * DAY)).unwrap();
        within("draining the queue", fixture.queue.drained()).await;
        fixture.store.advance(30 * DAY);
        // The clock is paused: this goes by as soon as nothing else is left to do, so the controls have been read.
        tokio::time::sleep(Duration::from_secs(10)).await;
    }
    let summary = running.stop().await.unwrap();
    assert_eq!((summary.processed, summary.dead_lettered), (3, 3));
    let letters = fixture.dead_letters().await;
    let expected = |jump| (format!("old-{jump}"), Reason::OlderThanRetention);
    let set_aside = letters.iter().map(|letter| (letter.key.as_ref().unwrap().to_string(), letter.reason));
    assert_eq!(set_aside.collect::<Vec<_>>(), [expected(0), expected(1), expected(2)]);
}
