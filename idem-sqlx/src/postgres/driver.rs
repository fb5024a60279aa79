//! Runs idem's own statements outside of units of work, on the framework's own connections.

use std::{error::Error, fmt, future::Future, sync::Arc, time::Duration};

use futures_util::{FutureExt as _, future::BoxFuture};
use idem_core::StoreError;
use idem_sql::{
    Connecting, Fence, KnownEvents, Parameter, Pooler, PostgresDriver, PostgresStatements, RoleDefault, Row,
    SchemaName, SeenPids, SessionSettings, Value, refuse_fenced,
};
use sqlx::{
    AssertSqlSafe, Column as _, Connection as _, PgConnection, PgPool, Postgres as Db, Row as _, TypeInfo as _,
    pool::PoolConnection,
    postgres::{PgArguments, PgConnectOptions, PgRow},
    query::Query,
};
use tokio::sync::OnceCell;

use super::{PostgresOptions, PostgresSession, error, framework::Framework};

/// A statement with its parameters, built anew for each try.
pub(super) type Statement<'q> = Query<'q, Db, PgArguments>;

/// sqlx as a driver of PostgreSQL: the settings, the connections that are used outside of units of work, and the facts that
/// were learnt about the server.
pub struct Driver {
    pub(super) options: PostgresOptions,
    pub(super) statements: PostgresStatements,
    pub(super) framework: Framework,
    /// One connection for cleanup, whose login may be another.
    pub(super) cleaner: PgPool,
    /// The settings that the server, or the pooler before it, takes at the start of a connection.
    session_settings: SessionSettings,
    /// Whether the way to the server lets a session have settings of its own, which is looked at once.
    is_direct: OnceCell<bool>,
    role_default: RoleDefault,
    /// Whether prepared statements stay with the connection, which is looked at once.
    pub(super) pooler: OnceCell<()>,
    pub(super) known_events: KnownEvents,
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Driver").field(&self.options).finish()
    }
}

/// A connection of a pool that goes back only when its work is done: the connection of a dropped call is closed (A15).
struct Borrowed(PoolConnection<Db>, bool);

impl Drop for Borrowed {
    fn drop(&mut self) {
        if !self.1 {
            self.0.close_on_drop();
        }
    }
}

impl PostgresDriver for Driver {
    fn statements(&self) -> &PostgresStatements {
        &self.statements
    }

    fn schema(&self) -> &SchemaName {
        &self.options.settings.schema
    }

    async fn run_once(
        &self,
        doing: &'static str,
        text: &Arc<str>,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        let statement = bound(sqlx::query(AssertSqlSafe(Arc::clone(text))), parameters);
        read(&self.within(doing, self.once(None, statement)).await?)
    }

    async fn clean_once(
        &self,
        begin: &str,
        limit: Duration,
        text: &Arc<str>,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        let statement = bound(sqlx::query(AssertSqlSafe(Arc::clone(text))), parameters);
        let limit = limit + self.options.settings.answer_timeout;
        read(&within(limit, "cleaning up", self.once(Some(begin), statement)).await?)
    }

    async fn rest(&self) {
        if let Some(connection) = self.cleaner.try_acquire() {
            // A server that does not answer must not hold up the next cycle.
            let _ = tokio::time::timeout(self.options.settings.connect_timeout, connection.close()).await;
        }
    }

    fn sqlstate(error: &(dyn Error + 'static)) -> Option<String> {
        Some(error.downcast_ref::<sqlx::Error>()?.as_database_error()?.code()?.into_owned())
    }

    async fn seen_pids(&self) -> Result<SeenPids, StoreError> {
        self.look_through_two().await
    }

    async fn refuse_forgetful_pooler(&self) -> Result<(), StoreError> {
        self.look_for_pooler_once().await
    }

    async fn refuse_unfenced(&self) -> Result<(), StoreError> {
        let session = self.open_session().await?;
        self.close_session(session).await;
        Ok(())
    }

    fn role_default(&self) -> &RoleDefault {
        &self.role_default
    }

    fn is_plaintext_abroad(&self) -> bool {
        self.options.is_plaintext_abroad()
    }
}

impl Driver {
    pub(super) fn new(options: PostgresOptions) -> Self {
        let framework = Framework::new(&options);
        let cleanup = options.cleanup.as_ref().unwrap_or(&options.connection).clone();
        let cleaner = options.pool_options(1).connect_lazy_with(cleanup);
        Self {
            statements: PostgresStatements::new(&options.settings.schema),
            options,
            framework,
            cleaner,
            session_settings: SessionSettings::default(),
            is_direct: OnceCell::new(),
            role_default: RoleDefault::default(),
            pooler: OnceCell::new(),
            known_events: KnownEvents::default(),
        }
    }

