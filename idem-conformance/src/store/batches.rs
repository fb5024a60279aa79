//! Many messages in one unit: folding, order, and one that fails among others that do not.

use std::time::Duration;

use idem_core::{
    Concurrency, Decision, DedupConsumer, Effects, ErrorClass, Message, Store as _, dead_letter::Reason,
    message::OrderingKey,
};

use super::{
    fixture::{Fixture, Kind, Step, decide, msg, process, redeliver, write},
    gate::DEADLINE,
    subject::StoreUnderTest,
};

/// Fails for payloads that begin with `bad`, for good where they begin with `bad for good`.
fn fail_bad(message: &Message, _: usize) -> Vec<Step> {
    let payload = message.payload().map(|payload| payload.to_vec()).unwrap_or_default();
    if payload.starts_with(b"bad for good") {
        vec![Step::Write(""), Step::FailForGood]
    } else if payload.starts_with(b"bad") {
        vec![Step::Write(""), Step::Fail]
    } else {
        vec![Step::Write("")]
    }
}

pub(super) const TRANSIENT: Kind = Kind::Failed(ErrorClass::Transient);
const PERMANENT: Kind = Kind::Failed(ErrorClass::Permanent);

async fn batch_of<T: StoreUnderTest>(subject: &T, size: usize) {
    let fixture = Fixture::new(subject);
    let consumer = fixture.consumer(write);
    let keys: Vec<_> = (0..size).map(|number| format!("order-{number}")).collect();
    let messages = || keys.iter().map(|key| msg(key, "paid"));
    assert_eq!(process(&consumer, messages()).await, vec![Kind::Processed; size]);
    assert_eq!(process(&consumer, messages()).await, vec![Kind::Duplicate; size]);
    assert_eq!(fixture.runs.all().len(), size);
    let units = fixture.spy.claimed();
    if !fixture.units_hold_one() {
        assert_eq!(units.len(), 2, "one claim a batch, however many messages it has");
    }
    fixture.assert_effects(keys.iter().map(|key| (key.as_str(), "paid"))).await;
}

/// A batch of one.
pub async fn batch_of_1<T: StoreUnderTest>(subject: &T) {
    batch_of(subject, 1).await;
}

/// A batch of a hundred is claimed by one statement and handled message by message.
pub async fn batch_of_100<T: StoreUnderTest>(subject: &T) {
    batch_of(subject, 100).await;
}

/// A batch of five hundred.
pub async fn batch_of_500<T: StoreUnderTest>(subject: &T) {
    batch_of(subject, 500).await;
}

/// An empty call decides nothing and opens nothing.
pub async fn an_empty_batch_is_no_unit<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    assert!(process(&fixture.consumer(write), []).await.is_empty());
    assert!(fixture.spy.claimed().is_empty());
}

/// B16: equal messages in one batch are one claim; the first leads, the others are duplicates of it.
pub async fn equal_messages_in_one_batch_run_once<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let consumer = fixture.consumer(write);
    let copies = (0..3).map(|_| msg("order-1", "paid"));
    assert_eq!(process(&consumer, copies).await, [Kind::Processed, Kind::Duplicate, Kind::Duplicate]);
    assert_eq!(fixture.runs.all().len(), 1);
    fixture.assert_effects([("order-1", "paid")]).await;
}

/// B16: of two payloads under one key in one batch, the first is handled and the second is a conflict.
pub async fn other_payload_in_one_batch_is_a_conflict<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let consumer = fixture.consumer(write);
    let messages = [msg("order-1", "paid"), msg("order-1", "refunded"), msg("order-1", "paid")];
    assert_eq!(process(&consumer, messages).await, [Kind::Processed, Kind::Conflict, Kind::Duplicate]);
    fixture.assert_effects([("order-1", "paid")]).await;
}

/// A key that is recorded already decides all its copies in a batch by its record, the leader included.
pub async fn copies_of_a_recorded_key_are_compared_with_its_record<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let consumer = fixture.consumer(write);
    process(&consumer, [msg("order-1", "paid")]).await;
    let messages = [msg("order-1", "refunded"), msg("order-1", "paid"), msg("order-1", "refunded")];
    assert_eq!(process(&consumer, messages).await, [Kind::Conflict, Kind::Duplicate, Kind::Conflict]);
    fixture.assert_effects([("order-1", "paid")]).await;
}

/// In a batch fresh-old-fresh only the old one is a duplicate.
pub async fn fresh_old_fresh<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let consumer = fixture.consumer(write);
    process(&consumer, [msg("old", "p")]).await;
    let messages = [msg("fresh-1", "p"), msg("old", "p"), msg("fresh-2", "p")];
    assert_eq!(process(&consumer, messages).await, [Kind::Processed, Kind::Duplicate, Kind::Processed]);
    fixture.assert_effects([("fresh-1", "p"), ("fresh-2", "p"), ("old", "p")]).await;
}

