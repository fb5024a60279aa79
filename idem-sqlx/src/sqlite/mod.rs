//! The store on SQLite: one file, one writer, one process at a time doing the work.

mod append;
mod claim;
mod cleanup;
mod clock;
mod codes;
mod connections;
mod driver;
mod error;
mod inbox;
mod migrate;
mod options;
mod outbox;
#[cfg(feature = "failpoints")]
mod scratch;
mod seal;
mod session;
mod statements;
mod unit;
mod verify;

use std::{error::Error as StdError, fmt, path::Path, sync::Arc};

use idem_core::{
    ErrorClass, Store, StoreError,
    cleanup::Cleaner,
    outbox::Outbox,
    store::{Claim, Found, PlainConnection, StoreCapabilities, UnitOptions},
};
use idem_sql::{SqlBookkeeping, SqlOutbox};
use sqlx::{Connection as _, SqliteConnection};

#[cfg(feature = "failpoints")]
pub use self::scratch::SqliteScratch;
use self::{cleanup::SqliteCleaner, driver::Driver};
pub use self::{
    options::{SqliteOptions, Synchronous},
    outbox::SqliteOutbox,
    session::SqliteSession,
    unit::SqliteUnit,
};

/// The store on SQLite: idem's tables beside the application's own, in one file.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use idem_sqlx::{
///     SqliteStore,
///     idem_core::{DedupConsumer, Effects, Handler, HandlerError, Message, Tx},
/// };
///
/// struct Ledger;
///
/// impl Handler<SqliteStore> for Ledger {
///     async fn handle(&self, message: &Message, tx: &mut Tx<'_, SqliteStore>) -> Result<(), HandlerError> {
///         let body = message.payload().map(|payload| payload.to_vec());
///         sqlx::query("INSERT INTO purchases (body) VALUES (?)").bind(body).execute(tx.connection()).await?;
///         Ok(())
///     }
/// }
///
/// # let path = std::env::temp_dir().join(format!("idem-sqlx-doc-{}.db", std::process::id()));
/// let store = SqliteStore::open(&path).await?;
/// store.migrate().await?;
/// # use sqlx::Connection as _;
/// # let mut connection = sqlx::SqliteConnection::connect(&format!("sqlite://{}", path.display())).await?;
/// # sqlx::query("CREATE TABLE purchases (body BLOB)").execute(&mut connection).await?;
/// let consumer = DedupConsumer::builder(store, "ledger").handler(Ledger).effects(Effects::InTransaction).build()?;
///
/// let order = Message::new("12.50").with_header("idempotencykey", "order-1");
/// let first = consumer.process_one(order).await?;
/// let again = consumer.process_one(first.message).await?;
/// assert!(first.decision.is_processed() && again.decision.is_skipped());
/// # for end in ["", "-wal", "-shm"] { let _ = std::fs::remove_file(format!("{}{end}", path.display())); }
/// # Ok(())
/// # }
/// ```
///
/// # What to know
/// - **One writer.** A unit begins with `BEGIN IMMEDIATE`, so it holds SQLite's only write lock until it ends. There is
///   one lane, and `build()` refuses more. Units and [bookkeeping](idem_core::store::Bookkeeping) of one store take turns in the
///   order in which they ask; another store, process or tool that writes is waited for at most the busy timeout, and then
///   the unit is *held* and its messages are Busy.
/// - A handler writes through its transaction only. If it writes to the same file over a connection of its own, that
///   statement waits for the handler's own unit and fails.
/// - **A commit is on the disk** before a message is acknowledged, unless [`Synchronous::Normal`] was chosen.
/// - The file is in WAL mode, on a local file system: SQLite's locks do not work on network file systems.
/// - A statement that fails leaves SQLite's transaction as it was before the statement. A handler that goes on after an
///   error is therefore committed without that statement, where PostgreSQL would refuse.
/// - Expiry is by this process's clock, and there are no roles: every process that can open the file can change it.
pub struct SqliteStore {
    bookkeeping: SqlBookkeeping<Driver>,
}

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteStore").field("options", self.options()).finish_non_exhaustive()
    }
}

impl SqliteStore {
    /// The store in this file with the default [`SqliteOptions`]. A missing file is made; its tables are made by
    /// [`migrate`](Self::migrate).
    ///
    /// # Errors
    /// As for [`connect`](Self::connect).
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn open(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        Self::connect(SqliteOptions::new(path)).await
    }