    pub(super) fn is_named(&self) -> bool {
        self.options.settings.pooler == Pooler::None
    }

    /// Opens a connection within the time for it.
    pub(super) async fn connect_with(&self, options: &PgConnectOptions) -> Result<PgConnection, StoreError> {
        // It is rare and its future large: without a box each unit's would be as large.
        let connect = Box::pin(PgConnection::connect_with(options));
        match tokio::time::timeout(self.options.settings.connect_timeout, connect).await {
            Ok(Ok(connection)) => Ok(connection),
            Ok(Err(source)) => Err(error::connecting(source)),
            Err(elapsed) => Err(StoreError::Unavailable { doing: "connecting", source: Box::new(elapsed) }),
        }
    }

    /// The same with the settings of a session, as far as they are taken.
    pub(super) async fn connect_lane(&self) -> Result<PgConnection, StoreError> {
        idem_sql::connect_lane(&Lanes(self), &self.session_settings).await
    }

    pub(super) async fn open_session(&self) -> Result<PostgresSession, StoreError> {
        let mut connection = self.connect_lane().await?;
        refuse_fenced(self).await?;
        let facts = self.session_facts(&mut connection).await?;
        facts.refuse_unfenced()?;
        self.within("opening a session", PostgresSession::prepare(connection, facts, &self.statements)).await
    }

    pub(super) async fn close_session(&self, session: PostgresSession) {
        // A server that does not answer must not hold up a shutdown.
        let _ = tokio::time::timeout(self.options.settings.connect_timeout, session.connection.close()).await;
    }

    /// Whether a session can have settings of its own on the way to this server: a session that the store opens shows it.
    pub(super) async fn is_direct(&self) -> Result<bool, StoreError> {
        let look = || async {
            let mut connection = self.connect_lane().await?;
            let facts = self.session_facts(&mut connection).await?;
            let _ = connection.close().await;
            Ok(facts.fence == Fence::Session)
        };
        self.is_direct.get_or_try_init(look).await.copied()
    }
}

/// The connections are private to the lanes.
struct Lanes<'d>(&'d Driver);

impl Connecting for Lanes<'_> {
    type Connection = PgConnection;

    async fn connect(&self, settings: &[(&'static str, &'static str)]) -> Result<PgConnection, StoreError> {
        self.0.connect_with(&with_settings(&self.0.options.connection, settings)).await
    }

    async fn close(&self, connection: PgConnection) {
        // The server ends it anyhow.
        let _ = connection.close().await;
    }
}

/// Not even an empty text of options, which a pooler would refuse.
fn with_settings(plain: &PgConnectOptions, settings: &[(&str, &str)]) -> PgConnectOptions {
    if settings.is_empty() { plain.clone() } else { plain.clone().options(settings.iter().copied()) }
}

impl Driver {
    /// Waits for the server at most as long as was set.
    pub(super) fn within<T>(
        &self,
        doing: &'static str,
        call: impl Future<Output = Result<T, sqlx::Error>>,
    ) -> impl Future<Output = Result<T, StoreError>> {
        within(self.options.settings.answer_timeout, doing, call)
    }

