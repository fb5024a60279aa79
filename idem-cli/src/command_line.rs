//! The command line.

mod outbox;
mod request;
pub(crate) mod shared;
mod url_file;

use std::{path::PathBuf, time::Duration};

use clap::{Args, Parser, Subcommand, ValueEnum};
use idem_core::dead_letter::{Fingerprint, Reason};
use idem_sql::{SchemaName, host_name};

use self::shared::{Limit, Yes, why};
pub(crate) use self::{
    outbox::{Outbox, RetryEvents, SkipEvents, WhichEvents},
    request::{Named, OfRequest},
};
use crate::spans;

/// The operator's commands for idem's tables, on PostgreSQL and, as far as that makes sense, on SQLite.
///
/// Exit status: 0 done, 1 doctor found something, 2 refused or not confirmed, 3 the database could not be reached, 70 a
/// bug of idem's.
#[derive(Debug, Parser)]
#[command(name = "idem", version, max_term_width = 120)]
pub(crate) struct CommandLine {
    #[command(flatten)]
    pub(crate) target: Target,

    /// Answer in JSON
    #[arg(long, global = true)]
    pub(crate) json: bool,

    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Which tables, and who is at them.
#[derive(Clone, Args)]
pub(crate) struct Target {
    /// The database: postgres://…, or sqlite://… for some commands
    #[arg(long, global = true, env = "DATABASE_URL", value_name = "URL", hide_env_values = true)]
    pub(crate) database_url: Option<String>,

    /// The schema of idem's tables
    #[arg(long, global = true, env = "IDEM_SCHEMA", value_name = "NAME", default_value = SchemaName::DEFAULT, value_parser = schema)]
    pub(crate) schema: SchemaName,

    /// The operator's name in the audit trail, beside the login of the database
    #[arg(long, global = true, env = "IDEM_OPERATOR", value_name = "NAME", default_value_t = operator(), value_parser = by)]
    pub(crate) by: String,
}

impl Command {
    /// The command's name.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::New(_) => "new",
            Self::Migrate(_) => "migrate",
            Self::Consumers(_) | Self::Pause(_) | Self::Resume { .. } => "consumers",
            Self::Show(_) => "show",
            Self::Forget(_) => "forget",
            Self::Forgotten(_) => "forgotten",
            Self::Erase(_) => "erase",
            Self::DeadLetters(_) => "dead-letters",
            Self::Waiting(_) => "waiting",
            Self::Outbox(_) => "outbox",
            Self::Cleanup(_) => "cleanup",
            Self::Stats => "stats",
            Self::Doctor(_) => "doctor",
            Self::Workers(_) => "workers",
            Self::Retention(_) => "retention",
            Self::Stuck(_) => "stuck",
            Self::Completions { .. } => "completions",
        }
    }
}

impl Replay {
    /// Whether something is to be changed before.
    pub(crate) fn is_changed(&self) -> bool {
        self.forget_first || self.key.is_some() || self.payload.is_some()
    }
}

impl CommandLine {
    /// Whether the answer is to be JSON.
    pub(crate) fn is_json(&self) -> bool {
        self.json || matches!(&self.command, Command::Doctor(doctor) if doctor.format == Format::Json)
    }
}

impl std::fmt::Debug for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Target").field("schema", &self.schema).field("by", &self.by).finish_non_exhaustive()
    }
}

fn schema(text: &str) -> Result<SchemaName, String> {
    SchemaName::new(text).map_err(|error| error.to_string())
}

/// Several people are `postgres` or `root` on their machines.
fn operator() -> String {
    let user = std::env::var("USER").ok().filter(|name| !name.trim().is_empty());
    format!("{}@{}", user.as_deref().unwrap_or("operator"), host_name())
}

/// A line of the trail without a name would be useless.
fn by(text: &str) -> Result<String, String> {
    if text.trim().is_empty() { Err("it must name somebody".to_owned()) } else { Ok(text.to_owned()) }
}

fn reason(text: &str) -> Result<Reason, String> {
    let known = || Reason::ALL.map(Reason::as_str).join(", ");
    Reason::parse(text).ok_or_else(|| format!("it must be one of {}", known()))
}

