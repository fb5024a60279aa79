//! What every SQL store of idem shares, without a driver: the ids of keys, the classes of SQLSTATEs, the statements of
//! PostgreSQL, and the migrations of PostgreSQL and SQLite.
//!
//! Nothing here opens a connection. A store takes the texts, binds the parameters that their docs number, and hands back
//! what the server said. So two drivers for PostgreSQL can share one table and behave alike.
//!
//! | to | use |
//! |---|---|
//! | turn a key into the id it is recorded under | [`key_id`], checked against [`KEY_ID_VECTORS`] |
//! | decide what an error of the server means | [`class_of`]; at COMMIT also [`commit_outcome`] |
//! | begin, claim, read, seal | [`begin_unit`], [`PostgresStatements`] |
//! | make and change the schema | [`Migration`] and its contract, [`pending_migrations`], [`postgres_roles`] |
//! | refuse a schema that cannot keep the promise | [`SchemaFacts`], [`verify_schema`] |
//!
//! The only value from outside that becomes part of a statement is a [`SchemaName`]; all others are bound.

mod key_id;
mod migrations;
mod name;
mod postgres;
mod sqlstate;
mod verify;

pub use crate::{
    key_id::{KEY_ID_VECTORS, key_id},
    migrations::{
        AppliedMigration, Dialect, Migration, MigrationError, MigrationStatements, POSTGRES_MIGRATIONS,
        SQLITE_MIGRATIONS, pending_migrations, postgres_roles, version_to_revert,
    },
    name::{SchemaName, SchemaNameError},
    postgres::{PostgresStatements, UnitLimits, begin_unit},
    sqlstate::{CommitOutcome, SQLSTATES, UNSEALED_COMMIT, class_of, commit_outcome},
    verify::{SchemaFacts, SchemaProblem, verify_schema},
};
