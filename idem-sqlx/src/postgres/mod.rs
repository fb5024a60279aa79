//! The store on PostgreSQL.

mod books;
mod error;
mod lane;
mod migrate;
mod options;
mod pooler;
mod unit;

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use idem_core::{Cleaner, ErrorClass, Store, StoreCapabilities, StoreError, UnitOptions};
pub use idem_schema::Statements;
use idem_schema::{
    Fence, LaneSettings, PostgresCleaner, PostgresStatements, SchemaName, UnitLimits, begin_unit, is_by_role,
    refused_login,
};
use sqlx::{
    AssertSqlSafe, Connection as _, Database, PgConnection, PgPool, SqlSafeStr as _, postgres::PgConnectOptions,
};
use sqlx_core::transaction::TransactionManager as _;
use tokio::sync::OnceCell;

pub use self::{lane::PostgresLane, options::PostgresOptions, unit::PostgresUnit};

/// What keeps sqlx's count of nested transactions, through which units begin and end.
type Manager = <sqlx::Postgres as Database>::TransactionManager;

/// The store on PostgreSQL 14 and later: the record of the keys and what handlers write are one transaction.
///
/// Handlers get a [`&mut PgConnection`](PgConnection) inside the open transaction. They may nest transactions of sqlx's
/// own (savepoints), and never end the one they are given. Where one does, by a COMMIT or ROLLBACK as text, the server
/// refuses the COMMIT, and every write that follows too: lanes that this store opens have `default_transaction_read_only`
/// on, and only idem's own BEGIN asks for more. A pooler in transaction mode takes no such setting; there the role has to be
/// read only by default (`ALTER ROLE orders SET default_transaction_read_only = on`), or the start is refused.
///
/// A commit counts when the server says so. `synchronous_commit` decides what that is worth; start-up warns where it is
/// weaker than `on`. A COMMIT whose wait for a standby an operator cancels answers as a success: the server says so in a
/// warning only, which sqlx does not hand on.
///
/// Whatever takes a `&mut PgConnection` of sqlx's can write here. SeaORM does so through an adapter of a few lines
/// (`examples/sea-orm`); its own transactions take a pool and cannot join one that they did not begin.
///
/// Cloning is cheap, and clones share the small pool for what is done outside of units of work.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let store = idem_sqlx::Postgres::connect("postgres://orders@db.internal/orders?sslmode=verify-full").await?;
/// store.migrate().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Postgres {
    shared: Arc<Shared>,
}

struct Shared {
    options: PostgresOptions,
    statements: PostgresStatements,
    framework: PgPool,
    /// One connection for cleanup, whose login may be another.
    cleaner: PgPool,
    /// What the server, or the pooler before it, takes at the start of a connection.
    lane_settings: LaneSettings,
    /// Whether the way to the server lets a session have settings of its own, which is looked at once.
    is_direct: OnceCell<bool>,
    /// Whether the role is read only by default, so that what runs outside of units has to say that it writes.
    is_read_only_by_role: AtomicBool,
    /// Whether prepared statements stay with the connection, which is looked at once.
    pooler: OnceCell<()>,
}

impl fmt::Debug for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Postgres").field(&self.shared.options).finish()
    }
}

