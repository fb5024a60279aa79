//! Looks keys up without claiming them, and finds out whether keys can be claimed at all.

use std::borrow::Borrow;

use super::{
    Inner, Item,
    claim::one_answer_each,
    ledger::decision,
    unit::{answered, lane_or_open, options},
};
use crate::{
    error::{ClaimError, StoreError},
    key::IdempotencyKey,
    message::Message,
    outcome::{self, Decision},
    store::{Claim, Store, UnitOfWork},
};

/// Looks up which of these messages have a record already, in one read-only unit. `None` for those that have none.
pub(crate) async fn look<S: Store, J: Borrow<Item> + Sync>(
    inner: &Inner<S>,
    lane: Option<S::Lane>,
    lane_number: i32,
    items: &[J],
) -> (Option<S::Lane>, Result<Vec<Option<Decision>>, StoreError>) {
    let mut lane = match lane_or_open(inner, lane).await {
        Ok(lane) => lane,
        Err(error) => return (None, Err(error)),
    };
    let found = look_on(inner, &mut lane, lane_number, items).await;
    (found.is_ok().then_some(lane), found)
}

/// Whether the database can do what a unit needs: claims a key that no message has, and rolls back. Reading alone would
/// call a database back that takes no writes, or has lost the table.
pub(crate) async fn probe<S: Store>(
    inner: &Inner<S>,
    lane: Option<S::Lane>,
    lane_number: i32,
) -> (Option<S::Lane>, Result<(), StoreError>) {
    let mut lane = match lane_or_open(inner, lane).await {
        Ok(lane) => lane,
        Err(error) => return (None, Err(error)),
    };
    let probed = probe_on(inner, &mut lane, lane_number).await;
    (probed.is_ok().then_some(lane), probed)
}

async fn probe_on<S: Store>(inner: &Inner<S>, lane: &mut S::Lane, lane_number: i32) -> Result<(), StoreError> {
    let registered = inner.register(None).await?;
    // Nobody else's, so that no two probes wait for each other.
    let key = IdempotencyKey::new(&format!("idem:probe:{}:{lane_number}", registered.run));
    let hash = inner.hashes.current.hash(&Message::new(""));
    let (Ok(key), Ok(hash), Some(hash_rule)) = (key, hash, registered.hash_rules.first().copied()) else {
        return Ok(());
    };
    let claim = Claim { scope: registered.scope, key, hash, hash_rule, retention: inner.settings.retention };
    let limit = inner.settings.answer_timeout;
    let begin = inner.store.begin(lane, options(&inner.settings, registered.run, lane_number));
    let mut unit = answered(limit, "beginning a transaction", begin).await?;
    let claimed = async {
        unit.claim(&[claim]).await.or_else(|error| match error {
            ClaimError::Store(error) => Err(error),
            // It was asked, and it answered.
            ClaimError::Held | ClaimError::NoWinner { .. } => Ok(Vec::new()),
        })
    };
    answered(limit + inner.settings.busy_timeout, "claiming", claimed).await?;
    answered(limit, "rolling back", unit.rollback()).await
}

async fn look_on<S: Store, J: Borrow<Item> + Sync>(
    inner: &Inner<S>,
    lane: &mut S::Lane,
    lane_number: i32,
    items: &[J],
) -> Result<Vec<Option<Decision>>, StoreError> {
    let registered = inner.register(None).await?;
    let limit = inner.settings.answer_timeout;
    let begin = inner.store.begin(lane, options(&inner.settings, registered.run, lane_number));
    let mut unit = answered(limit, "beginning a transaction", begin).await?;
    let positions: Vec<usize> = (0..items.len()).filter(|index| items[*index].borrow().claim.is_some()).collect();
    let claims: Vec<Claim> = positions.iter().filter_map(|index| items[*index].borrow().claim.clone()).collect();
    let found = answered(limit, "looking keys up", unit.read(&claims)).await?;
    one_answer_each(found.len(), claims.len())?;
    answered(limit, "rolling back", unit.rollback()).await?;
    let mut decisions: Vec<Option<Decision>> = items.iter().map(|_| None).collect();
    for ((index, claim), recorded) in positions.into_iter().zip(&claims).zip(found) {
        let Some(recorded) = recorded else { continue };
        let verdict = outcome::compare(claim, recorded, |rule| inner.rehash(&items[index].borrow().message, rule));
        decisions[index] = decision(verdict);
    }
    Ok(decisions)
}
