//! How a worker ends: its exit status, the line that says why, and the summary.

use std::process::ExitCode;

use idem_core::{
    inbox::ReceiverView,
    relay::RelayError,
    worker::{Summary, WorkerError},
};
use serde::Serialize;

use crate::{logs, status::Status};

/// How a worker ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// Asked to stop, or idle for as long as was asked.
    Done,
    /// A wrong setting, or refused by a server.
    Refused,
    /// Database or broker could not be reached for the start-up time-out.
    Unreachable,
    /// Handlers that ran at the stop did not end in time.
    DrainDeadline,
    /// The consumer was halted, and the run was to end when idle.
    Halted,
    /// A panic: a bug of idem's, or of the application's own functions and hooks.
    Bug,
}

impl Exit {
    /// The exit status.
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Refused => 2,
            Self::Unreachable => 3,
            Self::DrainDeadline => 4,
            Self::Halted => 5,
            // EX_SOFTWARE of sysexits.h.
            Self::Bug => 70,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

/// Why a worker ends other than by being asked to.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    /// One line for the person who must act.
    pub(crate) line: String,
}

impl Failure {
    pub(crate) fn new(exit: Exit, line: impl Into<String>) -> Self {
        Self { exit, line: line.into() }
    }

    pub(crate) fn refused(line: impl Into<String>) -> Self {
        Self::new(Exit::Refused, line)
    }
}

/// The exit status that a worker's error asks for.
pub(crate) fn of_worker(error: &WorkerError) -> Exit {
    match error {
        // A worker ends on its own only for a problem that a person must fix; one that may pass, it waits out.
        WorkerError::Store(_) | WorkerError::Source(_) => Exit::Refused,
        WorkerError::Unreachable { .. } => Exit::Unreachable,
        WorkerError::DrainDeadline { .. } => Exit::DrainDeadline,
        WorkerError::Halted => Exit::Halted,
        WorkerError::Relay(error) => of_relay(error),
        WorkerError::TaskDied { .. } => Exit::Bug,
        // The enum is open to core's additions, and an unknown error is no fault of the operator's.
        _ => Exit::Bug,
    }
}

/// The same of a relay's.
pub(crate) fn of_relay(error: &RelayError) -> Exit {
    match error {
        RelayError::Store(_) => Exit::Refused,
        RelayError::TaskDied { .. } => Exit::Bug,
        // As above.
        _ => Exit::Bug,
    }
}

/// The last line on standard output.
#[derive(Debug, Serialize)]
struct Line {
    /// What the receiver of this process wrote to the inbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    received: Option<u64>,
    processed: u64,
    duplicates: u64,
    conflicts: u64,
    dead_lettered: u64,
    retries: u64,
    busy: u64,
    unknown_resolved: u64,
    published: u64,
    seconds: f64,
}

/// The same of a relay alone.
#[derive(Debug, Serialize)]
struct Relayed {
    published: u64,
    seconds: f64,
}

/// Writes the summary. A reader that went away changes nothing about how the run ended.
pub(crate) fn print_summary(status: &Status) {
    let summary = &status.summary();
    print(&Line {
        received: status.receiver().map(ReceiverView::written),
        processed: summary.processed,
        duplicates: summary.duplicates,
        conflicts: summary.conflicts,
        dead_lettered: summary.dead_lettered,
        retries: summary.retries,
        busy: summary.busy,
        unknown_resolved: summary.unknown_resolved,
        published: summary.published,
        seconds: seconds(summary),
    });
}

/// The same for a relay alone.
pub(crate) fn print_relayed(status: &Status) {
    let summary = &status.summary();
    print(&Relayed { published: summary.published, seconds: seconds(summary) });
}

fn seconds(summary: &Summary) -> f64 {
    (summary.ran_for.as_secs_f64() * 1e3).round() / 1e3
}

fn print(line: &impl Serialize) {
    if let Ok(text) = serde_json::to_string(line) {
        logs::print(&text);
    }
}
