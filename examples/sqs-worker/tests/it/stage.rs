//! A queue, a database and the workers between them.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use sqlx::{Connection, PgConnection, PgPool, postgres::PgPoolOptions, query, query_as, query_scalar};

use super::{
    queue::{Purchase, Queue},
    worker::{Ended, Worker},
};

/// How long anything may take before a test says that it hangs.
const PATIENCE: Duration = Duration::from_secs(180);

/// The full count with `./test --all`, else a smaller one.
pub(crate) fn count(all: i64, otherwise: i64) -> i64 {
    if std::env::var_os("IDEM_TEST_ALL").is_some() { all } else { otherwise }
}

/// What stands in the ledger.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Ledger {
    pub(crate) purchases: i64,
    pub(crate) keys: i64,
    pub(crate) cents: i64,
    /// The same once more, from the table with one row a customer.
    pub(crate) by_customer: (i64, i64),
}

impl Ledger {
    /// What it must be after the purchases of these numbers, each once.
    pub(crate) fn of(numbers: impl Iterator<Item = i64> + Clone) -> Self {
        let (purchases, cents) = (i64::try_from(numbers.clone().count()).expect("a count"), numbers.sum());
        Self { purchases, keys: purchases, cents, by_customer: (purchases, cents) }
    }
}

pub(crate) struct Stage {
    pub(crate) queue: Queue,
    pub(crate) name: String,
    database_url: String,
    pool: PgPool,
    folder: PathBuf,
    workers: AtomicU32,
}

impl Stage {
    /// A new queue, whose name ends so, and a new database. `label` is for those who look for what a failed test left
    /// behind.
    pub(crate) async fn new(label: &str, ending: &str) -> Self {
        let server = std::env::var("IDEM_POSTGRES_URL");
        let server = server.unwrap_or_else(|_| "postgres://idem@127.0.0.1:25432/idem".to_owned());
        let name = format!("idem_{label}_{:08x}", fastrand::u32(..));
        let mut connection = PgConnection::connect(&server).await.expect("PostgreSQL answers: ./servers up postgres");
        let statement = sqlx::AssertSqlSafe(format!("CREATE DATABASE {name} TEMPLATE template0"));
        query(statement).execute(&mut connection).await.expect("a new database");
        connection.close().await.expect("the connection closes");
        let (head, _) = server.rsplit_once('/').expect("a URL with a database");
        let database_url = format!("{head}/{name}");
        let pool = PgPoolOptions::new().max_connections(2).connect_lazy(&database_url).expect("a URL");
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(&name);
        std::fs::create_dir_all(&folder).expect("a folder for logs");
        let queue = Queue::create(&format!("{name}{ending}")).await;
        Self { queue, name, database_url, pool, folder, workers: AtomicU32::new(0) }
    }

    /// The arguments of a worker, which further ones may follow.
    pub(crate) fn arguments(&self, more: &[&str]) -> Vec<String> {
        let own = ["--queue-url", &self.queue.url, "--consumer", &self.name, "--database-url", &self.database_url]
            .into_iter()
            .chain(["--migrate", "--create-tables", "--lanes", "2", "--wait", "1s"])
            // So that what a worker had that died is missed for seconds only.
            .chain(["--handler-deadline", "10s", "--visibility", "20s"]);
        own.chain(more.iter().copied()).map(str::to_owned).collect()
    }

    pub(crate) fn start(&self, more: &[&str]) -> Worker {
        self.start_with(&self.arguments(more), &[])
    }

    pub(crate) fn start_with(&self, arguments: &[String], variables: &[(&str, &str)]) -> Worker {
        let number = self.workers.fetch_add(1, Ordering::Relaxed);
        Worker::start(arguments, variables, &self.folder.join(format!("worker-{number}.log")))
    }

    /// Runs one worker until there is nothing left.
    pub(crate) async fn drain(&self, more: &[&str]) -> Ended {
        self.start(&[&["--until-idle", "1s"], more].concat()).ended().await
    }

    pub(crate) async fn ledger(&self) -> Ledger {
        let text = "SELECT count(*), count(DISTINCT idempotency_key), coalesce(sum(cents), 0)::bigint FROM purchases";
        let (purchases, keys, cents) = query_as(text).fetch_one(&self.pool).await.expect("the ledger");
        let text = "SELECT coalesce(sum(purchases), 0)::bigint, coalesce(sum(cents), 0)::bigint FROM customers";
        let by_customer = query_as(text).fetch_one(&self.pool).await.expect("the ledger");
        Ledger { purchases, keys, cents, by_customer }
    }

    /// How many purchases stand in the ledger; 0 before there is one.
    pub(crate) async fn purchases(&self) -> i64 {
        query_scalar("SELECT count(*) FROM purchases").fetch_one(&self.pool).await.unwrap_or(0)
    }

    /// Waits for so many purchases.
    pub(crate) async fn until_purchases(&self, wanted: i64) {
        until(&format!("{wanted} purchases of {}", self.name), async || self.purchases().await >= wanted).await;
    }

    /// Reasons of dead letters, and how many there are of each.
    pub(crate) async fn dead_letters(&self) -> BTreeMap<String, i64> {
        let text = "SELECT reason, sum(copies)::bigint FROM idem.dead_letters GROUP BY reason";
        query_as(text).fetch_all(&self.pool).await.expect("the dead letters").into_iter().collect()
    }

    pub(crate) fn pool(&self) -> &PgPool {
        &self.pool
    }

    /// Sends the purchases of these numbers.
    pub(crate) async fn send(&self, numbers: impl IntoIterator<Item = i64>) {
        self.queue.send(numbers.into_iter().map(Purchase::number)).await;
    }

    /// Drops the database, whoever is still connected, and the queue; those of a test that fails stay.
    pub(crate) async fn remove(self) {
        self.pool.close().await;
        let (head, _) = self.database_url.rsplit_once('/').expect("a URL");
        let mut server = PgConnection::connect(&format!("{head}/idem")).await.expect("PostgreSQL answers");
        let statement = sqlx::AssertSqlSafe(format!("DROP DATABASE {} WITH (FORCE)", self.name));
        query(statement).execute(&mut server).await.expect("the database goes");
        std::fs::remove_dir_all(&self.folder).expect("its logs go");
        self.queue.delete().await;
    }
}

/// Waits until something is true that nobody tells about, by asking again.
pub(crate) async fn until(what: &str, mut is_true: impl AsyncFnMut() -> bool) {
    let asking = async {
        while !is_true().await {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    assert!(tokio::time::timeout(PATIENCE, asking).await.is_ok(), "{what} did not come within {PATIENCE:?}");
}
