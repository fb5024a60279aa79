//! Another SDK of CloudEvents reads the published events, and writes the events that are read.

#[path = "../../../tests/cloudevents/peer.rs"]
mod peer;

use idem_core::outbox::{CloudEvents, EventPublisher as _, OutgoingEvent};
use idem_kafka::{KafkaOptions, KafkaPublisher};

use crate::{
    cluster::{BROKERS, Topic},
    member::{join, within},
};

/// O26: through a topic, in both modes and both ways.
#[tokio::test(flavor = "multi_thread")]
async fn o26_another_sdk_reads_what_is_published_and_writes_what_is_read() {
    let (topic, events) = (Topic::new(1).await, peer::events());
    let given: Vec<&OutgoingEvent> = events.iter().collect();
    for mode in [CloudEvents::binary(), CloudEvents::structured()] {
        let options = KafkaOptions::new(&*BROKERS, "purchases", "ledger");
        let publisher = KafkaPublisher::new(&options, &topic.name).unwrap().cloud_events(mode);
        let answers = within("publishing", publisher.publish_events(&given)).await;
        assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    }
    for message in peer::written("kafka") {
        topic.publish(message).await.unwrap();
    }
    let held = join(topic.options()).await.take(2 * events.len() + 4).await;
    let (published, written) = held.split_at(2 * events.len());
    let published: Vec<_> = published.iter().map(|held| &held.message).zip(given.iter().copied().cycle()).collect();
    peer::reads("kafka", &published);
    peer::are_read(&written.iter().map(|held| held.message.clone()).collect::<Vec<_>>());
}
