//! PostgreSQL through tokio-postgres.

use std::sync::Arc;

use idem_core::{
    BoxError,
    inbox::{Inbox, InboxStore},
};
use idem_tokio_postgres::{PostgresOptions, PostgresStore};

use super::open::{self, Database, DatabaseSettings};

impl Database for PostgresStore {
    type Store = Self;

    const CLIENT: &'static str = "tokio-postgres";
    const SCHEMES: &'static [&'static str] = &["postgres", "postgresql"];

    async fn open(settings: DatabaseSettings<'_>) -> Result<PostgresStore, BoxError> {
        let mut options = PostgresOptions::parse(settings.url())?;
        if let Some(url) = settings.cleanup_url() {
            options = options.cleanup_login(PostgresOptions::parse(url)?);
        }
        if let Some(name) = settings.application_name() {
            options = options.application_name(name);
        }
        Ok(options.schema(settings.schema.clone()).build()?)
    }

    async fn prepare(store: &PostgresStore, settings: DatabaseSettings<'_>, tables: &str) -> Result<(), BoxError> {
        // The store itself connects when it is used.
        PostgresStore::connect(settings.url()).await?.disconnect().await;
        if settings.migrate() {
            open::migrated(store.migrate().await)?;
        }
        if settings.create_tables() {
            let script = open::postgres_tables(tables);
            open::create_tables::<PostgresStore, _>(|| store.run_script(&script)).await?;
        }
        Ok(())
    }

    fn inbox(store: &Arc<Self>) -> Option<Arc<dyn Inbox>> {
        Some(InboxStore::inbox(store))
    }

    compiled_here!();
}
