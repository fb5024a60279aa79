//! For authors of stores: the rows that are appended to a unit, and the outbox that relays empty.

use std::{
    fmt,
    str::FromStr,
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use bytes::Bytes;

use crate::{
    error::StoreError,
    hash::PayloadHash,
    message::headers::Headers,
    names::{ConsumerName, IdempotencyKey, OrderingKey, ScopeId},
    outbox::{
        event::Destination,
        limits::{DestinationLimits, RECEIVER_KEEPS},
    },
    results::rows::NewResult,
    setters::setters,
};

/// The id that the store gave a destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DestinationId(pub i32);

impl fmt::Display for DestinationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The row of a destination, as who declares it gets it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Declared {
    /// Its id.
    pub id: DestinationId,
    /// What it takes, as its last relay knew; `None` if no relay has said it yet.
    pub limits: Option<DestinationLimits>,
}

impl Declared {
    /// A destination of which only the id is known.
    #[must_use]
    pub const fn new(id: DestinationId) -> Self {
        Self { id, limits: None }
    }

    setters! {
        /// Sets what it takes.
        limits: Option<DestinationLimits>,
    }
}

/// The number that the store gave an event. A later event has a higher number, but may be committed first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EventNumber(pub i64);

impl fmt::Display for EventNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The name of a stored event, for people and their commands: `4711:3f0c…`, its number and the key by which its receivers know it.
/// The number alone says too little: a server that takes over without the last commits, as after a restore, draws it again for another
/// event.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct EventName {
    /// Its number.
    pub number: EventNumber,
    /// Its key.
    pub key: IdempotencyKey,
}

impl fmt::Display for EventName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.number, self.key)
    }
}

/// A text that names no event.
#[derive(Debug, thiserror::Error)]
#[error("an event is named by its number and its key, as `idem outbox list` prints it: 4711:KEY")]
pub struct ParseEventNameError;

impl FromStr for EventName {
    type Err = ParseEventNameError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (number, key) = text.split_once(':').ok_or(ParseEventNameError)?;
        let number = EventNumber(number.parse().map_err(|_| ParseEventNameError)?);
        Ok(Self { number, key: IdempotencyKey::new(key).map_err(|_| ParseEventNameError)? })
    }
}

/// An event as it goes into the outbox. Its identity is (destination, scope, key).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct NewEvent {
    /// The scope of the message that caused it, or of the writer of a plain outbox.
    pub scope: ScopeId,
    /// Its destination.
    pub destination: DestinationId,
    /// The key by which its receivers know it.
    pub key: IdempotencyKey,
    /// The key that keeps it in order.
    pub ordering_key: Option<OrderingKey>,
    /// The kind of event.
    pub event_type: Option<Box<str>>,
    /// The media type of the payload.
    pub content_type: Option<Box<str>>,
    /// The handler's headers, and those of idem's that are known already.
    pub headers: Headers,
    /// The payload.
    pub payload: Bytes,
    /// The SHA-256 of everything that is sent. It distinguishes a copy from another event with the same key.
    pub hash: PayloadHash,
}

/// Events and results of a unit's handlers, to be written with their effects. Never empty.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Appended {
    /// The events, in the order of their messages and then of their publication.
    pub events: Vec<NewEvent>,
    /// The results, in the order of their messages.
    pub results: Vec<NewResult>,
    /// Whether the unit has other messages too, so that each runs alone if this fails. A store may then assume that none of the events is
    /// in the outbox, and fail if one is: hardly any ever is, and a look-up costs every event.
    pub is_shared: bool,
    /// Whether the unit cannot run again, because its work was done step by step. A store may not fail for an event that is in the outbox
    /// already then, as it may elsewhere with [`ErrorClass::RunUnitAgain`](crate::ErrorClass::RunUnitAgain).
    pub runs_once: bool,
}

impl Appended {
    /// Whether there is nothing to write.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.events.is_empty() && self.results.is_empty()
    }
}

