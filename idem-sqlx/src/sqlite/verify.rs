//! Whether a file's schema can keep the promise: it is compared with the one that this build's migrations make.

use std::collections::BTreeSet;

use idem_core::StoreError;
use idem_sql::{Dialect, MigrationStatements, Migrator, SQLITE_MIGRATIONS, SchemaName, pending_migrations};
use sqlx::{AssertSqlSafe, Connection, SqliteConnection};

use super::{
    driver::Driver,
    error,
    migrate::{self, Migrating},
};

/// The oldest SQLite that has all that the statements use: JSON built in, `->>`, strict tables, `RETURNING`.
const VERSION_MIN: (u32, u32) = (3, 38);

const MIGRATE: &str = "Run `idem migrate`, or call SqliteStore::migrate";

/// The parts of a schema, one line each. 1 the prefix of the tables.
const FACTS: &str = r#"
WITH tables AS (
    SELECT name, wr, strict FROM pragma_table_list
    WHERE schema = 'main' AND type = 'table' AND substr(name, 1, length(?1)) = ?1
)
SELECT name, 'table' || iif(strict, ' strict', '') || iif(wr, ' without rowid', '') AS fact FROM tables
UNION ALL
SELECT t.name, 'column ' || c.name || ' ' || c.type || iif(c."notnull", ' not null', '') || iif(c.pk, ' key ' || c.pk, '')
FROM tables AS t, pragma_table_xinfo(t.name) AS c
UNION ALL
SELECT t.name, iif(i."unique", 'unique index', 'index') || ' (' || (
        SELECT group_concat(ifnull(x.name, 'an expression') || iif(x.coll = 'BINARY', '', ' collate ' || x.coll), ', ')
        FROM pragma_index_xinfo(i.name) AS x WHERE x.key) || ')' || iif(i.partial, ' partial', '')
FROM tables AS t, pragma_index_list(t.name) AS i
UNION ALL
SELECT t.name, 'trigger ' || s.name FROM tables AS t JOIN sqlite_schema AS s ON s.tbl_name = t.name
WHERE s.type = 'trigger'"#;

/// Tables and their parts.
type Facts = BTreeSet<(String, String)>;

impl Driver {
    pub(super) async fn verify_schema(&self) -> Result<(), StoreError> {
        let schema = &self.options.schema;
        let mut connection = self.connections.read("verifying the schema").await?;
        let failed = connection.failed();
        let (version, journal): (String, String) =
            sqlx::query_as("SELECT sqlite_version(), journal_mode FROM pragma_journal_mode")
                .fetch_one(connection.get()?)
                .await
                .map_err(&failed)?;
        check_server(&version, &journal)?;
        let found = facts(connection.get()?, schema).await.map_err(&failed)?;
        let migrations = format!("{schema}_migrations");
        if !found.iter().any(|(table, _)| *table == migrations) {
            let problem = format!("the file has no table {migrations}");
            return Err(StoreError::Schema { problem, cure: MIGRATE.to_owned() });
        }
        let mut connection = Migrating(connection);
        let applied = Migrator::new(Dialect::Sqlite, schema).applied(&mut connection).await?;
        connection.0.done();
        let pending = pending_migrations(SQLITE_MIGRATIONS, &applied).map_err(|error| migrate::refused(&error))?;
        if let Some(next) = pending.first() {
            let problem = format!("the schema lacks version {} ({})", next.version, next.name);
            return Err(StoreError::Schema { problem, cure: MIGRATE.to_owned() });
        }
        let needed = needed(schema).await.map_err(|error| error::of_bookkeeping("verifying the schema", error))?;
        compare(&needed, &found)
    }
}

fn check_server(version: &str, journal: &str) -> Result<(), StoreError> {
    let mut parts = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    let found = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    if found < VERSION_MIN {
        return Err(StoreError::Refused {
            problem: format!("SQLite is of version {version}, and idem needs {}.{}", VERSION_MIN.0, VERSION_MIN.1),
            cure: "Build with the bundled SQLite, which is sqlx's feature sqlite-bundled".to_owned(),
        });
    }
    if !journal.eq_ignore_ascii_case("wal") {
        return Err(StoreError::Refused {
            problem: format!("the file's journal_mode is {journal}, and idem needs WAL"),
            cure: "Run PRAGMA journal_mode = WAL, and find out which program changed it".to_owned(),
        });
    }
    Ok(())
}

async fn facts(connection: &mut SqliteConnection, schema: &SchemaName) -> Result<Facts, sqlx::Error> {
    let rows = sqlx::query_as(FACTS).bind(format!("{schema}_")).fetch_all(connection).await?;
    Ok(rows.into_iter().collect())
}

/// The schema that this build's migrations make, found out by running them in memory: a list written by hand could disagree
/// with them.
async fn needed(schema: &SchemaName) -> Result<Facts, sqlx::Error> {
    let mut connection = SqliteConnection::connect("sqlite::memory:").await?;
    let bootstrap = MigrationStatements::new(Dialect::Sqlite, schema).bootstrap;
    for text in std::iter::once(bootstrap).chain(SQLITE_MIGRATIONS.iter().map(|migration| migration.up(schema))) {
        sqlx::raw_sql(AssertSqlSafe(text)).execute(&mut connection).await?;
    }
    let facts = facts(&mut connection, schema).await?;
    connection.close().await?;
    Ok(facts)
}

/// Every difference that could break the promise, in one error.
fn compare(needed: &Facts, found: &Facts) -> Result<(), StoreError> {
    let missing = needed.difference(found).map(|(table, fact)| format!("{table} lacks its {fact}"));
    let ours: BTreeSet<&String> = needed.iter().map(|(table, _)| table).collect();
    // An index more does no harm. A trigger may swallow rows (B6), a unique index may refuse them, and a column or another
    // kind of table is not what the statements were written for.
    let harmless = |fact: &str| fact.starts_with("index ");
    let extra = found.difference(needed).filter(|(table, fact)| ours.contains(table) && !harmless(fact));
    let problems: Vec<String> =
        missing.chain(extra.map(|(table, fact)| format!("{table} has a foreign {fact}"))).collect();
    if problems.is_empty() {
        return Ok(());
    }
    Err(StoreError::Schema {
        problem: problems.join("; "),
        cure: "Stop the workers and undo these changes, or restore the file from a backup: a table of records without its \
               rows or its key lets redeliveries run a second time"
            .to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_sqlite_and_another_journal_are_refused() {
        check_server("3.38.0", "wal").unwrap();
        check_server("4.0", "WAL").unwrap();
        for (version, journal, word) in
            [("3.37.2", "wal", "3.37.2"), ("", "wal", "version"), ("3.51.3", "delete", "journal_mode is delete")]
        {
            let error = check_server(version, journal).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }

    #[tokio::test]
    async fn the_needed_facts_name_what_the_promise_stands_on() {
        let needed = needed(&SchemaName::default()).await.unwrap();
        let has = |table: &str, fact: &str| needed.contains(&(format!("idem_{table}"), fact.to_owned()));
        assert!(has("processed_messages", "unique index (consumer, key_id)"));
        assert!(has("processed_messages", "index (expires_at)"));
        assert!(has("processed_messages", "column key_id BLOB not null key 2"));
        compare(&needed, &needed).unwrap();
    }
}
