//! Claims by hand.

use std::time::Duration;

use idem_core::{
    Effects, ErrorClass, IdempotencyKey, Retention, RunOnce, Store as _,
    once::KeyState,
    store::{ClaimError, Claimed, HashRuleId, RunId, UnitOfWork as _},
};

use super::{
    commits::pay,
    consumers::{builder, claim_of, keys, messages, msg, options, process},
    handlers::Write,
    subject::{PATIENCE, PostgresUnderTest, effects},
};
use idem_testkit::proxy::postgres::PostgresProxy;

/// B2: a second claim in one unit waits no longer than the first, although the first has put the session's limits back.
pub async fn b2_a_second_claim_is_bounded_too<T: PostgresUnderTest>(subject: &T) {
    let store = subject.store();
    let (held, run) = claim_of(store, "held").await;
    let (free, _) = claim_of(store, "free").await;
    let lane = store.open().await.unwrap();
    let mut holder = store.begin(lane, options(run, Duration::from_secs(5))).await.unwrap();
    let claims = [held];
    holder.claim(&claims).await.unwrap();
    let lane = store.open().await.unwrap();
    let mut unit = store.begin(lane, options(run, Duration::from_millis(300))).await.unwrap();
    assert_eq!(unit.claim(&[free]).await.unwrap(), [Claimed::Inserted]);
    let second = tokio::time::timeout(PATIENCE, unit.claim(&claims)).await;
    let error = second.expect("bounded by the server").unwrap_err();
    assert!(matches!(error, ClaimError::Held), "{error:?}");
    unit.rollback().await.unwrap();
    holder.rollback().await.unwrap();
}

/// A key that is claimed alone is another statement, which must leave the same record.
pub async fn a_key_that_is_claimed_alone_leaves_the_same_record<T: PostgresUnderTest>(subject: &T) {
    let store = subject.store();
    // Numbers that differ, so that none can stand in another's place.
    let (claim, run) = (claim_of(store, "claimed").await.0, RunId(7));
    let claim = claim.hash_rule(HashRuleId(9));
    for retention in [claim.retention, Retention::Forever] {
        let key = |number: i32| IdempotencyKey::new(&format!("{retention:?}/{number}")).unwrap();
        let claims = [1, 2, 3].map(|number| claim.clone().key(key(number)).retention(retention));
        let lane = store.open().await.unwrap();
        let mut unit = store.begin(lane, options(run, Duration::from_secs(5))).await.unwrap();
        assert_eq!(unit.claim(&claims[..1]).await.unwrap(), [Claimed::Inserted]);
        assert_eq!(unit.claim(&claims[1..]).await.unwrap(), [Claimed::Inserted, Claimed::Inserted]);
        assert_eq!(unit.claim(&claims[..1]).await.unwrap(), [Claimed::NotInserted]);
        assert_eq!(
            unit.read(&claims).await.unwrap(),
            [None, None, None],
            "what a unit has inserted itself is no record yet"
        );
        let (lane, committed) = unit.commit().await;
        committed.unwrap();
        let mut unit = store.begin(lane.unwrap(), options(run, Duration::from_secs(5))).await.unwrap();
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

/// W139: while a lock keeps every claim from the table, a key that nobody sent is not held. The database cannot serve, which is
/// told to each caller, and is over with the lock.
pub async fn w139_a_locked_table_says_nothing_about_a_key<T: PostgresUnderTest>(subject: &T) {
    let (store, busy) = (subject.store(), Duration::from_millis(300));
    let consumer = builder(store.clone(), Write::<T>::new()).busy_timeout(busy).handlers(subject.concurrency());
    let consumer = consumer.build().unwrap();
    consumer.start().await.unwrap();
    let (claim, run) = claim_of(store, "free").await;
    let lane = store.open().await.unwrap();
    let mut locking = store.begin(lane, options(run, Duration::from_secs(5))).await.unwrap();
    locking.claim(&[]).await.unwrap();
    T::execute(&mut locking.tx(), "LOCK TABLE processed_messages IN SHARE MODE").await.unwrap();
    for count in [1, 2] {
        assert_eq!(process(&consumer, messages(&keys(count))).await, "i".repeat(count), "nothing is charged");
    }
    let lane = store.open().await.unwrap();
    let error = store.is_free(lane, options(run, busy).alone(true), &claim).await.map(|_| ()).unwrap_err();
    assert_eq!(error.class(), ErrorClass::Infrastructure, "{error:?}");
    locking.rollback().await.unwrap();
    assert_eq!(process(&consumer, messages(&keys(2))).await, "PP");
    assert_eq!(effects(subject).await, keys(2));
}

/// W138: whatever becomes of a question's answers on their way, others can claim its key: the server comes to the end of the
/// question by itself.
pub async fn w138_a_question_holds_no_key<T: PostgresUnderTest>(subject: &T) {
    let proxy = PostgresProxy::patient(&subject.server()).await.unwrap();
    let instance = |store| {
        let builder = RunOnce::builder(store, "payments").busy_timeout(Duration::from_millis(300)).lanes(1);
        builder.effects(Effects::InTransaction).allow_final_errors().build().unwrap()
    };
    let (here, there) = (instance(subject.store().clone()), instance(subject.another(Some(proxy.port()), &[])));
    assert!(!pay::<T>(&here, "paid", "p").await.unwrap().is_replayed());
    assert!(matches!(there.key_state(msg("paid")).await.unwrap(), KeyState::Done { .. }), "everything is prepared");
    assert!(matches!(there.key_state(msg("unknown")).await.unwrap(), KeyState::Unknown));
    for trips in 0..=2 {
        let key = trips.to_string();
        proxy.hold_after(trips);
        let asking = there.key_state(msg(&key));
        tokio::pin!(asking);
        let asked = tokio::select! {
            asked = &mut asking => Some(asked),
            () = proxy.holds() => None,
        };
        let paid = pay::<T>(&here, &key, "p").await;
        assert!(paid.as_ref().is_ok_and(|paid| !paid.is_replayed()), "{trips} answers came: {paid:?}");
        proxy.let_go();
        assert_eq!(asked.is_none(), trips < 2, "it takes two round trips: to look the key up, and to ask");
        if asked.is_none() {
            asking.await.unwrap();
        }
    }
    assert_eq!(effects(subject).await, ["0", "1", "2", "paid"]);
    assert_eq!(subject.texts("SELECT pg_relation_size('units')::text").await, ["0"], "no unit was written down");
}
