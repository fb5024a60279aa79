//! The plan of a test for a consumer in a process of its own, and the instructions of the messages to its handler.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The whole plan of `consumer`, as JSON in its one argument. Failpoints come in their own variable, see
/// [`idem_testkit::failpoints`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The database.
    pub store: StorePlan,
    /// The Unix socket of the broker.
    pub socket: PathBuf,
    /// The queue to consume.
    pub queue: String,
    /// The queue that dead letters are published to.
    pub dead_letters: String,
    /// How many messages one unit holds at most; 1 is single mode.
    pub batch: usize,
    /// How many units run side by side.
    pub lanes: usize,
    /// Whether the handler is declared to call other systems, so that every attempt is counted before it runs.
    pub outside: bool,
    /// How many attempts a message gets.
    pub attempts: u32,
    /// The run ends when the queue has been at its end for this many milliseconds.
    pub idle_ms: u64,
    /// Cleanup every second, in steps of this many rows; `None` turns it off.
    pub cleanup_rows: Option<u32>,
    /// How many milliseconds each call of the handler takes beyond its statements.
    pub handler_ms: u64,
    /// The bug that made messages of [`Act::FailUntilRepaired`] fail is repaired in this process.
    pub repaired: bool,
    /// The process is of a release that needs the table `notes`, and notes each message that it handles.
    pub newer: bool,
    /// The process relays events too.
    pub relay: Option<Relaying>,
    /// The process consumes nothing, and asks for operations in place of that.
    pub asks: Option<Asking>,
}

/// How a process relays.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Relaying {
    /// The file that events go to.
    pub to: PathBuf,
    /// How many milliseconds each of them takes.
    pub event_ms: u64,
    /// The relay's deadline for what it gives to its publisher, in milliseconds.
    pub deadline_ms: u64,
}

/// The operations that a process asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asking {
    /// How many operations there are, which all processes share.
    pub keys: u64,
    /// How often each is asked for.
    pub times: u64,
    /// The file that answers are noted in.
    pub to: PathBuf,
}

/// Where the consumer's database is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum StorePlan {
    /// A PostgreSQL database.
    PostgresStore {
        /// Its URL.
        url: String,
    },
    /// The same through the store on tokio-postgres.
    TokioPostgres {
        /// Its URL.
        url: String,
        /// How a unit's messages are handled.
        handling: Handling,
    },
    /// A SQLite file.
    SqliteStore {
        /// Its path.
        path: PathBuf,
    },
}

/// How a unit's messages are handled, where the store leaves a choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Handling {
    /// One after the other.
    InOrder,
    /// At once, on the transaction that they share.
    Pipelined,
    /// By one call of a batch handler, duplicates of the last minutes recognized from memory: the fastest way.
    TogetherWithCache,
}

/// The payload of a message.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Payment {
    /// The place of the message in the order of publishing; two sends of one message share it.
    pub sequence: i64,
    /// The account that is credited.
    pub account: i64,
    /// By how much.
    pub cents: i64,
    /// The handler's act after its statements.
    pub act: Act,
}

/// The handler's act after it has written the effect, which must then stay or vanish accordingly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Act {
    /// It succeeds.
    Succeed,
    /// It fails the first time that this process sees the message, in a way that may pass.
    FailOnce,
    /// It fails for good.
    FailAlways,
    /// It fails for good until it runs in a process where the bug is [repaired](Plan::repaired).
    FailUntilRepaired,
    /// It ends the process at once, without unwinding, as a stack overflow or an abort in a C library does.
    Abort,
}

/// The exit status of a consumer without a valid plan.
pub const BAD_PLAN: u8 = 2;

/// The exit status of a consumer whose worker ended with an error.
pub const WORKER_FAILED: u8 = 3;

/// The exit status of a consumer that ended well and never came to the failpoint that it was armed with.
pub const NOT_REACHED: u8 = 4;
