//! Counts requests and their times by how they end, and writes the end on their spans.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use http::{Extensions, Method, StatusCode};
use idem_core::telemetry::{Metric, OUTCOME};
use metrics::{Counter, Histogram, Label};
use tokio::time::Instant;
use tracing::Span;

/// A request whose client went away before there was an answer.
pub(crate) const GONE: &str = "client-gone";
/// A request with a method that its service does not have.
pub(crate) const NO_SUCH_METHOD: &str = "method-not-allowed";

/// The counters of one kind of request.
pub(crate) struct Outcomes {
    count: Metric,
    time: Metric,
    labels: Vec<Label>,
    /// By outcome. There are some twenty at most.
    handles: Mutex<Vec<(&'static str, Counter, Histogram)>>,
}

impl Outcomes {
    pub(crate) fn new((count, time): (Metric, Metric), labels: Vec<Label>) -> Self {
        Self { count, time, labels, handles: Mutex::default() }
    }

    pub(crate) fn count(&self, outcome: &'static str, took: Duration) {
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
pub(crate) struct Counting<'s, C: Fn(&'static str, bool, Duration)> {
    span: &'s Span,
    begun: Instant,
    answered: Option<(&'static str, StatusCode)>,
    /// Given the outcome, whether it is a failure of this service, and the time it took.
    count: C,
}

/// A request is there.
pub(crate) fn begin<C: Fn(&'static str, bool, Duration)>(span: &Span, count: C) -> Counting<'_, C> {
    Counting { span, begun: Instant::now(), answered: None, count }
}

impl<C: Fn(&'static str, bool, Duration)> Counting<'_, C> {
    /// Notes its answer.
    pub(crate) fn answered(mut self, outcome: &'static str, status: StatusCode) {
        self.answered = Some((outcome, status));
    }
}

impl<C: Fn(&'static str, bool, Duration)> Drop for Counting<'_, C> {
    fn drop(&mut self) {
        let (outcome, status) = self.answered.map_or((GONE, None), |(outcome, status)| (outcome, Some(status)));
        let is_failure = status.is_some_and(|status| status.is_server_error());
        (self.count)(outcome, is_failure, self.begun.elapsed());
        self.span.record("idem.outcome", outcome);
        if let Some(status) = status {
            self.span.record("http.response.status_code", status.as_u16());
        }
        if is_failure {
            self.span.record("error.type", outcome);
            self.span.record("otel.status_code", "ERROR");
        }
    }
}

/// A method in OpenTelemetry's words, of which there are few.
pub(crate) fn method(method: &Method) -> &str {
    if is_known(method) { method.as_str() } else { "_OTHER" }
}

pub(crate) fn is_known(method: &Method) -> bool {
    [Method::POST, Method::PUT, Method::PATCH, Method::DELETE, Method::GET, Method::HEAD, Method::OPTIONS]
        .contains(method)
}

/// The name of a request's span where the service does not know its own path: axum's router may.
pub(crate) fn named(of: &Method, extensions: &Extensions) -> String {
    #[cfg(feature = "server")]
    if let Some(path) = extensions.get::<axum::extract::MatchedPath>() {
        return format!("{} {}", method(of), path.as_str());
    }
    let _ = extensions;
    method(of).to_owned()
}
