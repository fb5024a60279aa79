//! The consumer's side of a queue: everything that the contract of [`Source`](idem_core::Source) asks for, over a link
//! that is either in this process or a socket.

use std::{
    collections::BTreeSet,
    fmt,
    future::Future,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use idem_core::{
    SourceError,
    source::{Assignment, Attached, Delivery, Received, Revocation, Settle, Settled, SourceCapabilities},
};
use tokio::sync::{oneshot, watch};

use super::{
    broker::Revoke,
    session::{Facts, Got},
    state::{Answer, Handed, Receipt},
};

/// How long a settlement may go unanswered before its outcome counts as unknown, and a stopped receive before it ends.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
const STOP_GRACE: Duration = Duration::from_millis(500);
/// Pauses between attempts to reconnect, and after how many of them `receive` reports that the broker is away.
const BACKOFF_MIN: Duration = Duration::from_millis(5);
const BACKOFF_MAX: Duration = Duration::from_millis(320);
const ATTEMPTS_MAX: u32 = 9;

/// How a consumer reaches the broker.
pub(super) trait Link: Send + Sync + fmt::Debug + 'static {
    type Seat: LinkSeat;

    fn open(&self) -> impl Future<Output = Result<(Self::Seat, Facts), SourceError>> + Send;

    /// The queue's capabilities, as far as they are known before attaching.
    fn facts(&self) -> Option<Facts>;

    /// Broker and queue as one text.
    fn bound_to(&self) -> String;
}

/// A consumer's seat at a queue.
pub(super) trait LinkSeat: Send + Sync + fmt::Debug + 'static {
    /// Waits for something to hand over. Cancel safe.
    fn receive(&self, max: usize) -> impl Future<Output = Got> + Send;
    fn settle(&self, settlements: Vec<(Receipt, Answer)>) -> impl Future<Output = Vec<Settled>> + Send;
    fn is_idle(&self) -> impl Future<Output = bool> + Send;
    fn drained(&self, assignment: u64);
    fn stop(&self);
    /// Leaves, and waits until what was held is back.
    fn leave(&self) -> impl Future<Output = ()> + Send;
    /// Leaves without waiting.
    fn let_go(&self);
}

/// The identity of one delivery of a [`MemorySource`](super::MemorySource) or [`RemoteSource`](super::RemoteSource) to
/// the broker: the connection, the assignment and the receipt.
#[derive(Debug)]
pub struct MemoryHandle {
    connection: u64,
    receipt: Receipt,
}

#[derive(Debug)]
struct Current<S> {
    seat: S,
    connection: u64,
    /// The assignment of the latest delivery, and the latest assignment that is over.
    assignment: AtomicU64,
    ended: AtomicU64,
    /// Where the broker keeps positions, an assignment and the furthest message that was settled for good under it.
    settled_to: Mutex<(u64, u64)>,
    /// And the messages that were not, each behind its assignment.
    unfinished: Mutex<BTreeSet<(u64, u64)>>,
    positions: bool,
}

#[derive(Debug)]
pub(super) struct Client<L: Link> {
    link: L,
    current: Mutex<Option<Arc<Current<L::Seat>>>>,
    connections: AtomicU64,
    attached: AtomicBool,
    closed: AtomicBool,
    stopped: watch::Sender<bool>,
    paused: watch::Sender<bool>,
}

impl<L: Link> Client<L> {
    pub(super) fn new(link: L) -> Self {
        Self {
            link,
            current: Mutex::new(None),
            connections: AtomicU64::new(0),
            attached: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            stopped: watch::Sender::new(false),
            paused: watch::Sender::new(false),
        }
    }

    pub(super) fn capabilities(&self) -> SourceCapabilities {
        self.link.facts().map_or(SourceCapabilities::minimal(), |facts| facts.capabilities())
    }

    pub(super) fn keeps_positions(&self) -> bool {
        self.link.facts().is_some_and(|facts| facts.positions)
    }

    pub(super) async fn attach(&self) -> Result<Attached, SourceError> {
        if self.closed.load(Ordering::SeqCst) {
            let problem = "the source was closed".to_owned();
            return Err(SourceError::Refused { problem, cure: "Make a new one".to_owned() });
        }
        let facts = match (self.current(), self.link.facts()) {
            // Attached already: a second seat would share the messages with the first, and stay unread.
            (Some(_), Some(facts)) => facts,
            (Some(_) | None, _) => self.open().await?,
        };
        self.attached.store(true, Ordering::SeqCst);
        Ok(facts.attached(self.link.bound_to()))
    }

