//! The inboxes of the store.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use idem_core::{
    ConsumerName, Message, StoreError, Tenant,
    inbox::{Granted, HeldSlot, Inbox, InboxBacklog, InboxRow, InboxStore, NewInboxRow, OpenInbox, Reading, Settling},
    message::Origin,
    store::ScopeId,
};

use super::{
    MemoryStore, Shared,
    state::{State, storable},
};

/// A slot of an inbox.
type SlotKey = (ScopeId, u16);

#[derive(Debug, Clone, Default)]
pub(super) struct Inboxes {
    slots: BTreeMap<SlotKey, SlotRow>,
    rows: BTreeMap<(SlotKey, i64), (SystemTime, NewInboxRow)>,
    last: i64,
}

#[derive(Debug, Clone, Default)]
struct SlotRow {
    epoch: i64,
    held: Option<(String, SystemTime)>,
    wanted: Option<(String, SystemTime)>,
}

impl SlotRow {
    fn is_held_by(&self, holder: &str) -> bool {
        self.held.as_ref().is_some_and(|(by, _)| by == holder)
    }

    fn is_wanted(&self, by_another_than: &str, now: SystemTime) -> bool {
        self.wanted.as_ref().is_some_and(|(by, until)| by != by_another_than && *until > now)
    }
}

/// How long a member's wish for a slot lasts.
const WANTED_FOR: Duration = Duration::from_secs(5);

/// A lease that ends later was given by a clock that was ahead.
const LEASE_MAX: Duration = Duration::from_secs(120);

impl Inboxes {
    fn put(&mut self, inbox: ScopeId, number: i64, now: SystemTime, row: NewInboxRow) {
        self.rows.insert(((inbox, row.slot), number), (now, row));
    }

    fn next_number(&mut self) -> i64 {
        self.last += 1;
        self.last
    }

    fn slots_of(&mut self, inbox: ScopeId) -> impl Iterator<Item = (u16, &mut SlotRow)> {
        self.slots.range_mut((inbox, 0)..=(inbox, u16::MAX)).map(|((_, slot), row)| (*slot, row))
    }

    fn hold(&mut self, inbox: ScopeId, holder: &str, now: SystemTime, until: SystemTime, takes: bool) -> Vec<Granted> {
        let held = Some((holder.to_owned(), until));
        for (_, row) in self.slots_of(inbox) {
            if row.is_held_by(holder) {
                row.held.clone_from(&held);
            } else if takes
                && row.held.as_ref().is_none_or(|(_, until)| *until <= now || *until > now + LEASE_MAX)
                && !row.is_wanted(holder, now)
            {
                *row = SlotRow { epoch: row.epoch + 1, held: held.clone(), wanted: None };
            }
        }
        if takes {
            self.want(inbox, holder, now);
        }
        let granted = |(slot, row): (u16, &mut SlotRow)| {
            let held = HeldSlot { slot, epoch: row.epoch };
            row.is_held_by(holder).then(|| Granted { held, is_wanted: row.is_wanted(holder, now) })
        };
        self.slots_of(inbox).filter_map(granted).collect()
    }

    /// Marks a slot of the member that has the most, and at least two more than this one.
    fn want(&mut self, inbox: ScopeId, holder: &str, now: SystemTime) {
        let mut members: BTreeMap<String, usize> = BTreeMap::new();
        for (_, row) in self.slots_of(inbox) {
            if let Some((by, _)) = row.held.as_ref().filter(|(_, until)| *until > now) {
                *members.entry(by.clone()).or_default() += 1;
            }
        }
        let mine = members.remove(holder).unwrap_or_default();
        members.retain(|_, slots| *slots > mine + 1);
        let slots_of = |row: &SlotRow| row.held.as_ref().and_then(|(by, _)| members.get(by)).copied();
        let free = self.slots_of(inbox).filter(|(_, row)| !row.is_wanted(holder, now));
        let richest = free.filter_map(|(slot, row)| {
            let is_asked = row.wanted.as_ref().is_some_and(|(by, until)| by == holder && *until > now);
            Some((slots_of(row).map(|slots| (is_asked, slots))?, slot, row))
        });
        if let Some((_, _, row)) = richest.max_by_key(|(slots, slot, _)| (*slots, std::cmp::Reverse(*slot))) {
            row.wanted = Some((holder.to_owned(), now + WANTED_FOR));
        }
    }

    fn is_current(&self, inbox: ScopeId, held: HeldSlot) -> bool {
        self.slots.get(&(inbox, held.slot)).is_some_and(|row| row.epoch == held.epoch && row.held.is_some())
    }

