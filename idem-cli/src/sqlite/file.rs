//! The one connection of a command to a file, and the little that runs on it.

use std::{str::FromStr as _, time::Duration};

use idem_sql::{Dialect, SchemaName};
use serde_json::Value;
use sqlx::{
    AssertSqlSafe, Column as _, ConnectOptions as _, Row as _, SqliteConnection, TypeInfo as _, ValueRef as _,
    query::Query,
    sqlite::{Sqlite, SqliteArguments, SqliteConnectOptions, SqliteRow},
};

use crate::{
    audit,
    command_line::Target,
    commands::forget,
    exit::{self, Failure},
    report::{Row, Table},
};

/// How long a command waits for the file's one write lock.
const WAIT: Duration = Duration::from_secs(10);

/// A parameter of a statement.
#[derive(Debug, Clone, Copy)]
pub(super) enum Bind<'a> {
    Text(Option<&'a str>),
    Number(Option<i64>),
    Bytes(Option<&'a [u8]>),
}

impl<'a> From<&'a str> for Bind<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(Some(text))
    }
}

impl From<i64> for Bind<'_> {
    fn from(number: i64) -> Self {
        Self::Number(Some(number))
    }
}

/// A file, and who is at it.
pub(super) struct File {
    connection: SqliteConnection,
    pub(super) schema: SchemaName,
    /// The operator's name in the audit trail.
    pub(super) by: String,
}

impl File {
    /// Opens a file that is there.
    pub(super) async fn open(target: &Target) -> Result<Self, Failure> {
        let url = target.database_url.as_deref().unwrap_or_default();
        let options =
            SqliteConnectOptions::from_str(url).map_err(|_| Failure::refused("--database-url cannot be read"))?;
        let options = options.create_if_missing(false).busy_timeout(WAIT).disable_statement_logging();
        Ok(Self { connection: options.connect().await?, schema: target.schema.clone(), by: target.by.clone() })
    }

    /// The rows of a query.
    pub(super) async fn table(&mut self, query: &str, binds: &[Bind<'_>]) -> Result<Table, Failure> {
        let text = self.text(query);
        let rows = bound(&text, binds).fetch_all(&mut self.connection).await?;
        rows.iter().map(row).collect::<Result<_, sqlx::Error>>().map_err(Failure::from)
    }

    /// The number that a query returns.
    pub(super) async fn number(&mut self, query: &str, binds: &[Bind<'_>]) -> Result<i64, Failure> {
        let text = self.text(query);
        let row = bound(&text, binds).fetch_one(&mut self.connection).await?;
        Ok(row.try_get(0)?)
    }

    /// Runs statements in one transaction, all with the same parameters, and returns how many rows each has changed. Their
    /// lines in the trail are logged once they are committed.
    pub(super) async fn act<const N: usize>(
        &mut self,
        statements: [&str; N],
        binds: &[Bind<'_>],
    ) -> Result<[i64; N], Failure> {
        sqlx::raw_sql("BEGIN IMMEDIATE").execute(&mut self.connection).await?;
        let before = r#"SELECT ifnull(max(id), 0) FROM "{schema}_audit""#;
        let before = self.number(before, &[]).await?;
        let mut changed = [0; N];
        for (statement, changed) in statements.iter().zip(&mut changed) {
            let text = self.text(statement);
            let done = bound(&text, binds).execute(&mut self.connection).await?;
            *changed = i64::try_from(done.rows_affected()).unwrap_or(i64::MAX);
        }
        let written = r#"
SELECT a.who, a.action, ifnull(c.name, '') AS consumer, a.idempotency_key AS key, a.details
FROM "{schema}_audit" AS a LEFT JOIN "{schema}_consumers" AS c ON c.id = a.consumer WHERE a.id > ?1 ORDER BY a.id"#;
        let written = if audit::is_heard() { self.table(written, &[before.into()]).await? } else { Table::default() };
        sqlx::raw_sql("COMMIT").execute(&mut self.connection).await?;
        for row in written.rows() {
            let key = row.get("key").as_str();
            let (who, action, details) = (row.text("who"), row.text("action"), row.text("details"));
            audit::tell(audit::Line { who, action, consumer: row.text("consumer"), key, details });
        }
        Ok(changed)
    }

    /// Waits until the transaction has ended that writes now, if one does. It may be handling the key that a command is about, and
    /// nothing of that can be seen before its commit.
    pub(super) async fn at_rest(&mut self) -> Result<(), Failure> {
        let told = "nobody can tell whether the key is in progress, because somebody else is writing in the file. Nothing was changed; \
                    come again later";
        let waited = sqlx::raw_sql("BEGIN IMMEDIATE; ROLLBACK").execute(&mut self.connection).await;
        let told = |error| if exit::is_busy(&error) { Failure::from(error).so(told) } else { error.into() };
        waited.map(|_| ()).map_err(told)
    }

    /// Refuses a consumer that was never registered: with a mistyped name, every command would find nothing to do.
    pub(super) async fn known(&mut self, consumer: &str) -> Result<(), Failure> {
        let found = r#"SELECT count(*) FROM "{schema}_consumers" WHERE name = ?1"#;
        if self.number(found, &[consumer.into()]).await? > 0 {
            return Ok(());
        }
        Err(Failure::refused(format!(
            "there is no consumer {consumer:?}; `idem consumers list` shows those that there are"
        )))
    }

    /// The text with the tables' prefix. `{now}` is now in microseconds, as exact as SQLite's clock; `{at}a{}` is the
    /// column `a` as people read an instant.
    fn text(&self, template: &str) -> String {
        let text = Dialect::Sqlite.render(template, &self.schema).replace("{now}", NOW);
        text.replace("{at}", "strftime('%Y-%m-%dT%H:%M:%fZ', ").replace("{}", " / 1000000.0, 'unixepoch')")
    }
}

const NOW: &str = "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) * 1000";

fn bound<'q>(text: &str, binds: &[Bind<'q>]) -> Query<'q, Sqlite, SqliteArguments> {
    let query = sqlx::query(AssertSqlSafe(text.to_owned()));
    binds.iter().fold(query, |query, value| match *value {
        Bind::Text(text) => query.bind(text),
        Bind::Number(number) => query.bind(number),
        Bind::Bytes(bytes) => query.bind(bytes),
    })
}

