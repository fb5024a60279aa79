//! The work *insert* on SQLite, by hand and through idem, each in a file of its own on the disk.

use std::{
    error::Error,
    path::{Path, PathBuf},
};

use idem_core::{DedupConsumer, Effects, Handler, HandlerError, Message, Tx};
use idem_sqlx::SqliteStore;
use sqlx::{
    Connection, SqliteConnection,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous},
};
use tokio::time::Instant;
use uuid::Uuid;

use crate::{
    backlog,
    cases::At,
    feed::Feed,
    postgres::Round,
    report::{Line, RATE, Table},
    work::{CUSTOMERS, Work, body},
};

const INSERT: &str = "INSERT INTO orders (id, body) VALUES (?, ?)";

const LINES: [&str; 4] = [
    "(a) by hand: begin, handler, commit",
    "(b) textbook: begin, claim, handler, commit",
    "idem, per-message handler, batch 100",
    "idem, per-message handler, batch 500",
];

struct Insert;

impl Handler<SqliteStore> for Insert {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, SqliteStore>) -> Result<(), HandlerError> {
        let body = std::str::from_utf8(message.payload().ok_or("no payload")?)?.to_owned();
        sqlx::query(INSERT).bind(Uuid::new_v4()).bind(body).execute(tx.connection()).await?;
        Ok(())
    }
}

/// As safe as idem has it: in WAL mode, and a commit waits for the disk.
async fn open(path: &Path) -> Result<SqliteConnection, Box<dyn Error>> {
    let options = SqliteConnectOptions::new().filename(path).create_if_missing(true);
    let options = options.journal_mode(SqliteJournalMode::Wal).synchronous(SqliteSynchronous::Full);
    let mut connection = SqliteConnection::connect_with(&options).await?;
    let tables = "CREATE TABLE orders (id BLOB PRIMARY KEY, body TEXT NOT NULL);
                  CREATE TABLE seen (consumer TEXT, message_id TEXT, PRIMARY KEY (consumer, message_id))";
    sqlx::raw_sql(tables).execute(&mut connection).await?;
    Ok(connection)
}

async fn by_hand(connection: &mut SqliteConnection, claims: bool, at: At<'_>) -> Result<Round, Box<dyn Error>> {
    let (started, mut done) = (Instant::now(), 0);
    while started.elapsed() < at.2 {
        let mut tx = connection.begin_with("BEGIN IMMEDIATE").await?;
        if claims {
            let claim = "INSERT INTO seen VALUES ('bench', ?) ON CONFLICT DO NOTHING";
            sqlx::query(claim).bind(Uuid::new_v4().to_string()).execute(&mut *tx).await?;
        }
        sqlx::query(INSERT).bind(Uuid::new_v4()).bind(body(done % CUSTOMERS)).execute(&mut *tx).await?;
        tx.commit().await?;
        done += 1;
    }
    Ok(Round { messages: done, took: started.elapsed(), effects: done })
}

async fn idem(path: &Path, batch: usize, at: At<'_>) -> Result<Round, Box<dyn Error>> {
    let store = SqliteStore::open(path).await?;
    store.migrate().await?;
    let consumer = DedupConsumer::builder(store, "bench").handler(Insert).effects(Effects::InTransaction).build()?;
    let feed = Feed::fresh(Work::Insert);
    backlog::consume_for(consumer, batch, batch * 3 / 2, at.2, Box::new(move |n| feed.message(n))).await
}

async fn round(path: &Path, number: usize, at: At<'_>) -> Result<Round, Box<dyn Error>> {
    let mut connection = open(path).await?;
    let round = match number {
        0 | 1 => by_hand(&mut connection, number == 1, at).await?,
        _ => idem(path, if number == 2 { 100 } else { 500 }, at).await?,
    };
    let effects: i64 = sqlx::query_scalar("SELECT count(*) FROM orders").fetch_one(&mut connection).await?;
    if usize::try_from(effects)? != round.effects {
        return Err(format!("{}: {effects} effects of {} messages", LINES[number], round.effects).into());
    }
    connection.close().await?;
    Ok(round)
}

pub(crate) async fn insert(at: At<'_>) -> Result<Table, Box<dyn Error>> {
    // Beside the program, because the folder for temporary files may be memory.
    let folder: PathBuf = std::env::current_exe()?.with_file_name(format!("idem-bench-{}", std::process::id()));
    std::fs::create_dir(&folder)?;
    let mut lines = LINES.map(Line::new);
    for _ in 0..at.1 {
        for (number, line) in lines.iter_mut().enumerate() {
            let round = round(&folder.join(Uuid::new_v4().to_string()), number, at).await?;
            line.note(round.messages, round.took);
        }
    }
    std::fs::remove_dir_all(folder)?;
    Ok(Table::print("sqlite", "SQLite, insert of 200-byte JSON, one writer", RATE, lines.into()))
}
