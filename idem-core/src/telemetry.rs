//! Every metric, span, field and log target that idem uses. Names follow OpenTelemetry's messaging conventions v1.44.0
//! where they have one; all of those are still marked "Development".
//!
//! Metrics go through the `metrics` facade, and each consumer takes its handles when it is built: install a recorder
//! before. Spans are `tracing` spans of level DEBUG. Without a recorder or a subscriber that wants them neither costs
//! anything. A key stands on spans and events only, never on a metric; a payload stands nowhere.

pub(crate) mod handles;
pub(crate) mod log_limit;
#[doc(hidden)]
pub mod requests;
pub(crate) mod spans;
pub(crate) mod trace_context;

pub use self::{
    spans::{Tracing, request, trace_with},
    trace_context::TraceContext,
};

/// The target of audit events: conflicts, and the acts of operators.
pub const AUDIT: &str = "idem::audit";

/// The target of spans. `RUST_LOG=info,idem::spans=debug` shows them.
pub const SPANS: &str = "idem::spans";

/// The label of every metric but the outbox's: the consumer's name. On spans and events it is the field `idem.consumer`.
pub const CONSUMER: &str = "consumer";
/// The label of [`DUPLICATE_SKIPPED`]: `redelivery`, `producer` or `replay`.
pub const CAUSE: &str = "cause";
/// The label of every metric of the outbox, in place of the consumer: the name of the destination.
pub const DESTINATION: &str = "destination";
/// The label of [`HTTP_REQUESTS`], [`HTTP_QUESTIONS`] and [`HTTP_DELIVERIES`] and of their times: how a request ended.
pub const OUTCOME: &str = "outcome";
/// The label of [`HTTP_REQUESTS`] and [`HTTP_TIME`]: method and path, as the router knows it, and never as a client has sent it.
pub const ROUTE: &str = "route";
/// The label of [`HTTP_WAITING`]: `memory` or `database`.
pub const PLACE: &str = "place";
/// The label of [`DEAD_LETTER_REASONS`]: see [`Reason::as_str`](crate::dead_letter::Reason::as_str).
pub const REASON: &str = "reason";

/// The label of [`BEHIND`]: a partition such as `orders/0`, or the queue's name.
pub const PART: &str = "part";

/// The label of the metrics of OpenTelemetry's messaging conventions: `receive`, `process`, `settle` or `send`.
pub const OPERATION: &str = "messaging.operation.name";
/// Their label `kafka`, `rabbitmq` or `aws_sqs`; of another broker or a webhook its kind.
pub const SYSTEM: &str = "messaging.system";
/// Their label of the topic or queue.
pub const DESTINATION_NAME: &str = "messaging.destination.name";
/// Their label of Kafka's group.
pub const GROUP: &str = "messaging.consumer.group.name";

/// The kind of a metric.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Kind {
    /// It only rises.
    Counter,
    /// It is as it is now.
    Gauge,
    /// Values, counted by these upper bounds.
    Histogram(&'static [f64]),
}

/// A metric, as the facade and people see it.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Metric {
    /// The name in the facade.
    pub name: &'static str,
    /// Its kind.
    pub kind: Kind,
    /// The unit of its values; `Count` for a number of things.
    pub unit: metrics::Unit,
    /// Its meaning.
    pub help: &'static str,
}

impl Metric {
    fn describe(&self) {
        let Self { name, unit, help, .. } = *self;
        match self.kind {
            Kind::Counter => metrics::describe_counter!(name, unit, help),
            Kind::Gauge => metrics::describe_gauge!(name, unit, help),
            Kind::Histogram(_) => metrics::describe_histogram!(name, unit, help),
        }
    }
}

/// Gives the recorder unit and meaning of every metric. A consumer does it when it is built.
pub fn describe() {
    METRICS.iter().for_each(Metric::describe);
}

