//! Every setting with its default, unit and limits. `build()` refuses a value that breaks a rule, and names field, value, rule.

use std::time::Duration;

pub use crate::{
    names::ParseNameError,
    retry::{Later, RetryPolicy},
};

use crate::{cleanup::CleanupSettings, config_error::ConfigError, names::Retention, span::Exactly};

/// A handler's effects beside the writes through its transaction. There is no default: only the handler's author knows,
/// and batches are safe only for the first kind. They are the consumer's, and [`Router::on_with`](crate::Router::on_with) sets others for
/// a type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effects {
    /// Nothing: batches may run again as a whole.
    InTransaction,
    /// It calls other systems, which happens at least once: one message a unit, in order, each attempt counted before
    /// it runs. Needs a handler deadline. Give the provider [`Message::derived_key`](crate::Message::derived_key).
    Outside,
}

/// How the handlers of one unit run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Concurrency {
    /// One after the other, in the order of delivery, each with the transaction for itself.
    #[default]
    InOrder,
    /// At once, on the transaction that they share, so that their statements travel together: much faster where the
    /// database is a network away. Those of one ordering key still run one after the other.
    ///
    /// It needs a store that shares its transaction, and handlers that tolerate each other's uncommitted writes: one
    /// that reads a row and then writes it back can undo a neighbour's write between the two. See the store's
    /// documentation.
    Pipelined {
        /// How many run at once. From 1 to 10,000; [`Concurrency::pipelined`] says 100.
        at_once: usize,
    },
}

impl Concurrency {
    /// At once, up to a hundred.
    #[must_use]
    pub const fn pipelined() -> Self {
        Self::Pipelined { at_once: 100 }
    }
}

/// The policy for a message whose key was used before for another payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnConflict {
    /// It is set aside with reason `conflict`.
    #[default]
    DeadLetter,
    /// It is acknowledged, counted and audited.
    Acknowledge,
    /// The consumer halts until an operator resumes it.
    Halt,
}

/// The policy for a dead letter whose payload neither the database nor a publisher has. Under neither is the message
/// acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnUnkeepable {
    /// It is held, alone or with the messages behind it in its ordering key, and the others go on. It is looked at again
    /// after each back-off, and settled once a publisher confirms it or an operator accepts the loss; where the broker
    /// does not wait that long, it is given back.
    #[default]
    Hold,
    /// The consumer halts, with all its tenants, until an operator resumes it.
    Halt,
}

/// The policy for a message that is older than the retention, so that its record may already be gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OlderThanRetention {
    /// It is handled, counted and warned about.
    #[default]
    Process,
    /// It is set aside with reason `older-than-retention`.
    DeadLetter,
    /// The consumer halts until an operator resumes it.
    Halt,
}

/// The settings of a [`DedupConsumer`](crate::DedupConsumer).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConsumerSettings {
    /// How long records are kept. Defaults to 7 days; from 1 minute to 10 years, or for ever.
    pub retention: Retention,
    /// How long results are kept, where the consumer keeps any; never longer than the records. `None`, the default: 24 hours, or
    /// the retention where that is shorter. At least 1 minute.
    pub result_retention: Option<Retention>,
    /// How long one claim waits for others that hold its keys. Defaults to 5 s; from 1 ms to 5 minutes.
    pub busy_timeout: Duration,
    /// How long one call of the handler may take. Defaults to 30 s; from 1 ms to 12 h.
    pub handler_deadline: Duration,
    /// How long a commit may take before its outcome counts as unknown. Defaults to 10 s; from 10 ms to 5 minutes.
    pub commit_timeout: Duration,
    /// How long the database may take to answer beyond the limits it was given. Defaults to 10 s.
    pub answer_timeout: Duration,
    /// The largest payload that is handled, in bytes. Defaults to [`PAYLOAD_BYTES_MAX`]; from 1 to
    /// [`PAYLOAD_BYTES_CAP`]. A larger one is dead-lettered as `too-large`.
    pub payload_bytes_max: usize,
    /// The most headers of one message. Defaults to 1,000; from 1 to 100,000. A message with more is dead-lettered as
    /// `too-large` before anything of it is parsed: each header takes memory of some 50 bytes beside its own, so that
    /// many empty ones are small at the broker and large here.
    pub headers_max: usize,
    /// The most bytes of all names and values of one message's headers. Defaults to 64 KiB; from 1 byte to 1 GiB. A
    /// message with more is dead-lettered as `too-large`.
    pub headers_bytes_max: usize,
    /// How many units run side by side. Defaults to the cores, at most 4 and at most the store's own limit; to 64 on a store where each
    /// message is a unit of its own.
    pub lanes: usize,
    /// How the handlers of one unit run. Defaults to in order.
    pub handlers: Concurrency,
    /// Whether each unit holds one message, for handlers that set things for their transaction. Defaults to no, but with
    /// [`Effects::Outside`] it is always so.
    pub one_message_per_transaction: bool,
    /// How many messages of calls that come together share a unit at most; from 2 to 1,000. `None`, the default: each call has
    /// its own. It is for programs with receive loops of their own: a worker batches its messages.
    pub shared_unit_max: Option<usize>,
}

