//! Answers questions about keys, so that a client that has lost an answer learns the outcome of its request.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header, request::Parts};
use http_body_util::Full;
use idem_core::{
    ConfigError, IdempotencyKey, Message, ResultBody, Store,
    key::KEY_FIELD,
    once::KeyState,
    results::{NotKept, StoredResult},
    store::Recorded,
    telemetry,
};
use serde_json::{Map, Value, json};
use tokio::time::Instant;
use tower_service::Service;
use tracing::{Instrument as _, Span, field};

use super::{
    answer::{self, PREFERENCE_APPLIED},
    fingerprint::{self, Print},
    flight::Stage,
    key,
    problem::Problem,
    route::{self, decoded},
    run::{Answered, not_kept},
    scope::{self, Authenticated},
    state::{Idempotency, Shared},
    tenants::InHand,
};
use crate::{
    date::rfc3339,
    outcomes::{self, NO_SUCH_METHOD},
    service::always_answers,
};

/// The longest wait that `Prefer: wait` gets.
const WAIT_MAX: Duration = Duration::from_secs(30);
/// How often the database is asked during a wait for a request that another process runs.
const ASKED_EVERY: Duration = Duration::from_millis(250);

/// Answers with the outcome of the request that used a key. [`Idempotency::asks`] makes it.
///
/// It takes `GET …/{key}`, with the key as the last part of the path, percent-encoded, and answers JSON:
/// `{"state":"completed","route":"POST /transactions","status":201,"location":"/t/1","processed_at":"…","key_expires":"…","answer_expires":"…"}`.
///
/// | state | with | the request |
/// |---|---|---|
/// | `completed` | 200 | was carried out, and its answer is kept |
/// | `failed` | 200 | was refused for good, and the refusal is kept |
/// | `answer_not_kept` | 200 | was carried out or refused, and its answer is gone; status, place and times are given where they are known |
/// | `in_progress` | 200 | runs |
/// | `unknown` | 404 | has left no record, or is another tenant's; it may still come |
/// | `uncertain` | 503 | is not known of, because the database cannot be asked |
///
/// `key_expires` says until when at least its repeats have no effect, and `answer_expires` until when they get the answer; both are as they were
/// stored with the request, and null where that is for ever.
///
/// Each answer names the `route` that it is of, because one key may be used for several operations. `?route=POST%20/transactions` asks about one, by its
/// name or by the path of a request to it; a proxy may have shortened or lengthened that path. Without it, a key that more than one route has a
/// record of gets 400.
///
/// With `?answer=true` the answer is included: `status`, `content_type`, `headers`, and `body`, or `body_base64` if the body is not UTF-8.
/// With `Prefer: wait=10` (RFC 7240) it waits 10 seconds, and never more than 30, for a request in progress to end.
///
/// It authenticates as the routes do, and its requests count towards the tenant's limits of requests and of connections. Where
/// [answers are kept by subject](crate::IdempotencyBuilder::answers_by_subject), another subject gets `unknown`; so does every caller with a
/// subject while another process runs the request, because no record shows its owner yet, and where the record is of a time without a
/// secret, whose plain hashes show none. A caller without a subject is told of every subject's requests, answers included.
pub struct AskService<S: Store> {
    shared: Arc<Shared<S>>,
    routes: Arc<[String]>,
}

impl<S: Store> Clone for AskService<S> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), routes: Arc::clone(&self.routes) }
    }
}

impl<S: Store> fmt::Debug for AskService<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AskService").field("routes", &self.routes).finish_non_exhaustive()
    }
}

impl<S: Store> Idempotency<S> {
    /// A service that answers with the outcome of requests to these routes. Each is named by method and path, as in
    /// `POST /transactions`, and they are tried in this order. In axum:
    /// `.route_service("/idempotency/{key}", idempotency.asks(["POST /transactions"])?)`.
    ///
    /// # Errors
    /// [`ConfigError`] if one is no name of a route with records: a method in capitals that is not safe, one space, and a path that begins with `/`.
    /// Each question about a misspelt one would be answered with `unknown`, for ever.
    pub fn asks(&self, routes: impl IntoIterator<Item = impl Into<String>>) -> Result<AskService<S>, ConfigError> {
        let routes: Arc<[String]> = routes.into_iter().map(Into::into).collect();
        if let Some(name) = routes.iter().find(|name| !route::has_records(name)) {
            let rule = "it names no route with records: it must be as in \"POST /transactions\"";
            return Err(ConfigError::new("asks", format!("{name:?}"), rule));
        }
        Ok(AskService { shared: Arc::clone(&self.0), routes })
    }
}

