//! The bookkeeping outside of units of work, each call a few short statements: written once for every SQL store.

mod dead_letters;
mod ends;
pub(crate) mod register;
pub(crate) mod sequences;
mod standing;
pub(crate) mod start;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use idem_core::{
    ConsumerName, IdempotencyKey, StoreError, Tenant,
    dead_letter::{
        DEAD_LETTER_ROW_BYTES, DUE_LEASE, DeadLetter, DeadLetterId, Due, DueEnd, DueFailure, DueRoom, PutAside, Reason,
        StoredDeadLetter,
    },
    hash::PayloadHash,
    standing::{Fact, Tables},
    store::{
        AuditEntry, Bookkeeping, Control, ControlState, Registered, Registration, RunId, ScopeId, StoreIdentity, Usage,
    },
};

use self::ends::Ended;
use crate::{
    run::{
        cleaner::PostgresCleaner,
        driver::{BookkeepingDriver, PostgresDriver, row, storable},
        row::{Row, microseconds},
    },
    text::key_id::key_id,
};

/// The bookkeeping of an SQL store, through its driver. Clones share the driver.
#[derive(Debug)]
pub struct SqlBookkeeping<D> {
    driver: Arc<D>,
}

impl<D> Clone for SqlBookkeeping<D> {
    fn clone(&self) -> Self {
        Self { driver: Arc::clone(&self.driver) }
    }
}

impl<D> SqlBookkeeping<D> {
    /// Bookkeeping through this driver. Nothing is connected yet.
    pub fn new(driver: D) -> Self {
        Self { driver: Arc::new(driver) }
    }

    /// The driver.
    #[must_use]
    pub fn driver(&self) -> &Arc<D> {
        &self.driver
    }
}

impl<D: PostgresDriver> SqlBookkeeping<D> {
    /// The cleaner of the same schema's expired rows, through the same driver.
    #[must_use]
    pub fn cleaner(&self) -> PostgresCleaner<D> {
        PostgresCleaner::new(Arc::clone(&self.driver))
    }
}

