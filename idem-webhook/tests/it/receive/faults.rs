//! Events in while the store fails, is full, or is at work: on the store in memory, which fails when it is told to. Time is the test's own.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderName, Request};
use http_body_util::{BodyExt as _, Full};
#[cfg(idem_bugs)]
use idem_core::bugs::{self, Bug};
use idem_core::{
    ConsumerName, DedupConsumer, Effects, ErrorClass, Handler, HandlerError, IdempotencyKey, Message, Store as _,
    StoreError, Tx,
    consumer::DedupConsumerBuilder,
    dead_letter::{DeadLetter, FailureKind, Fingerprint, Reason},
    hash::PayloadHash,
    message::Origin,
    store::{Bookkeeping as _, HashRuleId, ScopeId},
    telemetry::HTTP_DELIVERIES,
};
use idem_testkit::{Fault, MemoryStore, Operation, Weather, memory::Rate};
use idem_webhook::receive::{EventBridge, Inbound, Sns, StandardWebhooks, Stripe};
use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use tokio::{sync::Semaphore, task::JoinSet};
use tower::ServiceExt as _;

const API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// The behaviour of the handler, after its write.
#[derive(Debug, Clone, Copy)]
enum Act {
    Write,
    /// Waits until it is let go.
    Wait,
    Refuse,
    /// Refuses, and its dead letter cannot be written.
    RefuseAndLose,
}

/// The handler's orders.
#[derive(Debug)]
struct Orders {
    act: Mutex<Act>,
    began: Semaphore,
    let_go: Semaphore,
    runs: AtomicU32,
}

struct Obey(MemoryStore, Arc<Orders>);

impl Handler<MemoryStore> for Obey {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, MemoryStore>) -> Result<(), HandlerError> {
        self.1.runs.fetch_add(1, Ordering::Relaxed);
        let key = message.key().map_or("(none)", |key| key.as_str()).to_owned();
        tx.connection().append("effects", &key, "done").await?;
        let act = *self.1.act.lock().unwrap();
        match act {
            Act::Write => Ok(()),
            Act::Wait => {
                self.1.began.add_permits(1);
                self.1.let_go.acquire().await.unwrap().forget();
                Ok(())
            }
            Act::Refuse => Err(HandlerError::permanent("no such account")),
            Act::RefuseAndLose => {
                self.0.inject(Operation::Bookkeeping, Fault::Error(ErrorClass::Infrastructure));
                Err(HandlerError::permanent("no such account"))
            }
        }
    }
}

/// A service on a store of its own.
struct Events {
    store: MemoryStore,
    orders: Arc<Orders>,
    service: Inbound<MemoryStore, EventBridge>,
}

impl Events {
    fn new() -> Self {
        let store = MemoryStore::new();
        let orders = Arc::new(Orders {
            act: Mutex::new(Act::Write),
            began: Semaphore::new(0),
            let_go: Semaphore::new(0),
            runs: AtomicU32::new(0),
        });
        let builder = EventBridge::identify(DedupConsumer::builder(store.clone(), "events"));
        let builder = builder.handler(Obey(store.clone(), Arc::clone(&orders))).handler_name("obey");
        // No event waits for another's connection.
        let builder = builder.effects(Effects::InTransaction).busy_timeout(Duration::from_millis(100)).lanes(64);
        let consumer = builder.payload_bytes_max(64 << 20).build().unwrap();
        let service = Inbound::new(consumer, EventBridge::new(API_KEY, ["new"])).body_bytes_max(64 << 20);
        Self { store, orders, service }
    }

    fn at_once(self, events: usize) -> Self {
        Self { service: self.service.at_once(events), ..self }
    }

    fn act(&self, act: Act) {
        *self.orders.act.lock().unwrap() = act;
    }

