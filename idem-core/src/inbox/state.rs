//! What an inbox's source has: slots, rows that were read, messages in flight. Pure, without a call to the store.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use tokio::{sync::oneshot, time::Instant};

use crate::{
    bugs::{self, Bug},
    inbox::rows::{Granted, HeldSlot, InboxRow, Settling},
    source::{Assignment, Delivery, Revocation},
};

/// The most rows of a look.
pub(super) const ROWS_MAX: u32 = 1_000;

/// How many rows of each slot a look reads at least.
const EACH_MIN: u32 = 64;

/// How often a look begins at the first row again: numbers are drawn before they are committed, so a row may appear behind the cursor.
const LOOK_BACK: Duration = Duration::from_secs(1);

/// A look from the first row passes deleted rows again as long as an old snapshot may see them. It may take this part of the time.
const LOOK_BACK_SHARE: u32 = 20;

/// A slot that this source holds.
#[derive(Debug)]
struct Slot {
    epoch: i64,
    assignment: Assignment,
    /// The number of the last row that was read.
    cursor: i64,
    /// Whether it goes to another member, once its messages are done.
    leaves: bool,
}

/// The identity of a delivery of an inbox.
#[derive(Debug)]
pub struct InboxHandle {
    pub(super) assignment: Assignment,
    pub(super) row: Settling,
}

/// A look that was planned.
#[derive(Debug)]
pub(super) struct Look {
    pub(super) slots: Vec<(HeldSlot, i64)>,
    assignments: BTreeMap<u16, Assignment>,
    pub(super) except: Vec<i64>,
    pub(super) each_max: u32,
    is_back: bool,
    begun: Instant,
}

/// Slots whose messages are being finished, before another member gets them.
#[derive(Debug)]
pub(super) struct Leaving {
    pub(super) drained: oneshot::Receiver<()>,
    pub(super) slots: Vec<HeldSlot>,
}

#[derive(Debug)]
pub(super) struct State {
    slots: BTreeMap<u16, Slot>,
    /// Until when all leases last.
    until: Instant,
    assignments: u64,
    /// Read and not handed over.
    read: VecDeque<InboxRow>,
    /// Handed over and not settled.
    in_flight: BTreeMap<i64, Assignment>,
    /// Released with a delay.
    delayed: BTreeMap<i64, Instant>,
    revocations: VecDeque<Revocation>,
    /// Given up here, and not released in the table yet.
    pub(super) to_release: BTreeSet<HeldSlot>,
    each_max: u32,
    looked_back_at: Option<Instant>,
    look_back_took: Duration,
    found_nothing: bool,
    pub(super) is_stopped: bool,
    pub(super) is_closed: bool,
}

