//! The conformance suite of every store, on SQLite.

use std::{sync::Arc, time::Duration};

use idem_conformance::store::{Arrangement, Effect, HandlerAction, NotOffered, StoreUnderTest, taken_numbers};
use idem_core::{HandlerError, Tx, store::ScopeId};
use idem_sqlx::SqliteStore;
use sqlx::{Connection, Row, SqliteConnection};

use super::{File, open};

/// A file of its own for each case.
struct Fresh {
    file: File,
    store: Arc<SqliteStore>,
}

async fn fresh() -> Fresh {
    let (file, store) = super::fresh().await;
    file.run("CREATE TABLE observed (key TEXT NOT NULL, payload BLOB NOT NULL, note TEXT NOT NULL) STRICT").await;
    Fresh { file, store }
}

async fn run(connection: &mut SqliteConnection, sql: &'static str) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(sql).execute(connection).await.map(drop)
}

async fn write(connection: &mut SqliteConnection, effect: &Effect) -> Result<(), sqlx::Error> {
    sqlx::query("INSERT INTO observed (key, payload, note) VALUES (?, ?, ?)")
        .bind(effect.key.as_str())
        .bind(effect.payload.as_slice())
        .bind(effect.note.as_str())
        .execute(connection)
        .await
        .map(drop)
}

/// Moves every instant back, but not "for ever".
fn age(by: Duration) -> String {
    let columns = [
        ("processed_messages", &["processed_at", "expires_at"][..]),
        ("units", &["at"]),
        ("message_attempts", &["first_at", "last_at"]),
        ("dead_letters", &["first_at", "last_at", "published_at", "due_at", "taken_at", "replayed_at"]),
        ("controls", &["at"]),
        ("audit", &["at"]),
        ("outbox", &["created_at", "not_before", "first_sent_at"]),
        ("outbox_destinations", &["relayed_until", "relay_lost_at"]),
        ("processed_results", &["stored_at", "answer_until"]),
    ];
    let update = |(table, columns): (&str, &[&str])| {
        let set = columns.iter().map(|c| format!("{c} = iif({c} = {}, {c}, {c} - {})", i64::MAX, by.as_micros()));
        format!("UPDATE idem_{table} SET {};", set.collect::<Vec<_>>().join(", "))
    };
    columns.into_iter().map(update).collect()
}

const SWALLOW: &str = "CREATE TRIGGER swallow BEFORE INSERT ON idem_processed_messages BEGIN SELECT RAISE(IGNORE); END";
const HIDE: &str = "ALTER TABLE idem_processed_messages RENAME TO hidden_records";
const DROP_KEY: &str = "
    DROP VIEW idem_inbox_messages;
    CREATE TABLE without_key AS SELECT * FROM idem_processed_messages;
    DROP TABLE idem_processed_messages;
    ALTER TABLE without_key RENAME TO idem_processed_messages";

const RENAME: &str =
    "UPDATE idem_consumers SET name = 'purchases', derives_as = ifnull(derives_as, name) WHERE name = 'orders'";

impl StoreUnderTest for Fresh {
    type Store = SqliteStore;

    fn store(&self) -> Arc<SqliteStore> {
        Arc::clone(&self.store)
    }

    async fn another(&self) -> Arc<SqliteStore> {
        open(&self.file).await
    }

    async fn write(tx: &mut Tx<'_, SqliteStore>, effect: &Effect) -> Result<(), HandlerError> {
        Ok(write(tx.connection(), effect).await?)
    }

    async fn effects(&self) -> Vec<Effect> {
        let mut connection = self.file.connect().await;
        let rows = sqlx::query("SELECT key, payload, note FROM observed").fetch_all(&mut connection).await.unwrap();
        rows.iter().map(|row| Effect { key: row.get(0), payload: row.get(1), note: row.get(2) }).collect()
    }

    async fn recorded(&self) -> Vec<String> {
        self.file.recorded().await
    }

