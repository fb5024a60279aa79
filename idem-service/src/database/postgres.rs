//! PostgreSQL through sqlx.

use std::sync::Arc;

use idem_core::{
    BoxError,
    inbox::{Inbox, InboxStore},
};
use idem_sqlx::{PostgresOptions, PostgresStore};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, raw_sql};

use super::open::{self, Database, DatabaseSettings};

impl Database for PostgresStore {
    type Store = Self;

    const CLIENT: &'static str = "sqlx";
    const SCHEMES: &'static [&'static str] = &["postgres", "postgresql"];

    async fn open(settings: DatabaseSettings<'_>) -> Result<PostgresStore, BoxError> {
        let mut options = PostgresOptions::parse(settings.url())?.schema(settings.schema.clone());
        if let Some(url) = settings.cleanup_url() {
            options = options.cleanup_login(PostgresOptions::parse(url)?);
        }
        if let Some(name) = settings.application_name() {
            options = options.application_name(name);
        }
        Ok(options.build()?)
    }

    async fn prepare(store: &PostgresStore, settings: DatabaseSettings<'_>, tables: &str) -> Result<(), BoxError> {
        // The store itself connects when it is used, through a pool to which a refused login looks like a missing
        // server.
        PostgresStore::connect(settings.url()).await?.disconnect().await;
        if settings.migrate() {
            open::migrated(store.migrate().await)?;
        }
        if settings.create_tables() {
            let (options, script) = (PostgresOptions::parse(settings.url())?, open::postgres_tables(tables));
            let run = || {
                let (options, script) = (options.clone(), script.clone());
                async move {
                    let mut connection = PgConnection::connect_with(options.connection()).await?;
                    raw_sql(AssertSqlSafe(script)).execute(&mut connection).await?;
                    Ok(connection.close().await?)
                }
            };
            open::create_tables::<PostgresStore, _>(run).await?;
        }
        Ok(())
    }

    fn inbox(store: &Arc<Self>) -> Option<Arc<dyn Inbox>> {
        Some(InboxStore::inbox(store))
    }

    compiled_here!();
}
