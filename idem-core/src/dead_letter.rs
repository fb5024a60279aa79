//! Messages that are set aside: why, in which form they are stored and published, and how they are replayed.

pub(crate) mod identity;

use std::{
    fmt,
    panic::AssertUnwindSafe,
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::FutureExt as _;

pub use self::identity::{DeadLetterIdentity, FailureKind, Fingerprint};
use crate::{
    error::SourceError,
    hash::PayloadHash,
    message::{Message, headers::Headers},
    names::{ConsumerName, HashRuleId, IdempotencyKey, ScopeId},
};

/// Why a message was set aside. The text is part of the workers' contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// The key or the payload is not valid.
    Malformed,
    /// The message has no key.
    MissingKey,
    /// The key was used before for another payload.
    Conflict,
    /// Another key has the same id in the store.
    KeyCollision,
    /// The record was hashed by a rule that this build does not know.
    HashUnknown,
    /// The handler said that it can never succeed.
    Permanent,
    /// All attempts failed, or the process died in each of them.
    AttemptsExhausted,
    /// The handler passed its deadline in its last attempt.
    Deadline,
    /// There is no handler for its type.
    UnknownType,
    /// It is older than its record would be kept.
    OlderThanRetention,
    /// The payload is larger than allowed.
    TooLarge,
    /// An event of its handler waits in the outbox under the same id, with another content.
    OutboxConflict,
    /// A message before it in its ordering key waits. A dead letter never has this reason.
    Behind,
}

impl Reason {
    /// Every reason.
    pub const ALL: [Self; 13] = [
        Self::Malformed,
        Self::MissingKey,
        Self::Conflict,
        Self::KeyCollision,
        Self::HashUnknown,
        Self::Permanent,
        Self::AttemptsExhausted,
        Self::Deadline,
        Self::UnknownType,
        Self::OlderThanRetention,
        Self::TooLarge,
        Self::OutboxConflict,
        Self::Behind,
    ];

    /// The text.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::MissingKey => "missing-key",
            Self::Conflict => "conflict",
            Self::KeyCollision => "key-collision",
            Self::HashUnknown => "hash-unknown",
            Self::Permanent => "permanent",
            Self::AttemptsExhausted => "attempts-exhausted",
            Self::Deadline => "deadline",
            Self::UnknownType => "unknown-type",
            Self::OlderThanRetention => "older-than-retention",
            Self::TooLarge => "too-large",
            Self::OutboxConflict => "outbox-conflict",
            Self::Behind => "behind",
        }
    }

    /// The reason with this text.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.as_str() == text)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A dead letter as it is stored and published.
#[derive(Debug, Clone)]
pub struct DeadLetter {
    /// The consumer that set it aside.
    pub consumer: ConsumerName,
    /// Its scope.
    pub scope: ScopeId,
    /// The message, with its origin. The store keeps the payload only up to a limit, and a publisher gets it whole.
    pub message: Message,
    /// The key, where one was found.
    pub key: Option<IdempotencyKey>,
    /// The payload's hash and its rule, where it was hashed.
    pub hash: Option<(PayloadHash, HashRuleId)>,
    /// Why.
    pub reason: Reason,
    /// How many attempts were made.
    pub attempts: u32,
    /// The last error, without any value of a payload, statement or row.
    pub error: String,
    /// Shared by all dead letters that failed alike.
    pub fingerprint: Fingerprint,
    /// Whether the store keeps the payload. Off where it is larger than `dead_letter_payload_bytes_max`.
    pub keep_payload: bool,
    /// In the copy for a publisher whose topic or queue could not take the payload: the row that has it. The message of
    /// such a copy has no payload.
    pub payload_omitted: Option<DeadLetterId>,
}

/// About the bytes of a row of dead letters beside its payload, headers and texts: its other columns and its place in the
/// indexes.
pub const DEAD_LETTER_ROW_BYTES: u64 = 512;