fn group(text: &str) -> Result<String, String> {
    match Fingerprint::parse(text) {
        Some(group) => Ok(group.to_string()),
        None => {
            Err("it must be a group as `idem dead-letters groups` prints it: f1- and 16 hexadecimal digits".to_owned())
        }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Make the folder of a new worker: program, test, settings, image, compose file, CI, alerts, dashboard
    New(New),
    /// Make and change idem's tables
    #[command(subcommand)]
    Migrate(Migrate),
    /// See, pause, resume, rename and rebind consumers
    #[command(subcommand)]
    Consumers(Consumers),
    /// All that is known of a key, and the outcome of a redelivery; the audit trail notes that you have read it
    Show(Show),
    /// Remove the records of keys, so that their messages take effect once more when they come again
    Forget(Forget),
    /// List forgotten keys, and take them back
    #[command(subcommand)]
    Forgotten(Forgotten),
    /// Blank everything that idem keeps of a key: its text, payloads, headers, errors; redeliveries are still skipped
    Erase(Erase),
    /// See, replay and drop messages that were set aside
    #[command(subcommand)]
    DeadLetters(DeadLetters),
    /// List messages that wait for a later try, the next one first: `dead-letters list --state waiting`
    Waiting(Waiting),
    /// List waiting events, send or skip failed ones, and stop the sending to a destination
    #[command(subcommand)]
    Outbox(Outbox),
    /// Remove expired rows
    Cleanup(Clean),
    /// The numbers of rows, by consumer; counts every record
    Stats,
    /// Look for problems of database, schema and consumers, each with its cure
    Doctor(Doctor),
    /// Starts of workers, the newest first
    Workers(Limit),
    /// How long records are kept
    #[command(subcommand)]
    Retention(Retention),
    /// Keys that keep failing, and sessions that wait
    Stuck(Limit),
    /// As `consumers pause`, for those who look for it here
    #[command(hide = true)]
    Pause(Because),
    /// As `consumers resume`
    #[command(hide = true)]
    Resume {
        /// The consumer
        consumer: String,
    },
    /// Print a script that completes this command in a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

/// Which broker the worker consumes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum BrokerKind {
    Kafka,
    Rabbitmq,
    Sqs,
}

/// Where the worker writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum StoreKind {
    Postgres,
    Sqlite,
    Dynamodb,
}