    async fn audited(&self) -> Vec<(String, Option<String>)> {
        let mut connection = self.file.connect().await;
        let select = sqlx::query_as("SELECT action, idempotency_key FROM idem_audit ORDER BY id");
        select.fetch_all(&mut connection).await.unwrap()
    }

    /// A failed statement does not fail SQLite's transaction, whether its error is swallowed or never read; and there is
    /// no server that could end a connection.
    fn offers(&self, action: HandlerAction) -> bool {
        match action {
            HandlerAction::FailingStatement | HandlerAction::UnreadFailure | HandlerAction::KillConnection => false,
            HandlerAction::Commit
            | HandlerAction::Rollback
            | HandlerAction::CommitAndBegin
            | HandlerAction::DeferredFailure
            | HandlerAction::NestedCommitted
            | HandlerAction::NestedRolledBack
            | HandlerAction::NestedLeft
            | HandlerAction::Block => true,
        }
    }

    async fn act(tx: &mut Tx<'_, SqliteStore>, action: HandlerAction, effect: &Effect) -> Result<(), HandlerError> {
        let connection = tx.connection();
        match action {
            HandlerAction::Commit => run(connection, "COMMIT").await?,
            HandlerAction::Rollback => run(connection, "ROLLBACK").await?,
            HandlerAction::CommitAndBegin => {
                drop(run(connection, "COMMIT").await);
                run(connection, "BEGIN").await?;
            }
            HandlerAction::DeferredFailure => run(connection, "INSERT INTO children VALUES (7)").await?,
            HandlerAction::NestedCommitted => {
                let mut nested = connection.begin().await?;
                write(&mut nested, effect).await?;
                nested.commit().await?;
            }
            HandlerAction::NestedRolledBack => {
                let mut nested = connection.begin().await?;
                write(&mut nested, effect).await?;
                nested.rollback().await?;
            }
            HandlerAction::NestedLeft => {
                let mut nested = connection.begin().await?;
                write(&mut nested, effect).await?;
                std::mem::forget(nested);
            }
            HandlerAction::Block => {
                let endless = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n";
                run(connection, endless).await?;
            }
            HandlerAction::FailingStatement | HandlerAction::UnreadFailure | HandlerAction::KillConnection => {
                return Err(NotOffered.into());
            }
        }
        Ok(())
    }

    fn arranges(&self, arrangement: Arrangement) -> bool {
        // The seal is a hook in the process: it cannot be dropped from outside.
        arrangement != Arrangement::DropSeal
    }

    async fn arrange(&self, arrangement: Arrangement) -> Result<(), NotOffered> {
        match arrangement {
            Arrangement::Age(by) => self.file.run(&age(by)).await,
            Arrangement::SwallowRecords => self.file.run(SWALLOW).await,
            Arrangement::HideRecords => self.file.run(HIDE).await,
            Arrangement::Restore => {
                self.file.run("DROP TRIGGER IF EXISTS swallow").await;
                let hidden = self.file.ask("SELECT name FROM sqlite_schema WHERE name = 'hidden_records'").await;
                if !hidden.is_empty() {
                    self.file.run("ALTER TABLE hidden_records RENAME TO idem_processed_messages").await;
                }
            }
            Arrangement::EraseKeys => self.file.run("UPDATE idem_processed_messages SET idempotency_key = ''").await,
            Arrangement::DropUniqueKey => self.file.run(DROP_KEY).await,
            Arrangement::DropSeal => return Err(NotOffered),
            Arrangement::Rename => self.file.run(RENAME).await,
            Arrangement::TakeNumbers => {
                for ScopeId(number) in taken_numbers() {
                    let row = format!("{number}, '{number}', 'others', '', '', '', '', NULL, 0");
                    let columns =
                        "id, tenant, name, bound_to, handler, key_rules, hash_rules, retention, first_started_at";
                    self.file.run(&format!("INSERT INTO idem_consumers ({columns}) VALUES ({row})")).await;
                }
            }
        }
        Ok(())
    }
}

/// One test a case, in a module of its own so that their names do not clash with others.
mod suite {
    idem_conformance::store_conformance!(super::fresh);
}
