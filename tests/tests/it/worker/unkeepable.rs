//! A dead letter is kept whole, or its message is not acknowledged.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};

use async_trait::async_trait;
use idem_core::{
    ConsumerName, Message, SourceError, Store as _, Tenant,
    config::OnUnkeepable,
    consumer::Pause,
    dead_letter::{DeadLetter, DueEnd, DueRoom, PAYLOAD_OMITTED, Publisher, Reason},
    key,
    message::{OrderingKey, Origin},
    store::{Bookkeeping, ControlState, RunId},
    worker::{IncidentKind, WaitCause, WorkerBuilder},
};
use idem_testkit::{
    MemoryStore,
    memory::{MemorySource, Order, QueueOptions},
};

use super::fixture::{Fixture, Running, drain, message, within};

/// A queue for dead letters that takes payloads of so many bytes at most, and counts what it refused.
#[derive(Clone, Default)]
struct Narrow(Arc<NarrowState>);

#[derive(Default)]
struct NarrowState {
    payload_max: AtomicUsize,
    refuses_all: bool,
    refused: AtomicUsize,
    taken: Mutex<Vec<DeadLetter>>,
}

impl Narrow {
    fn of(payload_max: usize) -> Self {
        Self(Arc::new(NarrowState { payload_max: payload_max.into(), ..NarrowState::default() }))
    }

    fn widen(&self) {
        self.0.payload_max.store(usize::MAX, Ordering::Relaxed);
    }

    fn refused(&self) -> usize {
        self.0.refused.load(Ordering::Relaxed)
    }

    fn taken(&self) -> Vec<DeadLetter> {
        self.0.taken.lock().unwrap().clone()
    }
}

#[async_trait]
impl Publisher for Narrow {
    async fn publish(&self, letter: &DeadLetter) -> Result<(), SourceError> {
        let max = self.0.payload_max.load(Ordering::Relaxed);
        if self.0.refuses_all || letter.message.payload().map_or(0, |payload| payload.len()) > max {
            self.0.refused.fetch_add(1, Ordering::Relaxed);
            return Err(SourceError::DoesNotFit { problem: "it is too large".to_owned(), cure: "Widen it".to_owned() });
        }
        self.0.taken.lock().unwrap().push(letter.clone());
        Ok(())
    }
}

fn in_order() -> Fixture {
    Fixture::with(QueueOptions::default().order(Order::ByKey))
}

/// E11, B-C2, A-M1, U29: with the default settings, every message that a broker takes is kept, for every reason of its
/// failure.
#[tokio::test(flavor = "multi_thread")]
async fn a33_the_payload_of_a_dead_letter_is_kept_and_can_be_replayed() {
    let fixture = Fixture::new();
    let padding = |bytes| "x".repeat(bytes);
    fixture.queue.publish(Message::new(padding(300 << 10))).unwrap();
    fixture.publish("large", &padding(2 << 20));
    let summary = drain(&fixture, fixture.worker()).await;
    assert_eq!(summary.dead_lettered, 2);
    let letters = fixture.dead_letters().await;
    assert!(letters.iter().all(|letter| letter.payload_kept), "{letters:?}");
    let large = letters.iter().find(|letter| letter.reason == Reason::TooLarge).unwrap();
    assert_eq!(fixture.store.bookkeeping().due_now(&[large.id], "ann").await.unwrap(), 1);
    let wider = fixture.consumer().payload_bytes_max(4 << 20).build().unwrap();
    let running = Running::new(fixture.worker_of(wider));
    running.until("the replay", |running| running.view.summary().replayed == 1).await;
    assert_eq!(running.stop().await.unwrap().processed, 1);
    assert_eq!(fixture.effects(), [("large".to_owned(), padding(2 << 20))]);
}

