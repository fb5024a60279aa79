//! A database of a test's own with the ledger in it, and the logs of the workers on it. The tests of every worker include
//! this file.

#![allow(dead_code, reason = "not every worker's tests use all of it")]

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use sqlx::{Connection, PgConnection, PgPool, postgres::PgPoolOptions, query, query_as, query_scalar};

/// How long anything may take before a test says that it hangs.
const PATIENCE: Duration = Duration::from_secs(300);

/// The full count with `./test --all`, else a smaller one.
pub(crate) fn count(all: i64, otherwise: i64) -> i64 {
    if std::env::var_os("IDEM_TEST_ALL").is_some() { all } else { otherwise }
}

/// What chance goes by: `IDEM_SEED`, else a new one; it is shown where a test fails.
pub(crate) fn seed() -> u64 {
    let seed = std::env::var("IDEM_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(|| fastrand::u64(..));
    println!("IDEM_SEED={seed}");
    seed
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

pub(crate) struct Database {
    /// Of the database, and of whatever else the test has at a broker.
    pub(crate) name: String,
    pub(crate) url: String,
    pool: PgPool,
    folder: PathBuf,
    workers: AtomicU32,
}

/// PostgreSQL as `./servers` starts it, unless `IDEM_POSTGRES_URL` says otherwise.
pub(crate) fn server() -> String {
    std::env::var("IDEM_POSTGRES_URL").unwrap_or_else(|_| "postgres://idem@127.0.0.1:25432/idem".to_owned())
}

impl Database {
    /// A new one. `label` is for those who look for what a failed test left behind.
    pub(crate) async fn create(label: &str, server: &str) -> Self {
        let name = format!("idem_{label}_{:08x}", fastrand::u32(..));
        let mut connection = PgConnection::connect(server).await.expect("PostgreSQL answers: ./servers up postgres");
        let statement = sqlx::AssertSqlSafe(format!("CREATE DATABASE {name} TEMPLATE template0"));
        query(statement).execute(&mut connection).await.expect("a new database");
        connection.close().await.expect("the connection closes");
        let (head, _) = server.rsplit_once('/').expect("a URL with a database");
        let url = format!("{head}/{name}");
        let pool = PgPoolOptions::new().max_connections(2).connect_lazy(&url).expect("a URL");
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(&name);
        std::fs::create_dir_all(&folder).expect("a folder for logs");
        Self { name, url, pool, folder, workers: AtomicU32::new(0) }
    }

    /// `host:port` of its server.
    pub(crate) fn host(&self) -> &str {
        let (head, _) = self.url.rsplit_once('/').expect("a URL with a database");
        head.rsplit_once('@').or(head.rsplit_once('/')).expect("a host").1
    }

    /// Where the next worker's log goes.
    pub(crate) fn next_log(&self) -> PathBuf {
        self.folder.join(format!("worker-{}.log", self.workers.fetch_add(1, Ordering::Relaxed)))
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

    /// The most attempts that any message has.
    pub(crate) async fn most_attempts(&self) -> i32 {
        let text = "SELECT coalesce(max(attempts), 0) FROM idem.attempts";
        query_scalar(text).fetch_one(&self.pool).await.expect("the attempts")
    }

    pub(crate) fn pool(&self) -> &PgPool {
        &self.pool
    }

    /// Drops the database, whoever is still connected; one of a test that fails stays.
    pub(crate) async fn remove(&self) {
        self.pool.close().await;
        let (head, _) = self.url.rsplit_once('/').expect("a URL");
        let mut server = PgConnection::connect(&format!("{head}/idem")).await.expect("PostgreSQL answers");
        let statement = sqlx::AssertSqlSafe(format!("DROP DATABASE {} WITH (FORCE)", self.name));
        query(statement).execute(&mut server).await.expect("the database goes");
        std::fs::remove_dir_all(&self.folder).expect("its logs go");
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
