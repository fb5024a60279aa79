//! A plain outbox: events of code that has a transaction and no message.

use std::sync::Arc;

use idem_core::{Event, IdempotencyKey, StoreError, outbox::Destination, results::NewResult};
use idem_sql::{AppendLimits, Appending, EventColumns, PlainWriter, PublishPlainError, Row};
use sqlx::{AssertSqlSafe, PgConnection};

use super::{
    Driver, PostgresStore,
    append::{known_events, new_events},
    driver, error,
};

/// Where code that has a transaction of its own, and no message, puts events: an endpoint, a job. A relay brings them to their
/// destinations as it does those of handlers.
///
/// ```no_run
/// # use idem_core::Event;
/// # use sqlx::Connection as _;
/// # async fn example(store: idem_sqlx::PostgresStore, mut connection: sqlx::PgConnection) -> Result<(), Box<dyn std::error::Error>> {
/// let outbox = store.plain_outbox("billing", ["invoices"]).await?;
/// let mut transaction = connection.begin().await?;
/// sqlx::query("INSERT INTO invoices (id) VALUES (7)").execute(&mut *transaction).await?;
/// outbox.publish(&mut transaction, "invoice-7", Event::to("invoices").event_type("InvoiceSent")).await?;
/// transaction.commit().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct PostgresOutbox {
    driver: Arc<Driver>,
    writer: PlainWriter,
}

impl PostgresStore {
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
    ) -> Result<PostgresOutbox, StoreError> {
        let driver = Arc::clone(self.bookkeeping.driver());
        let writer = PlainWriter::intern(&driver, writer, destinations).await?;
        Ok(PostgresOutbox { driver, writer })
    }
}

impl PostgresOutbox {
    /// Writes an event in the transaction that is open on this connection of the caller's: it is published if that commits. Its
    /// login needs the rights of `idem_worker`.
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
        connection: &mut PgConnection,
        key: &str,
        event: Event,
    ) -> Result<IdempotencyKey, PublishPlainError> {
        let (key, appended) = self.writer.event(key, event)?;
        idem_sql::append(&mut Plain { driver: &self.driver, connection }, &appended).await?;
        Ok(key)
    }
}

struct Plain<'c> {
    driver: &'c Driver,
    connection: &'c mut PgConnection,
}

impl Appending for Plain<'_> {
    async fn insert_events(&mut self, events: &EventColumns<'_>) -> Result<Vec<Row>, StoreError> {
        let query = sqlx::query(AssertSqlSafe(Arc::clone(self.driver.statements.inserting(events))));
        self.rows(new_events(query, events)).await
    }

    async fn read_events(&mut self, events: &EventColumns<'_>) -> Result<Vec<Row>, StoreError> {
        let query = sqlx::query(AssertSqlSafe(Arc::clone(&self.driver.statements.read_events)));
        self.rows(known_events(query, events)).await
    }

    async fn insert_results(&mut self, _: &[NewResult]) -> Result<(), StoreError> {
        // There is no record to keep an answer with.
        Err(StoreError::Unsupported { what: "keep an answer without a record" })
    }
}

impl Plain<'_> {
    async fn rows(&mut self, statement: driver::Statement<'_>) -> Result<Vec<Row>, StoreError> {
        // The connection is the caller's, who may have it through a pooler that loses prepared statements.
        let rows = statement.persistent(false).fetch_all(&mut *self.connection).await;
        // The session's own limits are not known, so no limit is taken for a handler's.
        let limits = AppendLimits { lock: "", statement: "", may_append: false };
        driver::read(&rows.map_err(|source| error::appending(source, limits))?)
    }
}
