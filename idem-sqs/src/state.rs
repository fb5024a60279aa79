//! State of the receivers, the keeper and the worker's tasks: the messages in hand, and those that wait to be handed over.

use std::{
    collections::{HashMap, VecDeque},
    pin::pin,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use idem_core::{
    CancellationToken, Message, SourceError,
    message::OrderingKey,
    source::{Assignment, Delivery, REFUSAL_GRACE, Received, Revocation},
};
use tokio::{
    sync::{Mutex as AsyncMutex, Notify},
    time::Instant,
};

use crate::{
    options::VISIBILITY_MAX,
    queue::{AT_ONCE, Answer, Change, seconds},
};

/// The handle that settles one delivery.
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
    pub(crate) suspect: bool,
}

/// The request to SQS about one delivery.
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
    /// There is something for `receive`.
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
    /// Since when receives fail, and since when SQS refuses them.
    unreachable_since: Option<Instant>,
    refused_since: Option<Instant>,
    /// How many messages the worker asks for now, and how many are being asked for.
    wanted: usize,
    asked: usize,
    /// Messages behind one that was lost in its group, which are to be given back.
    given_up: Vec<Item>,
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
    /// On a FIFO queue.
    group: Option<OrderingKey>,
    received_at: Instant,
    /// Until when SQS keeps it from others, at least.
    hidden_until: Instant,
    /// `None` while it is deleted: an extension would only meet that.
    extend_at: Option<Instant>,
}