/// The default of [`ConsumerSettings::payload_bytes_max`]: 1 MiB, the default limit of Kafka and SQS.
pub const PAYLOAD_BYTES_MAX: usize = 1 << 20;

/// The default of [`WorkerSettings::dead_letter_payload_bytes_max`]: 32 MiB, above the brokers' default limits: 1 MiB on
/// Kafka and SQS, 16 MiB on RabbitMQ 4. RabbitMQ 3 takes up to 128 MiB; to keep those too, raise the setting, and with it
/// the memory of the process.
pub const DEAD_LETTER_PAYLOAD_BYTES_MAX: usize = 32 << 20;

/// The default of [`WorkerSettings::dead_letters_bytes_max`]: 4 GiB. It is on by default, because a full disk stops every
/// consumer and everything else in the database, while a quota that is used up makes one consumer's bad messages wait. It is
/// more than people look through: four thousand dead letters of 1 MiB, or two million of 1 KiB.
pub const DEAD_LETTERS_BYTES_MAX: u64 = 4 << 30;

/// The largest payload that any setting allows, to be handled or to be kept: 256 MiB. A value of PostgreSQL's ends at
/// 1 GB, and tools such as `pg_dump` write bytes as hexadecimal text of twice the length, beside a copy of their own; a
/// payload that is kept must also be readable again. Storing a payload takes about three times its length in memory for a
/// moment.
pub const PAYLOAD_BYTES_CAP: usize = 256 << 20;

/// The default of [`ConsumerSettings::result_retention`], where the retention is not shorter.
const ANSWERS_FOR: Duration = Duration::from_secs(24 * 3600);

/// The default of [`ConsumerSettings::lanes`] on a store where each message is a unit of its own: what a batch is elsewhere, lanes are there.
pub(crate) const LANES_OF_ONE_MESSAGE: usize = 64;

/// The longest time that any setting takes.
const YEARS_10: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

impl ConsumerSettings {
    pub(crate) fn new(lanes_max: Option<usize>) -> Self {
        Self {
            retention: Retention::For(Duration::from_secs(7 * 24 * 3600)),
            result_retention: None,
            busy_timeout: Duration::from_secs(5),
            handler_deadline: Duration::from_secs(30),
            commit_timeout: Duration::from_secs(10),
            answer_timeout: Duration::from_secs(10),
            payload_bytes_max: PAYLOAD_BYTES_MAX,
            headers_max: 1_000,
            headers_bytes_max: 64 << 10,
            lanes: Self::lanes_by_default().min(lanes_max.unwrap_or(usize::MAX)),
            handlers: Concurrency::default(),
            one_message_per_transaction: false,
            shared_unit_max: None,
        }
    }

    /// The default of [`lanes`](Self::lanes) on a store that takes any number of them.
    #[must_use]
    pub fn lanes_by_default() -> usize {
        std::thread::available_parallelism().map_or(1, std::num::NonZero::get).min(4)
    }

