//! The store on PostgreSQL.

mod append;
mod driver;
mod error;
mod framework;
mod inbox;
mod migrate;
mod options;
mod outbox;
mod pooler;
#[cfg(feature = "failpoints")]
mod scratch;
mod session;
mod unit;

use std::{fmt, sync::Arc};

use idem_core::{
    ErrorClass, Store, StoreError,
    cleanup::Cleaner,
    outbox::Outbox,
    store::{Claim, ClaimError, Found, PlainConnection, StoreCapabilities, UnitOfWork as _, UnitOptions},
};
pub use idem_sql::Pooler;
use idem_sql::{SchemaName, SqlBookkeeping, SqlOutbox, UnitLimits, key_id, refused_login};
use sqlx::{AssertSqlSafe, Connection as _, Database, PgConnection, PgPool, postgres::PgConnectOptions};

use self::driver::Driver;
#[cfg(feature = "failpoints")]
pub use self::scratch::PostgresScratch;
pub use self::{options::PostgresOptions, outbox::PostgresOutbox, session::PostgresSession, unit::PostgresUnit};

/// sqlx's count of nested transactions, through which units begin and end.
type Manager = <sqlx::Postgres as Database>::TransactionManager;

/// The store on PostgreSQL 14 and later: the record of the keys and the handlers' writes are one transaction.
///
/// Handlers get a [`&mut PgConnection`](PgConnection) inside the open transaction. They may nest transactions of sqlx's
/// own (savepoints), and never end the one they are given. Where one does, by a COMMIT or ROLLBACK as text, the server
/// refuses the COMMIT, and every write that follows too: sessions that this store opens have `default_transaction_read_only`
/// on, and only idem's own BEGIN asks for more. A pooler in transaction mode takes no such setting; there the role has to be
/// read only by default (`ALTER ROLE orders SET default_transaction_read_only = on`), or the start is refused.
///
/// A commit counts when the server says so. `synchronous_commit` decides what that is worth; start-up warns where it is
/// weaker than `on`. A COMMIT whose wait for a standby an operator cancels answers as a success: the server says so in a
/// warning only, which sqlx does not hand on.
///
/// Any library that takes a `&mut PgConnection` of sqlx's can write here. SeaORM does so through an adapter of a few lines
/// (`examples/sea-orm`); its own transactions take a pool and cannot join one that they did not begin.
///
/// Cloning is cheap, and clones share the small pool for what is done outside of units of work.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let store = idem_sqlx::PostgresStore::connect("postgres://orders@db.internal/orders?sslmode=verify-full").await?;
/// store.migrate().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct PostgresStore {
    bookkeeping: SqlBookkeeping<Driver>,
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PostgresStore").field(&self.driver().options).finish()
    }
}

impl PostgresStore {
    /// Connects with the default settings. The URL is that of libpq: `postgres://user:password@host:port/database`, with
    /// `sslmode`, `sslrootcert` and the like as parameters; ask for `sslmode=verify-full` beyond this machine.
    ///
    /// # Errors
    /// [`StoreError::Refused`] where the URL cannot be read or the server says no, [`StoreError::Unavailable`] while it
    /// cannot be reached. No text holds the URL.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn connect(url: &str) -> Result<Self, StoreError> {
        let store = PostgresOptions::parse(url)?.build()?;
        // Not through the pool, which would wait for a server that is not there.
        let connected = store.driver().connect_with(&store.driver().options.connection).await;
        let connection = connected.map_err(|error| refused_login::<Driver>(&error).unwrap_or(error))?;
        let _ = connection.close().await;
        Ok(store)
    }

    /// A store with the connect options of a pool that the application has: the same server, database, login and settings. Nothing is
    /// connected yet, and the pool's own connections are not used: a transaction of idem's has a connection of its own.
    ///
    /// What the pool does by itself on each new connection (`after_connect`) is not done on those of the store.
    ///
    /// ```
    /// # fn store(pool: &sqlx::PgPool) -> Result<idem_sqlx::PostgresStore, idem_core::StoreError> {
    /// idem_sqlx::PostgresStore::like(pool)
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`PostgresOptions::build`].
    pub fn like(pool: &PgPool) -> Result<Self, StoreError> {
        PostgresOptions::new((*pool.connect_options()).clone()).build()
    }

    /// Settings to build a store from; nothing is connected before the first use.
    pub fn with_options(options: PgConnectOptions) -> PostgresOptions {
        PostgresOptions::new(options)
    }

    /// The schema that holds idem's tables.
    #[must_use]
    pub fn schema(&self) -> &SchemaName {
        &self.driver().options.settings.schema
    }

    /// Closes the connections that are used outside of units of work. Sessions are closed by their owners.
    ///
    /// # Cancel safety
    /// Cancel safe: connections that are not closed in good order are closed when the store is dropped.
    pub async fn disconnect(&self) {
        self.driver().framework.pool.close().await;
        self.driver().cleaner.close().await;
    }

    fn from_options(options: PostgresOptions) -> Self {
        Self { bookkeeping: SqlBookkeeping::new(Driver::new(options)) }
    }

    fn driver(&self) -> &Arc<Driver> {
        self.bookkeeping.driver()
    }
}

