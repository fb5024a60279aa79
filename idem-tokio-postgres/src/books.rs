//! What is done outside of units of work, each as a few short statements on the framework's own connections.

use std::{future::Future, time::Duration};

use async_trait::async_trait;
use idem_core::{
    AuditEntry, Bookkeeping, Cleaned, CleanupStep, ConsumerName, Control, ControlState, DeadLetter, DeadLetterId,
    IdempotencyKey, ParkedDeadLetter, PayloadHash, Registered, Registration, Replay, ReplayEnd, RunId, ScopeId,
    StoreError, Tenant,
};
use idem_schema::key_id;
use tokio_postgres::{
    Error, Row,
    error::{Severity, SqlState},
    types::Type,
};

use crate::{
    Postgres,
    error::{self, get},
    letters,
    pool::Pool,
    session::Parameters,
    store::microseconds,
};

/// How often a statement runs again that another transaction got in the way of.
const CONTENDED_MAX: usize = 3;

/// After this time another worker may take a replay over whose taker never finished it.
const TAKEN_FOR: Duration = Duration::from_secs(300);

impl Postgres {
    /// Waits for the server at most as long as was set.
    pub(crate) async fn within<T>(
        &self,
        doing: &'static str,
        call: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, StoreError> {
        match tokio::time::timeout(self.shared.options.answer_timeout, call).await {
            Ok(answer) => answer.map_err(|source| error::store(doing, source)),
            Err(elapsed) => Err(StoreError::Unavailable { doing, source: Box::new(elapsed) }),
        }
    }

    /// Runs one statement in a transaction of its own and answers its rows.
    pub(crate) async fn rows(
        &self,
        doing: &'static str,
        text: &str,
        parameters: &Parameters<'_>,
    ) -> Result<Vec<Row>, StoreError> {
        self.rows_on(&self.shared.framework, doing, text, parameters).await
    }

    /// The same of a statement that always answers one row.
    pub(crate) async fn row(
        &self,
        doing: &'static str,
        text: &str,
        parameters: &Parameters<'_>,
    ) -> Result<Row, StoreError> {
        let rows = self.rows(doing, text, parameters).await?;
        rows.into_iter().next().ok_or_else(|| error::unreadable(format!("no row came of {doing}")))
    }

    async fn rows_on(
        &self,
        pool: &Pool,
        doing: &'static str,
        text: &str,
        parameters: &Parameters<'_>,
    ) -> Result<Vec<Row>, StoreError> {
        let limit = self.shared.options.answer_timeout;
        let mut tried = 1;
        loop {
            let answer = match tokio::time::timeout(limit, self.once(pool, doing, text, parameters)).await {
                Ok(answer) => answer,
                Err(elapsed) => Err(StoreError::Unavailable { doing, source: Box::new(elapsed) }),
            };
            match answer {
                Err(StoreError::Contended { .. }) if tried < CONTENDED_MAX => tried += 1,
                answer => return answer,
            }
        }
    }

    async fn once(
        &self,
        pool: &Pool,
        doing: &'static str,
        text: &str,
        parameters: &Parameters<'_>,
    ) -> Result<Vec<Row>, StoreError> {
        let (_permit, idle) = pool.turn().await;
        let session = match idle {
            Some(session) => session,
            None => self.connect_with(&pool.config).await?,
        };
        // Nothing is prepared: one round trip, and the pooler that there may be gives it to one server connection.
        let rows = session.client.query_typed(text, parameters).await;
        // After an error of the server's the connection is sound, unless that ended it; after any other it is closed.
        let is_sound = match &rows {
            Ok(_) => true,
            Err(error) => error.as_db_error().is_some_and(|report| report.parsed_severity() == Some(Severity::Error)),
        };
        if is_sound {
            pool.keep(session);
        }
        rows.map_err(|source| error::store(doing, source))
    }

    /// Removes rows by one of the cleanup statements.
    async fn delete(&self, text: &str, parameters: &Parameters<'_>) -> Result<u64, StoreError> {
        let pool = self.shared.cleaner.as_ref().unwrap_or(&self.shared.framework);
        let rows = self.rows_on(pool, "cleaning up", text, parameters).await.map_err(no_right_to_delete)?;
        let deleted: i64 = rows.first().map_or(Ok(0), |row| get(row, "deleted"))?;
        Ok(u64::try_from(deleted).unwrap_or(0))
    }
}

/// A worker's role has no DELETE (S8): cleanup is somebody else's, and trying again does not change that.
fn no_right_to_delete(error: StoreError) -> StoreError {
    let StoreError::Unavailable { source, .. } = &error else { return error };
    if source.downcast_ref::<Error>().and_then(Error::code) != Some(&SqlState::INSUFFICIENT_PRIVILEGE) {
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
        let (id, hash) = (key_id(key.as_str()), hash.as_bytes().as_slice());
        let row = self
            .row(
                "counting an attempt",
                &self.sql().count_attempt,
                &[(&scope.0, Type::INT4), (&id, Type::UUID), (&key.as_str(), Type::TEXT), (&hash, Type::BYTEA)],
            )
            .await?;
        let attempts: i32 = get(&row, "attempts")?;
        Ok(u32::try_from(attempts).unwrap_or(0))
    }

    async fn uncount_attempt(&self, scope: ScopeId, key: &IdempotencyKey) -> Result<(), StoreError> {
        let (doing, id) = ("taking an attempt back", key_id(key.as_str()));
        let parameters: &Parameters<'_> = &[(&scope.0, Type::INT4), (&id, Type::UUID)];
        self.rows(doing, &self.sql().uncount_attempt, parameters).await.map(|_| ())
    }

    async fn park(&self, dead_letter: &DeadLetter) -> Result<ParkedDeadLetter, StoreError> {
        self.park_letter(dead_letter).await
    }

    async fn mark_published(&self, id: DeadLetterId) -> Result<(), StoreError> {
        let parameters: &Parameters<'_> = &[(&id.0, Type::INT8)];
        self.rows("marking a dead letter", &self.sql().mark_published, parameters).await.map(|_| ())
    }

    async fn dead_letters(&self, consumer: &ConsumerName, max: u32) -> Result<Vec<ParkedDeadLetter>, StoreError> {
        let max = i64::from(max);
        let parameters: &Parameters<'_> = &[(&consumer.as_str(), Type::TEXT), (&max, Type::INT8)];
        let rows = self.rows("reading dead letters", &self.sql().list_dead_letters, parameters).await?;
        rows.iter().map(letters::parked).collect()
    }

    async fn request_replay(&self, ids: &[DeadLetterId]) -> Result<u64, StoreError> {
        let ids: Vec<i64> = ids.iter().map(|id| id.0).collect();
        let parameters: &Parameters<'_> = &[(&ids, Type::INT8_ARRAY)];
        let row = self.row("requesting a replay", &self.sql().request_replays, parameters).await?;
        let marked: i64 = get(&row, "marked")?;
        Ok(u64::try_from(marked).unwrap_or(0))
    }

    async fn take_replays(&self, consumer: &ConsumerName, run: RunId, max: u32) -> Result<Vec<Replay>, StoreError> {
        let (max, over) = (i64::from(max), microseconds(TAKEN_FOR));
        let parameters: &Parameters<'_> =
            &[(&consumer.as_str(), Type::TEXT), (&run.0, Type::INT4), (&max, Type::INT8), (&over, Type::INT8)];
        let rows = self.rows("taking replays", &self.sql().take_replays, parameters).await?;
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
        let doing = "finishing a replay";
        let sql = self.sql();
        match &outcome {
            Some(outcome) => self.rows(doing, &sql.finish_replay, &[(&id.0, Type::INT8), (outcome, Type::TEXT)]).await,
            None => self.rows(doing, &sql.release_replay, &[(&id.0, Type::INT8)]).await,
        }
        .map(|_| ())
    }

    async fn control(&self, scope: ScopeId) -> Result<Control, StoreError> {
        let row = self.row("reading the controls", &self.sql().read_control, &[(&scope.0, Type::INT4)]).await?;
        let state: &str = get(&row, "state")?;
        Ok(Control {
            // The table's check lets no other text in; what is not understood is better halted than overrun.
            state: match state {
                "running" => ControlState::Running,
                "paused" => ControlState::Paused,
                _ => ControlState::Halted,
            },
            by: get(&row, "by")?,
            reason: get(&row, "reason")?,
            epoch: get(&row, "epoch")?,
            now: error::instant(&row, "server_now")?,
        })
    }

    async fn set_control(&self, scope: ScopeId, state: ControlState, by: &str, reason: &str) -> Result<(), StoreError> {
        let (text, by, reason) = match state {
            ControlState::Running => ("running", String::new(), String::new()),
            ControlState::Paused => ("paused", letters::storable(by), letters::storable(reason)),
            ControlState::Halted => ("halted", letters::storable(by), letters::storable(reason)),
        };
        let parameters: &Parameters<'_> =
            &[(&scope.0, Type::INT4), (&text, Type::TEXT), (&by, Type::TEXT), (&reason, Type::TEXT)];
        self.rows("setting the controls", &self.sql().write_control, parameters).await.map(|_| ())
    }

    async fn audit(&self, entry: &AuditEntry) -> Result<(), StoreError> {
        let (who, details) = (letters::storable(&entry.who), letters::storable(&entry.details));
        let key = entry.key.as_ref().map(IdempotencyKey::as_str);
        let parameters: &Parameters<'_> = &[
            (&who, Type::TEXT),
            (&entry.action, Type::TEXT),
            (&entry.scope.0, Type::INT4),
            (&key, Type::TEXT),
            (&details, Type::TEXT),
        ];
        self.rows("writing the audit trail", &self.sql().insert_audit, parameters).await.map(|_| ())
    }

    async fn cleanup(&self, step: CleanupStep) -> Result<Cleaned, StoreError> {
        let sql = self.sql();
        let rows_max = i64::from(step.rows_max);
        let records = self.delete(&sql.delete_expired, &[(&rows_max, Type::INT8)]).await?;
        let mut others = 0;
        for (text, kept) in [
            (&sql.delete_units, step.units_kept),
            (&sql.delete_attempts, step.failures_kept),
            (&sql.delete_dead_letters, step.failures_kept),
        ] {
            // What is kept for longer than an int8 of microseconds tells is kept.
            let Some(kept) = microseconds(kept) else { continue };
            others += self.delete(text, &[(&kept, Type::INT8), (&rows_max, Type::INT8)]).await?;
        }
        Ok(Cleaned { records, others })
    }
}
