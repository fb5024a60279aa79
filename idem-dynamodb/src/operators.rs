//! What operators do to the record of a key, and what they read.

mod letters;
mod lists;

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

pub use self::{
    letters::HeldLetter,
    lists::{HeldKey, HeldRecord, ListedConsumer, TrailLine},
};

impl DynamoStore {
    /// Forgets the record of a key, so that its message takes effect again, and empties the caches of committed keys. The record's result
    /// goes with it. Answers whether there was a record. `by` and `why` are written to the audit trail.
    ///
    /// # Errors
    /// Those of DynamoDB. The call may be repeated.
    pub async fn forget(&self, scope: ScopeId, key: &IdempotencyKey, by: &str, why: &str) -> Result<bool, StoreError> {
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
        let forgotten = self.change(scope, key, &change).await?;
        if forgotten {
            self.note(scope, Some(key.clone()), "forget", by, why.to_owned()).await?;
        }
        Ok(forgotten)
    }

    /// Erases all that is kept of a key, for privacy: its text in the record and in the audit trail, the body of its result, and the
    /// payloads, headers and errors of its dead letters, which are never replayed then. Its messages stay duplicates, by the id of the
    /// key. Answers how many items held it. `by` and `why` are written to the audit trail, without the key.
    ///
    /// # Errors
    /// Those of DynamoDB. The call may be repeated.
    pub async fn erase(&self, scope: ScopeId, key: &IdempotencyKey, by: &str, why: &str) -> Result<u64, StoreError> {
        let is_done = |change: Change| change.name("#key", "key").value(":c", text(State::Done.as_str()));
        let result = Change::new("SET res.gone = :gone REMOVE #key, res.b, res.hd, res.t, res.r");
        let result = result.on("st = :c AND attribute_exists(res)").value(":gone", text("erased"));
        let alone = Change::new("REMOVE #key").on("st = :c");
        let is_erased =
            self.change(scope, key, &is_done(result)).await? || self.change(scope, key, &is_done(alone)).await?;
        let erased = u64::from(is_erased) + self.erase_traces(scope, key).await?;
        if erased > 0 {
            self.note(scope, None, "erase", by, why.to_owned()).await?;
        }
        Ok(erased)
    }

    async fn note(
        &self,
        scope: ScopeId,
        key: Option<IdempotencyKey>,
        action: &'static str,
        by: &str,
        why: String,
    ) -> Result<(), StoreError> {
        self.bookkeeping().audit(&AuditEntry::new(by.to_owned(), action, scope, why).key(key)).await
    }

    async fn change(&self, scope: ScopeId, key: &IdempotencyKey, change: &Change) -> Result<bool, StoreError> {
        let changed = self.requests.update(&At::record(scope, key), change).await;
        let changed = changed.map_err(|error| error.into_store("changing a record"))?;
        // Also where nothing was there: an earlier call may have ended before this.
        self.bookkeeping().raise_epoch(scope).await?;
        Ok(matches!(changed, Conditional::Done(_)))
    }
}
