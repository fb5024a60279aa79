//! The keys that run in this process, so that whoever repeats one waits in memory, without a connection.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use idem_core::{IdempotencyKey, ResultBody};
use tokio::sync::{OwnedSemaphorePermit, watch};

use super::{answer::Times, fingerprint::Print};

/// How far the first request with a key is.
#[derive(Clone, Default)]
pub(crate) enum Stage {
    /// It claims its key, or reads what is known of it.
    #[default]
    Claiming,
    /// Its handler runs.
    Running,
    /// It has an answer that is kept.
    Landed(Arc<Landed>),
}

/// An answer, for those who asked for the same meanwhile.
pub(crate) struct Landed {
    pub(crate) print: Print,
    pub(crate) value: ResultBody,
    pub(crate) times: Times,
}

/// All keys that run.
#[derive(Default)]
pub(crate) struct Flights(Mutex<HashMap<IdempotencyKey, watch::Receiver<Stage>>>);

/// Whether a request is the first of its key here.
pub(crate) enum Boarded {
    First(Flight),
    /// Another one is on its way; the channel closes when it has ended.
    Other(watch::Receiver<Stage>),
}

impl Flights {
    pub(crate) fn board(self: &Arc<Self>, key: &IdempotencyKey) -> Boarded {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(stage) = all.get(key) {
            return Boarded::Other(stage.clone());
        }
        let (tell, stage) = watch::channel(Stage::default());
        all.insert(key.clone(), stage);
        Boarded::First(Flight { flights: Arc::clone(self), key: key.clone(), tell: Arc::new(Progress::new(tell)) })
    }

    /// How far the request with this key is, if one is on its way.
    pub(crate) fn stage(&self, key: &IdempotencyKey) -> Option<watch::Receiver<Stage>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(key).cloned()
    }
}

/// The place of the first request with a key. Dropped, it lets the next one be the first.
pub(crate) struct Flight {
    flights: Arc<Flights>,
    key: IdempotencyKey,
    pub(crate) tell: Arc<Progress>,
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.flights.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
    }
}

/// Tells those who wait how far it is.
pub(crate) struct Progress {
    tell: watch::Sender<Stage>,
    /// Held while another process has the key.
    waiting: Mutex<Option<OwnedSemaphorePermit>>,
}

impl Progress {
    fn new(tell: watch::Sender<Stage>) -> Self {
        Self { tell, waiting: Mutex::new(None) }
    }

    /// The handler runs now.
    pub(crate) fn runs(&self) {
        self.waits(None);
        self.tell.send_replace(Stage::Running);
    }

    pub(crate) fn landed(&self, landed: Landed) {
        self.tell.send_replace(Stage::Landed(Arc::new(landed)));
    }

    pub(crate) fn waits(&self, permit: Option<OwnedSemaphorePermit>) {
        *self.waiting.lock().unwrap_or_else(PoisonError::into_inner) = permit;
    }

    /// Whether anybody else waits: the map has one receiver.
    pub(crate) fn has_company(&self) -> bool {
        self.tell.receiver_count() > 1
    }
}
