//! SQLite's own tests, beside the conformance suite that every store runs.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test turns red by panicking")]

mod adopted;
mod bookkeeping;
mod cleanup;
mod conformance;
mod inbox;
mod locks;
mod migrations;
mod outbox;
mod processes;
#[cfg(feature = "failpoints")]
mod prove;
#[cfg(feature = "failpoints")]
mod proving_page;
mod records;
mod seal;
mod verified;

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use idem_core::{
    ConsumerName, Decision, DedupConsumer, Effects, Handler, HandlerError, Message, Retention, Store as _, Tenant, Tx,
    consumer::DedupConsumerBuilder,
    store::{Bookkeeping, Registration, ScopeId},
};
use idem_sqlx::{SqliteOptions, SqliteStore, Synchronous};
use sqlx::{Connection, Row, SqliteConnection};

/// A file of its own, removed when the test went well.
pub(crate) struct File(PathBuf);

impl File {
    pub(crate) fn new() -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("idem-sqlite-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder.join("test.db"))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) async fn connect(&self) -> SqliteConnection {
        SqliteConnection::connect(&format!("sqlite://{}", self.0.display())).await.unwrap()
    }

    /// Runs statements over a connection of its own.
    pub(crate) async fn run(&self, sql: &str) {
        let mut connection = self.connect().await;
        sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&mut connection).await.unwrap();
    }

    /// The first column of every row, as text.
    pub(crate) async fn ask(&self, sql: &str) -> Vec<String> {
        let mut connection = self.connect().await;
        let rows = sqlx::query(sqlx::AssertSqlSafe(sql)).fetch_all(&mut connection).await.unwrap();
        rows.iter().map(|row| row.try_get(0).unwrap()).collect()
    }

    /// The committed effects, sorted.
    pub(crate) async fn effects(&self) -> Vec<String> {
        self.ask("SELECT key || '=' || payload FROM effects ORDER BY 1").await
    }

    pub(crate) async fn recorded(&self) -> Vec<String> {
        self.ask("SELECT idempotency_key FROM idem_processed_messages ORDER BY 1").await
    }
}

impl Drop for File {
    fn drop(&mut self) {
        if !std::thread::panicking()
            && let Some(folder) = self.0.parent()
        {
            let _ = std::fs::remove_dir_all(folder);
        }
    }
}

/// A migrated file with a table for effects. A test loses no power, so it need not wait for the disk.
pub(crate) async fn fresh() -> (File, Arc<SqliteStore>) {
    let file = File::new();
    let store = open(&file).await;
    store.migrate().await.unwrap();
    file.run(
        "CREATE TABLE effects (key TEXT NOT NULL, payload TEXT NOT NULL);
         CREATE TABLE parents (id INTEGER PRIMARY KEY) STRICT;
         CREATE TABLE children (parent INTEGER REFERENCES parents DEFERRABLE INITIALLY DEFERRED);
         CREATE TABLE taken (id INTEGER PRIMARY KEY);
         INSERT INTO taken VALUES (1);",
    )
    .await;
    (file, store)
}

pub(crate) async fn open(file: &File) -> Arc<SqliteStore> {
    let options = SqliteOptions::new(file.path()).synchronous(Synchronous::Normal);
    Arc::new(SqliteStore::connect(options.bookkeeping_timeout(Duration::from_secs(20))).await.unwrap())
}

/// Writes its message, and does what the payload's first word says.
pub(crate) struct Scripted;

pub(crate) async fn write(message: &Message, connection: &mut SqliteConnection) -> Result<(), HandlerError> {
    sqlx::query("INSERT INTO effects (key, payload) VALUES (?, ?)")
        .bind(message.key().map(|key| key.as_str()))
        .bind(text(message))
        .execute(connection)
        .await?;
    Ok(())
}

pub(crate) fn text(message: &Message) -> String {
    String::from_utf8_lossy(message.payload().unwrap()).into_owned()
}

impl Handler<SqliteStore> for Scripted {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, SqliteStore>) -> Result<(), HandlerError> {
        write(message, tx.connection()).await?;
        seal::act(text(message).split(' ').next().unwrap(), message, tx).await
    }
}

pub(crate) fn builder(store: &Arc<SqliteStore>) -> DedupConsumerBuilder<SqliteStore> {
    DedupConsumer::builder(Arc::clone(store), "orders").effects(Effects::InTransaction)
}

pub(crate) fn consumer(store: &Arc<SqliteStore>) -> DedupConsumer<SqliteStore> {
    builder(store).handler(Scripted).build().unwrap()
}

pub(crate) fn message(key: &str, payload: &str) -> Message {
    Message::new(payload.to_owned()).with_header("idempotencykey", key.to_owned())
}

pub(crate) fn messages(pairs: &[(&str, &str)]) -> Vec<Message> {
    pairs.iter().map(|(key, payload)| message(key, payload)).collect()
}

/// The decisions' names, for comparing.
pub(crate) fn names(decisions: &[Decision]) -> Vec<&'static str> {
    let name = |decision: &Decision| match decision {
        Decision::Processed(_) => "processed",
        Decision::Duplicate(..) => "duplicate",
        Decision::Conflict(..) => "conflict",
        Decision::Busy => "busy",
        Decision::Failed(_) => "failed",
        _ => "unknown to this test",
    };
    decisions.iter().map(name).collect()
}

pub(crate) fn registration() -> Registration {
    Registration::new(
        ConsumerName::new("orders").unwrap(),
        Tenant::default(),
        "header".to_owned(),
        vec!["raw/1".to_owned()],
        Retention::For(Duration::from_secs(3600)),
    )
    .version("1".to_owned())
}

pub(crate) async fn registered(store: &SqliteStore) -> ScopeId {
    store.bookkeeping().register(&registration()).await.unwrap().scope
}

/// Waits at most this long for what must not hang.
pub(crate) async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(30), future).await.expect("nothing happened within 30 s")
}