impl PlainConnection for PostgresStore {
    type Plain = PgConnection;

    fn plain(unit: &PostgresUnit) -> &PgConnection {
        &unit.session.connection
    }

    fn plain_mut(unit: &mut PostgresUnit) -> &mut PgConnection {
        &mut unit.session.connection
    }
}

impl Store for PostgresStore {
    type Bookkeeping = SqlBookkeeping<Driver>;
    type Session = PostgresSession;
    type Connection<'t> = &'t mut PgConnection;
    type Unit = PostgresUnit;

    fn capabilities(&self) -> StoreCapabilities {
        StoreCapabilities::server().outbox(true).results(true).sets_aside(true)
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
        self.driver().close_session(session).await;
    }

    async fn begin(&self, mut session: PostgresSession, options: UnitOptions) -> Result<PostgresUnit, StoreError> {
        let begin = session.limits.begin(UnitLimits::of(options), session.shared_durability);
        session.begin(&begin).await.map_err(error::beginning)?;
        Ok(PostgresUnit::new(Arc::clone(self.driver()), session, options))
    }

    async fn look_up(
        &self,
        mut session: PostgresSession,
        options: UnitOptions,
        claims: &[Claim],
    ) -> Result<(Option<PostgresSession>, Vec<Option<Found>>), StoreError> {
        if self.driver().is_named() {
            let found = append::found(self.driver(), &mut session.connection, claims).await?;
            return Ok((Some(session), found));
        }
        // sqlx prepares and runs in two steps, between which a pooler may change the server connection unless a transaction
        // holds it.
        let mut unit = self.begin(session, options).await?;
        let found = unit.look_up(claims).await?;
        Ok((unit.rollback().await?, found))
    }

    async fn is_free(
        &self,
        mut session: PostgresSession,
        options: UnitOptions,
        claim: &Claim,
    ) -> Result<(Option<PostgresSession>, bool), StoreError> {
        let key_id = key_id(claim.key.as_str());
        let text = self.driver().statements.question(UnitLimits::of(options), &[claim.scope.0], key_id);
        let asked = sqlx::raw_sql(AssertSqlSafe(text)).execute(&mut session.connection).await;
        let error = match asked {
            Ok(inserted) => return Ok((Some(session), inserted.rows_affected() == 1)),
            Err(source) => error::claiming(source),
        };
        // In a conflict with another transaction the key was that one's.
        if let ClaimError::Store(error) = error
            && error.class() != ErrorClass::RunUnitAgain
        {
            return Err(error);
        }
        session.begin("ROLLBACK").await.map_err(|source| error::store("rolling back", source))?;
        Ok((Some(session), false))
    }

    fn reborrow<'a, 't: 'a>(connection: &'a mut &'t mut PgConnection) -> &'a mut PgConnection {
        connection
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