    fn next(&self, inbox: ScopeId, reading: &Reading<'_>) -> Vec<InboxRow> {
        let mut found = Vec::new();
        for (held, cursor) in reading.slots.iter().filter(|(held, _)| self.is_current(inbox, *held)) {
            let slot = (inbox, held.slot);
            let rows = self.rows.range((slot, cursor.saturating_add(1))..=(slot, i64::MAX));
            let left = rows.filter(|((_, number), _)| !reading.except.contains(number));
            found.extend(left.take(reading.each_max as usize));
        }
        found.sort_unstable_by_key(|((_, number), _)| *number);
        let (mut bytes, mut rows) = (0, Vec::new());
        for (((_, slot), number), (at, row)) in found.into_iter().take(reading.rows_max as usize) {
            let payload = row.message.payload().map_or(0, idem_core::Bytes::len);
            bytes += (payload + row.message.headers().bytes()) as u64;
            if bytes > reading.bytes_max && !rows.is_empty() {
                break;
            }
            rows.push(InboxRow::new(*slot, *number, *at, stored(&row.message, *at)));
        }
        rows
    }

    pub(super) fn backlog(&self, inbox: ScopeId, except: &[i64], enough: u64, now: SystemTime) -> InboxBacklog {
        let of_inbox = self.rows.range(((inbox, 0), i64::MIN)..=((inbox, u16::MAX), i64::MAX));
        let left: Vec<SystemTime> =
            of_inbox.filter(|((_, number), _)| !except.contains(number)).map(|(_, (at, _))| *at).collect();
        let oldest = left.iter().min().map(|at| now.duration_since(*at).unwrap_or_default());
        let slots = self.slots.range((inbox, 0)..=(inbox, u16::MAX));
        let free = slots.filter(|(_, row)| row.held.as_ref().is_none_or(|(_, until)| *until <= now)).count();
        InboxBacklog::new((left.len() as u64).min(enough), oldest, u16::try_from(free).unwrap_or(u16::MAX))
    }
}

/// The parts of a message that a table keeps.
fn stored(message: &Message, received_at: SystemTime) -> Message {
    let mut kept = match message.payload() {
        Some(payload) => Message::new(payload.clone()),
        None => Message::tombstone(),
    };
    kept = kept.with_headers(message.headers().clone()).with_origin(Origin::new(&storable(message.origin().as_str())));
    kept = kept.with_sent_at(message.sent_at().unwrap_or(received_at));
    if let Some(id) = message.id() {
        kept = kept.with_id(&storable(id));
    }
    if let Some(message_type) = message.message_type() {
        kept = kept.with_type(&storable(message_type));
    }
    if let Some(key) = message.record_key() {
        kept = kept.with_record_key(key.clone());
    }
    if let Some(key) = message.ordering_key() {
        kept = kept.with_ordering_key(key.clone());
    }
    match message.problem() {
        Some(problem) => kept.with_problem(problem),
        None => kept,
    }
}

/// A row whose number is drawn, and which is not committed yet.
#[must_use]
pub struct LateRow {
    shared: Arc<Shared>,
    inbox: ScopeId,
    number: i64,
    row: NewInboxRow,
}

impl std::fmt::Debug for LateRow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LateRow").field("number", &self.number).finish_non_exhaustive()
    }
}

impl LateRow {
    /// Commits it.
    pub fn commit(self) {
        let mut state = self.shared.state();
        let now = state.now();
        state.inboxes.put(self.inbox, self.number, now, self.row);
    }
}

impl MemoryStore {
    /// Draws the number of a row that is committed later, as a transaction does it that takes long.
    pub fn put_late(&self, inbox: ScopeId, row: NewInboxRow) -> LateRow {
        let number = self.shared.state().inboxes.next_number();
        LateRow { shared: Arc::clone(&self.shared), inbox, number, row }
    }

    /// Marks all slots of an inbox as wanted by another member, for this long.
    pub fn want_slots(&self, inbox: ScopeId, time: Duration) {
        let mut state = self.shared.state();
        let until = state.now() + time;
        state.inboxes.slots_of(inbox).for_each(|(_, row)| row.wanted = Some(("another".to_owned(), until)));
    }

    /// Gives all slots of an inbox to another epoch, as a holder finds them whose leases ran out.
    pub fn lose_slots(&self, inbox: ScopeId) {
        self.shared.state().inboxes.slots_of(inbox).for_each(|(_, row)| row.epoch += 1);
    }

    /// The holder of each slot of an inbox that is held.
    #[must_use]
    pub fn slot_holders(&self, inbox: ScopeId) -> Vec<String> {
        let mut state = self.shared.state();
        let now = state.now();
        let held = |(_, row): (u16, &mut SlotRow)| row.held.clone().filter(|(_, until)| *until > now).map(|(by, _)| by);
        state.inboxes.slots_of(inbox).filter_map(held).collect()
    }

