//! The flags and variables that all workers have in common, beside those of every process.

use std::{sync::Arc, time::Duration};

use clap::{ArgAction, ValueEnum};
use idem_core::{
    ConfigError, ConsumerSettings, DEAD_LETTER_PAYLOAD_BYTES_MAX, KeyPolicy, KeySource, OlderThanRetention, OnConflict,
    OnUnkeepable, Retention,
};
use idem_sql::{PostgresSettings, RECORD_BYTES};

use crate::{cleanup::CleanupFlags, database::DatabaseSettings, flags::Flags, keys, sizes, spans, values::on_or_off};

/// The settings of a worker. Texts and defaults stand in `--help`.
#[derive(Debug, clap::Args)]
pub(crate) struct Settings {
    #[command(flatten)]
    pub(crate) flags: Flags,

    /// The consumer's name, which scopes its keys
    #[arg(long, value_name = "NAME")]
    pub(crate) consumer: String,

    /// Where keys come from; repeatable, the first that is present wins: header:NAME, json:/POINTER, record-key,
    /// cloudevents, message-id, type, join(A,B) [default: header:idempotencykey and json:/idempotencykey, which must agree
    /// where both are present]
    #[arg(long, hide_short_help = true, value_name = "RULE", value_parser = keys::key)]
    pub(crate) key: Vec<Arc<dyn KeySource>>,

    /// The required form of a key; uuid-strict also wants a version and variant of RFC 9562
    #[arg(long, hide_short_help = true, value_name = "POLICY", default_value = "token")]
    key_policy: KeyPolicyFlag,

    /// How long records are kept: 2h, 24h, 7d or any other time, or forever
    #[arg(long, value_name = "TIME", default_value = "7d", value_parser = spans::retention)]
    pub(crate) retention: Retention,

    /// Refuse a --retention that is not longer than the broker may deliver a message again, in place of a warning
    #[arg(long, hide_short_help = true)]
    pub(crate) strict_retention: bool,

    /// Try whether the worker could start, and exit: 0, or the status and line of the start that would fail. Receives and writes
    /// nothing; on Kafka it joins its group for a moment
    #[arg(long, conflicts_with_all = ["migrate", "create_tables"])]
    pub(crate) check: bool,

    /// Drain and exit once attached and idle for that long [default: never]
    #[arg(long, hide_short_help = true, value_name = "TIME", value_parser = spans::span)]
    pub(crate) until_idle: Option<Duration>,

    /// How long a claim waits for others that hold its keys
    #[arg(long, hide_short_help = true, value_name = "TIME", default_value = "5s", value_parser = spans::span)]
    pub(crate) busy_timeout: Duration,

    /// How many messages are received and not yet settled at most
    #[arg(long, hide_short_help = true, value_name = "COUNT", default_value_t = 10_000, value_parser = sizes::count(1_usize..=10_000_000))]
    pub(crate) in_flight: usize,

    /// The treatment of a message that is older than its record would be kept
    #[arg(long, hide_short_help = true, value_name = "POLICY", default_value = "process")]
    older_than_retention: OlderThanRetentionFlag,

    /// The largest payload that is handled; a larger one is a dead letter
    #[arg(long, hide_short_help = true, value_name = "BYTES", default_value = "1MiB", value_parser = sizes::size)]
    pub(crate) payload_max: usize,

    /// The most headers of a message that is handled; one with more is a dead letter
    #[arg(long, hide_short_help = true, value_name = "COUNT", default_value_t = 1_000, value_parser = sizes::count(1_usize..=100_000))]
    pub(crate) headers_max: usize,

    /// The most bytes of all names and values of its headers
    #[arg(long, hide_short_help = true, value_name = "BYTES", default_value = "64KiB", value_parser = sizes::size)]
    pub(crate) headers_bytes_max: usize,

    /// The largest payload that a row of dead letters keeps; a message beyond it is settled only once a topic or queue for
    /// dead letters has confirmed it [default: 32MiB, or --payload-max where that is more]
    #[arg(long, hide_short_help = true, value_name = "BYTES", value_parser = sizes::size)]
    dead_letter_payload_max: Option<usize>,

    /// How many bytes the dead letters of the consumer take at most, or off; a message for which there is no room cannot be kept
    #[arg(long, hide_short_help = true, value_name = "BYTES", default_value = "4GiB", value_parser = quota)]
    pub(crate) dead_letters_bytes_max: Quota,

    /// The treatment of a message that is to be set aside and cannot be kept; it is not acknowledged either way
    #[arg(long, hide_short_help = true, value_name = "POLICY", default_value = "hold")]
    on_unkeepable: OnUnkeepableFlag,

    /// How many attempts a message gets
    #[arg(long, value_name = "COUNT", default_value_t = 5, value_parser = sizes::count(1_u32..=1_000))]
    pub(crate) attempts: u32,

    /// The wait after the first attempt; each further one is longer, up to --backoff-max
    #[arg(long, hide_short_help = true, value_name = "TIME", default_value = "200ms", value_parser = spans::span)]
    pub(crate) backoff_first: Duration,

    /// The wait before the last attempt
    #[arg(long, hide_short_help = true, value_name = "TIME", default_value = "30s", value_parser = spans::span)]
    pub(crate) backoff_max: Duration,

    /// The treatment of a message whose key was used before for another payload
    #[arg(long, hide_short_help = true, value_name = "POLICY", default_value = "dead-letter")]
    on_conflict: OnConflictFlag,

    /// Whether more than half of the last 50 fresh messages becoming dead letters pauses intake
    #[arg(
        long, hide_short_help = true, value_name = "on|off", default_value = "on", default_missing_value = "on", num_args = 0..=1,
        action = ArgAction::Set, value_parser = on_or_off
    )]
    pub(crate) dead_letter_breaker: bool,

    /// How many units run side by side, each on a connection of its own [default: the cores, at most 4]
    #[arg(long, value_name = "COUNT", value_parser = sizes::count(1_usize..=1024))]
    pub(crate) lanes: Option<usize>,

    /// How many messages one unit holds at most
    #[arg(long, value_name = "COUNT", default_value_t = 100, value_parser = sizes::count(1_usize..=10_000))]
    pub(crate) batch: usize,

    #[command(flatten)]
    pub(crate) cleanup: CleanupFlags,
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

/// The same of a publisher of events: its type, which also takes dead letters, names the field after those, but here it is a
/// destination.
#[cfg(any(feature = "kafka", feature = "amqp", feature = "sqs"))]
pub(crate) fn refused_destination(error: &ConfigError) -> String {
    if error.field.starts_with("dead_letter_") {
        return format!("the destination is {}, but {}", error.value, error.rule);
    }
    refused(error)
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