impl DeadLetter {
    /// The bytes of its row without the payload, about.
    pub(crate) fn bytes_without_payload(&self) -> u64 {
        let headers = self.message.headers().bytes();
        DEAD_LETTER_ROW_BYTES + (headers + self.error.len() + self.message.origin().as_str().len()) as u64
    }

    /// The copy that is published where the payload does not fit: it says which row has it.
    pub(crate) fn without_payload(&self, row: DeadLetterId) -> Self {
        let message = self.message.without_payload();
        Self { message, payload_omitted: Some(row), ..self.clone() }
    }
}

/// The store's number of a dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeadLetterId(pub i64);

/// A dead letter as the store has it, without its payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredDeadLetter {
    /// Its number.
    pub id: DeadLetterId,
    /// The key, where one was found.
    pub key: Option<IdempotencyKey>,
    /// Where the first copy came from.
    pub origin: String,
    /// Why.
    pub reason: Reason,
    /// How many attempts were made.
    pub attempts: u32,
    /// The last error.
    pub error: String,
    /// Shared by all dead letters that failed alike; `None` where this build cannot read it.
    pub fingerprint: Option<Fingerprint>,
    /// How many equal messages it stands for.
    pub copies: u64,
    /// When the first copy was set aside, by the database's clock.
    pub first_at: SystemTime,
    /// Whether the store has the whole payload, or the message had none. Without it, only a confirmed publication or an
    /// operator who accepts the loss makes it safe to acknowledge the message.
    pub payload_kept: bool,
    /// When it was published, where it was: confirmed by the broker, for exactly this content.
    pub published_at: Option<SystemTime>,
    /// Whether an operator accepted that a payload which is neither kept nor published is lost.
    pub loss_accepted: bool,
    /// How its last replay ended, where there was one.
    pub replayed: Option<String>,
    /// Until when it waits for a later try; `None` of a dead letter, and of one whose replay an operator asked for.
    pub waits_until: Option<SystemTime>,
}

/// What became of a message that was put aside until a later try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PutAside {
    /// It is written, as this row.
    Written(DeadLetterId),
    /// This row of the same message is not over, and stands for it.
    Known(DeadLetterId),
}

impl PutAside {
    /// The row.
    #[must_use]
    pub const fn id(self) -> DeadLetterId {
        let (Self::Written(id) | Self::Known(id)) = self;
        id
    }
}

/// A dead letter that runs again, as the store hands it out.
#[derive(Debug, Clone)]
pub struct Due {
    /// Its number.
    pub id: DeadLetterId,
    /// The scope under which it was set aside.
    pub scope: ScopeId,
    /// The message as it was delivered.
    pub message: Message,
    /// The key under which it runs; `None` where it never had one, and then it fails as before.
    pub key: Option<IdempotencyKey>,
    /// The attempts that were made before it began to wait; 0 of a replay, whose attempts count from the beginning.
    pub attempts: u32,
    /// Whether an operator asked for it: a replay.
    pub replayed: bool,
    /// Whether another run had it and did not end it before its lease was over: it may have ended that process.
    pub was_taken: bool,
}

/// How a row that was due ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DueEnd {
    /// The message was handled.
    Processed,
    /// The message had been handled before.
    Duplicate,
    /// It failed again, and has a later try.
    Again {
        /// Until then, by the database's clock.
        after: Duration,
        /// How it failed.
        failure: DueFailure,
    },
    /// It failed again, and is a dead letter.
    Failed(DueFailure),
}

/// How a row that was due failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DueFailure {
    /// Why.
    pub reason: Reason,
    /// The error.
    pub error: String,
    /// The attempts that were made, over all its tries; 0 where none was, and then the row keeps its number.
    pub attempts: u32,
    /// Shared by all that failed alike; `None` where the row keeps its own.
    pub fingerprint: Option<Fingerprint>,
}

