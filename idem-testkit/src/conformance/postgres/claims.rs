//! Claims by hand.

use std::time::Duration;

use idem_core::{
    IdempotencyKey, Retention, Store as _,
    store::{ClaimError, Claimed, HashRuleId, RunId, UnitOfWork as _},
};

use super::{
    consumers::{claim_of, options},
    subject::{PATIENCE, PostgresUnderTest},
};

/// B2: a second claim in one unit waits no longer than the first, although the first has put the session's limits back.
pub async fn b2_a_second_claim_is_bounded_too<T: PostgresUnderTest>(subject: &T) {
    let store = subject.store();
    let (held, run) = claim_of(store, "held").await;
    let (free, _) = claim_of(store, "free").await;
    let mut lane = store.open().await.unwrap();
    let mut holder = store.begin(&mut lane, options(run, Duration::from_secs(5))).await.unwrap();
    let claims = [held];
    holder.claim(&claims).await.unwrap();
    let mut lane = store.open().await.unwrap();
    let mut unit = store.begin(&mut lane, options(run, Duration::from_millis(300))).await.unwrap();
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
