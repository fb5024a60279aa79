//! The error classes that every edge shares, and the errors of the store and source traits.

use std::{error::Error, fmt};

use crate::names::{ConsumerName, IdempotencyKey};

/// Any error, boxed, as drivers and handlers hand it to the engine.
pub type BoxError = Box<dyn Error + Send + Sync + 'static>;

/// The class of an error, by which the engine decides. Every store and source maps its own errors to one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorClass {
    /// Two units conflicted (deadlock, serialization failure, a stale cached plan): the same unit runs again at once, a
    /// bounded number of times, and no message is charged an attempt.
    RunUnitAgain,
    /// The message may succeed later: it is held for a back-off and charged an attempt.
    Transient,
    /// The message can never succeed: it is dead-lettered without another attempt.
    Permanent,
    /// The database or broker cannot serve any request now (unreachable, restarting, full, a table missing during a
    /// deploy): nothing is charged, nothing is dead-lettered, work waits.
    Infrastructure,
    /// Nothing will work until a person changes a setting, a grant or the schema: the worker stops with the cure.
    Fatal,
}

impl fmt::Display for ErrorClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::RunUnitAgain => "run-unit-again",
            Self::Transient => "transient",
            Self::Permanent => "permanent",
            Self::Infrastructure => "infrastructure",
            Self::Fatal => "fatal",
        })
    }
}

/// An error of a store. Its text never holds a payload or a statement's parameters.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The database cannot be reached, is shutting down, or refuses new connections.
    #[error("the database is unavailable while {doing}")]
    Unavailable {
        /// idem's own step, as a gerund: "claiming keys".
        doing: &'static str,
        /// The driver's error.
        #[source]
        source: BoxError,
    },
    /// A deadlock or a serialization failure rolled the unit back.
    #[error("the unit conflicted with another transaction while {doing}; it was rolled back and runs again")]
    Contended {
        /// idem's own step, as a gerund.
        doing: &'static str,
        /// The driver's error.
        #[source]
        source: BoxError,
    },
    /// The database has another schema than this build needs, or lacks a part of it.
    #[error("the schema of the database does not fit: {problem}. {cure}")]
    Schema {
        /// The missing or different part, with both values.
        problem: String,
        /// The cure, as a command or a statement.
        cure: String,
    },
    /// A setting of the server, the role or the store makes the guarantee impossible.
    #[error("{problem}. {cure}")]
    Refused {
        /// The problem, with the setting's name and value.
        problem: String,
        /// The cure.
        cure: String,
    },
    /// The consumer's name is bound to another source, handler or rule.
    #[error(
        "consumer {consumer} is bound to {what} {recorded:?}, and this process has {found:?}: {cure}", cure = cure_of_bound(what)
    )]
    Bound {
        /// The consumer whose binding differs.
        consumer: ConsumerName,
        /// Which part of the binding differs: "source", "handler", "key rules" or "hash rules".
        what: &'static str,
        /// The value that the first start recorded.
        recorded: String,
        /// The value of this start.
        found: String,
    },
    /// The transaction that is about to be committed is not the one that claimed the keys, or it has already failed.
    #[error("the transaction cannot be sealed: {problem}; nothing was committed")]
    Unsealed {
        /// The handler's deed, as far as it is known.
        problem: String,
        /// The driver's error, where there is one.
        #[source]
        source: Option<BoxError>,
    },
    /// The store lacks a capability that was asked for.
    #[error("this store cannot {what}")]
    Unsupported {
        /// The missing capability.
        what: &'static str,
    },
    /// A statement failed in a way that says nothing about the database's health.
    #[error("{doing} failed")]
    Failed {
        /// idem's own step, as a gerund.
        doing: &'static str,
        /// The class that the driver's error was given.
        class: ErrorClass,
        /// The driver's error.
        #[source]
        source: BoxError,
    },
}

/// Another name does not help with other hash rules: under it all keys are new, and their operations run again.
fn cure_of_bound(what: &str) -> &'static str {
    match what {
        "hash rules" => {
            "configure the recorded rule or secret too, as a former one. Otherwise repeats cannot be compared with their records. \
             `idem consumers rebind` gives up the comparison"
        }
        _ => "give this process another consumer name, or move the binding with `idem consumers rebind`",
    }
}

impl StoreError {
    /// [`Unavailable`](Self::Unavailable) while `doing`, a gerund.
    pub fn unavailable(doing: &'static str, source: impl Into<BoxError>) -> Self {
        Self::Unavailable { doing, source: source.into() }
    }

    /// [`Contended`](Self::Contended) while `doing`, a gerund.
    pub fn contended(doing: &'static str, source: impl Into<BoxError>) -> Self {
        Self::Contended { doing, source: source.into() }
    }

    /// [`Schema`](Self::Schema), with the cure as a command or a statement.
    pub fn schema(problem: impl Into<String>, cure: impl Into<String>) -> Self {
        Self::Schema { problem: problem.into(), cure: cure.into() }
    }