    /// How long a result is kept; `None` where it is as long as the record of its key.
    pub(crate) fn answers_kept_for(&self) -> Option<Duration> {
        match (self.result_retention.unwrap_or(Retention::For(ANSWERS_FOR)), self.retention) {
            (Retention::For(answers), Retention::For(records)) if answers >= records => None,
            (Retention::For(answers), Retention::For(_) | Retention::Forever) => Some(answers),
            (Retention::Forever, _) => None,
        }
    }

    fn check_retentions(&self) -> Result<(), ConfigError> {
        if let Retention::For(time) = self.retention {
            let rule = "it must be from 1 minute to 10 years; Retention::Forever keeps records for ever";
            span("retention", time, Duration::from_secs(60), YEARS_10, rule)?;
        }
        let rule =
            "it must be from 1 minute to the retention, because an answer is of no use without the record of its key";
        match (self.result_retention, self.retention) {
            (Some(Retention::For(time)), retention) => {
                let max = if let Retention::For(records) = retention { records } else { YEARS_10 };
                span("result_retention", time, Duration::from_secs(60), max, rule)
            }
            (Some(Retention::Forever), Retention::For(_)) => {
                Err(ConfigError::new("result_retention", "for ever", rule))
            }
            (Some(Retention::Forever), Retention::Forever) | (None, _) => Ok(()),
        }
    }

    pub(crate) fn check(&self, lanes_max: Option<usize>) -> Result<(), ConfigError> {
        self.check_retentions()?;
        let minutes_5 = Duration::from_secs(300);
        span("busy_timeout", self.busy_timeout, MILLISECOND, minutes_5, "it must be from 1 ms to 5 minutes")?;
        span("handler_deadline", self.handler_deadline, MILLISECOND, HOURS_12, "it must be from 1 ms to 12 hours")?;
        let commit_min = Duration::from_millis(10);
        span("commit_timeout", self.commit_timeout, commit_min, minutes_5, "it must be from 10 ms to 5 minutes")?;
        span("answer_timeout", self.answer_timeout, commit_min, minutes_5, "it must be from 10 ms to 5 minutes")?;
        let rule = "it must be from 1 byte to 256 MiB";
        number("payload_bytes_max", self.payload_bytes_max, 1, PAYLOAD_BYTES_CAP, rule)?;
        number("headers_max", self.headers_max, 1, 100_000, "it must be from 1 to 100,000")?;
        number("headers_bytes_max", self.headers_bytes_max, 1, 1 << 30, "it must be from 1 byte to 1 GiB")?;
        number("lanes", self.lanes, 1, 1024, "it must be from 1 to 1024")?;
        if let Some(max) = self.shared_unit_max {
            number("coalesce_calls", max, 2, 1_000, "it must be from 2 to 1,000")?;
        }
        if let Concurrency::Pipelined { at_once } = self.handlers {
            number("handlers.at_once", at_once, 1, 10_000, "it must be from 1 to 10,000")?;
        }
        match lanes_max {
            Some(max) if self.lanes > max => {
                Err(ConfigError::new("lanes", self.lanes, "this store has a single writer: use 1"))
            }
            Some(_) | None => Ok(()),
        }
    }
}

