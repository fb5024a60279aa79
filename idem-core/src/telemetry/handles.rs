//! The handles that a consumer and a worker record with: taken once, so that recording looks nothing up.

use metrics::{Counter, Gauge, Histogram, Label};

use crate::{
    dead_letter::Reason,
    names::ConsumerName,
    policy::WaitCause,
    telemetry::{
        BATCH_SIZE, BREAKER_OPEN, BROKER_CONNECTED, BROKER_FAILURES, CAUSE, CLAIM_WAIT, CLEANUP_FAILED_CYCLES,
        CLEANUP_LAG, COMMIT_TIME, CONSUMED_MESSAGES, CONSUMER, DEAD_LETTER_BYTES, DEAD_LETTER_QUOTA,
        DEAD_LETTER_REASONS, DEAD_LETTER_ROWS, DESTINATION, DESTINATION_NAME, DUPLICATE_AGE, DUPLICATE_SKIPPED,
        FAILED_RUNS, GROUP, HALTED, HANDLER_TIME, IN_FLIGHT, IN_FLIGHT_BYTES, INBOX_FREE_SLOTS, INBOX_OLDEST,
        INBOX_RECEIVED, INBOX_ROWS, LANES_DOWN, Metric, OLDEST_TRANSACTION, OLDEST_UNSETTLED, OPERATION,
        OPERATION_DURATION, OUTBOX_DUE, OUTBOX_FAILED, OUTBOX_OLDEST, OUTBOX_PENDING, OUTBOX_PUBLISH, OUTBOX_PUBLISHED,
        OUTBOX_WAITING, PAUSED, PAUSED_FOR, PROCESS_DURATION, READY, REASON, RECEIVED, RECONNECTS, RECORD_BYTES,
        RECORDS, RECORDS_OF_LARGEST_TENANT, SENT_MESSAGES, SYSTEM, UNKEEPABLE, UNPUBLISHED, WAITING, WAITING_LONGEST,
        spans::Destination,
    },
};

/// The handle of a counter.
pub(crate) fn counter(metric: Metric, consumer: &ConsumerName) -> Counter {
    metrics::counter!(metric.name, CONSUMER => consumer.to_string())
}

fn labelled(metric: Metric, consumer: &ConsumerName, label: &'static str, value: &'static str) -> Counter {
    metrics::counter!(metric.name, CONSUMER => consumer.to_string(), label => value)
}

fn gauge(metric: Metric, consumer: &ConsumerName) -> Gauge {
    metrics::gauge!(metric.name, CONSUMER => consumer.to_string())
}

fn histogram(metric: Metric, consumer: &ConsumerName) -> Histogram {
    metrics::histogram!(metric.name, CONSUMER => consumer.to_string())
}

/// The metrics of each unit of work.
#[derive(Debug)]
pub(crate) struct UnitMetrics {
    pub(crate) claim_wait: Histogram,
    pub(crate) handler_time: Histogram,
    pub(crate) commit_time: Histogram,
    pub(crate) batch_size: Histogram,
}

impl UnitMetrics {
    pub(crate) fn of(consumer: &ConsumerName) -> Self {
        crate::telemetry::describe();
        Self {
            claim_wait: histogram(CLAIM_WAIT, consumer),
            handler_time: histogram(HANDLER_TIME, consumer),
            commit_time: histogram(COMMIT_TIME, consumer),
            batch_size: histogram(BATCH_SIZE, consumer),
        }
    }
}

/// Where a duplicate came from, as far as is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The broker delivered the message again.
    Redelivery,
    /// The producer sent it again.
    Producer,
    /// An operator had it replayed.
    Replay,
}

impl Cause {
    const ALL: [Self; 3] = [Self::Redelivery, Self::Producer, Self::Replay];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Redelivery => "redelivery",
            Self::Producer => "producer",
            Self::Replay => "replay",
        }
    }
}

