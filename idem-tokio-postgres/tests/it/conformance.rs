//! The suite that every store runs, and that of every store on PostgreSQL.

use std::sync::Arc;

use futures_util::TryStreamExt as _;
use idem_conformance::{
    postgres::{PostgresUnderTest, RoundTrips, arrangement_sql},
    store::{Arrangement, Effect, HandlerAction, NotOffered, StoreUnderTest},
};
use idem_core::{Concurrency, HandlerError, Tx};
use idem_tokio_postgres::{PostgresConnection, PostgresStore, RunStatementError};

use crate::fixture::Fixture;

struct Subject {
    fixture: Fixture,
    store: Arc<PostgresStore>,
    handlers: Concurrency,
}

impl Subject {
    async fn new(handlers: Concurrency) -> Self {
        let fixture = Fixture::reused().await;
        let store = Arc::new(fixture.store.clone());
        Self { fixture, store, handlers }
    }
}

mod in_order {
    async fn fresh() -> super::Subject {
        super::Subject::new(idem_core::Concurrency::InOrder).await
    }

    idem_conformance::store_conformance!(fresh);
}

mod pipelined {
    async fn fresh() -> super::Subject {
        super::Subject::new(idem_core::Concurrency::pipelined()).await
    }

    idem_conformance::store_conformance!(fresh, handlers);
}

async fn insert(connection: &PostgresConnection<'_>, effect: &Effect) -> Result<(), RunStatementError> {
    let text = "INSERT INTO effects (key, payload, note) VALUES ($1, $2, $3)";
    connection.execute(text, &[&effect.key, &effect.payload, &effect.note]).await.map(|_| ())
}

/// Sends a text in whichever way the connection lets it through.
async fn send(connection: &PostgresConnection<'_>, text: &str) -> Result<(), RunStatementError> {
    match connection.client() {
        Ok(client) => Ok(client.batch_execute(text).await?),
        Err(_) => connection.execute(text, &[]).await.map(|_| ()),
    }
}

impl StoreUnderTest for Subject {
    type Store = PostgresStore;

    fn store(&self) -> Arc<PostgresStore> {
        Arc::clone(&self.store)
    }

    async fn another(&self) -> Arc<PostgresStore> {
        Arc::new(self.fixture.another())
    }

    async fn write(tx: &mut Tx<'_, PostgresStore>, effect: &Effect) -> Result<(), HandlerError> {
        Ok(insert(&tx.connection(), effect).await?)
    }

    async fn effects(&self) -> Vec<Effect> {
        let rows = self.fixture.admin().await.query("SELECT key, payload, note FROM effects", &[]).await.unwrap();
        rows.iter().map(|row| Effect { key: row.get(0), payload: row.get(1), note: row.get(2) }).collect()
    }

    async fn recorded(&self) -> Vec<String> {
        self.fixture.recorded().await
    }

    async fn audited(&self) -> Vec<(String, Option<String>)> {
        let client = self.fixture.admin().await;
        let rows = client
            .query(
                "SELECT action, idempotency_key FROM audit WHERE action NOT IN ('keep-payload', 'relay') ORDER BY id",
                &[],
            )
            .await
            .unwrap();
        rows.iter().map(|row| (row.get(0), row.get(1))).collect()
    }

    fn offers(&self, action: HandlerAction) -> bool {
        match action {
            HandlerAction::Commit
            | HandlerAction::Rollback
            | HandlerAction::CommitAndBegin
            | HandlerAction::UnreadFailure
            | HandlerAction::NestedCommitted
            | HandlerAction::NestedRolledBack
            | HandlerAction::NestedLeft => self.handlers == Concurrency::InOrder,
            HandlerAction::FailingStatement
            | HandlerAction::DeferredFailure
            | HandlerAction::KillConnection
            | HandlerAction::Block => true,
        }
    }

    async fn act(tx: &mut Tx<'_, PostgresStore>, action: HandlerAction, effect: &Effect) -> Result<(), HandlerError> {
        let mut connection = tx.connection();
        let text = match action {
            HandlerAction::Commit => "COMMIT",
            HandlerAction::Rollback => "ROLLBACK",
            HandlerAction::CommitAndBegin => {
                let _ = send(&connection, "COMMIT").await;
                "BEGIN"
            }
            HandlerAction::FailingStatement => "INSERT INTO taken VALUES ('taken')",
            HandlerAction::DeferredFailure => "INSERT INTO deferred VALUES ('taken')",
            HandlerAction::Block => "SELECT pg_sleep(300)",
            HandlerAction::KillConnection => {
                let _ = connection.execute("SELECT pg_terminate_backend(pg_backend_pid())", &[]).await;
                "SELECT 1"
            }
            HandlerAction::UnreadFailure => {
                let text = "SELECT 1 / (3 - n) FROM generate_series(1, 3) AS n";
                let rows = connection.client()?.query_raw(text, std::iter::empty::<i32>()).await?;
                assert!(std::pin::pin!(rows).try_next().await?.is_some());
                return Ok(());
            }
            HandlerAction::NestedCommitted => {
                let nested = connection.transaction().await?;
                insert(&nested, effect).await?;
                return Ok(nested.commit().await?);
            }
            HandlerAction::NestedRolledBack => {
                let nested = connection.transaction().await?;
                insert(&nested, effect).await?;
                return Ok(nested.rollback().await?);
            }
            HandlerAction::NestedLeft => {
                let nested = connection.transaction().await?;
                insert(&nested, effect).await?;
                std::mem::forget(nested);
                return Ok(());
            }
        };
        Ok(send(&connection, text).await?)
    }

