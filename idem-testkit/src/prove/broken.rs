//! The outcome of a proof: that it holds, or which promise does not and why.

use std::{collections::BTreeSet, fmt, time::Duration};

use idem_core::BoxError;

use super::tables::Difference;

/// How many rows a text shows.
const ROWS_SHOWN: usize = 3;

/// The trials that a handler has passed.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Proven {
    /// How many databases were made and compared.
    pub databases: u32,
    /// How many processes died.
    pub kills: u32,
    /// The failpoints at which one died, and `handler_waits`: somewhere inside the handler.
    pub died_at: BTreeSet<&'static str>,
    /// The columns that differ from run to run, as `table.column`: they were not compared.
    pub not_compared: Vec<String>,
    /// How long it took.
    pub took: Duration,
}

impl fmt::Display for Proven {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { databases, kills, died_at, not_compared, took } = self;
        let places: Vec<_> = died_at.iter().copied().collect();
        write!(
            f,
            "{databases} databases, {kills} processes died ({}), {:.1} s",
            places.join(", "),
            took.as_secs_f32()
        )?;
        match not_compared.as_slice() {
            [] => Ok(()),
            columns => write!(f, "; not compared, because they differ from run to run: {}", columns.join(", ")),
        }
    }
}

/// Why a handler is not proved.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotProven {
    /// A promise is broken.
    #[error("{promise}\nThat is not so when {when}: {why}")]
    Broken {
        /// The promise.
        promise: Promise,
        /// The situation in which the handler ran.
        when: String,
        /// The observation, and the mistakes in a handler that cause it.
        why: String,
    },
    /// There is nothing to prove yet: a message too few, one that the handler does not take, effects that cannot be seen.
    #[error("nothing can be proved: {0}")]
    Unprovable(String),
    /// The database or the engine failed.
    #[error("the proof could not go on when {when}: {}", with_causes(source.as_ref()))]
    Failed {
        /// The step that failed.
        when: String,
        /// The error.
        #[source]
        source: BoxError,
    },
}

fn with_causes(error: &(dyn std::error::Error + 'static)) -> String {
    idem_core::internal::chain(error).map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// A promise that a handler's user relies on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Promise {
    /// A run that is rolled back leaves nothing.
    RollsBack,
    /// An attempt that was rolled back changes nothing for the next one.
    ForgetsAttempts,
    /// A statement that failed fails the message.
    HandsErrorsOn,
    /// Wherever a process dies, each message has its effect once.
    SurvivesDeath,
    /// An answer that is lost costs no effect and doubles none.
    SurvivesLostAnswers,
    /// A message that comes again has its effect once.
    IgnoresDuplicates,
    /// A key that was used for another payload has no second effect.
    RefusesConflicts,
    /// Two workers with the same messages have each effect once.
    WorksBesideItself,
    /// Neighbours that fail, panic or hang change nothing for the others.
    SparesNeighbours,
    /// Messages of one ordering key are handled in their order.
    KeepsOrder,
}

impl fmt::Display for Promise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::RollsBack => "What is rolled back leaves nothing behind.",
            Self::ForgetsAttempts => "An attempt that was rolled back changes nothing for the next one.",
            Self::HandsErrorsOn => "A statement that failed fails its message.",
            Self::SurvivesDeath => "Wherever a process dies, each message has its effect once.",
            Self::SurvivesLostAnswers => "An answer that is lost costs no effect and doubles none.",
            Self::IgnoresDuplicates => "A message that comes again has its effect once.",
            Self::RefusesConflicts => "A key that was used for another payload has no second effect.",
            Self::WorksBesideItself => "Two workers with the same messages have each effect once.",
            Self::SparesNeighbours => "Neighbours that fail, panic or hang change nothing for the others.",
            Self::KeepsOrder => "Messages of one ordering key are handled in their order.",
        })
    }
}

fn times(count: usize) -> String {
    match count {
        0 => "not there".to_owned(),
        1 => "there once".to_owned(),
        more => format!("there {more} times"),
    }
}

/// The rows that differ, in words.
pub(super) fn told(differences: &[Difference]) -> String {
    let told = |difference: &Difference| {
        format!("{difference} is {}, and should be {}", times(difference.seen), times(difference.expected))
    };
    let rows: Vec<_> = differences.iter().take(ROWS_SHOWN).map(told).collect();
    let more = differences.len().saturating_sub(ROWS_SHOWN);
    let more = if more > 0 { format!("; and {more} rows more") } else { String::new() };
    format!("{}{more}", rows.join("; "))
}
