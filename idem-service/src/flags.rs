//! The flags and variables that workers and services over HTTP have in common.

use std::{path::PathBuf, time::Duration};

use clap::ArgAction;
use idem_sql::SchemaName;

use crate::{
    cleanup::CleanupFlags,
    database::DatabaseSettings,
    logs::LogFormat,
    spans,
    values::{DatabaseUrl, on_or_off, schema},
};

/// The settings of every process. Texts and defaults stand in `--help`.
#[derive(Debug, clap::Args)]
// An application's own settings may have the same name.
#[group(skip)]
pub(crate) struct Flags {
    /// The database, such as postgres://user@host/name
    #[arg(long, env = "DATABASE_URL", value_name = "URL", hide_env_values = true)]
    pub(crate) database_url: DatabaseUrl,

    /// A Redis with copies of records, such as redis://host:6379: a duplicate with a copy takes no request to the database [default: none]
    #[arg(long, env = "REDIS_URL", hide_short_help = true, value_name = "URL", hide_env_values = true)]
    pub(crate) redis_url: Option<DatabaseUrl>,

    /// Copy results to --redis-url that are not encrypted, too
    #[arg(long, hide_short_help = true, requires = "redis_url")]
    pub(crate) copies_plain: bool,

    /// The schema (on SQLite the prefix) of idem's tables
    #[arg(long, value_name = "NAME", default_value = SchemaName::DEFAULT, value_parser = schema)]
    pub(crate) schema: SchemaName,

    /// Create or update idem's tables before the start
    #[arg(long)]
    pub(crate) migrate: bool,

    /// Create the application's tables before the start
    #[arg(long, hide_short_help = true)]
    pub(crate) create_tables: bool,

    /// How long the start waits for a database or broker that cannot be reached
    #[arg(long, hide_short_help = true, value_name = "TIME", default_value = "2m", value_parser = spans::span)]
    pub(crate) startup_timeout: Duration,

    /// How long a stop waits for running handlers
    #[arg(long, value_name = "TIME", default_value = "20s", value_parser = spans::span)]
    pub(crate) drain: Duration,

    /// How long one call of the handler may take
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = spans::span)]
    pub(crate) handler_deadline: Duration,

    /// Serve /metrics, /healthz, /readyz and a page on this address; a port alone is one of 127.0.0.1 [default: off]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) admin: Option<String>,

    /// A name by which --admin may be asked for, beside addresses and localhost; repeatable
    #[arg(long, hide_short_help = true, value_name = "NAME")]
    pub(crate) admin_host: Vec<String>,

    /// Show keys in logs, spans and errors and on the page as keyed hashes, with the secret in this file [default: show
    /// them as they are]
    #[arg(long, hide_short_help = true, value_name = "FILE")]
    pub(crate) key_secret_file: Option<PathBuf>,

    /// Whether this process brings the events that its handlers publish to their destinations; off where another one does
    #[arg(
        long, hide_short_help = true, value_name = "on|off", default_value = "on", default_missing_value = "on", num_args = 0..=1,
        action = ArgAction::Set, value_parser = on_or_off
    )]
    pub(crate) relay: bool,

    /// For how long the receivers of events remember their ids: an event of which a copy may have been sent that long ago is
    /// not sent again, but waits for a person
    #[arg(long, hide_short_help = true, value_name = "TIME", default_value = "7d", value_parser = spans::span)]
    pub(crate) receiver_keeps: Duration,

    /// How the log on standard error is written; RUST_LOG chooses its lines
    #[arg(long, hide_short_help = true, value_name = "FORMAT", default_value = "text")]
    pub(crate) log_format: LogFormat,
}

impl Flags {
    /// For a database in whose list of activities connections are called by this name.
    pub(crate) fn for_database<'s>(&'s self, name: &'s str, cleanup: &'s CleanupFlags) -> DatabaseSettings<'s> {
        DatabaseSettings {
            url: &self.database_url,
            redis_url: self.redis_url.as_ref(),
            copies_plain: self.copies_plain,
            schema: &self.schema,
            cleanup_url: cleanup.cleanup_database_url.as_ref(),
            application_name: self.database_url.application_name(name),
            migrate: self.migrate,
            create_tables: self.create_tables,
        }
    }
}
