//! The keys that run in this process, so that a repeat waits in memory, without a connection.

use std::{
    collections::HashMap,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use idem_core::{IdempotencyKey, ResultBody};
use tokio::sync::{Notify, OwnedSemaphorePermit, watch};

use super::{answer::Times, fingerprint::Print};

/// The progress of the first request with a key.
#[derive(Clone, Default)]
pub(crate) enum Stage {
    /// It claims its key, or reads the record of it.
    #[default]
    Claiming,
    /// Its handler runs.
    Running,
    /// It has an answer that is kept.
    Landed(Arc<Landed>),
}

/// An answer, for repeats that came meanwhile.
pub(crate) struct Landed {
    pub(crate) print: Print,
    pub(crate) value: ResultBody,
    pub(crate) times: Times,
}

/// All keys that run now, with or without a client.
#[derive(Default)]
pub(crate) struct Flights {
    all: Mutex<All>,
    none_left: Notify,
}

type All = HashMap<IdempotencyKey, (watch::Receiver<Stage>, Print)>;

/// Whether a request is the first one with its key in this process.
pub(crate) enum Boarded {
    First(Flight),
    /// Another one is in progress; the channel closes when that one has ended.
    Other(watch::Receiver<Stage>),
}

impl Flights {
    pub(crate) fn board(self: &Arc<Self>, key: &IdempotencyKey, print: Print) -> Boarded {
        let mut all = self.all();
        if let Some((stage, _)) = all.get(key) {
            return Boarded::Other(stage.clone());
        }
        let (tell, stage) = watch::channel(Stage::default());
        all.insert(key.clone(), (stage, print));
        Boarded::First(Flight { flights: Arc::clone(self), key: key.clone(), tell: Arc::new(Progress::new(tell)) })
    }

    /// The progress of the request with this key, and its fingerprint, if one runs.
    pub(crate) fn stage(&self, key: &IdempotencyKey) -> Option<(watch::Receiver<Stage>, Print)> {
        self.all().get(key).cloned()
    }

    /// How many keys run.
    pub(crate) fn count(&self) -> usize {
        self.all().len()
    }

    /// Waits until none runs.
    pub(crate) async fn none_left(&self) {
        loop {
            // Before the look, so that an end right behind it is not missed.
            let mut ended = pin!(self.none_left.notified());
            ended.as_mut().enable();
            if self.count() == 0 {
                return;
            }
            ended.await;
        }
    }

    fn all(&self) -> MutexGuard<'_, All> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The place of the first request with a key. When it is dropped, the next request becomes the first.
pub(crate) struct Flight {
    flights: Arc<Flights>,
    key: IdempotencyKey,
    pub(crate) tell: Arc<Progress>,
}

impl Drop for Flight {
    fn drop(&mut self) {
        let mut all = self.flights.all();
        all.remove(&self.key);
        if all.is_empty() {
            self.flights.none_left.notify_waiters();
        }
    }
}

/// Reports the progress to waiting requests.
pub(crate) struct Progress {
    tell: watch::Sender<Stage>,
    /// A permit to wait at the database, held while another process has the key.
    waiting: Mutex<Option<OwnedSemaphorePermit>>,
}

impl Progress {
    fn new(tell: watch::Sender<Stage>) -> Self {
        Self { tell, waiting: Mutex::new(None) }
    }

    /// Reports that the handler runs.
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

    /// Whether another request waits; one receiver is the map's own.
    pub(crate) fn has_company(&self) -> bool {
        self.tell.receiver_count() > 1
    }
}