#[async_trait]
impl<D: BookkeepingDriver + 'static> Bookkeeping for SqlBookkeeping<D> {
    async fn verify(&self) -> Result<(), StoreError> {
        self.driver.verify().await
    }

    async fn register(&self, registration: &Registration) -> Result<Registered, StoreError> {
        register::register(&*self.driver, registration).await
    }

    async fn scope(&self, consumer: &ConsumerName, tenant: &Tenant) -> Result<ScopeId, StoreError> {
        register::scope(&*self.driver, consumer, tenant).await
    }

    async fn store_dead_letter(&self, dead_letter: &DeadLetter) -> Result<StoredDeadLetter, StoreError> {
        dead_letters::store(&*self.driver, dead_letter).await
    }

    async fn put_aside(&self, letter: &DeadLetter, after: Duration) -> Result<PutAside, StoreError> {
        dead_letters::put_aside(&*self.driver, letter, after).await
    }

    async fn count_attempt(&self, scope: ScopeId, key: &IdempotencyKey, hash: PayloadHash) -> Result<u32, StoreError> {
        let driver = &*self.driver;
        let parameters =
            [scope.0.into(), key_id(key.as_str()).into(), key.as_str().into(), hash.as_bytes().as_slice().into()];
        let row =
            row(driver, "counting an attempt", &driver.bookkeeping_statements().count_attempt, &parameters).await?;
        Ok(u32::try_from(row.get::<i32>("attempts")?).unwrap_or(0))
    }

    async fn uncount_attempt(&self, scope: ScopeId, key: &IdempotencyKey, hash: PayloadHash) -> Result<(), StoreError> {
        let driver = &*self.driver;
        let parameters = [scope.0.into(), key_id(key.as_str()).into(), hash.as_bytes().as_slice().into()];
        driver
            .rows("taking an attempt back", &driver.bookkeeping_statements().uncount_attempt, &parameters)
            .await
            .map(|_| ())
    }

    async fn end_attempts(&self, scope: ScopeId, key: &IdempotencyKey, hash: PayloadHash) -> Result<(), StoreError> {
        let driver = &*self.driver;
        let parameters = [scope.0.into(), key_id(key.as_str()).into(), hash.as_bytes().as_slice().into()];
        driver
            .rows("ending a count of attempts", &driver.bookkeeping_statements().end_attempts, &parameters)
            .await
            .map(|_| ())
    }

    async fn dead_letter_bytes(&self, consumer: &ConsumerName, enough: u64) -> Result<u64, StoreError> {
        let driver = &*self.driver;
        let (enough, of_a_row) = (i64::try_from(enough).unwrap_or(i64::MAX), DEAD_LETTER_ROW_BYTES.cast_signed());
        let parameters = [consumer.as_str().into(), enough.into(), of_a_row.into()];
        let text = &driver.bookkeeping_statements().dead_letter_bytes;
        let bytes: i64 = row(driver, "measuring dead letters", text, &parameters).await?.get("bytes")?;
        Ok(u64::try_from(bytes).unwrap_or(0))
    }

    async fn usage(&self, consumer: &ConsumerName) -> Result<Usage, StoreError> {
        let driver = &*self.driver;
        let parameters = [consumer.as_str().into()];
        let row =
            row(driver, "looking at the tables' sizes", &driver.bookkeeping_statements().usage, &parameters).await?;
        // Unknown values are -1 or NULL.
        let number =
            |column: &str| row.get::<Option<i64>>(column).map(|number| number.and_then(|n| u64::try_from(n).ok()));
        Ok(Usage::default()
            .records(number("records")?)
            .record_bytes(number("record_bytes")?)
            .dead_letters(number("dead_letters")?)
            .dead_letter_bytes(number("dead_letter_bytes")?)
            .records_of_largest_tenant(number("records_of_largest_tenant")?))
    }

    async fn mark_published(&self, id: DeadLetterId) -> Result<(), StoreError> {
        let driver = &*self.driver;
        driver
            .rows("marking a dead letter", &driver.bookkeeping_statements().mark_published, &[id.0.into()])
            .await
            .map(|_| ())
    }

    async fn dead_letters(&self, consumer: &ConsumerName, max: u32) -> Result<Vec<StoredDeadLetter>, StoreError> {
        let driver = &*self.driver;
        let parameters = [consumer.as_str().into(), i64::from(max).into()];
        let rows = driver
            .rows("reading dead letters", &driver.bookkeeping_statements().list_dead_letters, &parameters)
            .await?;
        rows.iter().map(dead_letters::stored).collect()
    }

    async fn due_now(&self, ids: &[DeadLetterId], by: &str) -> Result<u64, StoreError> {
        let driver = &*self.driver;
        let (ids, by) = (numbers(ids), storable(by));
        let parameters = [ids.as_slice().into(), by.as_str().into()];
        let text = &driver.bookkeeping_statements().due_now;
        Ok(driver.rows("requesting a replay", text, &parameters).await?.len() as u64)
    }

    async fn take_due(&self, consumer: &ConsumerName, run: RunId, room: DueRoom) -> Result<Vec<Due>, StoreError> {
        let driver = &*self.driver;
        let (doing, statements) = ("taking rows that are due", driver.bookkeeping_statements());
        let (name, lease) = (consumer.as_str().into(), microseconds(DUE_LEASE).into());
        if !row(driver, doing, &statements.any_due, &[name, lease]).await?.get("waiting")? {
            return Ok(Vec::new());
        }
        let bytes = i64::try_from(room.bytes).unwrap_or(i64::MAX).into();
        let parameters = [name, run.0.into(), i64::from(room.rows).into(), bytes, lease];
        let rows = driver.rows(doing, &statements.take_due, &parameters).await?;
        let (mut due, mut damaged) = (Vec::with_capacity(rows.len()), Vec::new());
        for row in &rows {
            match dead_letters::due(row) {
                Ok(row) => due.push(row),
                // The others were taken with it, and run (S57).
                Err(error) => {
                    let id = DeadLetterId(row.get("id")?);
                    tracing::warn!(idem.consumer = %consumer, dead_letter = id.0, %error, "a dead letter cannot be replayed");
                    damaged.push((id, DueEnd::Failed(DueFailure::new(Reason::Malformed, error.to_string()))));
                }
            }
        }
        self.end_due(run, &damaged).await?;
        Ok(due)
    }

    async fn renew_due(&self, run: RunId, ids: &[DeadLetterId]) -> Result<(), StoreError> {
        let driver = &*self.driver;
        let ids = numbers(ids);
        let parameters = [ids.as_slice().into(), run.0.into()];
        driver.rows("renewing leases", &driver.bookkeeping_statements().renew_due, &parameters).await.map(|_| ())
    }

    async fn release_due(&self, run: RunId, ids: &[DeadLetterId]) -> Result<(), StoreError> {
        let driver = &*self.driver;
        let ids = numbers(ids);
        let parameters = [ids.as_slice().into(), run.0.into()];
        driver.rows("giving rows back", &driver.bookkeeping_statements().release_due, &parameters).await.map(|_| ())
    }

    async fn end_due(&self, run: RunId, ends: &[(DeadLetterId, DueEnd)]) -> Result<(), StoreError> {
        if ends.is_empty() {
            return Ok(());
        }
        let driver = &*self.driver;
        let ended = Ended::of(ends);
        let (outcomes, reasons) = (texts(&ended.outcomes), texts(&ended.reasons));
        let (errors, fingerprints) = (texts(&ended.errors), texts(&ended.fingerprints));
        let parameters = [
            ended.ids.as_slice().into(),
            outcomes.as_slice().into(),
            run.0.into(),
            ended.afters.as_slice().into(),
            reasons.as_slice().into(),
            ended.attempts.as_slice().into(),
            errors.as_slice().into(),
            fingerprints.as_slice().into(),
        ];
        driver.rows("ending replays", &driver.bookkeeping_statements().end_due, &parameters).await.map(|_| ())
    }

    async fn control(&self, scope: ScopeId) -> Result<Control, StoreError> {
        let driver = &*self.driver;
        let row = row(driver, "reading the controls", &driver.bookkeeping_statements().read_control, &[scope.0.into()])
            .await?;
        control_of(&row)
    }

    async fn report(&self, scope: ScopeId, run: RunId, facts: &[Fact], has_ended: bool) -> Result<Control, StoreError> {
        control_of(&standing::report(&*self.driver, scope, run, facts, has_ended).await?)
    }

    async fn standing(&self, consumer: &ConsumerName) -> Result<Option<Tables>, StoreError> {
        standing::tables(&*self.driver, consumer).await.map(Some)
    }

    async fn set_control(&self, scope: ScopeId, state: ControlState, by: &str, reason: &str) -> Result<(), StoreError> {
        let driver = &*self.driver;
        let (state, by, reason) = match state {
            ControlState::Running => ("running", String::new(), String::new()),
            ControlState::Paused => ("paused", storable(by), storable(reason)),
            ControlState::Halted => ("halted", storable(by), storable(reason)),
        };
        let parameters = [scope.0.into(), state.into(), by.as_str().into(), reason.as_str().into()];
        driver
            .rows("setting the controls", &driver.bookkeeping_statements().write_control, &parameters)
            .await
            .map(|_| ())
    }

    async fn audit(&self, entry: &AuditEntry) -> Result<(), StoreError> {
        let driver = &*self.driver;
        let (who, details) = (storable(&entry.who), storable(&entry.details));
        let key = entry.key.as_ref().map(IdempotencyKey::as_str);
        let parameters =
            [who.as_str().into(), entry.action.into(), entry.scope.0.into(), key.into(), details.as_str().into()];
        driver
            .rows("writing the audit trail", &driver.bookkeeping_statements().insert_audit, &parameters)
            .await
            .map(|_| ())
    }
}

fn texts(texts: &[String]) -> Vec<&str> {
    texts.iter().map(String::as_str).collect()
}

fn numbers(ids: &[DeadLetterId]) -> Vec<i64> {
    ids.iter().map(|id| id.0).collect()
}

fn control_of(row: &Row) -> Result<Control, StoreError> {
    Ok(Control::new(
        match row.get("state")? {
            "running" => ControlState::Running,
            "paused" => ControlState::Paused,
            // The table's check lets no other text in; a consumer in an unknown state is better halted than run.
            _ => ControlState::Halted,
        },
        row.get("by")?,
        row.get("reason")?,
        row.get("epoch")?,
        StoreIdentity::new(row.get::<String>("identity")?),
        row.instant("server_now")?,
    ))
}

#[cfg(test)]
mod tests;