    /// Sends an event: status, `Retry-After`.
    fn send(&self, id: &str, detail: &str) -> impl Future<Output = (u16, Option<String>)> + Send + 'static + use<> {
        let event = format!(
            r#"{{"version":"0","id":"{id}","detail-type":"PaymentMade","source":"bank","time":"2026-11-25T00:00:00Z","detail":{detail}}}"#
        );
        let request = Request::post("/events").header(API_KEY, "new").body(Full::new(Bytes::from(event))).unwrap();
        let service = self.service.clone();
        async move {
            let answer = service.oneshot(request).await.unwrap();
            let after = answer.headers().get("retry-after").map(|after| after.to_str().unwrap().to_owned());
            let status = answer.status().as_u16();
            answer.into_body().collect().await.unwrap();
            (status, after)
        }
    }

    /// Has the handler wait with this event in hand.
    async fn hold(&self, id: &str) -> tokio::task::JoinHandle<(u16, Option<String>)> {
        self.act(Act::Wait);
        let held = tokio::spawn(self.send(id, "1"));
        self.orders.began.acquire().await.unwrap().forget();
        self.act(Act::Write);
        held
    }

    /// The keys of the committed effects, sorted.
    fn effects(&self) -> Vec<String> {
        let mut keys: Vec<_> = self.store.rows("effects").into_iter().map(|(key, _)| key).collect();
        keys.sort();
        keys
    }

    /// Fills the consumer's share of dead letters. They share one payload, so it takes little memory.
    async fn fill(&self) {
        let payload = Bytes::from(vec![b'x'; 32 << 20]);
        for at in 0..128_u32 {
            let letter = DeadLetter {
                consumer: ConsumerName::new("events").unwrap(),
                scope: ScopeId(1),
                message: Message::new(payload.clone()).with_origin(Origin::new(&format!("full/{at}"))),
                key: Some(IdempotencyKey::new(&format!("full-{at}")).unwrap()),
                hash: Some((PayloadHash::of(&at.to_be_bytes()), HashRuleId(1))),
                reason: Reason::Permanent,
                attempts: 1,
                error: "no such account".to_owned(),
                fingerprint: Fingerprint::of(&FailureKind::new(Reason::Permanent, ErrorClass::Permanent)),
                keep_payload: true,
                payload_omitted: None,
            };
            self.store.bookkeeping().store_dead_letter(&letter).await.unwrap();
        }
    }
}

/// W165: in an outage of the database in which each call takes its time to fail, deliveries that came together fail together: each waits for
/// one look at the control, and none for its turn. The same where the consumer was never there, and nobody knows whether it is paused.
#[tokio::test(start_paused = true)]
async fn w165_deliveries_of_an_outage_wait_for_one_look() {
    for was_there in [true, false] {
        let mut events = Events::new();
        events.service = events.service.deadline(Duration::from_secs(3_600));
        if was_there {
            assert_eq!(events.send("e-0", "1").await.0, 200);
            // The control that was read is of the past by then.
            tokio::time::sleep(Duration::from_secs(60)).await;
        }
        let (slow, slow_max) = (Rate::Always, Duration::from_secs(1));
        events.store.weather(Weather { seed: 7, slow, slow_max, connections_lost: Rate::Always, ..Weather::default() });
        let begun = tokio::time::Instant::now();
        let deliveries: JoinSet<_> = (0..60).map(|number| events.send(&format!("e-{number}"), "1")).collect();
        let said = deliveries.join_all().await;
        assert!(said.iter().all(|said| *said == (503, Some("10".to_owned()))), "{said:?}");
        // 60 in turn take half a minute.
        assert!(begun.elapsed() < Duration::from_secs(10), "{was_there}: {:?}", begun.elapsed());
        events.store.weather(Weather::default());
        assert_eq!(events.send("e-61", "1").await.0, 200, "and it ends with the outage");
    }
}

/// W166: the second of two senders that find the ids of their events in different places cannot start under the first one's name. SNS and
/// Standard Webhooks find them in one, and nothing tells two senders of one kind from one with two routes or secrets.
#[tokio::test]
async fn w166_senders_that_identify_differently_cannot_share_a_name() {
    type Builder = DedupConsumerBuilder<MemoryStore>;
    type Identify = fn(Builder) -> Builder;
    let all: [(&str, Identify); 4] = [
        ("stripe", Stripe::identify),
        ("eventbridge", EventBridge::identify),
        ("sns", Sns::identify),
        ("standard webhooks", StandardWebhooks::identify),
    ];
    let events = Events::new();
    for (one, identify_one) in all {
        for (other, identify_other) in all {
            let store = MemoryStore::new();
            let start = async |identify: Identify| {
                let builder = identify(DedupConsumer::builder(store.clone(), "events")).handler_name("obey");
                let builder = builder.handler(Obey(store.clone(), Arc::clone(&events.orders)));
                builder.effects(Effects::InTransaction).build().unwrap().start().await
            };
            start(identify_one).await.unwrap();
            let started = start(identify_other).await;
            let is_one = one == other || [one, other].iter().all(|name| ["sns", "standard webhooks"].contains(name));
            match started {
                Ok(_) => assert!(is_one, "{one} and {other}"),
                Err(StoreError::Bound { what, .. }) => {
                    assert!(!is_one && what == "key rules", "{one} and {other}: {what}")
                }
                Err(error) => panic!("{one} and {other}: {error}"),
            }
        }
    }
}

