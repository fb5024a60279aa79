//! The flags of a rig that other workers have in code: each calls its setter.

use std::time::Duration;

use clap::{ArgAction, ValueEnum};
use idem_core::{
    config::{OlderThanRetention, OnConflict, OnUnkeepable},
    key::KeyPolicy,
    outbox::CloudEvents,
};
use idem_service::{Broker, Database, Service, key_rule, values};

/// What an author says in code.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Author")]
pub(crate) struct Author {
    /// Where keys come from; repeatable, the first that is present wins: header:NAME, json:/POINTER, record-key,
    /// cloudevents, message-id, type, join(A,B) [default: header:idempotencykey and json:/idempotencykey, which must agree
    /// where both are present]
    #[arg(long, value_name = "RULE", value_parser = rule)]
    key: Vec<String>,

    /// The required form of a key; uuid-strict also wants a version and variant of RFC 9562
    #[arg(long, value_name = "POLICY", default_value = "token")]
    key_policy: KeyPolicyFlag,

    /// Refuse a --retention that is not longer than the broker may deliver a message again, in place of a warning
    #[arg(long)]
    strict_retention: bool,

    /// How long a claim waits for others that hold its keys
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = values::span)]
    busy_timeout: Duration,

    /// How many messages are received and not yet settled at most
    #[arg(long, value_name = "COUNT", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    in_flight: u32,

    /// The treatment of a message that is older than its record would be kept
    #[arg(long, value_name = "POLICY", default_value = "process")]
    older_than_retention: OlderThanRetentionFlag,

    /// The most headers of a message that is handled; one with more is a dead letter
    #[arg(long, value_name = "COUNT", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    headers_max: u32,

    /// The most bytes of all names and values of its headers
    #[arg(long, value_name = "BYTES", default_value = "64KiB", value_parser = values::size)]
    headers_bytes_max: usize,

    /// The treatment of a message that is to be set aside and cannot be kept; it is not acknowledged either way
    #[arg(long, value_name = "POLICY", default_value = "hold")]
    on_unkeepable: OnUnkeepableFlag,

    /// The wait after the first attempt; each further one is longer, up to --backoff-max
    #[arg(long, value_name = "TIME", default_value = "200ms", value_parser = values::span)]
    backoff_first: Duration,

    /// The wait before the last attempt
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = values::span)]
    backoff_max: Duration,

    /// The treatment of a message whose key was used before for another payload
    #[arg(long, value_name = "POLICY", default_value = "dead-letter")]
    on_conflict: OnConflictFlag,

    /// Whether more than half of the last 50 fresh messages becoming dead letters pauses intake
    #[arg(
        long, value_name = "on|off", default_value = "on", default_missing_value = "on", num_args = 0..=1,
        action = ArgAction::Set, value_parser = values::on_or_off
    )]
    dead_letter_breaker: bool,

    /// How events are written
    #[arg(long, value_name = "FORMAT", default_value = "binary")]
    event_format: EventFormatFlag,

    /// The source of events, an attribute of CloudEvents: a URI reference
    #[arg(long, value_name = "URI", value_parser = event_source)]
    event_source: Option<String>,
}

/// The flag's words for [`CloudEvents`].
#[derive(Debug, Clone, Copy, ValueEnum)]
enum EventFormatFlag {
    Binary,
    Structured,
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

/// The text of a rule, checked.
fn rule(text: &str) -> Result<String, String> {
    key_rule(text).map(|_| text.to_owned())
}

/// A source, checked.
fn event_source(text: &str) -> Result<String, String> {
    let checked = CloudEvents::default().source(text);
    checked.map(|_| text.to_owned()).map_err(|error| format!("it must be {}", error.rule))
}

impl Author {
    /// Sets what the flags say.
    pub(crate) fn set<B: Broker, D: Database>(self, mut service: Service<B, D>) -> Service<B, D> {
        for rule in &self.key {
            service = service.key(rule.clone());
        }
        let (headers, bytes) = (self.headers_max as usize, self.headers_bytes_max);
        let (policy, busy) = (self.key_policy(), self.busy_timeout);
        service
            .cloud_events(self.cloud_events())
            .consumer(move |consumer| {
                consumer.key_policy(policy).headers_max(headers).headers_bytes_max(bytes).busy_timeout(busy)
            })
            .worker(move |worker| {
                worker.strict_retention = self.strict_retention;
                worker.in_flight = self.in_flight as usize;
                (worker.retry.first, worker.retry.max) = (self.backoff_first, self.backoff_max);
                worker.breaker = self.dead_letter_breaker;
                worker.on_conflict = self.on_conflict();
                worker.older_than_retention = self.older_than_retention();
                worker.on_unkeepable = self.on_unkeepable();
            })
    }

    fn cloud_events(&self) -> CloudEvents {
        let form = match self.event_format {
            EventFormatFlag::Binary => CloudEvents::binary(),
            EventFormatFlag::Structured => CloudEvents::structured(),
        };
        self.event_source.as_deref().and_then(|source| form.clone().source(source).ok()).unwrap_or(form)
    }

    fn key_policy(&self) -> KeyPolicy {
        match self.key_policy {
            KeyPolicyFlag::Token => KeyPolicy::Token,
            KeyPolicyFlag::Uuid => KeyPolicy::Uuid,
            KeyPolicyFlag::UuidStrict => KeyPolicy::UuidStrict,
        }
    }

    fn on_conflict(&self) -> OnConflict {
        match self.on_conflict {
            OnConflictFlag::DeadLetter => OnConflict::DeadLetter,
            OnConflictFlag::Acknowledge => OnConflict::Acknowledge,
            OnConflictFlag::Halt => OnConflict::Halt,
        }
    }

    fn older_than_retention(&self) -> OlderThanRetention {
        match self.older_than_retention {
            OlderThanRetentionFlag::Process => OlderThanRetention::Process,
            OlderThanRetentionFlag::DeadLetter => OlderThanRetention::DeadLetter,
            OlderThanRetentionFlag::Halt => OlderThanRetention::Halt,
        }
    }

    fn on_unkeepable(&self) -> OnUnkeepable {
        match self.on_unkeepable {
            OnUnkeepableFlag::Hold => OnUnkeepable::Hold,
            OnUnkeepableFlag::Halt => OnUnkeepable::Halt,
        }
    }
}
