//! Runs idem's own statements outside of units of work, on the framework's own connections.

use std::{error::Error as StdError, fmt, future::Future, sync::Arc, time::Duration};

use futures_util::join;
use idem_core::StoreError;
use idem_sql::{
    Connecting, Fence, KnownEvents, PostgresDriver, PostgresStatements, RoleDefault, Row, SchemaName, SeenPids,
    SessionSettings, StatementLimit, Value, refuse_fenced,
};
use tokio::sync::OnceCell;
use tokio_postgres::{Client, Error, SimpleQueryMessage, config::Config, error::Severity, types::Type};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::{
    Pooler, PostgresOptions, PostgresSession, error,
    link::{Link, Parameter, Parameters},
    pool::Pool,
    tls,
};

/// tokio-postgres as a driver of PostgreSQL: the settings, the connections that are used outside of units of work, and the
/// facts that were learnt about the server.
pub struct Driver {
    pub(crate) options: PostgresOptions,
    pub(crate) statements: PostgresStatements,
    pub(crate) framework: Pool,
    /// One connection for cleanup, whose login may be another.
    pub(crate) cleaner: Pool,
    tls: MakeRustlsConnect,
    /// The settings that the server, or the pooler before it, takes at the start of a connection.
    session_settings: SessionSettings,
    statement_limit: StatementLimit,
    /// Whether the way to the server lets a session have settings of its own, which is looked at once.
    is_direct: OnceCell<bool>,
    role_default: RoleDefault,
    /// Whether prepared statements stay with the connection, which is looked at once.
    pub(crate) pooler: OnceCell<()>,
    pub(crate) known_events: KnownEvents,
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Driver").field(&self.options).finish()
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
        parameters: &[idem_sql::Parameter<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        let parameters: Vec<Parameter<'_>> = parameters.iter().map(typed).collect();
        read(&self.rows(doing, text, &parameters).await?)
    }