/// W41: while an event can be neither handled nor kept, its sender keeps it: it is never answered 2xx or 4xx, and W95: each such end is counted.
/// Each event comes again then, and has its effect once.
#[tokio::test(start_paused = true)]
async fn w41_what_is_neither_handled_nor_kept_stays_with_its_sender() {
    let recorder = DebuggingRecorder::new();
    let _recording = metrics::set_default_local_recorder(&recorder);
    let ended = |outcome: &str, said: (u16, Option<String>), after: &str| {
        assert_eq!(said, (503, Some(after.to_owned())), "{outcome}");
        let taken = recorder.snapshotter().snapshot().into_vec();
        let counted = taken.iter().filter(|(key, .., value)| {
            key.key().name() == HTTP_DELIVERIES.name && !matches!(value, DebugValue::Counter(0))
        });
        let counted: Vec<_> = counted.map(|(key, ..)| key.key().labels().nth(1).unwrap().value().to_owned()).collect();
        assert_eq!(counted, [outcome]);
    };
    let counted_before = || drop(recorder.snapshotter().snapshot());

    // It cannot be seen whether the consumer is paused.
    let events = Events::new();
    events.store.inject(Operation::Bookkeeping, Fault::Error(ErrorClass::Infrastructure));
    ended("unavailable", events.send("e-1", "1").await, "10");
    assert_eq!(events.send("e-1", "1").await.0, 200);
    assert_eq!(events.effects(), ["e-1"]);
    counted_before();

    // It cannot be handled, and the store is down when it is to be kept.
    events.act(Act::RefuseAndLose);
    ended("unavailable", events.send("e-2", "1").await, "10");
    events.act(Act::Refuse);
    assert_eq!((events.send("e-2", "1").await.0, events.store.kept_dead_letters().len()), (200, 1));
    counted_before();

    // A dead letter has no room for its payload, only for a note of it.
    let large = format!("\"{}\"", "x".repeat(33 << 20));
    ended("unkeepable", events.send("e-3", &large).await, "3600");

    // Another copy is being handled, then there is no place for one more, then its deadline has come.
    let events = Events::new().at_once(2);
    let held = events.hold("e-4").await;
    ended("busy", events.send("e-4", "1").await, "2");
    let other = events.hold("e-5").await;
    ended("overloaded", events.send("e-6", "1").await, "2");
    // The two end at one deadline.
    let (held, other) = (held.await.unwrap(), other.await.unwrap());
    ended("in-progress", held, "5");
    assert_eq!((other.0, events.effects().len()), (503, 0));
    events.orders.let_go.add_permits(2);
    for id in ["e-4", "e-5", "e-6"] {
        while events.send(id, "1").await.0 != 200 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    assert_eq!(
        (events.effects(), events.orders.runs.load(Ordering::Relaxed)),
        (["e-4", "e-5", "e-6"].map(String::from).into(), 3)
    );
    counted_before();

    // The dead letters take all of their share.
    let events = Events::new();
    assert_eq!(events.send("e-7", "1").await.0, 200);
    counted_before();
    events.fill().await;
    events.act(Act::Refuse);
    ended("unkeepable", events.send("e-8", "1").await, "3600");
    assert_eq!(events.store.kept_dead_letters().len(), 128);
}

/// W41: 200 is said of what is committed. Whatever becomes of the commit, an event that was answered 200 has its effect, and others come again.
async fn an_event_is_confirmed_after_its_commit() {
    for (fault, first) in [
        (Fault::Error(ErrorClass::Transient), 503),
        (Fault::Error(ErrorClass::Infrastructure), 503),
        // Where the outcome is not known, it is looked up, and the event is handled again where there is none.
        (Fault::ConnectionLost, 200),
        (Fault::AnswerLost, 200),
        (Fault::Hang, 503),
    ] {
        let events = Events::new();
        events.store.inject(Operation::Commit, fault);
        let said = events.send("e-1", "1").await;
        let done = events.effects();
        assert!(said.0 != 200 || done == ["e-1"], "{fault:?}: confirmed, and there is no effect");
        assert_eq!(said.0, first, "{fault:?}");
        while events.send("e-1", "1").await.0 != 200 {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        assert_eq!(events.effects(), ["e-1"], "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn w41_a_confirmed_event_is_committed() {
    an_event_is_confirmed_after_its_commit().await;
}

/// W41: the same with an engine that does not wait to know, which the test has to see.
#[cfg(idem_bugs)]
#[tokio::test(start_paused = true)]
async fn w41_a_confirmation_before_the_commit_is_seen() {
    bugs::plant(Some(Bug::UnknownIsCommitted));
    let local = tokio::task::LocalSet::new();
    let ended =
        local.run_until(async { tokio::task::spawn_local(an_event_is_confirmed_after_its_commit()).await }).await;
    bugs::plant(None);
    let panic = *ended.unwrap_err().into_panic().downcast::<String>().unwrap();
    assert!(panic.contains("confirmed, and there is no effect"), "{panic}");
}
