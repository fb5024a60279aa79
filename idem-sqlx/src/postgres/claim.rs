//! The arrays of a claim, and its answer.

use idem_core::{
    Claim, HashRuleId, IdempotencyKey, PayloadHash, Recorded, Retention, RunId, ScopeId, StoreError, Uuid,
};
use idem_schema::ClaimedId;
use sqlx::{Postgres, postgres::PgArguments, postgres::PgRow, query::Query};

use super::{error, microseconds};

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

/// The record of a row of `read`, with the id it was found under.
pub(super) fn recorded(row: &PgRow) -> Result<(ClaimedId, Recorded), StoreError> {
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

/// The scope of an interned consumer.
pub(super) fn scope(row: &PgRow, column: &str) -> Result<ScopeId, StoreError> {
    Ok(ScopeId(error::get(row, column)?))
}
