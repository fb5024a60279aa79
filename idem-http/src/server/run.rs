//! Claims a request's key and runs the request, or finds the first one's answer.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use idem_core::{
    ResultBody, Retention, Store,
    consumer::{ConflictKind, Failure},
    internal::finished,
    once::{KeyState, Outcome, RunOnceError},
    results::NotKept,
    store::Recorded,
    telemetry,
};
use tokio::time::Instant;
use tracing::{Instrument as _, Span, field};

use super::{
    answer::{self, Times},
    counts::{FIRST, REPLAYED},
    error, fingerprint,
    flight::{Boarded, Flight, Landed, Progress, Stage},
    gates::{self, Admitted},
    problem::{Part, Problem},
    route::{RouteName, RouteSettings},
    state::Shared,
};
use crate::outcomes;

/// How a run ended.
pub(crate) enum Ended {
    /// The operation is done. The response is the handler's own if it ran here.
    Done(Outcome, Option<Response<Bytes>>),
    /// Nothing is kept, and this is the answer.
    Dropped(Response<Bytes>),
    /// Nothing is kept, and this is why.
    Not(Problem),
}

pub(crate) type Run<'a> = Pin<Box<dyn Future<Output = Result<Ended, RunOnceError>> + Send + 'a>>;

/// Runs a handler in the transaction that records its key. Routes and layers each implement it.
pub(crate) trait Runs<S: Store>: Send + 'static {
    /// Claims the key and, if it is new, runs the handler, on one of the connections that the tenant may use. May be called again
    /// if the key was held.
    fn run<'a>(
        &'a mut self,
        shared: &'a Arc<Shared<S>>,
        admitted: &'a Arc<Admitted>,
        progress: &'a Arc<Progress>,
    ) -> Run<'a>;
}

/// An answer, and how its request ended, for metrics.
pub(crate) struct Answered {
    pub(crate) response: Response<Bytes>,
    pub(crate) outcome: &'static str,
}

/// The pause before another claim of a key that another process holds.
const REST: Duration = Duration::from_millis(20);

impl<S: Store> Shared<S> {
    /// Serves one request of a protected route.
    pub(crate) async fn serve<B, R>(
        self: &Arc<Self>,
        request: Request<B>,
        route: &RouteName,
        settings: &RouteSettings,
        runs: R,
    ) -> Response<Bytes>
    where
        B: http_body::Body,
        B::Error: Into<idem_core::BoxError>,
        R: Runs<S>,
    {
        let received = gates::received_key(request.headers());
        let method = request.method().clone();
        let trace = request.headers().get("traceparent").and_then(|value| value.to_str().ok());
        let span = telemetry::request(self.engine.name(), outcomes::method(request.method()), route.label(), trace);
        let counting = outcomes::begin(&span, |outcome, is_failure, took| {
            self.counts.count(route.label(), outcome, is_failure, took);
        });
        let answered = async {
            let admitted = self.admit(request, &route.scope, settings).await?;
            Span::current().record("idem.key", field::display(&admitted.key));
            self.answer(Arc::new(admitted), runs).await
        };
        let answered = answered.instrument(span.clone()).await;
        let Answered { mut response, outcome } = answered.unwrap_or_else(|problem| self.problem(&problem));
        counting.answered(outcome, response.status());
        answer::seal(&mut response, &method, received.as_ref(), self.coded_after);
        response
    }

    pub(crate) fn problem(&self, problem: &Problem) -> Answered {
        let response = problem.response(&self.profile, &self.problem_types);
        Answered { response, outcome: problem.slug(&self.profile) }
    }

    /// The answer to a request, which is the first one with its key here or a repeat.
    async fn answer<R: Runs<S>>(self: &Arc<Self>, admitted: Arc<Admitted>, runs: R) -> Result<Answered, Problem> {
        let deadline = Instant::now() + self.wait;
        loop {
            let mut stage = match self.flights.board(&admitted.key, admitted.print()) {
                Boarded::First(flight) => {
                    let shared = Arc::clone(self);
                    let lead = async move { shared.lead(&admitted, flight, runs, deadline).await };
                    // It runs to its end even if the client disconnects.
                    return finished(lead.in_current_span()).await;
                }
                Boarded::Other(stage) => stage,
            };
            let _waits = self.counts.in_memory.one();
            loop {
                let now = stage.borrow_and_update().clone();
                let is_running = match now {
                    Stage::Landed(landed) if landed.print == admitted.print() => return Ok(self.same(&landed)),
                    // It is another request: the database finds and records the conflict.
                    Stage::Landed(_) => break,
                    Stage::Running => true,
                    Stage::Claiming => false,
                };
                if is_running && Instant::now() >= deadline {
                    return Err(Problem::InProgress);
                }
                let until = if is_running { deadline } else { deadline + self.handler_deadline };
                match tokio::time::timeout_at(until, stage.changed()).await {
                    Ok(Ok(())) => {}
                    // It ended without an answer that is kept, so the next one runs.
                    Ok(Err(_ended)) => break,
                    Err(_late) => return Err(Problem::InProgress),
                }
            }
            // The first request gives up its place right after its answer is set.
            while stage.changed().await.is_ok() {}
        }
    }

