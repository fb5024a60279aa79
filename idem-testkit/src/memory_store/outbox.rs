//! The outbox and the results: the rows that units append, and the table that relays empty.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use idem_core::{
    ConsumerName, StoreError,
    message::OrderingKey,
    outbox::{
        Declared, Destination, DestinationId, DestinationLimits, EventEnd, EventName, EventNumber, EventState, IdForm,
        LeaseRequest, Leased, NewEvent, Outbox, OutboxBacklog, OutgoingEvent, RECEIVER_KEEPS, StoredEvent, UNDER_WAY,
    },
    results::NewResult,
    store::{Interned, ScopeId},
};

use super::{
    Defect, MemoryStore,
    results::ResultRow,
    state::{RecordKey, State, UnitId, storable},
};

/// The unique key of the outbox: a key of a destination and a scope.
pub(super) type EventKey = (DestinationId, RecordKey);

#[derive(Debug, Clone, Default)]
pub(super) struct Events {
    destinations: BTreeMap<DestinationId, DestinationRow>,
    rows: BTreeMap<EventNumber, EventRow>,
    /// The committed events, by their unique keys.
    pub(super) numbers: BTreeMap<EventKey, EventNumber>,
    /// Those that a unit has written and not committed.
    pub(super) held: BTreeMap<EventKey, UnitId>,
    pub(super) results: BTreeMap<RecordKey, ResultRow>,
    last: i64,
    /// Where the store that scans by number goes on.
    scanned: BTreeMap<DestinationId, EventNumber>,
}

impl Events {
    /// Goes back to the events that were committed then: the numbers of lost ones are drawn again.
    pub(super) fn go_back_to(&mut self, then: Self) {
        let scanned = std::mem::take(&mut self.scanned);
        *self = Self { held: BTreeMap::new(), scanned, ..then };
    }
}

#[derive(Debug, Clone)]
struct DestinationRow {
    name: String,
    id_form: IdForm,
    relay: Option<(String, SystemTime)>,
    /// When the lease last ran out that another relay then took over.
    lost_at: Option<SystemTime>,
    receiver_keeps: Duration,
    limits: Option<DestinationLimits>,
    is_paused: bool,
}

#[derive(Debug, Clone)]
struct EventRow {
    event: NewEvent,
    created_at: SystemTime,
    state: EventState,
    attempts: u32,
    /// Since when it may go, or from when on it will.
    may_go_from: SystemTime,
    first_sent_at: Option<SystemTime>,
    error: Option<String>,
}

impl EventRow {
    /// Whether it may go, as far as its own state says.
    fn is_due(&self, now: SystemTime) -> bool {
        match self.state {
            EventState::Pending => true,
            EventState::Waiting => self.may_go_from <= now,
            EventState::Failed | EventState::Behind => false,
        }
    }

    fn bytes(&self) -> u64 {
        (self.event.payload.len() + self.event.headers.bytes()) as u64
    }

    /// Since when a copy may be with its receivers: a relay that died has noted nothing about the events in its hands.
    fn first_sent(&self, lost_at: Option<SystemTime>) -> Option<SystemTime> {
        let is_untold = matches!(self.state, EventState::Pending | EventState::Waiting);
        let lost = || (is_untold && lost_at.is_some_and(|at| self.may_go_from <= at)).then_some(self.may_go_from);
        self.first_sent_at.or_else(lost)
    }
}

pub(super) fn event_key(event: &NewEvent, defect: Option<Defect>) -> EventKey {
    let place = if defect == Some(Defect::EventsByKeyAlone) {
        (DestinationId(0), ScopeId(0))
    } else {
        (event.destination, event.scope)
    };
    (place.0, (place.1, event.key.clone()))
}

impl Events {
    pub(super) fn next_number(&mut self) -> EventNumber {
        self.last += 1;
        EventNumber(self.last)
    }

    /// Whether a committed event under this key is the same one; `None` where there is none.
    pub(super) fn is_same(&self, key: &EventKey, event: &NewEvent) -> Option<bool> {
        let row = self.rows.get(self.numbers.get(key)?)?;
        Some(row.event.hash == event.hash)
    }

    pub(super) fn commit(&mut self, number: EventNumber, key: EventKey, event: NewEvent, now: SystemTime) {
        self.held.remove(&key);
        self.numbers.insert(key, number);
        let (state, attempts) = (EventState::Pending, 0);
        let row =
            EventRow { event, created_at: now, state, attempts, may_go_from: now, first_sent_at: None, error: None };
        self.rows.insert(number, row);
    }

    fn destination(&mut self, id: DestinationId) -> Option<&mut DestinationRow> {
        self.destinations.get_mut(&id)
    }

