//! Counts waiting events, for metrics and people, and learns the ids of destinations.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::{sync::watch, time::Instant};

use crate::{
    error::{ErrorClass, StoreError},
    outbox::rows::OutboxBacklog,
    relay::{
        RelayError, Stopping, is_refused, rest,
        settings::RelaySettings,
        state::{RelayStanding, State},
    },
    retry::RetryPolicy,
};

/// How often the relay looks for a destination that no consumer has declared.
const LOOKED_FOR_EVERY: Duration = Duration::from_secs(1);

/// After how long, and how often, the log says that a destination has events and no relay. In the middle of a deploy a relay
/// may not be configured yet.
const UNRELAYED_FOR: Duration = Duration::from_secs(60);
const UNRELAYED_EVERY: Duration = Duration::from_secs(600);

/// Counts for the first time, waiting for a database that cannot be reached.
pub(super) async fn first(state: &State, stopping: &Stopping) -> Result<(), RelayError> {
    let mut tries = 0;
    while !stopping.is_asked() {
        match count(state).await {
            Ok(_) => break,
            Err(error) if is_refused(&error) => return Err(RelayError::Store(error)),
            Err(error) => {
                tries += 1;
                tracing::warn!(error = (state.describe)(&error), "the outbox cannot be read yet");
                let policy = RetryPolicy { max: Duration::from_secs(5), ..RetryPolicy::default() };
                rest(policy.backoff_now(tries), stopping).await;
            }
        }
    }
    Ok(())
}

/// Counts for ever.
pub(super) async fn run(state: Arc<State>, settings: RelaySettings, waker: watch::Sender<u64>) {
    let (mut counted_at, mut told) = (Instant::now(), BTreeMap::new());
    loop {
        let undeclared = state.lines.iter().filter(|line| line.id.get().is_none()).count();
        let every = settings.measure_every;
        tokio::time::sleep_until(counted_at + if undeclared > 0 { every.min(LOOKED_FOR_EVERY) } else { every }).await;
        counted_at = Instant::now();
        match count(&state).await {
            Ok(backlog) => tell_of_unrelayed(&state, &backlog, &mut told),
            Err(error) => {
                tracing::debug!(error = (state.describe)(&error), "what waits in the outbox could not be counted")
            }
        }
        if state.lines.iter().filter(|line| line.id.get().is_none()).count() < undeclared {
            waker.send_modify(|commits| *commits += 1);
        }
    }
}

async fn count(state: &State) -> Result<Vec<OutboxBacklog>, StoreError> {
    let counted = state.outbox.backlog(None).await;
    // One that took too long to count may well be read.
    let is_slow =
        matches!(&counted, Err(error) if matches!(error.class(), ErrorClass::Transient | ErrorClass::RunUnitAgain));
    if !is_slow {
        state.is_readable.store(counted.is_ok(), Ordering::Relaxed);
    }
    let backlog = counted?;
    for one in &backlog {
        if let Some(line) = state.line(&one.destination) {
            // Reported once: a destination keeps its id.
            if line.id.set(one.id).is_ok() {
                line.stands(RelayStanding::Standby);
            }
            line.measured(one);
        }
    }
    Ok(backlog)
}

/// A destination that is in no relay's configuration any more keeps its events (O10), and an operator must know.
fn tell_of_unrelayed(state: &State, backlog: &[OutboxBacklog], told: &mut BTreeMap<String, Instant>) {
    let now = Instant::now();
    for one in backlog {
        let is_unrelayed = state.line(&one.destination).is_none()
            && one.relayed_by.is_none()
            && !one.is_paused
            && one.oldest.is_some_and(|age| age >= UNRELAYED_FOR);
        if !is_unrelayed {
            told.remove(&one.destination);
        } else if told.get(&one.destination).is_none_or(|at| now.duration_since(*at) >= UNRELAYED_EVERY) {
            tracing::warn!(
                destination = one.destination,
                pending = one.pending + one.waiting,
                oldest = ?one.oldest.unwrap_or_default(),
                "a destination has events, and no relay has it: give it a relay, or skip its events with `idem outbox skip`"
            );
            told.insert(one.destination.clone(), now);
        }
    }
}
