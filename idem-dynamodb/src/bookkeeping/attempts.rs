//! Counts of attempts, one a key and payload.

use std::time::Duration;

use aws_sdk_dynamodb::types::TransactWriteItem;
use idem_core::{IdempotencyKey, StoreError, hash::PayloadHash, store::ScopeId};

use super::DynamoBookkeeping;
use crate::{
    client::{Change, Conditional},
    clock::now,
    error::DynamoError,
    item::{At, Read, TTL, number},
    record::ttl_after,
};

/// How long a count is kept after its last attempt.
const KEPT: Duration = Duration::from_secs(7 * 24 * 3600);

impl DynamoBookkeeping {
    pub(super) async fn count(
        &self,
        scope: ScopeId,
        key: &IdempotencyKey,
        hash: PayloadHash,
    ) -> Result<u32, StoreError> {
        let doing = "counting an attempt";
        // An answer that is lost counts an attempt that does not run: rather one too many than one that is not counted.
        let change = Change::new("SET last_at = :now, #ttl = :ttl ADD n :one")
            .name("#ttl", TTL)
            .value(":now", number(now()))
            .value(":ttl", ttl_after(KEPT))
            .value(":one", number(1));
        let answer = self.requests.update(&At::attempts(scope, key, hash), &change).await;
        match answer.map_err(|error| error.into_store(doing))? {
            Conditional::Done(Some(item)) => {
                let count = item.needed(item.number("n"), "n")?;
                Ok(u32::try_from(count).unwrap_or(u32::MAX))
            }
            Conditional::Done(None) | Conditional::Failed(_) => {
                Err(StoreError::unavailable(doing, "DynamoDB answered no count"))
            }
        }
    }

    pub(super) async fn uncount(
        &self,
        scope: ScopeId,
        key: &IdempotencyKey,
        hash: PayloadHash,
    ) -> Result<(), StoreError> {
        let change = Change::new("ADD n :less").on("n > :none").value(":less", number(-1)).value(":none", number(0));
        let answer = self.requests.update(&At::attempts(scope, key, hash), &change).await;
        answer.map(drop).map_err(|error| error.into_store("taking an attempt back"))
    }

    pub(super) async fn end_count(
        &self,
        scope: ScopeId,
        key: &IdempotencyKey,
        hash: PayloadHash,
    ) -> Result<(), StoreError> {
        let ended = self.requests.delete(&At::attempts(scope, key, hash)).await;
        ended.map_err(|error| error.into_store("ending a count of attempts"))
    }

    /// The same as a part of a transaction.
    pub(super) fn ends_count(
        &self,
        scope: ScopeId,
        key: Option<&IdempotencyKey>,
        hash: PayloadHash,
    ) -> Result<Option<TransactWriteItem>, DynamoError> {
        key.map(|key| self.requests.delete_action(&At::attempts(scope, key, hash))).transpose()
    }
}
