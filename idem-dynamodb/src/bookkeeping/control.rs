//! The operators' control of a consumer, and the audit trail.

use std::time::Duration;

use idem_core::{
    StoreError,
    store::{AuditEntry, Control, ControlState, ScopeId, StoreIdentity},
};
use tokio::time::Instant;

use super::DynamoBookkeeping;
use crate::{
    client::{Change, token},
    clock::{now, time},
    copies::renew,
    item::{At, Item, Read, TTL, number, storable, text},
    record::ttl_after,
    table::describe,
};

/// How long the table's identity is believed. DynamoDB describes few tables a second.
const IDENTITY_FOR: Duration = Duration::from_secs(30);

/// How long a line of the audit trail is kept.
const AUDIT_KEPT: Duration = Duration::from_secs(365 * 24 * 3600);

impl DynamoBookkeeping {
    pub(super) async fn control_of(&self, scope: ScopeId) -> Result<Control, StoreError> {
        let item = self.requests.get(&At::control(scope)).await;
        let item = item.map_err(|error| error.into_store("reading the controls"))?.unwrap_or_default();
        let state = match item.string("state") {
            Some("paused") => ControlState::Paused,
            Some("halted") => ControlState::Halted,
            Some(_) | None => ControlState::Running,
        };
        let words = |name: &str| item.string(name).unwrap_or_default().to_owned();
        let epoch = item.number("epoch").unwrap_or_default();
        Ok(Control::new(state, words("by"), words("reason"), epoch, self.identity().await?, time(now())))
    }

    /// The id that DynamoDB gives each table, also one that was restored under the same name.
    async fn identity(&self) -> Result<StoreIdentity, StoreError> {
        let known = self.known(|known| known.identity.clone());
        if let Some((at, identity)) = known
            && at.elapsed() < IDENTITY_FOR
        {
            return Ok(identity);
        }
        let table = describe(&self.requests).await.map_err(|error| error.into_store("reading the table's identity"))?;
        let identity = StoreIdentity::new(table.and_then(|table| table.table_id).unwrap_or_default());
        self.known(|known| known.identity = Some((Instant::now(), identity.clone())));
        Ok(identity)
    }

    pub(super) async fn set(
        &self,
        scope: ScopeId,
        state: ControlState,
        by: &str,
        reason: &str,
    ) -> Result<(), StoreError> {
        let (by, reason) = if state == ControlState::Running { ("", "") } else { (by, reason) };
        let change = Change::new("SET #state = :state, #by = :by, reason = :reason, #at = :now")
            .name("#state", "state")
            .name("#by", "by")
            .name("#at", "at")
            .value(":state", text(state.as_str()))
            .value(":by", storable(by))
            .value(":reason", storable(reason))
            .value(":now", number(now()));
        let set = self.requests.update(&At::control(scope), &change).await;
        set.map(drop).map_err(|error| error.into_store("setting the controls"))
    }

    /// Empties the caches of committed keys of the consumer's workers, and ends all copies.
    pub(crate) async fn raise_epoch(&self, scope: ScopeId) -> Result<(), StoreError> {
        let change = Change::new("ADD epoch :one").value(":one", number(1));
        let raised = self.requests.update(&At::control(scope), &change).await;
        raised.map_err(|error| error.into_store("emptying caches"))?;
        renew(&self.requests).await.map_err(|error| error.into_store("emptying caches"))
    }

    pub(crate) async fn note(&self, entry: &AuditEntry) -> Result<(), StoreError> {
        let consumer = match self.consumer_of(entry.scope).await? {
            Some(consumer) => consumer,
            None => format!("scope {}", entry.scope),
        };
        let at = now();
        let mut item = Item::from([
            ("who".to_owned(), storable(&entry.who)),
            ("action".to_owned(), text(entry.action)),
            ("scope".to_owned(), number(entry.scope.0)),
            ("details".to_owned(), storable(&entry.details)),
            ("at".to_owned(), number(at)),
            (TTL.to_owned(), ttl_after(AUDIT_KEPT)),
        ]);
        item.extend(entry.key.as_ref().map(|key| ("key".to_owned(), text(key.as_str()))));
        let line = At::new(format!("audit#{consumer}"), format!("{at:016}#{}", token()));
        let put = self.requests.put(&line, item, None).await;
        put.map(drop).map_err(|error| error.into_store("writing the audit trail"))
    }
}
