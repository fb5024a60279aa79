//! [`Destinations`] of a consumer, and what they take, as their relays have left it in their rows: an event that none could ever send
//! fails its message.

use std::{
    sync::{MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    dead_letter::Reason,
    error::ErrorClass,
    outbox::rows::{Appended, Declared, DestinationId},
    outcome::Failure,
    store::Store,
    unit::{
        engine::{Destinations, Engine, Limits},
        handlers::{HandlingError, TransactionState},
        session::answered,
    },
};

/// For a payload of so many bytes the rows are read again where they were last read so long ago: a relay may have started since.
const LARGE_BYTES: usize = 64 << 10;
const READ_EVERY: Duration = Duration::from_secs(60);

impl Destinations {
    pub(super) fn ids(&self) -> &[DestinationId] {
        self.ids.get().map_or(&[][..], Vec::as_slice)
    }

    /// Keeps what their rows say now. Ids follow from names, so that those of the first time stay.
    pub(super) fn were_declared(&self, rows: Vec<Declared>) {
        let _ = self.ids.set(rows.iter().map(|row| row.id).collect());
        let all = rows.into_iter().map(|row| row.limits).collect();
        *self.limits() = Limits { all, read_at: Some(Instant::now()) };
    }

    fn limits(&self) -> MutexGuard<'_, Limits> {
        self.limits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn are_to_be_read_for(&self, appended: &Appended) -> bool {
        appended.events.iter().any(|event| event.payload.len() >= LARGE_BYTES)
            && self.limits().read_at.is_none_or(|at| at.elapsed() >= READ_EVERY)
    }
}

/// Refuses an event that no relay could ever send, by what the last one has left in the destination's row (O107). Before it does, the
/// row is read again: somebody may have raised the limit since.
pub(super) async fn fits<S: Store>(
    engine: &Engine<S>,
    appended: &Appended,
    events_of: &[usize],
) -> Result<(), HandlingError> {
    if !engine.destinations.are_to_be_read_for(appended) && never_fits(engine, appended).is_none() {
        return Ok(());
    }
    // Boxed, because it is rare and every unit's future would have room for it.
    let declaring = answered(engine.settings.answer_timeout, "looking at destinations", Box::pin(engine.declare()));
    declaring.await.map_err(HandlingError::Store)?;
    let Some((place, text)) = never_fits(engine, appended) else { return Ok(()) };
    let index = events_of.get(place).copied().unwrap_or_default();
    let failure = Failure::new(ErrorClass::Permanent, Reason::Permanent, text).of("event-too-large");
    Err(HandlingError::one(index, failure, TransactionState::Clean))
}

/// The first event that is too large for its destination, and what to do about it.
fn never_fits<S: Store>(engine: &Engine<S>, appended: &Appended) -> Option<(usize, String)> {
    let (ids, limits) = (engine.destinations.ids(), engine.destinations.limits());
    appended.events.iter().enumerate().find_map(|(place, event)| {
        let destination = ids.iter().position(|id| *id == event.destination)?;
        let known = limits.all.get(destination)?.as_ref()?;
        let (bytes, max) = (known.refuses(event)?, known.message_bytes_max?);
        let (name, kind) = (&engine.publishing.destinations[destination].name, &known.kind);
        let text = format!(
            "the payload of an event has {bytes} bytes as it is sent, and destination {name:?} ({kind}) takes {max}, as its relay has \
             found: publish less, or raise the limit there, start the relay again, and replay this message"
        );
        Some((place, text))
    })
}
