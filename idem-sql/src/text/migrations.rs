//! The migrations as ordered texts, and the contract of their runner.

use sha2::{Digest, Sha256};

use crate::text::{dialect::Dialect, name::SchemaName, postgres::PostgresStatements};

/// One step of the schema, with the way back.
///
/// # Contract of the runner
/// [`Migrator`](crate::Migrator) is the one that stores use; it is written down for scripts.
///
/// 1. Each migration runs in one transaction of its own, together with its row in `migrations`. In PostgreSQL that
///    transaction first runs [`MigrationStatements::bootstrap`], again where another runner makes the same table meanwhile
///    (23505, 42P06, 42P07), and then takes [`MigrationStatements::lock`], which is transaction-scoped, because a pooler in
///    transaction mode loses a session's locks. In SQLite it begins with `BEGIN IMMEDIATE`.
/// 2. Under the lock it reads [`MigrationStatements::applied`] again and asks
///    [`pending_migrations`](crate::pending_migrations), which refuses a changed checksum and a schema that is newer than this build may work on. So
///    two runners at once apply each migration once. It must run at READ COMMITTED, to see the migration that the lock
///    waited for.
/// 3. The texts hold several statements: send them by the simple protocol. They end no transaction and change no setting.
/// 4. Down migrations run one at a time, the newest first ([`version_to_revert`](crate::version_to_revert)). That of 0001 raises while
///    `processed_messages` holds a record, and nothing overrides it: emptying the table is the operator's act.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Migration {
    /// The database it is for.
    pub dialect: Dialect,
    /// Its place in the order, from 1 and without gaps.
    pub version: u32,
    /// Its name, as in its files: the thing that it makes.
    pub name: &'static str,
    /// The oldest release whose workers run on the schema after it, so that old ones may finish during a deploy.
    pub oldest_worker: &'static str,
    /// The text that applies it, with `{schema}` for the schema's name: see [`Migration::up`].
    pub up_template: &'static str,
    /// The text that takes it back: see [`Migration::down`].
    pub down_template: &'static str,
}

impl Migration {
    /// The statements that apply it in this schema.
    #[must_use]
    pub fn up(&self, schema: &SchemaName) -> String {
        self.dialect.render(self.up_template, schema)
    }

    /// The statements that take it back in this schema.
    #[must_use]
    pub fn down(&self, schema: &SchemaName) -> String {
        self.dialect.render(self.down_template, schema)
    }

    /// SHA-256 of the text that applies it, as 64 hexadecimal digits, whatever the schema's name.
    ///
    /// Carriage returns do not count: a checkout on Windows adds them, and the same release must not differ.
    #[must_use]
    pub fn checksum(&self) -> String {
        hex::encode(Sha256::digest(self.up_template.replace('\r', "")))
    }
}

/// The migrations for PostgreSQL, oldest first.
pub const POSTGRES_MIGRATIONS: &[Migration] = &[Migration {
    dialect: Dialect::Postgres,
    version: 1,
    name: "schema",
    oldest_worker: "0.1.0",
    up_template: include_str!("../../migrations/postgres/0001_schema.up.sql"),
    down_template: include_str!("../../migrations/postgres/0001_schema.down.sql"),
}];

/// The migrations for SQLite, oldest first.
pub const SQLITE_MIGRATIONS: &[Migration] = &[Migration {
    dialect: Dialect::Sqlite,
    version: 1,
    name: "schema",
    oldest_worker: "0.1.0",
    up_template: include_str!("../../migrations/sqlite/0001_schema.up.sql"),
    down_template: include_str!("../../migrations/sqlite/0001_schema.down.sql"),
}];

/// The script that makes PostgreSQL's group roles and grants them their rights, for this schema.
///
/// It is run by an administrator, in one transaction, after every migration; running it again changes nothing.
#[must_use]
pub fn postgres_roles(schema: &SchemaName) -> String {
    Dialect::Postgres.render(include_str!("../../migrations/postgres/roles.sql"), schema)
}

/// The runner's own statements: its lock and its table.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MigrationStatements {
    /// Whether transactions are read only unless they say otherwise, and by whose word: see
    /// [`PostgresStatements::read_only_default`](crate::PostgresStatements::read_only_default). `None` for SQLite.
    pub fence: Option<String>,
    /// Takes the lock that ends with the transaction: that of the `migrations` table, which its owner alone may take. Several
    /// statements, by the simple protocol. `None` for SQLite, whose `BEGIN IMMEDIATE` is the lock.
    pub lock: Option<String>,
    /// Who has the lock now. No parameters. Result, a row a session: `pid int4`, `login text`, `application text`. `None` for
    /// SQLite.
    pub holder: Option<String>,
    /// Limits how long this transaction waits for a lock, and makes the schema and the `migrations` table if they are
    /// missing; several statements, by the simple protocol.
    pub bootstrap: String,
    /// Sets sequences that are behind the rows of their columns forward. No parameters. Result, a row a sequence: the columns of
    /// [`sequences_behind`](crate::PostgresStatements::sequences_behind). `None` for SQLite, which looks at its rows.
    pub catch_up: Option<String>,
    /// Result: a row a migration, oldest first: `version` int4 (SQLite: integer), `name` text, `checksum` text,
    /// `oldest_worker` text.
    pub applied: String,
    /// Parameters: version int4, name text, checksum text, oldest_worker text.
    pub record: String,
    /// Parameter: version int4. Removes the row after the down migration.
    pub forget: String,
}