    fn declare(&mut self, declared: &Destination, now: SystemTime) -> Result<Declared, StoreError> {
        let known = self.destinations.iter().find(|(_, row)| row.name == declared.name);
        if let Some((_, row)) = known
            && row.id_form != declared.id_form
        {
            let problem = format!(
                "destination {:?} was declared with ids of the form {}, and this program says {}",
                declared.name, row.id_form, declared.id_form
            );
            let cure = "Give it the form it has: under another one its receivers would take copies for new events";
            return Err(StoreError::refused(problem, cure));
        }
        if let Some((id, row)) = known {
            let limits = row.limits.clone().filter(|_| row.relay.as_ref().is_some_and(|(_, until)| *until > now));
            return Ok(Declared::new(*id).limits(limits));
        }
        let mut numbers = Interned::Destination.numbers(&[&declared.name]).map(DestinationId);
        let free = numbers.find(|id| !self.destinations.contains_key(id));
        let id = free.ok_or(StoreError::Unsupported { what: "number so many destinations" })?;
        let (name, id_form) = (declared.name.clone(), declared.id_form);
        let (relay, lost_at, receiver_keeps) = (None, None, RECEIVER_KEEPS);
        let row = DestinationRow { name, id_form, relay, lost_at, receiver_keeps, limits: None, is_paused: false };
        self.destinations.insert(id, row);
        Ok(Declared::new(id))
    }

    fn lost_at(&self, id: DestinationId) -> Option<SystemTime> {
        self.destinations.get(&id)?.lost_at
    }