/// Of waits and work within a unit: from less than a round trip to longer than any limit of a unit.
const SECONDS: &[f64] = &[0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];
/// Of ages: from a redelivery at once to one after the default retention.
const AGES: &[f64] = &[1.0, 10.0, 60.0, 600.0, 3_600.0, 21_600.0, 86_400.0, 259_200.0, 604_800.0];
/// The bounds that the messaging conventions advise.
const OPERATIONS: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0];
const SIZES: &[f64] = &[1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1_000.0];

macro_rules! metrics {
    ($($constant:ident = $name:literal, $kind:expr, $unit:ident, $help:literal;)*) => {
        $(
            #[doc = concat!("`", $name, "`: ", $help, ".")]
            pub const $constant: Metric =
                Metric { name: $name, kind: $kind, unit: metrics::Unit::$unit, help: $help };
        )*
        /// Every metric.
        pub const METRICS: &[Metric] = &[$($constant),*];
    };
}
metrics! {
    RECEIVED = "idem.received", Kind::Counter, Count, "deliveries taken in";
    PROCESSED = "idem.processed", Kind::Counter, Count, "messages whose effects were committed";
    DUPLICATES = "idem.duplicates", Kind::Counter, Count, "duplicates that were skipped";
    DUPLICATE_SKIPPED = "consumer.duplicate_skipped", Kind::Counter, Count, "duplicates that were skipped, by cause";
    DUPLICATE_AGE = "idem.duplicate_age", Kind::Histogram(AGES), Seconds, "how long after its record a duplicate came";
    CACHE_HITS = "idem.cache_hits", Kind::Counter, Count, "duplicates recognised from memory, without the database";
    CONFLICTS = "idem.conflicts", Kind::Counter, Count, "messages whose key was used before for another payload";
    BUSY = "idem.busy", Kind::Counter, Count, "deliveries that waited because another unit held their key";
    RETRIES = "idem.retries", Kind::Counter, Count, "attempts that failed and were followed by a back-off";
    DEAD_LETTERED = "idem.dead_lettered", Kind::Counter, Count, "messages that were set aside";
    DEAD_LETTER_REASONS = "idem.dead_letter_reasons", Kind::Counter, Count, "messages that were set aside, by reason";
    UNKEEPABLE = "idem.unkeepable", Kind::Gauge, Count,
        "messages held because neither the database nor a publisher has their payload; each waits for a person";
    WAITING = "idem.waiting", Kind::Gauge, Count,
        "messages in hand that are held, by the cause of the wait; those behind them in their keys are not counted";
    WAITING_LONGEST = "idem.waiting_longest", Kind::Gauge, Seconds, "for how long the first of them has waited";
    UNPUBLISHED = "idem.unpublished", Kind::Counter, Count,
        "dead letters that the topic or queue for them could not take, or has not confirmed for long, so that the row alone has them";
    UNKNOWN_RESOLVED = "idem.unknown_resolved", Kind::Counter, Count,
        "messages whose commit's answer was lost and then found";
    UNPROTECTED = "idem.unprotected", Kind::Counter, Count,
        "messages handled without a record, because their type opted out";
    OLDER_THAN_RETENTION = "idem.older_than_retention", Kind::Counter, Count,
        "messages handled although older than the retention";
    RELEASED = "idem.released", Kind::Counter, Count, "deliveries given back to the broker";
    STALE_SETTLEMENTS = "idem.stale_settlements", Kind::Counter, Count,
        "settlements that came too late for their assignment";
    REPLAYED = "idem.replayed", Kind::Counter, Count, "dead letters that were handled again";
    RECONNECTS = "idem.reconnects", Kind::Counter, Count,
        "connections to the database opened in place of one that was lost or closed";
    BROKER_FAILURES = "idem.broker_failures", Kind::Counter, Count,
        "times the broker could not be used for receiving";
    BROKER_CONNECTED = "idem.broker_connected", Kind::Gauge, Count,
        "whether the worker has joined and its broker can be used for receiving";
    CLAIM_WAIT = "idem.claim_wait", Kind::Histogram(SECONDS), Seconds, "how long a unit waited for its keys";
    HANDLER_TIME = "idem.handler_time", Kind::Histogram(SECONDS), Seconds,
        "how long the handlers of a unit took together";
    COMMIT_TIME = "idem.commit_time", Kind::Histogram(SECONDS), Seconds, "how long a commit took";
    BATCH_SIZE = "idem.batch_size", Kind::Histogram(SIZES), Count, "messages in a unit";
    IN_FLIGHT = "idem.in_flight", Kind::Gauge, Count, "messages received and not settled";
    IN_FLIGHT_BYTES = "idem.in_flight_bytes", Kind::Gauge, Bytes, "the bytes of messages received and not settled";
    OLDEST_UNSETTLED = "idem.oldest_unsettled", Kind::Gauge, Seconds,
        "for how long the oldest message that is not settled is here";
    OLDEST_TRANSACTION = "idem.oldest_transaction", Kind::Gauge, Seconds,
        "for how long the oldest transaction of the worker is open";
    PAUSED = "idem.paused", Kind::Gauge, Count, "whether intake waits, for whatever reason";
    FAILED_RUNS = "idem.failed_runs", Kind::Gauge, Count, "runs of the consumer's workers within half an hour that ended soon after their start, unasked";
    PAUSED_FOR = "idem.paused_for", Kind::Gauge, Seconds, "for how long intake waits already, for whatever reason";
    HALTED = "idem.halted", Kind::Gauge, Count, "whether the consumer was halted and waits for a person";
    BREAKER_OPEN = "idem.breaker_open", Kind::Gauge, Count,
        "whether more than half of the last 50 fresh messages became dead letters";
    LANES_DOWN = "idem.lanes_down", Kind::Gauge, Count, "lanes that cannot reach the database";
    BEHIND = "idem.behind_messages", Kind::Gauge, Count,
        "messages that the broker has and the consumer has not settled, by part of the queue or topic; 0 once another worker has the part";
    READY = "idem.ready", Kind::Gauge, Count, "whether the worker has joined and takes part";
    CLEANED = "idem.cleaned", Kind::Counter, Count, "rows that cleanup removed";
    CLEANUP_LAG = "idem.cleanup_lag", Kind::Gauge, Seconds, "for how long the oldest expired record waits for cleanup";
    CLEANUP_LAG_MAX = "idem.cleanup_lag_max", Kind::Gauge, Seconds,
        "for how long an expired record may wait, where the profile of a service sets a time by which it is gone";
    CLEANUP_FAILED_CYCLES = "idem.cleanup_failed_cycles", Kind::Gauge, Count,
        "cycles of cleanup that failed in a row; ten are an alarm";
    RECORDS = "idem.records", Kind::Gauge, Count, "records there are, by the database's estimate; 0 where it has none";
    RECORD_BYTES = "idem.record_bytes", Kind::Gauge, Bytes,
        "the size of the table of records with its indexes, of all consumers; on SQLite the whole file";
    RECORDS_OF_LARGEST_TENANT = "idem.records_of_largest_tenant", Kind::Gauge, Count,
        "records of the tenant that has the most, by the database's estimate; 0 where it has none";
    DEAD_LETTER_ROWS = "idem.dead_letter_rows", Kind::Gauge, Count,
        "dead letters there are, of all consumers, by the database's estimate; 0 where it has none";
    DEAD_LETTER_BYTES = "idem.dead_letter_bytes", Kind::Gauge, Bytes,
        "the size of the table of dead letters with its indexes, of all consumers; on SQLite the whole file";
    DEAD_LETTER_QUOTA = "idem.dead_letter_quota_bytes", Kind::Gauge, Bytes,
        "the room that the consumer's dead letters may take; 0 for no limit";
    OUTBOX_PENDING = "idem.outbox_pending", Kind::Gauge, Count, "events of a destination that may go now";
    OUTBOX_WAITING = "idem.outbox_waiting", Kind::Gauge, Count,
        "events of a destination that are tried again later, or wait behind another of their ordering key";
    OUTBOX_FAILED = "idem.outbox_failed", Kind::Gauge, Count, "events of a destination that wait for a person";
    OUTBOX_OLDEST = "idem.outbox_oldest", Kind::Gauge, Seconds,
        "the age of the oldest event of a destination that is neither failed nor behind another";
    OUTBOX_DUE = "idem.outbox_due", Kind::Gauge, Seconds,
        "for how long the oldest event of a destination that may go now has not gone, or nothing goes there";
    OUTBOX_PUBLISHED = "idem.outbox_published", Kind::Counter, Count, "events that their destination has confirmed";
    OUTBOX_PUBLISH = "idem.outbox_publish", Kind::Histogram(SECONDS), Seconds,
        "how long a destination took to confirm events that it was given at once";
    INBOX_RECEIVED = "idem.inbox_received", Kind::Counter, Count, "messages that a receiver has written to the inbox";
    INBOX_ROWS = "idem.inbox_rows", Kind::Gauge, Count,
        "messages that wait in the inbox; not counted beyond the number at which receiving stops";
    INBOX_OLDEST = "idem.inbox_oldest", Kind::Gauge, Seconds, "for how long the oldest message waits in the inbox";
    INBOX_FREE_SLOTS = "idem.inbox_free_slots", Kind::Gauge, Count,
        "slots of the inbox that no worker holds, so that their messages wait";
    LOG_LINES_LOST = "idem.log_lines_lost", Kind::Counter, Count,
        "lines of the log that were lost, because standard error did not take them";
    HTTP_CONNECTIONS_CLOSED = "idem.http_connections_closed", Kind::Counter, Count,
        "connections of clients that were closed to make room for others, the one that waited longest for its client first";
    HTTP_REQUESTS = "idem.http_requests", Kind::Counter, Count,
        "requests to protected routes, by route and by how they ended: `first`, `replayed`, `not-kept`, `server-error`, `client-gone`, or the problem that was answered";
    HTTP_TIME = "idem.http_time", Kind::Histogram(SECONDS), Seconds,
        "how long a request to a protected route took, from its head to its answer";
    HTTP_QUESTIONS = "idem.http_questions", Kind::Counter, Count,
        "questions about keys, by how they ended: the state of the key, `method-not-allowed`, `client-gone`, or the problem that was answered";
    HTTP_QUESTION_TIME = "idem.http_question_time", Kind::Histogram(SECONDS), Seconds,
        "how long a question about a key took, with the wait that it asked for";
    HTTP_DELIVERIES = "idem.http_deliveries", Kind::Counter, Count,
        "events that came in over HTTP, by how their deliveries ended";
    HTTP_DELIVERY_TIME = "idem.http_delivery_time", Kind::Histogram(SECONDS), Seconds,
        "how long the sender of an event waited for its answer";
    HTTP_WAITING = "idem.http_waiting", Kind::Gauge, Count,
        "repeats that wait for the first request with their key: in memory for one of this process, or at the database for another's";
    HTTP_WAITING_MAX = "idem.http_waiting_max", Kind::Gauge, Count,
        "how many repeats may wait at the database at once; the others wait for their turn";
    HTTP_MISPLACED_STATUSES = "idem.http_misplaced_statuses", Kind::Counter, Count,
        "answers with a status that is about a request and not its operation (401, 403, 408, 425, 429), and was to be kept";
    HTTP_UNTAKEN = "idem.http_untaken", Kind::Counter, Count,
        "protected handlers that answered with success without having used their transaction";
    OPERATION_DURATION = "messaging.client.operation.duration", Kind::Histogram(OPERATIONS), Seconds,
        "how long one call to receive, settle or send messages took";
    CONSUMED_MESSAGES = "messaging.client.consumed.messages", Kind::Counter, Count, "deliveries that the application got";
    SENT_MESSAGES = "messaging.client.sent.messages", Kind::Counter, Count, "messages that the application tried to send";
    PROCESS_DURATION = "messaging.process.duration", Kind::Histogram(OPERATIONS), Seconds,
        "how long one call of the handler took";
}

#[cfg(test)]
mod tests;
