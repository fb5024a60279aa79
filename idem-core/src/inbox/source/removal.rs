//! Removes the rows of messages that are done, many with one statement.

use std::{pin::pin, time::Duration};

use tokio::time::{Instant, timeout_at};

use crate::{
    failpoint,
    inbox::{
        rows::{HeldSlot, Settling},
        source::Shared,
        state::InboxHandle,
    },
    names::ScopeId,
    outcome::Settle,
    source::Settled,
};

/// The most rows that one statement removes.
const REMOVED_AT_ONCE: usize = 1_000;

/// The longest that a removal waits after the last one, so that it takes with it what is processed meanwhile.
const REMOVE_EVERY: Duration = Duration::from_millis(100);

/// It waits so long for each message in flight, so that a worker with few of them does not run out of work.
const REMOVE_AFTER_EACH: Duration = Duration::from_micros(50);

impl Shared {
    /// Whether each of these deliveries was settled.
    pub(super) async fn settle(&self, settlements: Vec<(InboxHandle, Settle)>) -> Vec<Settled> {
        let mut answers = vec![Settled::Stale; settlements.len()];
        let mut removed: Vec<(usize, InboxHandle)> = Vec::new();
        let id = {
            let mut inner = self.inner();
            let now = Instant::now();
            let Some(id) = inner.attached.as_ref().map(|(open, _)| open.id) else { return answers };
            for (place, (handle, settle)) in settlements.into_iter().enumerate() {
                if !inner.state.has(&handle) {
                    continue;
                }
                match settle {
                    Settle::Acknowledge(_) | Settle::DeadLetter(_) => removed.push((place, handle)),
                    Settle::Release { after } => {
                        inner.state.released(&handle, (!after.is_zero()).then(|| now + after));
                        answers[place] = Settled::Settled;
                    }
                }
            }
            id
        };
        if !removed.is_empty() {
            let rows: Vec<Settling> = removed.iter().map(|(_, handle)| handle.row).collect();
            if rows.len() < REMOVED_AT_ONCE {
                self.wait_to_remove().await;
            }
            let held = self.remove(id, &rows).await;
            let mut inner = self.inner();
            inner.removed_at = Instant::now();
            for (place, handle) in &removed {
                let is_held = held.as_ref().map(|slots| slots.contains(&handle.row.held));
                answers[*place] = match is_held {
                    Some(true) => Settled::Settled,
                    Some(false) => Settled::Stale,
                    None => Settled::Unknown,
                };
                inner.state.settled(handle, is_held.is_some());
            }
        }
        answers
    }

    /// Waits until the next removal may be sent, or the source or another member waits for it.
    async fn wait_to_remove(&self) {
        loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            let remove_at = {
                let inner = self.inner();
                if inner.state.is_stopped || inner.state.has_leaving() {
                    return;
                }
                inner.removed_at + (REMOVE_AFTER_EACH * inner.state.in_flight()).min(REMOVE_EVERY)
            };
            if timeout_at(remove_at, changed).await.is_err() {
                return;
            }
        }
    }

    /// Removes rows, and answers for each slot whether it is still held; `None` where that is not known.
    async fn remove(&self, id: ScopeId, rows: &[Settling]) -> Option<Vec<HeldSlot>> {
        let mut held: Option<Vec<HeldSlot>> = None;
        for rows in rows.chunks(REMOVED_AT_ONCE) {
            match self.inbox.remove(id, &self.holder, rows).await {
                Ok(slots) => held.get_or_insert_default().extend(slots),
                Err(error) => {
                    tracing::warn!(idem.consumer = %self.consumer, error = %error, "processed messages stay in the inbox; they are duplicates");
                    return None;
                }
            }
        }
        let _ = failpoint!(INBOX_REMOVED);
        held
    }
}
