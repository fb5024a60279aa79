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
//! | be the inbox | [`SqlInbox`] |
//! | remove expired rows | [`PostgresCleaner`], or [`cleanup_script`] in the database itself |
//! | make and change the schema | [`Migrator`], [`Migration`] and its contract, [`postgres_roles`] |
//! | refuse a server that cannot keep the promise | [`ServerFacts`] |
//! | refuse a schema that cannot keep the promise | [`SchemaFacts`], [`verify_schema`] |
//!
//! Three folders, of which each knows those before it alone: `text/` has the texts, `check/` says what a server, a schema or an error
//! means, `run/` runs the texts against a driver.
//!
//! The only value from outside that becomes part of a statement is a [`SchemaName`]; all others are bound.

mod check;
mod run;
mod text;

pub use crate::{
    check::{
        errors::{
            AppendLimits, DriverError, POOLER_CURE, SeenPids, WRITING, is_of_seal, is_pooled, read_only, unreadable,
            waited_for_key,
        },
        server::{
            Connecting, Durability, Fence, SESSION_SETTINGS, ServerFacts, SessionFacts, SessionSettings, connect_lane,
            refuse_other_backend,
        },
        settings::{Pooler, PostgresSettings, RECORD_BYTES, check_number, is_this_machine, unreadable_url},
        sqlstate::{
            CommitOutcome, SQLSTATES, UNSEALED_COMMIT, WEAKER_COMMIT, class_of, commit_outcome, describe_report,
            refused_parameter,
        },
        verify::{SchemaFacts, SchemaProblem, SequenceBehind, verify_schema},
    },
    run::{
        bookkeeping::SqlBookkeeping,
        claims::{
            ClaimColumns, claim_answers, claimed_ids, found_in_claim_order, in_claim_order, key_and_hash,
            ordering_keys, rows_ahead,
        },
        cleaner::PostgresCleaner,
        driver::{BookkeepingDriver, Parameter, PostgresDriver, refuse_fenced, refused_login},
        headers::{decode_headers, encode_headers},
        host::host_name,
        inbox::SqlInbox,
        limit::StatementLimit,
        migrator::{MigrateError, MigrationConnection, Migrator},
        outbox::{
            SqlOutbox,
            append::{Appending, EventColumns, KnownEvents, ResultColumns, ResultRow, append, suppressed_event},
            plain::{PlainWriter, PublishPlainError},
            results::{kept_beside, results_in_claim_order},
        },
        role_default::RoleDefault,
        row::{FromValue, Row, Value, from_microseconds, microseconds, retention},
    },
    text::{
        bookkeeping::BookkeepingStatements,
        cleanup::cleanup_script,
        dialect::Dialect,
        inbox::InboxStatements,
        key_id::{ClaimedId, KEY_ID_VECTORS, key_id},
        migrations::{Migration, MigrationStatements, POSTGRES_MIGRATIONS, SQLITE_MIGRATIONS, postgres_roles},
        name::{SchemaName, SchemaNameError},
        outbox::{OutboxStatements, sqlite::retried_on_sqlite},
        plan::{AppliedMigration, MigrationError, pending_migrations, version_to_revert},
        postgres::{PostgresStatements, UnitLimits, begin_unit},
        session_limits::SessionLimits,
    },
};
