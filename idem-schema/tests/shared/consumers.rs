//! Consumers and claims for the tests of every PostgreSQL store, which include this file.

use idem_testkit::Decide as _;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use idem_core::{
    ConsumerName, Decision, DedupConsumer, DedupConsumerBuilder, Effects, Handler, IdempotencyKey, Message,
    PayloadHash, Retention, Store, Tenant,
    store::{Bookkeeping as _, Claim, Claimed, HashRuleId, Registration, RunId, UnitOfWork as _, UnitOptions},
};

/// A consumer with limits that suit tests.
pub(crate) fn builder<S: Store>(store: S, handler: impl Handler<S>) -> DedupConsumerBuilder<S> {
    DedupConsumer::builder(store, "ledger").handler(handler).effects(Effects::InTransaction)
}

pub(crate) fn consumer<S: Store>(store: S, handler: impl Handler<S>) -> DedupConsumer<S> {
    builder(store, handler).busy_timeout(Duration::from_secs(20)).build().unwrap()
}

/// A message of this key, whose payload follows from it.
pub(crate) fn msg(key: &str) -> Message {
    Message::new(format!("paid {key}")).with_header("idempotencykey", key.to_owned())
}

pub(crate) fn keys(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("order-{number:03}")).collect()
}

pub(crate) fn messages(keys: &[String]) -> Vec<Message> {
    keys.iter().map(|key| msg(key)).collect()
}

/// The decisions in one letter each: Processed, Duplicate, Conflict, Busy, and the first of a failure's class.
pub(crate) fn letters(decisions: &[Decision]) -> String {
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

pub(crate) async fn process<S: Store>(consumer: &DedupConsumer<S>, messages: Vec<Message>) -> String {
    letters(&consumer.decisions(messages).await.unwrap())
}

/// A25: processes all keys in batches, again and again, until the server stays up and everything is decided.
pub(crate) async fn process_until_done<S: Store>(consumer: DedupConsumer<S>, all: Vec<String>, done: Arc<AtomicBool>) {
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
pub(crate) fn registration() -> Registration {
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
pub(crate) async fn claim_of(store: &impl Store, key: &str) -> (Claim, RunId) {
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
pub(crate) fn options(run: RunId, busy: Duration) -> UnitOptions {
    UnitOptions::new(run, 0, busy, Duration::from_secs(120))
}

/// A key that is claimed alone is another statement, which must leave the same record.
pub(crate) async fn one_and_many_leave_equal_records(store: &impl Store) {
    // Numbers that differ, so that none can stand in another's place.
    let (claim, run) = (claim_of(store, "claimed").await.0, RunId(7));
    let claim = claim.hash_rule(HashRuleId(9));
    for retention in [claim.retention, Retention::Forever] {
        let key = |number: i32| IdempotencyKey::new(&format!("{retention:?}/{number}")).unwrap();
        let claims = [1, 2, 3].map(|number| claim.clone().key(key(number)).retention(retention));
        let mut lane = store.open().await.unwrap();
        let mut unit = store.begin(&mut lane, options(run, Duration::from_secs(5))).await.unwrap();
        assert_eq!(unit.claim(&claims[..1]).await.unwrap(), [Claimed::Inserted]);
        assert_eq!(unit.claim(&claims[1..]).await.unwrap(), [Claimed::Inserted, Claimed::Inserted]);
        assert_eq!(unit.claim(&claims[..1]).await.unwrap(), [Claimed::NotInserted]);
        assert_eq!(
            unit.read(&claims).await.unwrap(),
            [None, None, None],
            "what a unit has inserted itself is no record yet"
        );
        unit.commit().await.unwrap();
        let mut unit = store.begin(&mut lane, options(run, Duration::from_secs(5))).await.unwrap();
        unit.claim(&[]).await.unwrap();
        let found = unit.read(&claims).await.unwrap();
        let records: Vec<_> = found.into_iter().map(Option::unwrap).collect();
        for (record, claim) in records.iter().zip(&claims) {
            assert_eq!((&record.key, record.hash, record.hash_rule), (&claim.key, claim.hash, claim.hash_rule));
            assert_eq!((record.processed_by, record.expires_at), (run, records[0].expires_at));
        }
        assert_eq!(records[0].expires_at.is_none(), retention == Retention::Forever);
        unit.rollback().await.unwrap();
    }
}