/// U29: the key names the message that was too large, where it stands outside of the payload.
#[tokio::test(flavor = "multi_thread")]
async fn a34_a_message_that_is_too_large_has_its_key() {
    let fixture = Fixture::new();
    let body = format!(r#"{{"idempotencykey":"in-the-payload","padding":"{}"}}"#, "x".repeat(2 << 20));
    fixture.publish("in-a-header", &"x".repeat(2 << 20));
    fixture.queue.publish(Message::new(body.clone())).unwrap();
    drain(&fixture, fixture.worker()).await;
    let keys: Vec<_> = fixture.dead_letters().await.into_iter().map(|letter| letter.key).collect();
    assert_eq!(keys.iter().flatten().map(|key| key.as_str()).collect::<Vec<_>>(), ["in-a-header"]);
    let fixture = Fixture::new();
    fixture.queue.publish(Message::new(body).with_record_key("its-record-key")).unwrap();
    let consumer = fixture.consumer().key_source(key::RecordKey).build().unwrap();
    drain(&fixture, fixture.worker_of(consumer)).await;
    assert_eq!(fixture.dead_letters().await[0].key.as_ref().unwrap().as_str(), "its-record-key");
}

/// A35: neither row nor publisher has the payload, so the message stays with the broker, alone, and is visible everywhere.
#[tokio::test(flavor = "multi_thread")]
async fn a35_what_cannot_be_kept_is_held_and_the_others_go_on() {
    let fixture = in_order();
    let large = "x".repeat(2_000);
    let held = fixture.publish("held", &large);
    let ordered = fixture.publish_ordered("customer-1", "ordered", &large);
    let follower = fixture.publish_ordered("customer-1", "follower", "ok");
    let narrow = Narrow::of(0);
    let consumer = fixture.consumer().payload_bytes_max(1_000).build().unwrap();
    let worker = fixture.worker_of(consumer).dead_letter_payload_bytes_max(1_000).publisher(narrow.clone());
    let running = Running::new(worker);
    for n in 0..50 {
        fixture.publish(&format!("good-{n}"), "ok");
    }
    // Looked at more than once by then, and still there.
    running.until("the others", |running| running.view.summary().processed == 50 && narrow.refused() > 6).await;
    for origin in [&held, &ordered, &follower] {
        let history = fixture.queue.history(origin);
        assert_eq!((history.acknowledged, history.dead_lettered), (0, 0), "{origin}");
    }
    assert!(!fixture.counted().contains_key("follower"), "it waits with the one before it");
    let told: Vec<_> = running.view.recent(IncidentKind::Error).into_iter().map(|incident| incident.text).collect();
    assert!(told.iter().any(|text| text.contains("cannot be kept") && text.contains(held.as_str())), "{told:?}");
    assert!(told.len() < narrow.refused(), "it is told ever more rarely: {told:?}");
    assert!(fixture.dead_letters().await.iter().all(|letter| !letter.payload_kept && letter.copies == 1));
    // Once a publisher confirms it, it is safe.
    narrow.widen();
    within("draining the queue", fixture.queue.drained()).await;
    let summary = running.stop().await.unwrap();
    assert_eq!((summary.processed, summary.dead_lettered), (51, 2));
    assert!(narrow.taken().iter().all(|letter| letter.message.payload().unwrap().len() == 2_000));
}

/// One message that takes all the room there is, and cannot be kept, leaves the others theirs.
#[tokio::test(flavor = "multi_thread")]
async fn a36_a_held_message_that_fills_the_room_keeps_nobody_out() {
    let fixture = Fixture::new();
    let held = fixture.publish("held", &"x".repeat(20_000));
    let consumer = fixture.consumer().payload_bytes_max(1_000).build().unwrap();
    let running =
        Running::new(fixture.worker_of(consumer).in_flight_bytes(10_000).dead_letter_payload_bytes_max(10_000));
    (0..200).for_each(|n| drop(fixture.publish(&format!("good-{n}"), &"x".repeat(500))));
    running.until("the others", |running| running.view.summary().processed == 200).await;
    running.stop().await.unwrap();
    assert_eq!(fixture.queue.history(&held).dead_lettered, 0);
}

/// The other policy: the consumer halts, with all its tenants, and goes on once an operator has resumed it.
#[tokio::test(flavor = "multi_thread")]
async fn a37_what_cannot_be_kept_can_halt_the_consumer_with_all_its_tenants() {
    let fixture = Fixture::new();
    let consumer = || {
        let tenant = |message: &Message| Some(Tenant::new(message.headers().text("tenant")?).unwrap());
        fixture.consumer().tenant_from(tenant).build().unwrap()
    };
    let with_tenant = |key: &str, payload: &str| message(key, payload).with_header("tenant", "acme");
    fixture.queue.publish(with_tenant("first", "ok")).unwrap();
    let held = fixture.queue.publish(with_tenant("held", "permanent")).unwrap();
    let worker = || {
        let worker = fixture.worker_of(consumer()).on_unkeepable(OnUnkeepable::Halt);
        worker.dead_letter_payload_bytes_max(0)
    };
    let running = Running::new(worker());
    running.until("the halt", |running| matches!(running.view.pause(), Some(Pause::Control(..)))).await;
    let after = fixture.queue.publish(with_tenant("after", "ok")).unwrap();
    running.stop().await.unwrap();
    assert_eq!(fixture.queue.history(&held).dead_lettered, 0);
    assert_eq!(fixture.queue.history(&after).acknowledged, 0);
    // A worker that starts reads the consumer's own control, and is halted too.
    let again = Running::new(worker());
    let halted =
        |pause| matches!(pause, Some(Pause::Control(ControlState::Halted, why)) if why.contains("cannot be kept"));
    again.until("the halt of another worker", |again| halted(again.view.pause())).await;
    again.stop().await.unwrap();
}

/// B-M4: a topic that can never take a dead letter blocks no message, because its row has it.
#[tokio::test(flavor = "multi_thread")]
async fn a38_a_dead_letter_that_does_not_fit_is_published_without_its_payload() {
    let fixture = in_order();
    let order = || OrderingKey::new("customer-1");
    let first = message("1", "permanent").with_ordering_key(order()).with_header("trace", "7");
    let origin = fixture.queue.publish(first).unwrap();
    fixture.publish_ordered("customer-1", "2", "ok");
    let narrow = Narrow::of(3);
    let summary = drain(&fixture, fixture.worker().publisher(narrow.clone())).await;
    assert_eq!((summary.processed, summary.dead_lettered, narrow.refused()), (1, 1, 1));
    let row = fixture.dead_letters().await.remove(0);
    assert!(row.payload_kept && row.published_at.is_some(), "{row:?}");
    let taken = narrow.taken().remove(0);
    let headers = idem_core::dead_letter::headers(&taken);
    assert_eq!((taken.message.payload(), headers.text(PAYLOAD_OMITTED)), (None, Some(&*row.id.0.to_string())));
    assert_eq!((headers.text("idem-origin"), headers.text("trace")), (Some(origin.as_str()), Some("7")));
    assert_eq!(headers.text("idempotencykey"), Some("1"));
}

/// Where not even that fits, the row alone is the dead letter.
#[tokio::test(flavor = "multi_thread")]
async fn a38_a_dead_letter_that_can_never_be_published_is_its_row() {
    let fixture = Fixture::new();
    fixture.publish("1", "permanent");
    let narrow = Narrow(Arc::new(NarrowState { refuses_all: true, ..NarrowState::default() }));
    let summary = drain(&fixture, fixture.worker().publisher(narrow.clone())).await;
    assert_eq!((summary.dead_lettered, narrow.refused()), (1, 2));
    let row = fixture.dead_letters().await.remove(0);
    assert!(row.payload_kept && row.published_at.is_none(), "{row:?}");
}

/// Too large to be handled, and each about 2,600 bytes as a dead letter.
fn publish_large(fixture: &Fixture, count: usize) -> Vec<Origin> {
    (0..count).map(|n| fixture.publish(&format!("large-{n}"), &"x".repeat(2_000))).collect()
}

fn with_quota(fixture: &Fixture, max: u64) -> WorkerBuilder<MemoryStore, MemorySource> {
    let consumer = fixture.consumer().payload_bytes_max(1_000).build().unwrap();
    fixture.worker_of(consumer).dead_letters_bytes_max(Some(max))
}

fn held_by_quota(running: &Running) -> usize {
    let waits = running.view.waits();
    waits.iter().find(|wait| wait.cause == WaitCause::DeadLetterQuota).map_or(0, |wait| wait.messages)
}

/// S23: a flood of bad messages fills no disk: beyond the quota they wait, visibly, nothing that was kept makes room for them,
/// and the others go on. They are set aside once there is room.
#[tokio::test(flavor = "multi_thread")]
async fn s23_beyond_their_quota_bad_messages_wait_until_letters_are_dropped_or_replayed() {
    let fixture = Fixture::new();
    let large = publish_large(&fixture, 6);
    let running = Running::new(with_quota(&fixture, 10_000));
    running.until("three held", |running| held_by_quota(running) == 3).await;
    (0..50).for_each(|n| drop(fixture.publish(&format!("good-{n}"), "ok")));
    running.until("the others", |running| running.view.summary().processed == 50).await;
    let letters = fixture.dead_letters().await;
    let kept: Vec<_> = letters.iter().filter(|letter| letter.payload_kept).map(|letter| letter.id).collect();
    assert_eq!((kept.len(), letters.len(), running.view.summary().dead_lettered), (3, 6, 3));
    let is_settled = |origin| fixture.queue.history(origin).dead_lettered == 1;
    assert_eq!(large.iter().filter(|origin| is_settled(origin)).count(), 3);
    let told: Vec<_> = running.view.recent(IncidentKind::Error).into_iter().map(|incident| incident.text).collect();
    assert!(told.iter().any(|text| text.contains("the 10000 bytes of dead_letters_bytes_max")), "{told:?}");
    fixture.store.drop_dead_letters(&kept[..1]);
    running.until("room by one that was dropped", |running| running.view.summary().dead_lettered == 4).await;
    // One that a replay has handled counts no more, although its row stays until cleanup.
    let (books, name) = (fixture.store.bookkeeping(), ConsumerName::new("ledger").unwrap());
    books.due_now(&kept[1..2], "ann").await.unwrap();
    books.take_due(&name, RunId(9), DueRoom::rows(1)).await.unwrap();
    books.end_due(RunId(9), &[(kept[1], DueEnd::Processed)]).await.unwrap();
    running.until("room by one that was replayed", |running| running.view.summary().dead_lettered == 5).await;
    running.until("one still held", |running| held_by_quota(running) == 1).await;
    fixture.store.drop_dead_letters(&kept[2..]);
    within("draining the queue", fixture.queue.drained()).await;
    running.stop().await.unwrap();
    assert!(fixture.dead_letters().await.iter().all(|letter| letter.payload_kept && letter.copies == 1));
}

/// S23: rows without their payloads are bounded too.
#[tokio::test(flavor = "multi_thread")]
async fn s23_far_beyond_the_quota_not_even_rows_are_written() {
    let fixture = Fixture::new();
    publish_large(&fixture, 20);
    let running = Running::new(with_quota(&fixture, 4_096));
    running.until("most held", |running| held_by_quota(running) == 19).await;
    let rows = fixture.dead_letters().await.len();
    assert!((2..8).contains(&rows), "{rows}");
    running.stop().await.unwrap();
    // They were given back, and a worker with more room sets them aside.
    let summary = drain(&fixture, with_quota(&fixture, 1 << 20)).await;
    let letters = fixture.dead_letters().await;
    assert!(summary.dead_lettered >= 19 && letters.len() == 20, "{summary:?}");
    assert!(letters.iter().all(|letter| letter.payload_kept));
}

/// S23: a topic or queue for dead letters keeps what finds no room in the table, and a policy may stop the consumer.
#[tokio::test(flavor = "multi_thread")]
async fn s23_beyond_the_quota_a_publisher_keeps_the_message_and_a_policy_may_halt() {
    let fixture = Fixture::new();
    publish_large(&fixture, 4);
    let narrow = Narrow::of(usize::MAX);
    let summary = drain(&fixture, with_quota(&fixture, 6_000).publisher(narrow.clone())).await;
    assert_eq!(summary.dead_lettered, 4);
    assert!(narrow.taken().iter().all(|letter| letter.message.payload().unwrap().len() == 2_000));
    assert_eq!(fixture.dead_letters().await.iter().filter(|letter| letter.payload_kept).count(), 2);

    let fixture = Fixture::new();
    publish_large(&fixture, 4);
    let running = Running::new(with_quota(&fixture, 6_000).on_unkeepable(OnUnkeepable::Halt));
    running.until("the halt", |running| matches!(running.view.pause(), Some(Pause::Control(..)))).await;
    assert_eq!(running.stop().await.unwrap().dead_lettered, 2);
}
