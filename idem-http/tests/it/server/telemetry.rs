//! The telemetry of requests: metrics, counts and spans.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, OnceLock},
    time::Duration,
};

use axum::{Router, routing::post};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use idem_core::telemetry;
use idem_http::{Idempotency, IdempotentTx, WaitingRepeats};
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use opentelemetry::trace::{SpanKind, Status, TracerProvider as _};
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};
use tokio::sync::Semaphore;
use tower::ServiceExt as _;
use tracing::{Dispatch, subscriber::DefaultGuard};
use tracing_subscriber::layer::SubscriberExt as _;

use super::{
    grounds::{Ground, Memory},
    support::{Runs, Seen, builder, held, mounted, request, request_of, route, send},
};

/// The recorded values, by metric and labels, as a number: of a histogram, how many values.
fn recorded(snapshotter: &Snapshotter) -> BTreeMap<String, f64> {
    let value = |value| match value {
        DebugValue::Counter(count) => count as f64,
        DebugValue::Gauge(value) => value.0,
        DebugValue::Histogram(values) => values.len() as f64,
    };
    let told = |key: &metrics::Key| {
        let labels: Vec<String> = key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
        format!("{}{{{}}}", key.name(), labels.join(","))
    };
    let all = snapshotter.snapshot().into_vec().into_iter();
    all.map(|(key, _, _, recorded)| (told(key.key()), value(recorded))).collect()
}

/// That both have this count under these labels of the consumer's.
fn counted(recorded: &BTreeMap<String, f64>, metrics: [telemetry::Metric; 2], labels: &str, count: f64) {
    for metric in metrics {
        let name = format!("{}{{consumer=payments,{labels}}}", metric.name);
        assert_eq!(recorded.get(&name), Some(&count), "{name} in {recorded:#?}");
    }
}

/// W72: each request is counted once, by its route as the router knows it and by how it ended; no label holds anything of a
/// client's.
#[tokio::test]
async fn w72_requests_are_counted_by_route_and_outcome() {
    let recorder = DebuggingRecorder::new();
    let _recording = metrics::set_default_local_recorder(&recorder);
    let (ground, runs) = (Memory::new().await, Arc::new(Runs::default()));
    let idempotency = builder(&ground).response_bytes_max(1_000).build().unwrap();
    let of = route::<Memory>(&idempotency, &runs);
    let nobody = || {
        let mut request = request("k-9", "one");
        request.headers_mut().remove("authorization");
        request
    };
    let strange = || {
        let mut request = request("k-10", "one");
        *request.method_mut() = "SECRET".parse().unwrap();
        *request.uri_mut() = "/t?card=4711".parse().unwrap();
        request
    };
    for (request, status) in [
        (request("k-1", "one"), 201),
        (request("k-1", "one"), 201),
        (request("k-1", "one"), 201),
        (request("k-1", "two"), 422),
        (request("k-2", "declined"), 402),
        (request("k-3", "final"), 422),
        (request("k-4", "status 500"), 500),
        (request("k-5", "large"), 500),
        (request("k-6", "not kept"), 400),
        (request("k,7", "one"), 400),
        (nobody(), 401),
        (strange(), 201),
    ] {
        assert_eq!(send(&of, request).await.status, status);
    }
    let begun = runs.begun() + 1;
    let mut gone = send(&of, held(request("k-8", "one")));
    tokio::select! {
        seen = &mut gone => panic!("it was answered while it is held: {seen:?}"),
        () = runs.until_begun(begun) => drop(gone),
    }
    let recorded = recorded(&recorder.snapshotter());
    for (outcome, count) in [
        ("first", 3.0),
        ("replayed", 2.0),
        ("key-reused", 1.0),
        ("server-error", 1.0),
        ("response-refused", 1.0),
        ("not-kept", 1.0),
        ("key-malformed", 1.0),
        ("unauthenticated", 1.0),
        ("client-gone", 1.0),
    ] {
        let metrics = [telemetry::HTTP_REQUESTS, telemetry::HTTP_TIME];
        counted(&recorded, metrics, &format!("route=POST /t,outcome={outcome}"), count);
    }
    assert_eq!(recorded["idem.http_requests{consumer=payments,route=other,outcome=first}"], 1.0);
    let all: f64 = recorded.iter().filter(|(name, _)| name.starts_with("idem.http_requests{")).map(|(_, n)| n).sum();
    assert_eq!(all, 13.0, "each once: {recorded:#?}");
    for name in recorded.keys() {
        for word in ["acme", "k-1", "SECRET", "4711", "two"] {
            assert!(!name.split('{').nth(1).is_some_and(|labels| labels.contains(word)), "{word} in {name}");
        }
    }
    let [t, other] = &idempotency.routes()[..] else { panic!("{:?}", idempotency.routes()) };
    assert_eq!((t.route.as_str(), t.first, t.replayed, t.refused, t.failed, t.gone), ("POST /t", 3, 2, 4, 2, 1));
    assert_eq!((other.route.as_str(), other.first), ("other", 1));
}

