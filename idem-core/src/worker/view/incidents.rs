//! The last failures for a person to look at, for a page that shows them.

use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    dead_letter::{DeadLetterId, Reason},
    names::{IdempotencyKey, Origin},
};

/// How many of each kind are kept.
const KEPT: usize = 10;

/// The subject of an [`Incident`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum IncidentKind {
    /// A key was used before for another payload.
    Conflict,
    /// A message was set aside.
    DeadLetter,
    /// The database or the broker could not be used, or a message waits for it.
    Error,
}

/// A recent failure. It holds no value of a payload, header, statement or row.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Incident {
    at: Instant,
    /// Its subject.
    pub kind: IncidentKind,
    /// The message's key, where it is about one that has a key.
    pub key: Option<IdempotencyKey>,
    /// Where the message came from, where it is about one.
    pub origin: Option<Origin>,
    /// Why the message does not run, where it is set aside or conflicts; its text is the name of a page in `docs/errors`.
    pub reason: Option<Reason>,
    /// The row that holds the message, where it is set aside.
    pub dead_letter: Option<DeadLetterId>,
    /// The failure in words.
    pub text: String,
}

impl Incident {
    pub(crate) fn new(
        kind: IncidentKind,
        key: Option<&IdempotencyKey>,
        origin: Option<&Origin>,
        text: impl Into<String>,
    ) -> Self {
        Self {
            at: Instant::now(),
            kind,
            key: key.cloned(),
            origin: origin.cloned(),
            reason: None,
            dead_letter: None,
            text: text.into(),
        }
    }

    /// How long ago it was.
    #[must_use]
    pub fn ago(&self) -> Duration {
        self.at.elapsed()
    }
}

/// The last incidents of each kind, of those that were logged: in a flood some are left out here as there.
#[derive(Debug, Default)]
pub(crate) struct Incidents {
    conflicts: Mutex<VecDeque<Incident>>,
    dead_letters: Mutex<VecDeque<Incident>>,
    errors: Mutex<VecDeque<Incident>>,
}

impl Incidents {
    fn of(&self, kind: IncidentKind) -> &Mutex<VecDeque<Incident>> {
        match kind {
            IncidentKind::Conflict => &self.conflicts,
            IncidentKind::DeadLetter => &self.dead_letters,
            IncidentKind::Error => &self.errors,
        }
    }

    pub(crate) fn note(
        &self,
        kind: IncidentKind,
        key: Option<&IdempotencyKey>,
        origin: Option<&Origin>,
        text: impl Into<String>,
    ) {
        self.keep(Incident::new(kind, key, origin, text));
    }

    pub(crate) fn keep(&self, incident: Incident) {
        let mut kept = self.of(incident.kind).lock().unwrap_or_else(PoisonError::into_inner);
        kept.push_front(incident);
        kept.truncate(KEPT);
    }

    /// The last of one kind, the newest first.
    pub(crate) fn last(&self, kind: IncidentKind) -> Vec<Incident> {
        self.of(kind).lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}