impl DueFailure {
    /// A failure without an attempt.
    pub fn new(reason: Reason, error: impl Into<String>) -> Self {
        Self { reason, error: error.into(), attempts: 0, fingerprint: None }
    }
}

impl DueEnd {
    /// The outcome that the row notes.
    #[must_use]
    pub fn outcome(&self) -> String {
        match self {
            Self::Processed => "processed".to_owned(),
            Self::Duplicate => "duplicate".to_owned(),
            Self::Again { failure: DueFailure { reason, error, .. }, .. } => format!("waits: {reason}: {error}"),
            Self::Failed(DueFailure { reason, error, .. }) => format!("failed: {reason}: {error}"),
        }
    }

    /// How it failed, where it did.
    #[must_use]
    pub const fn failure(&self) -> Option<&DueFailure> {
        match self {
            Self::Processed | Self::Duplicate => None,
            Self::Again { failure, .. } | Self::Failed(failure) => Some(failure),
        }
    }
}

/// How much a worker takes at a time of what is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DueRoom {
    /// Rows, at most.
    pub rows: u32,
    /// Bytes of payload: no row follows once those before it have as many.
    pub bytes: u64,
}

impl DueRoom {
    /// Room for as many rows, of any size.
    #[must_use]
    pub const fn rows(rows: u32) -> Self {
        Self { rows, bytes: u64::MAX }
    }
}

/// For stores: how long a row that was taken is its taker's, by the database's clock. The worker renews the lease while it has the
/// row; after it another worker takes the row.
pub const DUE_LEASE: Duration = Duration::from_secs(60);

/// Publishes dead letters to a topic or queue.
#[async_trait]
pub trait Publisher: Send + Sync + 'static {
    /// Publishes one dead letter, with its facts as headers (see [`headers`]), and waits until the broker has
    /// confirmed that it is stored.
    ///
    /// A dead letter whose [`payload_omitted`](DeadLetter::payload_omitted) is set has a message without a payload; where
    /// the broker carries no such message, a text that says so takes its place.
    ///
    /// # Errors
    /// Any outcome but a confirmation: refused, returned as unroutable, timed out. The original is then not acknowledged, and
    /// the dead letter is published again later; receivers may see it more than once. Where that goes on for
    /// [`database_wait_max`](crate::config::WorkerSettings::database_wait_max), the row alone is the dead letter if it has the payload.
    /// [`SourceError::DoesNotFit`] where the topic or queue can never take this one: where the row has the payload, a copy
    /// without it is published instead, and where that does not fit either the row alone is the dead letter.
    ///
    /// # Cancel safety
    /// A call that has not answered within a minute is dropped, and counts as unconfirmed.
    async fn publish(&self, dead_letter: &DeadLetter) -> Result<(), SourceError>;
}

/// How long a publisher has for one dead letter. Those of the adapters give up sooner, and say why.
const PUBLISHED_WITHIN: Duration = Duration::from_secs(60);

/// Publishes. A publisher that panics, or never answers, is one that could not publish now: nothing is settled, and it is
/// asked again.
pub(crate) async fn publish(publisher: &dyn Publisher, dead_letter: &DeadLetter) -> Result<(), SourceError> {
    // An own implementation may panic before it has made its future.
    let call = AssertUnwindSafe(async { publisher.publish(dead_letter).await }).catch_unwind();
    let failed = match tokio::time::timeout(PUBLISHED_WITHIN, call).await {
        Ok(Ok(answer)) => return answer,
        Ok(Err(_panic)) => "the publisher panicked".to_owned(),
        Err(_) => format!("the publisher has not answered for {PUBLISHED_WITHIN:?}"),
    };
    Err(SourceError::Unavailable { doing: "publishing a dead letter", source: failed.into() })
}

/// The header of a published dead letter whose payload did not fit: the number of the row in `dead_letters` that has it.
pub const PAYLOAD_OMITTED: &str = "idem-payload-omitted";

