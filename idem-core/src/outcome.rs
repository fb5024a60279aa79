//! Verdict, decision, outcome, settlement, and the pure table between them.

use std::{fmt, time::Duration};

use crate::{
    bugs::{self, Bug},
    dead_letter::Reason,
    error::ErrorClass,
    handler_error::HandlerError,
    hash::PayloadHash,
    names::{HashRuleId, RunId},
    store::claim::{Claim, Claimed, Recorded},
};

/// Permission to run a handler: made by a claim that was won, and used up by the run.
#[must_use]
#[derive(Debug)]
pub(crate) struct Ticket(());

/// Proof that an outcome is durable: a commit, a committed row that was read, a stored dead letter, an audited conflict, a committed row of an inbox. Not `Clone`, and
/// only the engine makes one, so acknowledging without proof does not compile:
///
/// ```compile_fail
/// let settle = idem_core::source::Settle::Acknowledge(idem_core::source::Durable(()));
/// ```
#[must_use]
#[derive(Debug)]
pub struct Durable(());

impl Durable {
    /// The unit that recorded the key was committed.
    pub(crate) fn committed() -> Self {
        Self(())
    }

    /// A committed record of the key was read.
    pub(crate) fn read_back() -> Self {
        Self(())
    }

    /// The dead letter is stored and, where a publisher is given, confirmed.
    pub(crate) fn dead_lettered() -> Self {
        Self(())
    }

    /// The message is a committed row of its consumer's inbox, which hands it over as its broker would.
    pub(crate) fn in_inbox() -> Self {
        Self(())
    }

    /// The audit trail has the conflict, which the policy acknowledges without a dead letter.
    pub(crate) fn audited() -> Self {
        Self(())
    }
}

/// Core's verdict on a claim.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// The key is new: the handler runs.
    Fresh(Ticket),
    /// The same message was handled before.
    Duplicate(Recorded, Durable),
    /// The key was used before for another payload: the handler does not run, and this is no duplicate.
    Conflict(Recorded, ConflictKind),
    /// Another key has the same id in the store.
    Collision(Recorded),
    /// The store neither inserted the key nor has a record of it: ask again.
    Unanswered,
}

/// How a conflict was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConflictKind {
    /// The hashes differ under one rule.
    OtherPayload,
    /// The record was hashed by a rule that this build does not know, so the payloads cannot be compared.
    UnknownRule,
}

impl ConflictKind {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::OtherPayload => "the key was used before for another payload",
            Self::UnknownRule => "the record of the key was hashed by a rule that this build does not know",
        }
    }
}

/// Compares a message with a record of its key. Every path goes through this one function.
///
/// `rehash` gives the hashes that the message's payload has by the record's rule; `None` where this build does not know the rule or the
/// payload does not fit it.
pub(crate) fn compare(
    claim: &Claim,
    recorded: Recorded,
    rehash: impl FnOnce(HashRuleId) -> Option<Vec<PayloadHash>>,
) -> Verdict {
    if recorded.key != claim.key {
        return Verdict::Collision(recorded);
    }
    let is_by_this_rule = recorded.hash_rule == claim.hash_rule;
    if (is_by_this_rule && claim.hash == recorded.hash) || bugs::planted(Bug::ConflictIsADuplicate) {
        return Verdict::Duplicate(recorded, Durable::read_back());
    }
    match rehash(recorded.hash_rule) {
        Some(hashes) if hashes.contains(&recorded.hash) => Verdict::Duplicate(recorded, Durable::read_back()),
        None if !is_by_this_rule => Verdict::Conflict(recorded, ConflictKind::UnknownRule),
        Some(_) | None => Verdict::Conflict(recorded, ConflictKind::OtherPayload),
    }
}

/// The verdict on one claim.
pub(crate) fn verdict(
    claim: &Claim,
    claimed: Claimed,
    rehash: impl FnOnce(HashRuleId) -> Option<Vec<PayloadHash>>,
) -> Verdict {
    match claimed {
        Claimed::Inserted => Verdict::Fresh(Ticket(())),
        Claimed::Found(recorded) => compare(claim, recorded, rehash),
        Claimed::NotInserted if bugs::planted(Bug::ZeroRowsAreADuplicate) => {
            let Claim { key, hash, hash_rule, .. } = claim.clone();
            let (processed_at, processed_by) = (std::time::SystemTime::UNIX_EPOCH, RunId(0));
            let recorded = Recorded { key, hash, hash_rule, processed_at, processed_by, expires_at: None };
            Verdict::Duplicate(recorded, Durable::read_back())
        }
        Claimed::NotInserted => Verdict::Unanswered,
    }
}