impl<S: Store, B: Send + 'static> Service<Request<B>> for AskService<S> {
    always_answers!();

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let Self { shared, routes } = self.clone();
        let (mut parts, _body) = request.into_parts();
        Box::pin(async move {
            let name = outcomes::named(&parts.method, &parts.extensions);
            let trace = parts.headers.get("traceparent").and_then(|value| value.to_str().ok());
            let span = telemetry::request(shared.engine.name(), outcomes::method(&parts.method), &name, trace);
            let counting = outcomes::begin(&span, |outcome, _, took| shared.counts.questions.count(outcome, took));
            let asked = shared.asked(&mut parts, &routes).instrument(span.clone()).await;
            let Answered { mut response, outcome } = asked.unwrap_or_else(|problem| shared.problem(&problem));
            counting.answered(outcome, response.status());
            // What was refused before it was looked up has waited for nothing.
            let is_refused = response.status().is_client_error() && response.status() != StatusCode::NOT_FOUND;
            if let Some(wait) = waits(&parts).filter(|_| !is_refused) {
                let applied = HeaderValue::try_from(format!("wait={}", wait.as_secs()));
                response.headers_mut().extend(applied.ok().map(|applied| (PREFERENCE_APPLIED, applied)));
            }
            answer::seal(&mut response, &parts.method, None, shared.coded_after);
            Ok(response.map(Full::new))
        })
    }
}

impl<S: Store> Shared<S> {
    async fn asked<'r>(&self, parts: &mut Parts, routes: &'r [String]) -> Result<Answered, Problem> {
        if parts.method != Method::GET && parts.method != Method::HEAD {
            let mut response = Response::new(Bytes::new());
            *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
            response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
            return Ok(Answered { response, outcome: NO_SUCH_METHOD });
        }
        let who = self.sender(parts).await?;
        self.check_headers(&parts.headers)?;
        let key = key_in(parts.uri.path()).map_err(Problem::KeyMalformed)?;
        let is_quoted = key.len() > 1 && key.starts_with('"') && key.ends_with('"');
        let key = key::formed(key, self.key_policy).map_err(|what| {
            Problem::KeyMalformed(if is_quoted { "it is asked about without its quotes" } else { what })
        })?;
        let unknown = Problem::NotFound { is_quoted };
        let in_hand = self.tenants.admit(&who.tenant)?;
        let until = Instant::now() + waits(parts).unwrap_or_default();
        let asked = route::asked_for(routes, parts.uri.query()).map_err(Problem::RouteUnclear)?;
        let joined = |route: &&'r str| Some((*route, scope::joined(&who.tenant, route, &key).ok()?));
        let joined = asked.iter().filter_map(joined);
        // A request that runs in this process comes first: the answer needs no database.
        let mut ended = Vec::new();
        for (route, key) in joined {
            match self.runs_here(&key, until).await {
                Some(print) if self.is_for(&who, &print) => return Ok(told(route, &key, KeyState::InProgress, false)),
                Some(_) => return Err(unknown),
                None => ended.push((route, key)),
            }
        }
        let mut all = Vec::new();
        for (route, key) in ended {
            if let Some(state) = self.state(&key, until, &in_hand).await?
                && self.may_learn(&who, &state)
            {
                all.push((route, key, state));
            }
        }
        if all.len() > 1 {
            let routes: Vec<_> = all.iter().map(|(route, ..)| *route).collect();
            return Err(Problem::RouteUnclear(format!("the key was used for {}", routes.join(" and for "))));
        }
        let (route, key, state) = all.pop().ok_or(unknown)?;
        Ok(told(route, &key, state, wants_answer(parts)))
    }

    /// Whether this sender may learn of a state.
    fn may_learn(&self, who: &Authenticated, state: &KeyState) -> bool {
        if let KeyState::Done { recorded, .. } = state {
            self.is_for(who, recorded.hash.as_bytes())
        } else {
            // Whose it is, is read from its record, and that is not there yet.
            self.subject(who).is_none()
        }
    }

    /// The fingerprint of the request with a key that this process still runs after the wait.
    async fn runs_here(&self, key: &IdempotencyKey, until: Instant) -> Option<Print> {
        let (mut stage, print) = self.flights.stage(key)?;
        let ended = async { while stage.changed().await.is_ok() {} };
        match tokio::time::timeout_at(until, ended).await {
            Ok(()) => None,
            Err(_late) => matches!(*stage.borrow(), Stage::Running).then_some(print),
        }
    }

    /// The state of a key; `None` if nothing is known about it. Waits for a request that another process has in progress.
    async fn state(&self, key: &IdempotencyKey, until: Instant, in_hand: &InHand) -> Result<Option<KeyState>, Problem> {
        loop {
            let message =
                Message::new([0; 32].repeat(self.hashings.len())).with_header(KEY_FIELD, key.as_str().to_owned());
            let connection = in_hand.run().await.ok_or(Problem::Overloaded)?;
            let state = self.engine.key_state(message).await.map_err(|error| {
                tracing::warn!({ idem.consumer = %self.engine.name() }, "a key cannot be asked about: {error}");
                Problem::Unavailable
            })?;
            drop(connection);
            let is_under_way = matches!(state, KeyState::InProgress);
            if matches!(state, KeyState::Unknown) {
                return Ok(None);
            }
            if !is_under_way {
                return Ok(Some(state));
            }
            if Instant::now() + ASKED_EVERY >= until {
                return if self.waits_per_key { Ok(Some(state)) } else { Err(self.held()) };
            }
            tokio::time::sleep(ASKED_EVERY).await;
        }
    }

    /// Whether this sender may learn of the request with this fingerprint.
    fn is_for(&self, who: &Authenticated, print: &Print) -> bool {
        self.subject(who)
            .is_none_or(|subject| self.hashings.iter().any(|hashing| fingerprint::is_of(hashing, subject, print)))
    }
}

