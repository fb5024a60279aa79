//! The one connection of a command, and the little that runs on it.

use std::time::Duration;

use idem_core::StoreError;
use idem_sql::{
    Dialect, PostgresStatements, SchemaName, SequenceBehind, UnitLimits, begin_unit, key_id, refused_parameter,
    waited_for_key,
};
use idem_sqlx::{PostgresOptions, PostgresStore};
use sqlx::{
    AssertSqlSafe, ConnectOptions as _, PgConnection, Row as _,
    postgres::{PgArguments, PgDatabaseError, PgRow},
    query::Query,
};

use crate::{
    audit,
    command_line::Target,
    exit::{Exit, Failure},
    report::{Row, Table},
};

/// How long a command waits for a lock that a worker holds, and how long one statement may take.
const LIMITS: UnitLimits = UnitLimits {
    lock: Duration::from_secs(10),
    statement: Duration::from_secs(600),
    idle_in_transaction: Duration::from_secs(60),
};

/// How long a look whether a key is held waits for it.
const PROBE: UnitLimits = UnitLimits { lock: Duration::from_millis(200), ..LIMITS };

/// The transaction's lines in the audit trail. Such a row has the beginning of its transaction as its time, by which there is
/// an index.
const WRITTEN: &str = "\
SELECT a.who, a.action, c.name AS consumer, a.idempotency_key AS key, a.details
FROM {schema}.audit AS a LEFT JOIN {schema}.consumers AS c ON c.id = a.consumer
WHERE a.at = pg_catalog.now() AND a.xmin = pg_catalog.pg_current_xact_id_if_assigned()::xid ORDER BY a.id";

/// The scopes in which a key may be in progress: it has no record there. Parameters: 1 consumer or NULL, 2 key.
const OPEN: &str = "\
SELECT c.id FROM {schema}.consumers AS c
WHERE ($1::text IS NULL OR c.name = $1::text) AND NOT EXISTS (
    SELECT FROM {schema}.processed_messages AS p WHERE p.consumer = c.id AND p.key_id = {schema}.key_id($2::text))";

/// How often a statement runs that meets a row of another session each time.
const TAKEN_MAX: usize = 3;

