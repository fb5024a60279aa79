//! The parameters of a claim, and the records that a read finds.

use idem_core::{
    Claim, HashRuleId, IdempotencyKey, PayloadHash, Recorded, Retention, RunId, StoreError, UnitOptions, Uuid,
};
use idem_schema::ClaimedId;
use tokio_postgres::{
    Row,
    types::{ToSql, Type},
};

use crate::{
    PostgresLane,
    error::{self, get},
    store::microseconds,
};

/// The ids of the keys, in their order: the consumers and the key ids.
pub(crate) fn ids(claims: &[Claim]) -> (Vec<i32>, Vec<Uuid>) {
    claims.iter().map(|claim| (claim.scope.0, idem_schema::key_id(claim.key.as_str()))).unzip()
}

/// What the claim's statement takes beside the ids.
pub(crate) struct Columns<'c> {
    keys: Vec<&'c str>,
    hashes: Vec<&'c [u8]>,
    rules: Vec<i32>,
    retentions: Vec<Option<i64>>,
}

impl<'c> Columns<'c> {
    pub(crate) fn of(claims: &'c [Claim]) -> Self {
        Self {
            keys: claims.iter().map(|claim| claim.key.as_str()).collect(),
            hashes: claims.iter().map(|claim| claim.hash.as_bytes().as_slice()).collect(),
            rules: claims.iter().map(|claim| claim.hash_rule.0).collect(),
            retentions: claims.iter().map(|claim| retention(claim.retention)).collect(),
        }
    }

    /// All ten parameters.
    pub(crate) fn parameters<'p>(
        &'p self,
        scopes: &'p Vec<i32>,
        key_ids: &'p Vec<Uuid>,
        options: &'p UnitOptions,
        lane: &'p PostgresLane,
    ) -> [(&'p (dyn ToSql + Sync), Type); 10] {
        [
            (scopes, Type::INT4_ARRAY),
            (key_ids, Type::UUID_ARRAY),
            (&self.keys, Type::TEXT_ARRAY),
            (&self.hashes, Type::BYTEA_ARRAY),
            (&self.rules, Type::INT4_ARRAY),
            (&self.retentions, Type::INT8_ARRAY),
            (&options.run.0, Type::INT4),
            (&options.lane, Type::INT4),
            (&lane.lock_timeout, Type::TEXT),
            (&lane.statement_timeout, Type::TEXT),
        ]
    }
}

/// A retention as a parameter: NULL keeps for ever.
pub(crate) fn retention(retention: Retention) -> Option<i64> {
    match retention {
        Retention::For(time) => microseconds(time),
        Retention::Forever => None,
    }
}

/// The record of a row of `read`, with the id it was found under.
pub(crate) fn recorded(row: &Row) -> Result<(ClaimedId, Recorded), StoreError> {
    let id = (get(row, "consumer")?, get(row, "key_id")?);
    let key: &str = get(row, "idempotency_key")?;
    let hash: &[u8] = get(row, "payload_hash")?;
    let damaged = |what: &str| StoreError::Schema {
        problem: format!("a row of processed_messages holds a damaged {what}"),
        cure: "Restore the table from a backup: somebody else has written to it".to_owned(),
    };
    let recorded = Recorded {
        key: IdempotencyKey::new(key).map_err(|_| damaged("idempotency_key"))?,
        hash: PayloadHash::from_bytes(hash.try_into().map_err(|_| damaged("payload_hash"))?),
        hash_rule: HashRuleId(get(row, "hash_id")?),
        processed_at: error::instant(row, "processed_at")?,
        processed_by: RunId(get(row, "processed_by")?),
        expires_at: error::optional_instant(row, "expires_at")?,
    };
    Ok((id, recorded))
}
