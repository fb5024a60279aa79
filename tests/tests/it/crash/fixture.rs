//! The setting of one row of the matrix: a database, a broker on a socket, the published messages, one consumer at a
//! time.

use std::path::PathBuf;

use fastrand::Rng;
use idem_testkit::memory::{Broker, Order, Queue, QueueOptions, Server};
use idem_tests::plan::Plan;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::{ledger::Ledger, wave::Producer};
use crate::support::{
    child::{Child, Ended},
    database::{Database, Kind},
};

/// How many rows run at a time, over all tests: more would only take turns on a small machine.
static ROWS: Semaphore = Semaphore::const_new(3);

/// Attempts that are never used up, so that no kill makes a dead letter of an innocent message.
pub(crate) const PLENTY: u32 = 1_000;

pub(crate) struct Fixture {
    pub(crate) plan: Plan,
    pub(crate) database: Database,
    pub(crate) queue: Queue,
    pub(crate) dead: Queue,
    pub(crate) ledger: Ledger,
    pub(crate) producer: Producer,
    pub(crate) rng: Rng,
    folder: PathBuf,
    children: u32,
    _server: Server,
    _turn: SemaphorePermit<'static>,
}

impl Fixture {
    /// A fixture for the row of this name, on which nothing has happened.
    pub(crate) async fn new(name: &str, kind: Kind, batch: usize, options: QueueOptions) -> Self {
        let turn = ROWS.acquire().await.unwrap();
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("crash").join(name);
        // Files of an earlier run say nothing about this one.
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        let mut rng = idem_testkit::rng(name);
        let broker = Broker::new();
        let ledger = Ledger::new(options.order != Order::None);
        let options = options.seed(rng.u64(..)).history_max(1_000_000);
        let queue = broker.create("payments", options).unwrap();
        let dead = broker.create("dead", QueueOptions::default()).unwrap();
        // The path of a socket may have about a hundred bytes, so it is not in the folder.
        let socket = std::env::temp_dir().join(format!("idem-{}-{:08x}.sock", std::process::id(), fastrand::u32(..)));
        let server = broker.serve(&socket).await.expect("the socket can be made");
        let database = Database::fresh(kind, &folder).await;
        let plan = Plan {
            store: database.plan(),
            socket,
            queue: "payments".to_owned(),
            dead_letters: "dead".to_owned(),
            batch,
            lanes: if kind == Kind::SqliteStore { 1 } else { 2 },
            outside: false,
            attempts: PLENTY,
            // Long enough for what is on its way through a socket of a busy machine.
            idle_ms: 250,
            cleanup_rows: None,
            handler_ms: 0,
            repaired: false,
            newer: false,
            relay: None,
            asks: None,
        };
        // In single mode no batch has to be earned.
        let producer = if batch == 1 { Producer::new(2, 14) } else { Producer::new(batch + 2, 30) };
        let (children, _server, _turn) = (0, server, turn);
        Self { plan, database, queue, dead, ledger, producer, rng, folder, children, _server, _turn }
    }

    /// The folder of its logs and other files.
    pub(crate) fn folder(&self) -> &std::path::Path {
        &self.folder
    }

    /// Publishes a wave of messages.
    pub(crate) fn publish_wave(&mut self) {
        self.producer.wave(&mut self.ledger, &self.queue, &mut self.rng);
    }

    /// Starts a consumer with these failpoints.
    pub(crate) fn start(&mut self, plan: &Plan, armed: &str) -> Child {
        self.children += 1;
        let label = if armed.is_empty() { "clean" } else { armed };
        let label = label.replace(|c: char| !c.is_ascii_alphanumeric() && c != '_', "-");
        Child::start(plan, armed, &self.folder.join(format!("{:03}-{label}.log", self.children)))
    }

    /// Runs a consumer without failpoints until every message is settled, and compares everything.
    pub(crate) async fn recover_and_check(&mut self) -> Result<Ended, String> {
        let plan = self.plan.clone();
        let ended = self.start(&plan, "").ended().await?;
        if !ended.status.success() {
            return ended.unexpected("settled everything");
        }
        match self.ledger.check(&self.database, &self.queue, &self.dead).await {
            Ok(()) => Ok(ended),
            Err(wrong) => Err(format!("{wrong}\nlogs and database: {}, {:?}", self.folder.display(), self.plan.store)),
        }
    }

    /// Takes everything down; a row that failed does not get here.
    pub(crate) async fn remove(self) {
        self.database.remove().await;
        // Only logs of rows that failed are of use.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Fails with everything that went wrong in the rows of a test.
pub(crate) fn conclude(results: Vec<(String, Result<(), String>)>) {
    let rows = results.len();
    let failed: Vec<String> =
        results.into_iter().filter_map(|(row, result)| Some(format!("=== {row}\n{}", result.err()?))).collect();
    let again = format!("again with IDEM_SEED={}", idem_testkit::seed());
    assert!(failed.is_empty(), "{} of {rows} rows failed; {again}\n{}", failed.len(), failed.join("\n"));
}