    /// The rows of an ordering key, oldest first.
    fn of_key<'e>(
        &'e mut self,
        destination: DestinationId,
        key: &'e OrderingKey,
    ) -> impl Iterator<Item = (&'e EventNumber, &'e mut EventRow)> {
        let is_of =
            move |row: &EventRow| row.event.destination == destination && row.event.ordering_key.as_ref() == Some(key);
        self.rows.iter_mut().filter(move |(_, row)| is_of(row))
    }

    /// The next events that may go. Events behind one that may not are marked, once, also those that there is no room for.
    fn next(
        &mut self,
        destination: DestinationId,
        events_max: usize,
        bytes_max: u64,
        now: SystemTime,
        overtakes: bool,
    ) -> Vec<EventNumber> {
        let mut blocked: Vec<OrderingKey> = Vec::new();
        let (mut next, mut bytes, mut is_full) = (Vec::new(), 0, false);
        let lost_at = self.lost_at(destination);
        for (number, row) in self.rows.iter_mut().filter(|(_, row)| row.event.destination == destination) {
            let key = row.event.ordering_key.as_ref();
            if !overtakes && key.is_some_and(|key| blocked.contains(key)) {
                if row.is_due(now) {
                    row.first_sent_at = row.first_sent(lost_at);
                    row.state = EventState::Behind;
                }
            } else if !row.is_due(now) {
                blocked.extend(key.cloned());
            } else if !is_full && next.len() < events_max && (next.is_empty() || bytes + row.bytes() <= bytes_max) {
                bytes += row.bytes();
                next.push(*number);
            } else {
                is_full = true;
            }
        }
        next
    }

    fn remove(&mut self, number: EventNumber, now: SystemTime, defect: Option<Defect>) -> bool {
        let Some(row) = self.rows.remove(&number) else { return false };
        self.numbers.remove(&event_key(&row.event, defect));
        if let Some(key) = &row.event.ordering_key {
            self.let_go(row.event.destination, key, now);
        }
        true
    }

    /// Lets events go that wait behind no other any more.
    fn let_go(&mut self, destination: DestinationId, key: &OrderingKey, now: SystemTime) {
        for (_, row) in self.of_key(destination, key) {
            match row.state {
                EventState::Pending => {}
                EventState::Waiting | EventState::Failed => break,
                EventState::Behind => (row.state, row.may_go_from) = (EventState::Pending, now),
            }
        }
    }

    fn settle(&mut self, event: &OutgoingEvent, end: &EventEnd, now: SystemTime, defect: Option<Defect>) {
        let number = event.number;
        if matches!(end, EventEnd::Published) {
            self.remove(number, now, defect);
            return;
        }
        let lost_at = self.rows.get(&number).and_then(|row| self.lost_at(row.event.destination));
        let Some(row) = self.rows.get_mut(&number) else { return };
        let sends_nothing = match end {
            EventEnd::Published => false,
            EventEnd::Later { may_be_sent, .. } | EventEnd::Failed { may_be_sent, .. } => !may_be_sent,
        };
        let is_noted =
            row.state == EventState::Waiting && row.error.as_deref() == Some(UNDER_WAY) && row.may_go_from > now;
        let is_taken_back = sends_nothing && is_noted && event.first_sent_ago.is_none();
        let first_sent = row.first_sent(lost_at).filter(|_| !is_taken_back);
        match end {
            EventEnd::Published => {}
            EventEnd::Later { after, error, may_be_sent, counted } => {
                (row.state, row.may_go_from) = (EventState::Waiting, now + *after);
                row.error = Some(storable(error));
                row.attempts += u32::from(*counted);
                row.first_sent_at = first_sent.or(may_be_sent.then_some(now));
            }
            EventEnd::Failed { error, may_be_sent } => {
                row.state = EventState::Failed;
                row.error = Some(storable(error));
                row.attempts += 1;
                row.first_sent_at = first_sent.or(may_be_sent.then_some(now));
            }
        }
    }

    fn is_there(&self, event: &EventName, by_number: bool) -> bool {
        self.rows.get(&event.number).is_some_and(|row| by_number || row.event.key == event.key)
    }

    fn retry(&mut self, number: EventNumber, with_stale: bool, now: SystemTime) -> bool {
        let lost_at = self.rows.get(&number).and_then(|row| self.lost_at(row.event.destination));
        let waits = |row: &&mut EventRow| matches!(row.state, EventState::Waiting | EventState::Failed);
        let Some(row) = self.rows.get_mut(&number).filter(waits) else { return false };
        if with_stale {
            row.first_sent_at = row.first_sent(lost_at).map(|_| now);
            row.error.take_if(|error| error.starts_with("stale: "));
        }
        let is_early = row.state == EventState::Waiting && !with_stale;
        row.may_go_from = if is_early { row.may_go_from.min(now) } else { now };
        (row.state, row.attempts) = (EventState::Pending, 0);
        true
    }

    fn backlog(&self, scopes: Option<&[ScopeId]>, now: SystemTime) -> Vec<OutboxBacklog> {
        let count = |(id, row): (&DestinationId, &DestinationRow)| {
            let id = *id;
            let mut backlog = OutboxBacklog::new(row.name.clone(), id);
            backlog.is_paused = row.is_paused;
            backlog.receiver_keeps = row.receiver_keeps;
            backlog.limits.clone_from(&row.limits);
            backlog.relayed_by = row.relay.as_ref().filter(|(_, until)| *until > now).map(|(relay, _)| relay.clone());
            let own = |row: &&EventRow| {
                row.event.destination == id && scopes.is_none_or(|scopes| scopes.contains(&row.event.scope))
            };
            let lost_at = row.lost_at;
            for row in self.rows.values().filter(own) {
                let (counted, may_go) = match row.state {
                    EventState::Pending => (&mut backlog.pending, true),
                    EventState::Waiting => (&mut backlog.waiting, true),
                    EventState::Failed => (&mut backlog.failed, false),
                    EventState::Behind => (&mut backlog.behind, false),
                };
                *counted += 1;
                let age = now.duration_since(row.created_at).unwrap_or_default();
                if may_go {
                    backlog.oldest = backlog.oldest.max(Some(age));
                    backlog.due = backlog.due.max(now.duration_since(row.may_go_from).ok());
                }
                let ago = row.first_sent(lost_at).map(|at| now.duration_since(at).unwrap_or_default());
                backlog.first_sent_ago = backlog.first_sent_ago.max(ago);
            }
            backlog
        };
        let mut all: Vec<_> = self.destinations.iter().map(count).collect();
        all.sort_by(|one, other| one.destination.cmp(&other.destination));
        all
    }
}

impl State {
    fn outgoing(&self, number: EventNumber) -> Option<OutgoingEvent> {
        let row = self.events.rows.get(&number)?;
        let (consumer, tenant) = self.books.name_of(row.event.scope)?;
        let derives_as = self.books.first_name(&consumer);
        let event = &row.event;
        let mut outgoing =
            OutgoingEvent::new(number, consumer, event.key.clone(), event.payload.clone(), row.created_at);
        outgoing.derives_as = derives_as;
        outgoing.tenant = tenant.as_str().into();
        outgoing.ordering_key.clone_from(&event.ordering_key);
        outgoing.event_type.clone_from(&event.event_type);
        outgoing.content_type.clone_from(&event.content_type);
        outgoing.headers.clone_from(&event.headers);
        outgoing.attempts = row.attempts;
        let first_sent = row.first_sent(self.events.lost_at(event.destination));
        outgoing.first_sent_ago = first_sent.map(|at| self.now().duration_since(at).unwrap_or_default());
        Some(outgoing)
    }

