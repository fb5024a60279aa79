//! SeaORM on a transaction that it did not begin. Copy this file.

use std::sync::Arc;

use async_trait::async_trait;
use idem_core::HandlerError;
use sea_orm::{ConnectionTrait, DbBackend, DbErr, ExecResult, QueryResult, RuntimeErr, Statement};
use sea_query_sqlx::SqlxValues;
use sqlx::{AssertSqlSafe, PgConnection, Postgres, query::Query};
use tokio::sync::Mutex;

/// The connection of a unit of work, as SeaORM uses one. It begins no transactions: SeaORM's own need a pool, and a nested
/// one is sqlx's `begin` on the connection itself.
#[derive(Debug)]
pub struct InTransaction<'t>(Mutex<&'t mut PgConnection>);

impl<'t> InTransaction<'t> {
    /// Takes `tx.connection()`.
    pub fn new(connection: &'t mut PgConnection) -> Self {
        Self(Mutex::new(connection))
    }
}

fn query(statement: Statement) -> Query<'static, Postgres, SqlxValues> {
    let values = statement.values.unwrap_or(sea_orm::Values(Vec::new()));
    sqlx::query_with(AssertSqlSafe(statement.sql), SqlxValues(values))
}

fn failed(error: sqlx::Error) -> DbErr {
    DbErr::Query(RuntimeErr::SqlxError(Arc::new(error)))
}

/// The error as idem has to see it: SeaORM hides the database's in a text, and then a broken connection or a value that will
/// never fit cannot be recognised.
pub fn handler_error(error: DbErr) -> HandlerError {
    match error {
        DbErr::Conn(RuntimeErr::SqlxError(error))
        | DbErr::Exec(RuntimeErr::SqlxError(error))
        | DbErr::Query(RuntimeErr::SqlxError(error)) => match Arc::try_unwrap(error) {
            Ok(error) => error.into(),
            Err(shared) => shared.to_string().into(),
        },
        other => other.into(),
    }
}

#[async_trait]
impl ConnectionTrait for InTransaction<'_> {
    fn get_database_backend(&self) -> DbBackend {
        DbBackend::Postgres
    }

    async fn execute_raw(&self, statement: Statement) -> Result<ExecResult, DbErr> {
        let done = query(statement).execute(&mut **self.0.lock().await).await;
        done.map(ExecResult::from).map_err(failed)
    }

    async fn execute_unprepared(&self, sql: &str) -> Result<ExecResult, DbErr> {
        let done = sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut **self.0.lock().await).await;
        done.map(ExecResult::from).map_err(failed)
    }

    async fn query_one_raw(&self, statement: Statement) -> Result<Option<QueryResult>, DbErr> {
        let row = query(statement).fetch_optional(&mut **self.0.lock().await).await;
        row.map(|row| row.map(QueryResult::from)).map_err(failed)
    }

    async fn query_all_raw(&self, statement: Statement) -> Result<Vec<QueryResult>, DbErr> {
        let rows = query(statement).fetch_all(&mut **self.0.lock().await).await;
        rows.map(|rows| rows.into_iter().map(QueryResult::from).collect()).map_err(failed)
    }
}