    async fn open(&self) -> Result<Facts, SourceError> {
        let opening = tokio::time::timeout(ANSWER_TIMEOUT, self.link.open()).await;
        let (seat, facts) = opening.map_err(|elapsed| SourceError::unavailable("attaching", elapsed))??;
        let connection = self.connections.fetch_add(1, Ordering::SeqCst) + 1;
        let current = Current {
            seat,
            connection,
            assignment: AtomicU64::new(facts.seat),
            ended: AtomicU64::new(0),
            settled_to: Mutex::default(),
            unfinished: Mutex::default(),
            positions: facts.positions,
        };
        if self.is_stopped() {
            current.seat.stop();
        }
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(current));
        Ok(facts)
    }

    fn current(&self) -> Option<Arc<Current<L::Seat>>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn is_stopped(&self) -> bool {
        *self.stopped.borrow()
    }

    /// Waits until the source is stopped, and `grace` longer.
    async fn stopped_for(&self, grace: Duration) {
        let mut stopped = self.stopped.subscribe();
        // The sender is ours, so the channel cannot be closed.
        let _ = stopped.wait_for(|stopped| *stopped).await;
        tokio::time::sleep(grace).await;
    }

    pub(super) async fn receive(&self, max: usize) -> Result<Received<MemoryHandle>, SourceError> {
        if !self.attached.load(Ordering::SeqCst) {
            let problem = "receive was called before attach".to_owned();
            return Err(SourceError::Refused { problem, cure: "Attach first".to_owned() });
        }
        loop {
            let Some(current) = self.current() else {
                match self.reopen().await {
                    Some(Ok(())) => continue,
                    Some(Err(error)) => return Err(error),
                    None => return Ok(Received::End),
                }
            };
            let mut paused = self.paused.subscribe();
            let max = if *paused.borrow_and_update() { 0 } else { max };
            // Without the grace a broker that hangs would keep a stopped source waiting; messages that it still hands
            // over in that time are handed on.
            let got = tokio::select! {
                biased;
                got = current.seat.receive(max) => got,
                () = self.stopped_for(STOP_GRACE) => Got::End,
                // The sender is ours, so the channel cannot be closed.
                Ok(()) = paused.changed() => continue,
            };
            match got {
                Got::Deliveries(handed) => return Ok(Received::Deliveries(current.deliveries(handed))),
                Got::Revoked(assignment, how) => return Ok(Received::Revoked(revocation(&current, assignment, how))),
                Got::End => return Ok(Received::End),
                Got::Failed(error) => return Err(error),
                Got::Gone => {
                    if let Some(assignment) = self.lost(&current) {
                        return Ok(Received::Revoked(Revocation { assignments: vec![assignment], drained: None }));
                    }
                }
            }
        }
    }

    /// The connection is gone. Answers the assignment that went with it, where core does not know yet.
    fn lost(&self, lost: &Arc<Current<L::Seat>>) -> Option<Assignment> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if current.as_ref().is_some_and(|current| current.connection == lost.connection) {
            *current = None;
        }
        let assignment = lost.assignment.load(Ordering::SeqCst);
        let unknown = lost.ended.fetch_max(assignment, Ordering::SeqCst) < assignment;
        unknown.then(|| named(lost.connection, assignment))
    }

    /// Connects again, with growing pauses; `None` when the source was stopped meanwhile.
    async fn reopen(&self) -> Option<Result<(), SourceError>> {
        let mut pause = BACKOFF_MIN;
        for attempt in 1.. {
            if self.is_stopped() {
                return None;
            }
            match self.open().await {
                Ok(_) => return Some(Ok(())),
                Err(error @ SourceError::Unavailable { .. }) if attempt < ATTEMPTS_MAX => {
                    tracing::debug!(error = &error as &dyn std::error::Error, "the broker is away");
                }
                Err(error) => return Some(Err(error)),
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.stopped_for(Duration::ZERO) => return None,
            }
            pause = (pause * 2).min(BACKOFF_MAX);
        }
        None
    }

    pub(super) async fn settle(&self, settlements: Vec<(MemoryHandle, Settle)>) -> Vec<Settled> {
        let mut answers = vec![Settled::Stale; settlements.len()];
        let Some(current) = self.current() else { return answers };
        let ended = current.ended.load(Ordering::SeqCst);
        let (mut sent, mut places) = (Vec::new(), Vec::new());
        for (place, (handle, settle)) in settlements.into_iter().enumerate() {
            if handle.connection == current.connection && handle.receipt.assignment > ended {
                current.note_settled(&handle.receipt, &settle);
                sent.push((handle.receipt, answer(&settle)));
                places.push(place);
            }
        }
        if sent.is_empty() {
            return answers;
        }
        let unknown = vec![Settled::Unknown; sent.len()];
        let settled = tokio::time::timeout(ANSWER_TIMEOUT, current.seat.settle(sent)).await.unwrap_or(unknown);
        for (place, settled) in places.into_iter().zip(settled) {
            if let Some(answer) = answers.get_mut(place) {
                *answer = settled;
            }
        }
        answers
    }

    pub(super) fn holds_back(&self, handle: &MemoryHandle) -> bool {
        let Some(current) = self.current().filter(|current| current.positions) else { return false };
        let (assignment, settled_to) = *current.settled_to.lock().unwrap_or_else(PoisonError::into_inner);
        let same = handle.connection == current.connection && handle.receipt.assignment == assignment;
        same && handle.receipt.sequence < settled_to
    }

    pub(super) fn is_held_back(&self, handle: &MemoryHandle) -> bool {
        let Some(current) = self.current().filter(|current| handle.connection == current.connection) else {
            return false;
        };
        let Receipt { assignment, sequence, .. } = handle.receipt;
        let unfinished = current.unfinished.lock().unwrap_or_else(PoisonError::into_inner);
        unfinished.range((assignment, 0)..(assignment, sequence)).next().is_some()
    }

    pub(super) async fn is_idle(&self) -> bool {
        let Some(current) = self.current() else { return false };
        tokio::time::timeout(ANSWER_TIMEOUT, current.seat.is_idle()).await.unwrap_or(false)
    }

    pub(super) fn pause(&self, paused: bool) {
        self.paused.send_replace(paused);
    }

    pub(super) fn stop(&self) {
        self.stopped.send_replace(true);
        if let Some(current) = self.current() {
            current.seat.stop();
        }
    }

    pub(super) async fn close(&self, deadline: Duration) {
        self.closed.store(true, Ordering::SeqCst);
        self.stop();
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(current) = current {
            let left = tokio::time::timeout(deadline, current.seat.leave()).await;
            if left.is_err() {
                tracing::warn!("the broker did not answer before the deadline, and was left without a word");
            }
            current.seat.let_go();
        }
    }
}

