//! A plain outbox: events of code that has a transaction and no message.

use std::{fmt, sync::Arc};

use idem_core::{Event, IdempotencyKey, StoreError, outbox::Destination, results::NewResult};
use idem_sql::{Appending, EventColumns, PlainWriter, PublishPlainError, Row};
use sqlx::SqliteConnection;

use super::{
    SqliteStore,
    append::{Statement, known_events, new_events},
    driver, error,
    statements::Statements,
};

/// Where code that has a transaction of its own, and no message, puts events: an endpoint, a job. A relay brings them to their
/// destinations as it does those of handlers.
///
/// ```no_run
/// # use idem_core::Event;
/// # use sqlx::Connection as _;
/// # async fn example(store: idem_sqlx::SqliteStore, mut connection: sqlx::SqliteConnection) -> Result<(), Box<dyn std::error::Error>> {
/// let outbox = store.plain_outbox("billing", ["invoices"]).await?;
/// let mut transaction = connection.begin().await?;
/// sqlx::query("INSERT INTO invoices (id) VALUES (7)").execute(&mut *transaction).await?;
/// outbox.publish(&mut transaction, "invoice-7", Event::to("invoices").event_type("InvoiceSent")).await?;
/// transaction.commit().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct SqliteOutbox {
    statements: Arc<Statements>,
    writer: PlainWriter,
}

impl fmt::Debug for SqliteOutbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SqliteOutbox").field(&self.writer).finish()
    }
}

impl SqliteStore {
    /// An outbox for code that has a transaction and no message. `writer` stands in for the consumer's name, and no consumer may have
    /// it: a key is one event for each writer and destination.
    ///
    /// # Errors
    /// [`StoreError::Refused`] where a consumer has the name, or a destination was declared with another form of ids;
    /// [`StoreError::Unavailable`] while the database cannot be reached.
    ///
    /// # Cancel safety
    /// Cancel safe: interned names stay.
    pub async fn plain_outbox(
        &self,
        writer: &str,
        destinations: impl IntoIterator<Item = impl Into<Destination>>,
    ) -> Result<SqliteOutbox, StoreError> {
        let driver = self.bookkeeping.driver();
        let writer = PlainWriter::intern(driver, writer, destinations).await?;
        Ok(SqliteOutbox { statements: Arc::new(Statements::new(&self.options().schema)), writer })
    }
}

impl SqliteOutbox {
    /// Writes an event in the transaction that is open on this connection of the caller's: it is published if that commits.
    ///
    /// Receivers know the event by its `key`, which the caller chooses: one occurrence has one key, on every try. The event's label is
    /// ignored. Writing the same event again while it waits under its key changes nothing.
    ///
    /// # Errors
    /// [`PublishPlainError::Refused`] before anything was sent; after any other the transaction has to be rolled back.
    ///
    /// # Cancel safety
    /// Not cancel safe: roll the transaction back.
    pub async fn publish(
        &self,
        connection: &mut SqliteConnection,
        key: &str,
        event: Event,
    ) -> Result<IdempotencyKey, PublishPlainError> {
        let (key, appended) = self.writer.event(key, event)?;
        idem_sql::append(&mut Plain { statements: &self.statements, connection }, &appended).await?;
        Ok(key)
    }
}

struct Plain<'c> {
    statements: &'c Statements,
    connection: &'c mut SqliteConnection,
}

impl Appending for Plain<'_> {
    async fn insert_events(&mut self, events: &EventColumns<'_>) -> Result<Vec<Row>, StoreError> {
        let statement = new_events(self.statements, events);
        self.rows(statement).await
    }

    async fn read_events(&mut self, events: &EventColumns<'_>) -> Result<Vec<Row>, StoreError> {
        let statement = known_events(self.statements, events);
        self.rows(statement).await
    }

    async fn insert_results(&mut self, _: &[NewResult]) -> Result<(), StoreError> {
        // There is no record to keep an answer with.
        Err(StoreError::Unsupported { what: "keep an answer without a record" })
    }
}

impl Plain<'_> {
    async fn rows(&mut self, statement: Statement<'_>) -> Result<Vec<Row>, StoreError> {
        let rows = statement.fetch_all(&mut *self.connection).await;
        let rows = rows.map_err(|source| error::of_unit("writing an event", source))?;
        driver::decode(&rows).map_err(idem_sql::unreadable)
    }
}
