//! The applications' own tables, and their rows at the end.

use std::path::Path;

use idem_core::BoxError;
use sqlx::{
    AssertSqlSafe, Connection as _, SqliteConnection,
    sqlite::{SqliteConnectOptions, SqliteJournalMode},
};

async fn open(file: &Path) -> Result<SqliteConnection, BoxError> {
    let options =
        SqliteConnectOptions::new().filename(file).create_if_missing(true).journal_mode(SqliteJournalMode::Wal);
    Ok(SqliteConnection::connect_with(&options).await?)
}

/// Creates the file with this table, where it is not there yet.
pub(crate) async fn create(file: &Path, table: &'static str) -> Result<(), BoxError> {
    let mut db = open(file).await?;
    sqlx::query(table).execute(&mut db).await?;
    Ok(db.close().await?)
}

/// The numbers that a query answers.
pub(crate) async fn numbers(file: &Path, query: &'static str) -> Result<(i64, i64), BoxError> {
    let mut db = open(file).await?;
    let numbers = sqlx::query_as(AssertSqlSafe(query)).fetch_one(&mut db).await?;
    db.close().await?;
    Ok(numbers)
}
