//! [`deliver`] and the faults of [`MemoryStore`], as users' tests use them.

use std::{sync::Arc, time::Duration};

use idem_core::{
    Decision, DedupConsumer, Effects, ErrorClass, Event, Handler, HandlerError, Message, ResultBody, Store, Tx,
    dead_letter::Reason, handler_fn, store::Bookkeeping as _,
};
use idem_testkit::{
    Decide as _, Defect, Fault, MemoryStore, Operation, deliver, deliver_on, deliver_publishing, message,
};

/// The test without a database in docs/guide/testing.md is `guide.rs`, which is compiled and runs here.
#[test]
fn the_guide_shows_the_test_that_runs() {
    let page = include_str!("../../../docs/guide/testing.md");
    assert!(page.contains(include_str!("guide.rs")), "testing.md and guide.rs differ");
}

struct Ledger;

impl Handler<MemoryStore> for Ledger {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, MemoryStore>) -> Result<(), HandlerError> {
        let cents: u64 = message.json()?;
        let key = message.key().map(|key| key.as_str().to_owned()).unwrap_or_default();
        let mut connection = tx.connection();
        connection.insert("purchases", &key, cents.to_string()).await?;
        let total = connection.rows("purchases").await?.len();
        connection.put("totals", "purchases", total.to_string()).await?;
        if cents == 0 {
            return Err("nothing is free".into());
        }
        Ok(())
    }
}

fn store_and_ledger() -> (Arc<MemoryStore>, Arc<Ledger>) {
    (Arc::new(MemoryStore::new()), Arc::new(Ledger))
}

fn keys(store: &MemoryStore) -> Vec<String> {
    store.rows("purchases").into_iter().map(|(key, _)| key).collect()
}

#[tokio::test]
async fn a_first_delivery_a_duplicate_a_conflict_and_a_failure() {
    let (store, ledger) = store_and_ledger();
    assert!(deliver(&store, &ledger, message("order-1", "250")).await.unwrap().is_processed());
    assert!(deliver(&store, &ledger, message("order-1", "250")).await.unwrap().is_skipped());
    let conflict = deliver(&store, &ledger, message("order-1", "251")).await.unwrap();
    assert!(matches!(conflict, Decision::Conflict(..)), "{conflict:?}");
    // The outcome says whether a worker tries again: its reason is that of the dead letter which the message ends as.
    for (payload, reason, comes_again) in [("0", Reason::AttemptsExhausted, true), ("free", Reason::Malformed, false)] {
        let failed = deliver(&store, &ledger, message("order-2", payload)).await.unwrap();
        let Decision::Failed(failure) = &failed else { panic!("{failed:?}") };
        assert_eq!((failure.reason, failure.comes_again()), (reason, comes_again), "{failed:?}");
        assert!(format!("{failed:?}").contains(&format!("comes_again: {comes_again}")), "{failed:?}");
    }
    assert_eq!(keys(&store), ["order-1"]);
    assert_eq!(store.rows("totals")[0].1, "1");
    assert!(deliver(&store, &ledger, message("order-2", "1")).await.unwrap().is_processed());
    assert_eq!(keys(&store), ["order-1", "order-2"]);
}

/// Takes its connection never, and writes nothing.
#[tokio::test]
async fn a_handler_without_a_write_is_delivered_to() {
    let nothing = Arc::new(handler_fn(async |_: &Message, _: &mut Tx<'_, MemoryStore>| Ok(())));
    assert!(deliver(&Arc::new(MemoryStore::new()), &nothing, message("order-1", "250")).await.unwrap().is_processed());
}

/// Publishes and answers with a result, and fails on a payload of 0.
struct Charging;

impl Handler<MemoryStore> for Charging {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, MemoryStore>) -> Result<(), HandlerError> {
        let cents: u64 = message.json()?;
        tx.publish(message, Event::to("payments").body(cents.to_string()))?;
        tx.set_result(message, ResultBody::new(format!("receipt {cents}")))?;
        if cents == 0 { Err("nothing is free".into()) } else { Ok(()) }
    }
}

#[tokio::test]
async fn a_delivery_gives_the_events_and_the_result_that_were_committed() {
    let (store, charging) = (Arc::new(MemoryStore::new()), Arc::new(Charging));
    let told = async |payload: &'static str| {
        let delivered = deliver_publishing(&store, &charging, ["payments"], message("order-1", payload)).await.unwrap();
        let events = delivered.events.iter().map(|(to, event)| format!("{to} {}", event.key)).collect::<Vec<_>>();
        let result = delivered.result.map(|kept| String::from_utf8(kept.result.body.to_vec()).unwrap());
        (delivered.decision, events, result)
    };
    let (failed, events, result) = told("0").await;
    assert!(matches!(failed, Decision::Failed(..)), "{failed:?}");
    assert_eq!((events.len(), result), (0, None), "nothing was committed");
    let (first, events, result) = told("250").await;
    assert!(first.is_processed() && events[0].starts_with("payments "), "{first:?} {events:?}");
    assert_eq!((events.len(), result.as_deref()), (1, Some("receipt 250")));
    let (again, events, result) = told("250").await;
    assert!(again.is_skipped(), "{again:?}");
    assert_eq!((events.len(), result.as_deref()), (0, Some("receipt 250")), "the first one, read back");
    let (conflict, events, result) = told("251").await;
    assert!(matches!(conflict, Decision::Conflict(..)), "{conflict:?}");
    assert_eq!((events.len(), result), (0, None), "a conflict discloses nothing");
}

