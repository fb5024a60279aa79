//! Messages whose ordering keys have rows that are not over: their units do not begin.

use std::{borrow::Borrow, collections::HashMap, sync::atomic::Ordering};

use crate::{
    bugs::{self, Bug},
    error::StoreError,
    names::{OrderingKey, ScopeId},
    store::{
        Store,
        unit::{Ahead, UnitOfWork as _},
    },
    unit::{claim::one_answer_each, engine::Engine, identify::Item, session::answered},
};

/// The key in whose order a message is handled, also across later tries. `None` of a message without one, or without an idempotency key,
/// and of a row.
fn line_of(item: &Item) -> Option<(ScopeId, &OrderingKey)> {
    let claim = item.claim.as_ref().filter(|_| !item.from_row)?;
    Some((claim.scope, item.message.own_ordering_key()?))
}

/// The messages that have rows ahead of them, by their places. The store is asked only while anything waits.
pub(super) async fn ahead<S: Store, J: Borrow<Item> + Sync>(
    engine: &Engine<S>,
    unit: &mut S::Unit,
    items: &[J],
) -> Result<Vec<(usize, Ahead)>, StoreError> {
    if !engine.anything_waits.load(Ordering::Relaxed) || bugs::planted(Bug::SkipsTheParkedCheck) {
        return Ok(Vec::new());
    }
    let (mut keys, mut numbers, mut asked) = (Vec::new(), HashMap::new(), Vec::new());
    for (index, item) in items.iter().enumerate() {
        let Some((scope, key)) = line_of(item.borrow()) else { continue };
        let number = *numbers.entry((scope, key)).or_insert_with(|| {
            keys.push((scope, key.clone()));
            keys.len() - 1
        });
        asked.push((index, number));
    }
    if keys.is_empty() {
        return Ok(Vec::new());
    }
    let answers =
        answered(engine.settings.answer_timeout, "asking what waits in an ordering key", unit.ahead(&keys)).await?;
    one_answer_each(answers.len(), keys.len())?;
    let ahead = asked.into_iter().map(|(index, number)| (index, answers[number]));
    Ok(ahead.filter(|(_, ahead)| *ahead != Ahead::Nothing).collect())
}

/// Whether a unit whose keys are claimed should have asked what is ahead of its messages, and has not.
pub(super) fn must_ask<S: Store, J: Borrow<Item>>(engine: &Engine<S>, unit: &S::Unit, items: &[J]) -> bool {
    let waits = unit.anything_waits();
    // Nearly always both are false, and nothing is written to what all lanes share.
    if waits == engine.anything_waits.load(Ordering::Relaxed) {
        return false;
    }
    engine.anything_waits.store(waits, Ordering::Relaxed);
    waits
        && !bugs::planted(Bug::SkipsTheParkedCheck)
        && items.iter().any(|item| line_of(Borrow::<Item>::borrow(item)).is_some())
}