impl State {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            slots: BTreeMap::new(),
            until: now,
            assignments: 0,
            read: VecDeque::new(),
            in_flight: BTreeMap::new(),
            delayed: BTreeMap::new(),
            revocations: VecDeque::new(),
            to_release: BTreeSet::new(),
            each_max: EACH_MIN,
            looked_back_at: None,
            look_back_took: Duration::ZERO,
            found_nothing: false,
            is_stopped: false,
            is_closed: false,
        }
    }

    /// Takes over what the store granted until then. Returns the slots that another member waits for.
    pub(super) fn granted(&mut self, granted: &[Granted], until: Instant) -> Option<Leaving> {
        self.until = until;
        let known: BTreeMap<u16, i64> = granted.iter().map(|one| (one.held.slot, one.held.epoch)).collect();
        self.lose(|slot, held| known.get(&slot) != Some(&held.epoch));
        for Granted { held, .. } in granted {
            if !self.slots.contains_key(&held.slot) && !self.to_release.contains(held) {
                // A later assignment has a higher number, by which core recognises a new one.
                self.assignments += 1;
                let assignment = Assignment(self.assignments);
                self.slots.insert(held.slot, Slot { epoch: held.epoch, assignment, cursor: 0, leaves: false });
            }
        }
        let wanted = granted.iter().filter(|one| one.is_wanted).map(|one| one.held);
        let wanted: Vec<HeldSlot> =
            wanted.filter(|held| self.slots.get(&held.slot).is_some_and(|slot| !slot.leaves)).collect();
        if wanted.is_empty() || self.is_stopped {
            return None;
        }
        let mut assignments = Vec::with_capacity(wanted.len());
        for held in &wanted {
            if let Some(slot) = self.slots.get_mut(&held.slot) {
                slot.leaves = true;
                assignments.push(slot.assignment);
            }
            self.read.retain(|row| row.slot != held.slot);
        }
        let (answer, drained) = oneshot::channel();
        self.revocations.push_back(Revocation { assignments, drained: Some(answer) });
        Some(Leaving { drained, slots: wanted })
    }

    /// Gives up slots whose messages are done.
    pub(super) fn left(&mut self, slots: &[HeldSlot]) {
        for held in slots {
            if let Some(slot) = self.slots.get(&held.slot).filter(|slot| slot.epoch == held.epoch) {
                let assignment = slot.assignment;
                self.slots.remove(&held.slot);
                self.in_flight.retain(|_, of| *of != assignment);
                self.to_release.insert(*held);
            }
        }
    }

    /// Announces slots as lost whose leases have run out, since another member may have them.
    pub(super) fn expire(&mut self, now: Instant) {
        if now >= self.until {
            self.lose(|_, _| true);
        }
    }

    fn lose(&mut self, is_lost: impl Fn(u16, &Slot) -> bool) {
        let lost: Vec<u16> =
            self.slots.iter().filter(|(slot, held)| is_lost(**slot, held)).map(|(slot, _)| *slot).collect();
        let mut assignments = Vec::new();
        for slot in &lost {
            let Some(held) = self.slots.remove(slot) else { continue };
            self.in_flight.retain(|_, of| *of != held.assignment);
            assignments.push(held.assignment);
            self.to_release.insert(HeldSlot { slot: *slot, epoch: held.epoch });
        }
        self.read.retain(|row| !lost.contains(&row.slot));
        if !assignments.is_empty() && !self.is_closed {
            self.revocations.push_back(Revocation { assignments, drained: None });
        }
    }

    /// Ends everything. The slots are to be released then.
    pub(super) fn close(&mut self) {
        self.is_closed = true;
        self.is_stopped = true;
        self.lose(|_, _| true);
        self.revocations.clear();
    }

    pub(super) fn revocation(&mut self) -> Option<Revocation> {
        self.revocations.pop_front()
    }

    pub(super) fn stop(&mut self) {
        self.is_stopped = true;
        self.read.clear();
    }

    /// Hands over what was read.
    pub(super) fn hand_over(&mut self, max: usize) -> Vec<Delivery<InboxHandle>> {
        let mut deliveries = Vec::with_capacity(max.min(self.read.len()));
        while deliveries.len() < max {
            let Some(InboxRow { slot, number, received_at, message }) = self.read.pop_front() else { break };
            let Some(held) = self.slots.get(&slot) else { continue };
            let (assignment, held) = (held.assignment, HeldSlot { slot, epoch: held.epoch });
            self.in_flight.insert(number, assignment);
            let handle = InboxHandle { assignment, row: Settling { held, number, received_at } };
            deliveries.push(Delivery { message, attempt: 1, redelivered: false, suspect: false, assignment, handle });
        }
        deliveries
    }

    /// The next look; `None` where no slot is held. Delays that are over end here.
    pub(super) fn plan(&mut self, now: Instant) -> Option<Look> {
        let before = self.delayed.len();
        self.delayed.retain(|_, until| *until > now);
        if self.delayed.len() < before {
            self.look_back();
        }
        let held = || self.slots.iter().filter(|(_, slot)| !slot.leaves);
        held().next()?;
        let is_back = self.is_look_back_due(now) && !bugs::planted(Bug::ReadsInboxByNumber);
        let cursor = |slot: &Slot| if is_back { 0 } else { slot.cursor };
        let slots: Vec<(HeldSlot, i64)> =
            held().map(|(number, slot)| (HeldSlot { slot: *number, epoch: slot.epoch }, cursor(slot))).collect();
        let assignments = held().map(|(number, slot)| (*number, slot.assignment)).collect();
        let first = slots.iter().map(|(_, cursor)| *cursor).min().unwrap_or(0);
        let behind = |number: &&i64| **number > first;
        let except = self.in_flight.keys().chain(self.delayed.keys()).filter(behind).copied().collect();
        Some(Look { slots, assignments, except, each_max: self.each_max, is_back, begun: now })
    }

    fn is_look_back_due(&self, now: Instant) -> bool {
        let Some(at) = self.looked_back_at else { return true };
        let every = if self.found_nothing { Duration::ZERO } else { LOOK_BACK };
        now.duration_since(at) >= every.max(self.look_back_took * LOOK_BACK_SHARE)
    }

    /// The next look begins at the first row.
    fn look_back(&mut self) {
        self.looked_back_at = None;
    }

    /// Takes over the rows of a look.
    pub(super) fn looked(&mut self, look: &Look, rows: Vec<InboxRow>, now: Instant) {
        if look.is_back {
            (self.looked_back_at, self.look_back_took) = (Some(now), now.duration_since(look.begun));
        }
        self.found_nothing = rows.is_empty();
        let mut of_slot: BTreeMap<u16, u32> = BTreeMap::new();
        let found = u32::try_from(rows.len()).unwrap_or(u32::MAX);
        for (held, cursor) in &look.slots {
            if let Some(slot) = self.slots.get_mut(&held.slot).filter(|slot| slot.epoch == held.epoch) {
                slot.cursor = *cursor;
            }
        }
        for row in rows {
            let assignment = look.assignments.get(&row.slot);
            let held =
                self.slots.get_mut(&row.slot).filter(|slot| Some(&slot.assignment) == assignment && !slot.leaves);
            let Some(slot) = held.filter(|_| !self.is_stopped) else { continue };
            slot.cursor = slot.cursor.max(row.number);
            *of_slot.entry(row.slot).or_default() += 1;
            if !self.in_flight.contains_key(&row.number) && !self.delayed.contains_key(&row.number) {
                self.read.push_back(row);
            }
        }
        // Few slots have rows: more of each are read with the next look.
        let is_full = of_slot.values().any(|rows| *rows >= look.each_max);
        self.each_max = match is_full && found < ROWS_MAX / 2 {
            true => (look.each_max * 2).min(ROWS_MAX),
            false if found < look.each_max => EACH_MIN,
            false => look.each_max,
        };
    }

    /// Whether the delivery is still this source's.
    pub(super) fn has(&self, handle: &InboxHandle) -> bool {
        !self.is_closed && self.in_flight.get(&handle.row.number) == Some(&handle.assignment)
    }

    /// The message is gone, or is to be read again.
    pub(super) fn settled(&mut self, handle: &InboxHandle, is_gone: bool) {
        if self.has(handle) {
            self.in_flight.remove(&handle.row.number);
            if !is_gone {
                self.look_back();
            }
        }
    }

    /// The message is read again after this time.
    pub(super) fn released(&mut self, handle: &InboxHandle, until: Option<Instant>) {
        self.settled(handle, false);
        if let Some(until) = until {
            self.delayed.insert(handle.row.number, until);
        }
    }

    /// When something happens by itself: a delay ends, or all leases.
    pub(super) fn next_event(&self) -> Option<Instant> {
        let leases = (!self.slots.is_empty()).then_some(self.until);
        self.delayed.values().copied().chain(leases).min()
    }

    /// The numbers of messages in flight; `None` where others were read and not handed over, or wait here.
    pub(super) fn only_in_flight(&self) -> Option<Vec<i64>> {
        let is_quiet = self.read.is_empty() && self.delayed.is_empty();
        is_quiet.then(|| self.in_flight.keys().copied().collect())
    }

    pub(super) fn holds_none(&self) -> bool {
        self.slots.is_empty()
    }

    /// Whether another member waits for a slot of this source.
    pub(super) fn has_leaving(&self) -> bool {
        self.slots.values().any(|slot| slot.leaves)
    }

    pub(super) fn in_flight(&self) -> u32 {
        u32::try_from(self.in_flight.len()).unwrap_or(u32::MAX)
    }

    pub(super) fn has_revocation(&self) -> bool {
        !self.revocations.is_empty()
    }

    pub(super) fn is_empty_handed(&self) -> bool {
        self.read.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(now: Instant) -> State {
        let mut state = State::new(now);
        let held = HeldSlot { slot: 0, epoch: 1 };
        state.granted(&[Granted { held, is_wanted: false }], now + Duration::from_secs(1_000_000));
        state
    }

    /// How many of the looks in an hour begin at the first row, where such a look takes this long and others take 10 ms.
    fn looks_back(takes: Duration) -> (u32, Duration) {
        let (begun, mut count, mut spent) = (Instant::now(), 0, Duration::ZERO);
        let (mut state, mut now) = (state(begun), begun);
        while now < begun + Duration::from_secs(3_600) {
            let look = state.plan(now).unwrap();
            let took = if look.is_back { takes } else { Duration::from_millis(10) };
            count += u32::from(look.is_back);
            spent += if look.is_back { took } else { Duration::ZERO };
            now += took;
            state.looked(&look, Vec::new(), now);
            now += Duration::from_millis(100);
        }
        (count, spent)
    }

    #[test]
    fn n17_long_looks_from_the_first_row_are_rare() {
        let (often, _) = looks_back(Duration::from_millis(1));
        assert!(often > 30_000, "each look that finds nothing begins at the first row: {often}");
        let (rarely, spent) = looks_back(Duration::from_secs(4));
        assert!((30..=45).contains(&rarely), "{rarely}");
        assert!(spent <= Duration::from_secs(3_600 / 20 + 4), "{spent:?}");
    }

    #[test]
    fn a_lost_slot_takes_its_rows_and_messages_with_it() {
        let now = Instant::now();
        let mut state = state(now);
        let look = state.plan(now).unwrap();
        let row =
            |number| InboxRow::new(0, number, std::time::SystemTime::UNIX_EPOCH, crate::message::Message::new("x"));
        state.looked(&look, vec![row(1), row(2)], now);
        let handle = state.hand_over(1).pop().unwrap().handle;
        assert!(state.has(&handle));
        let held = HeldSlot { slot: 0, epoch: 2 };
        state.granted(&[Granted { held, is_wanted: false }], now);
        assert!(!state.has(&handle) && state.is_empty_handed());
        let lost = state.revocation().unwrap();
        assert!(lost.drained.is_none() && lost.assignments == [handle.assignment]);
    }
}
