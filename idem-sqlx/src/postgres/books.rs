//! What is done outside of units of work, each as a few short statements on the framework's own connections.

use std::{future::Future, time::Duration};

use async_trait::async_trait;
use idem_core::{
    AuditEntry, Bookkeeping, Cleaned, CleanupStep, ConsumerName, Control, ControlState, DeadLetter, DeadLetterId,
    IdempotencyKey, ParkedDeadLetter, PayloadHash, Registered, Registration, Replay, ReplayEnd, RunId, ScopeId,
    StoreError, Tenant,
};
use idem_schema::key_id;
use sqlx::{
    AssertSqlSafe, PgPool, Postgres as Db,
    pool::PoolConnection,
    postgres::{PgArguments, PgRow},
    query::Query,
};

use super::{Postgres, claim, error, letters, microseconds};

/// A statement with its parameters, built anew for each try.
pub(super) type Statement<'q> = Query<'q, Db, PgArguments>;

/// How often a statement runs again that another transaction got in the way of.
const CONTENDED_MAX: usize = 3;

/// After this time another worker may take a replay over whose taker never finished it.
const TAKEN_FOR: Duration = Duration::from_secs(300);

/// A connection of a pool that goes back only when its work is done: what a dropped call leaves is closed (A15).
struct Borrowed(PoolConnection<Db>, bool);

impl Drop for Borrowed {
    fn drop(&mut self) {
        if !self.1 {
            self.0.close_on_drop();
        }
    }
}

impl Postgres {
    /// Waits for the server at most as long as was set.
    pub(super) async fn within<T>(
        &self,
        doing: &'static str,
        call: impl Future<Output = Result<T, sqlx::Error>>,
    ) -> Result<T, StoreError> {
        match tokio::time::timeout(self.shared.options.answer_timeout, call).await {
            Ok(answer) => answer.map_err(|source| error::store(doing, source)),
            Err(elapsed) => Err(StoreError::Unavailable { doing, source: Box::new(elapsed) }),
        }
    }

    /// Runs one statement in a transaction of its own and answers its rows.
    pub(super) async fn rows<'q>(
        &self,
        doing: &'static str,
        statement: impl Fn() -> Statement<'q> + Send + Sync,
    ) -> Result<Vec<PgRow>, StoreError> {
        self.rows_on(&self.shared.framework, doing, statement).await
    }

    async fn rows_on<'q>(
        &self,
        pool: &PgPool,
        doing: &'static str,
        statement: impl Fn() -> Statement<'q> + Send + Sync,
    ) -> Result<Vec<PgRow>, StoreError> {
        let mut tried = 1;
        loop {
            match self.within(doing, self.once(pool, statement())).await {
                Err(StoreError::Contended { .. }) if tried < CONTENDED_MAX => tried += 1,
                answer => return answer,
            }
        }
    }

    async fn once(&self, pool: &PgPool, statement: Statement<'_>) -> Result<Vec<PgRow>, sqlx::Error> {
        let mut borrowed = Borrowed(pool.acquire().await?, false);
        let connection = &mut *borrowed.0;
        let rows = if self.is_named() {
            statement.fetch_all(&mut *connection).await
        } else {
            // sqlx prepares and runs in two steps, between which a pooler may change the server connection unless a
            // transaction holds it. It is no transaction of sqlx's, so nothing is left to a destructor.
            sqlx::raw_sql("BEGIN ISOLATION LEVEL READ COMMITTED").execute(&mut *connection).await?;
            let rows = statement.persistent(false).fetch_all(&mut *connection).await;
            let end = if rows.is_ok() { "COMMIT" } else { "ROLLBACK" };
            sqlx::raw_sql(end).execute(&mut *connection).await?;
            rows
        };
        // After an error of the server's the connection is sound; after any other it is closed. A stale plan would fail
        // again on it.
        borrowed.1 = match &rows {
            Ok(_) => true,
            Err(sqlx::Error::Database(error)) => error.code().as_deref() != Some("0A000"),
            Err(_) => false,
        };
        rows
    }

    /// The statement of one of the shared texts.
    pub(super) fn statement<'q>(&self, text: &std::sync::Arc<str>) -> Statement<'q> {
        sqlx::query(AssertSqlSafe(std::sync::Arc::clone(text)))
    }

    /// Removes rows by one of the cleanup statements.
    async fn delete(&self, statement: impl Fn() -> Statement<'static> + Send + Sync) -> Result<u64, StoreError> {
        let pool = self.shared.cleaner.as_ref().unwrap_or(&self.shared.framework);
        // A plan that is cached while the table is tiny would go on to sort the whole table.
        let rows = self.rows_on(pool, "cleaning up", || statement().persistent(false)).await;
        let rows = rows.map_err(no_right_to_delete)?;
        let deleted: i64 = rows.first().map_or(Ok(0), |row| error::get(row, "deleted"))?;
        Ok(u64::try_from(deleted).unwrap_or(0))
    }
}