/// The keeper's action for a delivery.
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

    /// The next thing to hand over. Nothing is lost if the caller is dropped: whatever is taken is returned at once.
    pub(crate) async fn receive(&self, max: usize) -> Result<Received<SqsHandle>, SourceError> {
        let _wanted = Wanted::new(self, max);
        loop {
            if let Some(answer) = self.next(max) {
                return answer;
            }
            self.arrived.notified().await;
        }
    }

    fn next(&self, max: usize) -> Option<Result<Received<SqsHandle>, SourceError>> {
        let mut state = self.lock();
        // Messages still in the buffer go back at the close.
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
        Some(Ok(Received::Deliveries(state.buffer.drain(..count).collect())))
    }

    pub(crate) fn stop(&self) {
        self.stopped.cancel();
        self.arrived.notify_one();
    }

    pub(crate) fn fail(&self, failure: SourceError) {
        self.lock().failure = Some(failure);
        self.arrived.notify_one();
    }

    /// A receive failed. A refusal counts as an outage for a while.
    pub(crate) fn receive_failed(&self, error: SourceError) {
        let now = Instant::now();
        let mut state = self.lock();
        state.unreachable_since.get_or_insert(now);
        let is_refused = matches!(error, SourceError::Refused { .. });
        state.refused_since = is_refused.then(|| state.refused_since.unwrap_or(now));
        let may_pass = state.refused_since.is_some_and(|since| now.duration_since(since) < REFUSAL_GRACE);
        drop(state);
        let failure =
            if may_pass { SourceError::Unavailable { doing: "receiving", source: error.into() } } else { error };
        self.fail(failure);
    }

    /// A receive was answered.
    pub(crate) fn receive_answered(&self) {
        let mut state = self.lock();
        (state.unreachable_since, state.refused_since) = (None, None);
    }

    pub(crate) fn unreachable_for(&self) -> Option<Duration> {
        self.lock().unreachable_since.map(|since| since.elapsed())
    }

    /// Waits until more messages are wanted, and returns how many to ask for: messages that wait here are hidden from other
    /// workers. `None` once it is stopped. [`answered`](Self::answered) follows.
    pub(crate) async fn room(&self) -> Option<usize> {
        loop {
            let mut changed = pin!(self.room.notified());
            // Before looking, so that no change in between is missed.
            changed.as_mut().enable();
            if self.stopped.is_cancelled() {
                return None;
            }
            if let Some(count) = self.lock().ask() {
                return Some(count);
            }
            tokio::select! {
                () = changed => {}
                () = self.stopped.cancelled() => {}
            }
        }
    }

    /// This many are not being asked for any more.
    pub(crate) fn answered(&self, count: usize) {
        self.lock().asked -= count;
        self.room.notify_waiters();
    }

    /// How much has changed so far, which a poll that begins must know at its end.
    pub(crate) fn changes(&self) -> u64 {
        self.lock().changes
    }

    /// Takes in the messages of one poll, which began at this number of `changes`.
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
            let Incoming { message, message_id, receipt, attempt, suspect } = incoming;
            state.deliveries += 1;
            let number = state.deliveries;
            // Its visibility has passed, and with the new receipt the old one is void: a standard queue would answer a
            // delete by it with success, and delete nothing (F2).
            if let Some(before) = state.latest.insert(message_id.clone(), number) {
                state.forget(before);
            }
            let (hidden_until, extend_at) = (now + self.visibility, Some(now + self.visibility / 2));
            let group = message.ordering_key().cloned();
            state.held.insert(number, Held { receipt, message_id, group, received_at: now, hidden_until, extend_at });
            let (assignment, handle) = (Assignment(number), SqsHandle { number });
            let delivery = Delivery { message, attempt, redelivered: attempt > 1, suspect, assignment, handle };
            state.buffer.push_back(delivery);
        }
        self.arrived.notify_one();
    }

    /// Whether nothing is in hand, and two polls in a row brought nothing.
    pub(crate) fn is_quiet(&self) -> bool {
        let state = self.lock();
        !self.stopped.is_cancelled() && state.held.is_empty() && state.quiet_polls >= 2
    }

    /// The facts with which a message is deleted. It is in hand until [`forget`](Self::forget), and not extended any more.
    pub(crate) fn to_delete(&self, handle: &SqsHandle) -> Option<Item> {
        let mut state = self.lock();
        let held = state.held.get_mut(&handle.number)?;
        held.extend_at = None;
        Some(Item { number: handle.number, receipt: held.receipt.clone(), change: Change::Delete })
    }

    /// The facts with which a message is given back. It is not extended any more, even if that fails.
    pub(crate) fn to_release(&self, handle: &SqsHandle, after: Duration) -> Option<Item> {
        let item = self.lock().take(handle.number, after);
        self.room.notify_waiters();
        item
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
        drop(state);
        self.room.notify_waiters();
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

    /// The messages to extend now. Those that cannot be extended any more are given up.
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
        // It may have gone with a lost message of its group.
        due.retain(|(number, _)| state.held.contains_key(number));
        drop(state);
        self.arrived.notify_one();
        // A lost message may have waited in the buffer.
        self.room.notify_waiters();
        due
    }

    /// The messages to give back because one before them in their group was lost, in the order in which they were received.
    pub(crate) fn given_up(&self) -> Vec<Item> {
        let mut items = std::mem::take(&mut self.lock().given_up);
        items.sort_unstable_by_key(|item| item.number);
        items
    }

    /// Notes the answers of SQS to extensions that were sent at `sent_at`.
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

    /// How many messages a receive that begins now asks for. Where nothing is in hand at all there is one receive, whatever
    /// is wanted: that is how a source finds out that its queue is at its end.
    fn ask(&mut self) -> Option<usize> {
        let wanted = if self.held.is_empty() { self.wanted.max(AT_ONCE) } else { self.wanted };
        let count = wanted.saturating_sub(self.buffer.len() + self.asked).min(AT_ONCE);
        self.asked += count;
        (count > 0).then_some(count)
    }

    /// A delivery is lost while it is in hand: loudly, because its handler may run beside another one now. Messages that follow it
    /// in its group would overtake it, so that goes too, and goes back: SQS hands nothing of a group over while something
    /// of it is in flight.
    fn lose(&mut self, number: u64, why: &str) {
        let Some(held) = self.forget(number) else { return };
        let held_for_s = held.received_at.elapsed().as_secs();
        tracing::error!(
            message_id = held.message_id,
            held_for_s,
            "a message in hand is given up, because {why}; it is delivered again"
        );
        let follows = |(other, follower): &(&u64, &Held)| {
            **other > number && held.group.is_some() && follower.group == held.group && follower.extend_at.is_some()
        };
        let mut lost: Vec<u64> = self.held.iter().filter(follows).map(|(number, _)| *number).collect();
        lost.sort_unstable();
        for follower in &lost {
            let item = self.take(*follower, Duration::ZERO);
            self.given_up.extend(item);
        }
        if !lost.is_empty() {
            tracing::warn!(
                followers = lost.len(),
                "the messages behind it in its group are given back, to keep their order"
            );
        }
        lost.insert(0, number);
        let assignments = lost.into_iter().map(Assignment).collect();
        self.revocations.push_back(Revocation { assignments, drained: None });
    }
}

/// How many messages the worker wants, for as long as it waits for them.
struct Wanted<'a>(&'a Shared);

impl<'a> Wanted<'a> {
    fn new(shared: &'a Shared, max: usize) -> Self {
        shared.lock().wanted = max;
        shared.room.notify_waiters();
        Self(shared)
    }
}

impl Drop for Wanted<'_> {
    fn drop(&mut self) {
        self.0.lock().wanted = 0;
    }
}

#[cfg(test)]
mod tests;
