//! [`MemoryStore`]: the store of tests that need no database.

mod bookkeeping;
mod connection;
mod fault;
mod inbox;
mod outbox;
mod results;
mod rows;
mod server;
mod state;
mod store;
mod unit;
mod weather;

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use idem_core::{
    Bytes,
    dead_letter::DeadLetterId,
    store::{Recorded, ScopeId, StoreCapabilities},
};
use tokio::sync::Notify;

pub use self::{
    bookkeeping::KeptDeadLetter,
    connection::{MemoryConnection, MemoryError},
    fault::{Defect, Fault, Operation},
    inbox::LateRow,
    server::Checkpoint,
    unit::{MemorySession, MemoryUnit},
    weather::Weather,
};
use self::{fault::Faults, state::State};

/// A transactional store in the memory of this process, **for tests only**: a restart forgets every key, and with it
/// the promise.
///
/// Beyond that it does what a database server does, so that the engine and users' handlers can be tested without one:
/// a claim waits for uncommitted twins of its keys and for nothing else, a unit is rolled back as a whole, a failed
/// statement spoils its transaction, a COMMIT that idem did not send is refused, and a commit's answer can be lost.
/// Clones share everything, as connections to one database do. It keeps the whole contract of [`Store`] and runs the
/// conformance suite.
///
/// Handlers write rows with a key and a value into named tables, through [`MemoryConnection`]; [`MemoryStore::rows`]
/// reads what is committed.
///
/// ```
/// use idem_core::{DedupConsumer, Effects, Handler, HandlerError, Message, Tx};
/// use idem_testkit::{MemoryStore, message};
///
/// struct Ledger;
///
/// impl Handler<MemoryStore> for Ledger {
///     async fn handle(&self, message: &Message, tx: &mut Tx<'_, MemoryStore>) -> Result<(), HandlerError> {
///         let payload = message.payload().cloned().unwrap_or_default();
///         Ok(tx.connection().append("purchases", "cents", payload).await?)
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = MemoryStore::new();
/// let consumer = DedupConsumer::builder(store.clone(), "ledger")
///     .handler(Ledger)
///     .effects(Effects::InTransaction)
///     .build()?;
/// let first = consumer.process_one(message("order-1", "250")).await?.decision;
/// let again = consumer.process_one(message("order-1", "250")).await?.decision;
/// assert!(first.is_processed() && again.is_skipped());
/// assert_eq!(store.rows("purchases").len(), 1);
/// # Ok(())
/// # }
/// ```
///
/// [`Store`]: idem_core::Store
#[derive(Clone)]
pub struct MemoryStore {
    shared: Arc<Shared>,
}

/// The state that the clones of a store share: the "server".
struct Shared {
    state: Mutex<State>,
    faults: Mutex<Faults>,
    /// Told whenever a unit has ended, so that waiting claims look again.
    ended: Notify,
    writers: Writers,
    capabilities: StoreCapabilities,
    defect: Option<Defect>,
}

/// The units that a claim waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Writers {
    /// For uncommitted twins of its keys, as a database server does it.
    PerKey,
    /// For any other unit that writes, as a database inside the process does it.
    One,
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").field("writers", &self.shared.writers).finish_non_exhaustive()
    }
}

impl MemoryStore {
    /// An empty store that behaves like a database server: units of different keys write side by side.
    #[must_use]
    pub fn new() -> Self {
        Self::of(Writers::PerKey, None)
    }

    /// An empty store like [`new`](Self::new) that says it has these capabilities, to test what an engine refuses on a store without one.
    #[must_use]
    pub fn with_capabilities(capabilities: StoreCapabilities) -> Self {
        Self::claiming(Writers::PerKey, capabilities, None)
    }

    /// An empty store that behaves like a database inside the process: one unit writes at a time, and the claim of
    /// another waits for it as a whole.
    #[must_use]
    pub fn embedded() -> Self {
        Self::of(Writers::One, None)
    }

    /// An empty store that breaks its contract in one way, to see a suite turn red.
    #[must_use]
    pub fn with_defect(defect: Defect) -> Self {
        Self::of(Writers::PerKey, Some(defect))
    }

    fn of(writers: Writers, defect: Option<Defect>) -> Self {
        let capabilities = match writers {
            Writers::PerKey => StoreCapabilities::server(),
            Writers::One => StoreCapabilities::embedded(),
        };
        Self::claiming(writers, capabilities.outbox(true).results(true).sets_aside(true), defect)
    }

