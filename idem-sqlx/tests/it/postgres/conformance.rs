//! The suite that every store runs, and that of every store on PostgreSQL.

use std::sync::Arc;

use futures_util::TryStreamExt as _;
use idem_conformance::{
    postgres::{PostgresUnderTest, RoundTrips, arrangement_sql},
    store::{Arrangement, Effect, HandlerAction, NotOffered, StoreUnderTest},
};
use idem_core::{HandlerError, Tx};
use idem_sqlx::PostgresStore;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, Row as _, postgres::PgSslMode};

use super::fixture::Fixture;

struct Subject {
    fixture: Fixture,
    store: Arc<PostgresStore>,
}

async fn fresh() -> Subject {
    let fixture = Fixture::reused().await;
    let store = Arc::new(fixture.store.clone());
    Subject { fixture, store }
}

idem_conformance::store_conformance!(fresh);

async fn insert(connection: &mut PgConnection, effect: &Effect) -> Result<(), sqlx::Error> {
    let query = sqlx::query("INSERT INTO effects (key, payload, note) VALUES ($1, $2, $3)");
    // The suite's keys may hold anything but what a text of PostgreSQL cannot.
    query.bind(&effect.key).bind(&effect.payload).bind(&effect.note).execute(connection).await.map(|_| ())
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
        Ok(insert(tx.connection(), effect).await?)
    }

    async fn effects(&self) -> Vec<Effect> {
        let rows = sqlx::query("SELECT key, payload, note FROM effects").fetch_all(&self.fixture.admin).await.unwrap();
        rows.iter().map(|row| Effect { key: row.get(0), payload: row.get(1), note: row.get(2) }).collect()
    }

    async fn recorded(&self) -> Vec<String> {
        self.fixture.recorded().await
    }

    async fn audited(&self) -> Vec<(String, Option<String>)> {
        let query = sqlx::query(
            "SELECT action, idempotency_key FROM audit WHERE action NOT IN ('keep-payload', 'relay') ORDER BY id",
        );
        let rows = query.fetch_all(&self.fixture.admin).await.unwrap();
        rows.iter().map(|row| (row.get(0), row.get(1))).collect()
    }

    fn offers(&self, action: HandlerAction) -> bool {
        match action {
            HandlerAction::Commit
            | HandlerAction::Rollback
            | HandlerAction::CommitAndBegin
            | HandlerAction::FailingStatement
            | HandlerAction::UnreadFailure
            | HandlerAction::DeferredFailure
            | HandlerAction::NestedCommitted
            | HandlerAction::NestedRolledBack
            | HandlerAction::NestedLeft
            | HandlerAction::KillConnection
            | HandlerAction::Block => true,
        }
    }

    async fn act(tx: &mut Tx<'_, PostgresStore>, action: HandlerAction, effect: &Effect) -> Result<(), HandlerError> {
        let connection = tx.connection();
        let text = match action {
            HandlerAction::Commit => "COMMIT",
            HandlerAction::Rollback => "ROLLBACK",
            HandlerAction::CommitAndBegin => {
                let _ = sqlx::raw_sql("COMMIT").execute(&mut *connection).await;
                "BEGIN"
            }
            HandlerAction::FailingStatement => "INSERT INTO taken VALUES ('taken')",
            HandlerAction::DeferredFailure => "INSERT INTO deferred VALUES ('taken')",
            HandlerAction::Block => "SELECT pg_sleep(300)",
            HandlerAction::KillConnection => {
                let _ = sqlx::raw_sql("SELECT pg_terminate_backend(pg_backend_pid())").execute(&mut *connection).await;
                "SELECT 1"
            }
            HandlerAction::UnreadFailure => {
                let mut rows = sqlx::query("SELECT 1 / (3 - n) FROM generate_series(1, 3) AS n").fetch(connection);
                assert!(rows.try_next().await?.is_some());
                return Ok(());
            }
            HandlerAction::NestedCommitted => {
                let mut nested = connection.begin().await?;
                insert(&mut nested, effect).await?;
                return Ok(nested.commit().await?);
            }
            HandlerAction::NestedRolledBack => {
                let mut nested = connection.begin().await?;
                insert(&mut nested, effect).await?;
                return Ok(nested.rollback().await?);
            }
            HandlerAction::NestedLeft => {
                let mut nested = connection.begin().await?;
                insert(&mut nested, effect).await?;
                std::mem::forget(nested);
                return Ok(());
            }
        };
        sqlx::raw_sql(text).execute(connection).await?;
        Ok(())
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

    async fn discard(self) {
        drop(self.store);
        self.fixture.drop().await;
    }
}

mod postgres {
    async fn fresh() -> super::Fixture {
        super::Fixture::reused().await
    }

    idem_conformance::postgres_conformance!(fresh);

    async fn on_own_server() -> super::Fixture {
        super::Fixture::on_own_server().await
    }

    idem_conformance::postgres_conformance!(on_own_server, own_server);
}

impl PostgresUnderTest for Fixture {
    type Store = PostgresStore;
    type Error = sqlx::Error;

    fn store(&self) -> &PostgresStore {
        &self.store
    }

    fn another(&self, port: Option<u16>, settings: &[(&str, &str)]) -> PostgresStore {
        let options = self.connection.clone().options(settings.iter().copied());
        let options = match port {
            Some(port) => options.host("127.0.0.1").port(port).ssl_mode(PgSslMode::Disable),
            None => options,
        };
        self.options_of(options).build().unwrap()
    }

    fn server(&self) -> String {
        format!("{}:{}", self.connection.get_host(), self.connection.get_port())
    }

    async fn write(tx: &mut Tx<'_, PostgresStore>, key: &str) -> Result<(), sqlx::Error> {
        insert(tx.connection(), &Effect { key: key.to_owned(), payload: Vec::new(), note: String::new() }).await
    }

    async fn execute(tx: &mut Tx<'_, PostgresStore>, text: &str) -> Result<(), sqlx::Error> {
        sqlx::query(AssertSqlSafe(text)).execute(tx.connection()).await.map(|_| ())
    }

    async fn send(tx: &mut Tx<'_, PostgresStore>, text: &str) -> Result<(), sqlx::Error> {
        sqlx::raw_sql(AssertSqlSafe(text)).execute(tx.connection()).await.map(|_| ())
    }

    async fn run(&self, statements: &str) {
        Fixture::run(self, statements).await;
    }

    async fn texts(&self, query: &str) -> Vec<String> {
        Fixture::texts(self, query).await
    }

    /// BEGIN, claim, and the seal with COMMIT; for duplicates BEGIN, claim, read and ROLLBACK. Events are written by themselves. A call
    /// has its result besides.
    fn round_trips(&self) -> RoundTrips {
        RoundTrips { unit: |effects| 3 + effects, events: |_| 1, duplicates: 4, first_run: 5, unexpected_repeat: 4 }
    }

    async fn discard(self) {
        self.drop().await;
    }
}
