//! Rows that are due: dead letters that an operator had replayed. A task takes them in batches as long as there are any, renews their
//! leases while they are in flight, and notes their ends, many in one statement.

pub(crate) mod rows;

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::{
    dead_letter::{DUE_LEASE, Due, DueEnd},
    error::StoreError,
    failpoint,
    source::{Assignment, Source},
    store::{Bookkeeping as _, Store, describe::one_line},
    worker::{
        due::rows::Taken,
        intake::{self, LaneSenders},
        job::{DeliveredBy, Isolation},
        shared::Shared,
    },
};

/// Rows in flight, at most. A look takes more once half of them have ended.
const ROWS_MAX: u32 = 500;
/// The age at which a lease is renewed. Those of half that age go with it.
const RENEW_AT: Duration = Duration::from_secs(DUE_LEASE.as_secs() / 3);
/// Until ends that could not be noted, and leases that could not be renewed, are tried again.
const AGAIN_AFTER: Duration = Duration::from_secs(2);

/// Takes, renews and ends rows until the worker stops, and then those that its lanes give back.
pub(super) async fn run<S: Store, B: Source>(shared: Arc<Shared<S, B>>, lanes: LaneSenders<B::Handle>) {
    while !shared.shutdown.is_cancelled() {
        let noted = note(&shared).await;
        if noted {
            take(&shared, &lanes).await;
        }
        let renew_at = if noted { renew(&shared).await } else { Some(Instant::now() + AGAIN_AFTER) };
        tokio::select! {
            () = shared.due.changed.notified(), if noted => {}
            () = async { tokio::time::sleep_until(renew_at.unwrap_or_else(Instant::now)).await }, if renew_at.is_some() => {}
            () = shared.shutdown.cancelled() => {}
        }
    }
    drop(lanes);
    shared.all_stopped().await;
    note(&shared).await;
}

/// Notes ends and rows that are given back; false where that failed, and then it is tried again.
async fn note<S: Store, B: Source>(shared: &Shared<S, B>) -> bool {
    let (ends, released) = {
        let mut state = shared.due.state();
        (std::mem::take(&mut state.ends), std::mem::take(&mut state.released))
    };
    let books = shared.consumer.store.bookkeeping();
    if !ends.is_empty() {
        if let Err(error) = books.end_due(shared.run, &ends).await {
            unnoted::<S, B>(shared, &error);
            let mut state = shared.due.state();
            (state.ends, state.released) = ([ends, std::mem::take(&mut state.ends)].concat(), released);
            return false;
        }
        let _ = failpoint!(DUE_ENDED);
        ends.iter().for_each(|(id, _)| shared.due.state().forget(*id));
        // Counted once it is noted: a caller that waits for the count may ask for the next replay.
        let over = ends.iter().filter(|(_, end)| !matches!(end, DueEnd::Again { .. }));
        shared.stats.replayed.add(over.count() as u64);
    }
    if !released.is_empty() {
        // Where this fails their leases run out.
        if let Err(error) = books.release_due(shared.run, &released).await {
            unnoted::<S, B>(shared, &error);
        }
        released.iter().for_each(|id| shared.due.state().forget(*id));
    }
    true
}

fn unnoted<S: Store, B: Source>(shared: &Shared<S, B>, error: &StoreError) {
    if let Some(left_out) = shared.lines.unrecorded.pass() {
        let error = one_line::<S>(error);
        tracing::warn!(idem.consumer = %shared.consumer.name, error, left_out, "the end of a replay could not be noted");
    }
}

/// Takes what is due, as far as there is room, unless the consumer is paused or halted. While the breaker is open, one row at a time
/// runs: it is a probe.
async fn take<S: Store, B: Source>(shared: &Arc<Shared<S, B>>, lanes: &LaneSenders<B::Handle>) {
    let rows_max = if shared.gate.breaker_is_open() { 1 } else { ROWS_MAX };
    let room = {
        let mut state = shared.due.state();
        let room = state.room(rows_max).filter(|_| state.wanted && !shared.gate.is_paused());
        state.wanted &= room.is_none() && !shared.gate.is_paused();
        room
    };
    let Some(room) = room else { return };
    let rows = match shared.consumer.store.bookkeeping().take_due(&shared.consumer.name, shared.run, room).await {
        Ok(rows) => rows,
        Err(error) => {
            return tracing::debug!(idem.consumer = %shared.consumer.name, %error, "rows that are due cannot be taken");
        }
    };
    if rows.is_empty() {
        return;
    }
    let taken_at = Instant::now();
    {
        let mut state = shared.due.state();
        state.wanted = true;
        for row in &rows {
            let bytes = row.message.payload().map_or(0, bytes::Bytes::len) as u64;
            state.bytes += bytes;
            state.taken.insert(row.id, Taken { renewed_at: taken_at, bytes });
        }
    }
    let _ = failpoint!(DUE_TAKEN);
    for row in rows {
        hand_over(shared, lanes, row).await;
    }
    // There may be room for more.
    shared.due.changed.notify_one();
}

async fn hand_over<S: Store, B: Source>(shared: &Arc<Shared<S, B>>, lanes: &LaneSenders<B::Handle>, row: Due) {
    let from = DeliveredBy::Row(row.id);
    let Some(mut job) = intake::identify(shared, row.message, row.key, from, Assignment::default(), None).await else {
        return;
    };
    job.was_put_aside = !row.replayed;
    if row.attempts > 0 {
        job.attempts_before = row.attempts;
        job.isolate();
    }
    if row.was_taken {
        job.isolation = Isolation::Process;
    }
    intake::hand_over_one(shared, lanes, job);
}

/// Renews leases that are due for it. Answers when the next one is.
async fn renew<S: Store, B: Source>(shared: &Shared<S, B>) -> Option<Instant> {
    let now = Instant::now();
    let oldest = shared.due.state().oldest()?;
    if now < oldest + RENEW_AT {
        return Some(oldest + RENEW_AT);
    }
    let is_old = |taken: &Taken| now >= taken.renewed_at + RENEW_AT / 2;
    let ids: Vec<_> = shared.due.state().taken.iter().filter(|(_, taken)| is_old(taken)).map(|(id, _)| *id).collect();
    let renewed = shared.consumer.store.bookkeeping().renew_due(shared.run, &ids).await;
    if let Err(error) = renewed {
        tracing::debug!(idem.consumer = %shared.consumer.name, %error, "leases of rows cannot be renewed");
        return Some(now + AGAIN_AFTER);
    }
    let mut state = shared.due.state();
    for id in ids {
        if let Some(taken) = state.taken.get_mut(&id) {
            taken.renewed_at = now;
        }
    }
    state.oldest().map(|oldest| oldest + RENEW_AT)
}