    /// The answer of a request with the same key and content that ended while this one waited.
    fn same(&self, landed: &Landed) -> Answered {
        let mut response = self.replayed(&landed.value);
        answer::tell(response.headers_mut(), true, landed.times, self.profile.last_modified);
        Answered { response, outcome: REPLAYED }
    }

    /// The answer that was kept, as a repeat gets it.
    fn replayed(&self, kept: &ResultBody) -> Response<Bytes> {
        let mut response = answer::again(kept);
        if self.profile.replays_2xx_as_200 && response.status().is_success() {
            *response.status_mut() = StatusCode::OK;
        }
        response
    }

    /// Runs the first request with its key here.
    async fn lead<R: Runs<S>>(
        self: &Arc<Self>,
        admitted: &Arc<Admitted>,
        flight: Flight,
        mut runs: R,
        deadline: Instant,
    ) -> Result<Answered, Problem> {
        // The key is claimed later, and is known for no less.
        let known_until = self.known_until();
        let ended = self.claimed(admitted, &flight.tell, &mut runs, deadline).await;
        let (ran, own) = match ended {
            Ok(Ended::Done(ran, own)) => (ran, own),
            Ok(Ended::Dropped(mut response)) => {
                answer::untold(response.headers_mut());
                let outcome = if response.status().is_server_error() { "server-error" } else { "not-kept" };
                if error::may_pass(response.status()) {
                    let retry_after = http::HeaderValue::from(self.profile.retry_after.as_secs().max(1));
                    response.headers_mut().entry(http::header::RETRY_AFTER).or_insert(retry_after);
                }
                return Ok(Answered { response, outcome });
            }
            Ok(Ended::Not(problem)) => {
                if let Some(bug) = problem.bug() {
                    let (consumer, path) = (self.engine.name(), admitted.parts.uri.path());
                    tracing::error!({ idem.consumer = %consumer, url.path = path }, "{bug}");
                }
                return Err(problem);
            }
            Err(error) => return Err(self.explained(admitted, error)),
        };
        Ok(self.done(admitted, &flight, ran, own, known_until))
    }

    /// Until when a key that is claimed now is known.
    fn known_until(&self) -> Option<SystemTime> {
        match self.keys_for {
            Retention::For(time) => self.engine.database_now()?.checked_add(time),
            Retention::Forever => None,
        }
    }

    fn done(
        self: &Arc<Self>,
        admitted: &Arc<Admitted>,
        flight: &Flight,
        ran: Outcome,
        own: Option<Response<Bytes>>,
        known_until: Option<SystemTime>,
    ) -> Answered {
        let times = match ran.recorded() {
            Some(recorded) => recorded.into(),
            // The very first request of a process has nothing from before.
            None => Times { processed_at: None, expires_at: known_until.or_else(|| self.known_until()) },
        };
        if flight.tell.has_company() {
            let (shared, admitted) = (Arc::clone(self), Arc::clone(admitted));
            let (tell, value) = (Arc::clone(&flight.tell), ran.result().clone());
            // The answer of this request waits for none of that, and later ones look into the database.
            let land = async move {
                // Their answers give the time of this run, as all later answers will.
                let _connection = admitted.in_hand.run().await;
                let exact = match (times.processed_at, shared.engine.key_state(admitted.message()).await) {
                    (None, Ok(KeyState::Done { recorded, .. })) => Times::from(&*recorded),
                    (_, _) => times,
                };
                tell.landed(Landed { print: admitted.print(), value, times: exact });
            };
            tokio::spawn(land.in_current_span());
        }
        // An answer that was read back counts, even if the handler has run here in vain.
        let kept = || if ran.is_replayed() { self.replayed(ran.result()) } else { answer::again(ran.result()) };
        let mut response = own.filter(|_| !ran.is_replayed()).unwrap_or_else(kept);
        answer::tell(response.headers_mut(), ran.is_replayed(), times, self.profile.last_modified);
        Answered { response, outcome: if ran.is_replayed() { REPLAYED } else { FIRST } }
    }