    fn stored(&self, number: EventNumber) -> Option<StoredEvent> {
        let row = self.events.rows.get(&number)?;
        let mut event = self.outgoing(number)?;
        let payload_bytes = std::mem::take(&mut event.payload).len() as u64;
        let destination = self.events.destinations.get(&row.event.destination)?;
        let mut stored = StoredEvent::new(event, destination.name.clone(), payload_bytes, row.state);
        stored.error.clone_from(&row.error);
        stored.not_before = (row.state == EventState::Waiting).then_some(row.may_go_from);
        Some(stored)
    }
}

impl MemoryStore {
    /// The committed events that no relay has settled, each with the name of its destination, oldest first, for the tests of
    /// handlers that publish.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use idem_core::{Event, HandlerError, Message, Tx, handler_fn};
    /// # use idem_testkit::{MemoryStore, deliver_publishing, message};
    /// async fn charge(message: &Message, tx: &mut Tx<'_, MemoryStore>) -> Result<(), HandlerError> {
    ///     tx.publish(message, Event::to("payments").event_type("Charged").body("250"))?;
    ///     Ok(())
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let (store, handler) = (Arc::new(MemoryStore::new()), Arc::new(handler_fn(charge)));
    /// let delivered = deliver_publishing(&store, &handler, ["payments"], message("order-1", "250")).await?;
    /// assert!(delivered.decision.is_processed());
    /// assert_eq!(delivered.events[0].1.event_type.as_deref(), Some("Charged"));
    /// assert_eq!(store.events().len(), 1);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn events(&self) -> Vec<(String, OutgoingEvent)> {
        let state = self.shared.state();
        let named = |number: &EventNumber| {
            let event = state.outgoing(*number)?;
            Some((state.stored(*number)?.destination, event))
        };
        state.events.rows.keys().filter_map(named).collect()
    }

    /// The results that are kept beside committed records, by scope and key.
    #[must_use]
    pub fn results(&self) -> Vec<NewResult> {
        self.shared.state().events.results.values().map(|row| row.result.clone()).collect()
    }
}

/// The outbox of a [`MemoryStore`].
#[derive(Debug)]
pub(super) struct MemoryOutbox(pub(super) Arc<MemoryStore>);

impl MemoryOutbox {
    async fn book<T: Send>(
        &self,
        doing: &'static str,
        work: impl FnOnce(&mut State) -> T + Send,
    ) -> Result<T, StoreError> {
        self.0.book(doing, work).await
    }

    fn has(&self, defect: Defect) -> bool {
        self.0.shared.has(defect)
    }

    async fn retry_those(&self, events: &[EventName], with_stale: bool) -> Result<u64, StoreError> {
        let by_number = self.has(Defect::SettlesByNumberAlone);
        let retry = |state: &mut State| {
            let now = state.now();
            let retried = |event: &&EventName| {
                state.events.is_there(event, by_number) && state.events.retry(event.number, with_stale, now)
            };
            events.iter().filter(retried).count() as u64
        };
        self.book("retrying events", retry).await
    }
}

/// A lease that ends later was given by a clock that was ahead.
const LEASE_MAX: Duration = Duration::from_secs(120);

#[async_trait]
impl Outbox for MemoryOutbox {
    async fn declare(&self, destinations: &[Destination]) -> Result<Vec<Declared>, StoreError> {
        let declare =
            |state: &mut State| destinations.iter().map(|one| state.events.declare(one, state.now())).collect();
        self.book("declaring destinations", declare).await?
    }

    async fn lease(&self, destination: DestinationId, request: LeaseRequest<'_>) -> Result<Leased, StoreError> {
        let LeaseRequest { relay, time, receiver_keeps, limits, .. } = request;
        let everybodys = self.has(Defect::LeasesToAll);
        let limits = limits.filter(|_| !self.has(Defect::ForgetsLimits));
        let lease = |state: &mut State| {
            let now = state.now();
            // An undeclared destination has no relay.
            let Some(row) = state.events.destination(destination) else { return Leased::Paused };
            if row.is_paused {
                if let Some((by, until)) = &mut row.relay
                    && by == relay
                    && *until > now
                {
                    (*until, row.receiver_keeps, row.limits) = (now + time, receiver_keeps, limits.cloned());
                }
                return Leased::Paused;
            }
            match &row.relay {
                Some((other, until)) if other != relay && *until > now && *until <= now + LEASE_MAX && !everybodys => {
                    Leased::Others { left: until.duration_since(now).unwrap_or_default() }
                }
                held => {
                    row.lost_at = held
                        .as_ref()
                        .filter(|(other, until)| other != relay || *until <= now)
                        .map_or(row.lost_at, |(_, until)| Some((*until).min(now)));
                    row.relay = Some((relay.to_owned(), now + time));
                    (row.receiver_keeps, row.limits) = (receiver_keeps, limits.cloned());
                    Leased::Mine
                }
            }
        };
        self.book("leasing a destination", lease).await
    }

