//! Looks keys up without claiming them.

use std::borrow::Borrow;

use super::{
    Inner, Item,
    claim::one_answer_each,
    ledger::decision,
    unit::{answered, lane_or_open, options},
};
use crate::{
    error::StoreError,
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