/// A route whose handler waits for a permit.
async fn waiting(
    idempotency: &Idempotency<<Memory as Ground>::Store>,
    permits: &Arc<Semaphore>,
    request: Request<Full<Bytes>>,
) -> Seen {
    let permits = Arc::clone(permits);
    let route = mounted(idempotency, "/t", move |_, _| {
        let permits = Arc::clone(&permits);
        Box::pin(async move {
            permits.acquire().await?.forget();
            Ok(Response::new(Bytes::from("done")))
        })
    });
    Seen::of(route.oneshot(request).await.unwrap()).await
}

/// Waits until this many repeats wait.
async fn until(what: impl Fn() -> bool) {
    let told = async {
        while !what() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), told).await.expect("they wait");
}

/// W73: how many repeats wait, and where, is seen while they do; the bound of those at the database is shown beside it.
#[tokio::test]
async fn w73_repeats_that_wait_are_seen_and_gone_when_they_are_answered() {
    let recorder = DebuggingRecorder::new();
    let _recording = metrics::set_default_local_recorder(&recorder);
    let (ground, permits) = (Memory::new().await, Arc::new(Semaphore::new(0)));
    let instance = || builder(&ground).wait_for_owner(Duration::from_secs(60)).waiting_connections(1).build().unwrap();
    let (here, there) = (instance(), instance());
    let waits = |of: &Idempotency<_>| {
        let WaitingRepeats { in_memory, at_database, at_database_max, .. } = of.waiting();
        (in_memory, at_database, at_database_max)
    };
    let one = |of, key| waiting(of, &permits, request(key, "one"));
    let all = async { tokio::join!(one(&here, "k-1"), one(&here, "k-2"), one(&here, "k-1"), one(&here, "k-1")) };
    let repeats = async {
        until(|| waits(&here) == (2, 0, 1)).await;
        let others = async { tokio::join!(one(&there, "k-1"), one(&there, "k-2")) };
        let watching = async {
            until(|| waits(&there) == (0, 2, 1)).await;
            let recorded = recorded(&recorder.snapshotter());
            permits.add_permits(2);
            recorded
        };
        tokio::join!(others, watching)
    };
    let (first, (others, recorded)) = tokio::join!(all, repeats);
    for (name, value) in [
        ("idem.http_waiting{consumer=payments,place=memory}", 2.0),
        ("idem.http_waiting{consumer=payments,place=database}", 2.0),
        ("idem.http_waiting_max{consumer=payments}", 1.0),
    ] {
        assert_eq!(recorded.get(name), Some(&value), "{name} in {recorded:#?}");
    }
    for seen in [&first.0, &first.1, &first.2, &first.3, &others.0, &others.1] {
        assert_eq!((seen.status, &seen.body[..]), (200, &b"done"[..]));
    }
    assert_eq!((waits(&here), waits(&there)), ((0, 0, 1), (0, 0, 1)));
    // The first look has taken the values that were recorded until then.
    let since = self::recorded(&recorder.snapshotter());
    for place in ["memory", "database"] {
        assert_eq!(since[&format!("idem.http_waiting{{consumer=payments,place={place}}}")], -2.0, "{place}");
    }
}

