//! Short words for consumers and claims, for the cases and for the other tests of a store on PostgreSQL.
//!
//! # Panics
//! All of them panic where the store does not answer as a test can go on with.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use idem_core::{
    ConsumerName, Decision, DedupConsumer, Effects, Handler, IdempotencyKey, Message, Retention, Store, Tenant,
    consumer::DedupConsumerBuilder,
    hash::PayloadHash,
    store::{Bookkeeping as _, Claim, Registration, RunId, UnitOptions},
};

use idem_testkit::Decide as _;

/// A consumer with limits that suit tests.
pub fn builder<S: Store>(store: S, handler: impl Handler<S>) -> DedupConsumerBuilder<S> {
    DedupConsumer::builder(store, "ledger").handler(handler).effects(Effects::InTransaction)
}

/// The same, built, with a busy timeout that a slow machine does not meet.
pub fn consumer<S: Store>(store: S, handler: impl Handler<S>) -> DedupConsumer<S> {
    builder(store, handler).busy_timeout(Duration::from_secs(20)).build().unwrap()
}

/// A message of this key, whose payload follows from it.
pub fn msg(key: &str) -> Message {
    Message::new(format!("paid {key}")).with_header("idempotencykey", key.to_owned())
}

/// `order-000`, `order-001`, …
pub fn keys(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("order-{number:03}")).collect()
}

/// [`msg`] of each key.
pub fn messages(keys: &[String]) -> Vec<Message> {
    keys.iter().map(|key| msg(key)).collect()
}

/// The decisions in one letter each: Processed, Duplicate, Conflict, Busy, and the first of a failure's class.
pub fn letters(decisions: &[Decision]) -> String {
    decisions
        .iter()
        .map(|decision| match decision {
            Decision::Processed(_) => 'P',
            Decision::Duplicate(..) => 'D',
            Decision::Conflict(..) => 'C',
            Decision::Busy => 'B',
            Decision::Failed(failure) => failure.class.to_string().chars().next().unwrap_or('?'),
            other => panic!("{other:?}"),
        })
        .collect()
}

/// Processes messages; the [letters] of their decisions.
pub async fn process<S: Store>(consumer: &DedupConsumer<S>, messages: Vec<Message>) -> String {
    letters(&consumer.decisions(messages).await.unwrap())
}

/// A25: processes all keys in batches, again and again, until the server stays up and everything is decided.
pub async fn process_until_done<S: Store>(consumer: DedupConsumer<S>, all: Vec<String>, done: Arc<AtomicBool>) {
    loop {
        let was_done = done.load(Ordering::SeqCst);
        let mut undecided = 0;
        for batch in all.chunks(10) {
            // A start that cannot reach the server is tried again, as a worker does.
            let Ok(decisions) = consumer.decisions(messages(batch)).await else {
                undecided += 1;
                continue;
            };
            let seen = letters(&decisions);
            assert!(seen.chars().all(|letter| matches!(letter, 'P' | 'D' | 'B' | 'i')), "{seen}");
            undecided += seen.chars().filter(|letter| matches!(letter, 'B' | 'i')).count();
        }
        if was_done && undecided == 0 {
            return;
        }
    }
}

/// The start of the consumer whose keys are claimed by hand.
pub fn registration() -> Registration {
    Registration::new(
        ConsumerName::new("by-hand").unwrap(),
        Tenant::default(),
        "k".to_owned(),
        vec!["h".to_owned()],
        Retention::For(Duration::from_secs(3600)),
    )
    .version("1".to_owned())
}

/// A claim of this key in the scope of a consumer that is registered for it.
pub async fn claim_of(store: &impl Store, key: &str) -> (Claim, RunId) {
    let registered = store.bookkeeping().register(&registration()).await.unwrap();
    let claim = Claim::new(
        registered.scope,
        IdempotencyKey::new(key).unwrap(),
        PayloadHash::of(key.as_bytes()),
        registered.hash_rules[0],
        Retention::For(Duration::from_secs(3600)),
    );
    (claim, registered.run)
}

/// Limits of a unit by hand.
pub fn options(run: RunId, busy: Duration) -> UnitOptions {
    UnitOptions::new(run, 0, busy, Duration::from_secs(120))
}