/// A worker's role has no DELETE (S8): cleanup is somebody else's, and trying again does not change that.
fn no_right_to_delete(error: StoreError) -> StoreError {
    let StoreError::Unavailable { source, .. } = &error else { return error };
    let denied = source.downcast_ref::<sqlx::Error>().and_then(sqlx::Error::as_database_error);
    if denied.and_then(sqlx::error::DatabaseError::code).as_deref() != Some("42501") {
        return error;
    }
    StoreError::Refused {
        problem: "this role may not delete expired records".to_owned(),
        cure:
            "Give the worker a login of the role idem_cleanup (PostgresOptions::cleanup_with), or run `idem cleanup` \
               elsewhere and turn the worker's off"
                .to_owned(),
    }
}

/// The only row of a statement that always answers one.
pub(super) fn only<'r>(rows: &'r [PgRow], doing: &'static str) -> Result<&'r PgRow, StoreError> {
    rows.first().ok_or_else(|| error::store(doing, sqlx::Error::RowNotFound))
}

#[async_trait]
impl Bookkeeping for Postgres {
    async fn verify(&self) -> Result<(), StoreError> {
        self.verify_all().await.map_err(|error| error::refused_login(&error).unwrap_or(error))
    }

    async fn register(&self, registration: &Registration) -> Result<Registered, StoreError> {
        self.register_consumer(registration).await
    }

    async fn scope(&self, consumer: &ConsumerName, tenant: &Tenant) -> Result<ScopeId, StoreError> {
        self.intern_tenant(consumer, tenant).await
    }

    async fn count_attempt(&self, scope: ScopeId, key: &IdempotencyKey, hash: PayloadHash) -> Result<u32, StoreError> {
        let doing = "counting an attempt";
        let count = || {
            let query = self.statement(&self.sql().count_attempt).bind(scope.0).bind(key_id(key.as_str()));
            query.bind(key.as_str()).bind(hash.as_bytes().as_slice())
        };
        let rows = self.rows(doing, count).await?;
        let attempts: i32 = error::get(only(&rows, doing)?, "attempts")?;
        Ok(u32::try_from(attempts).unwrap_or(0))
    }

    async fn uncount_attempt(&self, scope: ScopeId, key: &IdempotencyKey) -> Result<(), StoreError> {
        let uncount = || self.statement(&self.sql().uncount_attempt).bind(scope.0).bind(key_id(key.as_str()));
        self.rows("taking an attempt back", uncount).await.map(|_| ())
    }

    async fn park(&self, dead_letter: &DeadLetter) -> Result<ParkedDeadLetter, StoreError> {
        self.park_letter(dead_letter).await
    }

    async fn mark_published(&self, id: DeadLetterId) -> Result<(), StoreError> {
        let mark = || self.statement(&self.sql().mark_published).bind(id.0);
        self.rows("marking a dead letter", mark).await.map(|_| ())
    }

    async fn dead_letters(&self, consumer: &ConsumerName, max: u32) -> Result<Vec<ParkedDeadLetter>, StoreError> {
        let list = || self.statement(&self.sql().list_dead_letters).bind(consumer.as_str()).bind(i64::from(max));
        let rows = self.rows("reading dead letters", list).await?;
        rows.iter().map(letters::parked).collect()
    }

    async fn request_replay(&self, ids: &[DeadLetterId]) -> Result<u64, StoreError> {
        let doing = "requesting a replay";
        let ids: Vec<i64> = ids.iter().map(|id| id.0).collect();
        let rows = self.rows(doing, || self.statement(&self.sql().request_replays).bind(&ids)).await?;
        let marked: i64 = error::get(only(&rows, doing)?, "marked")?;
        Ok(u64::try_from(marked).unwrap_or(0))
    }