    async fn clean_once(
        &self,
        begin: &str,
        limit: Duration,
        text: &Arc<str>,
        parameters: &[idem_sql::Parameter<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        let parameters: Vec<Parameter<'_>> = parameters.iter().map(typed).collect();
        let limit = limit + self.options.settings.answer_timeout;
        let call = self.once(&self.cleaner, "cleaning up", Some(begin), text, &parameters);
        read(&within(limit, "cleaning up", call).await?)
    }

    async fn rest(&self) {
        self.close_idle(&self.cleaner).await;
    }

    fn sqlstate(error: &(dyn StdError + 'static)) -> Option<String> {
        Some(error.downcast_ref::<Error>()?.code()?.code().to_owned())
    }

    async fn seen_pids(&self) -> Result<SeenPids, StoreError> {
        self.look_through_two().await
    }

    async fn refuse_forgetful_pooler(&self) -> Result<(), StoreError> {
        self.look_for_pooler_once().await
    }

    async fn refuse_unfenced(&self) -> Result<(), StoreError> {
        self.open_session().await?.link.close(self.options.settings.connect_timeout).await;
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
    pub(crate) fn new(options: PostgresOptions) -> Result<Self, StoreError> {
        let cleanup = options.cleanup.clone().unwrap_or_else(|| options.connection.clone());
        Ok(Self {
            statements: PostgresStatements::new(&options.settings.schema),
            framework: Pool::new(options.connection.clone(), options.settings.connections as usize),
            cleaner: Pool::new(cleanup, 1),
            tls: tls::connector(options.tls.clone())?,
            statement_limit: StatementLimit::new(options.settings.answer_timeout, options.settings.pooler),
            options,
            session_settings: SessionSettings::default(),
            is_direct: OnceCell::new(),
            role_default: RoleDefault::default(),
            pooler: OnceCell::new(),
            known_events: KnownEvents::default(),
        })
    }

    pub(crate) async fn close_idle(&self, pool: &Pool) {
        for link in pool.take_idle() {
            link.close(self.options.settings.connect_timeout).await;
        }
    }

    pub(crate) fn naming(&self) -> Pooler {
        self.options.settings.pooler
    }

    /// Opens a connection within the time for it.
    pub(crate) async fn connect_with(&self, config: &Config) -> Result<Link, StoreError> {
        let options = &self.options;
        let connect = Link::connect(config, self.tls.clone(), options.settings.connect_timeout, options.statements_max);
        // It is rare and its future large: without a box each unit's would be as large.
        Box::pin(connect).await
    }

    /// The same for statements outside of units, with their limit where a session can have it.
    async fn connect_limited(&self, plain: &Config) -> Result<Link, StoreError> {
        let limit = &self.statement_limit;
        let Some((name, value)) = limit.setting() else { return self.connect_with(plain).await };
        let link = match self.connect_with(&with_settings(plain, &[(name, value.as_str())])).await {
            Err(StoreError::Refused { .. }) => {
                // It may have been something else, and then it is refused again.
                let link = self.connect_with(plain).await?;
                limit.refused();
                return Ok(link);
            }
            connected => connected?,
        };
        if let Some(question) = limit.question() {
            let answer = link.client.simple_query(&question).await;
            let answer = answer.map_err(|source| error::store("connecting", source))?;
            let has = |message: &SimpleQueryMessage| matches!(message, SimpleQueryMessage::Row(row) if row.get(0) == Some("t"));
            if !answer.iter().any(has) {
                limit.refused();
            }
        }
        Ok(link)
    }

    /// The same with the settings of a session, as far as they are taken.
    async fn connect_lane(&self) -> Result<Link, StoreError> {
        idem_sql::connect_lane(&Lanes(self), &self.session_settings).await
    }

    pub(crate) async fn open_session(&self) -> Result<PostgresSession, StoreError> {
        let link = self.connect_lane().await?;
        refuse_fenced(self).await?;
        let facts = self.session_facts(&link).await?;
        facts.refuse_unfenced()?;
        Ok(PostgresSession::new(link, facts))
    }

    /// Whether a session can have settings of its own on the way to this server: a session that the store opens shows it.
    pub(crate) async fn is_direct(&self) -> Result<bool, StoreError> {
        let look = || async {
            let link = self.connect_lane().await?;
            let facts = self.session_facts(&link).await?;
            link.close(self.options.settings.connect_timeout).await;
            Ok(facts.fence == Fence::Session)
        };
        self.is_direct.get_or_try_init(look).await.copied()
    }
}

/// The connections are private to the lanes.
struct Lanes<'d>(&'d Driver);

impl Connecting for Lanes<'_> {
    type Connection = Link;

    async fn connect(&self, settings: &[(&'static str, &'static str)]) -> Result<Link, StoreError> {
        self.0.connect_with(&with_settings(&self.0.options.connection, settings)).await
    }

    async fn close(&self, connection: Link) {
        connection.close(self.0.options.settings.connect_timeout).await;
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

impl Driver {
    /// Waits for the server at most as long as was set.
    pub(crate) async fn within<T>(
        &self,
        doing: &'static str,
        call: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, StoreError> {
        match tokio::time::timeout(self.options.settings.answer_timeout, call).await {
            Ok(answer) => answer.map_err(|source| error::store(doing, source)),
            Err(elapsed) => Err(StoreError::Unavailable { doing, source: Box::new(elapsed) }),
        }
    }

    /// Runs one statement in a transaction of its own and answers its rows.
    pub(crate) async fn rows(
        &self,
        doing: &'static str,
        text: &str,
        parameters: &Parameters<'_>,
    ) -> Result<Vec<tokio_postgres::Row>, StoreError> {
        // It is rare and its future large, as above.
        let call = Box::pin(self.once(&self.framework, doing, None, text, parameters));
        within(self.options.settings.answer_timeout, doing, call).await
    }

    /// Runs one statement; one of cleanup in a transaction that `cleaning` begins.
    async fn once(
        &self,
        pool: &Pool,
        doing: &'static str,
        cleaning: Option<&str>,
        text: &str,
        parameters: &Parameters<'_>,
    ) -> Result<Vec<tokio_postgres::Row>, StoreError> {
        let (_permit, idle) = pool.turn().await;
        let link = match idle {
            Some(link) => link,
            None if cleaning.is_some() => self.connect_with(&pool.config).await?,
            None => self.connect_limited(&pool.config).await?,
        };
        let begin = match cleaning {
            Some(begin) => Some(begin.to_owned()),
            None => self.statement_limit.begin(&self.role_default),
        };
        let rows = run(&link.client, begin.as_deref(), text, parameters).await;
        // After an error of the server's the connection is sound, unless that ended it; after any other it is closed.
        let is_sound = match &rows {
            Ok(_) => true,
            Err(error) => error.as_db_error().is_some_and(|report| report.parsed_severity() == Some(Severity::Error)),
        };
        if is_sound {
            pool.keep(link);
        }
        rows.map_err(|source| error::store(doing, source))
    }
}

async fn run(
    client: &Client,
    begin: Option<&str>,
    text: &str,
    parameters: &Parameters<'_>,
) -> Result<Vec<tokio_postgres::Row>, Error> {
    // Nothing is prepared: one round trip, and the pooler that there may be gives it to one server connection.
    let Some(begin) = begin else { return client.query_typed(text, parameters).await };
    // All is on its way before any answer is waited for. Where the statement fails, the server takes the COMMIT for a ROLLBACK;
    // it refuses the BEGIN only where it takes no writes.
    let (began, rows, ended) =
        join!(client.batch_execute(begin), client.query_typed(text, parameters), client.batch_execute("COMMIT"));
    began?;
    let rows = rows?;
    ended?;
    Ok(rows)
}

async fn within<T>(
    limit: Duration,
    doing: &'static str,
    call: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    match tokio::time::timeout(limit, call).await {
        Ok(answer) => answer,
        Err(elapsed) => Err(StoreError::Unavailable { doing, source: Box::new(elapsed) }),
    }
}

pub(crate) fn typed<'p>(parameter: &'p idem_sql::Parameter<'_>) -> Parameter<'p> {
    match parameter {
        idem_sql::Parameter::Bool(yes) => (yes, Type::BOOL),
        idem_sql::Parameter::Int4(number) => (number, Type::INT4),
        idem_sql::Parameter::Int8(number) => (number, Type::INT8),
        idem_sql::Parameter::Text(text) => (text, Type::TEXT),
        idem_sql::Parameter::Bytes(bytes) => (bytes, Type::BYTEA),
        idem_sql::Parameter::Uuid(id) => (id, Type::UUID),
        idem_sql::Parameter::Int8s(numbers) => (numbers, Type::INT8_ARRAY),
        idem_sql::Parameter::Texts(texts) => (texts, Type::TEXT_ARRAY),
        idem_sql::Parameter::OptionalTexts(texts) => (texts, Type::TEXT_ARRAY),
        idem_sql::Parameter::OptionalBytes(values) => (values, Type::BYTEA_ARRAY),
    }
}

/// Rows of this driver as those of any.
pub(crate) fn read(rows: &[tokio_postgres::Row]) -> Result<Vec<Row>, StoreError> {
    decode(rows).map_err(idem_sql::unreadable)
}

pub(crate) fn decode(rows: &[tokio_postgres::Row]) -> Result<Vec<Row>, Error> {
    let Some(first) = rows.first() else { return Ok(Vec::new()) };
    let columns: Arc<[String]> = first.columns().iter().map(|column| column.name().to_owned()).collect();
    let read = |row| (0..columns.len()).map(|index| value(row, index)).collect::<Result<_, _>>();
    rows.iter().map(|row| Ok(Row::new(Arc::clone(&columns), read(row)?))).collect()
}

fn value(row: &tokio_postgres::Row, index: usize) -> Result<Value, Error> {
    let value = match *row.columns()[index].type_() {
        Type::BOOL => row.try_get::<_, Option<_>>(index)?.map(Value::Bool),
        Type::INT4 => row.try_get::<_, Option<_>>(index)?.map(Value::Int4),
        Type::INT8 => row.try_get::<_, Option<_>>(index)?.map(Value::Int8),
        Type::TEXT => row.try_get::<_, Option<_>>(index)?.map(Value::Text),
        Type::BYTEA => row.try_get::<_, Option<_>>(index)?.map(Value::Bytes),
        Type::UUID => row.try_get::<_, Option<_>>(index)?.map(Value::Uuid),
        Type::TEXT_ARRAY => row.try_get::<_, Option<_>>(index)?.map(Value::Texts),
        _ => Some(Value::Other),
    };
    Ok(value.unwrap_or(Value::Null))
}
