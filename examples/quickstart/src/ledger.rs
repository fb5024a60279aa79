//! The application's own table, and its totals at the end.

use std::path::Path;

use idem_core::BoxError;
use sqlx::{
    Connection, SqliteConnection,
    sqlite::{SqliteConnectOptions, SqliteJournalMode},
};

/// It has no unique column on purpose: nothing but the consumer keeps a purchase from being counted twice.
const TABLE: &str = "CREATE TABLE IF NOT EXISTS purchases (
    customer TEXT NOT NULL, day TEXT NOT NULL, cds INTEGER NOT NULL, cents INTEGER NOT NULL
) STRICT";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) purchases: i64,
    pub(crate) customers: i64,
    pub(crate) cds: i64,
    pub(crate) cents: i64,
}

/// Opens the file, and creates it with its table where it is not there yet.
pub(crate) async fn open(file: &Path) -> Result<SqliteConnection, BoxError> {
    let options =
        SqliteConnectOptions::new().filename(file).create_if_missing(true).journal_mode(SqliteJournalMode::Wal);
    let mut db = SqliteConnection::connect_with(&options).await?;
    sqlx::query(TABLE).execute(&mut db).await?;
    Ok(db)
}

/// Creates the file with its table, where it is not there yet.
pub(crate) async fn create(file: &Path) -> Result<(), BoxError> {
    Ok(open(file).await?.close().await?)
}

/// Adds up the table.
pub(crate) async fn totals(file: &Path) -> Result<Totals, BoxError> {
    let mut db = open(file).await?;
    let sums = "SELECT count(*), count(DISTINCT customer), ifnull(sum(cds), 0), ifnull(sum(cents), 0) FROM purchases";
    let (purchases, customers, cds, cents) = sqlx::query_as(sums).fetch_one(&mut db).await?;
    db.close().await?;
    Ok(Totals { purchases, customers, cds, cents })
}