fn told(route: &str, key: &IdempotencyKey, state: KeyState, with_answer: bool) -> Answered {
    let mut body = Map::new();
    let outcome = if let KeyState::Done { recorded, result } = state {
        done(&mut body, &recorded, result, with_answer)
    } else {
        "in_progress"
    };
    body.insert("state".to_owned(), outcome.into());
    body.insert("route".to_owned(), route.into());
    Span::current().record("idem.key", field::display(key));
    let mut response = Response::new(Bytes::from(Value::Object(body).to_string()));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Answered { response, outcome }
}

/// Writes down what is known of a request that has ended, and answers the state of its key.
fn done(
    body: &mut Map<String, Value>,
    recorded: &Recorded,
    result: Result<StoredResult, NotKept>,
    with_answer: bool,
) -> &'static str {
    let time = |at: SystemTime| Value::from(rfc3339(at));
    let mut put = |name: &str, value: Value| body.insert(name.to_owned(), value);
    put("processed_at", time(recorded.processed_at));
    put("key_expires", recorded.expires_at.map_or(Value::Null, time));
    match result {
        Ok(StoredResult { is_error, result, until, .. }) => {
            put("status", result.status.into());
            put("location", result.headers.text("location").into());
            put("answer_expires", until.into_iter().chain(recorded.expires_at).min().map_or(Value::Null, time));
            if with_answer {
                put("answer", answer_of(&result));
            }
            if is_error { "failed" } else { "completed" }
        }
        Err(why) => {
            if let Problem::NotKept { status, location, .. } = not_kept(recorded, why) {
                put("status", status.into());
                put("location", location.as_deref().into());
            }
            "answer_not_kept"
        }
    }
}

fn answer_of(result: &ResultBody) -> Value {
    let headers: Map<String, Value> = result
        .headers
        .iter()
        .filter_map(|(name, value)| Some((name.to_owned(), std::str::from_utf8(value?).ok()?.into())))
        .collect();
    let mut answer = json!({ "status": result.status, "content_type": result.content_type, "headers": headers });
    let (name, body) = match std::str::from_utf8(&result.body) {
        Ok(text) => ("body", text.to_owned()),
        Err(_) => ("body_base64", STANDARD.encode(&result.body)),
    };
    if let Some(answer) = answer.as_object_mut() {
        answer.insert(name.to_owned(), body.into());
    }
    answer
}

/// The last part of a path, decoded.
fn key_in(path: &str) -> Result<String, &'static str> {
    match decoded(path.rsplit('/').next().unwrap_or_default())? {
        key if key.is_empty() => Err("the path ends with no key"),
        key => Ok(key),
    }
}

fn wants_answer(parts: &Parts) -> bool {
    parts.uri.query().is_some_and(|query| query.split('&').any(|pair| pair == "answer=true"))
}

/// How long `Prefer` asks to wait, as far as that is granted. Of several the first one counts (RFC 7240, 2).
fn waits(parts: &Parts) -> Option<Duration> {
    let all = parts.headers.get_all("prefer").iter().filter_map(|value| value.to_str().ok());
    let mut wait = all.flat_map(|value| value.split(',')).filter_map(|preference| {
        // The preference's parameters follow a semicolon.
        let (name, value) = preference.split(';').next()?.split_once('=')?;
        name.trim().eq_ignore_ascii_case("wait").then(|| value.trim().trim_matches('"').parse().ok())
    });
    Some(Duration::from_secs(wait.next()??).min(WAIT_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn w21_the_key_is_the_last_part_of_the_path_decoded() {
        assert_eq!(key_in("/idempotency/a%22b%2Fc").as_deref(), Ok("a\"b/c"));
        assert_eq!(key_in("/v1/idempotency/k").as_deref(), Ok("k"));
        for (path, what) in
            [("/idempotency/", "no key"), ("/a%2", "hexadecimal"), ("/a%zz", "hexadecimal"), ("/%ff", "no UTF-8")]
        {
            assert!(key_in(path).is_err_and(|why| why.contains(what)), "{path}");
        }
    }

    #[test]
    fn w21_a_wait_is_asked_for_as_rfc_7240_says() {
        let wait = |values: &[&str]| {
            let asked = values.iter().fold(Request::get("/k"), |request, value| request.header("prefer", *value));
            waits(&asked.body(()).unwrap().into_parts().0).map(|wait| wait.as_secs())
        };
        assert_eq!(wait(&["wait=10"]), Some(10));
        assert_eq!(wait(&["respond-async, Wait = \"10\"; x=1"]), Some(10));
        assert_eq!(wait(&["respond-async", "wait=0", "wait=20"]), Some(0));
        assert_eq!(wait(&["wait=3600"]), Some(30));
        for none in ["", "wait", "wait=soon", "wait=-1", "await=10", "x;wait=10"] {
            assert_eq!(wait(&[none]), None, "{none}");
        }
    }
}
