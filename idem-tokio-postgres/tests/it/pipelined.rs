//! Handlers at once: refused statements, shared state, and the limits between neighbours.

use futures_util::FutureExt as _;
use idem_core::{Concurrency, HandlerError, Message, message::OrderingKey};
use idem_testkit::proxy::postgres::PostgresProxy;
use idem_tokio_postgres::{PostgresConnection, RunStatementError, tokio_postgres::types::Type};

use crate::{
    consumers::{Act, Acting, BOTH, Write, builder, key_of, keys, messages, process, write},
    fixture::Fixture,
};

/// Tries to take the transaction or the session for itself.
struct Tries;

impl Act for Tries {
    async fn act(&self, message: &Message, mut connection: PostgresConnection<'_>) -> Result<(), HandlerError> {
        for text in ["COMMIT", " rollback to a", "/* */ SAVEPOINT a", ";RELEASE a", "SET LOCAL work_mem = '1MB'"] {
            let refused = connection.execute(text, &[]).await;
            assert!(matches!(refused, Err(RunStatementError::SessionControl { .. })), "{text}: {refused:?}");
            let refused = connection.query_typed(text, &[]).await;
            assert!(matches!(refused, Err(RunStatementError::SessionControl { .. })), "{text}: {refused:?}");
        }
        assert!(matches!(connection.client(), Err(RunStatementError::NotInOrder { .. })));
        assert!(matches!(connection.transaction().await, Err(RunStatementError::NotInOrder { .. })));
        Ok(write(&connection, message).await?)
    }
}

/// A12: nothing was sent, so nothing is spoilt.
#[tokio::test]
async fn a12_control_of_the_transaction_is_refused_before_it_is_sent() {
    let fixture = Fixture::new().await;
    let consumer = builder(fixture.store.clone(), Acting(Tries)).handlers(Concurrency::pipelined()).build().unwrap();
    assert_eq!(process(&consumer, messages(&keys(5))).await, "PPPPP");
    assert_eq!(fixture.effects().await, keys(5));
    fixture.drop().await;
}

/// Hides control behind an ordinary statement.
struct Hides;

impl Act for Hides {
    async fn act(&self, message: &Message, connection: PostgresConnection<'_>) -> Result<(), HandlerError> {
        write(&connection, message).await?;
        if key_of(message) == "order-001" {
            let _ = connection.execute("INSERT INTO effects VALUES ('hidden', '', ''); COMMIT", &[]).await;
        }
        Ok(())
    }
}

/// A12: several statements in one text are the server's to refuse.
#[tokio::test]
async fn a12_several_statements_in_one_text_do_not_pass() {
    let fixture = Fixture::new().await;
    let consumer = builder(fixture.store.clone(), Acting(Hides)).handlers(Concurrency::pipelined()).build().unwrap();
    assert_eq!(process(&consumer, messages(&keys(3))).await, "PtP");
    assert_eq!(fixture.effects().await, ["order-000", "order-002"]);
    fixture.drop().await;
}

/// The text of every handler is prepared once a connection, also where fifty need it at the same moment.
#[tokio::test]
async fn first_uses_at_once_share_one_prepared_statement() {
    for handlers in BOTH {
        let fixture = Fixture::new().await;
        let proxy = PostgresProxy::patient(&fixture.authority()).await.unwrap();
        let store = fixture.options_of(fixture.through(proxy.port())).build().unwrap();
        let consumer = builder(store, Write).lanes(1).handlers(handlers).build().unwrap();
        assert_eq!(process(&consumer, messages(&keys(50))).await, "P".repeat(50));
        assert_eq!(proxy.parsed("INSERT INTO effects"), 1, "{handlers:?}");
        fixture.drop().await;
    }
}

/// Adds to one row, in one of several ways.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Adds {
    /// Reads the row, computes here, and writes the result.
    ByReading,
    /// The same under a lock, which neighbours of one transaction do not notice.
    ByLocking,
    /// Has the server add.
    Relatively,
    /// Inserts or adds.
    ByUpsert,
    /// Inserts a row of its own, from which the sum follows.
    ByRow,
}