    fn arranges(&self, arrangement: Arrangement) -> bool {
        match arrangement {
            Arrangement::Age(_)
            | Arrangement::SwallowRecords
            | Arrangement::HideRecords
            | Arrangement::Restore
            | Arrangement::EraseKeys
            | Arrangement::DropUniqueKey
            | Arrangement::DropSeal
            | Arrangement::Rename
            | Arrangement::TakeNumbers => true,
        }
    }

    async fn arrange(&self, arrangement: Arrangement) -> Result<(), NotOffered> {
        self.fixture.run(arrangement_sql(arrangement)).await;
        Ok(())
    }

    fn handlers(&self) -> Concurrency {
        self.handlers
    }

    async fn discard(self) {
        drop(self.store);
        self.fixture.drop().await;
    }
}

/// A schema, and how handlers run on it.
struct Postgres(Fixture, Concurrency);

mod postgres_in_order {
    async fn fresh() -> super::Postgres {
        super::Postgres(super::Fixture::reused().await, idem_core::Concurrency::InOrder)
    }

    idem_conformance::postgres_conformance!(fresh);

    async fn on_own_server() -> super::Postgres {
        super::Postgres(super::Fixture::on_own_server().await, idem_core::Concurrency::InOrder)
    }

    idem_conformance::postgres_conformance!(on_own_server, own_server);
}

mod postgres_pipelined {
    async fn fresh() -> super::Postgres {
        super::Postgres(super::Fixture::reused().await, idem_core::Concurrency::pipelined())
    }

    idem_conformance::postgres_conformance!(fresh);

    async fn on_own_server() -> super::Postgres {
        super::Postgres(super::Fixture::on_own_server().await, idem_core::Concurrency::pipelined())
    }

    idem_conformance::postgres_conformance!(on_own_server, own_server);
}

impl PostgresUnderTest for Postgres {
    type Store = PostgresStore;
    type Error = RunStatementError;

    fn store(&self) -> &PostgresStore {
        &self.0.store
    }

    fn another(&self, port: Option<u16>, settings: &[(&str, &str)]) -> PostgresStore {
        let mut config = match port {
            Some(port) => self.0.through(port),
            None => self.0.config.clone(),
        };
        let settings = settings.iter().map(|(name, value)| format!(" -c {name}={value}"));
        config.options(format!("-c search_path={}{}", self.0.schema, settings.collect::<String>()));
        self.0.options_of(config).build().unwrap()
    }

    fn server(&self) -> String {
        self.0.authority()
    }

    async fn write(tx: &mut Tx<'_, PostgresStore>, key: &str) -> Result<(), RunStatementError> {
        let effect = Effect { key: key.to_owned(), payload: Vec::new(), note: String::new() };
        insert(&tx.connection(), &effect).await
    }

    async fn execute(tx: &mut Tx<'_, PostgresStore>, text: &str) -> Result<(), RunStatementError> {
        tx.connection().execute(text, &[]).await.map(|_| ())
    }

    async fn send(tx: &mut Tx<'_, PostgresStore>, text: &str) -> Result<(), RunStatementError> {
        Ok(tx.connection().client()?.batch_execute(text).await?)
    }

    async fn run(&self, statements: &str) {
        self.0.run(statements).await;
    }

    async fn texts(&self, query: &str) -> Vec<String> {
        self.0.texts(query).await
    }

    fn concurrency(&self) -> Concurrency {
        self.1
    }

    /// BEGIN with the claim, and the seal with COMMIT; for duplicates BEGIN with the claim, read, and ROLLBACK. Handlers at once cost
    /// one round trip together. Events go with the seal, and a call's result too.
    fn round_trips(&self) -> RoundTrips {
        let unit = if self.1 == Concurrency::InOrder { |effects| 2 + effects } else { |_| 3 };
        RoundTrips { unit, events: |_| 0, duplicates: 3, first_run: 3, unexpected_repeat: 3 }
    }

    async fn discard(self) {
        self.0.drop().await;
    }
}
