//! An open breaker where a queue keeps the order of groups.

use serde_json::json;

use super::fixture::{Fixture, Ledger, until};

/// J37: more than half of what a worker has seen fails for good, all in one group, which the queue gives out ten at a time. The others
/// go on, the breaker closes, and nothing stays in the queue.
#[tokio::test(flavor = "multi_thread")]
async fn j37_failures_of_one_group_behind_an_open_breaker_keep_no_other_group_waiting() {
    let fixture = Fixture::new("breaker", ".fifo").await;
    // With a key and no customer: a handler sees it, and says that it is malformed.
    let failing =
        |number: i64| (json!({ "idempotencykey": format!("failing-{number}") }).to_string(), "failing".to_owned());
    fixture.queue.send_texts((0..30).map(failing).collect()).await;
    let worker = fixture.start(&["--batch", "20"]);
    until("the breaker to open", async || worker.logged().contains("one message a second is tried")).await;
    fixture.send(0..200).await;
    fixture.until_purchases(200).await;
    until("an empty queue", async || fixture.queue.counts().await == [0, 0, 0]).await;
    assert!(worker.logged().contains("a probe went well; intake goes on"), "{}", worker.logged());
    let ended = worker.stop().await;
    assert_eq!((ended.count("processed"), ended.count("dead_lettered")), (200, 30));
    assert_eq!(fixture.ledger().await, Ledger::of(0..200));
    assert_eq!(fixture.dead_letters().await, [("malformed".to_owned(), 30)].into());
    fixture.remove().await;
}