impl Act for Adds {
    async fn act(&self, _: &Message, connection: PostgresConnection<'_>) -> Result<(), HandlerError> {
        match self {
            Self::ByReading | Self::ByLocking => {
                let lock = if *self == Self::ByLocking { " FOR UPDATE" } else { "" };
                let text = format!("SELECT cents FROM accounts WHERE id = 1{lock}");
                let cents: i32 = connection.query_one(&text, &[]).await?.try_get(0).map_err(RunStatementError::from)?;
                connection.execute("UPDATE accounts SET cents = $1 WHERE id = 1", &[&(cents + 1)]).await?;
            }
            Self::Relatively => {
                connection.execute("UPDATE accounts SET cents = cents + 1 WHERE id = 1", &[]).await?;
            }
            Self::ByUpsert => {
                let text = "INSERT INTO accounts VALUES (1, 1)
                    ON CONFLICT (id) DO UPDATE SET cents = accounts.cents + excluded.cents";
                connection.execute(text, &[]).await?;
            }
            Self::ByRow => {
                connection.execute("INSERT INTO entries VALUES (1, 1)", &[]).await?;
            }
        }
        Ok(())
    }
}

/// Handles twenty messages that each add 1 in one batch, and answers the sum.
async fn sum(adds: Adds, handlers: Concurrency, of_one_account: bool) -> String {
    let fixture = Fixture::new().await;
    fixture.run("CREATE TABLE accounts (id int PRIMARY KEY, cents int); INSERT INTO accounts VALUES (1, 0)").await;
    fixture.run("CREATE TABLE entries (account int, cents int)").await;
    let consumer = builder(fixture.store.clone(), Acting(adds)).lanes(1).handlers(handlers).build().unwrap();
    let messages = messages(&keys(20)).into_iter();
    let messages = messages
        .map(|message| if of_one_account { message.with_ordering_key(OrderingKey::new("account-1")) } else { message });
    assert_eq!(process(&consumer, messages.collect()).await, "P".repeat(20));
    let sum = fixture.text("SELECT (SELECT sum(cents) FROM accounts) + (SELECT coalesce(sum(cents), 0) FROM entries)");
    let sum = sum.await;
    fixture.drop().await;
    sum
}

/// Statements that are safe beside any neighbours.
#[tokio::test]
async fn relative_updates_upserts_and_rows_of_ones_own_add_up() {
    for handlers in BOTH {
        for adds in [Adds::Relatively, Adds::ByUpsert, Adds::ByRow] {
            assert_eq!(sum(adds, handlers, false).await, "20", "{adds:?} {handlers:?}");
        }
    }
}

/// The documented limit: handlers at once share one transaction, so one may have read a row that another has written
/// meanwhile, without a lock between them. In order, or in turn by an ordering key, the same handler adds up.
#[tokio::test]
async fn reading_before_writing_loses_updates_between_handlers_at_once() {
    for adds in [Adds::ByReading, Adds::ByLocking] {
        assert_ne!(
            sum(adds, Concurrency::pipelined(), false).await,
            "20",
            "{adds:?}: this limit is gone, so update the docs"
        );
        assert_eq!(sum(adds, Concurrency::InOrder, false).await, "20", "{adds:?}");
        assert_eq!(sum(adds, Concurrency::pipelined(), true).await, "20", "{adds:?}, in turn");
    }
}

/// Drops its statement's future as soon as that is sent.
struct Hurries;

impl Act for Hurries {
    async fn act(&self, message: &Message, connection: PostgresConnection<'_>) -> Result<(), HandlerError> {
        let text = "INSERT INTO effects (key, payload, note) VALUES ($1, '', '')";
        if let Some(answer) = connection.execute_typed(text, &[(&key_of(message), Type::TEXT)]).now_or_never() {
            answer?;
        }
        Ok(())
    }
}

/// A16: a statement that was sent counts, whether or not the handler waits for it, and so does its failure.
#[tokio::test]
async fn a16_a_statement_that_nobody_waits_for_runs_all_the_same() {
    for handlers in BOTH {
        let fixture = Fixture::new().await;
        let consumer = builder(fixture.store.clone(), Acting(Hurries)).lanes(1).handlers(handlers).build().unwrap();
        fixture.run("ALTER TABLE effects ADD UNIQUE (key); INSERT INTO effects VALUES ('order-002', '', '')").await;
        assert_eq!(process(&consumer, messages(&keys(4))).await, "PPtP", "{handlers:?}");
        assert_eq!(fixture.effects().await, keys(4), "{handlers:?}");
        fixture.drop().await;
    }
}