    /// Claims the key, and waits while another process has it: a few requests at a time, as each wait takes a connection.
    async fn claimed<R: Runs<S>>(
        self: &Arc<Self>,
        admitted: &Arc<Admitted>,
        progress: &Arc<Progress>,
        runs: &mut R,
        deadline: Instant,
    ) -> Result<Ended, RunOnceError> {
        let (mut waits, mut is_again) = (None, admitted.is_again);
        loop {
            // Where the key was seen here before, the engine looks by itself.
            if std::mem::take(&mut is_again) {
                let Some(_connection) = admitted.in_hand.run().await else {
                    return Ok(Ended::Not(Problem::Overloaded));
                };
                if let Some(ran) = self.engine.peek(admitted.message()).await? {
                    return Ok(Ended::Done(ran, None));
                }
            }
            let ended = runs.run(self, admitted, progress).await;
            if !matches!(ended, Err(RunOnceError::Busy)) || Instant::now() + REST >= deadline {
                return ended;
            }
            progress.waits(None);
            waits.get_or_insert_with(|| self.counts.at_database.one());
            let waiting = Arc::clone(&self.waiting).acquire_owned();
            match tokio::time::timeout_at(deadline, waiting).await {
                Ok(permit) => progress.waits(permit.ok()),
                Err(_late) => return ended,
            }
            tokio::time::sleep(REST).await;
        }
    }

    /// The problem where a key could not be claimed. Where one unit writes at a time, whatever writes keeps every key from being claimed,
    /// so that nothing is known of this one.
    pub(crate) fn held(&self) -> Problem {
        if self.waits_per_key {
            return Problem::InProgress;
        }
        tracing::warn!({ idem.consumer = %self.engine.name() }, "no key can be claimed while the database is written to");
        Problem::Unavailable
    }

    /// The problem that explains why there is no answer.
    fn explained(&self, admitted: &Admitted, error: RunOnceError) -> Problem {
        match error {
            RunOnceError::Conflict { kind: ConflictKind::UnknownRule, .. } => Problem::NotComparable,
            RunOnceError::Conflict { recorded, .. } => {
                match fingerprint::differs(&admitted.prints, recorded.hash.as_bytes()) {
                    // It is of an instance that keeps answers by subject, and of which subject this one does not compare.
                    Some(Part::Subject) if !self.answers_by_subject => Problem::NotComparable,
                    Some(Part::Subject) => Problem::OtherSubject,
                    part => Problem::Differs(part),
                }
            }
            RunOnceError::Busy => self.held(),
            RunOnceError::NotKept { recorded, why } => not_kept(&recorded, why),
            RunOnceError::Refused(failure) => {
                tracing::warn!({ idem.consumer = %self.engine.name() }, "a request was refused: {failure}");
                Problem::KeyMalformed("it cannot be kept")
            }
            RunOnceError::Failed(failure) => {
                tracing::warn!({ idem.consumer = %self.engine.name() }, "a handler failed: {failure}");
                if comes_again(&failure) { Problem::FailedForNow } else { Problem::Failed }
            }
            // The change to it was logged.
            RunOnceError::Paused(_) => Problem::Paused,
            RunOnceError::Unavailable(failure) => {
                tracing::warn!({ idem.consumer = %self.engine.name() }, "the database cannot be asked: {failure}");
                Problem::Unavailable
            }
            error => {
                tracing::error!({ idem.consumer = %self.engine.name() }, "a request has no answer: {error}");
                Problem::Unavailable
            }
        }
    }
}

/// The problem for an answer that cannot be given.
pub(crate) fn not_kept(recorded: &Recorded, why: NotKept) -> Problem {
    let (status, location) = match why {
        NotKept::Expired { status, reference, .. } => (status, reference),
        NotKept::Erased { status, .. } => (status, None),
        NotKept::Absent | NotKept::NoKey { .. } | NotKept::Altered { .. } => (None, None),
        // Later releases of idem-core may add variants.
        _ => (None, None),
    };
    Problem::NotKept { status, location, processed_at: recorded.processed_at }
}

fn comes_again(failure: &Failure) -> bool {
    let is_by_hand = failure.error.as_ref().is_some_and(|error| error.class().is_some());
    error::comes_again(failure.class, is_by_hand, failure.code.as_deref())
}
