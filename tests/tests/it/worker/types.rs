//! C12, C13, D52: under a `Router` the type belongs to what is hashed, and may have effects of its own.

use std::time::Duration;

use idem_core::{
    Decision, DedupConsumer, Effects, Handler as _, HandlerError, Message, Router, Tx,
    dead_letter::Reason,
    handler::Next,
    hash::{HashRules, JsonMembers},
    key::JsonMember,
};
use idem_testkit::{Decide as _, MemoryStore};

use super::fixture::{Fixture, drain, message};

/// A consumer with a handler for each of two types.
fn routed(fixture: &Fixture) -> DedupConsumer<MemoryStore> {
    let router = Router::new().on("OrderPlaced", fixture.script.clone()).on("OrderCancelled", fixture.script.clone());
    fixture.consumer().handler(router).build().unwrap()
}

/// C12: the cancellation of an order has its key and its payload, and is not the order.
#[tokio::test(flavor = "multi_thread")]
async fn c12_another_type_under_a_used_key_is_a_conflict_and_never_dropped() {
    let fixture = Fixture::new();
    for message_type in ["OrderPlaced", "OrderPlaced", "OrderCancelled"] {
        fixture.queue.publish(message("order-1", "ok").with_type(message_type)).unwrap();
    }
    let summary = drain(&fixture, fixture.worker_of(routed(&fixture))).await;
    assert_eq!((summary.processed, summary.duplicates, summary.conflicts), (1, 1, 1));
    assert_eq!(fixture.script.runs_of("order-1"), 1);
    let letter = fixture.dead_letters().await.remove(0);
    assert_eq!(letter.reason, Reason::Conflict);
}

/// C12: the type is the one by which the router picks, also where a header carries it.
#[tokio::test(flavor = "multi_thread")]
async fn c12_the_type_is_the_one_that_the_router_picks_by() {
    let fixture = Fixture::new();
    let router = Router::new().by_header("EventType").on("a", fixture.script.clone()).on("b", fixture.script.clone());
    let consumer = fixture.consumer().handler(router).build().unwrap();
    let of = |kind: &str, other: &str| message("1", "ok").with_header("EventType", kind.to_owned()).with_type(other);
    let decisions = consumer.decisions(vec![of("a", "x"), of("a", "y"), of("b", "x")]).await.unwrap();
    assert!(decisions[0].is_processed() && decisions[1].is_skipped(), "{decisions:?}");
    assert!(matches!(decisions[2], Decision::Conflict(..)), "{decisions:?}");
}

