//! `idem_testkit::prove` on a store whose crate makes no databases for tests: those of idem-sqlx serve it.

use std::sync::Arc;

use idem_core::{
    BoxError, Handler, HandlerError, Message, Tx,
    scratch::{Scratch, Tables},
};
use idem_sqlx::PostgresScratch;
use idem_testkit::{message, prove};
use idem_tokio_postgres::{PostgresStore, tokio_postgres::Config};
use sqlx::{Executor as _, postgres::PgConnectOptions};

use crate::support::postgres::server_url;

struct Ledger;

impl Handler<PostgresStore> for Ledger {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, PostgresStore>) -> Result<(), HandlerError> {
        let cents: i64 = message.json()?;
        tx.connection().execute("INSERT INTO purchases (cents) VALUES ($1)", &[&cents]).await?;
        Ok(())
    }
}

/// idem-sqlx makes the databases, and idem-tokio-postgres works on them.
struct Databases {
    url: String,
    made: PostgresScratch,
}

impl Scratch for Databases {
    type Store = PostgresStore;
    type Address = PgConnectOptions;

    async fn connect(&self, address: &PgConnectOptions) -> Result<Arc<PostgresStore>, BoxError> {
        let mut config: Config = self.url.parse()?;
        config.dbname(address.get_database().unwrap_or_default());
        Ok(Arc::new(PostgresStore::with_options(config).build()?))
    }

    async fn spoil(&self, tx: &mut Tx<'_, PostgresStore>) {
        // The error is wanted: after it this transaction takes no other statement.
        let _ = tx.connection().execute("SELECT 1 / 0", &[]).await;
    }

    async fn mend(&self, _: &mut Tx<'_, PostgresStore>) {}

    async fn create(&self) -> Result<PgConnectOptions, BoxError> {
        self.made.create().await
    }

    fn describe(&self, address: &PgConnectOptions) -> Option<String> {
        self.made.describe(address)
    }

    async fn tables(&self, address: &PgConnectOptions) -> Result<Tables, BoxError> {
        self.made.tables(address).await
    }

    async fn disturb(&self, address: &PgConnectOptions) -> Result<(), BoxError> {
        self.made.disturb(address).await
    }

    async fn remove(&self, address: PgConnectOptions) {
        self.made.remove(address).await;
    }

    async fn finish(&self) {
        self.made.finish().await;
    }
}

/// Makes the application's tables: here you would run your migrations.
async fn prepare(options: PgConnectOptions) -> Result<(), BoxError> {
    let pool = sqlx::PgPool::connect_with(options).await?;
    pool.execute("CREATE TABLE purchases (cents BIGINT NOT NULL)").await?;
    pool.close().await;
    Ok(())
}

#[tokio::test]
async fn the_ledger_is_proved() {
    let url = server_url();
    let databases = Databases { made: PostgresScratch::new(&url, prepare).unwrap(), url };
    let messages = [message("order-1", "250"), message("order-2", "990"), message("order-3", "5")];
    match prove(databases, |_| Ledger).messages(messages).run().await {
        Ok(proven) => println!("{proven}"),
        Err(not_proven) => panic!("{not_proven}"),
    }
}