fn row(row: &SqliteRow) -> Result<Row, sqlx::Error> {
    let value = |(index, column): (usize, &sqlx::sqlite::SqliteColumn)| {
        let raw = row.try_get_raw(index)?;
        let value = if raw.is_null() {
            Value::Null
        } else {
            match raw.type_info().name() {
                "INTEGER" => row.try_get::<i64, _>(index)?.into(),
                "BLOB" => hex::encode(row.try_get::<Vec<u8>, _>(index)?).into(),
                _ => row.try_get::<String, _>(index)?.into(),
            }
        };
        Ok((column.name().to_owned(), value))
    };
    row.columns().iter().enumerate().map(value).collect()
}

/// The parameters of a statement that goes through keys: how many as a JSON array, and their ids one after the other.
pub(super) struct Keys {
    places: String,
    ids: Vec<u8>,
}

impl Keys {
    pub(super) fn of(keys: &[String]) -> Self {
        let ids = keys.iter().flat_map(|key| *idem_sql::key_id(key).as_bytes()).collect();
        Self { places: format!("{:?}", vec![0; keys.len()]), ids }
    }

    pub(super) fn places(&self) -> &str {
        &self.places
    }

    pub(super) fn ids(&self) -> &[u8] {
        &self.ids
    }
}

/// A time in microseconds, where one was given. Refuses one without a zone, which would be another in each place.
pub(super) async fn time(file: &mut File, time: Option<&str>) -> Result<Option<i64>, Failure> {
    let Some(time) = time else { return Ok(None) };
    let read = "SELECT CAST(round((julianday(?1) - 2440587.5) * 86400000) AS INTEGER) * 1000";
    match file.number(read, &[time.into()]).await {
        Ok(instant) if forget::has_zone(time) => Ok(Some(instant)),
        _ => Err(forget::wrong(time)),
    }
}

#[cfg(test)]
mod tests {
    use sqlx::Connection as _;

    use super::*;

    /// W161: what keeps a command from waiting for whoever writes is told as it is.
    #[tokio::test]
    async fn w161_only_a_writer_is_told_as_one() {
        let path = std::env::temp_dir().join(format!("idem-cli-{:016x}.db", fastrand::u64(..)));
        let options = SqliteConnectOptions::new().filename(&path).create_if_missing(true).busy_timeout(Duration::ZERO);
        let mut writer = SqliteConnection::connect_with(&options).await.unwrap();
        sqlx::raw_sql("BEGIN IMMEDIATE; CREATE TABLE t (a); COMMIT").execute(&mut writer).await.unwrap();
        let connection = options.connect().await.unwrap();
        let mut file = File { connection, schema: SchemaName::default(), by: "ada".to_owned() };
        let mut told = async || file.at_rest().await.map_err(|failure| format!("{failure:?}"));
        assert_eq!(told().await, Ok(()));
        sqlx::raw_sql("BEGIN IMMEDIATE").execute(&mut writer).await.unwrap();
        assert!(told().await.unwrap_err().contains("somebody else is writing"));
        sqlx::raw_sql("ROLLBACK").execute(&mut writer).await.unwrap();
        std::fs::write(&path, [b'x'; 8_192]).unwrap();
        let refused = told().await.unwrap_err();
        assert!(refused.contains("is not a SQLite database") && !refused.contains("somebody else"), "{refused}");
        drop(writer);
        std::fs::remove_file(path).unwrap();
    }
}