/// Permission to run the handler of a type that opted out of protection.
pub(crate) fn unprotected() -> Ticket {
    Ticket(())
}

/// Why a message could not be handled.
///
/// `Debug` prints class, reason, whether it comes again, and text, and not the handler's error, which may quote a statement or a row.
pub struct Failure {
    /// The class, by which the engine decides what to do about it.
    pub class: ErrorClass,
    /// The reason that its dead letter would carry. Where it [comes again](Self::comes_again) first, that is
    /// [`Reason::AttemptsExhausted`], although none may be used up yet.
    pub reason: Reason,
    /// The failure in words, without any value of a payload, statement or row.
    pub text: String,
    /// The code of the cause: an SQLSTATE, a result code of SQLite's, one of idem's own such as `key-too-long` or `missing-field`, or the
    /// handler's ([`HandlerError::with_code`]). It is never a value of a message.
    pub code: Option<String>,
    /// When the handler wants the next attempt, where it said so.
    pub retry_after: Option<Duration>,
    /// The error that the handler answered with; `None` where the handler did not run or did not answer.
    pub error: Option<HandlerError>,
}

impl Failure {
    pub(crate) fn new(class: ErrorClass, reason: Reason, text: impl Into<String>) -> Self {
        Self { class, reason, text: text.into(), code: None, retry_after: None, error: None }
    }

    /// Whether a worker tries the message again before it is set aside. False where another attempt could not go better: the
    /// next answer is a dead letter.
    #[must_use]
    pub fn comes_again(&self) -> bool {
        match self.class {
            ErrorClass::RunUnitAgain | ErrorClass::Transient | ErrorClass::Infrastructure => true,
            ErrorClass::Permanent | ErrorClass::Fatal => false,
        }
    }

    pub(crate) fn with_code(self, code: Option<String>) -> Self {
        Self { code, ..self }
    }

    /// The same for a cause that idem finds itself. Dead letters of two causes are two groups (S59).
    pub(crate) fn of(self, cause: &str) -> Self {
        self.with_code(Some(cause.to_owned()))
    }

    /// The same failure for another message of the unit.
    pub(crate) fn clone_text(&self) -> Self {
        let failure = Self::new(self.class, self.reason, self.text.clone()).with_code(self.code.clone());
        Self { retry_after: self.retry_after, ..failure }
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Failure")
            .field("class", &self.class)
            .field("reason", &self.reason)
            .field("comes_again", &self.comes_again())
            .field("text", &self.text)
            .finish_non_exhaustive()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}, {})", self.text, self.reason, self.class)
    }
}

/// The decision of [`DedupConsumer::process`](crate::DedupConsumer::process) about one message.
///
/// ```
/// # use idem_core::Decision;
/// # fn answer(decision: Decision) -> bool {
/// // In a receive loop of your own: a message without a proof goes back to the broker.
/// decision.into_durable().is_some()
/// # }
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum Decision {
    /// The effects and the record of the key are committed.
    Processed(Durable),
    /// The same message was handled before, as recorded. Acknowledge it.
    Duplicate(Recorded, Durable),
    /// The key was used before for another payload. Nothing ran; keep the message for a person to look at.
    Conflict(Recorded, ConflictKind),
    /// Another unit holds the key, or an earlier message of this call that failed: hand the message back for later.
    Busy,
    /// The message could not be handled, and nothing of it was written.
    Failed(Failure),
}

impl Decision {
    /// Whether the handler ran and its effects are committed.
    #[must_use]
    pub fn is_processed(&self) -> bool {
        matches!(self, Self::Processed(_))
    }

    /// Whether the message was skipped as a duplicate.
    #[must_use]
    pub fn is_skipped(&self) -> bool {
        matches!(self, Self::Duplicate(..))
    }

    /// The proof with which the message may be acknowledged; `None` where there is none, and the message must go back
    /// to the broker or be kept elsewhere.
    #[must_use]
    pub fn into_durable(self) -> Option<Durable> {
        match self {
            Self::Processed(durable) | Self::Duplicate(_, durable) => Some(durable),
            Self::Conflict(..) | Self::Busy | Self::Failed(_) => None,
        }
    }
}

/// The answer to the broker.
#[must_use]
#[derive(Debug)]
pub enum Settle {
    /// Take the message off the queue.
    Acknowledge(Durable),
    /// Give the message back, to be delivered again not before `after`.
    Release {
        /// The delay; zero for at once. A source that cannot delay gives it back at once.
        after: Duration,
    },
    /// Take the message off the queue, because it is kept as a dead letter. To most brokers this is an
    /// acknowledgement; a broker that knows rejections may get one.
    DeadLetter(Durable),
}

#[cfg(test)]
mod tests;