    fn claiming(writers: Writers, capabilities: StoreCapabilities, defect: Option<Defect>) -> Self {
        let (state, faults) = (Mutex::new(State::default()), Mutex::default());
        Self { shared: Arc::new(Shared { state, faults, ended: Notify::new(), writers, capabilities, defect }) }
    }

    /// The committed rows of a table, in the order in which they were committed.
    #[must_use]
    pub fn rows(&self, table: &str) -> Vec<(String, Bytes)> {
        self.shared.state().tables.get(table).cloned().unwrap_or_default()
    }

    /// The committed rows of every table that has any, by its name.
    #[must_use]
    pub fn tables(&self) -> BTreeMap<String, Vec<(String, Bytes)>> {
        self.shared.state().tables.clone()
    }

    /// The keys that have a committed record, over all consumers, one entry a record.
    #[must_use]
    pub fn recorded_keys(&self) -> Vec<String> {
        self.shared.state().records.keys().map(|(_, key)| key.as_str().to_owned()).collect()
    }

    /// The committed records, each with its scope.
    #[must_use]
    pub fn records(&self) -> Vec<(ScopeId, Recorded)> {
        self.shared.state().records.iter().map(|((scope, _), recorded)| (*scope, recorded.clone())).collect()
    }

    /// The dead letters with their messages, oldest first.
    #[must_use]
    pub fn kept_dead_letters(&self) -> Vec<KeptDeadLetter> {
        self.shared.state().books.kept()
    }

    /// Drops dead letters, as an operator does.
    pub fn drop_dead_letters(&self, ids: &[DeadLetterId]) {
        self.shared.state().books.drop_dead_letters(ids);
    }

    /// Whether any consumer is halted.
    #[must_use]
    pub fn is_halted(&self) -> bool {
        self.shared.state().books.is_halted()
    }

    /// Action and key of every line of the audit trail, oldest first.
    #[must_use]
    pub fn audited(&self) -> Vec<(String, Option<String>)> {
        let line = |entry: &idem_core::store::AuditEntry| {
            (entry.action.to_owned(), entry.key.as_ref().map(|key| key.as_str().to_owned()))
        };
        self.shared.state().books.audit.iter().map(line).collect()
    }

    /// How many deadlocks there were: of two units that waited for each other, one had to run again.
    #[must_use]
    pub fn deadlocks(&self) -> u64 {
        self.shared.state().deadlocks
    }

    /// How many commits lost their connection before the answer, so that the engine could not know whether they were done.
    #[must_use]
    pub fn unknown_commits(&self) -> u64 {
        self.shared.state().unknown_commits
    }

    /// This store's clock: from 1 January 2026 on it goes with tokio's, which a test can pause, plus every
    /// [`MemoryStore::advance`].
    #[must_use]
    pub fn now(&self) -> SystemTime {
        self.shared.state().now()
    }

    /// Moves this store's clock forward, so that records expire without waiting.
    pub fn advance(&self, by: Duration) {
        self.shared.state().advanced += by;
    }

    /// Has the next `operation`, of any session, meet `fault`. Several calls queue up.
    pub fn inject(&self, operation: Operation, fault: Fault) {
        self.shared.faults().add(operation, fault);
    }

    /// From now on operations meet faults drawn from a seed, beside those that are injected. `Weather::default()` ends it.
    pub fn weather(&self, weather: Weather) {
        self.shared.faults().set_weather(weather);
    }

    /// How many [injected](Self::inject) faults wait for this operation.
    #[must_use]
    pub fn faults_left(&self, operation: Operation) -> usize {
        self.shared.faults().left(operation)
    }

    /// How many faults of the [weather](Self::weather) this operation has met.
    #[must_use]
    pub fn faults_met(&self, operation: Operation) -> u64 {
        self.shared.faults().met.get(&operation).copied().unwrap_or_default()
    }

    /// Swallows every insert of a record without an error from now on, as a trigger or a policy may (B6).
    pub fn swallow_records(&self, yes: bool) {
        self.shared.state().swallows_records = yes;
    }

    /// Takes the table of records away, as a deploy may (A27), or brings it back.
    pub fn hide_records(&self, yes: bool) {
        self.shared.state().hides_records = yes;
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn faults(&self) -> MutexGuard<'_, Faults> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has(&self, defect: Defect) -> bool {
        self.defect == Some(defect)
    }
}
