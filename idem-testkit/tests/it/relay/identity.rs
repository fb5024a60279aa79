//! What is lost where events are found by their numbers, or known by their keys, alone.

use std::{sync::Arc, time::Duration};

use idem_core::{DedupConsumer, Effects, Event, HandlerError, Message, Tx, handler_fn};
use idem_testkit::{Fault, MemoryStore, Operation, message};
use tokio::time::sleep;

use super::fixture::{Fixture, Topic, running};

/// What arrives, in its order, where the event with the lower number is committed after the other one was sent.
async fn arrived_with_a_late_commit(topic: Topic) -> Vec<String> {
    let fixture = Fixture::new();
    let relay = running(fixture.relay().to("a", topic.clone()).build().unwrap());
    fixture.store.inject(Operation::Commit, Fault::Delay(Duration::from_secs(5)));
    let overtaking = async {
        while fixture.store.faults_left(Operation::Commit) > 0 {
            sleep(Duration::from_millis(1)).await;
        }
        fixture.commit_many("a", 1..2).await;
    };
    tokio::join!(fixture.commit_many("a", 0..1), overtaking);
    sleep(Duration::from_secs(30)).await;
    relay.abort();
    topic.arrived()
}

#[tokio::test(start_paused = true)]
async fn o5_a_late_commit_of_a_lower_number_is_sent() {
    for topic in [Topic::new(), Topic::each(2)] {
        assert_eq!(arrived_with_a_late_commit(topic).await, ["1", "0"]);
    }
}

/// The check above finds a relay that reads on from the last number that it saw.
#[cfg(idem_bugs)]
#[tokio::test(start_paused = true)]
async fn o5_a_relay_that_scans_by_id_is_found() {
    idem_core::bugs::plant(Some(idem_core::bugs::Bug::ScansById));
    for topic in [Topic::new(), Topic::each(2)] {
        assert_eq!(arrived_with_a_late_commit(topic).await, ["1"]);
    }
    idem_core::bugs::plant(None);
}

/// Forwards a message to two destinations under its own key.
async fn forward(message: &Message, tx: &mut Tx<'_, MemoryStore>) -> Result<(), HandlerError> {
    for destination in ["a", "b"] {
        tx.publish(message, Event::to(destination).same_key().body("250"))?;
    }
    Ok(())
}

/// The destinations that a forwarded message waits for.
async fn forwarded_to() -> Vec<String> {
    let store = Arc::new(MemoryStore::new());
    let consumer = DedupConsumer::builder(Arc::clone(&store), "forwarder")
        .handler(handler_fn(forward))
        .handler_name("forwarder")
        .effects(Effects::InTransaction)
        .publish_to(["a", "b"])
        .build()
        .unwrap();
    let decided = consumer.process(vec![message("order-1", "250")]).await.unwrap();
    assert!(decided.iter().all(|decided| decided.decision.is_processed()));
    store.events().into_iter().map(|(destination, _)| destination).collect()
}

#[tokio::test]
async fn o15_one_key_for_two_destinations_is_two_events() {
    assert_eq!(forwarded_to().await, ["a", "b"]);
}

/// The check above finds an outbox whose primary key is the event's key alone.
#[cfg(idem_bugs)]
#[tokio::test]
async fn o15_a_primary_key_of_the_id_alone_is_found() {
    idem_core::bugs::plant(Some(idem_core::bugs::Bug::PkIdOnly));
    let destinations = forwarded_to().await;
    idem_core::bugs::plant(None);
    assert_eq!(destinations, ["a"]);
}
