//! Runs idem's own statements outside of units of work, on the framework's own connections.

use std::{
    error::Error as StdError,
    future::Future,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use idem_core::{Store as _, StoreError};
use idem_schema::{PostgresDriver, PostgresStatements, Row, SchemaName, SeenPids, Value, begin_books};
use tokio_postgres::{Client, Error, error::Severity, types::Type};

use crate::{
    Postgres, error,
    pool::Pool,
    session::{Parameter, Parameters},
};

idem_schema::postgres_bookkeeping!(Postgres);

impl PostgresDriver for Postgres {
    fn statements(&self) -> &PostgresStatements {
        self.sql()
    }

    fn schema(&self) -> &SchemaName {
        Self::schema(self)
    }

    async fn run_once(
        &self,
        doing: &'static str,
        text: &Arc<str>,
        parameters: &[idem_schema::Parameter<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        let parameters: Vec<Parameter<'_>> = parameters.iter().map(typed).collect();
        read(&self.rows(doing, text, &parameters).await?)
    }

    async fn clean_once(
        &self,
        begin: &str,
        limit: Duration,
        text: &Arc<str>,
        parameters: &[idem_schema::Parameter<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        let parameters: Vec<Parameter<'_>> = parameters.iter().map(typed).collect();
        let limit = limit + self.shared.options.settings.answer_timeout;
        let call = self.once(&self.shared.cleaner, "cleaning up", Some(begin), text, &parameters);
        read(&within(limit, "cleaning up", call).await?)
    }

    async fn rest(&self) {
        self.close_idle(&self.shared.cleaner).await;
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
        let lane = self.open().await?;
        self.close(lane).await;
        Ok(())
    }

    async fn is_read_only_by_role(&self) -> Result<bool, StoreError> {
        self.is_read_only_default().await?;
        Ok(self.shared.is_read_only_by_role.load(Ordering::Relaxed))
    }

    fn is_plaintext_abroad(&self) -> bool {
        self.shared.options.is_plaintext_abroad()
    }
}

impl Postgres {
    /// Waits for the server at most as long as was set.
    pub(crate) async fn within<T>(
        &self,
        doing: &'static str,
        call: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, StoreError> {
        match tokio::time::timeout(self.shared.options.settings.answer_timeout, call).await {
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
        let call = self.once(&self.shared.framework, doing, None, text, parameters);
        within(self.shared.options.settings.answer_timeout, doing, call).await
    }

    /// Runs one statement, in a transaction that `begin` begins where that is given.
    async fn once(
        &self,
        pool: &Pool,
        doing: &'static str,
        begin: Option<&str>,
        text: &str,
        parameters: &Parameters<'_>,
    ) -> Result<Vec<tokio_postgres::Row>, StoreError> {
        let (_permit, idle) = pool.turn().await;
        let session = match idle {
            Some(session) => session,
            None => self.connect_with(&pool.config).await?,
        };
        let is_read_only_by_role = self.shared.is_read_only_by_role.load(Ordering::Relaxed);
        let begin = begin.or_else(|| is_read_only_by_role.then(|| begin_books(true)));
        let rows = run(&session.client, begin, text, parameters).await;
        // After an error of the server's the connection is sound, unless that ended it; after any other it is closed.
        let is_sound = match &rows {
            Ok(_) => true,
            Err(error) => error.as_db_error().is_some_and(|report| report.parsed_severity() == Some(Severity::Error)),
        };
        if is_sound {
            pool.keep(session);
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
    client.batch_execute(begin).await?;
    let rows = client.query_typed(text, parameters).await;
    client.batch_execute(if rows.is_ok() { "COMMIT" } else { "ROLLBACK" }).await?;
    rows
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

pub(crate) fn typed<'p>(parameter: &'p idem_schema::Parameter<'_>) -> Parameter<'p> {
    match parameter {
        idem_schema::Parameter::Bool(yes) => (yes, Type::BOOL),
        idem_schema::Parameter::Int4(number) => (number, Type::INT4),
        idem_schema::Parameter::Int8(number) => (number, Type::INT8),
        idem_schema::Parameter::Text(text) => (text, Type::TEXT),
        idem_schema::Parameter::Bytes(bytes) => (bytes, Type::BYTEA),
        idem_schema::Parameter::Uuid(id) => (id, Type::UUID),
        idem_schema::Parameter::Int8s(numbers) => (numbers, Type::INT8_ARRAY),
    }
}

/// Rows of this driver as those of any.
pub(crate) fn read(rows: &[tokio_postgres::Row]) -> Result<Vec<Row>, StoreError> {
    decode(rows).map_err(idem_schema::unreadable)
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