const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// A parameter of a statement.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Bind<'a> {
    Text(&'a str),
    TextOr(Option<&'a str>),
    Number(i64),
    NumberOr(Option<i64>),
    Texts(&'a [String]),
    Numbers(&'a [i64]),
}

/// A connection to the database, and who is at it.
#[derive(Debug)]
pub(crate) struct Database {
    connection: PgConnection,
    pub(crate) schema: SchemaName,
    /// The operator's name in the audit trail.
    pub(crate) by: String,
}

/// The store, for its own operations: migrations, verification, cleanup.
pub(crate) fn store(target: &Target) -> Result<PostgresStore, Failure> {
    Ok(options(target)?.build()?)
}

fn options(target: &Target) -> Result<PostgresOptions, Failure> {
    Ok(PostgresOptions::parse(url(target)?)?.schema(target.schema.clone()).application_name("idem command"))
}

fn url(target: &Target) -> Result<&str, Failure> {
    let missing = "--database-url (or the variable DATABASE_URL or DATABASE_URL_FILE) must be given";
    let url = target.database_url.as_deref().ok_or_else(|| Failure::refused(missing))?;
    if url.starts_with("postgres://") || url.starts_with("postgresql://") {
        return Ok(url);
    }
    Err(Failure::refused("--database-url must begin with postgres://, sqlite: or dynamodb: (its value is not shown)"))
}

/// The refusal of a connection for a parameter that came with it, in a worker's words.
fn refused(error: &sqlx::Error) -> Option<StoreError> {
    let reported = error.as_database_error()?;
    refused_parameter(&reported.code()?, reported.message())
}

impl Database {
    pub(crate) async fn open(target: &Target) -> Result<Self, Failure> {
        let options = options(target)?;
        match tokio::time::timeout(CONNECT_WITHIN, options.connection().connect()).await {
            Ok(Ok(connection)) => Ok(Self { connection, schema: target.schema.clone(), by: target.by.clone() }),
            Ok(Err(error)) => Err(refused(&error).map_or_else(|| error.into(), Failure::from)),
            Err(_) => Err(Failure::new(Exit::Unreachable, "the database does not answer within 5 s")),
        }
    }

    async fn begin(&mut self) -> Result<(), Failure> {
        sqlx::raw_sql(AssertSqlSafe(begin_unit(Some(LIMITS), None))).execute(&mut self.connection).await?;
        Ok(())
    }

    async fn fetch(&mut self, text: &str, binds: &[Bind<'_>]) -> Result<Vec<PgRow>, Failure> {
        Ok(self.try_fetch(text, binds).await?)
    }

    async fn try_fetch(&mut self, text: &str, binds: &[Bind<'_>]) -> Result<Vec<PgRow>, sqlx::Error> {
        let text = Dialect::Postgres.render(text, &self.schema);
        // Not prepared under a name, which a pooler might lose.
        let query = sqlx::query(AssertSqlSafe(text)).persistent(false);
        binds.iter().fold(query, |query, value| bind(query, *value)).fetch_all(&mut self.connection).await
    }

    async fn fetch_table(&mut self, query: &str, binds: &[Bind<'_>]) -> Result<Table, Failure> {
        let rows =
            self.fetch(&format!("SELECT pg_catalog.row_to_json(answer)::text FROM ({query}) AS answer"), binds).await?;
        let unreadable = |_| Failure::new(Exit::Bug, "the database's answer cannot be read");
        let row = |row: &PgRow| -> Result<Row, Failure> {
            let text: &str = row.try_get(0)?;
            serde_json::from_str(text).map_err(unreadable)
        };
        rows.iter().map(row).collect()
    }

    async fn commit(&mut self) -> Result<(), Failure> {
        sqlx::raw_sql("COMMIT").execute(&mut self.connection).await?;
        Ok(())
    }

    /// Begins a transaction, and runs a statement in it. Where that meets a row of the same key, another session was first, next to an
    /// index that is not valid: it runs again. Where it meets one each time, its ids come from a sequence that is behind its rows.
    async fn fetch_first(&mut self, text: &str, binds: &[Bind<'_>]) -> Result<Vec<PgRow>, Failure> {
        let mut tries = 1;
        let error = loop {
            self.begin().await?;
            let error = match self.try_fetch(text, binds).await {
                Ok(rows) => return Ok(rows),
                Err(error) => error,
            };
            let code = error.as_database_error().and_then(|error| error.code());
            if code.as_deref() != Some("23505") {
                return Err(error.into());
            }
            sqlx::raw_sql("ROLLBACK").execute(&mut self.connection).await?;
            if tries == TAKEN_MAX {
                break error;
            }
            tries += 1;
        };
        let behind =
            self.fetch("SELECT table_name, sequence_name, next_value, highest FROM {schema}.sequences_behind()", &[]);
        let behind = behind.await?;
        let read = |row: &PgRow| -> Result<SequenceBehind, Failure> {
            Ok(SequenceBehind {
                table: row.try_get(0)?,
                sequence: row.try_get(1)?,
                next: row.try_get(2)?,
                highest: row.try_get(3)?,
            })
        };
        let behind = behind.iter().map(read).collect::<Result<Vec<_>, Failure>>()?;
        Err(if behind.is_empty() { error.into() } else { SequenceBehind::refusal(&self.schema, &behind).into() })
    }

    /// One statement in a transaction of its own.
    async fn rows(&mut self, text: &str, binds: &[Bind<'_>]) -> Result<Vec<PgRow>, Failure> {
        let rows = self.fetch_first(text, binds).await?;
        self.commit().await?;
        Ok(rows)
    }

    /// The rows of a query.
    pub(crate) async fn table(&mut self, query: &str, binds: &[Bind<'_>]) -> Result<Table, Failure> {
        self.begin().await?;
        let table = self.fetch_table(query, binds).await?;
        self.commit().await?;
        Ok(table)
    }

    /// The number that a statement returns which notes its changes in the audit trail.
    pub(crate) async fn act(&mut self, statement: &str, binds: &[Bind<'_>]) -> Result<i64, Failure> {
        let [number] = self.act_numbers(statement, binds).await?;
        Ok(number)
    }

    /// The same with several numbers. The lines of the trail are logged once they are committed.
    pub(crate) async fn act_numbers<const N: usize>(
        &mut self,
        statement: &str,
        binds: &[Bind<'_>],
    ) -> Result<[i64; N], Failure> {
        let rows = self.fetch_first(statement, binds).await?;
        let written = if audit::is_heard() { self.fetch_table(WRITTEN, &[]).await? } else { Table::default() };
        self.commit().await?;
        for row in written.rows() {
            let key = row.get("key").as_str();
            let (who, action, details) = (row.text("who"), row.text("action"), row.text("details"));
            audit::tell(audit::Line { who, action, consumer: row.text("consumer"), key, details });
        }
        first_row(&rows)
    }

    /// The number that a statement returns.
    pub(crate) async fn number(&mut self, statement: &str, binds: &[Bind<'_>]) -> Result<i64, Failure> {
        let [number] = self.numbers(statement, binds).await?;
        Ok(number)
    }

    /// The numbers in the one row that a statement returns; zeros without a row.
    pub(crate) async fn numbers<const N: usize>(
        &mut self,
        statement: &str,
        binds: &[Bind<'_>],
    ) -> Result<[i64; N], Failure> {
        first_row(&self.rows(statement, binds).await?)
    }

    /// The result of a statement that goes through a table slice by slice: a number, and where it stopped.
    pub(crate) async fn slice(
        &mut self,
        statement: &str,
        binds: &[Bind<'_>],
    ) -> Result<(i64, Option<String>), Failure> {
        let rows = self.rows(statement, binds).await?;
        rows.first().map_or(Ok((0, None)), |row| Ok((row.try_get(0)?, row.try_get(1)?)))
    }

    /// Whether another session holds this key for one of these consumers, of which there is one at least. `None` where the database does not say: the login lacks the
    /// right to ask, or the table is locked.
    async fn is_held(&mut self, consumers: &[i32], key: &str) -> Result<Option<bool>, Failure> {
        let question = PostgresStatements::new(&self.schema).question(PROBE, consumers, key_id(key));
        let asked = sqlx::raw_sql(AssertSqlSafe(question)).execute(&mut self.connection).await;
        let Err(error) = asked else { return Ok(Some(false)) };
        sqlx::raw_sql("ROLLBACK").execute(&mut self.connection).await?;
        let report = error.as_database_error().and_then(|error| error.try_downcast_ref::<PgDatabaseError>());
        match report.map(|report| (report.code(), report.r#where().unwrap_or_default())) {
            // lock_not_available
            Some(("55P03", context)) => Ok(waited_for_key(context).then_some(true)),
            // unique_violation, which only an index that is not valid brings: another session was first.
            Some(("23505", _)) => Ok(Some(true)),
            // insufficient_privilege
            Some(("42501", _)) => Ok(None),
            _ => Err(error.into()),
        }
    }

    /// Whether a key is in progress at this consumer, or at any; `None` where nobody can tell.
    pub(crate) async fn runs(&mut self, consumer: Option<&str>, key: &str) -> Result<Option<bool>, Failure> {
        let open = self.table(OPEN, &[Bind::TextOr(consumer), Bind::Text(key)]).await?;
        let open: Vec<i32> = open.rows().iter().filter_map(|row| row.number("id").try_into().ok()).collect();
        if open.is_empty() { Ok(Some(false)) } else { self.is_held(&open, key).await }
    }

    /// Refuses a key that is being handled at this consumer, or at any: before the commit nothing of it can be seen, so a command
    /// that changes what is held of the key would pass it over.
    pub(crate) async fn at_rest(&mut self, consumer: Option<&str>, key: &str) -> Result<(), Failure> {
        match self.runs(consumer, key).await? {
            Some(false) => Ok(()),
            Some(true) => Err(Failure::refused(
                "the key is in progress, and nothing of that can be seen before its commit. Nothing was changed; come again once it \
                 has ended",
            )),
            None => Err(Failure::refused(
                "nobody can tell whether the key is in progress: the table of the keys is locked, or this login lacks the right to \
                 ask. Nothing was changed",
            )),
        }
    }

    /// Refuses a consumer that was never registered: with a mistyped name, every command would find nothing to do.
    pub(crate) async fn known(&mut self, consumer: &str) -> Result<(), Failure> {
        let found = "SELECT pg_catalog.count(*) FROM {schema}.consumers WHERE name = $1::text";
        if self.number(found, &[Bind::Text(consumer)]).await? > 0 {
            return Ok(());
        }
        Err(Failure::refused(format!(
            "there is no consumer {consumer:?}; `idem consumers list` shows those that there are"
        )))
    }
}

fn first_row<const N: usize>(rows: &[PgRow]) -> Result<[i64; N], Failure> {
    let mut numbers = [0; N];
    if let Some(row) = rows.first() {
        for (place, number) in numbers.iter_mut().enumerate() {
            *number = row.try_get(place)?;
        }
    }
    Ok(numbers)
}

fn bind<'q>(query: Query<'q, sqlx::Postgres, PgArguments>, value: Bind<'q>) -> Query<'q, sqlx::Postgres, PgArguments> {
    match value {
        Bind::Text(text) => query.bind(text),
        Bind::TextOr(text) => query.bind(text),
        Bind::Number(number) => query.bind(number),
        Bind::NumberOr(number) => query.bind(number),
        Bind::Texts(texts) => query.bind(texts),
        Bind::Numbers(numbers) => query.bind(numbers),
    }
}