/// A13: only a handler that writes past its transaction makes the test warn on standard error.
#[test]
fn a13_deliver_tells_of_a_transaction_that_was_not_used() {
    for (test, is_told) in [
        ("deliver::a_handler_without_a_write_is_delivered_to", true),
        ("deliver::a_first_delivery_a_duplicate_a_conflict_and_a_failure", false),
    ] {
        let mut again = std::process::Command::new(std::env::current_exe().unwrap());
        let output = again.args(["--exact", test, "--nocapture"]).output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() && String::from_utf8_lossy(&output.stdout).contains("1 passed"), "{output:?}");
        assert_eq!(told.contains("has taken no connection from its transaction"), is_told, "{told}");
    }
}

#[tokio::test]
async fn two_handlers_of_one_test_each_see_every_message() {
    async fn notes(_: &Message, tx: &mut Tx<'_, MemoryStore>) -> Result<(), HandlerError> {
        Ok(tx.connection().append("notes", "note", "x").await?)
    }
    let (store, ledger) = store_and_ledger();
    let notes = Arc::new(handler_fn(notes));
    assert!(deliver(&store, &ledger, message("order-1", "250")).await.unwrap().is_processed());
    assert!(deliver(&store, &notes, message("order-1", "250")).await.unwrap().is_processed());
    assert_eq!((keys(&store).len(), store.rows("notes").len()), (1, 1));
}

#[tokio::test]
async fn a_lane_of_the_tests_own_comes_back() {
    let (store, ledger) = store_and_ledger();
    let lane = store.open().await.unwrap();
    let (lane, decision) = deliver_on(&store, lane, &ledger, message("order-1", "0")).await.unwrap();
    assert!(matches!(decision, Decision::Failed(_)), "{decision:?}");
    let (lane, decision) = deliver_on(&store, lane.unwrap(), &ledger, message("order-1", "1")).await.unwrap();
    assert!(decision.is_processed() && lane.is_some());
}

#[tokio::test]
async fn an_unreachable_store_is_an_error_or_infrastructure() {
    let (store, ledger) = store_and_ledger();
    store.inject(Operation::Open, Fault::ConnectionLost);
    let refused = deliver(&store, &ledger, message("order-1", "1")).await.unwrap_err();
    assert_eq!(refused.class(), ErrorClass::Infrastructure);
    for operation in [Operation::Begin, Operation::Claim, Operation::Statement] {
        for fault in [Fault::ConnectionLost, Fault::AnswerLost] {
            store.inject(operation, fault);
            if operation != Operation::Statement {
                // A session that is lost before anything ran on it is replaced once.
                store.inject(operation, fault);
            }
            let failed = deliver(&store, &ledger, message("order-1", "1")).await.unwrap();
            let class = match &failed {
                Decision::Failed(failure) => failure.class,
                other => panic!("{operation:?} {fault:?}: {other:?}"),
            };
            assert_eq!(class, ErrorClass::Infrastructure, "{operation:?} {fault:?}");
        }
    }
    assert!(keys(&store).is_empty() && store.recorded_keys().is_empty());
    assert!(deliver(&store, &ledger, message("order-1", "1")).await.unwrap().is_processed());
}

/// Each way in which a commit's answer can be lost is resolved by claiming again.
#[tokio::test]
async fn lost_answers_to_a_commit_are_resolved() {
    let (store, ledger) = store_and_ledger();
    store.inject(Operation::Commit, Fault::AnswerLost);
    assert!(deliver(&store, &ledger, message("order-1", "1")).await.unwrap().is_skipped());
    store.inject(Operation::Commit, Fault::ConnectionLost);
    assert!(deliver(&store, &ledger, message("order-2", "1")).await.unwrap().is_processed());
    assert_eq!(keys(&store), ["order-1", "order-2"]);
}

