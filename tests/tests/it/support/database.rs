//! A database with idem's schema and the tables of the handler in `src/bin/consumer.rs`, and the rows that can be read back.

use std::{
    hash::{DefaultHasher, Hash as _, Hasher as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use idem_core::{ConsumerName, Store as _, dead_letter::StoredDeadLetter, store::Bookkeeping};
use idem_sql::POSTGRES_MIGRATIONS;
use idem_sqlx::{PostgresStore, SqliteStore};
use idem_tests::{
    plan::{Handling, StorePlan},
    told::Told,
};
use sqlx::{Connection, PgConnection, SqliteConnection, query, query_as, query_scalar};
use tokio::sync::OnceCell;

use super::postgres::{self, FreshPostgres};

/// Which store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    PostgresStore,
    /// PostgreSQL through tokio-postgres, handlers in order.
    TokioPostgres,
    /// The same, handlers at once.
    TokioPostgresPipelined,
    /// The same, one batch handler, with the cache of committed keys: as the benchmark's fastest line has it.
    TokioPostgresTogether,
    SqliteStore,
}

/// The tables have no constraint that could hide a second run of the handler.
const TABLES: [&str; 2] = [
    "CREATE TABLE balances (account bigint PRIMARY KEY, cents bigint NOT NULL)",
    "CREATE TABLE effects (id bigint GENERATED ALWAYS AS IDENTITY, message_key text NOT NULL, \
     sequence bigint NOT NULL, account bigint NOT NULL, cents bigint NOT NULL)",
];

/// A row that the handler wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Effect {
    pub(crate) message_key: String,
    pub(crate) sequence: i64,
    pub(crate) account: i64,
    pub(crate) cents: i64,
}

pub(crate) struct Database {
    kind: Kind,
    place: Place,
    bookkeeping: Arc<dyn Bookkeeping>,
}

/// The template of every database on PostgreSQL here: to migrate each takes the server longer than most rows do. It stays for
/// the next run.
async fn template() -> &'static str {
    static NAME: OnceCell<String> = OnceCell::const_new();
    let make = async || {
        let mut hasher = DefaultHasher::new();
        POSTGRES_MIGRATIONS.iter().for_each(|migration| migration.up_template.hash(&mut hasher));
        TABLES.hash(&mut hasher);
        let name = format!("idem_crash_template_{:016x}", hasher.finish());
        // Another run may be about to make it.
        let mut server = postgres::server().await;
        query("SELECT pg_advisory_lock(4714)").execute(&mut server).await.unwrap();
        if !postgres::exists(&name).await {
            let place = FreshPostgres::create("idem_crash_making").await;
            let mut connection = PgConnection::connect(&place.url()).await.unwrap();
            for table in TABLES {
                query(table).execute(&mut connection).await.unwrap();
            }
            connection.close().await.unwrap();
            let store = PostgresStore::connect(&place.url()).await.unwrap();
            store.migrate().await.unwrap();
            store.disconnect().await;
            place.rename(&name).await;
        }
        server.close().await.unwrap();
        name
    };
    NAME.get_or_init(make).await
}

/// Runs a program of PostgreSQL's.
async fn run(program: &str, arguments: &[&str]) {
    let output = tokio::process::Command::new(program).args(arguments).output().await;
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
}

enum Place {
    PostgresStore(FreshPostgres),
    SqliteStore(PathBuf),
}