impl Postgres {
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
        let connected = store.connect_with(&store.shared.options.connection).await;
        let connection = connected.map_err(|error| refused_login::<Self>(&error).unwrap_or(error))?;
        let _ = connection.close().await;
        Ok(store)
    }

    /// Settings to build a store from; nothing is connected before the first use.
    pub fn with_options(options: PgConnectOptions) -> PostgresOptions {
        PostgresOptions::new(options)
    }

    /// The schema that holds idem's tables.
    #[must_use]
    pub fn schema(&self) -> &SchemaName {
        &self.shared.options.settings.schema
    }

    /// Closes the connections that are used outside of units of work. Lanes are closed by their owners.
    ///
    /// # Cancel safety
    /// Cancel safe: what is not closed in good order is closed when the store is dropped.
    pub async fn disconnect(&self) {
        self.shared.framework.close().await;
        self.shared.cleaner.close().await;
    }

    fn from_options(options: PostgresOptions) -> Self {
        let statements = PostgresStatements::new(&options.settings.schema);
        let framework = options.pool(&options.connection, options.settings.connections);
        let cleaner = options.pool(options.cleanup.as_ref().unwrap_or(&options.connection), 1);
        let shared = Shared {
            options,
            statements,
            framework,
            cleaner,
            lane_settings: LaneSettings::default(),
            is_direct: OnceCell::new(),
            is_read_only_by_role: AtomicBool::new(false),
            pooler: OnceCell::new(),
        };
        Self { shared: Arc::new(shared) }
    }

    fn sql(&self) -> &PostgresStatements {
        &self.shared.statements
    }

    fn is_named(&self) -> bool {
        self.shared.options.settings.statements == Statements::Named
    }

    /// Opens a connection within the time for it.
    async fn connect_with(&self, options: &PgConnectOptions) -> Result<PgConnection, StoreError> {
        let connect = PgConnection::connect_with(options);
        match tokio::time::timeout(self.shared.options.settings.connect_timeout, connect).await {
            Ok(Ok(connection)) => Ok(connection),
            Ok(Err(source)) => Err(error::connecting(source)),
            Err(elapsed) => Err(StoreError::Unavailable { doing: "connecting", source: Box::new(elapsed) }),
        }
    }

    /// The same with the settings of a lane, as far as they are taken.
    async fn connect_lane(&self) -> Result<PgConnection, StoreError> {
        let (plain, known) = (&self.shared.options.connection, &self.shared.lane_settings);
        let settings = known.taken();
        match self.connect_with(&with_settings(plain, &settings)).await {
            Err(StoreError::Refused { .. }) if !settings.is_empty() => {}
            connected => return connected,
        }
        // PgBouncer refuses what it cannot keep apart by client, and a server what its system does not offer: which it is
        // shows when each is asked for alone.
        let (mut taken, mut refused) = (Vec::new(), Vec::new());
        for setting in settings {
            match self.connect_with(&with_settings(plain, &[setting])).await {
                Ok(alone) => {
                    let _ = alone.close().await;
                    taken.push(setting);
                }
                Err(error @ StoreError::Refused { .. }) => refused.push((setting.0, error)),
                Err(other) => return Err(other),
            }
        }
        let connected = self.connect_with(&with_settings(plain, &taken)).await?;
        // Only now is it known that nothing else was wrong.
        for (name, error) in refused {
            known.refused(name);
            tracing::warn!(setting = name, %error, "a setting of a lane's session is refused");
        }
        Ok(connected)
    }

    /// An old primary may be fenced by `default_transaction_read_only` alone, which a unit's READ WRITE would overrule. The
    /// default of a role or a database is none of those fences.
    async fn refuse_fenced(&self) -> Result<(), StoreError> {
        if self.is_read_only_default().await? && !self.shared.is_read_only_by_role.load(Ordering::Relaxed) {
            return Err(idem_schema::read_only("opening a lane"));
        }
        Ok(())
    }

    /// Whether sessions are read only by default; notes whether that is by the word of the role or the database.
    async fn is_read_only_default(&self) -> Result<bool, StoreError> {
        let look = sqlx::query(AssertSqlSafe(Arc::clone(&self.sql().read_only_default)));
        let rows = self.within("looking for a fence", self.once(&self.shared.framework, None, look)).await?;
        let row = rows.first().ok_or_else(|| idem_schema::unreadable("the server has no such setting"))?;
        let (is_read_only, source): (bool, &str) = (error::get(row, "read_only")?, error::get(row, "source")?);
        self.shared.is_read_only_by_role.store(is_read_only && is_by_role(source), Ordering::Relaxed);
        Ok(is_read_only)
    }

    /// Whether a session can have settings of its own on the way to this server: a lane that the store opens shows it.
    async fn is_direct(&self) -> Result<bool, StoreError> {
        let look = || async {
            let mut connection = self.connect_lane().await?;
            let facts = self.lane_facts(&mut connection).await?;
            let _ = connection.close().await;
            Ok(facts.fence == Fence::Session)
        };
        self.shared.is_direct.get_or_try_init(look).await.copied()
    }
}

/// Not even an empty text of options, which a pooler would refuse.
fn with_settings(plain: &PgConnectOptions, settings: &[(&str, &str)]) -> PgConnectOptions {
    if settings.is_empty() { plain.clone() } else { plain.clone().options(settings.iter().copied()) }
}

impl Store for Postgres {
    type Lane = PostgresLane;
    type Connection<'t> = &'t mut PgConnection;
    type Unit<'l> = PostgresUnit<'l>;

    fn capabilities(&self) -> StoreCapabilities {
        StoreCapabilities::server()
    }

    fn cleaner(self: &Arc<Self>) -> Box<dyn Cleaner> {
        Box::new(PostgresCleaner::new(Arc::clone(self)))
    }

    async fn open(&self) -> Result<PostgresLane, StoreError> {
        let mut connection = self.connect_lane().await?;
        self.refuse_fenced().await?;
        let facts = self.lane_facts(&mut connection).await?;
        facts.refuse_unfenced()?;
        Ok(PostgresLane::new(connection, facts))
    }

    async fn close(&self, lane: PostgresLane) {
        // A server that does not answer must not hold up a shutdown.
        let limit = self.shared.options.settings.connect_timeout;
        let _ = tokio::time::timeout(limit, lane.connection.close()).await;
    }

    async fn begin<'l>(
        &'l self,
        lane: &'l mut PostgresLane,
        options: UnitOptions,
    ) -> Result<PostgresUnit<'l>, StoreError> {
        if lane.is_spent {
            *lane = self.open().await?;
        }
        let text = begin_unit(UnitLimits {
            lock: options.busy_timeout,
            statement: options.busy_timeout,
            idle_in_transaction: options.idle_timeout,
        });
        let begin = Manager::begin(&mut lane.connection, Some(AssertSqlSafe(text).into_sql_str()));
        begin.await.map_err(error::beginning)?;
        Ok(PostgresUnit::new(self, lane, options))
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
