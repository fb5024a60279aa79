//! D11 to D14: the user's own code panics outside of the handler's run. No such message ends the process.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use idem_core::{
    Decision, ErrorClass, Handler, HandlerError, IdempotencyKey, Message, SourceError, Tenant, Tx,
    consumer::DedupConsumerBuilder,
    dead_letter::{DeadLetter, Publisher, Reason},
    hash::{HashRules, RawPayload, hash_fn},
    key::{Header, KeyError, KeySource, key_fn},
};
use idem_testkit::{
    Decide as _, MemoryStore,
    memory::{MemoryPublisher, QueueOptions},
};

use super::fixture::{Fixture, drain, message};

type Configure = fn(DedupConsumerBuilder<MemoryStore>) -> DedupConsumerBuilder<MemoryStore>;

fn panic_at_poison(message: &Message) {
    assert!(!is_poison(message), "this function panics at poison, as it should in this test");
}

fn is_poison(message: &Message) -> bool {
    message.payload().is_some_and(|payload| &payload[..] == b"poison")
}

#[derive(Debug)]
struct PanickingSource;

impl KeySource for PanickingSource {
    fn key(&self, message: &Message) -> Result<Option<IdempotencyKey>, KeyError> {
        panic_at_poison(message);
        Header::new("idempotencykey").key(message)
    }

    fn rule(&self) -> String {
        "panicking".to_owned()
    }
}

fn payload(message: &Message) -> Vec<u8> {
    message.payload().map(|payload| payload.to_vec()).unwrap_or_default()
}

/// Each function of the user's that identifies a message, and a word of the dead letter's text.
const FUNCTIONS: [(&str, Configure); 4] = [
    ("tenant", |builder| {
        builder.tenant_from(|message| {
            panic_at_poison(message);
            Some(Tenant::default())
        })
    }),
    ("key", |builder| {
        builder.key_source(key_fn("mine", |message| {
            panic_at_poison(message);
            Header::new("idempotencykey").key(message)
        }))
    }),
    ("key", |builder| builder.key_source(PanickingSource)),
    ("hash", |builder| {
        builder.hash_rules(HashRules::new(hash_fn("mine", |message| {
            panic_at_poison(message);
            Ok(payload(message))
        })))
    }),
];

/// D11: a panic in a function that identifies messages costs that message, which is malformed, and no other.
#[tokio::test(flavor = "multi_thread")]
async fn d11_a_panic_in_a_function_that_identifies_costs_its_own_message() {
    for (word, configure) in FUNCTIONS {
        let fixture = Fixture::new();
        fixture.publish("1", "ok");
        fixture.publish("bad", "poison");
        fixture.publish("2", "ok");
        let summary = drain(&fixture, fixture.worker_of(configure(fixture.consumer()).build().unwrap())).await;
        assert_eq!((summary.processed, summary.dead_lettered, summary.retries), (2, 1, 0), "{word}");
        let letter = fixture.dead_letters().await.remove(0);
        assert_eq!((letter.reason, &letter.origin[..]), (Reason::Malformed, "orders/2"));
        assert!(letter.error.contains(word) && letter.error.contains("panicked"), "{}", letter.error);
        assert!(!letter.error.contains("as it should"), "a panic's text may quote the payload: {}", letter.error);
        assert_eq!(fixture.counted().len(), 2);
    }
}

/// D11: the same in a user's own loop, where one poison must not hide the decisions of its neighbours.
#[tokio::test(flavor = "multi_thread")]
async fn d11_an_own_loop_learns_of_the_good_ones_beside_a_panic() {
    for (word, configure) in FUNCTIONS {
        let fixture = Fixture::new();
        let consumer = configure(fixture.consumer()).build().unwrap();
        let batch = vec![message("1", "ok"), message("bad", "poison"), message("2", "ok")];
        let decisions = consumer.decisions(batch).await.unwrap();
        assert!(decisions[0].is_processed() && decisions[2].is_processed(), "{word}: {decisions:?}");
        let Decision::Failed(failure) = &decisions[1] else { panic!("{word}: {decisions:?}") };
        assert_eq!((failure.class, failure.reason), (ErrorClass::Permanent, Reason::Malformed));
    }
}