/// Why nothing was appended. The unit cannot commit.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AppendError {
    /// The event at this place of [`Appended::events`] is in the outbox already with other content: a non-deterministic handler
    /// ran again after a `forget` or a restore.
    #[error("an event with the same id and another content waits in the outbox already")]
    Conflict {
        /// Its place.
        event: usize,
    },
    /// The statement failed. The class is permanent if a setting of the handler for its transaction caused the failure, such as a
    /// role that may not write to the outbox.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// An event in the form that a relay gets.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct OutgoingEvent {
    /// Its number.
    pub number: EventNumber,
    /// The consumer whose handler published it, or the writer of a plain outbox.
    pub consumer: ConsumerName,
    /// The name from which its id is derived: the consumer's first one, where it was renamed since.
    pub derives_as: ConsumerName,
    /// The tenant of that consumer's message; empty if there is only one tenant.
    pub tenant: Box<str>,
    /// The key by which its receivers know it.
    pub key: IdempotencyKey,
    /// The key that keeps it in order.
    pub ordering_key: Option<OrderingKey>,
    /// The kind of event.
    pub event_type: Option<Box<str>>,
    /// The media type of the payload.
    pub content_type: Option<Box<str>>,
    /// The handler's headers, and idem's: [`CAUSE`](super::CAUSE), [`CAUSED_BY`](super::CAUSED_BY), the trace.
    pub headers: Headers,
    /// The payload.
    pub payload: Bytes,
    /// When its transaction began, by the database's clock.
    pub created_at: SystemTime,
    /// How often a publisher did not confirm it.
    pub attempts: u32,
    /// How long ago receivers may first have got a copy of it, by the database's clock; `None` if it was never sent. A relay whose lease
    /// ran out may have sent anything that could go by then and has no outcome.
    pub first_sent_ago: Option<Duration>,
}

impl OutgoingEvent {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> EventName {
        EventName { number: self.number, key: self.key.clone() }
    }

    /// An event that was never sent, without headers.
    #[must_use]
    pub fn new(
        number: EventNumber,
        consumer: ConsumerName,
        key: IdempotencyKey,
        payload: Bytes,
        created_at: SystemTime,
    ) -> Self {
        Self {
            number,
            derives_as: consumer.clone(),
            consumer,
            tenant: Box::default(),
            key,
            ordering_key: None,
            event_type: None,
            content_type: None,
            headers: Headers::default(),
            payload,
            created_at,
            attempts: 0,
            first_sent_ago: None,
        }
    }
}

/// The `error` of an event that is with its destination at this moment: its relay notes that before an outcome, so that the events
/// behind it are not read again and again.
pub const UNDER_WAY: &str = "under way";

/// The outcome for an event that a relay had taken.
#[derive(Debug, Clone)]
pub enum EventEnd {
    /// The destination has confirmed it: the row is removed, and the events behind it may go.
    Published,
    /// It is to be tried again after this long. Until then the events behind it in its ordering key wait.
    Later {
        /// How long.
        after: Duration,
        /// Why, without a value of a payload.
        error: String,
        /// Whether the destination may have received it nevertheless, as after a missing confirmation.
        may_be_sent: bool,
        /// Whether it counts as an attempt.
        counted: bool,
    },
    /// It waits for a person, and the events behind it in its ordering key wait too. It is never discarded.
    Failed {
        /// Why.
        error: String,
        /// Whether the destination may have received it nevertheless.
        may_be_sent: bool,
    },
}

/// A relay that asks for a destination.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct LeaseRequest<'r> {
    /// Identifies the relay, also to people.
    pub relay: &'r str,
    /// For how long it asks.
    pub time: Duration,
    /// How long the destination's receivers recognise a copy, by this relay's [route](crate::relay::Route::receiver_keeps). The commands of
    /// an operator go by the last one.
    pub receiver_keeps: Duration,
    /// What the destination takes, as this relay's publisher knows. Workers go by the last one.
    pub limits: Option<&'r DestinationLimits>,
}

impl<'r> LeaseRequest<'r> {
    /// A request for this long, with the default time of receivers.
    #[must_use]
    pub fn new(relay: &'r str, time: Duration) -> Self {
        Self { relay, time, receiver_keeps: RECEIVER_KEEPS, limits: None }
    }

