//! Messages that fail: which run again, which are charged, and which are not.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use idem_core::{
    DedupConsumer, Effects, Handler, HandlerError, Message, Tx, Uuid,
    dead_letter::Reason,
    handler::{BatchAnswer, BatchHandler},
    handler_fn,
};
use idem_testkit::{Decide as _, MemoryStore};

use super::{
    captured::Captured,
    fixture::{Fixture, Script, drain, message},
};

fn warm(fixture: &Fixture, messages: usize) {
    (0..messages).for_each(|n| drop(fixture.publish(&format!("warm-{n}"), "ok")));
}

/// D1: one poison in a batch. Each innocent runs at most twice, and only the culprit is set aside.
#[tokio::test(flavor = "multi_thread")]
async fn d1_one_poison_in_a_batch_harms_nobody_else() {
    let fixture = Fixture::new();
    // A worker starts with one batch's worth of messages run alone; after those come full batches.
    warm(&fixture, 100);
    (0..500).for_each(|n| drop(fixture.publish(&format!("k{n}"), if n == 250 { "permanent" } else { "ok" })));
    let summary = drain(&fixture, fixture.worker()).await;
    assert_eq!((summary.processed, summary.dead_lettered), (599, 1));
    assert!(fixture.counted().values().all(|count| *count == 1));
    assert!((0..500).all(|n| fixture.script.runs_of(&format!("k{n}")) <= 2), "an innocent ran more than twice");
    let letters = fixture.dead_letters().await;
    assert_eq!(letters.len(), 1);
    assert_eq!((letters[0].reason, letters[0].key.as_ref().unwrap().as_str()), (Reason::Permanent, "k250"));
}