/// The settings of a [`Worker`](crate::Worker).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerSettings {
    /// How many messages one unit holds at most. Defaults to 100; from 1 to 10,000. Always 1 with
    /// [`Effects::Outside`].
    pub batch: usize,
    /// How many messages are received and not yet settled at most. Defaults to 10,000; at least one batch.
    pub in_flight: usize,
    /// How many bytes they take at most. Defaults to 64 MiB; at least the largest payload.
    pub in_flight_bytes: usize,
    /// Attempts and back-off.
    pub retry: RetryPolicy,
    /// How long a message waits, without being charged, while the database answers that it cannot serve a statement now, such
    /// as one on a table that a deploy has yet to create; after that each failure counts as an attempt. A message that may end
    /// the process waits as long for a broker that does not take settlements, and then runs; one that may have ended it in each of
    /// its attempts waits as long for those before it in its partition, and is then set aside. A dead letter whose row has its
    /// payload waits as long for its topic or queue to confirm it; after that the row alone has it. Defaults to 1 hour, and to
    /// half of the time for which the broker leaves a message in hand where that is less; from 0 to 12 hours.
    pub database_wait_max: Duration,
    /// Defaults to dead letter.
    pub on_conflict: OnConflict,
    /// Defaults to process.
    pub older_than_retention: OlderThanRetention,
    /// How long a stop waits for running units. Defaults to 20 s.
    pub drain: Duration,
    /// How long the start waits for a database or broker that cannot be reached. Defaults to 2 minutes.
    pub startup_timeout: Duration,
    /// Cleanup inside this worker, where its role may delete. Defaults to every hour; `None` turns it off.
    pub cleanup: Option<CleanupSettings>,
    /// Whether more than half of the last 50 fresh messages becoming dead letters pauses intake. Defaults to on.
    pub breaker: bool,
    /// How often the controls that operators set are read. Defaults to 2 s; at most 5 s.
    pub control_every: Duration,
    /// After how long with intake closed (a pause, a database that is down, an open breaker) the subscription ends and messages
    /// that were not begun go back, where the [source](crate::source::SourceCapabilities::pauses) asks for that. Defaults to
    /// 5 s; from 1 ms to 12 hours.
    pub give_back_after: Duration,
    /// Ends the run once the source is at its end and nothing is unsettled for this long. Defaults to never.
    pub until_idle: Option<Duration>,
    /// Refuses to start when records are kept for less than the broker may deliver again. Defaults to a warning.
    pub strict_retention: bool,
    /// The largest payload that a row of `dead_letters` keeps, in bytes. Defaults to [`DEAD_LETTER_PAYLOAD_BYTES_MAX`];
    /// from 0 to [`PAYLOAD_BYTES_CAP`]. A message with a larger one is acknowledged only once a publisher has confirmed it,
    /// see [`on_unkeepable`](Self::on_unkeepable).
    pub dead_letter_payload_bytes_max: usize,
    /// How many bytes the dead letters of the consumer take at most, over all its tenants and workers; `None` for no limit.
    /// Defaults to [`DEAD_LETTERS_BYTES_MAX`]; at least 1 KiB. Beyond it no further payload is kept, and beyond a quarter more
    /// no further row: the messages are held, see [`on_unkeepable`](Self::on_unkeepable), until letters are dropped or
    /// replayed. Each worker may go beyond it by a 64th before it measures again.
    pub dead_letters_bytes_max: Option<u64>,
    /// The policy for a dead letter that cannot be kept. Defaults to hold.
    pub on_unkeepable: OnUnkeepable,
    /// How long a key that is known committed is remembered, so that its duplicates are acknowledged without asking the
    /// database; never longer than the retention. A record that an operator removes may be answered from memory for up
    /// to 2 seconds more. Defaults to off; from 1 s to 1 hour, and 5 minutes are a good choice.
    pub cache_for: Option<Duration>,
    /// How many bytes those keys take at most; the oldest make room. Defaults to 64 MiB, which is about 200,000 keys.
    pub cache_bytes_max: usize,
}

impl Default for WorkerSettings {
    fn default() -> Self {
        Self {
            batch: 100,
            in_flight: 10_000,
            in_flight_bytes: 64 << 20,
            retry: RetryPolicy::default(),
            database_wait_max: Duration::from_secs(3_600),
            on_conflict: OnConflict::default(),
            older_than_retention: OlderThanRetention::default(),
            drain: Duration::from_secs(20),
            startup_timeout: Duration::from_secs(120),
            cleanup: Some(CleanupSettings::default()),
            breaker: true,
            control_every: Duration::from_secs(2),
            give_back_after: Duration::from_secs(5),
            until_idle: None,
            strict_retention: false,
            dead_letter_payload_bytes_max: DEAD_LETTER_PAYLOAD_BYTES_MAX,
            dead_letters_bytes_max: Some(DEAD_LETTERS_BYTES_MAX),
            on_unkeepable: OnUnkeepable::default(),
            cache_for: None,
            cache_bytes_max: 64 << 20,
        }
    }
}

