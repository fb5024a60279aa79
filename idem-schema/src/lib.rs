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
//! | turn a claim's rows into answers in order | [`claim_answers`], [`in_claim_order`] |
//! | compare a start with what its name is bound to | [`Binding`] |
//! | keep a message's headers in a column | [`encode_headers`], [`decode_headers`] |
//! | make and change the schema | [`Migration`] and its contract, [`pending_migrations`], [`postgres_roles`] |
//! | refuse a server that cannot keep the promise | [`ServerFacts`] |
//! | refuse a schema that cannot keep the promise | [`SchemaFacts`], [`verify_schema`] |
//!
//! The only value from outside that becomes part of a statement is a [`SchemaName`]; all others are bound.

mod binding;
mod claims;
mod headers;
mod key_id;
mod migrations;
mod name;
mod postgres;
mod server;
mod sqlstate;
mod verify;

pub use crate::{
    binding::Binding,
    claims::{ClaimedId, claim_answers, in_claim_order},
    headers::{decode_headers, encode_headers},
    key_id::{KEY_ID_VECTORS, key_id},
    migrations::{
        AppliedMigration, Dialect, Migration, MigrationError, MigrationStatements, POSTGRES_MIGRATIONS,
        SQLITE_MIGRATIONS, pending_migrations, postgres_roles, version_to_revert,
    },
    name::{SchemaName, SchemaNameError},
    postgres::{PostgresStatements, UnitLimits, begin_unit},
    server::{LANE_SETTINGS, ServerFacts},
    sqlstate::{CommitOutcome, SQLSTATES, UNSEALED_COMMIT, class_of, commit_outcome},
    verify::{SchemaFacts, SchemaProblem, verify_schema},
};