impl MigrationStatements {
    /// The statements of one database and schema.
    #[must_use]
    pub fn new(dialect: Dialect, schema: &SchemaName) -> Self {
        let [lock, bootstrap, applied, record, forget] = match dialect {
            Dialect::Postgres => POSTGRES_RUNNER,
            Dialect::Sqlite => SQLITE_RUNNER,
        }
        .map(|template| dialect.render(template, schema));
        let [fence, holder, catch_up] = match dialect {
            Dialect::Postgres => [
                Some(PostgresStatements::new(schema).read_only_default.to_string()),
                Some(dialect.render(HOLDER, schema)),
                Some(dialect.render(CATCH_UP, schema)),
            ],
            Dialect::Sqlite => [None, None, None],
        };
        Self { fence, lock: (!lock.is_empty()).then_some(lock), holder, bootstrap, catch_up, applied, record, forget }
    }
}

const POSTGRES_RUNNER: [&str; 5] = [
    // An advisory lock is open to any login of the database, also to one that has no right on the schema (S51). This mode keeps out other
    // runners and no reader, and none of its kind can be taken without a right to write. Every worker queues behind a migration that
    // waits for a lock, so a migration waits for a shorter time than its runner, and is run again.
    "LOCK TABLE {schema}.migrations IN SHARE ROW EXCLUSIVE MODE;
SET LOCAL lock_timeout = '2s'",
    // CREATE SCHEMA IF NOT EXISTS asks for the right to create schemas even where there is nothing to create, and a
    // migrator that was given an existing schema has no such right.
    "SET LOCAL lock_timeout = '4s';
DO $idem$
BEGIN
    IF pg_catalog.to_regnamespace('{schema}') IS NULL THEN
        CREATE SCHEMA {schema};
    END IF;
END
$idem$;
CREATE TABLE IF NOT EXISTS {schema}.migrations (
    version       int         PRIMARY KEY,
    name          text        COLLATE \"C\" NOT NULL,
    checksum      text        COLLATE \"C\" NOT NULL,
    applied_at    timestamptz NOT NULL DEFAULT pg_catalog.now(),
    oldest_worker text        COLLATE \"C\" NOT NULL
);",
    "SELECT version, name, checksum, oldest_worker FROM {schema}.migrations ORDER BY version",
    "INSERT INTO {schema}.migrations (version, name, checksum, oldest_worker) \
     VALUES ($1::int4, $2::text, $3::text, $4::text)",
    "DELETE FROM {schema}.migrations WHERE version = $1::int4",
];

/// The sessions that keep the lock from a runner: those with any mode that it conflicts with.
const HOLDER: &str = "\
SELECT a.pid, coalesce(a.usename::text, '') AS login, coalesce(a.application_name, '') AS application
FROM pg_catalog.pg_locks AS l JOIN pg_catalog.pg_stat_activity AS a ON a.pid = l.pid
WHERE l.locktype = 'relation' AND l.relation = pg_catalog.to_regclass('{schema}.migrations')::oid AND l.granted
    AND l.database = (SELECT d.oid FROM pg_catalog.pg_database AS d WHERE d.datname = pg_catalog.current_database())
    AND l.mode NOT IN ('AccessShareLock', 'RowShareLock') AND l.pid <> pg_catalog.pg_backend_pid()
ORDER BY a.pid LIMIT 1";

/// A value that another session draws meanwhile is not given again. The function is there after the migrations.
const CATCH_UP: &str = "\
SELECT b.table_name, b.sequence_name, b.next_value, b.highest,
    pg_catalog.setval(b.sequence_name::regclass, greatest(b.highest, pg_catalog.nextval(b.sequence_name::regclass))) AS now
FROM {schema}.sequences_behind() AS b";

const SQLITE_RUNNER: [&str; 5] = [
    "",
    "CREATE TABLE IF NOT EXISTS \"{schema}_migrations\" (
    version       INTEGER PRIMARY KEY,
    name          TEXT    NOT NULL,
    checksum      TEXT    NOT NULL,
    applied_at    INTEGER NOT NULL,
    oldest_worker TEXT    NOT NULL
) STRICT;",
    "SELECT version, name, checksum, oldest_worker FROM \"{schema}_migrations\" ORDER BY version",
    "INSERT INTO \"{schema}_migrations\" (version, name, checksum, oldest_worker, applied_at) \
     VALUES (?1, ?2, ?3, ?4, CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER))",
    "DELETE FROM \"{schema}_migrations\" WHERE version = ?1",
];

#[cfg(test)]
mod tests;
