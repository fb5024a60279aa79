//! What a relay knows of its destination, and a worker by that.

use std::time::Duration;

use idem_core::Decision;
use idem_testkit::message;
use tokio::time::sleep;

use super::fixture::{Fixture, Topic, running};

/// Publishes an event of so many bytes; its failure, if it failed.
async fn publish(fixture: &Fixture, key: &str, bytes: usize) -> Option<String> {
    let payload = serde_json::to_vec(&("a", "", "x".repeat(bytes))).unwrap();
    let decision = fixture.consumer.process([message(key, payload)]).await.unwrap().remove(0).decision;
    match decision {
        Decision::Failed(failure) => Some(failure.text),
        other => {
            assert!(other.is_processed(), "{other:?}");
            None
        }
    }
}

/// O107: a worker that runs when its first relay starts learns within a minute what the destination takes, from the next large event
/// on; and at once that it takes more, from the relay that has found it.
#[tokio::test(start_paused = true)]
async fn o107_a_worker_learns_from_a_relay_that_starts_later() {
    let fixture = Fixture::new();
    assert_eq!(publish(&fixture, "before", 100_000).await, None);
    let run = running(fixture.relay().to("a", Topic::of_bytes(99_999)).build().unwrap());
    fixture.drained_to(0).await;
    sleep(Duration::from_secs(61)).await;
    let why = publish(&fixture, "after", 100_000).await.expect("a failure");
    assert!(why.contains("100000 bytes") && why.contains("\"a\" (topic) takes 99999"), "{why}");
    assert!(fixture.store.events().is_empty());
    run.abort();
    let raised = Topic::of_bytes(100_000);
    let run = running(fixture.relay().to("a", raised.clone()).build().unwrap());
    sleep(Duration::from_secs(5)).await;
    assert_eq!(publish(&fixture, "after", 100_000).await, None);
    fixture.drained_to(0).await;
    assert_eq!(raised.arrived().len(), 1);
    run.abort();
}
