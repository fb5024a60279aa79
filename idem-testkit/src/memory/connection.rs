//! One connection to a broker on a socket: requests with a number, and their answers in any order.

use std::{
    collections::HashMap,
    io,
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::{
    net::{
        UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{mpsc, oneshot, watch},
};

use super::wire::{self, Ask, Asked, Tell, Told};

/// How many requests wait for the socket; the caller of a further one waits too.
const REQUESTS_MAX: usize = 64;

type Waiting = Arc<Mutex<Option<HashMap<u64, oneshot::Sender<Tell>>>>>;

/// Dropping it, or [`close`](Self::close), ends both of its tasks and cuts the connection.
#[derive(Debug)]
pub(super) struct Connection {
    requests: mpsc::Sender<Vec<u8>>,
    /// The callers that wait, by request; `None` once the connection is gone.
    waiting: Waiting,
    last_id: AtomicU64,
    open: watch::Sender<bool>,
}

impl Connection {
    pub(super) async fn open(path: &Path) -> io::Result<Self> {
        let (from, to) = UnixStream::connect(path).await?.into_split();
        let (requests, outgoing) = mpsc::channel(REQUESTS_MAX);
        let waiting = Arc::new(Mutex::new(Some(HashMap::new())));
        let (open, is_open) = watch::channel(true);
        tokio::spawn(write(to, outgoing, is_open.clone()));
        tokio::spawn(read(from, Arc::clone(&waiting), is_open));
        Ok(Self { requests, waiting, last_id: AtomicU64::new(0), open })
    }

    /// Sends a request, and answers where its answer will arrive. An error means that the connection is gone.
    ///
    /// Cancel safe: a request is sent whole or not at all.
    pub(super) async fn send(&self, ask: Ask) -> io::Result<oneshot::Receiver<Tell>> {
        let id = self.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        let frame = wire::frame(&Asked { id, ask })?;
        let slot = self.requests.reserve().await.map_err(|_| gone())?;
        let (answered, answer) = oneshot::channel();
        match &mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(waiting) => waiting.insert(id, answered),
            None => return Err(gone()),
        };
        slot.send(frame);
        Ok(answer)
    }

    /// Sends a request whose answer is not needed, where there is room for it.
    pub(super) fn tell(&self, ask: Ask) {
        let id = self.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        let sent = wire::frame(&Asked { id, ask }).map(|frame| self.requests.try_send(frame));
        if !matches!(sent, Ok(Ok(()))) {
            tracing::debug!("a word to the broker was lost with the connection");
        }
    }

    /// Sends a request and waits for its answer.
    pub(super) async fn ask(&self, ask: Ask) -> io::Result<Tell> {
        self.send(ask).await?.await.map_err(|_| gone())
    }

    pub(super) fn is_gone(&self) -> bool {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    pub(super) fn close(&self) {
        self.open.send_replace(false);
    }
}

fn gone() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionReset, "the connection to the broker is gone")
}

/// Waits until the connection is closed from this side, or its owner is gone.
async fn closed(mut open: watch::Receiver<bool>) {
    let _ = open.wait_for(|open| !*open).await;
}

async fn write(mut to: OwnedWriteHalf, mut outgoing: mpsc::Receiver<Vec<u8>>, open: watch::Receiver<bool>) {
    let writing = async {
        while let Some(frame) = outgoing.recv().await {
            if wire::write(&mut to, &frame).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = writing => {}
        () = closed(open) => {}
    }
}

async fn read(mut from: OwnedReadHalf, waiting: Waiting, open: watch::Receiver<bool>) {
    let reading = async {
        while let Ok(Some(Told { id, tell })) = wire::read::<Told>(&mut from).await {
            let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(answered) = waiting.as_mut().and_then(|waiting| waiting.remove(&id)) {
                // The caller may have stopped waiting.
                let _ = answered.send(tell);
            }
        }
    };
    tokio::select! {
        () = reading => {}
        () = closed(open) => {}
    }
    // Drops every sender, by which waiting callers learn that no answer comes.
    waiting.lock().unwrap_or_else(PoisonError::into_inner).take();
}
