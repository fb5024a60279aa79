//! The suite that every store runs.

use std::{sync::Arc, time::Duration};

use futures_util::TryStreamExt as _;
use idem_core::{Concurrency, HandlerError, Tx};
use idem_testkit::conformance::store::{Arrangement, Effect, HandlerAction, NotOffered, StoreUnderTest};
use idem_tokio_postgres::{PostgresConnection, PostgresStore, RunStatementError};

use crate::fixture::Fixture;

struct Subject {
    fixture: Fixture,
    store: Arc<PostgresStore>,
    handlers: Concurrency,
}

impl Subject {
    async fn new(handlers: Concurrency) -> Self {
        let fixture = Fixture::new().await;
        let store = Arc::new(fixture.store.clone());
        Self { fixture, store, handlers }
    }
}

mod in_order {
    async fn fresh() -> super::Subject {
        super::Subject::new(idem_core::Concurrency::InOrder).await
    }

    idem_testkit::store_conformance!(fresh);
}

mod pipelined {
    async fn fresh() -> super::Subject {
        super::Subject::new(idem_core::Concurrency::pipelined()).await
    }

    idem_testkit::store_conformance!(fresh);
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

/// Puts every instant that idem has stored this far into the past.
fn age(by: Duration) -> String {
    let columns: [(&str, &[&str]); 5] = [
        ("processed_messages", &["processed_at", "expires_at"]),
        ("units", &["at"]),
        ("attempts", &["first_at", "last_at"]),
        (
            "dead_letters",
            &["first_at", "last_at", "published_at", "replay_requested_at", "replay_taken_at", "replayed_at"],
        ),
        ("audit", &["at"]),
    ];
    let update = |(table, columns): (&str, &[&str])| {
        let change = |column: &&str| format!("{column} = {column} - {} * interval '1 microsecond'", by.as_micros());
        format!("UPDATE {table} SET {};", columns.iter().map(change).collect::<Vec<_>>().join(", "))
    };
    columns.map(update).concat()
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
        let rows = self.fixture.connect().await.query("SELECT key, payload, note FROM effects", &[]).await.unwrap();
        rows.iter().map(|row| Effect { key: row.get(0), payload: row.get(1), note: row.get(2) }).collect()
    }

    async fn recorded(&self) -> Vec<String> {
        self.fixture.recorded().await
    }

    async fn audited(&self) -> Vec<(String, Option<String>)> {
        let client = self.fixture.connect().await;
        let rows = client.query("SELECT action, idempotency_key FROM audit ORDER BY id", &[]).await.unwrap();
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
            | Arrangement::DropSeal => true,
        }
    }

    async fn arrange(&self, arrangement: Arrangement) -> Result<(), NotOffered> {
        let text = match arrangement {
            Arrangement::Age(by) => age(by),
            Arrangement::SwallowRecords => "
                CREATE FUNCTION swallow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
                CREATE TRIGGER swallow BEFORE INSERT ON processed_messages FOR EACH ROW EXECUTE FUNCTION swallow();"
                .to_owned(),
            Arrangement::HideRecords => "ALTER TABLE processed_messages RENAME TO hidden_messages".to_owned(),
            Arrangement::Restore => "
                ALTER TABLE IF EXISTS hidden_messages RENAME TO processed_messages;
                DROP FUNCTION IF EXISTS swallow() CASCADE;"
                .to_owned(),
            Arrangement::EraseKeys => "UPDATE processed_messages SET idempotency_key = ''".to_owned(),
            Arrangement::DropUniqueKey => {
                "ALTER TABLE processed_messages DROP CONSTRAINT processed_messages_pkey".to_owned()
            }
            Arrangement::DropSeal => "DROP TRIGGER refuse_unsealed_commit ON units".to_owned(),
        };
        self.fixture.run(text).await;
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
