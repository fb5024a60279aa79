//! One queue as a state machine: time comes in as an argument, nothing waits, nothing is sent.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use idem_core::{Message, SourceError, message::Origin, source::Settled};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::{
    options::{Faults, Order, QueueOptions},
    ready::{Away, Ready},
    stats::{History, Stats},
};

/// How many bytes one hand-over has before it ends, so that it fits into a frame of the socket.
const HAND_OVER_BYTES_MAX: usize = 8 << 20;

/// The broker's identity of one delivery. Receipts are never used again, so a handle settles at most once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Receipt {
    pub(super) assignment: u64,
    pub(super) sequence: u64,
    pub(super) number: u64,
}

/// An answer to the broker, without the proof that the engine attaches to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Answer {
    Acknowledge,
    Release { after: Duration },
    DeadLetter,
}

/// One delivery.
#[derive(Debug)]
pub(super) struct Handed {
    pub(super) message: Message,
    pub(super) attempt: u32,
    pub(super) redelivered: bool,
    pub(super) receipt: Receipt,
}

#[derive(Debug)]
struct Entry {
    message: Message,
    deliveries: u32,
    resurrected: bool,
    place: Place,
}

#[derive(Debug)]
enum Place {
    Ready,
    Delayed,
    InFlight {
        assignment: u64,
        receipt: u64,
        until: Option<Instant>,
    },
    /// Settled, but not off the queue before those in front of it are: only where positions are kept.
    Finished {
        assignment: u64,
    },
}

#[derive(Debug)]
pub(super) struct QueueState {
    name: String,
    pub(super) options: QueueOptions,
    pub(super) faults: Faults,
    pub(super) rng: fastrand::Rng,
    last_sequence: u64,
    last_receipt: u64,
    entries: BTreeMap<u64, Entry>,
    bytes: usize,
    ready: Ready,
    /// Delays and leases, the earliest first.
    timers: BTreeSet<(Instant, u64)>,
    /// The messages of each assignment.
    held: BTreeMap<u64, BTreeSet<u64>>,
    stats: Stats,
    history: BTreeMap<u64, History>,
    /// Messages at their delivery limit, which the broker moves to another queue.
    expelled: Vec<Message>,
}

impl QueueState {
    pub(super) fn new(name: &str, options: QueueOptions) -> Self {
        Self {
            name: name.to_owned(),
            faults: Faults::default(),
            rng: fastrand::Rng::with_seed(options.seed),
            last_sequence: 0,
            last_receipt: 0,
            entries: BTreeMap::new(),
            bytes: 0,
            ready: Ready::new(options.order),
            timers: BTreeSet::new(),
            held: BTreeMap::new(),
            stats: Stats::default(),
            history: BTreeMap::new(),
            expelled: Vec::new(),
            options,
        }
    }

    pub(super) fn origin(&self, sequence: u64) -> Origin {
        Origin::new(&format!("{}/{sequence}", self.name))
    }

    /// Stores a message at the end of the queue.
    pub(super) fn publish(&mut self, message: Message) -> Result<Origin, SourceError> {
        let full = self.bytes + message.bytes() > self.options.bytes_max;
        if full || self.entries.len() >= self.options.messages_max {
            return Err(SourceError::Refused {
                problem: format!("queue {:?} is full", self.name),
                cure: "Consume it, or raise messages_max and bytes_max".into(),
            });
        }
        self.last_sequence += 1;
        let sequence = self.last_sequence;
        let origin = self.origin(sequence);
        let message = ordered(message, self.options.order).with_origin(origin.clone());
        // With its origin and order, as it is taken off again.
        self.bytes += message.bytes();
        self.ready.insert(sequence, message.ordering_key());
        self.entries.insert(sequence, Entry { message, deliveries: 0, resurrected: false, place: Place::Ready });
        self.stats.published += 1;
        self.note(sequence, |_| {});
        Ok(origin)
    }

    /// Hands at most `max` messages over under `assignment`.
    pub(super) fn take(&mut self, assignment: u64, max: usize, now: Instant) -> Vec<Handed> {
        self.pass(now);
        let mut handed: Vec<Handed> = Vec::new();
        let mut bytes = 0;
        while handed.len() < max && bytes < HAND_OVER_BYTES_MAX {
            let shuffled = self.options.order == Order::None && self.faults.reordered.strikes(&mut self.rng);
            let next = if shuffled { self.ready.any(&mut self.rng) } else { self.ready.first() };
            let Some(sequence) = next else { break };
            handed.extend(self.hand_over(sequence, assignment, now));
            bytes += handed.last().map_or(0, |handed| handed.message.bytes());
        }
        handed
    }

