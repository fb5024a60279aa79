//! For those who write a store: what is appended to a unit, and the table that a relay empties.

use std::{
    fmt,
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use bytes::Bytes;

use super::{event::Destination, result::ResultBody};
use crate::{
    error::StoreError,
    hash::PayloadHash,
    key::IdempotencyKey,
    message::{ConsumerName, Headers, OrderingKey},
    store::ScopeId,
};

/// A destination, interned by the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DestinationId(pub i32);

impl fmt::Display for DestinationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The store's number of an event. A later one is higher, but may be committed first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EventNumber(pub i64);

impl fmt::Display for EventNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// An event as it goes into the outbox. Its identity is (destination, scope, key).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct NewEvent {
    /// The scope of the message that caused it; of a plain outbox the scope of its writer.
    pub scope: ScopeId,
    /// Where it goes.
    pub destination: DestinationId,
    /// The key by which its receivers know it.
    pub key: IdempotencyKey,
    /// The key that keeps it in order.
    pub ordering_key: Option<OrderingKey>,
    /// The kind of event.
    pub event_type: Option<Box<str>>,
    /// The media type of the payload.
    pub content_type: Option<Box<str>>,
    /// The handler's headers, and idem's that are known now.
    pub headers: Headers,
    /// The payload.
    pub payload: Bytes,
    /// The SHA-256 of all that is sent, by which another event of the same key is told from the same one.
    pub hash: PayloadHash,
}

/// A result as it goes beside the record of its key.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct NewResult {
    /// The scope of the key.
    pub scope: ScopeId,
    /// The key.
    pub key: IdempotencyKey,
    /// Whether it is an error, which is the operation's outcome all the same.
    pub is_error: bool,
    /// The result. Where it is sealed, its body is the sealed one, and it has no headers of its own.
    pub result: ResultBody,
    /// The number of the key that it is sealed with; 0 where it is not.
    pub sealed_with: u16,
    /// After how long cleanup takes everything but kind, status and reference out of it, by the database's clock; `None` where
    /// it is kept for as long as the record of its key.
    pub kept_for: Option<Duration>,
}

impl NewResult {
    /// A result of this key, which is not sealed.
    #[must_use]
    pub fn new(scope: ScopeId, key: IdempotencyKey, is_error: bool, result: ResultBody) -> Self {
        Self { scope, key, is_error, result, sealed_with: 0, kept_for: None }
    }
}

/// A result as a store has it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeptResult {
    /// Whether it is an error.
    pub is_error: bool,
    /// The result as it was appended, still sealed where it was; without body and headers where they are gone.
    pub result: ResultBody,
    /// The number of the key that it is sealed with; 0 where it is not.
    pub sealed_with: u16,
    /// Why body and headers are gone; `None` where they are there.
    pub gone: Option<Gone>,
}

/// Why a result is there without its body and headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gone {
    /// They were erased, for privacy, and the reference with them.
    Erased,
    /// Their time was over, and cleanup has removed them.
    Expired,
}

impl KeptResult {
    /// A result as it was appended.
    #[must_use]
    pub fn new(is_error: bool, result: ResultBody, sealed_with: u16) -> Self {
        Self { is_error, result, sealed_with, gone: None }
    }

    /// Of which body and headers were erased.
    #[must_use]
    pub fn erased(is_error: bool, status: Option<u16>) -> Self {
        let result = ResultBody { status, ..ResultBody::default() };
        Self { is_error, result, sealed_with: 0, gone: Some(Gone::Erased) }
    }

    /// Whose time is over.
    #[must_use]
    pub fn expired(is_error: bool, status: Option<u16>, reference: Option<Box<str>>) -> Self {
        let result = ResultBody { status, reference, ..ResultBody::default() };
        Self { is_error, result, sealed_with: 0, gone: Some(Gone::Expired) }
    }
}

/// Events and results that a unit's handlers handed in, to be written with their effects. Never empty.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Appended {
    /// The events, in the order of their messages and then of their publication.
    pub events: Vec<NewEvent>,
    /// The results, in the order of their messages.
    pub results: Vec<NewResult>,
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
    /// The event at this place of [`Appended::events`] is in the outbox already, with another content: a handler that is
    /// not deterministic ran again after a `forget` or a restore.
    #[error("an event with the same id and another content waits in the outbox already")]
    Conflict {
        /// Its place.
        event: usize,
    },
    /// The statement failed. One that failed because of what a handler has set for its transaction, such as a role that may
    /// not write to the outbox, is of class permanent.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// An event as a relay gets it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct OutgoingEvent {
    /// Its number.
    pub number: EventNumber,
    /// The consumer whose handler published it, or the writer of a plain outbox.
    pub consumer: ConsumerName,
    /// The tenant of that consumer's message; empty for the single one.
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
    /// How often it was given to a publisher that did not confirm it.
    pub attempts: u32,
    /// For how long a copy of it may be with its receivers already, by the database's clock; `None` where it was never sent.
    pub first_sent_ago: Option<Duration>,
}

impl OutgoingEvent {
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

/// The outcome for an event that a relay had taken.
#[derive(Debug, Clone)]
pub enum EventEnd {
    /// Its destination has confirmed it: the row is removed, and what waited behind it may go.
    Published,
    /// It is to be tried again after this long. Until then what follows it under its ordering key waits.
    Later {
        /// How long.
        after: Duration,
        /// Why, without a value of a payload.
        error: String,
        /// Whether its destination may have it all the same, as after a confirmation that did not come.
        may_be_sent: bool,
        /// Whether it counts as an attempt.
        counted: bool,
    },
    /// It waits for a person, and what follows it under its ordering key waits with it. It is never discarded.
    Failed {
        /// Why.
        error: String,
        /// Whether its destination may have it all the same.
        may_be_sent: bool,
    },
}

/// Who relays a destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Leased {
    /// The one who asked, for the time that was asked for.
    Mine,
    /// Somebody else, for as long at most.
    Others {
        /// Until it ends, unless they renew it.
        left: Duration,
    },
    /// No relay: an operator has paused the destination.
    Paused,
}