/// The metrics of a worker that its summary does not count.
#[derive(Debug)]
pub(crate) struct WorkerMetrics {
    pub(crate) received: Counter,
    skipped: [Counter; Cause::ALL.len()],
    pub(crate) duplicate_age: Histogram,
    dead_letters: [Counter; Reason::ALL.len()],
    /// By the cause of the wait: how many messages wait, and for how long the first has waited.
    pub(crate) waiting: [(Gauge, Gauge); WaitCause::ALL.len()],
    pub(crate) unkeepable: Gauge,
    pub(crate) unpublished: Counter,
    pub(crate) reconnects: Counter,
    pub(crate) broker_failures: Counter,
    pub(crate) broker_connected: Gauge,
    pub(crate) in_flight: Gauge,
    pub(crate) in_flight_bytes: Gauge,
    pub(crate) oldest_unsettled: Gauge,
    pub(crate) oldest_transaction: Gauge,
    pub(crate) paused: Gauge,
    pub(crate) paused_for: Gauge,
    pub(crate) failed_runs: Gauge,
    pub(crate) halted: Gauge,
    pub(crate) breaker_open: Gauge,
    pub(crate) lanes_down: Gauge,
    pub(crate) ready: Gauge,
    pub(crate) cleanup_lag: Gauge,
    pub(crate) cleanup_failed_cycles: Gauge,
    pub(crate) records: Gauge,
    pub(crate) record_bytes: Gauge,
    pub(crate) records_of_largest_tenant: Gauge,
    pub(crate) dead_letter_rows: Gauge,
    pub(crate) dead_letter_bytes: Gauge,
    pub(crate) dead_letter_quota: Gauge,
}

impl WorkerMetrics {
    pub(crate) fn of(consumer: &ConsumerName) -> Self {
        Self {
            received: counter(RECEIVED, consumer),
            skipped: Cause::ALL.map(|cause| labelled(DUPLICATE_SKIPPED, consumer, CAUSE, cause.as_str())),
            duplicate_age: histogram(DUPLICATE_AGE, consumer),
            dead_letters: Reason::ALL.map(|reason| labelled(DEAD_LETTER_REASONS, consumer, REASON, reason.as_str())),
            waiting: WaitCause::ALL.map(|cause| {
                let of = |metric: Metric| {
                    metrics::gauge!(metric.name, CONSUMER => consumer.to_string(), CAUSE => cause.as_str())
                };
                (of(WAITING), of(WAITING_LONGEST))
            }),
            unkeepable: gauge(UNKEEPABLE, consumer),
            unpublished: counter(UNPUBLISHED, consumer),
            reconnects: counter(RECONNECTS, consumer),
            broker_failures: counter(BROKER_FAILURES, consumer),
            broker_connected: gauge(BROKER_CONNECTED, consumer),
            in_flight: gauge(IN_FLIGHT, consumer),
            in_flight_bytes: gauge(IN_FLIGHT_BYTES, consumer),
            oldest_unsettled: gauge(OLDEST_UNSETTLED, consumer),
            oldest_transaction: gauge(OLDEST_TRANSACTION, consumer),
            paused: gauge(PAUSED, consumer),
            paused_for: gauge(PAUSED_FOR, consumer),
            failed_runs: gauge(FAILED_RUNS, consumer),
            halted: gauge(HALTED, consumer),
            breaker_open: gauge(BREAKER_OPEN, consumer),
            lanes_down: gauge(LANES_DOWN, consumer),
            ready: gauge(READY, consumer),
            cleanup_lag: gauge(CLEANUP_LAG, consumer),
            cleanup_failed_cycles: gauge(CLEANUP_FAILED_CYCLES, consumer),
            records: gauge(RECORDS, consumer),
            record_bytes: gauge(RECORD_BYTES, consumer),
            records_of_largest_tenant: gauge(RECORDS_OF_LARGEST_TENANT, consumer),
            dead_letter_rows: gauge(DEAD_LETTER_ROWS, consumer),
            dead_letter_bytes: gauge(DEAD_LETTER_BYTES, consumer),
            dead_letter_quota: gauge(DEAD_LETTER_QUOTA, consumer),
        }
    }

    pub(crate) fn skipped(&self, cause: Cause) {
        at(&Cause::ALL, cause, &self.skipped);
    }

    pub(crate) fn dead_lettered(&self, reason: Reason) {
        at(&Reason::ALL, reason, &self.dead_letters);
    }
}