    async fn take_replays(&self, consumer: &ConsumerName, run: RunId, max: u32) -> Result<Vec<Replay>, StoreError> {
        let take = || {
            let query = self.statement(&self.sql().take_replays).bind(consumer.as_str()).bind(run.0);
            query.bind(i64::from(max)).bind(microseconds(TAKEN_FOR))
        };
        let rows = self.rows("taking replays", take).await?;
        let mut replays = rows.iter().map(letters::replay).collect::<Result<Vec<_>, _>>()?;
        replays.sort_by_key(|replay| replay.id);
        Ok(replays)
    }

    async fn finish_replay(&self, id: DeadLetterId, end: ReplayEnd) -> Result<(), StoreError> {
        let outcome = match end {
            ReplayEnd::Processed => Some("processed".to_owned()),
            ReplayEnd::Duplicate => Some("duplicate".to_owned()),
            ReplayEnd::Failed { reason, error } => Some(letters::storable(&format!("failed: {reason}: {error}"))),
            ReplayEnd::Released => None,
        };
        let finish = || match &outcome {
            Some(outcome) => self.statement(&self.sql().finish_replay).bind(id.0).bind(outcome),
            None => self.statement(&self.sql().release_replay).bind(id.0),
        };
        self.rows("finishing a replay", finish).await.map(|_| ())
    }

    async fn control(&self, scope: ScopeId) -> Result<Control, StoreError> {
        let doing = "reading the controls";
        let rows = self.rows(doing, || self.statement(&self.sql().read_control).bind(scope.0)).await?;
        let row = only(&rows, doing)?;
        let state: &str = error::get(row, "state")?;
        Ok(Control {
            // The table's check lets no other text in; what is not understood is better halted than overrun.
            state: match state {
                "running" => ControlState::Running,
                "paused" => ControlState::Paused,
                _ => ControlState::Halted,
            },
            by: error::get(row, "by")?,
            reason: error::get(row, "reason")?,
            epoch: error::get(row, "epoch")?,
            now: error::instant(row, "server_now")?,
        })
    }

    async fn set_control(&self, scope: ScopeId, state: ControlState, by: &str, reason: &str) -> Result<(), StoreError> {
        let (text, by, reason) = match state {
            ControlState::Running => ("running", String::new(), String::new()),
            ControlState::Paused => ("paused", letters::storable(by), letters::storable(reason)),
            ControlState::Halted => ("halted", letters::storable(by), letters::storable(reason)),
        };
        let write = || self.statement(&self.sql().write_control).bind(scope.0).bind(text).bind(&by).bind(&reason);
        self.rows("setting the controls", write).await.map(|_| ())
    }

    async fn audit(&self, entry: &AuditEntry) -> Result<(), StoreError> {
        let (who, details) = (letters::storable(&entry.who), letters::storable(&entry.details));
        let insert = || {
            let query = self.statement(&self.sql().insert_audit).bind(&who).bind(entry.action).bind(entry.scope.0);
            query.bind(entry.key.as_ref().map(IdempotencyKey::as_str)).bind(&details)
        };
        self.rows("writing the audit trail", insert).await.map(|_| ())
    }

    async fn cleanup(&self, step: CleanupStep) -> Result<Cleaned, StoreError> {
        let sql = self.sql();
        let rows_max = i64::from(step.rows_max);
        let records = self.delete(|| self.statement(&sql.delete_expired).bind(rows_max)).await?;
        let mut others = 0;
        for (text, kept) in [
            (&sql.delete_units, step.units_kept),
            (&sql.delete_attempts, step.failures_kept),
            (&sql.delete_dead_letters, step.failures_kept),
        ] {
            // What is kept for longer than an int8 of microseconds tells is kept.
            let Some(kept) = microseconds(kept) else { continue };
            others += self.delete(|| self.statement(text).bind(kept).bind(rows_max)).await?;
        }
        Ok(Cleaned { records, others })
    }
}

/// The scope that a row names.
pub(super) fn scope_of(row: &PgRow, column: &str) -> Result<ScopeId, StoreError> {
    claim::scope(row, column)
}
