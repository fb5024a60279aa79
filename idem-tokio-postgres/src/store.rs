//! The store itself.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use idem_core::{Cleaner, ErrorClass, Store, StoreCapabilities, StoreError, UnitOptions};
use idem_schema::{
    Fence, LaneSettings, PostgresCleaner, PostgresStatements, SchemaName, UnitLimits, begin_unit, is_by_role,
    refused_login,
};
use tokio::sync::OnceCell;
use tokio_postgres::config::Config;
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::{
    PostgresConnection, PostgresLane, PostgresOptions, PostgresUnit, Statements,
    error::{self, get},
    pool::Pool,
    session::Session,
    tls,
};

/// The store on PostgreSQL 14 and later: the record of the keys and what handlers write are one transaction.
///
/// Handlers get a [`PostgresConnection`] inside the open transaction, and never end it. Where one does, by a COMMIT or
/// ROLLBACK as text, the server refuses the COMMIT, and every write that follows too: lanes that this store opens have
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
/// let store = idem_tokio_postgres::Postgres::connect(url).await?;
/// store.migrate().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Postgres {
    pub(crate) shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) options: PostgresOptions,
    pub(crate) statements: PostgresStatements,
    pub(crate) framework: Pool,
    /// One connection for cleanup, whose login may be another.
    pub(crate) cleaner: Pool,
    tls: MakeRustlsConnect,
    /// What the server, or the pooler before it, takes at the start of a connection.
    lane_settings: LaneSettings,
    /// Whether the way to the server lets a session have settings of its own, which is looked at once.
    is_direct: OnceCell<bool>,
    /// Whether the role is read only by default, so that what runs outside of units has to say that it writes.
    pub(crate) is_read_only_by_role: AtomicBool,
    /// Whether prepared statements stay with the connection, which is looked at once.
    pub(crate) pooler: OnceCell<()>,
}

impl fmt::Debug for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Postgres").field(&self.shared.options).finish()
    }
}

impl Postgres {
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
        let connected = store.connect_with(&store.shared.options.connection).await;
        let session = connected.map_err(|error| refused_login::<Self>(&error).unwrap_or(error))?;
        session.close(store.shared.options.settings.connect_timeout).await;
        Ok(store)
    }

    /// Settings to build a store from; nothing is connected before the first use.
    pub fn with_options(connection: Config) -> PostgresOptions {
        PostgresOptions::new(connection)
    }

    /// The schema that holds idem's tables.
    #[must_use]
    pub fn schema(&self) -> &SchemaName {
        &self.shared.options.settings.schema
    }

    /// Closes the connections that are used outside of units of work and idle now. Lanes are closed by their owners.
    ///
    /// # Cancel safety
    /// Cancel safe: what is not closed in good order is closed when the store is dropped.
    pub async fn disconnect(&self) {
        for pool in [&self.shared.framework, &self.shared.cleaner] {
            self.close_idle(pool).await;
        }
    }

    pub(crate) async fn close_idle(&self, pool: &Pool) {
        for session in pool.take_idle() {
            session.close(self.shared.options.settings.connect_timeout).await;
        }
    }

    pub(crate) fn from_options(options: PostgresOptions) -> Result<Self, StoreError> {
        let statements = PostgresStatements::new(&options.settings.schema);
        let framework = Pool::new(options.connection.clone(), options.settings.connections as usize);
        let cleaner = Pool::new(options.cleanup.clone().unwrap_or_else(|| options.connection.clone()), 1);
        let tls = tls::connector(options.tls.clone())?;
        let shared = Shared {
            options,
            statements,
            framework,
            cleaner,
            tls,
            lane_settings: LaneSettings::default(),
            is_direct: OnceCell::new(),
            is_read_only_by_role: AtomicBool::new(false),
            pooler: OnceCell::new(),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    pub(crate) fn sql(&self) -> &PostgresStatements {
        &self.shared.statements
    }

    pub(crate) fn statements(&self) -> Statements {
        self.shared.options.settings.statements
    }

    /// Opens a connection within the time for it.
    pub(crate) async fn connect_with(&self, config: &Config) -> Result<Session, StoreError> {
        let options = &self.shared.options;
        Session::connect(config, self.shared.tls.clone(), options.settings.connect_timeout, options.statements_max)
            .await
    }

    /// The same with the settings of a lane, as far as they are taken.
    async fn connect_lane(&self) -> Result<Session, StoreError> {
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
                    alone.close(self.shared.options.settings.connect_timeout).await;
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
    pub(crate) async fn is_read_only_default(&self) -> Result<bool, StoreError> {
        let rows = self.rows("looking for a fence", &self.sql().read_only_default, &[]).await?;
        let row = rows.first().ok_or_else(|| idem_schema::unreadable("the server has no such setting"))?;
        let (is_read_only, source): (bool, &str) = (get(row, "read_only")?, get(row, "source")?);
        self.shared.is_read_only_by_role.store(is_read_only && is_by_role(source), Ordering::Relaxed);
        Ok(is_read_only)
    }

    /// Whether a session can have settings of its own on the way to this server: a lane that the store opens shows it.
    pub(crate) async fn is_direct(&self) -> Result<bool, StoreError> {
        let look = || async {
            let session = self.connect_lane().await?;
            let facts = self.lane_facts(&session).await?;
            session.close(self.shared.options.settings.connect_timeout).await;
            Ok(facts.fence == Fence::Session)
        };
        self.shared.is_direct.get_or_try_init(look).await.copied()
    }
}

fn with_settings(plain: &Config, settings: &[(&str, &str)]) -> Config {
    let mut config = plain.clone();
    if !settings.is_empty() {
        let settings = settings.iter().map(|(name, value)| format!(" -c {name}={value}"));
        let text = plain.get_options().unwrap_or_default().to_owned();
        config.options(settings.fold(text, |text, setting| text + &setting));
    }
    config
}

impl Store for Postgres {
    type Lane = PostgresLane;
    type Connection<'t> = PostgresConnection<'t>;
    type Unit<'l> = PostgresUnit<'l>;

    fn capabilities(&self) -> StoreCapabilities {
        let mut capabilities = StoreCapabilities::server();
        capabilities.concurrent_handlers = true;
        capabilities
    }

    fn cleaner(self: &Arc<Self>) -> Box<dyn Cleaner> {
        Box::new(PostgresCleaner::new(Arc::clone(self)))
    }

    async fn open(&self) -> Result<PostgresLane, StoreError> {
        let session = self.connect_lane().await?;
        self.refuse_fenced().await?;
        let facts = self.lane_facts(&session).await?;
        facts.refuse_unfenced()?;
        Ok(PostgresLane::new(session, facts))
    }

    async fn close(&self, lane: PostgresLane) {
        // A server that does not answer must not hold up a shutdown.
        lane.session.close(self.shared.options.settings.connect_timeout).await;
    }

    async fn begin<'l>(
        &'l self,
        lane: &'l mut PostgresLane,
        options: UnitOptions,
    ) -> Result<PostgresUnit<'l>, StoreError> {
        if lane.is_spent || lane.session.client.is_closed() {
            *lane = self.open().await?;
        }
        let text = begin_unit(UnitLimits {
            lock: options.busy_timeout,
            statement: options.busy_timeout,
            idle_in_transaction: options.idle_timeout,
        });
        // On the wire with what follows; its answer is read with the claim's.
        let begun = lane.session.client.simple_query_raw(&text).await.map_err(error::beginning)?;
        Ok(PostgresUnit::new(self, lane, options, begun))
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