    /// The store with these options. Puts the file into WAL mode, which is a property of the file.
    ///
    /// # Errors
    /// [`StoreError::Refused`] for a database in memory, a setting out of bounds, and a file that cannot be in WAL mode;
    /// [`StoreError::Unavailable`] where the file cannot be opened or made.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn connect(options: SqliteOptions) -> Result<Self, StoreError> {
        options.check()?;
        options.check_place()?;
        if options.create_if_missing {
            create_private(&options.path);
        }
        let driver = Driver::new(options);
        driver.connections.use_wal().await?;
        Ok(Self { bookkeeping: SqlBookkeeping::new(driver) })
    }

    /// The settings.
    #[must_use]
    pub fn options(&self) -> &SqliteOptions {
        &self.driver().options
    }

    fn driver(&self) -> &Arc<Driver> {
        self.bookkeeping.driver()
    }
}

impl PlainConnection for SqliteStore {
    type Plain = SqliteConnection;

    fn plain(unit: &SqliteUnit) -> &SqliteConnection {
        &unit.session.connection
    }

    fn plain_mut(unit: &mut SqliteUnit) -> &mut SqliteConnection {
        &mut unit.session.connection
    }
}

impl Store for SqliteStore {
    type Bookkeeping = SqlBookkeeping<Driver>;
    type Session = SqliteSession;
    type Connection<'t> = &'t mut SqliteConnection;
    type Unit = SqliteUnit;

    fn capabilities(&self) -> StoreCapabilities {
        StoreCapabilities::embedded().outbox(true).results(true).sets_aside(true)
    }

    fn bookkeeping(&self) -> &SqlBookkeeping<Driver> {
        &self.bookkeeping
    }

    fn cleaner(self: &Arc<Self>) -> Box<dyn Cleaner> {
        Box::new(SqliteCleaner(Arc::clone(self.bookkeeping.driver())))
    }

    fn outbox(self: &Arc<Self>) -> Option<Arc<dyn Outbox>> {
        Some(Arc::new(SqlOutbox::new(Arc::clone(self.bookkeeping.driver()))))
    }

    async fn open(&self) -> Result<Self::Session, StoreError> {
        self.open_session().await
    }

    async fn close(&self, session: Self::Session) {
        // Nothing is open on it, so a failure to close in good order loses nothing.
        let _ = session.connection.close().await;
    }

    /// Takes the write lock of the file where it is free. Where it is not, the claim waits for it, at most
    /// [`UnitOptions::busy_timeout`], and then answers [`ClaimError::Held`](idem_core::store::ClaimError::Held).
    async fn begin(&self, session: Self::Session, options: UnitOptions) -> Result<Self::Unit, StoreError> {
        SqliteUnit::begin(Arc::clone(self.driver()), session, options).await
    }

    /// Takes no lock: it reads beside a writer.
    async fn look_up(
        &self,
        mut session: Self::Session,
        _: UnitOptions,
        claims: &[Claim],
    ) -> Result<(Option<Self::Session>, Vec<Option<Found>>), StoreError> {
        let found = claim::look_up(&mut session.connection, &self.driver().unit_statements, claims).await?;
        Ok((Some(session), found))
    }

    fn reborrow<'a, 't: 'a>(connection: &'a mut Self::Connection<'t>) -> Self::Connection<'a> {
        connection
    }

    fn classify(error: &(dyn StdError + 'static)) -> Option<ErrorClass> {
        error::classify(error)
    }

    fn describe(error: &(dyn StdError + 'static)) -> Option<String> {
        error::describe(error)
    }

    fn code(error: &(dyn StdError + 'static)) -> Option<String> {
        error::result_code(error)
    }
}

/// How many links to links the system follows.
const LINKS_MAX: usize = 40;

/// Makes the file, where there is none, so that only its owner reads it: it holds the payloads of dead letters, and SQLite
/// would go by the umask. The files beside it get the rights of this one. SQLite reports a file that cannot be made here.
fn create_private(path: &std::path::Path) {
    // SQLite follows a link to a file that is not there yet, and a call that creates a new one does not.
    let mut path = path.to_owned();
    for _ in 0..LINKS_MAX {
        let Ok(target) = std::fs::read_link(&path) else { break };
        path.pop();
        path.push(target);
    }
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let _ = options.open(path);
}
