//! Decides the action after a failure: a pure function from a message's state and the failure seen, to an action.
//!
//! A worker's lane and [`DedupConsumer::process`](crate::DedupConsumer::process) both ask it. It knows no store, no broker and
//! no clock, so that any other driver of messages can ask it too. `policy/table.txt` lists every answer.
//!
//! Where a handler fails in a unit of several messages, or another unit holds a key of it, nothing is decided yet: its
//! messages run alone, and a failure then comes here.

use crate::{
    bugs::{self, Bug},
    error::ErrorClass,
};

/// Connections that were lost under a message in a row, with the whole database, before the next one charges it: two may be
/// a server that is moved or updated.
const OUTAGES_MAX: u32 = 2;

/// How often a unit runs again as it is, after conflicts with other transactions, before its messages run alone.
const AGAIN_MAX: u32 = 3;

/// The state of the message, or of the unit of several, that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Known {
    /// The number of the attempt that was counted for this run; 0 where none was, because it ran in a batch.
    pub(crate) attempt: u32,
    /// The attempts that a message gets.
    pub(crate) attempts_max: u32,
    /// The later tries that follow them, each one attempt.
    pub(crate) later: u32,
    /// How often in a row it ran again after a conflict with another transaction.
    pub(crate) again: u32,
    /// Connections that were lost under its handler when it ran alone.
    pub(crate) lost: u32,
    /// It has waited, uncharged, for as long as the database's own faults are waited for.
    pub(crate) waited_long: bool,
}

/// The failure seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seen {
    /// A message's handler failed, or its commit was refused; its connection still answers.
    Failed(ErrorClass),
    /// A statement of ours failed before any handler ran, or the commit could not be sent.
    StoreFailed(ErrorClass),
    /// The connection was lost while handlers ran.
    ConnectionLost,
    /// After that the database was asked over another connection, and answered.
    DatabaseAnswers,
    /// After that the database was asked over another connection, and did not answer.
    DatabaseDown,
    /// The unit conflicted with another transaction, and was rolled back.
    Contended,
    /// Another unit holds the message's key.
    Held,
    /// The store neither inserted a key nor found its record.
    NoWinner,
    /// The answer to the commit was lost.
    CommitUnanswered,
    /// Bookkeeping about a message, outside of its unit, failed: its attempt, an audit line, its dead letter.
    BookkeepingFailed(ErrorClass),
}

/// The action to take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// Run the same unit again at once.
    RunAgain,
    /// Run each of its messages alone, its attempt counted before it runs.
    RunAlone,
    /// Claim again over a new connection, which shows how the commit ended.
    ClaimAgain,
    /// Ask over another connection whether the database answers, and decide by that.
    AskTheDatabase,
    /// Put back, uncharged. Nothing is taken in until the database answers.
    AwaitTheDatabase,
    /// Hold, uncharged: nothing that the message did is the cause.
    Wait(WaitCause),
    /// Hold for the back-off; the attempt stays counted.
    Retry,
    /// Keep as a row until its next later try, which has this number, from 1; the attempt stays counted.
    Later(u32),
    /// Set aside.
    DeadLetter,
    /// Stop the worker: a person must change something first.
    Stop,
}

/// The cause for which a message is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum WaitCause {
    /// Its next attempt: the one before failed.
    Retry,
    /// Its key, which another unit holds.
    KeyHeld,
    /// The database, which answers and cannot serve this message's statements now, such as those on a missing table.
    Database,
    /// Its bookkeeping, outside of its transaction: its attempt, an audit line, its dead letter.
    Bookkeeping,
    /// A topic or queue that has not confirmed its dead letter yet.
    Publisher,
    /// The broker, which has not taken the settlements yet: the message may kill the process, and settled messages would come
    /// back with it. Or the broker's position, which cannot pass this message yet: its attempts are used up, and if it came back
    /// with the next process, it would have all of them again.
    Broker,
    /// A person, because neither the database nor a publisher can keep it.
    Unkeepable,
    /// Room among the dead letters of its consumer, whose quota is used up.
    DeadLetterQuota,
    /// The rows before it in its ordering key, which are due or run.
    Behind,
    /// The breaker: it failed for good, and is set aside once the breaker closes, or after a while.
    Breaker,
}

