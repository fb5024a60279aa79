//! The answers to a claim, in the order of its keys.

use std::collections::HashMap;

use idem_core::{
    IdempotencyKey, StoreError,
    hash::PayloadHash,
    message::OrderingKey,
    store::{Ahead, Claim, Claimed, Found, HashRuleId, Recorded, RunId, ScopeId},
};
use uuid::Uuid;

use crate::{
    run::{
        outbox::results::kept_beside,
        row::{Row, retention},
    },
    text::key_id::{ClaimedId, key_id},
};

/// The ids of the keys, in their order: the consumers and the key ids.
#[must_use]
pub fn claimed_ids(claims: &[Claim]) -> (Vec<i32>, Vec<Uuid>) {
    claims.iter().map(|claim| (claim.scope.0, key_id(claim.key.as_str()))).unzip()
}

/// The claim's columns beside the ids.
#[derive(Debug)]
pub struct ClaimColumns<'c> {
    /// `text[]`.
    pub keys: Vec<&'c str>,
    /// `bytea[]`.
    pub hashes: Vec<&'c [u8]>,
    /// `int4[]`.
    pub rules: Vec<i32>,
    /// `int8[]`.
    pub retentions: Vec<Option<i64>>,
}

impl<'c> ClaimColumns<'c> {
    /// The columns of these claims, in their order.
    #[must_use]
    pub fn of(claims: &'c [Claim]) -> Self {
        Self {
            keys: claims.iter().map(|claim| claim.key.as_str()).collect(),
            hashes: claims.iter().map(|claim| claim.hash.as_bytes().as_slice()).collect(),
            rules: claims.iter().map(|claim| claim.hash_rule.0).collect(),
            retentions: claims.iter().map(|claim| retention(claim.retention)).collect(),
        }
    }
}

/// The parameters of [`rows_ahead`](crate::PostgresStatements::rows_ahead).
#[must_use]
pub fn ordering_keys(keys: &[(ScopeId, OrderingKey)]) -> (Vec<i32>, Vec<&[u8]>) {
    keys.iter().map(|(scope, key)| (scope.0, key.as_bytes())).unzip()
}

/// Its answer.
#[must_use]
pub fn rows_ahead(answers: Vec<i32>) -> Vec<Ahead> {
    let ahead = |answer| match answer {
        0 => Ahead::Nothing,
        1 => Ahead::Runs,
        _ => Ahead::Waits,
    };
    answers.into_iter().map(ahead).collect()
}

/// The record of a row of [`read`](crate::PostgresStatements::read) that answers this claim.
fn recorded(row: &Row, claim: &Claim) -> Result<Recorded, StoreError> {
    let (key, hash) = key_and_hash(row.get("idempotency_key")?, row.get("payload_hash")?, claim);
    Ok(Recorded::new(
        key,
        hash,
        HashRuleId(row.get("hash_id")?),
        row.instant("processed_at")?,
        RunId(row.get("processed_by")?),
        row.optional_instant("expires_at")?,
    ))
}

/// The key and the hash of a record. Where one of them is damaged, by something else that writes to the table, it is the record of no claim: its
/// message fails as one whose id another key has, and those beside it do not (S61).
#[must_use]
pub fn key_and_hash(key: &str, hash: &[u8], claim: &Claim) -> (IdempotencyKey, PayloadHash) {
    let key = match key {
        // It was erased.
        "" => Some(claim.key.clone()),
        key => IdempotencyKey::new(key).ok(),
    };
    let intact = key.zip(hash.try_into().ok().map(PayloadHash::from_bytes));
    intact.unwrap_or_else(|| {
        let none = IdempotencyKey::new("(a damaged record)").unwrap_or_else(|_| claim.key.clone());
        (none, PayloadHash::from_bytes([0; 32]))
    })
}

/// One answer a claim, from the keys that the statement inserted.
///
/// They come in the order of the claims. Nothing promises that, so a row that is out of order is looked up; each
/// inserted row answers for one claim, also where two keys share an id.
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

/// The records that [`read`](crate::PostgresStatements::read) has found, in the order of the claims.
///
/// # Errors
/// [`StoreError::Schema`] where a row was not written by idem.
pub fn in_claim_order(claims: &[Claim], key_ids: &[Uuid], found: &[Row]) -> Result<Vec<Option<Recorded>>, StoreError> {
    each(claims, key_ids, found, recorded)
}

/// The records and their results that [`look_up`](crate::PostgresStatements::look_up) has found, in the order of the claims.
///
/// # Errors
/// As for [`in_claim_order`].
pub fn found_in_claim_order(
    claims: &[Claim],
    key_ids: &[Uuid],
    found: &[Row],
) -> Result<Vec<Option<Found>>, StoreError> {
    each(claims, key_ids, found, |row, claim| Ok(Found::new(recorded(row, claim)?, kept_beside(row)?)))
}

fn each<T>(
    claims: &[Claim],
    key_ids: &[Uuid],
    found: &[Row],
    read: impl Fn(&Row, &Claim) -> Result<T, StoreError>,
) -> Result<Vec<Option<T>>, StoreError> {
    let id = |row: &Row| Ok::<ClaimedId, StoreError>((row.get("consumer")?, row.get("key_id")?));
    let found: HashMap<ClaimedId, &Row> =
        found.iter().map(|row| Ok((id(row)?, row))).collect::<Result<_, StoreError>>()?;
    let answer =
        |(claim, key_id): (&Claim, &Uuid)| found.get(&(claim.scope.0, *key_id)).map(|row| read(row, claim)).transpose();
    claims.iter().zip(key_ids).map(answer).collect()
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