/// How much of a destination waits. It is looked at every few seconds, by every relay, so an outbox that is far behind is not
/// counted to its end: stores may stop at 100,000 events or more that may go, and at as many that may not. The oldest are among
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
    /// Events that wait behind one of those for their ordering key's sake.
    pub behind: u64,
    /// The age of the oldest event that is neither failed nor behind one; `None` where there is none.
    pub oldest: Option<Duration>,
    /// Who relays it now, as it calls itself; `None` where nobody does.
    pub relayed_by: Option<String>,
    /// Whether an operator has paused it.
    pub is_paused: bool,
}

impl OutboxBacklog {
    /// A destination of which nothing waits.
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
    /// It is tried again when its time has come.
    Waiting,
    /// It waits for a person.
    Failed,
    /// It waits behind a waiting or failed event of its ordering key.
    Behind,
}

impl EventState {
    /// Every state.
    pub const ALL: [Self; 4] = [Self::Pending, Self::Waiting, Self::Failed, Self::Behind];

    /// The number that tables have.
    #[must_use]
    pub const fn number(self) -> i32 {
        match self {
            Self::Pending => 0,
            Self::Waiting => 1,
            Self::Failed => 2,
            Self::Behind => 3,
        }
    }

    /// The word for it.
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

/// An event as people see it. The payload is not read.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct StoredEvent {
    /// The event, with an empty payload.
    pub event: OutgoingEvent,
    /// Its destination's name.
    pub destination: String,
    /// How large the payload is.
    pub payload_bytes: u64,
    /// Its state.
    pub state: EventState,
    /// The last error.
    pub error: Option<String>,
    /// When it is tried again, where it waits.
    pub not_before: Option<SystemTime>,
}

impl StoredEvent {
    /// An event that is in this state.
    #[must_use]
    pub fn new(event: OutgoingEvent, destination: String, payload_bytes: u64, state: EventState) -> Self {
        Self { event, destination, payload_bytes, state, error: None, not_before: None }
    }
}

/// The outbox of a store: where relays find what was committed, each call a short transaction of its own.
///
/// One relay at a time has a destination, by a lease on the destination's row. What it takes stays in the table until it is
/// settled, so a relay that dies loses nothing: the next one sends copies under the same keys.
///
/// # Contract
/// 1. [`next`](Self::next) answers committed events only, and every one of them sooner or later: by its state, never by a
///    number above the last one, because a transaction that began earlier may commit later.
/// 2. Events of one ordering key of a destination are answered in the order of their numbers. While one of them is waiting or
///    failed, none of those behind it is answered.
/// 3. An event that is settled as published is gone. One that is settled otherwise stays until it is published or an operator
///    skips it.
/// 4. Settling what is no longer there, or by a relay whose lease has ended, does no harm: what a broker has confirmed is
///    removed, and a later state never brings an event back.
///
/// `idem_testkit::store_conformance!` tests each number.
#[async_trait]
pub trait Outbox: Send + Sync + 'static {
    /// Interns destinations and answers their ids, in order. One that is known keeps its form of ids.
    ///
    /// # Errors
    /// [`StoreError::Refused`] where a destination was declared with another form of ids.
    async fn declare(&self, destinations: &[Destination]) -> Result<Vec<DestinationId>, StoreError>;

    /// Takes or renews the lease of a destination, by the database's clock. `relay` tells relays apart, and names them for
    /// people.
    async fn lease(&self, destination: DestinationId, relay: &str, time: Duration) -> Result<Leased, StoreError>;

    /// Ends a lease before its time, where the relay has it.
    async fn release(&self, destination: DestinationId, relay: &str) -> Result<(), StoreError>;

    /// The next events that may go, oldest first: pending ones, and waiting ones whose time has come. At most `events_max`, and
    /// at most `bytes_max` of payloads and headers, but one event at least.
    async fn next(
        &self,
        destination: DestinationId,
        events_max: u32,
        bytes_max: u64,
    ) -> Result<Vec<OutgoingEvent>, StoreError>;

    /// Notes what became of events.
    async fn settle(&self, destination: DestinationId, ends: &[(EventNumber, EventEnd)]) -> Result<(), StoreError>;

    /// What waits, for each destination; of one writer's events where a consumer is named.
    async fn backlog(&self, consumer: Option<&ConsumerName>) -> Result<Vec<OutboxBacklog>, StoreError>;

    /// Events for people, oldest first: of one destination where it is named, in one state where it is given.
    async fn events(
        &self,
        destination: Option<&str>,
        state: Option<EventState>,
        max: u32,
    ) -> Result<Vec<StoredEvent>, StoreError>;

    /// Lets these waiting or failed events go now, their attempts counted anew. Answers how many there were.
    async fn retry(&self, events: &[EventNumber]) -> Result<u64, StoreError>;

    /// Removes these events unsent, and lets go what waits behind them. Answers how many there were.
    async fn skip(&self, events: &[EventNumber]) -> Result<u64, StoreError>;

    /// Pauses a destination, or lets it go on. Answers whether there is one of this name.
    async fn pause(&self, destination: &str, is_paused: bool) -> Result<bool, StoreError>;
}