    async fn release(&self, destination: DestinationId, relay: &str) -> Result<(), StoreError> {
        let release = |state: &mut State| {
            if let Some(row) = state.events.destination(destination) {
                row.relay.take_if(|(by, _)| by == relay);
            }
        };
        self.book("releasing a destination", release).await
    }

    async fn next(
        &self,
        destination: DestinationId,
        events_max: u32,
        bytes_max: u64,
    ) -> Result<Vec<OutgoingEvent>, StoreError> {
        let (by_number, overtakes) = (self.has(Defect::ScansByNumber), self.has(Defect::EventsOvertake));
        let take = |state: &mut State| {
            let now = state.now();
            let mut next = state.events.next(destination, events_max as usize, bytes_max, now, overtakes);
            if by_number {
                let last = state.events.scanned.entry(destination).or_insert(EventNumber(0));
                next.retain(|number| number > last);
                *last = next.iter().copied().max().unwrap_or(*last);
            }
            next.into_iter().map(|number| state.outgoing(number).ok_or_else(unnamed)).collect()
        };
        self.book("reading the outbox", take).await?
    }

    async fn settle(&self, destination: DestinationId, ends: &[(&OutgoingEvent, EventEnd)]) -> Result<(), StoreError> {
        let defect = self.0.shared.defect;
        let by_number = defect == Some(Defect::SettlesByNumberAlone);
        let settle = |state: &mut State| {
            let now = state.now();
            let is_it = |row: &EventRow, event: &OutgoingEvent| {
                row.event.destination == destination && (by_number || row.event.key == event.key)
            };
            // As the databases do it: what was published lets those go that are behind it and nothing else by then.
            let (published, others): (Vec<_>, Vec<_>) =
                ends.iter().partition(|(_, end)| matches!(end, EventEnd::Published));
            for (event, end) in others.into_iter().chain(published) {
                if state.events.rows.get(&event.number).is_some_and(|row| is_it(row, event)) {
                    state.events.settle(event, end, now, defect);
                }
            }
        };
        self.book("settling events", settle).await
    }

    async fn backlog(&self, consumer: Option<&ConsumerName>) -> Result<Vec<OutboxBacklog>, StoreError> {
        let look = |state: &mut State| {
            let scopes = consumer.map(|consumer| state.books.scopes_of(consumer));
            state.events.backlog(scopes.as_deref(), state.now())
        };
        self.book("looking at the outbox", look).await
    }

    async fn events(
        &self,
        destination: Option<&str>,
        state: Option<EventState>,
        max: u32,
    ) -> Result<Vec<StoredEvent>, StoreError> {
        let list = |store: &mut State| {
            let asked = |event: &StoredEvent| {
                destination.is_none_or(|name| event.destination == name) && state.is_none_or(|of| event.state == of)
            };
            let all = store.events.rows.keys().filter_map(|number| store.stored(*number));
            all.filter(asked).take(max as usize).collect()
        };
        self.book("listing events", list).await
    }

    async fn retry(&self, events: &[EventName]) -> Result<u64, StoreError> {
        self.retry_those(events, false).await
    }

    async fn retry_stale(&self, events: &[EventName]) -> Result<u64, StoreError> {
        self.retry_those(events, true).await
    }

    async fn skip(&self, events: &[EventName]) -> Result<u64, StoreError> {
        let defect = self.0.shared.defect;
        let by_number = defect == Some(Defect::SettlesByNumberAlone);
        let skip = |state: &mut State| {
            let now = state.now();
            let skipped = |event: &&EventName| {
                state.events.is_there(event, by_number) && state.events.remove(event.number, now, defect)
            };
            events.iter().filter(skipped).count() as u64
        };
        self.book("skipping events", skip).await
    }

    async fn pause(&self, destination: &str, is_paused: bool) -> Result<bool, StoreError> {
        let pause = |state: &mut State| {
            let row = state.events.destinations.values_mut().find(|row| row.name == destination);
            row.map(|row| row.is_paused = is_paused).is_some()
        };
        self.book("pausing a destination", pause).await
    }
}

/// As the other stores do it, whose rows have numbers alone.
fn unnamed() -> StoreError {
    StoreError::schema("a row of outbox holds a damaged consumer", "Start the consumer that has written it")
}
