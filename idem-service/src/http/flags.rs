//! The flags and variables that all services over HTTP have in common.

use std::{path::PathBuf, time::Duration};

use clap::{ArgAction, ValueEnum};
use idem_core::Retention;
use idem_schema::SchemaName;

use crate::{
    cleanup::CleanupFlags,
    database::DatabaseSettings,
    logs::LogFormat,
    settings::{DatabaseUrl, EventFormat, on_or_off, schema},
    sizes, spans,
};

/// The settings of a service over HTTP. Texts and defaults stand in `--help`.
#[derive(Debug, clap::Args)]
pub(crate) struct HttpFlags {
    /// Where requests are served; a port alone is one of 127.0.0.1
    #[arg(long, env = "IDEM_LISTEN", value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    pub(crate) listen: String,

    /// The database: postgres://… or sqlite://…
    #[arg(long, env = "DATABASE_URL", value_name = "URL", hide_env_values = true)]
    pub(crate) database_url: DatabaseUrl,

    /// The schema (on SQLite the prefix) of idem's tables
    #[arg(long, env = "IDEM_SCHEMA", value_name = "NAME", default_value = SchemaName::DEFAULT, value_parser = schema)]
    pub(crate) schema: SchemaName,

    /// How keys are answered for: ietf, the draft of the IETF; guardia, with its codes and times; or stripe, for its clients
    #[arg(long, value_name = "NAME", default_value = "ietf")]
    pub(crate) profile: ProfileFlag,

    /// How long a request waits for another one with its key [default: as the profile says; ietf does not wait]
    #[arg(long, value_name = "TIME", value_parser = spans::span)]
    pub(crate) in_progress_wait: Option<Duration>,

    /// How long a key is known, and its operation does not run again [default: as the profile says]
    #[arg(long, env = "IDEM_KEYS_FOR", value_name = "TIME", value_parser = spans::retention)]
    pub(crate) keys_for: Option<Retention>,

    /// Make fingerprints of requests with the secret in this file, NUMBER=FILE, the same in all instances; repeatable, the first
    /// counts for new records and the others for those that were made with them [default: none, which is for bodies that hold
    /// no secret]
    #[arg(long, value_name = "NUMBER=FILE", value_parser = super::settings::numbered_file)]
    pub(crate) hash_secret: Vec<(u16, PathBuf)>,

    /// Create or update idem's tables before the start
    #[arg(long)]
    pub(crate) migrate: bool,

    /// Create the application's tables before the start
    #[arg(long)]
    pub(crate) create_tables: bool,

    /// How long the start waits for a database that cannot be reached
    #[arg(long, value_name = "TIME", default_value = "2m", value_parser = spans::span)]
    pub(crate) startup_timeout: Duration,

    /// How long a stop waits for requests that are being answered
    #[arg(long, value_name = "TIME", default_value = "20s", value_parser = spans::span)]
    pub(crate) drain: Duration,

    /// How long one request may run
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = spans::span)]
    pub(crate) handler_deadline: Duration,

    /// The largest body of a request
    #[arg(long, value_name = "BYTES", default_value = "1MiB", value_parser = sizes::size)]
    pub(crate) body_max: usize,

    /// How many requests run side by side, each on a connection of its own [default: 16, or one on SQLite]
    #[arg(long, value_name = "COUNT", value_parser = sizes::count(1_usize..=1024))]
    pub(crate) lanes: Option<usize>,

    /// Serve /metrics, /healthz, /readyz and a page on this address; a port alone is one of 127.0.0.1 [default: off]
    #[arg(long, env = "IDEM_ADMIN", value_name = "ADDRESS")]
    pub(crate) admin: Option<String>,

    /// A name by which --admin may be asked for, beside addresses and localhost; repeatable
    #[arg(long, value_name = "NAME")]
    pub(crate) admin_host: Vec<String>,

    /// Show keys in logs, spans and errors as keyed hashes, with the secret in this file [default: show them as they are]
    #[arg(long, env = "IDEM_KEY_SECRET_FILE", value_name = "FILE")]
    pub(crate) key_secret_file: Option<PathBuf>,

    /// Whether this process brings the events of its requests to their destinations; off where another one does
    #[arg(
        long, value_name = "on|off", default_value = "on", default_missing_value = "on", num_args = 0..=1,
        action = ArgAction::Set, value_parser = on_or_off
    )]
    pub(crate) relay: bool,

    /// How events are written: binary, with the attributes of CloudEvents as headers, or structured, with them in a payload of
    /// JSON around the event's
    #[arg(long, value_name = "FORMAT", default_value = "binary")]
    pub(crate) event_format: EventFormat,

    /// For how long the receivers of events remember their ids: an event of which a copy may have been sent that long ago is
    /// not sent again, but waits for a person
    #[arg(long, value_name = "TIME", default_value = "7d", value_parser = spans::span)]
    pub(crate) receiver_keeps: Duration,

    /// How the log on standard error is written; RUST_LOG says what it holds
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub(crate) log_format: LogFormat,

    #[command(flatten)]
    pub(crate) cleanup: CleanupFlags,

    #[cfg(feature = "kafka")]
    #[command(flatten)]
    pub(crate) kafka: crate::kafka::Announcing,
}

/// The flag's words for a profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProfileFlag {
    Ietf,
    Guardia,
    Stripe,
}

impl HttpFlags {
    /// Connections are called after the service.
    pub(crate) fn for_database<'s>(&'s self, name: &'s str) -> DatabaseSettings<'s> {
        DatabaseSettings {
            url: &self.database_url,
            schema: &self.schema,
            cleanup_url: self.cleanup.cleanup_database_url.as_ref(),
            application_name: self.database_url.application_name(name),
            migrate: self.migrate,
            create_tables: self.create_tables,
        }
    }
}