/// D11: a former hash rule that panics cannot tell whether the payload is the same, so the message is not taken for a
/// duplicate.
#[tokio::test(flavor = "multi_thread")]
async fn d11_a_panic_in_a_former_hash_rule_is_no_duplicate() {
    let fixture = Fixture::new();
    let good = fixture.consumer().hash_rules(HashRules::new(hash_fn("old", |message| Ok(payload(message)))));
    assert!(good.build().unwrap().decisions(vec![message("1", "poison")]).await.unwrap()[0].is_processed());
    let panics = hash_fn("old", |message| {
        panic_at_poison(message);
        Ok(payload(message))
    });
    let consumer = fixture.consumer().hash_rules(HashRules::new(RawPayload).and_formerly(panics)).build().unwrap();
    fixture.publish("1", "poison");
    fixture.publish("2", "ok");
    let summary = drain(&fixture, fixture.worker_of(consumer)).await;
    assert_eq!((summary.processed, summary.duplicates, summary.dead_lettered), (1, 0, 1));
    assert_eq!(fixture.dead_letters().await[0].reason, Reason::HashUnknown);
}

/// Panics for the first calls, once before its future is made and once in it.
struct Panics {
    publisher: MemoryPublisher,
    calls: Arc<AtomicUsize>,
}

impl Publisher for Panics {
    fn publish<'a, 'b, 'c>(
        &'a self,
        dead_letter: &'b DeadLetter,
    ) -> Pin<Box<dyn Future<Output = Result<(), SourceError>> + Send + 'c>>
    where
        'a: 'c,
        'b: 'c,
        Self: 'c,
    {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        assert!(call != 0, "this publisher panics, as it should in this test");
        Box::pin(async move {
            assert!(call != 1, "this publisher's future panics, as it should in this test");
            self.publisher.publish(dead_letter).await
        })
    }
}

/// D12: a publisher that panics is one that could not publish: the message is not settled, and it is tried again.
#[tokio::test(flavor = "multi_thread")]
async fn d12_a_publisher_that_panics_is_tried_again() {
    let fixture = Fixture::new();
    let aside = fixture.broker.create("aside", QueueOptions::default()).unwrap();
    let calls = Arc::new(AtomicUsize::new(0));
    fixture.publish("1", "permanent");
    fixture.publish("2", "ok");
    let publisher = Panics { publisher: aside.publisher(), calls: Arc::clone(&calls) };
    let summary = drain(&fixture, fixture.worker().publisher(publisher)).await;
    assert_eq!((summary.processed, summary.dead_lettered), (1, 1));
    assert_eq!((calls.load(Ordering::Relaxed), aside.unsettled().len()), (3, 1));
    assert_eq!(fixture.script.runs_of("1"), 1, "publishing again does not run the handler again");
}

/// An error that cannot even be printed.
#[derive(Debug)]
struct Unprintable;

impl fmt::Display for Unprintable {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        panic!("this error panics when it is printed, as it should in this test")
    }
}

impl std::error::Error for Unprintable {}

struct AnswersUnprintable;

impl Handler<MemoryStore> for AnswersUnprintable {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, MemoryStore>) -> Result<(), HandlerError> {
        if is_poison(message) {
            return Err(HandlerError::permanent(Unprintable));
        }
        let key = message.key().map(ToString::to_string).unwrap_or_default();
        Ok(tx.connection().append("effects", &key, "ok").await?)
    }
}

/// D13: an error of the handler's that panics when it is printed keeps its class, and costs its own message.
#[tokio::test(flavor = "multi_thread")]
async fn d13_an_error_that_panics_when_printed_costs_its_own_message() {
    let fixture = Fixture::new();
    fixture.publish("1", "ok");
    fixture.publish("bad", "poison");
    fixture.publish("2", "ok");
    let consumer = fixture.consumer().handler(AnswersUnprintable).build().unwrap();
    let summary = drain(&fixture, fixture.worker_of(consumer)).await;
    assert_eq!((summary.processed, summary.dead_lettered), (2, 1));
    let letter = fixture.dead_letters().await.remove(0);
    assert_eq!(letter.reason, Reason::Permanent);
    assert!(letter.error.contains("could not be printed"), "{}", letter.error);
}