    setters! {
        /// Sets how long receivers recognise a copy.
        receiver_keeps: Duration,
        /// Sets what the destination takes.
        limits: Option<&'r DestinationLimits>,
    }
}

/// The holder of a destination's lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Leased {
    /// The relay that asked, for the time that it asked for.
    Mine,
    /// Another relay, for this long at most.
    Others {
        /// The time until the lease ends, unless it is renewed.
        left: Duration,
    },
    /// An operator has paused the destination: no relay may begin to send.
    Paused,
}

/// The number of events that wait for a destination. Every relay asks for it every few seconds, so a long backlog is not counted
/// to its end: stores may stop at 100,000 events or more that may go, and at as many that may not. The oldest that may go is among
/// those that are counted.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct OutboxBacklog {
    /// The destination's name.
    pub destination: String,
    /// Its id.
    pub id: DestinationId,
    /// Events that may go now.
    pub pending: u64,
    /// Events that are to be tried again later.
    pub waiting: u64,
    /// Events that wait for a person.
    pub failed: u64,
    /// Events that wait behind one of those in their ordering key.
    pub behind: u64,
    /// The age of the oldest event that neither failed nor waits behind a failed one; `None` if there is none.
    pub oldest: Option<Duration>,
    /// For how long the oldest event that may go now may go: since it was published, or since its last wait ended; `None` if there is
    /// none. An event that waits for its next try does not count, however old it is.
    pub due: Option<Duration>,
    /// How long ago receivers may first have got a copy of one of its events, at most; `None` if none of them was ever sent.
    pub first_sent_ago: Option<Duration>,
    /// How long its receivers recognise a copy, as the last relay had it; [`RECEIVER_KEEPS`] before the first one.
    pub receiver_keeps: Duration,
    /// What it takes, as the last relay knew; `None` if no relay has said it yet.
    pub limits: Option<DestinationLimits>,
    /// The name of the relay that has it now; `None` if none has.
    pub relayed_by: Option<String>,
    /// Whether an operator has paused it.
    pub is_paused: bool,
}

impl OutboxBacklog {
    /// The backlog of a destination for which no event waits.
    #[must_use]
    pub fn new(destination: String, id: DestinationId) -> Self {
        Self {
            destination,
            id,
            pending: 0,
            waiting: 0,
            failed: 0,
            behind: 0,
            oldest: None,
            due: None,
            first_sent_ago: None,
            receiver_keeps: RECEIVER_KEEPS,
            limits: None,
            relayed_by: None,
            is_paused: false,
        }
    }
}

/// The state of an event in the outbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventState {
    /// It may go.
    Pending,
    /// It is tried again at its time.
    Waiting,
    /// It waits for a person.
    Failed,
    /// It waits behind a waiting or failed event of its ordering key.
    Behind,
}

impl EventState {
    /// Every state.
    pub const ALL: [Self; 4] = [Self::Pending, Self::Waiting, Self::Failed, Self::Behind];

    /// The number of the state in tables.
    #[must_use]
    pub const fn number(self) -> i32 {
        match self {
            Self::Pending => 0,
            Self::Waiting => 1,
            Self::Failed => 2,
            Self::Behind => 3,
        }
    }

    /// The word for the state.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Waiting => "waiting",
            Self::Failed => "failed",
            Self::Behind => "behind",
        }
    }

    /// The state with this number.
    #[must_use]
    pub fn of(number: i32) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.number() == number)
    }
}

/// An event for display, without its payload.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct StoredEvent {
    /// The event, with an empty payload.
    pub event: OutgoingEvent,
    /// Its destination's name.
    pub destination: String,
    /// The size of the payload, in bytes.
    pub payload_bytes: u64,
    /// Its state.
    pub state: EventState,
    /// The last error.
    pub error: Option<String>,
    /// The time of the next try, if it waits for one.
    pub not_before: Option<SystemTime>,
}

impl StoredEvent {
    /// An event in this state.
    #[must_use]
    pub fn new(event: OutgoingEvent, destination: String, payload_bytes: u64, state: EventState) -> Self {
        Self { event, destination, payload_bytes, state, error: None, not_before: None }
    }
}