    /// Runs one statement; one of cleanup in a transaction that `cleaning` begins. It is rare and its future large: without
    /// a box each unit's would be as large.
    pub(super) fn once<'s>(
        &'s self,
        cleaning: Option<&'s str>,
        statement: Statement<'s>,
    ) -> BoxFuture<'s, Result<Vec<PgRow>, sqlx::Error>> {
        async move {
            let (acquired, begin) = match cleaning {
                Some(begin) => (self.cleaner.acquire().await?, Some(begin.to_owned())),
                None => (self.framework.acquire().await?, self.framework.begin(&self.role_default)),
            };
            let mut borrowed = Borrowed(acquired, false);
            let connection = &mut *borrowed.0;
            let rows = if let Some(begin) = begin {
                // sqlx prepares and runs in two steps, between which a pooler may change the server connection unless a
                // transaction holds it. It is no transaction of sqlx's, so nothing is left to a destructor.
                sqlx::raw_sql(AssertSqlSafe(begin)).execute(&mut *connection).await?;
                let rows = statement.persistent(false).fetch_all(&mut *connection).await;
                let end = if rows.is_ok() { "COMMIT" } else { "ROLLBACK" };
                sqlx::raw_sql(end).execute(&mut *connection).await?;
                rows
            } else {
                statement.fetch_all(&mut *connection).await
            };
            // After an error of the server's the connection is sound; after any other it is closed. A stale plan would fail
            // again on it.
            borrowed.1 = match &rows {
                Ok(_) => true,
                Err(sqlx::Error::Database(error)) => error.code().as_deref() != Some("0A000"),
                Err(_) => false,
            };
            rows
        }
        .boxed()
    }
}

fn within<T>(
    limit: Duration,
    doing: &'static str,
    call: impl Future<Output = Result<T, sqlx::Error>>,
) -> impl Future<Output = Result<T, StoreError>> {
    tokio::time::timeout(limit, call).map(move |answer| match answer {
        Ok(answer) => answer.map_err(|source| error::store(doing, source)),
        Err(elapsed) => Err(StoreError::Unavailable { doing, source: Box::new(elapsed) }),
    })
}

pub(super) fn bound<'q>(statement: Statement<'q>, parameters: &[Parameter<'q>]) -> Statement<'q> {
    parameters.iter().fold(statement, |statement, parameter| match *parameter {
        Parameter::Bool(yes) => statement.bind(yes),
        Parameter::Int4(number) => statement.bind(number),
        Parameter::Int8(number) => statement.bind(number),
        Parameter::Text(text) => statement.bind(text),
        Parameter::Bytes(bytes) => statement.bind(bytes),
        Parameter::Uuid(id) => statement.bind(id),
        Parameter::Int8s(numbers) => statement.bind(numbers),
        Parameter::Texts(texts) => statement.bind(texts),
        Parameter::OptionalTexts(texts) => statement.bind(texts),
        Parameter::OptionalBytes(values) => statement.bind(values),
    })
}

/// Rows of this driver as those of any.
pub(super) fn read(rows: &[PgRow]) -> Result<Vec<Row>, StoreError> {
    decode(rows).map_err(idem_sql::unreadable)
}

pub(super) fn decode(rows: &[PgRow]) -> Result<Vec<Row>, sqlx::Error> {
    let Some(first) = rows.first() else { return Ok(Vec::new()) };
    let columns: Arc<[String]> = first.columns().iter().map(|column| column.name().to_owned()).collect();
    let read = |row: &PgRow| (0..columns.len()).map(|index| value(row, index)).collect::<Result<_, _>>();
    rows.iter().map(|row| Ok(Row::new(Arc::clone(&columns), read(row)?))).collect()
}

fn value(row: &PgRow, index: usize) -> Result<Value, sqlx::Error> {
    let value = match row.try_column(index)?.type_info().name() {
        "BOOL" => row.try_get::<Option<_>, _>(index)?.map(Value::Bool),
        "INT4" => row.try_get::<Option<_>, _>(index)?.map(Value::Int4),
        "INT8" => row.try_get::<Option<_>, _>(index)?.map(Value::Int8),
        "TEXT" => row.try_get::<Option<_>, _>(index)?.map(Value::Text),
        "BYTEA" => row.try_get::<Option<_>, _>(index)?.map(Value::Bytes),
        "UUID" => row.try_get::<Option<_>, _>(index)?.map(Value::Uuid),
        "TEXT[]" => row.try_get::<Option<_>, _>(index)?.map(Value::Texts),
        _ => Some(Value::Other),
    };
    Ok(value.unwrap_or(Value::Null))
}