    /// [`Refused`](Self::Refused), with the cure as a whole sentence without its full stop.
    pub fn refused(problem: impl Into<String>, cure: impl Into<String>) -> Self {
        Self::Refused { problem: problem.into(), cure: cure.into() }
    }

    /// [`Failed`](Self::Failed) while `doing`, a gerund.
    pub fn failed(doing: &'static str, class: ErrorClass, source: impl Into<BoxError>) -> Self {
        Self::Failed { doing, class, source: source.into() }
    }

    /// The class, by which the engine decides what to do next. There is no `_` arm: a new variant gets its class here.
    #[must_use]
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Unavailable { .. } => ErrorClass::Infrastructure,
            Self::Contended { .. } => ErrorClass::RunUnitAgain,
            Self::Schema { .. } | Self::Refused { .. } | Self::Bound { .. } | Self::Unsupported { .. } => {
                ErrorClass::Fatal
            }
            Self::Unsealed { .. } => ErrorClass::Transient,
            Self::Failed { class, .. } => *class,
        }
    }
}

/// Why a claim gave no answer for its keys. In every case the unit must be rolled back.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClaimError {
    /// Another unit holds at least one of the keys, and did not let go within the busy timeout. Which key is not
    /// known, because the server aborts the whole transaction: claim them one by one.
    #[error("another unit holds a key of this unit")]
    Held,
    /// Three rounds of claiming neither inserted a key nor found its record: a trigger, rule or row-level policy on
    /// `processed_messages` swallows the rows, or a claim denies its own inserts. Nothing is a duplicate by that.
    #[error(
        "key {key} was neither inserted nor found in processed_messages: look for a trigger, a rule or a row security policy on that table, which suppresses rows, and for functions of another role in the search_path (`idem doctor` names them)"
    )]
    NoWinner {
        /// The first such key.
        key: IdempotencyKey,
    },
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Why a commit did not answer with success.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommitError {
    /// The transaction was certainly rolled back.
    #[error("the transaction was rolled back at commit")]
    RolledBack(#[source] StoreError),
    /// The answer was lost, so the transaction may or may not be committed: close the connection and claim again on a
    /// new one.
    #[error("the answer to the commit was lost; the keys are claimed again on a new connection to learn the outcome")]
    Unknown(#[source] BoxError),
}

/// An error of a source or publisher.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// The broker cannot be reached now; the source reconnects by itself.
    #[error("the broker is unavailable while {doing}; idem waits and tries again")]
    Unavailable {
        /// The source's step, as a gerund.
        doing: &'static str,
        /// The client library's error.
        #[source]
        source: BoxError,
    },
    /// The broker refuses: unknown queue or topic, missing rights, a dangerous setting.
    #[error("{problem}. {cure}")]
    Refused {
        /// The problem, with the setting's name and value.
        problem: String,
        /// The cure.
        cure: String,
    },
    /// A topic or queue cannot take this one message, whenever it is asked: it is too large, or of a kind that the broker
    /// does not carry. Others are not affected. Publishers answer it.
    #[error("{problem}. {cure}")]
    DoesNotFit {
        /// The part that is too large or cannot be carried, and the limit that it breaks, with its topic or queue.
        problem: String,
        /// The cure, so that the next one fits.
        cure: String,
    },
}

impl SourceError {
    /// [`Unavailable`](Self::Unavailable) while `doing`, a gerund.
    pub fn unavailable(doing: &'static str, source: impl Into<BoxError>) -> Self {
        Self::Unavailable { doing, source: source.into() }
    }

    /// [`Refused`](Self::Refused), with the cure as a whole sentence without its full stop.
    pub fn refused(problem: impl Into<String>, cure: impl Into<String>) -> Self {
        Self::Refused { problem: problem.into(), cure: cure.into() }
    }

    /// [`DoesNotFit`](Self::DoesNotFit), with the cure as a whole sentence without its full stop.
    pub fn does_not_fit(problem: impl Into<String>, cure: impl Into<String>) -> Self {
        Self::DoesNotFit { problem: problem.into(), cure: cure.into() }
    }

    /// The class, by which the engine decides what to do next.
    #[must_use]
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Unavailable { .. } => ErrorClass::Infrastructure,
            Self::Refused { .. } => ErrorClass::Fatal,
            Self::DoesNotFit { .. } => ErrorClass::Permanent,
        }
    }
}

/// An error and its sources, outermost first.
pub fn chain<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |error: &&'a (dyn Error + 'static)| (*error).source())
}

/// A broker's error with its causes, in one line: DNS, TLS, a throttled account and a full disk are one text otherwise. A
/// store's goes through `store::describe::one_line`, because its causes may quote values.
pub(crate) fn with_causes(error: &SourceError) -> String {
    chain(error).map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
