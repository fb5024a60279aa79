//! The part that every SQL store of idem shares, without a driver: the ids of keys, the classes of SQLSTATEs, the statements of
//! PostgreSQL, and the migrations of PostgreSQL and SQLite.
//!
//! Nothing here opens a connection. A store takes the texts, binds the parameters that their docs number, and hands back
//! the server's answers. So two drivers for PostgreSQL can share one table and behave alike.
//!
//! | to | use |
//! |---|---|
//! | turn a key into the id it is recorded under | [`key_id`], checked against [`KEY_ID_VECTORS`] |
//! | decide what an error of the server means | [`class_of`]; at COMMIT also [`commit_outcome`] |
//! | begin, claim, read, seal | [`begin_unit`], [`PostgresStatements`] |
//! | turn a claim's rows into answers in order | [`claim_answers`], [`in_claim_order`], [`found_in_claim_order`] |
//! | do the bookkeeping: starts, attempts, dead letters, controls | [`PostgresDriver`] or [`BookkeepingDriver`], [`SqlBookkeeping`] |
//! | say what a driver's error means where it happened | [`DriverError`] |
//! | compare a start with the binding of its name | [`Binding`](idem_core::store::Binding) |
//! | keep a message's headers in a column | [`encode_headers`], [`decode_headers`] |
//! | write events and answers in a unit, and be the outbox | [`EventColumns`], [`ResultColumns`], [`SqlOutbox`] |
//! | remove expired rows | [`PostgresCleaner`], or [`cleanup_script`] in the database itself |
//! | make and change the schema | [`Migrator`], [`Migration`] and its contract, [`postgres_roles`] |
//! | refuse a server that cannot keep the promise | [`ServerFacts`] |
//! | refuse a schema that cannot keep the promise | [`SchemaFacts`], [`verify_schema`] |
//!
//! The only value from outside that becomes part of a statement is a [`SchemaName`]; all others are bound.

mod bookkeeping;
mod candidates;
mod claims;
mod cleanup;
mod driver;
mod errors;
mod headers;
mod host;
mod key_id;
mod limit;
mod migrations;
mod name;
mod outbox;
mod postgres;
mod row;
mod server;
mod settings;
mod sqlstate;
mod verify;

pub use crate::{
    bookkeeping::{BookkeepingStatements, SqlBookkeeping},
    claims::{ClaimColumns, ClaimedId, claim_answers, claimed_ids, found_in_claim_order, in_claim_order},
    cleanup::{PostgresCleaner, cleanup_script},
    driver::{BookkeepingDriver, Parameter, PostgresDriver, refused_login},
    errors::{DriverError, POOLER_CURE, SeenPids, is_of_seal, is_pooled, read_only, waited_for_key},
    headers::{decode_headers, encode_headers},
    host::host_name,
    key_id::{KEY_ID_VECTORS, key_id},
    limit::StatementLimit,
    migrations::{
        AppliedMigration, Dialect, MigrateError, Migration, MigrationConnection, MigrationError, MigrationStatements,
        Migrator, POSTGRES_MIGRATIONS, SQLITE_MIGRATIONS, pending_migrations, postgres_roles, version_to_revert,
    },
    name::{SchemaName, SchemaNameError},
    outbox::{
        AppendLimits, Appending, EventColumns, KnownEvents, OutboxStatements, PlainWriter, PublishPlainError,
        ResultColumns, ResultRow, SqlOutbox, WRITING, append, kept_beside, results_in_claim_order, retried_on_sqlite,
        suppressed_event,
    },
    postgres::{PostgresStatements, UnitLimits, begin_unit},
    row::{FromValue, Row, Value, from_microseconds, microseconds, retention, unreadable},
    server::{
        Connecting, Durability, Fence, RoleDefault, SESSION_SETTINGS, ServerFacts, SessionFacts, SessionSettings,
        connect_lane, refuse_fenced,
    },
    settings::{PostgresSettings, RECORD_BYTES, Statements, check_number, is_this_machine, unreadable_url},
    sqlstate::{
        CommitOutcome, SQLSTATES, UNSEALED_COMMIT, WEAKER_COMMIT, class_of, commit_outcome, describe_report,
        refused_parameter,
    },
    verify::{SchemaFacts, SchemaProblem, SequenceBehind, verify_schema},
};
