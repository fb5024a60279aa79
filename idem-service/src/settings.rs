//! The flags and variables that all workers have in common, beside those of every process.

use std::time::Duration;

use idem_core::{
    ConfigError, Retention,
    config::{ConsumerSettings, DEAD_LETTER_PAYLOAD_BYTES_MAX, Later},
};
use idem_sql::{PostgresSettings, RECORD_BYTES};

use crate::{cleanup::CleanupFlags, database::DatabaseSettings, flags::Flags, inbox::InboxFlags, sizes, spans};

/// The settings of a worker. Texts and defaults stand in `--help`.
#[derive(Debug, clap::Args)]
// An application's own settings may have the same name.
#[group(skip)]
pub(crate) struct Settings {
    #[command(flatten)]
    pub(crate) flags: Flags,

    /// The consumer's name, which scopes its keys
    #[arg(long, value_name = "NAME")]
    pub(crate) consumer: String,

    /// How long records are kept: 2h, 24h, 7d or any other time, or forever
    #[arg(long, value_name = "TIME", default_value = "7d", value_parser = spans::retention)]
    pub(crate) retention: Retention,

    /// Try whether the worker could start, and exit: 0, or the status and line of the start that would fail. Receives and writes
    /// nothing; on Kafka it joins its group for a moment
    #[arg(long, conflicts_with_all = ["migrate", "create_tables"])]
    pub(crate) check: bool,

    /// Drain and exit once attached and idle for that long [default: never]
    #[arg(long, hide_short_help = true, value_name = "TIME", value_parser = spans::span)]
    pub(crate) until_idle: Option<Duration>,

    /// The largest payload that is handled; a larger one is a dead letter
    #[arg(long, hide_short_help = true, value_name = "BYTES", default_value = "1MiB", value_parser = sizes::size)]
    pub(crate) payload_max: usize,

    /// The largest payload that a row of dead letters keeps; a message beyond it is settled only once a topic or queue for
    /// dead letters has confirmed it [default: 32MiB, or --payload-max where that is more]
    #[arg(long, hide_short_help = true, value_name = "BYTES", value_parser = sizes::size)]
    dead_letter_payload_max: Option<usize>,

    /// How many bytes the dead letters of the consumer take at most, or off; a message for which there is no room cannot be kept
    #[arg(long, hide_short_help = true, value_name = "BYTES", default_value = "4GiB", value_parser = quota)]
    pub(crate) dead_letters_bytes_max: Quota,

    /// How many attempts a message gets
    #[arg(long, value_name = "COUNT", default_value_t = 5, value_parser = sizes::count(1_u32..=1_000))]
    pub(crate) attempts: u32,

    /// The delays of the later tries of a message whose attempts have failed, such as 30s,2m,10m,1h, or off. Meanwhile it is a row of the
    /// database; a message with an ordering key has none
    #[arg(long, value_name = "TIMES", default_value = "off", value_parser = later)]
    pub(crate) retry_later: Later,

    /// How many units run side by side, each on a connection of its own [default: the cores, at most 4; 64 on DynamoDB]
    #[arg(long, value_name = "COUNT", value_parser = sizes::count(1_usize..=1024))]
    pub(crate) lanes: Option<usize>,

    /// How many messages one unit holds at most
    #[arg(long, value_name = "COUNT", default_value_t = 100, value_parser = sizes::count(1_usize..=10_000))]
    pub(crate) batch: usize,

    #[command(flatten)]
    pub(crate) inbox: InboxFlags,

    #[command(flatten)]
    pub(crate) cleanup: CleanupFlags,
}

impl Settings {
    /// By default every message that is handled can be kept.
    pub(crate) fn dead_letter_payload_max(&self) -> usize {
        self.dead_letter_payload_max.unwrap_or(DEAD_LETTER_PAYLOAD_BYTES_MAX.max(self.payload_max))
    }

    /// The worker's name in PostgreSQL's list of activities is its consumer, so that `idem stuck` finds it.
    pub(crate) fn for_database(&self) -> DatabaseSettings<'_> {
        self.flags.for_database(&self.consumer, &self.cleanup)
    }

    /// The size of the table of records, for planning a disk: rows are rate times retention.
    pub(crate) fn forecast(&self) -> Option<String> {
        let Retention::For(time) = self.retention else { return None };
        let rows = time.as_secs();
        let megabytes = rows * RECORD_BYTES / 1_000_000;
        Some(format!("{rows} records and {megabytes} MB for each message a second"))
    }

    /// How many connections the worker keeps to a PostgreSQL, for planning its `max_connections`; `None` on another database.
    pub(crate) fn connections(&self) -> Option<String> {
        if !["postgres", "postgresql"].contains(&self.flags.database_url.scheme()) {
            return None;
        }
        let lanes = self.lanes.unwrap_or_else(ConsumerSettings::lanes_by_default);
        let others = PostgresSettings::default().connections as usize;
        let cleanup = usize::from(self.cleanup.settings().is_some());
        let all = lanes + others + cleanup;
        Some(format!("{all} (lanes {lanes}, control and bookkeeping {others}, cleanup {cleanup})"))
    }
}

/// Core's refusal of a setting, under the name of the flag, or under its name in code where it has no flag.
pub(crate) fn refused_of(flags: &[String], error: &ConfigError) -> String {
    let line = refused(error);
    let flag = line.split(' ').next().unwrap_or_default().trim_start_matches("--");
    if flags.iter().any(|known| known == flag) { line } else { error.to_string() }
}

/// The same of a setting that has a flag.
pub(crate) fn refused(error: &ConfigError) -> String {
    let flag = match error.field {
        "name" => "consumer".to_owned(),
        "payload_bytes_max" => "payload-max".to_owned(),
        "dead_letter_payload_bytes_max" => "dead-letter-payload-max".to_owned(),
        "result_retention" => "answers-for".to_owned(),
        "retry.later" => "retry-later".to_owned(),
        field => field.trim_start_matches("retry.").trim_start_matches("relay.").replace('_', "-"),
    };
    format!("--{flag} is {}, but {}", error.value, error.rule)
}

/// The same of a publisher of events: its type, which also takes dead letters, names the field after those, but here it is a
/// destination.
#[cfg(any(feature = "kafka", feature = "amqp", feature = "sqs"))]
pub(crate) fn refused_destination(error: &ConfigError) -> String {
    if error.field.starts_with("dead_letter_") {
        return format!("the destination is {}, but {}", error.value, error.rule);
    }
    refused(error)
}

/// Delays with commas between them, or none.
fn later(text: &str) -> Result<Later, String> {
    if text == "off" {
        return Ok(Later::NONE);
    }
    let delays: Result<Vec<_>, _> = text.split(',').map(spans::span).collect();
    let delays = delays.map_err(|error| format!("{error}, with a comma between two, or off"))?;
    Later::new(delays).ok_or_else(|| format!("it must be at most {} times", Later::MAX))
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
