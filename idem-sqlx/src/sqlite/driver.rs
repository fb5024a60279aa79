//! Runs idem's own statements outside of units of work.
//!
//! Reading never waits: WAL mode shows the last commit. A write waits for its turn behind the units of this process, at
//! most [`SqliteOptions::bookkeeping_timeout`](super::SqliteOptions::bookkeeping_timeout), and then as long for other
//! processes. So a handler must not do bookkeeping in its own store: it would wait for itself until then.

use std::{fmt, sync::Arc};

use idem_core::StoreError;
use idem_sql::{BookkeepingDriver, BookkeepingStatements, Parameter, Row, Value};
use sqlx::{
    AssertSqlSafe, Column as _, Row as _, TypeInfo as _, ValueRef as _,
    query::Query,
    sqlite::{Sqlite as Db, SqliteArguments, SqliteRow},
};

use super::{Synchronous, clock, connections::Connections, options::SqliteOptions, statements::Statements};

/// A file of SQLite's: the settings, and the connections that are used outside of units of work.
pub struct Driver {
    pub(super) options: SqliteOptions,
    pub(super) connections: Connections,
    statements: BookkeepingStatements,
    pub(super) unit_statements: Statements,
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Driver {
    pub(super) fn new(options: SqliteOptions) -> Self {
        let (statements, connections) = (BookkeepingStatements::sqlite(&options.schema), Connections::new(&options));
        let unit_statements = Statements::new(&options.schema);
        Self { options, connections, statements, unit_statements }
    }
}

impl BookkeepingDriver for Driver {
    fn bookkeeping_statements(&self) -> &BookkeepingStatements {
        &self.statements
    }

    async fn rows(
        &self,
        doing: &'static str,
        text: &Arc<str>,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        let statement = bound(sqlx::query(AssertSqlSafe(Arc::clone(text))), parameters).bind(clock::now());
        let is_look = text.trim_start().starts_with("SELECT");
        let mut connection =
            if is_look { self.connections.read(doing).await? } else { self.connections.write(doing).await? };
        let failed = connection.failed();
        if !is_look {
            connection.begin().await?;
        }
        let rows = statement.fetch_all(connection.get()?).await.map_err(&failed)?;
        if is_look {
            connection.done();
        } else {
            connection.commit().await?;
        }
        decode(&rows).map_err(failed)
    }

    async fn verify(&self) -> Result<(), StoreError> {
        self.verify_schema().await
    }

    async fn warnings(&self) -> Result<Vec<String>, StoreError> {
        Ok(match self.options.synchronous {
            Synchronous::Full => Vec::new(),
            Synchronous::Normal => vec![
                "synchronous is NORMAL: a power cut loses the last commits although their messages were acknowledged; \
                 open the store with Synchronous::Full unless the data can be made again"
                    .to_owned(),
            ],
        })
    }
}

pub(super) fn bound<'q>(
    statement: Query<'q, Db, SqliteArguments>,
    parameters: &[Parameter<'q>],
) -> Query<'q, Db, SqliteArguments> {
    parameters.iter().fold(statement, |statement, parameter| match *parameter {
        Parameter::Bool(yes) => statement.bind(yes),
        Parameter::Int4(number) => statement.bind(number),
        Parameter::Int8(number) => statement.bind(number),
        Parameter::Text(text) => statement.bind(text),
        Parameter::Bytes(bytes) => statement.bind(bytes),
        Parameter::Uuid(id) => statement.bind(id.map(|id| id.as_bytes().to_vec())),
        // The form that `json_each` reads.
        Parameter::Int8s(numbers) => statement.bind(format!("{numbers:?}")),
        Parameter::Texts(texts) => statement.bind(serde_json::Value::from(texts).to_string()),
        Parameter::OptionalTexts(texts) => statement.bind(serde_json::Value::from(texts).to_string()),
        // No statement of SQLite's has them; one that did would find NULL.
        Parameter::OptionalBytes(_) => statement.bind(None::<String>),
    })
}

/// Rows of this driver as those of any.
pub(super) fn decode(rows: &[SqliteRow]) -> Result<Vec<Row>, sqlx::Error> {
    let Some(first) = rows.first() else { return Ok(Vec::new()) };
    let columns: Arc<[String]> = first.columns().iter().map(|column| column.name().to_owned()).collect();
    let read = |row| (0..columns.len()).map(|index| value(row, index)).collect::<Result<_, _>>();
    rows.iter().map(|row| Ok(Row::new(Arc::clone(&columns), read(row)?))).collect()
}

fn value(row: &SqliteRow, index: usize) -> Result<Value, sqlx::Error> {
    let raw = row.try_get_raw(index)?;
    if raw.is_null() {
        return Ok(Value::Null);
    }
    // The type is the value's own: a column of SQLite has none.
    Ok(match raw.type_info().name() {
        "INTEGER" => Value::Int8(row.try_get(index)?),
        "TEXT" => Value::Text(row.try_get(index)?),
        "BLOB" => Value::Bytes(row.try_get(index)?),
        _ => Value::Other,
    })
}
