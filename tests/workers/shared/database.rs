//! A database of a test's own with the ledger in it, and the logs of the workers on it. The tests of every worker include
//! this file.

#![allow(dead_code, reason = "not every worker's tests use all of it")]

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use idem_sqlx::{
    PostgresStore,
    idem_sql::{SchemaName, postgres_roles},
};
use ledger::POSTGRES_TABLES;
use sqlx::{
    AssertSqlSafe, Connection, PgConnection, PgPool,
    postgres::{PgConnectOptions, PgPoolOptions},
    query, query_as, query_scalar, raw_sql,
};

/// How long anything may take before a test says that it hangs.
const PATIENCE: Duration = Duration::from_secs(300);

/// The full count with `./test --all`, else a smaller one.
pub(crate) fn count(all: i64, otherwise: i64) -> i64 {
    if std::env::var_os("IDEM_TEST_ALL").is_some() { all } else { otherwise }
}

/// The content of the ledger.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Ledger {
    pub(crate) purchases: i64,
    pub(crate) keys: i64,
    pub(crate) cents: i64,
    /// The same once more, from the table with one row a customer.
    pub(crate) by_customer: (i64, i64),
}

impl Ledger {
    /// The ledger after the purchases of these numbers, each once.
    pub(crate) fn of(numbers: impl Iterator<Item = i64> + Clone) -> Self {
        let (purchases, cents) = (i64::try_from(numbers.clone().count()).expect("a count"), numbers.sum());
        Self { purchases, keys: purchases, cents, by_customer: (purchases, cents) }
    }
}

pub(crate) struct Database {
    /// Of the database, and of the test's topics and queues.
    pub(crate) name: String,
    /// As the login of its workers.
    pub(crate) url: String,
    /// As the login of their cleanup.
    pub(crate) cleanup_url: String,
    /// As the owner of everything in it.
    pub(crate) owner_url: String,
    pool: PgPool,
    folder: PathBuf,
    workers: AtomicU32,
}

/// PostgreSQL as `./servers` starts it, unless `IDEM_POSTGRES_URL` says otherwise.
pub(crate) fn server() -> String {
    std::env::var("IDEM_POSTGRES_URL").unwrap_or_else(|_| "postgres://idem@127.0.0.1:25432/idem".to_owned())
}

impl Database {
    /// A new one with the tables of idem and the ledger, whose workers and their cleanup log in as production's should: with
    /// the rights of `idem_worker` and `idem_cleanup` (S8). `label` helps to find the leftovers of a failed test.
    pub(crate) async fn create(label: &str, server: &str) -> Self {
        let database = Self::empty(label, server).await;
        let store = PostgresStore::connect(&database.owner_url).await.expect("the database answers");
        store.migrate().await.expect("idem's tables");
        store.disconnect().await;
        let roles = postgres_roles(&SchemaName::default());
        let Self { name, .. } = &database;
        let script = format!(
            "BEGIN; {roles}; {POSTGRES_TABLES};
             GRANT SELECT, INSERT ON purchases TO idem_worker;
             GRANT SELECT, INSERT, UPDATE ON customers TO idem_worker;
             CREATE ROLE {name} LOGIN IN ROLE idem_worker;
             CREATE ROLE {name}_cleanup LOGIN IN ROLE idem_cleanup;
             COMMIT"
        );
        raw_sql(AssertSqlSafe(script)).execute(&database.pool).await.expect("roles, the ledger's tables and logins");
        let (_, rest) = database.owner_url.split_once('@').expect("a URL with a login");
        let of = |login: &str| format!("postgres://{login}@{rest}");
        Self { url: of(name), cleanup_url: of(&format!("{name}_cleanup")), ..database }
    }

    /// A new one with nothing in it, whose workers log in as its owner.
    pub(crate) async fn empty(label: &str, server: &str) -> Self {
        let name = format!("idem_{label}_{:08x}", fastrand::u32(..));
        let mut connection = PgConnection::connect(server).await.expect("PostgreSQL answers: ./servers up postgres");
        let statement = AssertSqlSafe(format!("CREATE DATABASE {name} TEMPLATE template0"));
        query(statement).execute(&mut connection).await.expect("a new database");
        connection.close().await.expect("the connection closes");
        let (head, _) = server.rsplit_once('/').expect("a URL with a database");
        let url = format!("{head}/{name}");
        // The owner is called as idem's schema is, which would come first: a test's tables would be hidden from its workers.
        let options = url.parse::<PgConnectOptions>().expect("a URL").options([("search_path", "public,idem")]);
        let pool = PgPoolOptions::new().max_connections(2).connect_lazy_with(options);
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(&name);
        std::fs::create_dir_all(&folder).expect("a folder for logs");
        let workers = AtomicU32::new(0);
        Self { name, cleanup_url: url.clone(), owner_url: url.clone(), url, pool, folder, workers }
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
        let text = "SELECT coalesce(max(attempts), 0) FROM idem.message_attempts";
        query_scalar(text).fetch_one(&self.pool).await.expect("the attempts")
    }

    pub(crate) fn pool(&self) -> &PgPool {
        &self.pool
    }

    /// Drops the database, even with open connections, and its logins; those of a test that fails stay.
    pub(crate) async fn remove(&self) {
        self.pool.close().await;
        let (head, _) = self.owner_url.rsplit_once('/').expect("a URL");
        let mut server = PgConnection::connect(&format!("{head}/idem")).await.expect("PostgreSQL answers");
        let Self { name, .. } = self;
        for statement in
            [format!("DROP DATABASE {name} WITH (FORCE)"), format!("DROP ROLE IF EXISTS {name}, {name}_cleanup")]
        {
            query(AssertSqlSafe(statement)).execute(&mut server).await.expect("the database and its logins go");
        }
        std::fs::remove_dir_all(&self.folder).expect("its logs go");
    }
}

/// Waits until a condition without an event is true, by asking again.
pub(crate) async fn until(what: &str, mut is_true: impl AsyncFnMut() -> bool) {
    let asking = async {
        while !is_true().await {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    assert!(tokio::time::timeout(PATIENCE, asking).await.is_ok(), "{what} did not come within {PATIENCE:?}");
}
