//! The store itself.

use std::{fmt, sync::Arc};

use idem_core::{
    ErrorClass, Store, StoreError,
    cleanup::Cleaner,
    outbox::Outbox,
    store::{Claim, ClaimError, Found, StoreCapabilities, UnitOptions},
};
use idem_sql::{SchemaName, SqlBookkeeping, SqlOutbox, UnitLimits, key_id, refused_login};
use tokio_postgres::{SimpleQueryMessage, config::Config};

use crate::{PostgresConnection, PostgresOptions, PostgresSession, PostgresUnit, driver::Driver, error};

/// The store on PostgreSQL 14 and later: the record of the keys and the handlers' writes are one transaction.
///
/// Handlers get a [`PostgresConnection`] inside the open transaction, and never end it. Where one does, by a COMMIT or
/// ROLLBACK as text, the server refuses the COMMIT, and every write that follows too: sessions that this store opens have
/// `default_transaction_read_only` on, and only idem's own BEGIN asks for more. A pooler in transaction mode takes no
/// such setting; there the role has to be read only by default (`ALTER ROLE orders SET default_transaction_read_only =
/// on`), or the start is refused.
///
/// A commit counts when the server has accepted the seal before it and answered the COMMIT. `synchronous_commit` decides
/// what that is worth; start-up warns where it is weaker than `on`. A COMMIT whose wait for a standby an operator cancels
/// answers as a success, and is warned about.
///
/// Cloning is cheap, and clones share the few connections for what is done outside of units of work.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let url = "postgres://orders@db.internal/orders?sslmode=verify-full";
/// let store = idem_tokio_postgres::PostgresStore::connect(url).await?;
/// store.migrate().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct PostgresStore {
    pub(crate) bookkeeping: SqlBookkeeping<Driver>,
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PostgresStore").field(&self.driver().options).finish()
    }
}

impl PostgresStore {
    /// Connects with the default settings. The URL is that of libpq: `postgres://user:password@host:port/database`, with
    /// `sslmode` and `sslrootcert` as parameters; ask for `sslmode=verify-full` beyond this machine.
    ///
    /// # Errors
    /// [`StoreError::Refused`] where the URL cannot be read or the server says no, [`StoreError::Unavailable`] while it
    /// cannot be reached. No text holds the URL.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn connect(url: &str) -> Result<Self, StoreError> {
        let store = PostgresOptions::parse(url)?.build()?;
        let connected = store.driver().connect_with(&store.driver().options.connection).await;
        let link = connected.map_err(|error| refused_login::<Driver>(&error).unwrap_or(error))?;
        link.close(store.driver().options.settings.connect_timeout).await;
        Ok(store)
    }

    /// Settings to build a store from; nothing is connected before the first use.
    pub fn with_options(connection: Config) -> PostgresOptions {
        PostgresOptions::new(connection)
    }

    /// The schema that holds idem's tables.
    #[must_use]
    pub fn schema(&self) -> &SchemaName {
        &self.driver().options.settings.schema
    }

    /// Closes the connections that are used outside of units of work and idle now. Sessions are closed by their owners.
    ///
    /// # Cancel safety
    /// Cancel safe: connections that are not closed in good order are closed when the store is dropped.
    pub async fn disconnect(&self) {
        for pool in [&self.driver().framework, &self.driver().cleaner] {
            self.driver().close_idle(pool).await;
        }
    }

    pub(crate) fn from_options(options: PostgresOptions) -> Result<Self, StoreError> {
        Ok(Self { bookkeeping: SqlBookkeeping::new(Driver::new(options)?) })
    }

    pub(crate) fn driver(&self) -> &Arc<Driver> {
        self.bookkeeping.driver()
    }

    /// Opens another connection in place of one that was closed meanwhile.
    async fn renew(&self, session: &mut PostgresSession) -> Result<(), StoreError> {
        if session.link.client.is_closed() {
            *session = self.driver().open_session().await?;
        }
        Ok(())
    }
}

impl Store for PostgresStore {
    type Bookkeeping = SqlBookkeeping<Driver>;
    type Session = PostgresSession;
    type Connection<'t> = PostgresConnection<'t>;
    type Unit = PostgresUnit;

    fn capabilities(&self) -> StoreCapabilities {
        let mut capabilities = StoreCapabilities::server().outbox(true).results(true).sets_aside(true);
        capabilities.concurrent_handlers = true;
        capabilities
    }

    fn bookkeeping(&self) -> &SqlBookkeeping<Driver> {
        &self.bookkeeping
    }

    fn cleaner(self: &Arc<Self>) -> Box<dyn Cleaner> {
        Box::new(self.bookkeeping.cleaner())
    }

    fn outbox(self: &Arc<Self>) -> Option<Arc<dyn Outbox>> {
        Some(Arc::new(SqlOutbox::new(Arc::clone(self.bookkeeping.driver()))))
    }

    async fn open(&self) -> Result<PostgresSession, StoreError> {
        self.driver().open_session().await
    }

    async fn close(&self, session: PostgresSession) {
        // A server that does not answer must not hold up a shutdown.
        session.link.close(self.driver().options.settings.connect_timeout).await;
    }

    async fn begin(&self, mut session: PostgresSession, options: UnitOptions) -> Result<PostgresUnit, StoreError> {
        self.renew(&mut session).await?;
        let text = session.limits.begin(UnitLimits::of(options), session.shared_durability);
        // On the wire with what follows; its answer is read with the claim's.
        let begun = session.link.client.simple_query_raw(&text).await.map_err(error::beginning)?;
        Ok(PostgresUnit::new(Arc::clone(self.driver()), session, options, begun))
    }

    async fn look_up(
        &self,
        mut session: PostgresSession,
        _: UnitOptions,
        claims: &[Claim],
    ) -> Result<(Option<PostgresSession>, Vec<Option<Found>>), StoreError> {
        self.renew(&mut session).await?;
        let found = session.found(self.driver(), claims).await?;
        Ok((Some(session), found))
    }

    async fn is_free(
        &self,
        mut session: PostgresSession,
        options: UnitOptions,
        claim: &Claim,
    ) -> Result<(Option<PostgresSession>, bool), StoreError> {
        self.renew(&mut session).await?;
        let client = &session.link.client;
        let key_id = key_id(claim.key.as_str());
        let text = self.driver().statements.question(UnitLimits::of(options), &[claim.scope.0], key_id);
        let is_insert = |answer: &SimpleQueryMessage| matches!(answer, SimpleQueryMessage::CommandComplete(1));
        let error = match client.simple_query(&text).await {
            Ok(answers) => return Ok((Some(session), answers.iter().any(is_insert))),
            Err(source) => error::claiming(source),
        };
        // In a conflict with another transaction the key was that one's.
        if let ClaimError::Store(error) = error
            && error.class() != ErrorClass::RunUnitAgain
        {
            return Err(error);
        }
        client.batch_execute("ROLLBACK").await.map_err(|source| error::store("rolling back", source))?;
        Ok((Some(session), false))
    }

    fn reborrow<'a, 't: 'a>(connection: &'a mut PostgresConnection<'t>) -> PostgresConnection<'a> {
        connection.reborrow()
    }

    fn classify(error: &(dyn std::error::Error + 'static)) -> Option<ErrorClass> {
        error::classify(error)
    }

    fn describe(error: &(dyn std::error::Error + 'static)) -> Option<String> {
        error::describe(error)
    }

    fn code(error: &(dyn std::error::Error + 'static)) -> Option<String> {
        error::sqlstate(error)
    }
}