    fn hand_over(&mut self, sequence: u64, assignment: u64, now: Instant) -> Option<Handed> {
        let entry = self.entries.get_mut(&sequence)?;
        let key = entry.message.ordering_key();
        self.ready.remove(sequence, key);
        self.ready.leave(key, Away::InFlight);
        entry.deliveries += 1;
        self.last_receipt += 1;
        let until = self.options.lease.map(|lease| now + lease);
        entry.place = Place::InFlight { assignment, receipt: self.last_receipt, until };
        self.timers.extend(until.map(|until| (until, sequence)));
        self.held.entry(assignment).or_default().insert(sequence);
        let (deliveries, marks) = (entry.deliveries, self.options.marks_redelivery && !self.options.positions);
        let handed = Handed {
            message: entry.message.clone(),
            attempt: if marks { deliveries } else { 1 },
            redelivered: marks && deliveries > 1,
            receipt: Receipt { assignment, sequence, number: self.last_receipt },
        };
        self.stats.delivered += 1;
        self.stats.redelivered += u64::from(deliveries > 1);
        self.note(sequence, |history| history.deliveries += 1);
        Some(handed)
    }

    /// Does what one settlement says, or what a fault makes of it.
    pub(super) fn settle(&mut self, receipt: Receipt, answer: Answer, now: Instant) -> Settled {
        self.pass(now);
        if !self.is_valid(receipt) {
            self.stats.stale += 1;
            return Settled::Stale;
        }
        let (faults, rng) = (self.faults, &mut self.rng);
        if faults.receipts_stale.strikes(rng) {
            self.stats.stale += 1;
            self.undo(receipt.sequence);
            return Settled::Stale;
        }
        if faults.settles_lost.strikes(rng) {
            self.undo(receipt.sequence);
            return Settled::Unknown;
        }
        if answer == Answer::Acknowledge && faults.acks_lost.strikes(rng) {
            self.undo(receipt.sequence);
            return Settled::Settled;
        }
        let answered = if faults.answers_lost.strikes(rng) { Settled::Unknown } else { Settled::Settled };
        self.apply(receipt.sequence, answer, now);
        answered
    }

    /// A settlement that is not done: the message returns, or where positions are kept is not finished.
    fn undo(&mut self, sequence: u64) {
        if self.options.positions { self.spend(sequence) } else { self.give_back(sequence) }
    }

    /// Voids the receipt, and leaves the delivery to its assignment.
    fn spend(&mut self, sequence: u64) {
        if let Some(Entry { place: Place::InFlight { receipt, .. }, .. }) = self.entries.get_mut(&sequence) {
            *receipt = 0;
        }
    }

    /// The message is done with: it goes, and where positions are kept, once all before it are done with too.
    fn finish(&mut self, sequence: u64) {
        if !self.options.positions {
            self.remove(sequence);
            return;
        }
        if let Some(entry) = self.entries.get_mut(&sequence)
            && let Place::InFlight { assignment, .. } = entry.place
        {
            entry.place = Place::Finished { assignment };
        }
        while let Some((&first, Entry { place: Place::Finished { .. }, .. })) = self.entries.first_key_value() {
            self.remove(first);
        }
    }

    fn apply(&mut self, sequence: u64, answer: Answer, now: Instant) {
        match answer {
            Answer::Acknowledge => {
                self.stats.acknowledged += 1;
                self.note(sequence, |history| history.acknowledged += 1);
                let first = self.entries.get(&sequence).is_some_and(|entry| !entry.resurrected);
                if first && !self.options.positions && self.faults.resurrected.strikes(&mut self.rng) {
                    self.stats.resurrected += 1;
                    self.end_flight(sequence);
                    if let Some(entry) = self.entries.get_mut(&sequence) {
                        entry.resurrected = true;
                    }
                    self.make_ready(sequence);
                } else {
                    self.finish(sequence);
                }
            }
            Answer::DeadLetter => {
                self.stats.dead_lettered += 1;
                self.note(sequence, |history| history.dead_lettered += 1);
                self.finish(sequence);
            }
            Answer::Release { after } => {
                self.stats.released += 1;
                self.note(sequence, |history| history.released += 1);
                if self.options.positions {
                    self.spend(sequence);
                    return;
                }
                let after = if self.options.delayed_release { after } else { Duration::ZERO };
                self.put_back(sequence, now.checked_add(after).filter(|_| !after.is_zero()));
            }
        }
    }

    /// Returns all messages that the assignment still holds. It is over, and is never used again.
    pub(super) fn end_assignment(&mut self, assignment: u64) {
        for sequence in self.held.remove(&assignment).unwrap_or_default() {
            self.give_back(sequence);
        }
    }

    /// Whether only a producer can bring a consumer with this assignment a further message.
    pub(super) fn is_idle(&self, assignment: u64) -> bool {
        let own = self.held.get(&assignment).map_or(0, BTreeSet::len);
        self.entries.len() == own
    }

    /// Lets delays and leases pass.
    pub(super) fn pass(&mut self, now: Instant) {
        while let Some(&(until, sequence)) = self.timers.first()
            && until <= now
        {
            self.timers.pop_first();
            match self.entries.get(&sequence).map(|entry| &entry.place) {
                Some(Place::Delayed) => {
                    self.ready.come(self.entries.get(&sequence).and_then(|e| e.message.ordering_key()), Away::Delayed);
                    self.make_ready(sequence);
                }
                Some(Place::InFlight { .. }) => self.give_back(sequence),
                Some(Place::Ready | Place::Finished { .. }) | None => {}
            }
        }
    }

