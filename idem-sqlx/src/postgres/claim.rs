//! The arrays of a claim, and its answer.

use std::collections::HashMap;

use idem_core::{
    Claim, Claimed, HashRuleId, IdempotencyKey, PayloadHash, Recorded, Retention, RunId, ScopeId, StoreError, Uuid,
};
use sqlx::{Postgres, postgres::PgArguments, postgres::PgRow, query::Query};

use super::{error, microseconds};

/// A key as the server sees it.
pub(super) type Id = (i32, Uuid);

/// The ids of the keys, in their order: the consumers and the key ids.
pub(super) fn ids(claims: &[Claim]) -> (Vec<i32>, Vec<Uuid>) {
    claims.iter().map(|claim| (claim.scope.0, idem_schema::key_id(claim.key.as_str()))).unzip()
}

/// Binds the first six parameters of the claim.
pub(super) fn bind<'q>(
    query: Query<'q, Postgres, PgArguments>,
    claims: &'q [Claim],
    scopes: &'q [i32],
    key_ids: &'q [Uuid],
) -> Query<'q, Postgres, PgArguments> {
    let keys: Vec<&str> = claims.iter().map(|claim| claim.key.as_str()).collect();
    let hashes: Vec<&[u8]> = claims.iter().map(|claim| claim.hash.as_bytes().as_slice()).collect();
    let rules: Vec<i32> = claims.iter().map(|claim| claim.hash_rule.0).collect();
    let retentions: Vec<Option<i64>> = claims.iter().map(|claim| retention(claim.retention)).collect();
    query.bind(scopes).bind(key_ids).bind(keys).bind(hashes).bind(rules).bind(retentions)
}

/// A retention as a parameter: NULL keeps for ever.
pub(super) fn retention(retention: Retention) -> Option<i64> {
    match retention {
        Retention::For(time) => microseconds(time),
        Retention::Forever => None,
    }
}

/// One answer a claim, from the keys that the statement inserted.
///
/// They come in the order of the claims. Nothing promises that, so what is out of order is looked up; each inserted row
/// answers for one claim, also where two keys share an id.
pub(super) fn answers(scopes: &[i32], key_ids: &[Uuid], won: &[Id]) -> Vec<Claimed> {
    let mut next = won.iter().peekable();
    let asked = || scopes.iter().copied().zip(key_ids.iter().copied());
    let in_order: Vec<bool> = asked().map(|id| next.next_if_eq(&&id).is_some()).collect();
    let inserted = if next.peek().is_none() {
        in_order
    } else {
        let mut left: HashMap<Id, usize> = HashMap::with_capacity(won.len());
        won.iter().for_each(|id| *left.entry(*id).or_default() += 1);
        let take =
            |id: Id| left.get_mut(&id).is_some_and(|count| std::mem::replace(count, count.saturating_sub(1)) > 0);
        asked().map(take).collect()
    };
    inserted.into_iter().map(|inserted| if inserted { Claimed::Inserted } else { Claimed::NotInserted }).collect()
}

/// The record of a row of `read`, with the id it was found under.
pub(super) fn recorded(row: &PgRow) -> Result<(Id, Recorded), StoreError> {
    let id = (error::get(row, "consumer")?, error::get(row, "key_id")?);
    let key: &str = error::get(row, "idempotency_key")?;
    let hash: &[u8] = error::get(row, "payload_hash")?;
    let damaged = |what: &str| StoreError::Schema {
        problem: format!("a row of processed_messages holds a damaged {what}"),
        cure: "Restore the table from a backup: somebody else has written to it".to_owned(),
    };
    let recorded = Recorded {
        key: IdempotencyKey::new(key).map_err(|_| damaged("idempotency_key"))?,
        hash: PayloadHash::from_bytes(hash.try_into().map_err(|_| damaged("payload_hash"))?),
        hash_rule: HashRuleId(error::get(row, "hash_id")?),
        processed_at: error::instant(row, "processed_at")?,
        processed_by: RunId(error::get(row, "processed_by")?),
        expires_at: error::optional_instant(row, "expires_at")?,
    };
    Ok((id, recorded))
}

/// Puts the records that were found into the order of the claims.
pub(super) fn in_order(scopes: &[i32], key_ids: &[Uuid], found: Vec<(Id, Recorded)>) -> Vec<Option<Recorded>> {
    let found: HashMap<Id, Recorded> = found.into_iter().collect();
    scopes.iter().zip(key_ids).map(|(scope, key_id)| found.get(&(*scope, *key_id)).cloned()).collect()
}

/// The scope of an interned consumer.
pub(super) fn scope(row: &PgRow, column: &str) -> Result<ScopeId, StoreError> {
    Ok(ScopeId(error::get(row, column)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inserted(asked: &[Id], won: &[Id]) -> Vec<bool> {
        let (scopes, ids): (Vec<i32>, Vec<Uuid>) = asked.iter().copied().unzip();
        answers(&scopes, &ids, won).into_iter().map(|answer| answer == Claimed::Inserted).collect()
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