#[derive(Debug, Args)]
pub(crate) struct New {
    /// The worker's name, which its folder, package, consumer and topic or queue get
    pub(crate) name: String,
    /// Where its messages come from
    #[arg(long, value_name = "BROKER")]
    pub(crate) broker: BrokerKind,
    /// Where it writes
    #[arg(long, value_name = "STORE")]
    pub(crate) store: StoreKind,
    /// Take idem's crates from this folder, such as a clone of idem [default: from the registry]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) crates: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Migrate {
    /// Bring the tables to this build's version
    Up,
    /// Take the newest migration back; the first one only where there is no record
    Down(Yes),
    /// Which migrations were applied, and which are to come
    Status,
    /// Print the migrations as one script, to run by hand
    Print {
        /// Print the script that makes the roles and grants their rights instead
        #[arg(long)]
        roles: bool,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Consumers {
    /// Consumers, their state and bindings, and about how many records they have
    List,
    /// Stop intake; running workers obey within seconds
    Pause(Because),
    /// Start intake again, after a pause or a halt
    Resume {
        /// The consumer
        consumer: String,
    },
    /// Give a consumer another name; its records stay its own
    Rename {
        /// The name it has
        consumer: String,
        /// The name it gets
        to: String,
        #[command(flatten)]
        yes: Yes,
    },
    /// Remove the tenants of a consumer that nothing refers to: no record, dead letter, event, attempt or line of the audit log
    Prune {
        /// The consumer
        consumer: String,
        #[command(flatten)]
        yes: Yes,
    },
    /// Let the next start bind a consumer anew: to another source or handler, or to other key or hash rules
    Rebind {
        /// The consumer
        consumer: String,
        #[command(flatten)]
        yes: Yes,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Because {
    /// The consumer
    pub(crate) consumer: String,
    /// The reason, for later operators
    #[arg(long, value_name = "WHY", value_parser = why)]
    pub(crate) reason: String,
}

#[derive(Debug, Args)]
pub(crate) struct Show {
    /// The key as it came
    pub(crate) key: String,
    #[command(flatten)]
    pub(crate) of: OfRequest,
    /// Of this consumer only
    #[arg(long, value_name = "NAME")]
    pub(crate) consumer: Option<String>,
    /// Also the operation's answer, which is noted in the audit trail
    #[arg(long)]
    pub(crate) result: bool,
}

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("which").required(true).multiple(true).args(["key", "keys", "from", "to", "run", "release"]))]
pub(crate) struct Forget {
    /// Keys as they came
    pub(crate) key: Vec<String>,
    #[command(flatten)]
    pub(crate) of: OfRequest,
    /// The consumer
    #[arg(long, value_name = "NAME")]
    pub(crate) consumer: String,
    /// Why, for the audit trail
    #[arg(long, value_name = "WHY", value_parser = why)]
    pub(crate) reason: String,
    /// Keys of this file, one a line
    #[arg(long, value_name = "FILE", conflicts_with_all = ["from", "to", "run", "release"])]
    pub(crate) keys: Option<PathBuf>,
    /// Keys processed from this time on, such as 2026-11-21T20:00:00Z
    #[arg(long, value_name = "TIME", conflicts_with = "key")]
    pub(crate) from: Option<String>,
    /// Keys processed before this time
    #[arg(long, value_name = "TIME", conflicts_with = "key")]
    pub(crate) to: Option<String>,
    /// Keys that this run of a worker processed; `idem workers` lists the runs
    #[arg(long, value_name = "ID", conflicts_with = "key")]
    pub(crate) run: Option<i64>,
    /// Keys that workers of this version processed
    #[arg(long = "version", value_name = "VERSION", conflicts_with = "key")]
    pub(crate) release: Option<String>,
    /// Only say how many records there are
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) yes: Yes,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Forgotten {
    /// The keys that can still be taken back, the newest first
    List(Limit),
    /// Make these keys records again, except where their messages have run again meanwhile
    Restore {
        /// The number in the answer of `forget`
        batch: i64,
        #[command(flatten)]
        yes: Yes,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Erase {
    /// The key as it came
    pub(crate) key: String,
    #[command(flatten)]
    pub(crate) of: OfRequest,
    /// Of this consumer only
    #[arg(long, value_name = "NAME")]
    pub(crate) consumer: Option<String>,
    /// Why, for the audit trail, which will not hold the key
    #[arg(long, value_name = "WHY", value_parser = why)]
    pub(crate) reason: String,
    #[command(flatten)]
    pub(crate) yes: Yes,
}

#[derive(Debug, Subcommand)]
pub(crate) enum DeadLetters {
    /// The newest dead letters
    List {
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        limit: Limit,
    },
    /// One dead letter; the audit trail notes that you have read it
    Show {
        /// Its id
        id: i64,
        /// With its payload and headers, which the trail notes too
        #[arg(long)]
        payload: bool,
    },
    /// Dead letters that failed alike, the largest group first: list, replay and drop take a group with --group
    Groups(Groups),
    /// Have running workers of the consumer handle them again
    Replay(Replay),
    /// Give up payloads that can neither be kept nor published, so that their messages are acknowledged
    AcceptLoss(AcceptLoss),
    /// Delete them
    Drop {
        #[command(flatten)]
        which: Which,
        /// Why, for the audit trail
        #[arg(long = "because", value_name = "WHY", value_parser = why)]
        because: String,
        /// Only say how many there are
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        yes: Yes,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Groups {
    /// Of this consumer
    #[arg(long, value_name = "NAME")]
    pub(crate) consumer: Option<String>,
    /// The group with the newest dead letter first
    #[arg(long)]
    pub(crate) newest: bool,
    /// Of dead ones, or of those that wait for a later try
    #[arg(long, value_name = "STATE", default_value = "dead")]
    pub(crate) state: StateOf,
    #[command(flatten)]
    pub(crate) limit: Limit,
}

#[derive(Debug, Args)]
pub(crate) struct AcceptLoss {
    /// Ids of dead letters that `idem stuck` lists as held, or the origin of one
    #[arg(required = true, value_name = "ID|ORIGIN")]
    pub(crate) which: Vec<String>,
    /// Why, for the audit trail
    #[arg(long, value_name = "WHY", value_parser = why)]
    pub(crate) reason: String,
    #[command(flatten)]
    pub(crate) yes: Yes,
}

#[derive(Debug, Args)]
pub(crate) struct Replay {
    #[command(flatten)]
    pub(crate) which: Which,
    /// Forget the records of their keys first, so that their payloads take effect: for conflicts, by id or --group
    #[arg(long)]
    pub(crate) forget_first: bool,
    /// Replay it under this key: for one without a key, or for a conflict that is another message
    #[arg(long, visible_alias = "new-key", value_name = "KEY", conflicts_with = "forget_first")]
    pub(crate) key: Option<String>,
    /// Replay it with the payload in this file: for a malformed one
    #[arg(long, value_name = "FILE")]
    pub(crate) payload: Option<PathBuf>,
    /// Replay malformed ones as they are, because the handler was fixed
    #[arg(long, conflicts_with = "payload")]
    pub(crate) unchanged: bool,
    /// Wait until they are over, and show how far they are
    #[arg(long, conflicts_with = "dry_run")]
    pub(crate) wait: bool,
    /// Only say how many there are
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) yes: Yes,
}

/// Dead letters, and messages that wait for a later try.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum StateOf {
    /// It is dead, and an operator decides
    Dead,
    /// It waits for a later try
    Waiting,
    /// Either
    All,
}

/// Messages that wait for a later try.
#[derive(Debug, Args)]
pub(crate) struct Waiting {
    /// Of this consumer
    #[arg(long, value_name = "NAME")]
    pub(crate) consumer: Option<String>,
    #[command(flatten)]
    pub(crate) limit: Limit,
}

impl Waiting {
    /// The long form of the command.
    pub(crate) fn list(self) -> DeadLetters {
        let which = Which { consumer: self.consumer, state: Some(StateOf::Waiting), ..Which::default() };
        DeadLetters::List { which, limit: self.limit }
    }
}

/// Which dead letters.
#[derive(Debug, Default, Args)]
pub(crate) struct Which {
    /// These, by their ids
    pub(crate) id: Vec<i64>,
    /// Of this consumer
    #[arg(long, value_name = "NAME")]
    pub(crate) consumer: Option<String>,
    /// That were set aside for this reason
    #[arg(long, value_name = "REASON", value_parser = reason)]
    pub(crate) reason: Option<Reason>,
    /// Whose last copy came at this time or later, such as 2026-11-21T20:00:00Z
    #[arg(long, value_name = "TIME")]
    pub(crate) from: Option<String>,
    /// Whose last copy came before this time
    #[arg(long, value_name = "TIME")]
    pub(crate) to: Option<String>,
    /// That failed alike, as `idem dead-letters groups` names them
    #[arg(long, value_name = "GROUP", value_parser = group)]
    pub(crate) group: Option<String>,
    /// Only those that were not replayed, or failed again
    #[arg(long)]
    pub(crate) open: bool,
    /// Dead ones unless they are named by their ids, which may be in any state
    #[arg(long, value_name = "STATE")]
    pub(crate) state: Option<StateOf>,
}

impl Which {
    /// The state that is meant.
    pub(crate) fn state(&self) -> StateOf {
        self.state.unwrap_or(if self.id.is_empty() { StateOf::Dead } else { StateOf::All })
    }
}

#[derive(Debug, Args)]
pub(crate) struct Clean {
    /// Only say how many rows there are
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Print the same as a script for a scheduler of the database's own
    #[arg(long, conflicts_with = "dry_run")]
    pub(crate) print_sql: bool,
    /// Rows a step
    #[arg(long, value_name = "COUNT", default_value_t = 10_000)]
    pub(crate) rows_max: u32,
    /// How long counts of failed attempts are kept
    #[arg(long, value_name = "TIME", default_value = "7d", value_parser = spans::span)]
    pub(crate) attempts_kept: Duration,
    /// How long dead letters are kept
    #[arg(long, value_name = "TIME", default_value = "30d", value_parser = spans::span)]
    pub(crate) dead_letters_kept: Duration,
    /// How long the audit trail is kept; on PostgreSQL at least 30 days
    #[arg(long, value_name = "TIME", default_value = "365d", value_parser = spans::span)]
    pub(crate) audit_kept: Duration,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Retention {
    /// Rewrite until when a consumer's records are kept; workers give new ones their --retention
    Set {
        /// The consumer
        consumer: String,
        /// How long from when each was processed, such as 24h or 7d
        #[arg(value_parser = spans::span)]
        time: Duration,
        /// Said for clarity: only records that are there are rewritten
        #[arg(long)]
        existing: bool,
        #[command(flatten)]
        yes: Yes,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// For how long the broker may deliver a message again, such as the topic's retention: compared with the consumers'
    #[arg(long, value_name = "TIME", value_parser = spans::span)]
    pub(crate) broker_horizon: Option<Duration>,
    /// For how long clients of services over HTTP may send a request again: compared with how long their keys are known
    #[arg(long, value_name = "TIME", value_parser = spans::span)]
    pub(crate) client_window: Option<Duration>,
    /// How long after its request a record of a service over HTTP is to be gone: compared with those that are still there
    #[arg(long, value_name = "TIME", value_parser = spans::span)]
    pub(crate) gone_within: Option<Duration>,
    /// The number of a key that services and other consumers have for sealing answers; repeatable: compared with those that the
    /// answers are sealed with which end first and last, 10,000 each
    #[arg(long, value_name = "NUMBER")]
    pub(crate) sealing_key: Vec<u16>,
    /// How to answer
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub(crate) format: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// For people
    Text,
    /// As --json
    Json,
}
