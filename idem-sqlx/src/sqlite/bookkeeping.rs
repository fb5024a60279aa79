//! What the store does outside of units of work.
//!
//! Reading never waits: WAL mode shows the last commit. A write waits for its turn behind the units of this process, at
//! most [`SqliteOptions::bookkeeping_timeout`](super::SqliteOptions::bookkeeping_timeout), and then as long for other
//! processes. So a handler must not call these for its own store: it would wait for itself until then.

use async_trait::async_trait;
use idem_core::{
    AuditEntry, Bookkeeping, ConsumerName, Control, ControlState, DeadLetter, DeadLetterId, IdempotencyKey,
    ParkedDeadLetter, PayloadHash, Registered, Registration, Replay, ReplayEnd, RunId, ScopeId, StoreError,
    StoreIdentity, Tenant,
};
use sqlx::Row;

use super::{Sqlite, clock};

#[async_trait]
impl Bookkeeping for Sqlite {
    async fn verify(&self) -> Result<(), StoreError> {
        self.verify_schema().await
    }

    async fn register(&self, registration: &Registration) -> Result<Registered, StoreError> {
        self.register_consumer(registration).await
    }

    async fn scope(&self, consumer: &ConsumerName, tenant: &Tenant) -> Result<ScopeId, StoreError> {
        self.intern_scope(consumer, tenant).await
    }

    async fn count_attempt(&self, scope: ScopeId, key: &IdempotencyKey, hash: PayloadHash) -> Result<u32, StoreError> {
        let mut connection = self.connections.write("counting an attempt").await?;
        let failed = connection.failed();
        let attempts: i64 = sqlx::query_scalar(self.statements.count_attempt())
            .bind(scope.0)
            .bind(key_id(key))
            .bind(key.as_str())
            .bind(hash.as_bytes().as_slice())
            .bind(clock::now())
            .fetch_one(connection.get()?)
            .await
            .map_err(failed)?;
        connection.done();
        Ok(u32::try_from(attempts).unwrap_or(u32::MAX))
    }

    async fn uncount_attempt(&self, scope: ScopeId, key: &IdempotencyKey) -> Result<(), StoreError> {
        let mut connection = self.connections.write("taking an attempt back").await?;
        let failed = connection.failed();
        let statement = sqlx::query(self.statements.uncount_attempt()).bind(scope.0).bind(key_id(key));
        statement.execute(connection.get()?).await.map_err(failed)?;
        connection.done();
        Ok(())
    }

    async fn park(&self, dead_letter: &DeadLetter) -> Result<ParkedDeadLetter, StoreError> {
        self.park_dead_letter(dead_letter).await
    }

    async fn mark_published(&self, id: DeadLetterId) -> Result<(), StoreError> {
        let mut connection = self.connections.write("noting that a dead letter was published").await?;
        let failed = connection.failed();
        let statement = sqlx::query(self.statements.mark_published()).bind(id.0).bind(clock::now());
        statement.execute(connection.get()?).await.map_err(failed)?;
        connection.done();
        Ok(())
    }

    async fn dead_letters(&self, consumer: &ConsumerName, max: u32) -> Result<Vec<ParkedDeadLetter>, StoreError> {
        self.list_dead_letters(consumer, max).await
    }

    async fn request_replay(&self, ids: &[DeadLetterId]) -> Result<u64, StoreError> {
        self.ask_for_replay(ids).await
    }

    async fn take_replays(&self, consumer: &ConsumerName, run: RunId, max: u32) -> Result<Vec<Replay>, StoreError> {
        self.take_asked_replays(consumer, run, max).await
    }

    async fn finish_replay(&self, id: DeadLetterId, end: ReplayEnd) -> Result<(), StoreError> {
        self.end_replay(id, end).await
    }

    async fn control(&self, scope: ScopeId) -> Result<Control, StoreError> {
        let mut connection = self.connections.read("reading the controls").await?;
        let failed = connection.failed();
        let statement = sqlx::query(self.statements.control()).bind(scope.0);
        let row = statement.fetch_optional(connection.get()?).await.map_err(&failed)?;
        connection.done();
        let now = clock::instant(clock::now());
        // One file, which nobody fails over.
        let identity = StoreIdentity::default();
        let (by, reason) = (String::new(), String::new());
        let running = Control { state: ControlState::Running, by, reason, epoch: 0, identity, now };
        let Some(row) = row else { return Ok(running) };
        let epoch = row.try_get("epoch").map_err(&failed)?;
        let state = match row.try_get("state").map_err(&failed)? {
            "paused" => ControlState::Paused,
            "halted" => ControlState::Halted,
            // The column admits nothing else than these and `running`.
            _ => return Ok(Control { epoch, ..running }),
        };
        let by = row.try_get("by").map_err(&failed)?;
        let reason = row.try_get("reason").map_err(&failed)?;
        Ok(Control { state, by, reason, epoch, ..running })
    }

    async fn set_control(&self, scope: ScopeId, state: ControlState, by: &str, reason: &str) -> Result<(), StoreError> {
        let state = match state {
            ControlState::Running => "running",
            ControlState::Paused => "paused",
            ControlState::Halted => "halted",
        };
        let mut connection = self.connections.write("setting the controls").await?;
        let failed = connection.failed();
        let statement = sqlx::query(self.statements.set_control()).bind(scope.0).bind(state).bind(by).bind(reason);
        statement.bind(clock::now()).execute(connection.get()?).await.map_err(failed)?;
        connection.done();
        Ok(())
    }

    async fn audit(&self, entry: &AuditEntry) -> Result<(), StoreError> {
        let mut connection = self.connections.write("writing to the audit trail").await?;
        let failed = connection.failed();
        sqlx::query(self.statements.audit())
            .bind(clock::now())
            .bind(entry.who.as_str())
            .bind(entry.action)
            .bind(entry.scope.0)
            .bind(entry.key.as_ref().map(IdempotencyKey::as_str))
            .bind(entry.details.as_str())
            .execute(connection.get()?)
            .await
            .map_err(failed)?;
        connection.done();
        Ok(())
    }
}

/// The bytes of a key's id, as its column holds them.
pub(super) fn key_id(key: &IdempotencyKey) -> Vec<u8> {
    idem_schema::key_id(key.as_str()).as_bytes().to_vec()
}
