//! What operators do to the record of a key.

use idem_core::{
    IdempotencyKey, Store as _, StoreError,
    store::{AuditEntry, Bookkeeping as _, ScopeId},
};

use crate::{
    client::{Change, Conditional},
    item::{At, number, text},
    record::State,
    store::DynamoStore,
};

impl DynamoStore {
    /// Forgets the record of a key, so that its message takes effect again, and empties the caches of committed keys. The record's result
    /// goes with it. Answers whether there was a record. `by` is written to the audit trail.
    ///
    /// # Errors
    /// Those of DynamoDB. The call may be repeated.
    pub async fn forget(&self, scope: ScopeId, key: &IdempotencyKey, by: &str) -> Result<bool, StoreError> {
        // The item stays for its epoch, as that of a claim that was given up.
        let change = Change::new("SET st = :a, tok = :f, ep = ep + :one REMOVE h, hr, #key, #by, #at, x, res")
            .on("st = :c")
            .name("#key", "key")
            .name("#by", "by")
            .name("#at", "at")
            .value(":a", text(State::GivenUp.as_str()))
            .value(":c", text(State::Done.as_str()))
            .value(":f", text("forgotten"))
            .value(":one", number(1));
        self.change(scope, key, &change, "forget", by).await
    }

    /// Erases the text of a key and the body of its result, for privacy. Its messages stay duplicates, by the id of the key. Answers whether
    /// there was a record. `by` is written to the audit trail, without the key.
    ///
    /// # Errors
    /// Those of DynamoDB. The call may be repeated.
    pub async fn erase(&self, scope: ScopeId, key: &IdempotencyKey, by: &str) -> Result<bool, StoreError> {
        let erased = Change::new("SET res.gone = :gone REMOVE #key, res.b, res.hd, res.t, res.r")
            .on("st = :c AND attribute_exists(res)")
            .name("#key", "key")
            .value(":c", text(State::Done.as_str()))
            .value(":gone", text("erased"));
        if self.change(scope, key, &erased, "erase", by).await? {
            return Ok(true);
        }
        let erased =
            Change::new("REMOVE #key").on("st = :c").name("#key", "key").value(":c", text(State::Done.as_str()));
        self.change(scope, key, &erased, "erase", by).await
    }

    async fn change(
        &self,
        scope: ScopeId,
        key: &IdempotencyKey,
        change: &Change,
        action: &'static str,
        by: &str,
    ) -> Result<bool, StoreError> {
        let changed = self.requests.update(&At::record(scope, key), change).await;
        let changed = changed.map_err(|error| error.into_store("changing a record"))?;
        // Also where nothing was there: an earlier call may have ended before this.
        self.bookkeeping().raise_epoch(scope).await?;
        if let Conditional::Failed(_) = changed {
            return Ok(false);
        }
        let key = (action == "forget").then(|| key.clone());
        let line = AuditEntry::new(by.to_owned(), action, scope, "by an operator".to_owned()).key(key);
        self.bookkeeping().audit(&line).await?;
        Ok(true)
    }
}