impl WaitCause {
    pub(crate) const ALL: [Self; 10] = [
        Self::Retry,
        Self::KeyHeld,
        Self::Database,
        Self::Bookkeeping,
        Self::Publisher,
        Self::Broker,
        Self::Unkeepable,
        Self::DeadLetterQuota,
        Self::Behind,
        Self::Breaker,
    ];

    /// The value of the label `cause` in telemetry.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::KeyHeld => "key-held",
            Self::Database => "database",
            Self::Bookkeeping => "bookkeeping",
            Self::Publisher => "publisher",
            Self::Broker => "broker",
            Self::Unkeepable => "unkeepable",
            Self::DeadLetterQuota => "dead-letter-quota",
            Self::Behind => "behind",
            Self::Breaker => "breaker",
        }
    }
}

/// The action that follows. In every case nothing of the message was committed.
pub(crate) fn after(known: &Known, seen: Seen) -> Action {
    use ErrorClass::{Fatal, Infrastructure, Permanent, RunUnitAgain, Transient};
    match seen {
        Seen::CommitUnanswered => Action::ClaimAgain,
        Seen::Held | Seen::NoWinner => Action::Wait(WaitCause::KeyHeld),
        Seen::Failed(Fatal) | Seen::StoreFailed(Fatal) | Seen::BookkeepingFailed(Fatal) => Action::Stop,

        // The connection answers, so it is this statement that the database cannot serve now, such as one on a table that
        // a deploy is about to bring back (A27). One that stays so is the message's own, or its handler's.
        Seen::Failed(Infrastructure) if !known.waited_long => Action::Wait(WaitCause::Database),
        Seen::Failed(Permanent) => Action::DeadLetter,
        Seen::Failed(Transient | RunUnitAgain | Infrastructure) => charge_handler(known),

        Seen::Contended | Seen::StoreFailed(RunUnitAgain) if known.again < AGAIN_MAX => Action::RunAgain,
        Seen::Contended | Seen::StoreFailed(RunUnitAgain) => charge(known),
        Seen::StoreFailed(Infrastructure) if bugs::planted(Bug::OutagesCharge) => charge(known),
        Seen::StoreFailed(Infrastructure) | Seen::BookkeepingFailed(Infrastructure) => Action::AwaitTheDatabase,
        // One of these messages causes the error; running each alone finds it without holding up the others.
        Seen::StoreFailed(Permanent) if known.attempt > 0 => Action::DeadLetter,
        Seen::StoreFailed(Transient | Permanent) => charge(known),

        // It is not known yet whose doing it was, and counting an attempt finds out whether the database answers.
        Seen::ConnectionLost if known.attempt == 0 => Action::RunAlone,
        Seen::ConnectionLost => Action::AskTheDatabase,
        // Once may be an operator, a pooler or a restart; twice in a row is the message's own statement.
        Seen::DatabaseAnswers if known.lost == 0 => Action::Wait(WaitCause::Database),
        Seen::DatabaseAnswers => charge(known),
        // An outage charges no message, but one that comes with the same message again and again is its doing (D42).
        Seen::DatabaseDown if known.lost < OUTAGES_MAX => Action::AwaitTheDatabase,
        Seen::DatabaseDown => charge(known),

        Seen::BookkeepingFailed(RunUnitAgain) => Action::RunAgain,
        Seen::BookkeepingFailed(Transient | Permanent) => Action::Wait(WaitCause::Bookkeeping),
    }
}

/// A failure of its handler that may pass with time.
fn charge_handler(known: &Known) -> Action {
    match (charge(known), known.attempt.saturating_sub(known.attempts_max)) {
        (Action::DeadLetter, tried_later) if tried_later < known.later => Action::Later(tried_later + 1),
        (action, _) => action,
    }
}

/// A failure that is the message's own, once it has run alone.
fn charge(known: &Known) -> Action {
    match known.attempt {
        0 => Action::RunAlone,
        attempt if attempt >= known.attempts_max => Action::DeadLetter,
        _ => Action::Retry,
    }
}

#[cfg(test)]
mod tests;
