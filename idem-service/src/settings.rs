//! The flags and variables that all workers have in common.

use std::{fmt, path::PathBuf, sync::Arc, time::Duration};

use clap::{ArgAction, ValueEnum};
use idem_core::{
    Concurrency, ConfigError, ConsumerSettings, DEAD_LETTER_PAYLOAD_BYTES_MAX, KeyPolicy, KeySource,
    OlderThanRetention, OnConflict, OnUnkeepable, Retention, outbox::CloudEvents,
};
use idem_schema::{PostgresSettings, RECORD_BYTES, SchemaName};

use crate::{cleanup::CleanupFlags, database::DatabaseSettings, keys, logs::LogFormat, sizes, spans, stores::Kind};

/// The settings of a worker. Texts and defaults stand in `--help`.
#[derive(Debug, clap::Args)]
pub(crate) struct Settings {
    /// The database: postgres://… or, with one lane, sqlite://…
    #[arg(long, env = "DATABASE_URL", value_name = "URL", hide_env_values = true)]
    pub(crate) database_url: DatabaseUrl,

    /// The consumer's name, which scopes its keys
    #[arg(long, env = "IDEM_CONSUMER", value_name = "NAME")]
    pub(crate) consumer: String,

    /// The schema (on SQLite the prefix) of idem's tables
    #[arg(long, env = "IDEM_SCHEMA", value_name = "NAME", default_value = SchemaName::DEFAULT, value_parser = schema)]
    pub(crate) schema: SchemaName,

    /// Where keys come from; repeatable, the first that is present wins: header:NAME, json:/POINTER, record-key,
    /// cloudevents, message-id, type, join(A,B) [default: header:idempotencykey and json:/idempotencykey, which must agree
    /// where both are present]
    #[arg(long, value_name = "RULE", value_parser = keys::key)]
    pub(crate) key: Vec<Arc<dyn KeySource>>,

    /// What a key must look like; uuid-strict also wants a version and variant of RFC 9562
    #[arg(long, value_name = "POLICY", default_value = "token")]
    key_policy: KeyPolicyFlag,

    /// Show keys in logs, spans and errors and on the page as keyed hashes, with the secret in this file [default: show
    /// them as they are]
    #[arg(long, env = "IDEM_KEY_SECRET_FILE", value_name = "FILE")]
    pub(crate) key_secret_file: Option<PathBuf>,

    /// How long records are kept: 2h, 24h, 7d or any other time, or forever
    #[arg(long, env = "IDEM_RETENTION", value_name = "TIME", default_value = "7d", value_parser = spans::retention)]
    pub(crate) retention: Retention,

    /// Refuse a --retention that is not longer than the broker may deliver a message again, in place of a warning
    #[arg(long)]
    pub(crate) strict_retention: bool,

    /// Create or update idem's tables before the start
    #[arg(long)]
    pub(crate) migrate: bool,

    /// Create the application's tables before the start
    #[arg(long)]
    pub(crate) create_tables: bool,

    /// Try whether the worker could start, and exit: 0, or the status and line of the start that would fail. Receives and writes
    /// nothing; on Kafka it joins its group for a moment
    #[arg(long, conflicts_with_all = ["migrate", "create_tables"])]
    pub(crate) check: bool,

    /// Drain and exit once attached and idle for that long [default: never]
    #[arg(long, value_name = "TIME", value_parser = spans::span)]
    pub(crate) until_idle: Option<Duration>,

    /// How long the start waits for a database or broker that cannot be reached
    #[arg(long, value_name = "TIME", default_value = "2m", value_parser = spans::span)]
    pub(crate) startup_timeout: Duration,

    /// How long a stop waits for what is running
    #[arg(long, value_name = "TIME", default_value = "20s", value_parser = spans::span)]
    pub(crate) drain: Duration,