/// Keys are claimed in their order, but handled and answered in the order of delivery.
pub async fn handlers_run_and_decisions_stand_in_the_order_of_delivery<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let consumer = fixture.consumer(write);
    process(&consumer, [msg("m", "old"), msg("b", "old")]).await;
    let messages = [msg("z", "p"), msg("m", "old"), msg("a", "p"), msg("b", "new"), msg("k", "p")];
    assert_eq!(
        process(&consumer, messages).await,
        [Kind::Processed, Kind::Duplicate, Kind::Processed, Kind::Conflict, Kind::Processed]
    );
    assert_eq!(fixture.runs.all(), ["m", "b", "z", "a", "k"]);
}

/// B17: the engine claims each batch sorted and without repetition, in any order of delivery.
pub async fn claims_arrive_folded_and_sorted<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let keys = ["z", "é", "a", "Z", "m", "a", "10", "9", "m"];
    process(&fixture.consumer(write), keys.map(|key| msg(key, "p"))).await;
    let claimed = fixture.spy.claimed();
    if fixture.units_hold_one() {
        assert!(claimed.iter().all(|claims| claims.len() == 1), "{claimed:?}");
        return;
    }
    assert_eq!(claimed.len(), 1);
    assert!(claimed[0].is_sorted_by(|one, next| one < next), "{claimed:?}");
    assert_eq!(claimed[0].len(), 7);
}

/// Contract of Handler 3, A1: a message that fails leaves neither effect nor record, and runs again when it comes back.
pub async fn a_handlers_error_leaves_nothing<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let consumer =
        fixture.consumer(|_, run| if run < 3 { vec![Step::Write("half"), Step::Fail] } else { vec![Step::Write("")] });
    for _ in 0..2 {
        assert_eq!(process(&consumer, [msg("order-1", "paid")]).await, [TRANSIENT]);
        fixture.assert_effects([]).await;
    }
    assert_eq!(process(&consumer, [msg("order-1", "paid")]).await, [Kind::Processed]);
    fixture.assert_effects([("order-1", "paid")]).await;
}

/// A17: a panic leaves nothing, spoils no lane, and a hundred of them use nothing up.
pub async fn a_handlers_panic_leaves_nothing<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let consumer = fixture
        .consumer(|_, run| if run == 1 { vec![Step::Write("half"), Step::Panic] } else { vec![Step::Write("")] });
    let keys: Vec<_> = (0..20).map(|number| format!("order-{number}")).collect();
    for key in &keys {
        assert_eq!(process(&consumer, [msg(key, "paid")]).await, [TRANSIENT]);
    }
    fixture.assert_effects([]).await;
    let messages = keys.iter().map(|key| msg(key, "paid"));
    assert_eq!(process(&consumer, messages).await, vec![Kind::Processed; 20]);
    fixture.assert_effects(keys.iter().map(|key| (key.as_str(), "paid"))).await;
}

/// A18: a handler that never answers is ended at its deadline, leaves nothing, and its key is free at once.
pub async fn a_handler_past_its_deadline_leaves_nothing<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let builder =
        fixture.builder(
            "orders",
            |_, run| {
                if run == 1 { vec![Step::Write("half"), Step::Hang] } else { vec![Step::Write("")] }
            },
        );
    let consumer = builder.handler_deadline(DEADLINE).build().unwrap();
    let decisions = decide(&consumer, [msg("order-1", "paid")]).await;
    assert!(matches!(&decisions[0], Decision::Failed(failure) if failure.reason == Reason::Deadline), "{decisions:?}");
    fixture.assert_effects([]).await;
    assert_eq!(process(&consumer, [msg("order-1", "paid")]).await, [Kind::Processed]);
    fixture.assert_effects([("order-1", "paid")]).await;
}

/// A18, D1: a handler that never answers harms no neighbour of its batch.
pub async fn a_late_handler_in_a_batch_spares_its_neighbours<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let builder = fixture.builder("orders", |message, _| {
        if message.payload().is_some_and(|payload| payload == "late") {
            vec![Step::Hang]
        } else {
            vec![Step::Write("")]
        }
    });
    let consumer = builder.handler_deadline(DEADLINE).build().unwrap();
    let kinds = process(&consumer, [msg("k-1", "p"), msg("k-2", "late"), msg("k-3", "p")]).await;
    assert_eq!(kinds, [Kind::Processed, TRANSIENT, Kind::Processed]);
    assert!(fixture.runs.of("k-1") <= 2 && fixture.runs.of("k-3") <= 2);
    fixture.assert_effects([("k-1", "p"), ("k-3", "p")]).await;
}

