//! Counts of requests: for metrics, and for the service's page.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use idem_core::telemetry::{
    CONSUMER, HTTP_MISPLACED_STATUSES, HTTP_QUESTION_TIME, HTTP_QUESTIONS, HTTP_REQUESTS, HTTP_TIME, HTTP_UNTAKEN,
    HTTP_WAITING, HTTP_WAITING_MAX, Metric, PLACE, ROUTE,
};
use metrics::{Counter, Gauge, Label};

use crate::outcomes::{GONE, Outcomes};

/// A request that ran here.
pub(crate) const FIRST: &str = "first";
/// A request that got the first one's answer.
pub(crate) const REPLAYED: &str = "replayed";

/// The counts of a service.
pub(crate) struct Counts {
    consumer: String,
    routes: RwLock<BTreeMap<String, Arc<OfRoute>>>,
    /// Questions about keys.
    pub(crate) questions: Outcomes,
    /// Repeats that wait for a request of this process.
    pub(crate) in_memory: Waiting,
    /// Repeats that wait for a request of another process, with those that wait for their turn to do so.
    pub(crate) at_database: Waiting,
    at_database_max: usize,
    pub(crate) misplaced: Counter,
    pub(crate) untaken: Counter,
}

struct OfRoute {
    first: AtomicU64,
    replayed: AtomicU64,
    refused: AtomicU64,
    failed: AtomicU64,
    gone: AtomicU64,
    outcomes: Outcomes,
}

impl OfRoute {
    fn new(consumer: &str, route: &str) -> Self {
        let [first, replayed, refused, failed, gone] = Default::default();
        let labels = vec![Label::new(CONSUMER, consumer.to_owned()), Label::new(ROUTE, route.to_owned())];
        Self { first, replayed, refused, failed, gone, outcomes: Outcomes::new((HTTP_REQUESTS, HTTP_TIME), labels) }
    }
}

impl Counts {
    /// Takes the handles of metrics, so a recorder must be there.
    pub(crate) fn new(consumer: &str, at_database_max: usize) -> Self {
        let counter = |metric: Metric| metrics::counter!(metric.name, CONSUMER => consumer.to_owned());
        #[allow(clippy::cast_precision_loss, reason = "a few")]
        metrics::gauge!(HTTP_WAITING_MAX.name, CONSUMER => consumer.to_owned()).set(at_database_max as f64);
        Self {
            routes: RwLock::default(),
            questions: Outcomes::new(
                (HTTP_QUESTIONS, HTTP_QUESTION_TIME),
                vec![Label::new(CONSUMER, consumer.to_owned())],
            ),
            in_memory: Waiting::new(consumer, "memory"),
            at_database: Waiting::new(consumer, "database"),
            at_database_max,
            misplaced: counter(HTTP_MISPLACED_STATUSES),
            untaken: counter(HTTP_UNTAKEN),
            consumer: consumer.to_owned(),
        }
    }

    /// Counts the end of a request to this route.
    pub(crate) fn count(&self, route: &str, outcome: &'static str, is_failure: bool, took: Duration) {
        let of = self.of(route);
        let counter = match outcome {
            FIRST => &of.first,
            REPLAYED => &of.replayed,
            GONE => &of.gone,
            _ if is_failure => &of.failed,
            _ => &of.refused,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        of.outcomes.count(outcome, took);
    }

    fn of(&self, route: &str) -> Arc<OfRoute> {
        if let Some(of) = self.routes.read().unwrap_or_else(PoisonError::into_inner).get(route) {
            return Arc::clone(of);
        }
        let mut routes = self.routes.write().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(routes.entry(route.to_owned()).or_insert_with(|| Arc::new(OfRoute::new(&self.consumer, route))))
    }

    pub(super) fn routes(&self) -> Vec<RouteCounts> {
        let routes = self.routes.read().unwrap_or_else(PoisonError::into_inner);
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let of = |(route, of): (&String, &Arc<OfRoute>)| RouteCounts {
            route: route.clone(),
            first: count(&of.first),
            replayed: count(&of.replayed),
            refused: count(&of.refused),
            failed: count(&of.failed),
            gone: count(&of.gone),
        };
        routes.iter().map(of).collect()
    }

    pub(super) fn waiting(&self) -> WaitingRepeats {
        WaitingRepeats {
            in_memory: self.in_memory.now.load(Ordering::Relaxed),
            at_database: self.at_database.now.load(Ordering::Relaxed),
            at_database_max: self.at_database_max,
        }
    }
}

/// Requests that wait now.
pub(crate) struct Waiting {
    now: AtomicU64,
    gauge: Gauge,
}

impl Waiting {
    fn new(consumer: &str, place: &'static str) -> Self {
        let gauge = metrics::gauge!(HTTP_WAITING.name, CONSUMER => consumer.to_owned(), PLACE => place);
        gauge.set(0.0);
        Self { now: AtomicU64::new(0), gauge }
    }

    /// Counts one more until the returned value is dropped.
    pub(crate) fn one(&self) -> Waits<'_> {
        self.now.fetch_add(1, Ordering::Relaxed);
        self.gauge.increment(1.0);
        Waits(self)
    }
}

/// One that waits.
pub(crate) struct Waits<'a>(&'a Waiting);

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, Ordering::Relaxed);
        self.0.gauge.decrement(1.0);
    }
}

/// The counts of one route, since the service was built.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RouteCounts {
    /// Method and path, as the router knows it. `other` collects the requests whose method or path no router knows.
    pub route: String,
    /// Requests that ran, and whose answer was kept.
    pub first: u64,
    /// Repeats that got the first answer again.
    pub replayed: u64,
    /// Requests that were answered with 4xx and left nothing.
    pub refused: u64,
    /// Requests that were answered with 5xx and left nothing.
    pub failed: u64,
    /// Requests whose clients went away before they had an answer. The run of such a request is finished, and a repeat gets its answer.
    pub gone: u64,
}

/// How many repeats wait for the first request with their key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct WaitingRepeats {
    /// In memory, for a request that this process runs.
    pub in_memory: u64,
    /// At the database, for a request that another process runs, or for their turn there.
    pub at_database: u64,
    /// How many may wait at the database at once; see
    /// [`waiting_connections`](crate::IdempotencyBuilder::waiting_connections).
    pub at_database_max: usize,
}
