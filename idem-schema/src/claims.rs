//! The answers to a claim, in the order of its keys.

use std::collections::HashMap;

use idem_core::{Claimed, Recorded};
use uuid::Uuid;

/// A key as the server sees it: its scope and its id.
pub type ClaimedId = (i32, Uuid);

/// One answer a claim, from the keys that the statement inserted.
///
/// They come in the order of the claims. Nothing promises that, so what is out of order is looked up; each inserted row
/// answers for one claim, also where two keys share an id.
#[must_use]
pub fn claim_answers(scopes: &[i32], key_ids: &[Uuid], won: &[ClaimedId]) -> Vec<Claimed> {
    let mut next = won.iter().peekable();
    let asked = || scopes.iter().copied().zip(key_ids.iter().copied());
    let in_order: Vec<bool> = asked().map(|id| next.next_if_eq(&&id).is_some()).collect();
    let inserted = if next.peek().is_none() {
        in_order
    } else {
        let mut left: HashMap<ClaimedId, usize> = HashMap::with_capacity(won.len());
        won.iter().for_each(|id| *left.entry(*id).or_default() += 1);
        let take = |id| left.get_mut(&id).is_some_and(|count| std::mem::replace(count, count.saturating_sub(1)) > 0);
        asked().map(take).collect()
    };
    inserted.into_iter().map(|inserted| if inserted { Claimed::Inserted } else { Claimed::NotInserted }).collect()
}

/// Puts the records that were found into the order of the claims.
#[must_use]
pub fn in_claim_order(scopes: &[i32], key_ids: &[Uuid], found: Vec<(ClaimedId, Recorded)>) -> Vec<Option<Recorded>> {
    let found: HashMap<ClaimedId, Recorded> = found.into_iter().collect();
    scopes.iter().zip(key_ids).map(|(scope, key_id)| found.get(&(*scope, *key_id)).cloned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inserted(asked: &[ClaimedId], won: &[ClaimedId]) -> Vec<bool> {
        let (scopes, ids): (Vec<i32>, Vec<Uuid>) = asked.iter().copied().unzip();
        claim_answers(&scopes, &ids, won).into_iter().map(|answer| answer == Claimed::Inserted).collect()
    }

    #[test]
    fn every_claim_has_its_own_answer_in_any_order() {
        let [a, b, c] = [1, 2, 3].map(|n| (1, Uuid::from_u128(n)));
        assert_eq!(inserted(&[a, b, c], &[a, c]), [true, false, true]);
        assert_eq!(inserted(&[a, b, c], &[c, a]), [true, false, true]);
        assert_eq!(inserted(&[a, b, c], &[]), [false, false, false]);
        assert_eq!(inserted(&[a, a, b], &[b, a]), [true, false, true], "one row answers for one of two equal ids");
        assert_eq!(inserted(&[a, a], &[a]), [true, false]);
    }
}