/// Makes this the subscriber of this thread. Another one lives on beside it: where there is only one, a thread that has none
/// may be asked first whether a span is of interest, and its no is remembered for all (tokio-rs/tracing#3611).
pub(crate) fn set_default(subscriber: impl Into<Dispatch>) -> DefaultGuard {
    static ANOTHER: OnceLock<Dispatch> = OnceLock::new();
    ANOTHER.get_or_init(|| Dispatch::new(tracing_subscriber::registry()));
    tracing::dispatcher::set_default(&subscriber.into())
}

/// A place for the lines of a log.
#[derive(Clone)]
pub(crate) struct Lines(pub(crate) Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

fn attribute(span: &SpanData, name: &str) -> Option<String> {
    span.attributes.iter().find(|attribute| attribute.key.as_str() == name).map(|found| found.value.to_string())
}

async fn pay(mut tx: IdempotentTx<<Memory as Ground>::Store>, body: String) -> String {
    Memory::pay(&mut tx.tx(), body).await.unwrap();
    "paid".to_owned()
}

/// W74: each request has a span in the words of OpenTelemetry, with the engine's spans of its unit under it, on both ways in.
#[tokio::test]
async fn w74_a_requests_span_holds_those_of_its_unit() {
    let exporter = InMemorySpanExporter::default();
    let provider = SdkTracerProvider::builder().with_simple_exporter(exporter.clone()).build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("idem"));
    let _guard = set_default(tracing_subscriber::registry().with(layer));
    let (ground, runs) = (Memory::new().await, Arc::new(Runs::default()));
    let idempotency = builder(&ground).build().unwrap();
    let closure = route::<Memory>(&idempotency, &runs);
    let router = Router::new().route("/t", post(pay)).layer(idempotency.layer());
    let traced = |key: &str| {
        let mut request = request_of("acme", key, "one");
        request.headers_mut().insert("traceparent", TRACE.parse().unwrap());
        request
    };
    for (key, status, outcome) in [("k-1", 201, "first"), ("k-1", 201, "replayed"), ("k-2", 200, "first")] {
        exporter.reset();
        let seen = match key {
            "k-1" => send(&closure, traced(key)).await,
            _ => Seen::of(router.clone().oneshot(traced(key).map(axum::body::Body::new)).await.unwrap()).await,
        };
        assert_eq!(seen.status, status, "{seen:?}");
        let spans = exporter.get_finished_spans().unwrap();
        let named = |name: &str| spans.iter().filter(|span| span.name == name).collect::<Vec<_>>();
        let [request] = named("POST /t")[..] else { panic!("{spans:#?}") };
        assert_eq!(request.span_kind, SpanKind::Server);
        let joined = format!("4:acme 7:POST /t {key}");
        for (name, value) in [
            ("http.request.method", "POST"),
            ("http.route", "/t"),
            ("http.response.status_code", &status.to_string()),
            ("idem.consumer", "payments"),
            ("idem.key", &joined),
            ("idem.outcome", outcome),
            ("idem.producer.trace_id", "4bf92f3577b34da6a3ce929d0e0e4736"),
            ("idem.producer.span_id", "00f067aa0ba902b7"),
        ] {
            assert_eq!(attribute(request, name).as_deref(), Some(value), "{name}");
        }
        let mut units = named("unit").into_iter();
        if outcome == "first" {
            let unit = units.next().unwrap_or_else(|| panic!("{spans:#?}"));
            assert_eq!(unit.parent_span_id, request.span_context.span_id(), "{spans:#?}");
            let [process] = &spans.iter().filter(|span| span.name.starts_with("process")).collect::<Vec<_>>()[..]
            else {
                panic!("{spans:#?}")
            };
            assert_eq!(process.span_context.trace_id(), request.span_context.trace_id());
            assert_eq!(attribute(process, "idem.key"), Some(joined));
        }
    }
    exporter.reset();
    assert_eq!(send(&closure, request("k-3", "status 500")).await.status, 500);
    let spans = exporter.get_finished_spans().unwrap();
    let failed = spans.iter().find(|span| span.name == "POST /t").unwrap();
    assert_eq!(attribute(failed, "error.type").as_deref(), Some("server-error"));
    assert!(matches!(failed.status, Status::Error { .. }), "{failed:?}");
}

