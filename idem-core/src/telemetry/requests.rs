//! Counts requests over HTTP and their times by how they end, and writes the end on their spans. For idem's crates over HTTP.

use std::{
    fmt,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use metrics::{Counter, Histogram, Label};
use tokio::time::Instant;
use tracing::Span;

use crate::telemetry::{Metric, OUTCOME};

/// A request whose client went away before there was an answer.
pub const GONE: &str = "client-gone";
/// A request with a method that its service does not have.
pub const NO_SUCH_METHOD: &str = "method-not-allowed";

/// The counters of one kind of request.
pub struct Outcomes {
    count: Metric,
    time: Metric,
    labels: Vec<Label>,
    /// By outcome. There are some twenty at most.
    handles: Mutex<Vec<(&'static str, Counter, Histogram)>>,
}

impl fmt::Debug for Outcomes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outcomes").field("count", &self.count.name).finish_non_exhaustive()
    }
}

impl Outcomes {
    /// The counters of these two metrics, with these labels beside the outcome.
    pub fn new((count, time): (Metric, Metric), labels: Vec<Label>) -> Self {
        Self { count, time, labels, handles: Mutex::default() }
    }

    /// Counts a request that ended so.
    pub fn count(&self, outcome: &'static str, took: Duration) {
        let mut handles = self.handles.lock().unwrap_or_else(PoisonError::into_inner);
        let place = handles.iter().position(|(known, ..)| *known == outcome).unwrap_or_else(|| {
            let labels = [self.labels.clone(), vec![Label::from_static_parts(OUTCOME, outcome)]].concat();
            let requests = metrics::counter!(self.count.name, labels.clone());
            handles.push((outcome, requests, metrics::histogram!(self.time.name, labels)));
            handles.len() - 1
        });
        let (_, requests, time) = &handles[place];
        requests.increment(1);
        time.record(took);
    }
}

/// A request that is counted once it ends, whether by its answer or because its client goes away.
#[derive(Debug)]
pub struct Counting<'s, C: Fn(&'static str, bool, Duration)> {
    span: &'s Span,
    begun: Instant,
    answered: Option<(&'static str, u16)>,
    /// Given the outcome, whether it is a failure of this service, and the time it took.
    count: C,
}

/// A request is there.
pub fn begin<C: Fn(&'static str, bool, Duration)>(span: &Span, count: C) -> Counting<'_, C> {
    Counting { span, begun: Instant::now(), answered: None, count }
}

impl<C: Fn(&'static str, bool, Duration)> Counting<'_, C> {
    /// Notes its answer.
    pub fn answered(mut self, outcome: &'static str, status: impl Into<u16>) {
        self.answered = Some((outcome, status.into()));
    }
}

impl<C: Fn(&'static str, bool, Duration)> Drop for Counting<'_, C> {
    fn drop(&mut self) {
        let (outcome, status) = self.answered.map_or((GONE, None), |(outcome, status)| (outcome, Some(status)));
        let is_failure = status.is_some_and(|status| (500..600).contains(&status));
        (self.count)(outcome, is_failure, self.begun.elapsed());
        self.span.record("idem.outcome", outcome);
        if let Some(status) = status {
            self.span.record("http.response.status_code", status);
        }
        if is_failure {
            self.span.record("error.type", outcome);
            self.span.record("otel.status_code", "ERROR");
        }
    }
}

/// A method in OpenTelemetry's words, of which there are few.
pub fn method(method: &str) -> &str {
    if is_known(method) { method } else { "_OTHER" }
}

/// Whether OpenTelemetry has a word for this method.
pub fn is_known(method: &str) -> bool {
    ["POST", "PUT", "PATCH", "DELETE", "GET", "HEAD", "OPTIONS"].contains(&method)
}
