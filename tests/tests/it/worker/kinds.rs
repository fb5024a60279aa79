//! The forms of a handler: closures, decoded payloads, fallbacks, boxes, and layers around them.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use idem_core::{
    Decision, ErrorClass, Handler, HandlerError, Message, Router, Tx,
    dead_letter::Reason,
    handler::{BoxHandler, Next},
    handler_fn, json_fn,
    worker::{WaitCause, WorkerError},
};
use idem_testkit::{Decide as _, MemoryStore};

use super::fixture::{Fixture, Running, drain, message};

type Answer = Result<(), HandlerError>;
type MemoryTx<'t> = Tx<'t, MemoryStore>;

/// The captures of a closure are there at every call.
#[tokio::test(flavor = "multi_thread")]
async fn a_handler_may_be_a_closure_that_captures() {
    let fixture = Fixture::new();
    let (table, calls) = (Arc::new("purchases".to_owned()), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&calls);
    let handler = handler_fn(async move |message: &Message, tx: &mut MemoryTx<'_>| {
        counted.fetch_add(1, Ordering::Relaxed);
        let payload = message.payload().cloned().unwrap_or_default();
        tx.connection().append(&table, "all", payload).await?;
        Ok(())
    });
    for key in ["1", "2", "2"] {
        fixture.publish(key, "ok");
    }
    let summary = drain(&fixture, fixture.worker_of(fixture.consumer().handler(handler).build().unwrap())).await;
    assert_eq!((summary.processed, summary.duplicates), (2, 1));
    assert_eq!((fixture.store.rows("purchases").len(), calls.load(Ordering::Relaxed)), (2, 2));
}

#[derive(serde::Deserialize)]
struct Purchase {
    cents: u32,
}

async fn purchase(purchase: Purchase, message: &Message, tx: &mut MemoryTx<'_>) -> Answer {
    let key = message.key().map(ToString::to_string).unwrap_or_default();
    tx.connection().append("purchases", &key, purchase.cents.to_string()).await?;
    Ok(())
}