    /// How long a claim waits for others that hold its keys
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = spans::span)]
    pub(crate) busy_timeout: Duration,

    /// How long one call of the handler may take
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = spans::span)]
    pub(crate) handler_deadline: Duration,

    /// How many messages are received and not yet settled at most
    #[arg(long, value_name = "COUNT", default_value_t = 10_000, value_parser = sizes::count(1_usize..=10_000_000))]
    pub(crate) in_flight: usize,

    /// What happens to a message that is older than its record would be kept
    #[arg(long, value_name = "POLICY", default_value = "process")]
    older_than_retention: OlderThanRetentionFlag,

    /// Serve /metrics, /healthz, /readyz and a page on this address; a port alone is one of 127.0.0.1 [default: off]
    #[arg(long, env = "IDEM_ADMIN", value_name = "ADDRESS")]
    pub(crate) admin: Option<String>,

    /// A name by which --admin may be asked for, beside addresses and localhost; repeatable
    #[arg(long, value_name = "NAME")]
    pub(crate) admin_host: Vec<String>,

    /// The largest payload that is handled; a larger one is a dead letter
    #[arg(long, value_name = "BYTES", default_value = "1MiB", value_parser = sizes::size)]
    pub(crate) payload_max: usize,

    /// The most headers of a message that is handled; one with more is a dead letter
    #[arg(long, value_name = "COUNT", default_value_t = 1_000, value_parser = sizes::count(1_usize..=100_000))]
    pub(crate) headers_max: usize,

    /// The most bytes of all names and values of its headers
    #[arg(long, value_name = "BYTES", default_value = "64KiB", value_parser = sizes::size)]
    pub(crate) headers_bytes_max: usize,

    /// The largest payload that a row of dead letters keeps; a message beyond it is settled only once a topic or queue for
    /// dead letters has confirmed it [default: 32MiB, or --payload-max where that is more]
    #[arg(long, value_name = "BYTES", value_parser = sizes::size)]
    dead_letter_payload_max: Option<usize>,

    /// How many bytes the dead letters of the consumer take at most, or off; a message for which there is no room cannot be kept
    #[arg(long, value_name = "BYTES", default_value = "4GiB", value_parser = quota)]
    pub(crate) dead_letters_bytes_max: Quota,

    /// What happens to a message that is to be set aside and cannot be kept; it is not acknowledged either way
    #[arg(long, value_name = "POLICY", default_value = "hold")]
    on_unkeepable: OnUnkeepableFlag,

    /// How many attempts a message gets
    #[arg(long, value_name = "COUNT", default_value_t = 5, value_parser = sizes::count(1_u32..=1_000))]
    pub(crate) attempts: u32,

    /// The wait after the first attempt; each further one is longer, up to --backoff-max
    #[arg(long, value_name = "TIME", default_value = "200ms", value_parser = spans::span)]
    pub(crate) backoff_first: Duration,

    /// The wait before the last attempt
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = spans::span)]
    pub(crate) backoff_max: Duration,

    /// What happens to a message whose key was used before for another payload
    #[arg(long, value_name = "POLICY", default_value = "dead-letter")]
    on_conflict: OnConflictFlag,

    /// Whether more than half of the last 50 fresh messages becoming dead letters pauses intake
    #[arg(
        long, value_name = "on|off", default_value = "on", default_missing_value = "on", num_args = 0..=1,
        action = ArgAction::Set, value_parser = on_or_off
    )]
    pub(crate) dead_letter_breaker: bool,

    /// How many units run side by side, each on a connection of its own [default: the cores, at most 4]
    #[arg(long, value_name = "COUNT", value_parser = sizes::count(1_usize..=1024))]
    pub(crate) lanes: Option<usize>,

    /// How many messages one unit holds at most
    #[arg(long, value_name = "COUNT", default_value_t = 100, value_parser = sizes::count(1_usize..=10_000))]
    pub(crate) batch: usize,

    /// Use the application's set-based handler
    #[arg(long)]
    pub(crate) batch_handler: bool,

    /// Whether this worker brings the events that its handlers publish to their destinations; off where another process does
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

    /// The client library of the database; tokio-postgres is for PostgreSQL only [default: sqlx, where the worker has it]
    #[arg(long, value_name = "NAME")]
    store: Option<String>,

    /// How the handlers of one unit run; pipelined, at once on one transaction, needs --store tokio-postgres
    #[arg(long, value_name = "POLICY", default_value = "in-order")]
    handlers: HandlersFlag,

    /// How the log on standard error is written; RUST_LOG says what it holds
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub(crate) log_format: LogFormat,

    #[command(flatten)]
    pub(crate) cleanup: CleanupFlags,
}

/// The database's URL, which may hold a password: `Debug` prints nothing of it.
#[derive(Clone)]
pub(crate) struct DatabaseUrl(String);

impl From<String> for DatabaseUrl {
    fn from(url: String) -> Self {
        Self(url)
    }
}

impl DatabaseUrl {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// `name`, unless the URL or `PGAPPNAME` has a name for the database's list of activities.
    pub(crate) fn application_name<'n>(&self, name: &'n str) -> Option<&'n str> {
        let is_given = self.0.contains("application_name=");
        (!is_given && std::env::var_os("PGAPPNAME").is_none()).then_some(name)
    }

    /// What stands before the colon.
    pub(crate) fn scheme(&self) -> &str {
        self.0.split_once(':').map_or("", |(scheme, _)| scheme)
    }
}

