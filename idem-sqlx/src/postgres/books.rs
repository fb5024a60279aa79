//! Runs idem's own statements outside of units of work, on the framework's own connections.

use std::{
    error::Error,
    future::Future,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use idem_core::{Store as _, StoreError};
use idem_schema::{Parameter, PostgresDriver, PostgresStatements, Row, SchemaName, SeenPids, Value, begin_books};
use sqlx::{
    AssertSqlSafe, Column as _, PgPool, Postgres as Db, Row as _, TypeInfo as _,
    pool::PoolConnection,
    postgres::{PgArguments, PgRow},
    query::Query,
};

use super::{Postgres, error};

/// A statement with its parameters, built anew for each try.
pub(super) type Statement<'q> = Query<'q, Db, PgArguments>;

/// A connection of a pool that goes back only when its work is done: what a dropped call leaves is closed (A15).
struct Borrowed(PoolConnection<Db>, bool);

impl Drop for Borrowed {
    fn drop(&mut self) {
        if !self.1 {
            self.0.close_on_drop();
        }
    }
}

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
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        let statement = bound(sqlx::query(AssertSqlSafe(Arc::clone(text))), parameters);
        read(&self.within(doing, self.once(&self.shared.framework, None, statement)).await?)
    }

    async fn clean_once(
        &self,
        begin: &str,
        limit: Duration,
        text: &Arc<str>,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        let statement = bound(sqlx::query(AssertSqlSafe(Arc::clone(text))), parameters);
        let limit = limit + self.shared.options.settings.answer_timeout;
        read(&within(limit, "cleaning up", self.once(&self.shared.cleaner, Some(begin), statement)).await?)
    }

    async fn rest(&self) {
        if let Some(connection) = self.shared.cleaner.try_acquire() {
            // A server that does not answer must not hold up the next cycle.
            let _ = tokio::time::timeout(self.shared.options.settings.connect_timeout, connection.close()).await;
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
    pub(super) async fn within<T>(
        &self,
        doing: &'static str,
        call: impl Future<Output = Result<T, sqlx::Error>>,
    ) -> Result<T, StoreError> {
        within(self.shared.options.settings.answer_timeout, doing, call).await
    }

    /// Runs one statement, in a transaction that `begin` begins where that is given.
    pub(super) async fn once(
        &self,
        pool: &PgPool,
        begin: Option<&str>,
        statement: Statement<'_>,
    ) -> Result<Vec<PgRow>, sqlx::Error> {
        let mut borrowed = Borrowed(pool.acquire().await?, false);
        let connection = &mut *borrowed.0;
        let is_read_only_by_role = self.shared.is_read_only_by_role.load(Ordering::Relaxed);
        let rows = if begin.is_none() && self.is_named() && !is_read_only_by_role {
            statement.fetch_all(&mut *connection).await
        } else {
            // sqlx prepares and runs in two steps, between which a pooler may change the server connection unless a
            // transaction holds it. It is no transaction of sqlx's, so nothing is left to a destructor.
            let begin = begin.unwrap_or(begin_books(is_read_only_by_role)).to_owned();
            sqlx::raw_sql(AssertSqlSafe(begin)).execute(&mut *connection).await?;
            let rows = statement.persistent(false).fetch_all(&mut *connection).await;
            let end = if rows.is_ok() { "COMMIT" } else { "ROLLBACK" };
            sqlx::raw_sql(end).execute(&mut *connection).await?;
            rows
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
}

async fn within<T>(
    limit: Duration,
    doing: &'static str,
    call: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, StoreError> {
    match tokio::time::timeout(limit, call).await {
        Ok(answer) => answer.map_err(|source| error::store(doing, source)),
        Err(elapsed) => Err(StoreError::Unavailable { doing, source: Box::new(elapsed) }),
    }
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
    })
}

/// Rows of this driver as those of any.
pub(super) fn read(rows: &[PgRow]) -> Result<Vec<Row>, StoreError> {
    decode(rows).map_err(idem_schema::unreadable)
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