/// D4: attempts are counted outside of the unit that is rolled back, and end.
#[tokio::test(flavor = "multi_thread")]
async fn d4_a_message_that_always_fails_is_set_aside_after_its_attempts() {
    let fixture = Fixture::new();
    fixture.publish("1", "fail");
    fixture.publish("2", "ok");
    let summary = drain(&fixture, fixture.worker()).await;
    assert_eq!((summary.processed, summary.dead_lettered, summary.retries), (1, 1, 2));
    let letter = &fixture.dead_letters().await[0];
    assert_eq!((letter.reason, letter.attempts), (Reason::AttemptsExhausted, 3));
    assert_eq!(letter.error, "it does not work today");
    assert_eq!(fixture.effects(), [("2".to_owned(), "ok".to_owned())]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_fails_for_a_while_is_handled_once_it_can_be() {
    let fixture = Fixture::new();
    fixture.publish("1", "fail once");
    let summary = drain(&fixture, fixture.worker()).await;
    assert_eq!((summary.processed, summary.dead_lettered), (1, 0));
    assert_eq!(fixture.effects().len(), 1);
}

/// A17: a panic is an error of that message alone.
#[tokio::test(flavor = "multi_thread")]
async fn a17_a_panicking_handler_costs_its_own_message() {
    let fixture = Fixture::new();
    (0..20).for_each(|n| drop(fixture.publish(&format!("k{n}"), if n % 10 == 5 { "panic" } else { "ok" })));
    let summary = drain(&fixture, fixture.worker().breaker(false)).await;
    assert_eq!((summary.processed, summary.dead_lettered), (18, 2));
    let letters = fixture.dead_letters().await;
    assert!(
        letters.iter().all(|letter| letter.error == "the handler panicked"),
        "a panic's text may quote the payload"
    );
}

/// A18: a handler that never returns meets its deadline.
#[tokio::test(flavor = "multi_thread")]
async fn a18_a_handler_that_never_returns_meets_its_deadline() {
    let fixture = Fixture::new();
    fixture.publish("1", "block");
    fixture.publish("2", "ok");
    let consumer = fixture.consumer().handler_deadline(Duration::from_millis(20)).build().unwrap();
    let summary = drain(&fixture, fixture.worker_of(consumer)).await;
    assert_eq!((summary.processed, summary.dead_lettered), (1, 1));
    assert_eq!(fixture.dead_letters().await[0].reason, Reason::Deadline);
    assert_eq!(fixture.effects(), [("2".to_owned(), "ok".to_owned())]);
}

/// The case of other systems' suites: ids 1,2,1,2,1,3 with 2 always failing.
#[tokio::test(flavor = "multi_thread")]
async fn d10_copies_of_a_failing_message_are_one_dead_letter_with_a_count() {
    for warm_up in [0, 100] {
        let fixture = Fixture::new();
        warm(&fixture, warm_up);
        for key in ["1", "2", "1", "2", "1", "3"] {
            fixture.publish(key, if key == "2" { "fail" } else { "ok" });
        }
        let summary = drain(&fixture, fixture.worker()).await;
        assert_eq!((fixture.counted().get("1"), fixture.counted().get("3")), (Some(&1), Some(&1)));
        assert_eq!(fixture.counted().get("2"), None);
        assert_eq!((summary.duplicates, summary.dead_lettered), (2, 2));
        let letters = fixture.dead_letters().await;
        assert_eq!((letters.len(), letters[0].copies), (1, 2), "both copies are one row");
    }
}

/// One key with payloads A and B, A failing for good: B runs.
#[tokio::test(flavor = "multi_thread")]
async fn another_payload_of_a_key_runs_after_the_first_failed_for_good() {
    for first in ["permanent", "fail"] {
        let fixture = Fixture::new();
        fixture.publish("1", first);
        fixture.publish("1", "the other");
        let summary = drain(&fixture, fixture.worker()).await;
        assert_eq!(fixture.effects(), [("1".to_owned(), "the other".to_owned())], "after {first}");
        assert_eq!((summary.processed, summary.dead_lettered, summary.conflicts), (1, 1, 0));
    }
}

/// Outside effects: one message a unit, and no uncounted run.
#[tokio::test(flavor = "multi_thread")]
async fn outside_effects_run_exactly_as_often_as_they_are_counted() {
    let fixture = Fixture::new();
    fixture.publish("1", "fail");
    fixture.publish("2", "ok");
    let consumer =
        fixture.consumer().effects(Effects::Outside).handler_deadline(Duration::from_secs(5)).build().unwrap();
    let summary = drain(&fixture, fixture.worker_of(consumer)).await;
    assert_eq!((summary.processed, summary.dead_lettered), (1, 1));
    assert_eq!((fixture.script.runs_of("1"), fixture.script.runs_of("2")), (3, 1));
}

/// A type that opted out runs without a record, and is counted.
#[tokio::test(flavor = "multi_thread")]
async fn an_unprotected_type_runs_every_time_and_is_counted() {
    let fixture = Fixture::new();
    for _ in 0..2 {
        fixture.queue.publish(Message::new("ok").with_type("price")).unwrap();
    }
    fixture.publish("1", "ok");
    let consumer = fixture.consumer().unprotected_type("price").build().unwrap();
    let summary = drain(&fixture, fixture.worker_of(consumer)).await;
    assert_eq!((summary.processed, summary.unprotected), (3, 2));
    assert_eq!(fixture.store.recorded_keys(), ["1"]);
}

/// Names every message whose payload is not `ok`.
struct Named;

impl BatchHandler<MemoryStore> for Named {
    async fn handle_batch(
        &self,
        messages: &[&Message],
        tx: &mut Tx<'_, MemoryStore>,
    ) -> Result<BatchAnswer, HandlerError> {
        let mut answers = Vec::new();
        for message in messages {
            let key = message.key().map(ToString::to_string).unwrap_or_default();
            tx.connection().append("effects", &key, "ok").await?;
            let size = format!("{}", messages.len());
            tx.connection().append("sizes", &key, size).await?;
            let good = message.payload().is_some_and(|payload| &payload[..] == b"ok");
            answers.push(if good { Ok(()) } else { Err(HandlerError::permanent("no")) });
        }
        if messages.iter().any(|message| message.payload().is_some_and(|payload| &payload[..] == b"short")) {
            answers.pop();
        }
        Ok(BatchAnswer::each(answers))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_handler_names_its_culprits_and_the_rest_runs_as_one_batch() {
    let fixture = Fixture::new();
    warm(&fixture, 100);
    (0..100).for_each(|n| drop(fixture.publish(&format!("k{n}"), if n == 30 || n == 60 { "bad" } else { "ok" })));
    let consumer = fixture.consumer().batch_handler(Named).build().unwrap();
    let summary = drain(&fixture, fixture.worker_of(consumer)).await;
    assert_eq!((summary.processed, summary.dead_lettered), (198, 2));
    assert!(fixture.counted().values().all(|count| *count == 1));
    let sizes = fixture.store.rows("sizes");
    let alone = sizes.iter().filter(|(key, size)| key.starts_with('k') && &size[..] == b"1").count();
    assert!(alone < 20, "{alone} of 98 innocents ran alone");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_answer_of_the_wrong_length_is_permanent() {
    let fixture = Fixture::new();
    fixture.publish("1", "short");
    let consumer = fixture.consumer().batch_handler(Named).build().unwrap();
    drain(&fixture, fixture.worker_of(consumer)).await;
    let letter = &fixture.dead_letters().await[0];
    assert_eq!((letter.reason, letter.attempts), (Reason::Permanent, 1));
    assert!(letter.error.contains("0 answers for 1 messages"), "{}", letter.error);
}

/// A13, documented and not preventable: a handler's writes over another connection are outside of the promise. They
/// happen once for every run, while those through its transaction happen once.
struct WritesElsewhere(MemoryStore, Script);

impl Handler<MemoryStore> for WritesElsewhere {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, MemoryStore>) -> Result<(), HandlerError> {
        let WritesElsewhere(elsewhere, script) = self;
        let other = DedupConsumer::builder(elsewhere.clone(), "elsewhere")
            .handler(handler_fn(write_elsewhere))
            .effects(Effects::InTransaction)
            .unprotected_type("note")
            .build()?;
        other.decisions(vec![Message::new("ok").with_type("note")]).await?;
        script.handle(message, tx).await
    }
}

async fn write_elsewhere(_: &Message, tx: &mut Tx<'_, MemoryStore>) -> Result<(), HandlerError> {
    Ok(tx.connection().append("elsewhere", "note", "ok").await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn a13_a_write_over_another_connection_happens_at_every_run() {
    let fixture = Fixture::new();
    let elsewhere = MemoryStore::new();
    fixture.publish("1", "fail once");
    let handler = WritesElsewhere(elsewhere.clone(), fixture.script.clone());
    let consumer = fixture.consumer().handler(handler).build().unwrap();
    drain(&fixture, fixture.worker_of(consumer)).await;
    assert_eq!(fixture.effects().len(), 1);
    assert_eq!(elsewhere.rows("elsewhere").len(), fixture.script.runs_of("1"));
    assert!(fixture.script.runs_of("1") > 1);
}

/// Calls a provider, which is beyond any transaction, and then fails at first.
struct Charges(Script, Arc<Mutex<Vec<Uuid>>>);

impl Handler<MemoryStore> for Charges {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, MemoryStore>) -> Result<(), HandlerError> {
        self.1.lock().unwrap().push(message.derived_key("charge"));
        self.0.handle(message, tx).await
    }
}

/// A22: a call to another system happens once an attempt, and gives the provider the same key each time.
#[tokio::test(flavor = "multi_thread")]
async fn a22_an_outside_call_is_repeated_with_the_same_derived_key() {
    let fixture = Fixture::new();
    let calls = Arc::new(Mutex::new(Vec::new()));
    fixture.publish("1", "fail once");
    let handler = Charges(fixture.script.clone(), Arc::clone(&calls));
    let consumer =
        fixture.consumer().handler(handler).effects(Effects::Outside).handler_deadline(Duration::from_secs(5));
    drain(&fixture, fixture.worker_of(consumer.build().unwrap())).await;
    let calls = calls.lock().unwrap().clone();
    assert_eq!(calls.len(), fixture.script.runs_of("1"));
    assert!(calls.len() > 1 && calls.iter().all(|call| *call == calls[0]), "{calls:?}");
    assert_eq!(fixture.effects().len(), 1);
}

/// A13: nothing else would tell the author of such a handler, whose tests pass.
#[tokio::test]
async fn a13_a_handler_that_never_uses_its_transaction_is_told_once() {
    let told = async |uses: bool, effects: Effects| {
        let (captured, _guard) = Captured::log(tracing::Level::WARN);
        let handler = handler_fn(async move |_: &Message, tx: &mut Tx<'_, MemoryStore>| {
            if uses {
                tx.connection().put("notes", "a", "b").await?;
            }
            Ok(())
        });
        let consumer = DedupConsumer::builder(MemoryStore::new(), "orders").handler(handler).effects(effects);
        let consumer = consumer.handler_deadline(Duration::from_secs(60)).handler_name("notes").build().unwrap();
        assert_eq!(consumer.uses_transaction(), None);
        for key in ["1", "2", "3", "4", "5", "6", "7"] {
            assert!(consumer.decisions(vec![message(key, "ok")]).await.unwrap()[0].is_processed());
        }
        let lines = captured.lines();
        let warnings = lines.iter().filter(|line| line.contains("no connection from its transaction")).count();
        (warnings, consumer.uses_transaction())
    };
    assert_eq!(told(false, Effects::InTransaction).await, (1, Some(false)));
    assert_eq!(told(true, Effects::InTransaction).await, (0, Some(true)));
    // It says itself that it works elsewhere.
    assert_eq!(told(false, Effects::Outside).await.0, 0);
}