/// B4, A27: a unit that another transaction or a stale plan spoiled runs again at once, and no message is charged.
#[tokio::test]
async fn contention_runs_the_unit_again() {
    let (store, ledger) = store_and_ledger();
    for operation in [Operation::Claim, Operation::Statement, Operation::Commit] {
        store.inject(operation, Fault::Error(ErrorClass::RunUnitAgain));
        let key = format!("{operation:?}");
        assert!(deliver(&store, &ledger, message(&key, "1")).await.unwrap().is_processed(), "{key}");
    }
    assert_eq!(keys(&store), ["Claim", "Statement", "Commit"]);
}

/// A7: a commit that never answers is unknown after its time-out, and the message runs again.
#[tokio::test(start_paused = true)]
async fn a_commit_that_hangs_is_resolved() {
    let (store, _) = store_and_ledger();
    let consumer = DedupConsumer::builder(Arc::clone(&store), "ledger")
        .handler(Ledger)
        .effects(Effects::InTransaction)
        .commit_timeout(Duration::from_secs(10))
        .build()
        .unwrap();
    store.inject(Operation::Commit, Fault::Hang);
    store.inject(Operation::Begin, Fault::Delay(Duration::from_secs(1)));
    let decisions = consumer.decisions(vec![message("order-1", "1")]).await.unwrap();
    assert!(decisions[0].is_processed(), "{decisions:?}");
    assert_eq!(keys(&store), ["order-1"]);
}

/// Two units that claim in opposite orders, which the engine never does: one gets a deadlock, neither waits for ever.
#[tokio::test(start_paused = true)]
async fn a_deadlock_is_found() {
    use idem_core::{
        Retention,
        hash::PayloadHash,
        store::{Claim, ClaimError, Claimed, Registration, UnitOfWork, UnitOptions},
    };
    let store = MemoryStore::new();
    let registration = Registration::new(
        idem_core::ConsumerName::new("orders").unwrap(),
        idem_core::Tenant::default(),
        String::new(),
        vec!["raw/1".to_owned()],
        Retention::Forever,
    )
    .version(String::new());
    let registered = store.bookkeeping().register(&registration).await.unwrap();
    let claim = |key: &str| {
        Claim::new(
            registered.scope,
            idem_core::IdempotencyKey::new(key).unwrap(),
            PayloadHash::of(b""),
            registered.hash_rules[0],
            Retention::Forever,
        )
    };
    let minute = Duration::from_secs(60);
    let limits = UnitOptions::new(registered.run, 0, minute, minute);
    let (one_lane, other_lane) = (store.open().await.unwrap(), store.open().await.unwrap());
    let mut one = store.begin(one_lane, limits).await.unwrap();
    let mut other = store.begin(other_lane, limits).await.unwrap();
    assert_eq!(one.claim(&[claim("a")]).await.unwrap(), [Claimed::Inserted]);
    assert_eq!(other.claim(&[claim("b")]).await.unwrap(), [Claimed::Inserted]);
    let (a, b) = ([claim("a")], [claim("b")]);
    // The unit that closes the circle gets the deadlock; the other gets its key once that one has rolled back.
    let first = async {
        let answer = one.claim(&b).await;
        one.rollback().await.unwrap();
        answer
    };
    let second = async {
        let answer = other.claim(&a).await;
        other.rollback().await.unwrap();
        answer
    };
    let (first, second) = tokio::join!(first, second);
    let told = |answer: &Result<Vec<Claimed>, ClaimError>| matches!(answer, Err(ClaimError::Store(error)) if error.class() == ErrorClass::RunUnitAgain);
    let won = |answer: &Result<Vec<Claimed>, ClaimError>| matches!(answer.as_deref(), Ok([Claimed::Inserted]));
    assert!(told(&first) && won(&second) || told(&second) && won(&first), "{first:?} {second:?}");
    assert_eq!(store.deadlocks(), 1);
}

/// Two keys with one id are not mixed up: the second is neither run nor called a duplicate.
#[tokio::test]
async fn a_collision_of_key_ids_is_seen() {
    let (store, ledger) = (Arc::new(MemoryStore::with_defect(Defect::CollidesKeys)), Arc::new(Ledger));
    assert!(deliver(&store, &ledger, message("order-1", "1")).await.unwrap().is_processed());
    let collision = deliver(&store, &ledger, message("ORDER-1", "1")).await.unwrap();
    let seen = matches!(&collision, Decision::Failed(failure) if failure.reason == Reason::KeyCollision);
    assert!(seen, "{collision:?}");
    assert!(deliver(&store, &ledger, message("order-1", "1")).await.unwrap().is_skipped());
    assert_eq!(keys(&store), ["order-1"]);
}
