//! Another SDK of CloudEvents reads the published events, and writes the events that are read.

#[path = "../../../tests/cloudevents/peer.rs"]
mod peer;

use idem_amqp::AmqpPublisher;
use idem_core::outbox::{CloudEvents, EventPublisher as _, OutgoingEvent};

use crate::{
    broker::{Kind, Queue},
    member::{join, within},
};

/// O26: through a queue, in both modes and both ways.
#[tokio::test(flavor = "multi_thread")]
async fn o26_another_sdk_reads_what_is_published_and_writes_what_is_read() {
    let (queue, events) = (Queue::new(Kind::Quorum).await, peer::events());
    let given: Vec<&OutgoingEvent> = events.iter().collect();
    for mode in [CloudEvents::binary(), CloudEvents::structured()] {
        let publisher = AmqpPublisher::new(&queue.options(), &queue.name).unwrap().cloud_events(mode);
        let answers = within("publishing", publisher.publish_events(&given)).await;
        assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    }
    for message in peer::written("amqp") {
        queue.publish(message).await.unwrap();
    }
    let held = join(&queue.options()).await.take_over_revocations(2 * events.len() + 4).await;
    let (published, written) = held.split_at(2 * events.len());
    let published: Vec<_> = published.iter().map(|held| &held.message).zip(given.iter().copied().cycle()).collect();
    peer::reads("amqp", &published);
    peer::are_read(&written.iter().map(|held| held.message.clone()).collect::<Vec<_>>());
}