impl WorkerSettings {
    pub(crate) fn check(&self, consumer: &ConsumerSettings) -> Result<(), ConfigError> {
        number("batch", self.batch, 1, 10_000, "it must be from 1 to 10,000")?;
        number("in_flight", self.in_flight, self.batch, 10_000_000, "it must be from one batch to 10,000,000")?;
        let rule = "it must be from the largest payload (payload_bytes_max) to 4 GiB";
        number("in_flight_bytes", self.in_flight_bytes, consumer.payload_bytes_max, u32::MAX as usize, rule)?;
        let (rule, kept) = ("it must be from 0 bytes to 256 MiB", self.dead_letter_payload_bytes_max);
        number("dead_letter_payload_bytes_max", kept, 0, PAYLOAD_BYTES_CAP, rule)?;
        if let Some(max) = self.dead_letters_bytes_max.filter(|max| *max < 1 << 10) {
            return Err(ConfigError::new("dead_letters_bytes_max", max, "it must be at least 1 KiB"));
        }
        number("retry.attempts", self.retry.attempts as usize, 1, 1_000, "it must be from 1 to 1,000")?;
        let rule = "it must be from 1 ms to retry.max";
        span("retry.first", self.retry.first, MILLISECOND, self.retry.max, rule)?;
        span("retry.max", self.retry.max, MILLISECOND, HOURS_12, "it must be from 1 ms to 12 hours")?;
        let later = self.retry.later.delays();
        if let Retention::For(kept) = consumer.retention
            && later.iter().sum::<Duration>() > kept / 2
        {
            // A message that waits is not handled yet, and a copy of it may come until its record is gone.
            let rule = "the delays together must be at most half of the retention";
            let delays: Vec<String> = later.iter().map(|delay| Exactly(*delay).to_string()).collect();
            return Err(ConfigError::new("retry.later", delays.join(","), rule));
        }
        for delay in later {
            span(
                "retry.later",
                *delay,
                Duration::from_secs(1),
                Later::LONGEST,
                "each delay must be from 1 s to 24 hours",
            )?;
        }
        span("give_back_after", self.give_back_after, MILLISECOND, HOURS_12, "it must be from 1 ms to 12 hours")?;
        if let Some(idle_for) = self.until_idle {
            span("until_idle", idle_for, MILLISECOND, HOURS_12, "it must be from 1 ms to 12 hours")?;
        }
        span("drain", self.drain, Duration::ZERO, HOURS_12, "it must be at most 12 hours")?;
        span("startup_timeout", self.startup_timeout, Duration::ZERO, HOURS_12, "it must be at most 12 hours")?;
        let rule = "it must be from 10 ms to 5 s, because running workers obey a pause within 5 s";
        span("control_every", self.control_every, Duration::from_millis(10), Duration::from_secs(5), rule)?;
        if let Some(cache_for) = self.cache_for {
            let hour = Duration::from_secs(3600);
            span("cache_for", cache_for, Duration::from_secs(1), hour, "it must be from 1 s to 1 hour")?;
            number("cache_bytes_max", self.cache_bytes_max, 1 << 10, 1 << 34, "it must be from 1 KiB to 16 GiB")?;
        }
        if let Some(cleanup) = self.cleanup {
            cleanup.check()?;
        }
        Ok(())
    }
}

const MILLISECOND: Duration = Duration::from_millis(1);
const HOURS_12: Duration = Duration::from_secs(12 * 3600);

fn span(
    field: &'static str,
    value: Duration,
    min: Duration,
    max: Duration,
    rule: &'static str,
) -> Result<(), ConfigError> {
    if (min..=max).contains(&value) { Ok(()) } else { Err(ConfigError::span(field, value, rule)) }
}

fn number(field: &'static str, value: usize, min: usize, max: usize, rule: &'static str) -> Result<(), ConfigError> {
    if (min..=max).contains(&value) { Ok(()) } else { Err(ConfigError::new(field, value, rule)) }
}

#[cfg(test)]
mod tests;