/// D1, D2, D3: one poison message in a batch is the only one that fails, and an innocent handler runs at most twice. There
/// are no savepoints to stack.
pub async fn one_poison_message_spares_its_neighbours<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let consumer = fixture.consumer(fail_bad);
    let keys: Vec<_> = (0..50).map(|number| format!("order-{number:02}")).collect();
    let payload = |key: &str| if key == "order-25" { "bad for good" } else { "paid" };
    let kinds = process(&consumer, keys.iter().map(|key| msg(key, payload(key)))).await;
    for (key, kind) in keys.iter().zip(kinds) {
        assert_eq!(kind, if key == "order-25" { PERMANENT } else { Kind::Processed }, "{key}");
        assert!(fixture.runs.of(key) <= 2, "{key} ran {} times", fixture.runs.of(key));
    }
    let innocent = keys.iter().filter(|key| *key != "order-25");
    fixture.assert_effects(innocent.map(|key| (key.as_str(), "paid"))).await;
}

/// D10: a duplicate of a message that failed in the same batch is not acknowledged; it waits behind it.
pub async fn a_duplicate_of_a_failed_leader_is_not_settled<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    // In the batch, and then alone.
    let failing = if fixture.units_hold_one() { 1 } else { 2 };
    let consumer =
        fixture.consumer(
            move |_, run| {
                if run <= failing { vec![Step::Write("half"), Step::Fail] } else { vec![Step::Write("")] }
            },
        );
    let copies = || [msg("order-1", "paid"), msg("order-1", "paid")];
    assert_eq!(process(&consumer, copies()).await, [TRANSIENT, Kind::Busy]);
    fixture.assert_effects([]).await;
    assert_eq!(process(&consumer, copies()).await, [Kind::Processed, Kind::Duplicate]);
    fixture.assert_effects([("order-1", "paid")]).await;
}

/// An equal copy of a message that failed for good follows it, without a run of its own.
pub async fn an_equal_copy_follows_a_leader_that_failed_for_good<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let consumer = fixture.consumer(fail_bad);
    let copies = (0..3).map(|_| msg("order-1", "bad for good")).chain([msg("order-2", "paid")]);
    assert_eq!(process(&consumer, copies).await, [PERMANENT, PERMANENT, PERMANENT, Kind::Processed]);
    assert!(fixture.runs.of("order-1") <= 2, "in the batch and alone, but not once a copy: {:?}", fixture.runs);
    fixture.assert_effects([("order-2", "paid")]).await;
}

/// Payloads A and B under one key in one batch, and A fails for good: B runs.
pub async fn another_payload_runs_after_its_leader_failed_for_good<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let consumer = fixture.consumer(fail_bad);
    let messages = [msg("order-1", "bad for good"), msg("order-1", "paid"), msg("order-1", "paid")];
    assert_eq!(process(&consumer, messages).await, [PERMANENT, Kind::Processed, Kind::Duplicate]);
    fixture.assert_effects([("order-1", "paid")]).await;
}

/// Ids 1,2,1,2,1,3, and 2 always fails: 1 and 3 are there once, and no copy of 2 is settled.
pub async fn ids_1_2_1_2_1_3_with_2_failing<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let consumer = fixture.consumer(fail_bad);
    let delivery = || ["1", "2", "1", "2", "1", "3"].map(|id| msg(id, if id == "2" { "bad" } else { "good" }));
    let duplicate = Kind::Duplicate;
    assert_eq!(
        process(&consumer, delivery()).await,
        [Kind::Processed, TRANSIENT, duplicate, Kind::Busy, duplicate, Kind::Processed]
    );
    for message in delivery() {
        let settled = process(&consumer, [message.clone()]).await[0].is_settled();
        assert_eq!(settled, message.payload().is_some_and(|payload| payload == "good"));
    }
    fixture.assert_effects([("1", "good"), ("3", "good")]).await;
}

/// D7: messages behind a failed one in its ordering key wait; other ordering keys go on.
pub async fn what_follows_a_failure_in_its_ordering_key_waits<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let consumer = fixture.consumer(fail_bad);
    let of =
        |order: &'static str, key: &str, payload: &str| msg(key, payload).with_ordering_key(OrderingKey::new(order));
    let messages =
        [of("a", "a-1", "p"), of("a", "a-2", "bad"), of("b", "b-1", "p"), of("a", "a-3", "p"), of("b", "b-2", "p")];
    let kinds = process(&consumer, messages).await;
    assert_eq!(kinds, [Kind::Processed, TRANSIENT, Kind::Processed, Kind::Busy, Kind::Processed]);
    fixture.assert_effects([("a-1", "p"), ("b-1", "p"), ("b-2", "p")]).await;
}