/// W95: each question about a key is counted once, by the state that was told, and has a span as a request has.
#[tokio::test]
async fn w95_questions_about_keys_are_counted_and_traced() {
    let recorder = DebuggingRecorder::new();
    let _recording = metrics::set_default_local_recorder(&recorder);
    let exporter = InMemorySpanExporter::default();
    let provider = SdkTracerProvider::builder().with_simple_exporter(exporter.clone()).build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("idem"));
    let _guard = set_default(tracing_subscriber::registry().with(layer));
    let (ground, runs) = (Memory::new().await, Arc::new(Runs::default()));
    let idempotency = builder(&ground).build().unwrap();
    let closure = route::<Memory>(&idempotency, &runs);
    let asks = Router::new().route_service("/idempotency/{key}", idempotency.asks(["POST /t"]).unwrap());
    assert_eq!(send(&closure, request("k-1", "one")).await.status, 201);
    assert_eq!(send(&closure, request("k-2", "final")).await.status, 422);
    for (method, tenant, key, status, outcome) in [
        ("GET", "acme", "k-1", 200, "completed"),
        ("GET", "acme", "k-2", 200, "failed"),
        ("GET", "acme", "k-9", 404, "key-unknown"),
        ("GET", "globex", "k-1", 404, "key-unknown"),
        ("GET", "", "k-1", 401, "unauthenticated"),
        ("POST", "acme", "k-1", 405, "method-not-allowed"),
    ] {
        exporter.reset();
        let question =
            Request::builder().method(method).uri(format!("/idempotency/{key}")).header("traceparent", TRACE);
        let question = match tenant {
            "" => question,
            tenant => question.header("authorization", format!("Bearer {tenant}")),
        };
        let seen =
            Seen::of(asks.clone().oneshot(question.body(axum::body::Body::empty()).unwrap()).await.unwrap()).await;
        assert_eq!(seen.status, status, "{outcome}: {seen:?}");
        let spans = exporter.get_finished_spans().unwrap();
        let name = format!("{method} /idempotency/{{key}}");
        let span = spans.iter().find(|span| span.name == name).unwrap_or_else(|| panic!("{outcome}: {spans:#?}"));
        for (name, value) in [
            ("http.route", "/idempotency/{key}"),
            ("http.response.status_code", &status.to_string()),
            ("idem.consumer", "payments"),
            ("idem.outcome", outcome),
            ("idem.producer.span_id", "00f067aa0ba902b7"),
        ] {
            assert_eq!(attribute(span, name).as_deref(), Some(value), "{outcome}: {name}");
        }
        let joined = (status == 200).then(|| format!("4:acme 7:POST /t {key}"));
        assert_eq!(attribute(span, "idem.key"), joined, "{outcome}");
    }
    let recorded = recorded(&recorder.snapshotter());
    for (outcome, count) in [
        ("completed", 1.0),
        ("failed", 1.0),
        ("key-unknown", 2.0),
        ("unauthenticated", 1.0),
        ("method-not-allowed", 1.0),
    ] {
        let metrics = [telemetry::HTTP_QUESTIONS, telemetry::HTTP_QUESTION_TIME];
        counted(&recorded, metrics, &format!("outcome={outcome}"), count);
    }
    let requests: f64 =
        recorded.iter().filter(|(name, _)| name.starts_with("idem.http_requests{")).map(|(_, n)| n).sum();
    assert_eq!(requests, 2.0, "a question is no request: {recorded:#?}");
}