/// C12: the type may stand in the payload, where a hash of other members alone does not see it.
#[tokio::test(flavor = "multi_thread")]
async fn c12_a_type_in_the_payload_is_routed_by_and_hashed() {
    let fixture = Fixture::new();
    let router = Router::new().by_json(JsonMember::field("type")).on("placed", fixture.script.clone());
    let router = router.on("cancelled", fixture.script.clone());
    let rules = HashRules::new(JsonMembers::only(["/cents"]).unwrap());
    let consumer = fixture.consumer().handler(router).hash_rules(rules).build().unwrap();
    let payloads = [
        r#"{"type":"placed","cents":1}"#,
        r#"{"type":"placed","cents":1,"sent":2}"#,
        r#"{"type":"cancelled","cents":1}"#,
    ];
    let decisions = consumer.decisions(payloads.map(|payload| message("1", payload)).to_vec()).await.unwrap();
    assert!(decisions[0].is_processed() && decisions[1].is_skipped(), "{decisions:?}");
    assert!(matches!(decisions[2], Decision::Conflict(..)), "{decisions:?}");
    for (key, payload, reason) in [
        ("2", r#"{"type":"returned","cents":1}"#, Reason::UnknownType),
        ("3", r#"{"cents":1}"#, Reason::UnknownType),
        ("4", r#"{"type":null,"cents":1}"#, Reason::UnknownType),
        ("5", r#"{"type":7,"cents":1}"#, Reason::Malformed),
        ("6", r#"{"type":"placed","type":"cancelled","cents":1}"#, Reason::Malformed),
    ] {
        let decisions = consumer.decisions(vec![message(key, payload)]).await.unwrap();
        assert!(
            matches!(&decisions[0], Decision::Failed(failure) if failure.reason == reason),
            "{payload}: {decisions:?}"
        );
    }
}

/// C13: a consumer that ran before the type was hashed starts as ever, and its records are compared as they were made.
#[tokio::test(flavor = "multi_thread")]
async fn c13_records_of_the_rule_without_the_type_are_compared_by_it() {
    let fixture = Fixture::new();
    let before = fixture.consumer().build().unwrap();
    let placed = |key: &str| message(key, "ok").with_type("OrderPlaced");
    let cancelled = |key: &str| message(key, "ok").with_type("OrderCancelled");
    assert!(before.decisions(vec![placed("old")]).await.unwrap()[0].is_processed());
    let consumer = routed(&fixture);
    let decisions = consumer.decisions(vec![placed("old"), cancelled("old"), placed("new")]).await.unwrap();
    assert!(decisions[0].is_skipped() && decisions[1].is_skipped() && decisions[2].is_processed(), "{decisions:?}");
    let decisions = consumer.decisions(vec![placed("new"), cancelled("new")]).await.unwrap();
    assert!(decisions[0].is_skipped() && matches!(decisions[1], Decision::Conflict(..)), "{decisions:?}");
    let other = message("old", "another payload").with_type("OrderPlaced");
    assert!(matches!(consumer.decisions(vec![other]).await.unwrap()[0], Decision::Conflict(..)));
}

/// A consumer of two types, of which `charge` calls a provider.
fn charging(fixture: &Fixture) -> DedupConsumer<MemoryStore> {
    let router = Router::new().fallback(fixture.script.clone());
    let router = router.on_with(Effects::Outside, "charge", fixture.script.clone());
    fixture.consumer().handler(router).handler_deadline(Duration::from_secs(5)).build().unwrap()
}

/// D52: a neighbour that fails repeats the messages of its batch, and no call to a provider.
#[tokio::test(flavor = "multi_thread")]
async fn d52_a_call_to_another_system_is_not_repeated_for_a_neighbour() {
    let fixture = Fixture::new();
    let publish = |key: &str, payload: &str, kind: &str| {
        fixture.queue.publish(message(key, payload).with_type(kind)).unwrap();
    };
    // A worker begins with one batch's worth of messages alone.
    (0..100).for_each(|n| drop(fixture.publish(&format!("warm-{n}"), "ok")));
    for n in 0..10 {
        publish(&format!("charge-{n}"), "ok", "charge");
        publish(&format!("note-{n}"), if n == 9 { "fail once" } else { "ok" }, "note");
    }
    let summary = drain(&fixture, fixture.worker_of(charging(&fixture))).await;
    assert_eq!(summary.processed, 120);
    let runs = |kind: &str| (0..10).map(|n| fixture.script.runs_of(&format!("{kind}-{n}"))).sum::<usize>();
    assert_eq!(runs("charge"), 10);
    assert!(runs("note") > 11, "the notes ran together, and again with the one that failed");
}

/// D52: the same without a worker; and a consumer with such a type needs a deadline.
#[tokio::test(flavor = "multi_thread")]
async fn d52_a_callers_own_loop_runs_calls_to_other_systems_alone() {
    let fixture = Fixture::new();
    let messages = vec![
        message("charge-1", "ok").with_type("charge"),
        message("note-1", "fail").with_type("note"),
        message("charge-2", "ok").with_type("charge"),
    ];
    let decisions = charging(&fixture).decisions(messages).await.unwrap();
    assert!(decisions[0].is_processed() && decisions[2].is_processed(), "{decisions:?}");
    assert_eq!((fixture.script.runs_of("charge-1"), fixture.script.runs_of("charge-2")), (1, 1));
    let router = Router::new().on_with(Effects::Outside, "charge", fixture.script.clone());
    let refused = fixture.consumer().handler(router.around(next)).build().map(|_| ()).unwrap_err();
    assert_eq!(refused.field, "handler_deadline");
}

async fn next(
    next: Next<'_, MemoryStore>,
    message: &Message,
    tx: &mut Tx<'_, MemoryStore>,
) -> Result<(), HandlerError> {
    next.run(message, tx).await
}
