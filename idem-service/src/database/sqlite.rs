//! SQLite.

use std::sync::Arc;

use idem_core::{
    BoxError,
    inbox::{Inbox, InboxStore},
};
use idem_sqlx::{SqliteOptions, SqliteStore};
use sqlx::{
    AssertSqlSafe, ConnectOptions as _, Connection as _, SqliteConnection, raw_sql, sqlite::SqliteConnectOptions,
};

use super::open::{Database, DatabaseSettings};

impl Database for SqliteStore {
    type Store = Self;

    const CLIENT: &'static str = "sqlx";
    const SCHEMES: &'static [&'static str] = &["sqlite"];

    async fn open(settings: DatabaseSettings<'_>) -> Result<SqliteStore, BoxError> {
        let options: SqliteOptions = settings.url().parse()?;
        Ok(SqliteStore::connect(options.schema(settings.schema.clone())).await?)
    }

    async fn prepare(store: &SqliteStore, settings: DatabaseSettings<'_>, tables: &str) -> Result<(), BoxError> {
        if settings.migrate() {
            store.migrate().await?;
        }
        if settings.create_tables() {
            let options: SqliteConnectOptions = settings.url().parse()?;
            let options = options.busy_timeout(SqliteOptions::BOOKKEEPING_TIMEOUT).disable_statement_logging();
            let mut connection = SqliteConnection::connect_with(&options).await?;
            raw_sql(AssertSqlSafe(format!("BEGIN IMMEDIATE; {tables}; COMMIT"))).execute(&mut connection).await?;
            connection.close().await?;
        }
        Ok(())
    }

    fn inbox(store: &Arc<Self>) -> Option<Arc<dyn Inbox>> {
        Some(InboxStore::inbox(store))
    }

    compiled_here!();
}
