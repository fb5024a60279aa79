//! A message that is set aside is kept whole in PostgreSQL, or stays with the broker until an operator gives it
//! up.

use std::sync::{Arc, Mutex};

use idem_core::{
    CancellationToken, DedupConsumer, Effects, Handler, HandlerError, Message, Tx, Worker,
    config::RetryPolicy,
    worker::{IncidentKind, WorkerBuilder},
};
use idem_sqlx::PostgresStore;
use idem_testkit::memory::{Broker, MemorySource, Queue, QueueOptions};

use crate::fixture::{Fixture, PATIENCE};

/// Keeps the messages that it was handed.
#[derive(Clone, Default)]
struct Keeping(Arc<Mutex<Vec<Message>>>);

impl Handler<PostgresStore> for Keeping {
    async fn handle(&self, message: &Message, _: &mut Tx<'_, PostgresStore>) -> Result<(), HandlerError> {
        self.0.lock().unwrap().push(message.clone());
        Ok(())
    }
}

fn worker(
    fixture: &Fixture,
    queue: &Queue,
    handler: &Keeping,
    max: usize,
) -> WorkerBuilder<PostgresStore, MemorySource> {
    let consumer = DedupConsumer::builder(fixture.store.clone(), "orders").effects(Effects::InTransaction);
    let consumer = consumer.handler(handler.clone()).lanes(1).payload_bytes_max(max).build().unwrap();
    let retry = RetryPolicy::default().first(std::time::Duration::from_millis(10));
    Worker::builder(consumer, queue.source()).cleanup(None).retry(retry)
}

/// A payload that RabbitMQ takes and no default handles is in the row byte for byte, and runs once a worker is
/// allowed to.
#[tokio::test(flavor = "multi_thread")]
async fn a33_twenty_mebibytes_are_kept_whole_and_replayed() {
    let fixture = Fixture::new().await;
    let queue = Broker::new().create("orders", QueueOptions::default()).unwrap();
    // Any bytes, so that nothing hides in an encoding.
    let payload: Vec<u8> = (0..20_u32 << 20).map(|n| (n % 251) as u8).collect();
    queue.publish(Message::new(payload.clone()).with_header("idempotencykey", "large")).unwrap();
    let (handler, stop) = (Keeping::default(), CancellationToken::new());
    let running =
        tokio::spawn(worker(&fixture, &queue, &handler, 1 << 20).build().unwrap().run(stop.clone().cancelled_owned()));
    tokio::time::timeout(PATIENCE, queue.drained()).await.unwrap();
    stop.cancel();
    assert_eq!(running.await.unwrap().unwrap().dead_lettered, 1);
    let row = "SELECT concat_ws(' ', reason, idempotency_key, octet_length(payload), encode(sha256(payload), 'hex')) FROM \
               dead_letters";
    let digest = idem_core::hash::PayloadHash::of(&payload);
    assert_eq!(fixture.texts(row).await, [format!("too-large large {} {digest}", 20 << 20)]);
    assert!(fixture.idem("show large").ok().contains("too-large"), "it is found under its key");
    assert!(fixture.idem("dead-letters replay 1 --yes").ok().contains("1 asked for"));
    let stop = CancellationToken::new();
    let running =
        tokio::spawn(worker(&fixture, &queue, &handler, 32 << 20).build().unwrap().run(stop.clone().cancelled_owned()));
    fixture.until("SELECT replay_outcome FROM dead_letters", "processed").await;
    stop.cancel();
    running.await.unwrap().unwrap();
    assert!(handler.0.lock().unwrap()[0].payload().unwrap() == &payload, "it came back as something else");
    fixture.drop().await;
}

/// A message that can be kept nowhere is settled once an operator has accepted its loss, and not before.
#[tokio::test(flavor = "multi_thread")]
async fn a35_a_held_message_is_settled_once_its_loss_is_accepted() {
    let fixture = Fixture::new().await;
    let queue = Broker::new().create("orders", QueueOptions::default()).unwrap();
    let held = queue.publish(Message::new("x".repeat(5_000)).with_header("idempotencykey", "held")).unwrap();
    let (handler, stop) = (Keeping::default(), CancellationToken::new());
    let worker = worker(&fixture, &queue, &handler, 1_000).dead_letter_payload_bytes_max(1_000).build().unwrap();
    let view = worker.view();
    let running = tokio::spawn(worker.run(stop.clone().cancelled_owned()));
    fixture.until("SELECT count(*)::text FROM dead_letters", "1").await;
    let good = queue.publish(Message::new("{}").with_header("idempotencykey", "good")).unwrap();
    let others = async {
        while queue.history(&good).acknowledged == 0 {
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(PATIENCE, others).await.unwrap();
    assert_eq!(queue.history(&held).dead_lettered, 0);
    assert!(view.recent(IncidentKind::Error)[0].text.contains("cannot be kept"));
    let stuck = fixture.idem("stuck --json").json();
    assert_eq!(stuck["held_dead_letters"][0]["origin"].as_str(), Some(held.as_str()), "{stuck}");
    fixture.idem_with(&["dead-letters", "accept-loss", held.as_str(), "--reason", "junk", "--yes"]).ok();
    tokio::time::timeout(PATIENCE, queue.drained()).await.unwrap();
    stop.cancel();
    assert_eq!(running.await.unwrap().unwrap().dead_lettered, 1);
    assert_eq!(queue.history(&held).dead_lettered, 1);
    fixture.drop().await;
}