/// The metrics of the events of one destination.
#[derive(Debug)]
pub(crate) struct RelayMetrics {
    pub(crate) pending: Gauge,
    pub(crate) waiting: Gauge,
    pub(crate) failed: Gauge,
    pub(crate) oldest: Gauge,
    pub(crate) due: Gauge,
    pub(crate) published: Counter,
    pub(crate) publish: Histogram,
}

impl RelayMetrics {
    pub(crate) fn of(destination: &str) -> Self {
        crate::telemetry::describe();
        let gauge = |metric: Metric| metrics::gauge!(metric.name, DESTINATION => destination.to_owned());
        Self {
            pending: gauge(OUTBOX_PENDING),
            waiting: gauge(OUTBOX_WAITING),
            failed: gauge(OUTBOX_FAILED),
            oldest: gauge(OUTBOX_OLDEST),
            due: gauge(OUTBOX_DUE),
            published: metrics::counter!(OUTBOX_PUBLISHED.name, DESTINATION => destination.to_owned()),
            publish: metrics::histogram!(OUTBOX_PUBLISH.name, DESTINATION => destination.to_owned()),
        }
    }
}

/// The metrics of the messaging conventions for what a worker consumes.
#[derive(Debug)]
pub(crate) struct ConsumedMetrics {
    pub(crate) received: Histogram,
    pub(crate) settled: Histogram,
    pub(crate) processed: Histogram,
    pub(crate) messages: Counter,
}

impl ConsumedMetrics {
    pub(crate) fn of(from: &Destination) -> Self {
        let labels = |operation| {
            let mut labels = messaging(operation, from.system.as_deref(), &from.name);
            labels.extend(from.group.clone().map(|group| Label::new(GROUP, group)));
            labels
        };
        Self {
            received: metrics::histogram!(OPERATION_DURATION.name, labels("receive")),
            settled: metrics::histogram!(OPERATION_DURATION.name, labels("settle")),
            processed: metrics::histogram!(PROCESS_DURATION.name, labels("process")),
            messages: metrics::counter!(CONSUMED_MESSAGES.name, labels("receive")),
        }
    }
}

/// Those for the events of a destination.
#[derive(Debug)]
pub(crate) struct SentMetrics {
    /// The broker's name in the conventions, or the kind of destination.
    pub(crate) system: Option<String>,
    pub(crate) sent: Histogram,
    pub(crate) messages: Counter,
}

impl SentMetrics {
    /// `kind` is that of the destination's limits, where its publisher knows them.
    pub(crate) fn of(destination: &str, kind: Option<&str>) -> Self {
        let system = kind.map(|kind| if kind == "sqs" { "aws_sqs" } else { kind });
        let labels = || messaging("send", system, destination);
        Self {
            sent: metrics::histogram!(OPERATION_DURATION.name, labels()),
            messages: metrics::counter!(SENT_MESSAGES.name, labels()),
            system: system.map(str::to_owned),
        }
    }
}

fn messaging(operation: &'static str, system: Option<&str>, name: &str) -> Vec<Label> {
    vec![
        Label::new(OPERATION, operation),
        Label::new(SYSTEM, system.unwrap_or("other").to_owned()),
        Label::new(DESTINATION_NAME, name.to_owned()),
    ]
}

/// The metrics of an inbox.
#[derive(Debug)]
pub(crate) struct InboxMetrics {
    pub(crate) received: Counter,
    pub(crate) rows: Gauge,
    pub(crate) oldest: Gauge,
    pub(crate) free_slots: Gauge,
}

impl InboxMetrics {
    pub(crate) fn of(consumer: &ConsumerName) -> Self {
        crate::telemetry::describe();
        Self {
            received: counter(INBOX_RECEIVED, consumer),
            rows: gauge(INBOX_ROWS, consumer),
            oldest: gauge(INBOX_OLDEST, consumer),
            free_slots: gauge(INBOX_FREE_SLOTS, consumer),
        }
    }
}

/// Counts one for `value`, whose counter stands where it stands in `all`.
fn at<T: PartialEq>(all: &[T], value: T, counters: &[Counter]) {
    if let Some(index) = all.iter().position(|other| *other == value) {
        counters[index].increment(1);
    }
}