impl<L: Link> Drop for Client<L> {
    fn drop(&mut self) {
        // A task that waits for a revocation to be drained may hold the seat for longer than its consumer lives.
        if let Some(current) = self.current() {
            current.seat.let_go();
        }
    }
}

impl<S: LinkSeat> Current<S> {
    fn note_settled(&self, receipt: &Receipt, settle: &Settle) {
        if matches!(settle, Settle::Release { .. }) {
            return;
        }
        let unfinished = (receipt.assignment, receipt.sequence);
        self.unfinished.lock().unwrap_or_else(PoisonError::into_inner).remove(&unfinished);
        let mut settled_to = self.settled_to.lock().unwrap_or_else(PoisonError::into_inner);
        *settled_to = match *settled_to {
            (assignment, sequence) if assignment == receipt.assignment => (assignment, sequence.max(receipt.sequence)),
            _ => (receipt.assignment, receipt.sequence),
        };
    }

    fn deliveries(&self, handed: Vec<Handed>) -> Vec<Delivery<MemoryHandle>> {
        if let Some(last) = handed.last() {
            self.assignment.fetch_max(last.receipt.assignment, Ordering::SeqCst);
            if self.positions {
                let mut unfinished = self.unfinished.lock().unwrap_or_else(PoisonError::into_inner);
                unfinished.retain(|(assignment, _)| *assignment == last.receipt.assignment);
                unfinished.extend(handed.iter().map(|handed| (handed.receipt.assignment, handed.receipt.sequence)));
            }
        }
        let delivery = |handed: Handed| Delivery {
            message: handed.message,
            attempt: handed.attempt,
            redelivered: handed.redelivered,
            // A broker that knows nothing of why it has a message back.
            suspect: handed.redelivered,
            assignment: named(self.connection, handed.receipt.assignment),
            handle: MemoryHandle { connection: self.connection, receipt: handed.receipt },
        };
        handed.into_iter().map(delivery).collect()
    }
}

fn revocation<S: LinkSeat>(current: &Arc<Current<S>>, assignment: u64, how: Revoke) -> Revocation {
    let drained = match how {
        Revoke::Lost => {
            current.ended.fetch_max(assignment, Ordering::SeqCst);
            None
        }
        Revoke::Drained => {
            let (drained, finished) = oneshot::channel();
            let current = Arc::clone(current);
            tokio::spawn(async move {
                // A dropped sender means the same: these will not be settled any more.
                let _ = finished.await;
                current.ended.fetch_max(assignment, Ordering::SeqCst);
                current.seat.drained(assignment);
            });
            Some(drained)
        }
    };
    Revocation { assignments: vec![named(current.connection, assignment)], drained }
}

/// The assignment as core knows it. A broker that was started again counts from the beginning, so the connection is
/// part of it.
fn named(connection: u64, assignment: u64) -> Assignment {
    Assignment(connection << 40 | assignment)
}

fn answer(settle: &Settle) -> Answer {
    match settle {
        Settle::Acknowledge(_) => Answer::Acknowledge,
        Settle::Release { after } => Answer::Release { after: *after },
        Settle::DeadLetter(_) => Answer::DeadLetter,
    }
}
