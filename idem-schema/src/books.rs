//! What is done outside of units of work, each as a few short statements: written once for every driver of PostgreSQL.

mod letters;
mod register;
mod start;

use idem_core::{
    AuditEntry, ConsumerName, Control, ControlState, DeadLetterId, IdempotencyKey, ParkedDeadLetter, PayloadHash,
    REPLAY_TAKEN_FOR, Replay, ReplayEnd, RunId, ScopeId, StoreError, StoreIdentity,
};

pub use self::{
    letters::park,
    register::{register, scope},
    start::verify,
};
use crate::{
    driver::{PostgresDriver, row, rows},
    key_id,
    row::microseconds,
};

/// Implements [`idem_core::Bookkeeping`] for a store that is a [`PostgresDriver`].
#[macro_export]
macro_rules! postgres_bookkeeping {
    ($store:ty) => {
        $crate::postgres_bookkeeping! { $store;
            verify() -> ();
            register(registration: &Registration) -> Registered;
            scope(consumer: &ConsumerName, tenant: &Tenant) -> ScopeId;
            count_attempt(scope: ScopeId, key: &IdempotencyKey, hash: PayloadHash) -> u32;
            uncount_attempt(scope: ScopeId, key: &IdempotencyKey) -> ();
            park(dead_letter: &DeadLetter) -> ParkedDeadLetter;
            mark_published(id: DeadLetterId) -> ();
            dead_letters(consumer: &ConsumerName, max: u32) -> Vec<ParkedDeadLetter>;
            request_replay(ids: &[DeadLetterId]) -> u64;
            take_replays(consumer: &ConsumerName, run: RunId, max: u32) -> Vec<Replay>;
            finish_replay(id: DeadLetterId, end: ReplayEnd) -> ();
            control(scope: ScopeId) -> Control;
            set_control(scope: ScopeId, state: ControlState, by: &str, reason: &str) -> ();
            audit(entry: &AuditEntry) -> ();
        }
    };
    ($store:ty; $($name:ident($($argument:ident: $type:ty),*) -> $answer:ty;)+) => {
        // A block of its own, so that core's names are imported here and nowhere else.
        const _: () = {
            use $crate::idem_core::*;

            #[$crate::async_trait::async_trait]
            impl Bookkeeping for $store {
                $(async fn $name(&self, $($argument: $type),*) -> Result<$answer, StoreError> {
                    $crate::books::$name(self, $($argument),*).await
                })+
            }
        };
    };
}

/// A text without the one character that PostgreSQL cannot store.
#[must_use]
pub fn storable(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

/// See [`idem_core::Bookkeeping`], as all that follow.
pub async fn count_attempt(
    driver: &impl PostgresDriver,
    scope: ScopeId,
    key: &IdempotencyKey,
    hash: PayloadHash,
) -> Result<u32, StoreError> {
    let parameters =
        [scope.0.into(), key_id(key.as_str()).into(), key.as_str().into(), hash.as_bytes().as_slice().into()];
    let row = row(driver, "counting an attempt", &driver.statements().count_attempt, &parameters).await?;
    Ok(u32::try_from(row.get::<i32>("attempts")?).unwrap_or(0))
}

pub async fn uncount_attempt(
    driver: &impl PostgresDriver,
    scope: ScopeId,
    key: &IdempotencyKey,
) -> Result<(), StoreError> {
    let parameters = [scope.0.into(), key_id(key.as_str()).into()];
    rows(driver, "taking an attempt back", &driver.statements().uncount_attempt, &parameters).await.map(|_| ())
}

pub async fn mark_published(driver: &impl PostgresDriver, id: DeadLetterId) -> Result<(), StoreError> {
    rows(driver, "marking a dead letter", &driver.statements().mark_published, &[id.0.into()]).await.map(|_| ())
}

pub async fn dead_letters(
    driver: &impl PostgresDriver,
    consumer: &ConsumerName,
    max: u32,
) -> Result<Vec<ParkedDeadLetter>, StoreError> {
    let parameters = [consumer.as_str().into(), i64::from(max).into()];
    let rows = rows(driver, "reading dead letters", &driver.statements().list_dead_letters, &parameters).await?;
    rows.iter().map(letters::parked).collect()
}

pub async fn request_replay(driver: &impl PostgresDriver, ids: &[DeadLetterId]) -> Result<u64, StoreError> {
    let ids: Vec<i64> = ids.iter().map(|id| id.0).collect();
    let parameters = [ids.as_slice().into()];
    let row = row(driver, "requesting a replay", &driver.statements().request_replays, &parameters).await?;
    Ok(u64::try_from(row.get::<i64>("marked")?).unwrap_or(0))
}

pub async fn take_replays(
    driver: &impl PostgresDriver,
    consumer: &ConsumerName,
    run: RunId,
    max: u32,
) -> Result<Vec<Replay>, StoreError> {
    let parameters =
        [consumer.as_str().into(), run.0.into(), i64::from(max).into(), microseconds(REPLAY_TAKEN_FOR).into()];
    let rows = rows(driver, "taking replays", &driver.statements().take_replays, &parameters).await?;
    let mut replays = rows.iter().map(letters::replay).collect::<Result<Vec<_>, _>>()?;
    replays.sort_by_key(|replay| replay.id);
    Ok(replays)
}

pub async fn finish_replay(driver: &impl PostgresDriver, id: DeadLetterId, end: ReplayEnd) -> Result<(), StoreError> {
    let outcome = end.outcome().map(|outcome| storable(&outcome));
    let (doing, statements) = ("finishing a replay", driver.statements());
    match outcome.as_deref() {
        Some(outcome) => rows(driver, doing, &statements.finish_replay, &[id.0.into(), outcome.into()]).await,
        None => rows(driver, doing, &statements.release_replay, &[id.0.into()]).await,
    }
    .map(|_| ())
}

pub async fn control(driver: &impl PostgresDriver, scope: ScopeId) -> Result<Control, StoreError> {
    let row = row(driver, "reading the controls", &driver.statements().read_control, &[scope.0.into()]).await?;
    Ok(Control {
        // The table's check lets no other text in; what is not understood is better halted than overrun.
        state: match row.get("state")? {
            "running" => ControlState::Running,
            "paused" => ControlState::Paused,
            _ => ControlState::Halted,
        },
        by: row.get("by")?,
        reason: row.get("reason")?,
        epoch: row.get("epoch")?,
        identity: StoreIdentity::new(row.get::<String>("identity")?),
        now: row.instant("server_now")?,
    })
}

pub async fn set_control(
    driver: &impl PostgresDriver,
    scope: ScopeId,
    state: ControlState,
    by: &str,
    reason: &str,
) -> Result<(), StoreError> {
    let (state, by, reason) = match state {
        ControlState::Running => ("running", String::new(), String::new()),
        ControlState::Paused => ("paused", storable(by), storable(reason)),
        ControlState::Halted => ("halted", storable(by), storable(reason)),
    };
    let parameters = [scope.0.into(), state.into(), by.as_str().into(), reason.as_str().into()];
    rows(driver, "setting the controls", &driver.statements().write_control, &parameters).await.map(|_| ())
}

pub async fn audit(driver: &impl PostgresDriver, entry: &AuditEntry) -> Result<(), StoreError> {
    let (who, details) = (storable(&entry.who), storable(&entry.details));
    let key = entry.key.as_ref().map(IdempotencyKey::as_str);
    let parameters =
        [who.as_str().into(), entry.action.into(), entry.scope.0.into(), key.into(), details.as_str().into()];
    rows(driver, "writing the audit trail", &driver.statements().insert_audit, &parameters).await.map(|_| ())
}