impl fmt::Debug for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DatabaseUrl")
    }
}

/// The flag's words for [`KeyPolicy`].
#[derive(Debug, Clone, Copy, ValueEnum)]
enum KeyPolicyFlag {
    Token,
    Uuid,
    UuidStrict,
}

/// The flag's words for [`OlderThanRetention`].
#[derive(Debug, Clone, Copy, ValueEnum)]
enum OlderThanRetentionFlag {
    Process,
    DeadLetter,
    Halt,
}

/// The flag's words for [`OnConflict`].
#[derive(Debug, Clone, Copy, ValueEnum)]
enum OnConflictFlag {
    DeadLetter,
    Acknowledge,
    Halt,
}

/// The flag's words for [`OnUnkeepable`].
#[derive(Debug, Clone, Copy, ValueEnum)]
enum OnUnkeepableFlag {
    Hold,
    Halt,
}

/// The words for [`CloudEvents`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum EventFormat {
    #[default]
    Binary,
    Structured,
}

impl EventFormat {
    pub(crate) fn cloud_events(self) -> CloudEvents {
        match self {
            Self::Binary => CloudEvents::binary(),
            Self::Structured => CloudEvents::structured(),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum HandlersFlag {
    InOrder,
    Pipelined,
}

impl Settings {
    pub(crate) fn key_policy(&self) -> KeyPolicy {
        match self.key_policy {
            KeyPolicyFlag::Token => KeyPolicy::Token,
            KeyPolicyFlag::Uuid => KeyPolicy::Uuid,
            KeyPolicyFlag::UuidStrict => KeyPolicy::UuidStrict,
        }
    }

    pub(crate) fn on_conflict(&self) -> OnConflict {
        match self.on_conflict {
            OnConflictFlag::DeadLetter => OnConflict::DeadLetter,
            OnConflictFlag::Acknowledge => OnConflict::Acknowledge,
            OnConflictFlag::Halt => OnConflict::Halt,
        }
    }

    pub(crate) fn older_than_retention(&self) -> OlderThanRetention {
        match self.older_than_retention {
            OlderThanRetentionFlag::Process => OlderThanRetention::Process,
            OlderThanRetentionFlag::DeadLetter => OlderThanRetention::DeadLetter,
            OlderThanRetentionFlag::Halt => OlderThanRetention::Halt,
        }
    }

    pub(crate) fn on_unkeepable(&self) -> OnUnkeepable {
        match self.on_unkeepable {
            OnUnkeepableFlag::Hold => OnUnkeepable::Hold,
            OnUnkeepableFlag::Halt => OnUnkeepable::Halt,
        }
    }

    /// What is handled can be kept, unless somebody asks for less.
    pub(crate) fn dead_letter_payload_max(&self) -> usize {
        self.dead_letter_payload_max.unwrap_or(DEAD_LETTER_PAYLOAD_BYTES_MAX.max(self.payload_max))
    }

    pub(crate) fn handlers(&self) -> Concurrency {
        match self.handlers {
            HandlersFlag::InOrder => Concurrency::InOrder,
            HandlersFlag::Pipelined => Concurrency::pipelined(),
        }
    }

    /// The worker's name in PostgreSQL's list of activities is its consumer, so that `idem stuck` finds it.
    pub(crate) fn for_database(&self) -> DatabaseSettings<'_> {
        DatabaseSettings {
            url: &self.database_url,
            schema: &self.schema,
            cleanup_url: self.cleanup.cleanup_database_url.as_ref(),
            application_name: self.database_url.application_name(&self.consumer),
            migrate: self.migrate,
            create_tables: self.create_tables,
        }
    }

    /// What the table of records comes to, for whoever plans a disk: rows are rate times retention.
    pub(crate) fn forecast(&self) -> Option<String> {
        let Retention::For(time) = self.retention else { return None };
        let rows = time.as_secs();
        let megabytes = rows * RECORD_BYTES / 1_000_000;
        Some(format!("{rows} records and {megabytes} MB for each message a second"))
    }

    /// How many connections the worker keeps to a PostgreSQL, for whoever plans its `max_connections`; `None` on another
    /// database.
    pub(crate) fn connections(&self) -> Option<String> {
        if !["postgres", "postgresql"].contains(&self.database_url.scheme()) {
            return None;
        }
        let lanes = self.lanes.unwrap_or_else(ConsumerSettings::lanes_by_default);
        let others = PostgresSettings::default().connections as usize;
        let cleanup = usize::from(self.cleanup.settings().is_some());
        let all = lanes + others + cleanup;
        Some(format!("{all} (lanes {lanes}, control and bookkeeping {others}, cleanup {cleanup})"))
    }

    /// The index of the store that the flags ask for, where they agree.
    ///
    /// # Errors
    /// One line that names the flags and the cure.
    pub(crate) fn database(&self, kinds: &[Kind]) -> Result<usize, String> {
        let scheme = self.database_url.scheme();
        let of_url = |kind: &&Kind| kind.schemes.contains(&scheme);
        let fitting: Vec<&Kind> = kinds.iter().filter(of_url).collect();
        let wanted = self.store.as_deref();
        // The database that most workers are on.
        let is_usual = |kind: &&&Kind| kind.client == wanted.unwrap_or("sqlx");
        let usual = fitting.iter().find(is_usual);
        let Some(kind) = usual.or(fitting.first().filter(|_| wanted.is_none())) else {
            return Err(self.unfitting(kinds, fitting.is_empty()));
        };
        if self.handlers == HandlersFlag::Pipelined {
            self.check_pipelined(kind, kinds)?;
        }
        kinds.iter().position(|other| other == *kind).ok_or_else(|| "there is no such store".to_owned())
    }

    /// No store goes with the URL, or none of those with `--store`.
    fn unfitting(&self, kinds: &[Kind], no_scheme: bool) -> String {
        if kinds.is_empty() {
            return "this worker has no handlers for any database: give its Service some".to_owned();
        }
        let wanted = self.store.as_deref().unwrap_or_default();
        if !no_scheme && let Some(other) = kinds.iter().find(|kind| kind.client == wanted) {
            return format!("--store {wanted} needs a --database-url of {}: leave it out", other.database);
        }
        let mut schemes: Vec<String> = Vec::new();
        for scheme in kinds.iter().filter_map(|kind| kind.schemes.first()).map(|scheme| format!("{scheme}://")) {
            if !schemes.contains(&scheme) {
                schemes.push(scheme);
            }
        }
        format!("--database-url must begin with {} (its value is not shown)", schemes.join(" or "))
    }

    fn check_pipelined(&self, kind: &Kind, kinds: &[Kind]) -> Result<(), String> {
        let sharing: Vec<&Kind> = kinds.iter().filter(|kind| kind.shares_transaction).collect();
        let same_database = sharing.iter().find(|other| other.database == kind.database);
        Err(match (kind.shares_transaction, same_database, sharing.first()) {
            (true, ..) if self.batch_handler => {
                "--batch-handler is called once a batch, so --handlers pipelined has nothing to run at once: give one of \
                 them"
                    .to_owned()
            }
            (true, ..) => return Ok(()),
            (false, Some(other), _) => {
                let (other, this) = (other.client, kind.client);
                format!("--handlers pipelined needs --store {other}, because {this} cannot pipeline")
            }
            (false, None, Some(other)) => {
                let (database, client) = (other.database, other.client);
                format!("--handlers pipelined needs {database} and --store {client}: leave it out")
            }
            (false, None, None) => {
                "--handlers pipelined needs a store that shares its transaction, and this worker has none: leave it out"
                    .to_owned()
            }
        })
    }
}

/// Core's refusal of a setting, under the name of the flag.
pub(crate) fn refused(error: &ConfigError) -> String {
    let flag = match error.field {
        "name" => "consumer".to_owned(),
        "payload_bytes_max" => "payload-max".to_owned(),
        "dead_letter_payload_bytes_max" => "dead-letter-payload-max".to_owned(),
        field => field.trim_start_matches("retry.").trim_start_matches("relay.").replace('_', "-"),
    };
    format!("--{flag} is {}, but {}", error.value, error.rule)
}

/// The same of a publisher of events: what its type calls by dead letters, which it takes too, is a destination here.
pub(crate) fn refused_destination(error: &ConfigError) -> String {
    if error.field.starts_with("dead_letter_") {
        return format!("the destination is {}, but {}", error.value, error.rule);
    }
    refused(error)
}

pub(crate) fn schema(text: &str) -> Result<SchemaName, String> {
    SchemaName::new(text).map_err(|error| error.to_string())
}

/// A size, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Quota(pub(crate) Option<u64>);

fn quota(text: &str) -> Result<Quota, String> {
    match text {
        "off" => Ok(Quota(None)),
        _ => sizes::size(text).map(|bytes| Quota(Some(bytes as u64))).map_err(|error| format!("{error}, or off")),
    }
}

pub(crate) fn on_or_off(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("it must be on or off".to_owned()),
    }
}