    /// When [`pass`](Self::pass) has something to do.
    pub(super) fn next_timer(&self) -> Option<Instant> {
        self.timers.first().map(|(until, _)| *until)
    }

    /// Ends every lease now.
    pub(super) fn expire_leases(&mut self) {
        if self.options.positions {
            return;
        }
        let held: Vec<u64> = self.held.values().flatten().copied().collect();
        held.into_iter().for_each(|sequence| self.give_back(sequence));
    }

    pub(super) fn stats(&self) -> Stats {
        let in_flight = self.held.values().map(BTreeSet::len).sum::<usize>();
        let delayed = self.entries.len() - in_flight - self.ready.len();
        Stats { ready: self.ready.len() as u64, delayed: delayed as u64, in_flight: in_flight as u64, ..self.stats }
    }

    pub(super) fn note_revoked(&mut self) {
        self.stats.revoked += 1;
    }

    pub(super) fn history(&self) -> impl Iterator<Item = (Origin, History)> {
        self.history.iter().map(|(sequence, history)| (self.origin(*sequence), *history))
    }

    pub(super) fn history_of(&self, sequence: u64) -> Option<History> {
        self.history.get(&sequence).copied()
    }

    /// The messages that are not settled for good, the earliest first.
    pub(super) fn unsettled(&self) -> impl Iterator<Item = &Message> {
        self.entries.values().map(|entry| &entry.message)
    }

    pub(super) fn take_expelled(&mut self) -> Vec<Message> {
        std::mem::take(&mut self.expelled)
    }

    fn is_valid(&self, receipt: Receipt) -> bool {
        self.entries.get(&receipt.sequence).is_some_and(|entry| match entry.place {
            Place::InFlight { assignment, receipt: number, .. } => {
                assignment == receipt.assignment && number == receipt.number
            }
            Place::Ready | Place::Delayed | Place::Finished { .. } => false,
        })
    }

    /// A delivery returns without its consumer's word.
    fn give_back(&mut self, sequence: u64) {
        self.stats.returned += 1;
        self.note(sequence, |history| history.returned += 1);
        self.put_back(sequence, None);
    }

    fn put_back(&mut self, sequence: u64, until: Option<Instant>) {
        self.end_flight(sequence);
        let Some(entry) = self.entries.get_mut(&sequence) else { return };
        if self.options.delivery_limit.is_some_and(|limit| entry.deliveries >= limit) {
            self.stats.expelled += 1;
            self.note(sequence, |history| history.expelled = true);
            let message = self.forget(sequence);
            self.expelled.extend(message);
            return;
        }
        match until {
            None => self.make_ready(sequence),
            Some(until) => {
                entry.place = Place::Delayed;
                self.ready.leave(entry.message.ordering_key(), Away::Delayed);
                self.timers.insert((until, sequence));
            }
        }
    }

    fn make_ready(&mut self, sequence: u64) {
        if let Some(entry) = self.entries.get_mut(&sequence) {
            entry.place = Place::Ready;
            self.ready.insert(sequence, entry.message.ordering_key());
        }
    }

    /// Takes the delivery from its holder.
    fn end_flight(&mut self, sequence: u64) {
        let Some(entry) = self.entries.get(&sequence) else { return };
        let (assignment, until) = match entry.place {
            Place::InFlight { assignment, until, .. } => (assignment, until),
            Place::Finished { assignment } => (assignment, None),
            Place::Ready | Place::Delayed => return,
        };
        self.ready.come(entry.message.ordering_key(), Away::InFlight);
        if let Some(until) = until {
            self.timers.remove(&(until, sequence));
        }
        if let Some(held) = self.held.get_mut(&assignment) {
            held.remove(&sequence);
            if held.is_empty() {
                self.held.remove(&assignment);
            }
        }
    }

    fn remove(&mut self, sequence: u64) {
        self.end_flight(sequence);
        self.forget(sequence);
    }

    fn forget(&mut self, sequence: u64) -> Option<Message> {
        let entry = self.entries.remove(&sequence)?;
        self.bytes -= entry.message.bytes();
        Some(entry.message)
    }

    fn note(&mut self, sequence: u64, change: impl FnOnce(&mut History)) {
        change(self.history.entry(sequence).or_default());
        while self.history.len() > self.options.history_max {
            self.history.pop_first();
        }
    }
}

/// The message with the ordering key that a queue of this order gives it.
fn ordered(message: Message, order: Order) -> Message {
    match (order, message.ordering_key(), message.record_key()) {
        (Order::None, None, _) | (Order::ByKey | Order::ByKeyOneAtATime, Some(_), _) => message,
        (Order::ByKey | Order::ByKeyOneAtATime, None, None) => message,
        (Order::ByKey | Order::ByKeyOneAtATime, None, Some(key)) => {
            let key = idem_core::message::OrderingKey::new(key.clone());
            message.with_ordering_key(key)
        }
        (Order::None, Some(_), _) => message.without_ordering_key(),
    }
}

#[cfg(test)]
mod tests;
