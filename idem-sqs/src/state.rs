//! What the receivers, the keeper and the worker's tasks share: the messages in hand, and what waits to be handed over.

use std::{
    collections::{HashMap, VecDeque},
    pin::pin,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use idem_core::{Assignment, CancellationToken, Delivery, Message, Received, Revocation, SourceError};
use tokio::{
    sync::{Mutex as AsyncMutex, Notify},
    time::Instant,
};

use crate::{
    config::VISIBILITY_MAX,
    queue::{Answer, Change, seconds},
};

/// How many messages wait for the worker before receivers pause. Each receiver may bring ten more. Messages that wait
/// here are kept from other workers, so these are few.
const BUFFER: usize = 10;

/// What settles one delivery.
#[derive(Debug)]
pub struct SqsHandle {
    pub(crate) number: u64,
}

/// A message as it was received.
#[derive(Debug)]
pub(crate) struct Incoming {
    pub(crate) message: Message,
    pub(crate) message_id: String,
    pub(crate) receipt: String,
    pub(crate) attempt: u32,
}

/// What SQS is to be told of one delivery.
#[derive(Debug)]
pub(crate) struct Item {
    pub(crate) number: u64,
    pub(crate) receipt: String,
    pub(crate) change: Change,
}

#[derive(Debug)]
pub(crate) struct Shared {
    state: Mutex<State>,
    visibility: Duration,
    /// Nothing more is handed over.
    pub(crate) stopped: CancellationToken,
    /// Something is there for `receive`.
    arrived: Notify,
    /// Receivers may go on.
    room: Notify,
    /// There are messages to be kept from others.
    kept: Notify,
    /// Held while visibilities are extended: a release that overtook an extension would be undone by it.
    pub(crate) extending: AsyncMutex<()>,
}

#[derive(Debug, Default)]
struct State {
    buffer: VecDeque<Delivery<SqsHandle>>,
    held: HashMap<u64, Held>,
    /// The latest delivery of each message in hand.
    latest: HashMap<String, u64>,
    revocations: VecDeque<Revocation>,
    failure: Option<SourceError>,
    deliveries: u64,
    /// Grows when a message arrives or is given back, after which earlier polls prove nothing.
    changes: u64,
    quiet_polls: u32,
}

/// A delivery that is not settled.
#[derive(Debug)]
struct Held {
    receipt: String,
    message_id: String,
    received_at: Instant,
    /// Until when SQS keeps it from others, at least.
    hidden_until: Instant,
    /// `None` while it is deleted: an extension would only meet that.
    extend_at: Option<Instant>,
}

/// What the keeper does with a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Care {
    Wait,
    Extend,
    /// No extension goes beyond the twelve hours of SQS.
    LastTime,
    GiveUp,
}

impl Held {
    fn care(&self, now: Instant, visibility: Duration) -> Care {
        // A little early, so that deliveries that were received together are extended together.
        if self.extend_at.is_none_or(|at| now + visibility / 16 < at) {
            Care::Wait
        } else if now >= self.hidden_until {
            Care::GiveUp
        } else if now + visibility > self.received_at + VISIBILITY_MAX {
            Care::LastTime
        } else {
            Care::Extend
        }
    }
}