/// The outbox of a store, in which relays find committed events. Each call is a short transaction of its own.
///
/// One relay at a time has a destination, by a lease on the destination's row. Events that a relay takes stay in the table until
/// they are settled, so a relay that dies loses nothing: the next one sends copies under the same keys.
///
/// # Contract
/// 1. [`next`](Self::next) returns committed events only, and every one of them sooner or later: it selects them by state, and
///    never by a number above the last one, because a transaction that began earlier may commit later.
/// 2. Events of one ordering key of a destination are returned in the order of their numbers. While one of them waits for its
///    next try or has failed, none of those behind it is returned.
/// 3. An event that is settled as published is gone. One that is settled otherwise stays until it is published or an operator
///    skips it.
/// 4. Settling an event that is gone, or for a relay whose lease has ended, does no harm: confirmed events are removed, and a
///    later state never brings an event back.
/// 5. An event is settled, retried and skipped by its number and its key. A server that takes over without the last commits, as after
///    a restore, may give another event the number of one that it has lost, and the end of that one says nothing about the other.
///
/// `idem_conformance::store_conformance!` tests each number.
#[async_trait]
pub trait Outbox: Send + Sync + 'static {
    /// Registers destinations and returns the row of each, in order. A known destination keeps its form of ids.
    ///
    /// # Errors
    /// [`StoreError::Refused`] if a destination was declared with another form of ids.
    async fn declare(&self, destinations: &[Destination]) -> Result<Vec<Declared>, StoreError>;

    /// Takes or renews the lease of a destination, by the database's clock, and notes how long its receivers recognise a copy and what it
    /// takes. If it is renewed or taken over after it ran out, any event that could go by then and has no outcome may have been sent. A
    /// lease that ends in more than two minutes was given by a clock that was ahead, and keeps no other relay away. Of a destination that
    /// was paused since, the lease is renewed as long as it runs, because its relay may have events in hand.
    async fn lease(&self, destination: DestinationId, request: LeaseRequest<'_>) -> Result<Leased, StoreError>;

    /// Ends a lease before its time, if the relay has it.
    async fn release(&self, destination: DestinationId, relay: &str) -> Result<(), StoreError>;

    /// The next events that may go, oldest first: pending ones, and waiting ones whose time has come. At most `events_max`, and
    /// at most `bytes_max` of payloads and headers, but one event at least.
    async fn next(
        &self,
        destination: DestinationId,
        events_max: u32,
        bytes_max: u64,
    ) -> Result<Vec<OutgoingEvent>, StoreError>;

    /// Notes the outcomes of events that [`next`](Self::next) has answered. An outcome after which nothing was sent takes back the mark
    /// of a note before it that the event is [`UNDER_WAY`], as long as the note's wait lasts, unless a copy may have been sent before
    /// the event was answered ([`first_sent_ago`](OutgoingEvent::first_sent_ago)).
    async fn settle(&self, destination: DestinationId, ends: &[(&OutgoingEvent, EventEnd)]) -> Result<(), StoreError>;

    /// The backlog of each destination; only one writer's events if a consumer is given.
    async fn backlog(&self, consumer: Option<&ConsumerName>) -> Result<Vec<OutboxBacklog>, StoreError>;

    /// Events for display, oldest first: of one destination or one state, if these are given.
    async fn events(
        &self,
        destination: Option<&str>,
        state: Option<EventState>,
        max: u32,
    ) -> Result<Vec<StoredEvent>, StoreError>;

    /// Releases these waiting or failed events at once, and counts their attempts anew. Returns how many there were.
    async fn retry(&self, events: &[EventName]) -> Result<u64, StoreError>;

    /// The same for stale events, once a person knows that their receivers have no copy: the time for which receivers know one begins anew,
    /// or a relay would set them aside again. That a copy may be out there stays known, and they are called stale no longer.
    async fn retry_stale(&self, events: &[EventName]) -> Result<u64, StoreError>;

    /// Removes these events unsent, and releases the events behind them. Returns how many there were.
    async fn skip(&self, events: &[EventName]) -> Result<u64, StoreError>;

    /// Pauses a destination, or resumes it. Returns whether it exists.
    async fn pause(&self, destination: &str, is_paused: bool) -> Result<bool, StoreError>;
}