impl Database {
    /// A new database. A SQLite file is `folder/idem.db`.
    pub(crate) async fn fresh(kind: Kind, folder: &std::path::Path) -> Self {
        match kind {
            Kind::PostgresStore | Kind::TokioPostgres | Kind::TokioPostgresPipelined | Kind::TokioPostgresTogether => {
                let place = FreshPostgres::copy_of(template().await, "idem_crash").await;
                let store = PostgresStore::connect(&place.url()).await.unwrap();
                Self { kind, place: Place::PostgresStore(place), bookkeeping: Arc::new(store.bookkeeping().clone()) }
            }
            Kind::SqliteStore => {
                let path = folder.join("idem.db");
                let store = SqliteStore::open(&path).await.unwrap();
                store.migrate().await.unwrap();
                let database =
                    Self { kind, place: Place::SqliteStore(path), bookkeeping: Arc::new(store.bookkeeping().clone()) };
                let mut connection = database.sqlite().await;
                for table in TABLES {
                    let table = table.replace("bigint GENERATED ALWAYS AS IDENTITY", "integer PRIMARY KEY");
                    query(sqlx::AssertSqlSafe(table)).execute(&mut connection).await.unwrap();
                }
                connection.close().await.unwrap();
                database
            }
        }
    }

    /// Where the consumer finds it.
    pub(crate) fn plan(&self) -> StorePlan {
        match &self.place {
            Place::PostgresStore(place) => {
                let through = |handling| StorePlan::TokioPostgres { url: place.url(), handling };
                match self.kind {
                    Kind::TokioPostgres => through(Handling::InOrder),
                    Kind::TokioPostgresPipelined => through(Handling::Pipelined),
                    Kind::TokioPostgresTogether => through(Handling::TogetherWithCache),
                    Kind::PostgresStore | Kind::SqliteStore => StorePlan::PostgresStore { url: place.url() },
                }
            }
            Place::SqliteStore(path) => StorePlan::SqliteStore { path: path.clone() },
        }
    }

    /// The store's operations outside of units.
    pub(crate) fn bookkeeping(&self) -> &dyn Bookkeeping {
        &*self.bookkeeping
    }

    async fn postgres(&self) -> Option<PgConnection> {
        match &self.place {
            Place::PostgresStore(place) => Some(PgConnection::connect(&place.url()).await.unwrap()),
            Place::SqliteStore(_) => None,
        }
    }

    async fn sqlite(&self) -> SqliteConnection {
        let Place::SqliteStore(path) = &self.place else { unreachable!("a PostgreSQL database is no file") };
        SqliteConnection::connect(&format!("sqlite://{}", path.display())).await.unwrap()
    }

    /// The effects that handlers wrote, in the order of their writes.
    pub(crate) async fn effects(&self) -> Vec<Effect> {
        let text = "SELECT message_key, sequence, account, cents FROM effects ORDER BY id";
        let rows: Vec<(String, i64, i64, i64)> = match self.postgres().await {
            Some(mut connection) => query_as(text).fetch_all(&mut connection).await.unwrap(),
            None => query_as(text).fetch_all(&mut self.sqlite().await).await.unwrap(),
        };
        let effect = |(message_key, sequence, account, cents)| Effect { message_key, sequence, account, cents };
        rows.into_iter().map(effect).collect()
    }

    /// The keys that the events in the outbox are about, in the order of their numbers.
    pub(crate) async fn events(&self) -> Vec<String> {
        match self.postgres().await {
            Some(mut connection) => {
                let text = "SELECT convert_from(payload, 'UTF8') FROM idem.outbox ORDER BY number";
                query_scalar(text).fetch_all(&mut connection).await.unwrap()
            }
            None => {
                let text = "SELECT CAST(payload AS TEXT) FROM idem_outbox ORDER BY number";
                query_scalar(text).fetch_all(&mut self.sqlite().await).await.unwrap()
            }
        }
    }

    /// The events that wait in the outbox, in the order of their numbers.
    pub(crate) async fn outbox(&self) -> Vec<Told> {
        let rows: Vec<(String, String, String)> = match self.postgres().await {
            Some(mut connection) => {
                let text = "SELECT event_key, convert_from(ordering_key, 'UTF8'), convert_from(payload, 'UTF8') \
                            FROM idem.outbox ORDER BY number";
                query_as(text).fetch_all(&mut connection).await.unwrap()
            }
            None => {
                let text = "SELECT event_key, CAST(ordering_key AS TEXT), CAST(payload AS TEXT) \
                            FROM idem_outbox ORDER BY number";
                query_as(text).fetch_all(&mut self.sqlite().await).await.unwrap()
            }
        };
        rows.into_iter().map(|(id, ordering_key, payload)| Told { id, ordering_key, payload }).collect()
    }