    /// Lets the leases of this holder run out.
    pub fn expire_slots(&self, inbox: ScopeId, holder: &str) {
        let mut state = self.shared.state();
        state.inboxes.slots_of(inbox).filter(|(_, row)| row.is_held_by(holder)).for_each(|(_, row)| row.held = None);
    }
}

impl InboxStore for MemoryStore {
    fn inbox(self: &Arc<Self>) -> Arc<dyn Inbox> {
        Arc::new(MemoryInbox(Arc::clone(self)))
    }
}

#[derive(Debug)]
struct MemoryInbox(Arc<MemoryStore>);

fn found(state: &State, consumer: &ConsumerName) -> Option<OpenInbox> {
    let id = *state.books.scopes.get(&(consumer.clone(), Tenant::default()))?;
    let slots = state.inboxes.slots.range((id, 0)..=(id, u16::MAX)).count();
    let bound_to = state.books.bound_to(consumer).to_owned();
    Some(OpenInbox::new(id, u16::try_from(slots).unwrap_or(u16::MAX), bound_to)).filter(|open| open.slots > 0)
}

#[async_trait]
impl Inbox for MemoryInbox {
    async fn open(&self, consumer: &ConsumerName, bound_to: Option<&str>, slots: u16) -> Result<OpenInbox, StoreError> {
        let open = |state: &mut State| {
            let id = state.books.bind_source(consumer, bound_to)?;
            if found(state, consumer).is_none() {
                let rows = (0..slots.max(1)).map(|slot| ((id, slot), SlotRow::default()));
                state.inboxes.slots.extend(rows);
            }
            found(state, consumer).ok_or(StoreError::Unsupported { what: "make an inbox" })
        };
        self.0.book("making the inbox", open).await?
    }

    async fn find(&self, consumer: &ConsumerName) -> Result<Option<OpenInbox>, StoreError> {
        self.0.book("looking for the inbox", |state| found(state, consumer)).await
    }

    async fn put(&self, inbox: ScopeId, rows: &[NewInboxRow]) -> Result<(), StoreError> {
        let put = |state: &mut State| {
            let now = state.now();
            for row in rows {
                let number = state.inboxes.next_number();
                state.inboxes.put(inbox, number, now, row.clone());
            }
        };
        self.0.book("writing to the inbox", put).await
    }

    async fn hold_slots(
        &self,
        inbox: ScopeId,
        holder: &str,
        lease: Duration,
        takes: bool,
    ) -> Result<Vec<Granted>, StoreError> {
        let hold = |state: &mut State| {
            let now = state.now();
            state.inboxes.hold(inbox, holder, now, now + lease, takes)
        };
        self.0.book("holding slots of the inbox", hold).await
    }

    async fn release_slots(&self, inbox: ScopeId, holder: &str, slots: &[HeldSlot]) -> Result<(), StoreError> {
        let release = |state: &mut State| {
            let is_its =
                |row: &SlotRow, slot| row.is_held_by(holder) && slots.contains(&HeldSlot { slot, epoch: row.epoch });
            let its = state.inboxes.slots_of(inbox).filter(|(slot, row)| is_its(row, *slot));
            its.for_each(|(_, row)| row.held = None);
        };
        self.0.book("releasing slots of the inbox", release).await
    }

    async fn next(&self, inbox: ScopeId, reading: Reading<'_>) -> Result<Vec<InboxRow>, StoreError> {
        self.0.book("reading the inbox", |state| state.inboxes.next(inbox, &reading)).await
    }

    async fn remove(&self, inbox: ScopeId, holder: &str, rows: &[Settling]) -> Result<Vec<HeldSlot>, StoreError> {
        let remove = |state: &mut State| {
            let inboxes = &mut state.inboxes;
            let mut held = Vec::new();
            for row in rows {
                let slot = (inbox, row.held.slot);
                let is_its = inboxes.slots.get(&slot).is_some_and(|slot| slot.is_held_by(holder));
                if !is_its || !inboxes.is_current(inbox, row.held) {
                    continue;
                }
                held.push(row.held);
                let place = (slot, row.number);
                if inboxes.rows.get(&place).is_some_and(|(at, _)| *at == row.received_at) {
                    inboxes.rows.remove(&place);
                }
            }
            held
        };
        self.0.book("removing processed messages", remove).await
    }

    async fn backlog(&self, inbox: ScopeId, except: &[i64], enough: u64) -> Result<InboxBacklog, StoreError> {
        let look = |state: &mut State| state.inboxes.backlog(inbox, except, enough, state.now());
        self.0.book("counting the inbox", look).await
    }
}