impl Shared {
    pub(crate) fn new(visibility: Duration) -> Self {
        Self {
            state: Mutex::default(),
            visibility,
            stopped: CancellationToken::new(),
            arrived: Notify::new(),
            room: Notify::new(),
            kept: Notify::new(),
            extending: AsyncMutex::new(()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing in here panics between two changes that belong together.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next thing to hand over. Nothing is lost where the caller is dropped: what is taken is returned at once.
    pub(crate) async fn receive(&self, max: usize) -> Result<Received<SqsHandle>, SourceError> {
        loop {
            if let Some(answer) = self.next(max) {
                return answer;
            }
            self.arrived.notified().await;
        }
    }

    fn next(&self, max: usize) -> Option<Result<Received<SqsHandle>, SourceError>> {
        let mut state = self.lock();
        // What is still in the buffer goes back at the close.
        if self.stopped.is_cancelled() {
            return Some(Ok(Received::End));
        }
        if let Some(failure) = state.failure.take() {
            return Some(Err(failure));
        }
        if let Some(revocation) = state.revocations.pop_front() {
            return Some(Ok(Received::Revoked(revocation)));
        }
        let count = max.min(state.buffer.len());
        if count == 0 {
            return None;
        }
        let deliveries = state.buffer.drain(..count).collect();
        self.room.notify_waiters();
        Some(Ok(Received::Deliveries(deliveries)))
    }

    pub(crate) fn stop(&self) {
        self.stopped.cancel();
        self.arrived.notify_one();
    }

    pub(crate) fn fail(&self, failure: SourceError) {
        self.lock().failure = Some(failure);
        self.arrived.notify_one();
    }

    /// Waits until there is room for more messages; false once it is stopped.
    pub(crate) async fn room(&self) -> bool {
        loop {
            let mut changed = pin!(self.room.notified());
            // Before looking, so that no change in between is missed.
            changed.as_mut().enable();
            if self.stopped.is_cancelled() {
                return false;
            }
            if self.lock().buffer.len() < BUFFER {
                return true;
            }
            tokio::select! {
                () = changed => {}
                () = self.stopped.cancelled() => {}
            }
        }
    }

    /// How much has changed so far, which a poll that begins must know at its end.
    pub(crate) fn changes(&self) -> u64 {
        self.lock().changes
    }

    /// Takes in what one poll brought, which began after so many `changes`.
    pub(crate) fn deliver(&self, changes: u64, messages: Vec<Incoming>) {
        let mut state = self.lock();
        if messages.is_empty() {
            state.quiet_polls = if state.changes == changes { state.quiet_polls + 1 } else { 0 };
            return;
        }
        self.kept.notify_one();
        state.changed();
        let now = Instant::now();
        for incoming in messages {
            let Incoming { message, message_id, receipt, attempt } = incoming;
            state.deliveries += 1;
            let number = state.deliveries;
            // Its visibility has passed, and with the new receipt the old one is void: a standard queue would answer a
            // delete by it with success, and delete nothing (F2).
            if let Some(before) = state.latest.insert(message_id.clone(), number) {
                state.forget(before);
            }
            let (hidden_until, extend_at) = (now + self.visibility, Some(now + self.visibility / 2));
            state.held.insert(number, Held { receipt, message_id, received_at: now, hidden_until, extend_at });
            let (assignment, handle) = (Assignment(number), SqsHandle { number });
            let delivery = Delivery { message, attempt, redelivered: attempt > 1, assignment, handle };
            state.buffer.push_back(delivery);
        }
        self.arrived.notify_one();
    }

    /// Whether nothing is in hand, and two polls in a row brought nothing.
    pub(crate) fn is_quiet(&self) -> bool {
        let state = self.lock();
        !self.stopped.is_cancelled() && state.held.is_empty() && state.quiet_polls >= 2
    }

    /// What a message needs to be deleted. It is in hand until [`forget`](Self::forget), and not extended any more.
    pub(crate) fn to_delete(&self, handle: &SqsHandle) -> Option<Item> {
        let mut state = self.lock();
        let held = state.held.get_mut(&handle.number)?;
        held.extend_at = None;
        Some(Item { number: handle.number, receipt: held.receipt.clone(), change: Change::Delete })
    }

    /// What a message needs to be given back. It is not extended any more, whatever becomes of that.
    pub(crate) fn to_release(&self, handle: &SqsHandle, after: Duration) -> Option<Item> {
        self.lock().take(handle.number, after)
    }

    /// The same for all that is in hand and not being deleted, in the order in which it was received.
    pub(crate) fn all_to_release(&self) -> Vec<Item> {
        let mut state = self.lock();
        let kept = |(number, held): (&u64, &Held)| held.extend_at.map(|_| *number);
        let mut numbers: Vec<u64> = state.held.iter().filter_map(kept).collect();
        numbers.sort_unstable();
        numbers.into_iter().filter_map(|number| state.take(number, Duration::ZERO)).collect()
    }

    /// Whether it is still in hand.
    pub(crate) fn has(&self, number: u64) -> bool {
        self.lock().held.contains_key(&number)
    }

    /// These are settled.
    pub(crate) fn forget(&self, numbers: impl IntoIterator<Item = u64>) {
        let mut state = self.lock();
        numbers.into_iter().for_each(|number| drop(state.forget(number)));
    }

    /// Waits until a visibility is to be extended.
    pub(crate) async fn until_due(&self) {
        loop {
            let next = self.lock().held.values().filter_map(|held| held.extend_at).min();
            let Some(next) = next else {
                self.kept.notified().await;
                continue;
            };
            if next <= Instant::now() {
                return;
            }
            tokio::time::sleep_until(next).await;
        }
    }

    /// What is to be extended now. What cannot be any more is given up.
    pub(crate) fn due(&self) -> Vec<(u64, String)> {
        let now = Instant::now();
        let (mut due, mut lost) = (Vec::new(), Vec::new());
        let mut state = self.lock();
        for (number, held) in &mut state.held {
            match held.care(now, self.visibility) {
                Care::Wait => {}
                Care::Extend => due.push((*number, held.receipt.clone())),
                Care::LastTime => held.extend_at = Some(held.hidden_until),
                Care::GiveUp => lost.push(*number),
            }
        }
        lost.into_iter().for_each(|number| state.lose(number, "its visibility could not be extended in time"));
        self.arrived.notify_one();
        // What is lost may have waited in the buffer, and receivers for room in it.
        self.room.notify_waiters();
        due
    }

    /// What SQS answered to extensions that were sent at `sent_at`.
    pub(crate) fn extended(&self, sent_at: Instant, answers: impl IntoIterator<Item = (u64, Answer)>) {
        let mut state = self.lock();
        for (number, answer) in answers {
            // Not where it is settled meanwhile.
            let Some(held) = state.held.get_mut(&number).filter(|held| held.extend_at.is_some()) else { continue };
            match answer {
                Answer::Done => {
                    held.hidden_until = sent_at + self.visibility;
                    held.extend_at = Some(sent_at + self.visibility / 2);
                }
                Answer::Again | Answer::Refused => held.extend_at = Some(Instant::now() + self.visibility / 8),
                Answer::Gone => state.lose(number, "SQS does not extend its visibility any more"),
            }
        }
        self.arrived.notify_one();
        self.room.notify_waiters();
    }
}

impl State {
    fn changed(&mut self) {
        self.changes += 1;
        self.quiet_polls = 0;
    }

    fn forget(&mut self, number: u64) -> Option<Held> {
        let held = self.held.remove(&number)?;
        if self.latest.get(&held.message_id) == Some(&number) {
            self.latest.remove(&held.message_id);
        }
        self.buffer.retain(|delivery| delivery.handle.number != number);
        Some(held)
    }

    fn take(&mut self, number: u64, after: Duration) -> Option<Item> {
        let held = self.forget(number)?;
        self.changed();
        let left = VISIBILITY_MAX.saturating_sub(held.received_at.elapsed());
        Some(Item { number, receipt: held.receipt, change: Change::Visible(seconds(after.min(left))) })
    }

    /// A delivery is lost while it is in hand: loudly, because its handler may run beside another one now.
    fn lose(&mut self, number: u64, why: &str) {
        let Some(held) = self.forget(number) else { return };
        let held_for = held.received_at.elapsed();
        tracing::error!(
            message_id = held.message_id,
            ?held_for,
            "a message in hand is given up, because {why}; it is delivered again"
        );
        self.revocations.push_back(Revocation { assignments: vec![Assignment(number)], drained: None });
    }
}

#[cfg(test)]
mod tests;
