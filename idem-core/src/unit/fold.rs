//! Folds the messages of a unit: one claim a key, sorted, whatever the order of delivery and however often it is there.

use std::{borrow::Borrow, collections::HashMap};

use crate::{
    bugs::{self, Bug},
    names::ScopeId,
    unit::identify::Item,
};

/// The messages of a unit, folded. Indexes are those of the messages.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Fold {
    /// For each message, the one whose claim answers for it: the first delivery of its key, possibly itself. `None`
    /// for an unprotected message, which has no key.
    pub(crate) leader: Vec<Option<usize>>,
    /// The leaders, sorted by scope and key, so that two units never wait for each other (B17).
    pub(crate) claims: Vec<usize>,
}

pub(crate) fn fold<J: Borrow<Item>>(items: &[J]) -> Fold {
    let mut first: HashMap<(ScopeId, &str), usize> = HashMap::with_capacity(items.len());
    let mut claims = Vec::with_capacity(items.len());
    let leader = items
        .iter()
        .enumerate()
        .map(|(index, item)| {
            let claim = item.borrow().claim.as_ref()?;
            let scope = if bugs::planted(Bug::FoldsOverTenants) { ScopeId(0) } else { claim.scope };
            let leader = *first.entry((scope, claim.key.as_str())).or_insert(index);
            if leader == index {
                claims.push(index);
            }
            Some(leader)
        })
        .collect();
    claims.sort_by_cached_key(|index: &usize| {
        items[*index].borrow().claim.as_ref().map(|claim| (claim.scope, claim.key.as_str()))
    });
    Fold { leader, claims }
}

#[cfg(test)]
mod tests;