    /// Number and id of each event that waits in the outbox, in the order of the numbers.
    pub(crate) async fn numbered_events(&self) -> Vec<(i64, String)> {
        let mut connection = self.postgres().await.expect("it is on PostgreSQL");
        let text = "SELECT number, event_key FROM idem.outbox ORDER BY number";
        query_as(text).fetch_all(&mut connection).await.unwrap()
    }

    /// Writes a backup of it into this file. It is on PostgreSQL.
    pub(crate) async fn dump(&self, to: &Path) {
        let Place::PostgresStore(place) = &self.place else { unreachable!("a file is copied") };
        run("pg_dump", &["--format=custom", "--file", &to.display().to_string(), &place.url()]).await;
    }

    /// A new database of such a backup.
    pub(crate) async fn restored(from: &Path) -> Self {
        let place = FreshPostgres::create("idem_restored").await;
        let from = from.display().to_string();
        run("pg_restore", &["--exit-on-error", "--dbname", &place.url(), &from]).await;
        let store = PostgresStore::connect(&place.url()).await.unwrap();
        let bookkeeping = Arc::new(store.bookkeeping().clone());
        Self { kind: Kind::PostgresStore, place: Place::PostgresStore(place), bookkeeping }
    }

    /// Account and balance.
    pub(crate) async fn balances(&self) -> Vec<(i64, i64)> {
        let text = "SELECT account, cents FROM balances ORDER BY account";
        match self.postgres().await {
            Some(mut connection) => query_as(text).fetch_all(&mut connection).await.unwrap(),
            None => query_as(text).fetch_all(&mut self.sqlite().await).await.unwrap(),
        }
    }

    /// How many keys are recorded.
    pub(crate) async fn records(&self) -> i64 {
        match self.postgres().await {
            Some(mut connection) => {
                let text = "SELECT count(*) FROM idem.processed_messages";
                query_scalar(text).fetch_one(&mut connection).await.unwrap()
            }
            None => {
                let text = "SELECT count(*) FROM idem_processed_messages";
                query_scalar(text).fetch_one(&mut self.sqlite().await).await.unwrap()
            }
        }
    }

    /// The dead letters of the consumer in `src/bin/consumer.rs`.
    pub(crate) async fn dead_letters(&self) -> Vec<StoredDeadLetter> {
        self.bookkeeping.dead_letters(&ConsumerName::new("payments").unwrap(), 100_000).await.unwrap()
    }

    /// Makes replays that a dead consumer took free again, which otherwise takes a minute.
    pub(crate) async fn let_replays_be_taken_over(&self) {
        match self.postgres().await {
            Some(mut connection) => {
                let text = "UPDATE idem.dead_letters SET taken_at = '-infinity' WHERE taken_at IS NOT NULL";
                query(text).execute(&mut connection).await.unwrap();
            }
            None => {
                let text = "UPDATE idem_dead_letters SET taken_at = 0 WHERE taken_at IS NOT NULL";
                query(text).execute(&mut self.sqlite().await).await.unwrap();
            }
        }
    }

    /// Removes it; a test that fails does not get here, and its database stays.
    pub(crate) async fn remove(self) {
        drop(self.bookkeeping);
        match self.place {
            Place::PostgresStore(place) => place.remove().await,
            Place::SqliteStore(path) => {
                for suffix in ["", "-wal", "-shm"] {
                    // The last connection to close removes the other two itself.
                    let _ = tokio::fs::remove_file(format!("{}{suffix}", path.display())).await;
                }
            }
        }
    }
}