/// D6, J2: the same batch over and over, and batches that overlap, change nothing.
pub async fn overlapping_batches_run_each_key_once<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let consumer = fixture.consumer(write);
    let keys: Vec<_> = (0..30).map(|number| format!("order-{number}")).collect();
    for start in (0..=20).step_by(5) {
        redeliver(&consumer, keys[start..start + 10].iter().map(|key| msg(key, "paid")).collect()).await;
    }
    assert_eq!(fixture.runs.all().len(), 30);
    fixture.assert_effects(keys.iter().map(|key| (key.as_str(), "paid"))).await;
}

/// Effects::Outside: one message a unit, so that a neighbour's failure repeats no calls.
pub async fn outside_effects_run_one_message_a_unit<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let builder = fixture.builder("orders", fail_bad).effects(Effects::Outside).handlers(Concurrency::InOrder);
    let built = builder.handler_deadline(Duration::from_secs(10)).build();
    if fixture.store.capabilities().leases {
        assert_eq!(built.unwrap_err().field, "effects", "a lease may end while a handler calls another system");
        return;
    }
    let consumer = built.unwrap();
    let kinds = process(&consumer, [msg("k-1", "p"), msg("k-2", "bad"), msg("k-3", "p")]).await;
    assert_eq!(kinds, [Kind::Processed, TRANSIENT, Kind::Processed]);
    assert_eq!(fixture.runs.all(), ["k-1", "k-2", "k-3"]);
    fixture.assert_effects([("k-1", "p"), ("k-3", "p")]).await;
}

/// A47: a handler that sets things for its transaction asks for units of one message, and has no neighbours then: no message
/// runs twice for another.
pub async fn a47_units_of_one_hold_one_message<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let consumer = fixture.builder("orders", fail_bad).one_message_per_transaction().build().unwrap();
    let kinds = process(&consumer, [msg("k-1", "p"), msg("k-2", "bad"), msg("k-3", "p")]).await;
    assert_eq!(kinds, [Kind::Processed, TRANSIENT, Kind::Processed]);
    assert_eq!(fixture.runs.all(), ["k-1", "k-2", "k-3"]);
    fixture.assert_effects([("k-1", "p"), ("k-3", "p")]).await;
}

/// A batch handler gets what is fresh, at once, and its effects are there once.
pub async fn a_batch_handler_gets_what_is_fresh<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let Some(consumer) = batch_consumer(&fixture, write) else { return };
    process(&consumer, [msg("old", "p")]).await;
    let messages = [msg("k-1", "p"), msg("old", "p"), msg("k-2", "p"), msg("k-1", "p"), msg("k-2", "q")];
    assert_eq!(
        process(&consumer, messages).await,
        [Kind::Processed, Kind::Duplicate, Kind::Processed, Kind::Duplicate, Kind::Conflict]
    );
    assert_eq!(fixture.runs.all(), ["old", "k-1", "k-2"]);
    fixture.assert_effects([("k-1", "p"), ("k-2", "p"), ("old", "p")]).await;
}

/// D1: a batch handler names the culprit; the others are handled, and run at most twice.
pub async fn a_batch_handlers_culprit_is_the_only_one_that_fails<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let Some(consumer) = batch_consumer(&fixture, fail_bad) else { return };
    let kinds = process(&consumer, [msg("k-1", "p"), msg("k-2", "bad for good"), msg("k-3", "p")]).await;
    assert_eq!(kinds, [Kind::Processed, PERMANENT, Kind::Processed]);
    assert!(["k-1", "k-2", "k-3"].into_iter().all(|key| fixture.runs.of(key) <= 2), "{:?}", fixture.runs);
    fixture.assert_effects([("k-1", "p"), ("k-3", "p")]).await;
}

/// `None` where the store refuses a batch handler, because each message is a unit of its own.
fn batch_consumer<T: StoreUnderTest>(
    fixture: &Fixture<'_, T>,
    plan: impl Fn(&Message, usize) -> Vec<Step> + Send + Sync + 'static,
) -> Option<DedupConsumer<super::fixture::Seen<T>>> {
    let builder = DedupConsumer::builder(std::sync::Arc::clone(&fixture.store), "orders");
    let built = builder.batch_handler(fixture.probe(plan)).effects(Effects::InTransaction).build();
    if fixture.units_hold_one() {
        assert_eq!(built.unwrap_err().field, "batch_handler");
        return None;
    }
    Some(built.unwrap())
}