/// The headers that [`headers`] adds.
pub const FACTS: [&str; 7] = [
    "idem-reason",
    "idem-error",
    "idem-attempts",
    "idem-consumer",
    "idem-origin",
    PAYLOAD_OMITTED,
    crate::key::KEY_FIELD,
];

/// The headers or attributes of a published dead letter: the message's own, and why it was set aside. A header of the
/// message that has one of their names gives way, because the next reader would find a repeated key malformed.
#[must_use]
pub fn headers(dead_letter: &DeadLetter) -> Headers {
    let own = dead_letter.message.headers();
    let mut facts = vec![
        ("idem-reason", dead_letter.reason.to_string()),
        ("idem-error", dead_letter.error.clone()),
        ("idem-attempts", dead_letter.attempts.to_string()),
        ("idem-consumer", dead_letter.consumer.to_string()),
        ("idem-origin", dead_letter.message.origin().as_str().to_owned()),
    ];
    if let Some(row) = dead_letter.payload_omitted {
        facts.push((PAYLOAD_OMITTED, row.0.to_string()));
    }
    // A producer's own header of the key stays where it is.
    let key = dead_letter.key.as_ref().filter(|key| own.text(crate::key::KEY_FIELD) != Some(key.as_str()));
    if let Some(key) = key {
        facts.push((crate::key::KEY_FIELD, key.as_str().to_owned()));
    }
    let mut headers = Headers::default();
    for (name, value) in own.iter() {
        if facts.iter().all(|(fact, _)| *fact != name) {
            headers.push(name, value.map(Bytes::copy_from_slice));
        }
    }
    for (name, value) in facts {
        headers.push(name, Some(value.into()));
    }
    headers
}

/// How many recent messages the breaker looks at.
const BREAKER_WINDOW: u32 = 50;

/// Stops a bug from turning a whole queue into dead letters: it opens when more than half of the last 50 fresh
/// messages were set aside. A pure state machine; the worker pauses while it is open and probes with one message a
/// second.
#[derive(Debug, Default)]
pub(crate) struct Breaker {
    /// One bit a message, the newest lowest; set for a dead letter.
    recent: u64,
    open: bool,
}

impl Breaker {
    /// Notes how a fresh message ended. Answers whether this opened the breaker.
    pub(crate) fn note(&mut self, dead_lettered: bool) -> bool {
        self.recent = (self.recent << 1 | u64::from(dead_lettered)) & ((1 << BREAKER_WINDOW) - 1);
        let opened = !self.open && self.recent.count_ones() * 2 > BREAKER_WINDOW;
        self.open |= opened;
        opened
    }

    pub(crate) fn is_open(&self) -> bool {
        self.open
    }

    /// Whether no more than half of the last messages are dead letters, although it was opened.
    pub(crate) fn is_quiet(&self) -> bool {
        self.open && self.recent.count_ones() * 2 <= BREAKER_WINDOW
    }

    /// A probe went well: close, and forget what was before.
    pub(crate) fn close(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_breaker_opens_at_more_than_half_of_fifty_and_forgets_when_closed() {
        let mut breaker = Breaker::default();
        assert_eq!((0..25).filter(|_| breaker.note(true)).count(), 0);
        (0..25).for_each(|_| assert!(!breaker.note(false)));
        // The window is now half dead letters; one that pushes out another changes nothing.
        assert!(!breaker.note(true) && !breaker.is_open());
        let mut breaker = Breaker::default();
        assert_eq!((0..26).position(|_| breaker.note(true)), Some(25));
        assert!(breaker.is_open() && !breaker.note(true), "it opens once");
        breaker.close();
        assert!(!breaker.is_open() && !breaker.note(true));
    }

    #[test]
    fn every_reason_is_read_back_from_its_text() {
        assert!(Reason::ALL.into_iter().all(|reason| Reason::parse(reason.as_str()) == Some(reason)));
        assert_eq!(Reason::parse("other"), None);
    }
}