/// A payload of another form is malformed at its first attempt, and the function never sees it.
#[tokio::test(flavor = "multi_thread")]
async fn a_payload_that_does_not_decode_is_malformed() {
    let fixture = Fixture::new();
    for (key, payload) in [("1", r#"{"cents": 7}"#), ("2", r#"{"cents": "seven"}"#), ("3", "no JSON")] {
        fixture.queue.publish(message(key, payload).with_type("purchase")).unwrap();
    }
    let router = Router::new().on("purchase", json_fn(purchase));
    let consumer = fixture.consumer().handler(router).build().unwrap();
    drain(&fixture, fixture.worker_of(consumer).breaker(false)).await;
    assert_eq!(fixture.store.rows("purchases"), [("1".to_owned(), "7".into())]);
    let letters = fixture.dead_letters().await;
    let told: Vec<_> = letters.iter().map(|letter| (letter.reason, letter.attempts)).collect();
    assert_eq!(told, [(Reason::Malformed, 1), (Reason::Malformed, 1)]);
}

/// Unnamed types, and messages without one, go to the fallback; their keys are recorded.
#[tokio::test(flavor = "multi_thread")]
async fn a_fallback_takes_what_has_no_route() {
    let fixture = Fixture::new();
    let router = Router::new().on("known", json_fn(purchase)).fallback(fixture.script.clone());
    let consumer = fixture.consumer().handler(router).build().unwrap();
    let other = message("1", "ok").with_type("other");
    let none = message("2", "ok");
    for (message, is_first) in [(other.clone(), true), (none, true), (other, false)] {
        let decision = consumer.decisions(vec![message]).await.unwrap().remove(0);
        assert_eq!((decision.is_processed(), decision.is_skipped()), (is_first, !is_first), "{decision:?}");
    }
    assert_eq!(fixture.script.runs(), ["1", "2"]);
}

/// Handlers of several types in one collection, each still what it was.
#[tokio::test(flavor = "multi_thread")]
async fn boxed_handlers_stand_side_by_side() {
    let fixture = Fixture::new();
    let handlers: BTreeMap<&str, BoxHandler<MemoryStore>> =
        [("purchase", json_fn(purchase).boxed()), ("script", fixture.script.clone().boxed())].into();
    let router = handlers.iter().fold(Router::new(), |router, (kind, handler)| router.on(kind, handler.clone()));
    let consumer = fixture.consumer().handler(router.boxed()).build().unwrap();
    let messages = vec![message("1", r#"{"cents": 7}"#).with_type("purchase"), message("2", "ok").with_type("script")];
    assert!(consumer.decisions(messages).await.unwrap().iter().all(Decision::is_processed));
    assert_eq!((fixture.store.rows("purchases").len(), fixture.effects().len()), (1, 1));
}

async fn in_its_own_row(next: Next<'_, MemoryStore>, message: &Message, tx: &mut MemoryTx<'_>) -> Answer {
    tx.connection().append("around", "calls", "begun").await?;
    next.run(message, tx).await
}

/// The layer around a handler that was added last is the outermost, sees the answer, and writes in the same
/// transaction.
#[tokio::test(flavor = "multi_thread")]
async fn what_runs_around_a_handler_is_of_its_transaction() {
    let fixture = Fixture::new();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let notes = Arc::clone(&seen);
    let noted = async move |next: Next<'_, MemoryStore>, message: &Message, tx: &mut MemoryTx<'_>| {
        notes.lock().unwrap().push("before".to_owned());
        let answer = next.run(message, tx).await;
        notes.lock().unwrap().push(format!("{:?}", answer.as_ref().err().and_then(HandlerError::class)));
        answer
    };
    let handler = fixture.script.clone().around(in_its_own_row).around(noted);
    let consumer = fixture.consumer().handler(handler).build().unwrap();
    assert!(consumer.decisions(vec![message("1", "ok")]).await.unwrap()[0].is_processed());
    let failed = consumer.decisions(vec![message("2", "permanent")]).await.unwrap().remove(0);
    assert!(matches!(failed, Decision::Failed(failure) if failure.class == ErrorClass::Permanent));
    assert_eq!(*seen.lock().unwrap(), ["before", "None", "before", "Some(Permanent)"]);
    assert_eq!(fixture.store.rows("around").len(), 1, "the failed message's row was rolled back with its effect");
}

/// C12: a layer around a router hides neither the type nor that the hash covers it.
#[tokio::test(flavor = "multi_thread")]
async fn c12_what_runs_around_a_router_leaves_the_type_in_the_hash() {
    let fixture = Fixture::new();
    let router = Router::new().on("placed", fixture.script.clone()).on("cancelled", fixture.script.clone());
    let consumer = fixture.consumer().handler(router.around(in_its_own_row).boxed()).build().unwrap();
    let of = |kind: &str| vec![message("order-1", "ok").with_type(kind)];
    assert!(consumer.decisions(of("placed")).await.unwrap()[0].is_processed());
    let decisions = consumer.decisions(of("cancelled")).await.unwrap();
    assert!(matches!(decisions[0], Decision::Conflict(..)), "{decisions:?}");
}

fn answering(class: ErrorClass) -> impl Handler<MemoryStore> {
    handler_fn(async move |_: &Message, _: &mut MemoryTx<'_>| {
        Err(HandlerError::transient("the provider's key has expired").with_class(class))
    })
}

/// A handler may stop the worker: nothing of the message is settled.
#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_says_fatal_stops_the_worker() {
    let fixture = Fixture::new();
    let origin = fixture.publish("1", "ok");
    let consumer = fixture.consumer().handler(answering(ErrorClass::Fatal)).build().unwrap();
    let ended = Running::new(fixture.worker_of(consumer)).ended().await;
    assert!(matches!(&ended, Err(WorkerError::Store(error)) if error.to_string().contains("expired")), "{ended:?}");
    assert_eq!(fixture.queue.history(&origin).acknowledged, 0);
}

/// A handler may say that nothing is this message's fault: it waits, and no attempt is charged.
#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_says_infrastructure_waits_uncharged() {
    let fixture = Fixture::new();
    fixture.publish("1", "ok");
    let consumer = fixture.consumer().handler(answering(ErrorClass::Infrastructure)).build().unwrap();
    let running = Running::new(fixture.worker_of(consumer));
    let waits = |running: &Running| running.view.waits().iter().any(|wait| wait.cause == WaitCause::Database);
    running.until("the wait", waits).await;
    running.stop().await.unwrap();
    assert!(fixture.dead_letters().await.is_empty());
}
