//! How far one assignment of a partition is done: pure arithmetic over the offsets that were delivered.

use std::collections::BTreeMap;

/// The offsets delivered under one assignment that are not finished, and where delivery goes on.
///
/// The gaps that compaction, aborted transactions and their markers leave are never waited for, and those behind the last
/// record are passed once the client library says that it has. Only unfinished offsets are kept, however far the rest runs
/// ahead of them.
#[derive(Debug)]
pub(crate) struct Offsets {
    /// Where delivery goes on.
    next: i64,
    unfinished: BTreeMap<i64, Hold>,
    in_hand: usize,
    /// The last offset that is finished; an unfinished one before it would bring it back.
    finished_to: Option<i64>,
}

/// The deliveries that are unfinished.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hold {
    /// The worker, or the buffer in front of it.
    InHand,
    /// Not in hand: it comes back under another assignment, and holds the position until then.
    Released,
}

impl Offsets {
    /// An assignment that starts at `start`.
    pub(crate) fn new(start: i64) -> Self {
        Self { next: start, unfinished: BTreeMap::new(), in_hand: 0, finished_to: None }
    }

    /// Notes a delivery. False where the offset was delivered before under this assignment.
    pub(crate) fn deliver(&mut self, offset: i64) -> bool {
        if offset < self.next {
            return false;
        }
        self.next = offset + 1;
        self.unfinished.insert(offset, Hold::InHand);
        self.in_hand += 1;
        true
    }

    /// Notes that nothing before `offset` is still to be delivered.
    pub(crate) fn pass(&mut self, offset: i64) {
        self.next = self.next.max(offset);
    }

    /// Notes that a message in hand is settled for good. False where it is not in hand.
    pub(crate) fn finish(&mut self, offset: i64) -> bool {
        if self.unfinished.get(&offset) != Some(&Hold::InHand) {
            return false;
        }
        self.unfinished.remove(&offset);
        self.in_hand -= 1;
        self.finished_to = self.finished_to.max(Some(offset));
        true
    }

    /// Notes that a message in hand is given back. False where it is not in hand.
    pub(crate) fn release(&mut self, offset: i64) -> bool {
        match self.unfinished.get_mut(&offset) {
            Some(hold) if *hold == Hold::InHand => *hold = Hold::Released,
            Some(_) | None => return false,
        }
        self.in_hand -= 1;
        true
    }

    /// The position that may be stored: everything before it is finished. It never moves backwards.
    pub(crate) fn position(&self) -> i64 {
        self.unfinished.first_key_value().map_or(self.next, |(offset, _)| *offset)
    }

    /// Whether finished messages would come back because this one is not finished.
    pub(crate) fn holds_back(&self, offset: i64) -> bool {
        self.finished_to.is_some_and(|finished| offset < finished) && self.unfinished.contains_key(&offset)
    }

    /// Whether this one would come back although it is finished, because one before it is not.
    pub(crate) fn is_held_back(&self, offset: i64) -> bool {
        self.position() < offset
    }

    /// The offset from which the next delivery comes.
    pub(crate) fn next(&self) -> i64 {
        self.next
    }

    /// How many messages are neither finished nor released.
    pub(crate) fn in_hand(&self) -> usize {
        self.in_hand
    }
}

// By its path, because the simulation takes this file in.
#[cfg(test)]
#[path = "offsets/tests.rs"]
mod tests;
