//! The layer on a router of axum, with the extractor.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{
    Json, Router,
    body::Body,
    extract::{Path, State},
    response::{IntoResponse as _, Redirect, Response},
    routing::{any, post},
};
use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::Full;
use idem_core::{
    ErrorClass, Event, HandlerError, Store as _,
    outbox::{CAUSED_BY, IdForm, StoredEvent},
    telemetry::HTTP_UNTAKEN,
};
use idem_http::{Idempotency, IdempotentTx, RequestKey, TxError};
use idem_testkit::{Fault, Operation};
use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use sqlx::Connection as _;
use tower::ServiceExt as _;

use super::{
    grounds::{Ground, Memory, Postgres, Server, url},
    support::{Runs, Seen, builder},
};

/// The handlers' runs; those of `/held` wait until they are released.
#[derive(Clone, Default)]
struct Counted(Arc<AtomicUsize>, Arc<Runs>);

fn app<G: Ground>(idempotency: &Idempotency<G::Store>, runs: &Counted) -> Router {
    Router::new()
        .route("/pay", post(pay::<G>).put(pay::<G>).delete(pay::<G>).get(async || "read"))
        .route("/pay-any", any(pay::<G>))
        .route("/read-any", any(async || "read"))
        .route("/refuse", post(refuse::<G>))
        .route("/stream", post(stream::<G>))
        .route("/slow", post(slow::<G>))
        .route("/held", post(held::<G>))
        .route("/plain", post(async || "nothing of the database"))
        .route("/idle", post(async |_: IdempotentTx<G::Store>| fastrand::u64(..).to_string()))
        .route("/elsewhere", post(async || Redirect::to("/idle")).put(async || StatusCode::NOT_FOUND))
        .route("/fail/{class}", post(fail::<G>))
        .route("/told", post(shown::<G>))
        .layer(idempotency.layer())
        .with_state(runs.clone())
}

async fn pay<G: Ground>(
    State(runs): State<Counted>,
    mut tx: IdempotentTx<G::Store>,
    Json(body): Json<serde_json::Value>,
) -> Result<Response, TxError> {
    runs.0.fetch_add(1, Ordering::SeqCst);
    let text = body["text"].to_string();
    G::pay(&mut tx.tx(), text).await?;
    // Two statements in one transaction.
    G::pay(&mut tx.tx(), "and more".to_owned()).await?;
    Ok((StatusCode::CREATED, fastrand::u64(..).to_string()).into_response())
}

async fn refuse<G: Ground>(State(runs): State<Counted>, mut tx: IdempotentTx<G::Store>) -> Result<Response, TxError> {
    runs.0.fetch_add(1, Ordering::SeqCst);
    G::pay(&mut tx.tx(), "refused".to_owned()).await?;
    tx.refuse();
    Ok((StatusCode::PAYMENT_REQUIRED, fastrand::u64(..).to_string()).into_response())
}

async fn stream<G: Ground>(mut tx: IdempotentTx<G::Store>) -> Result<Response, TxError> {
    G::pay(&mut tx.tx(), "streamed".to_owned()).await?;
    Ok(Body::new(Endless).into_response())
}

async fn held<G: Ground>(State(runs): State<Counted>, mut tx: IdempotentTx<G::Store>) -> Result<Response, TxError> {
    G::pay(&mut tx.tx(), "held".to_owned()).await?;
    runs.1.begin_held().await;
    Ok((StatusCode::CREATED, fastrand::u64(..).to_string()).into_response())
}

async fn slow<G: Ground>(mut tx: IdempotentTx<G::Store>) -> Result<Response, TxError> {
    G::pay(&mut tx.tx(), "slow".to_owned()).await?;
    std::future::pending().await
}

/// A handler that fails, for good or for now.
async fn fail<G: Ground>(Path(class): Path<String>, mut tx: IdempotentTx<G::Store>) -> Result<Response, TxError> {
    G::pay(&mut tx.tx(), "failed".to_owned()).await?;
    let failed = match class.as_str() {
        "permanent" => HandlerError::permanent("it does not fit"),
        "transient" => HandlerError::transient("not now"),
        _ => HandlerError::from("unknown cause"),
    };
    Err(failed.into())
}

/// The key as a handler sees it.
async fn shown<G: Ground>(mut tx: IdempotentTx<G::Store>, request: Request<Body>) -> Result<Response, TxError> {
    G::pay(&mut tx.tx(), "paid".to_owned()).await?;
    let by_tx = tx.tx().message().map(|message| message.derived_key("charge").to_string());
    let key = tx.key();
    let extension = RequestKey::of(&request).map(|key| key.derived_key_as("charge", IdForm::Hex32));
    let (subject, other) = (key.sender().subject.clone(), key.derived_key("refund").to_string());
    let all = serde_json::json!({
        "key": key.as_str(), "tenant": key.tenant(), "subject": subject, "route": key.route(), "by_tx": by_tx,
        "derived": key.derived_key("charge").to_string(), "hex": extension, "other": other,
    });
    Ok(Json(all).into_response())
}

/// A body that goes on for ever.
struct Endless;

impl http_body::Body for Endless {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, Self::Error>>> {
        std::task::Poll::Ready(Some(Ok(http_body::Frame::data(Bytes::from_static(&[b'x'; 1_024])))))
    }
}

fn json(path: &str, key: &str, body: &'static str) -> Request<Full<Bytes>> {
    Request::post(path)
        .header("authorization", "Bearer acme")
        .header("idempotency-key", key)
        .header("content-type", "application/json")
        .body(Full::new(Bytes::from_static(body.as_bytes())))
        .unwrap()
}

async fn send(app: &Router, request: Request<Full<Bytes>>) -> Seen {
    Seen::of(app.clone().oneshot(request).await.unwrap()).await
}

pub(crate) async fn w24_a_handler_of_axum_has_its_effect_once<G: Ground>() {
    let (ground, runs) = (G::new().await, Counted::default());
    let app = app::<G>(&builder(&ground).wait_for_owner(Duration::from_secs(20)).build().unwrap(), &runs);
    let one = || send(&app, json("/pay", "k", r#"{"text":"one"}"#));
    let (a, b, c) = tokio::join!(one(), one(), one());
    assert_eq!([a.status, b.status, c.status], [201; 3], "{a:?}");
    assert_eq!((&a.body, &b.body), (&b.body, &c.body));
    assert_eq!(ground.paid().await, ["\"one\"", "and more"]);
    assert_eq!(one().await.is_replayed(), Some(true));
    assert_eq!(send(&app, json("/pay", "k", r#"{"text":"two"}"#)).await.status, 422);
    assert_eq!(runs.0.load(Ordering::SeqCst), 1);
    // A refusal is kept, and its writes are not.
    let first = send(&app, json("/refuse", "r", "{}")).await;
    let again = send(&app, json("/refuse", "r", "{}")).await;
    assert_eq!((first.status, &first.body), (402, &again.body));
    assert_eq!(again.is_replayed(), Some(true));
    assert_eq!(ground.paid().await.len(), 2);
    // These are protected where they have a key, and where they have none their handler states its need.
    for method in [Method::PUT, Method::DELETE, "MKCOL".parse().unwrap(), "LOCK".parse().unwrap()] {
        let other = || {
            let mut other = json("/pay-any", "p", r#"{"text":"other"}"#);
            *other.method_mut() = method.clone();
            other
        };
        assert_eq!(send(&app, other()).await.is_replayed(), Some(false), "{method}");
        assert_eq!(send(&app, other()).await.is_replayed(), Some(true), "{method}");
        let mut keyless = other();
        keyless.headers_mut().remove("idempotency-key");
        assert_eq!(send(&app, keyless).await.status, 400, "{method}");
    }
    let safe = [Method::GET, Method::HEAD, Method::OPTIONS, Method::TRACE].into_iter();
    for method in safe.chain(["QUERY", "PROPFIND", "REPORT", "SEARCH"].map(|name| name.parse().unwrap())) {
        let mut safe = json("/read-any", "k", "{}");
        *safe.method_mut() = method;
        let seen = send(&app, safe).await;
        assert_eq!((seen.status, seen.is_replayed()), (200, None), "it passes, whatever its headers: {seen:?}");
    }
}

/// W123: behind the layer safe methods pass, and a handler that takes its transaction is given none, with a key or without.
#[tokio::test]
async fn w123_a_safe_method_is_given_no_transaction() {
    let (ground, runs) = (Memory::new().await, Counted::default());
    let idempotency = builder(&ground).build().unwrap();
    let app = Router::new()
        .route("/pay", axum::routing::get(held::<Memory>))
        .layer(idempotency.layer())
        .with_state(runs.clone());
    for method in [Method::GET, Method::HEAD] {
        let mut keyed = json("/pay", "k", "{}");
        *keyed.method_mut() = method.clone();
        let mut keyless = keyed.clone();
        keyless.headers_mut().remove("idempotency-key");
        assert_eq!(send(&app, keyless).await.status, 400, "{method}: it says that it needs a key");
        assert_eq!(send(&app, keyed).await.status, 500, "{method}: the route is not set up for it");
    }
    assert_eq!((ground.paid().await.len(), runs.1.begun(), idempotency.running()), (0, 0, 0));
}

/// A handler that does not take its transaction protects nothing, and must not look as if it did.
pub(crate) async fn w24_a_handler_without_its_transaction_is_told<G: Ground>() {
    let recorder = DebuggingRecorder::new();
    let _recording = metrics::set_default_local_recorder(&recorder);
    // How often it was counted since it was last asked.
    let counted = || {
        let all = recorder.snapshotter().snapshot().into_vec();
        all.into_iter().find(|(key, ..)| key.key().name() == HTTP_UNTAKEN.name).map(|(.., value)| value)
    };
    let (ground, runs) = (G::new().await, Counted::default());
    let app = app::<G>(&builder(&ground).build().unwrap(), &runs);
    for path in ["/plain", "/elsewhere"] {
        for _ in 0..2 {
            let untaken = send(&app, json(path, "x", "{}")).await;
            assert_eq!((untaken.status, untaken.header("retry-after")), (500, None), "{path}: {untaken:?}");
            assert!(untaken.json()["type"].as_str().unwrap().ends_with("#unprotected"), "{path}: {untaken:?}");
            assert_eq!(untaken.is_replayed(), None, "{path}: nothing is kept");
            assert_eq!(counted(), Some(DebugValue::Counter(1)), "{path}");
        }
    }
    // Such as the router's own, which say that nothing was done.
    for (path, status) in [("/nowhere", 404), ("/elsewhere", 404)] {
        let mut refused = json(path, "r", "{}");
        *refused.method_mut() = Method::PUT;
        let seen = send(&app, refused).await;
        assert_eq!((seen.status, seen.is_replayed()), (status, None), "{path}: {seen:?}");
        assert_eq!(counted(), Some(DebugValue::Counter(0)), "{path}");
    }
    // One that takes it may have nothing to write.
    let first = send(&app, json("/idle", "i", "{}")).await;
    let again = send(&app, json("/idle", "i", "{}")).await;
    assert_eq!((first.status, again.status, &again.body), (200, 200, &first.body));
    assert_eq!((first.is_replayed(), again.is_replayed()), (Some(false), Some(true)));
}

pub(crate) async fn w24_an_extractor_refuses_and_nothing_is_kept<G: Ground>() {
    let (ground, runs) = (G::new().await, Counted::default());
    let app = app::<G>(&builder(&ground).build().unwrap(), &runs);
    let malformed = send(&app, json("/pay", "k", "{")).await;
    assert_eq!((malformed.status, malformed.is_replayed()), (400, None), "{malformed:?}");
    // The key is free for the request as it was meant.
    assert_eq!(send(&app, json("/pay", "k", r#"{"text":"one"}"#)).await.status, 201);
    assert_eq!(ground.paid().await.len(), 2);
}

/// Without its own task the handler would end with its client's connection, and its transaction with it.
pub(crate) async fn w3_a_handler_of_axum_ends_without_its_client<G: Ground>() {
    let (ground, runs) = (G::new().await, Counted::default());
    let app = app::<G>(&builder(&ground).wait_for_owner(Duration::from_secs(60)).build().unwrap(), &runs);
    let mut gone = Box::pin(send(&app, json("/held", "k", "{}")));
    tokio::select! {
        seen = &mut gone => panic!("it was answered while it is held: {seen:?}"),
        () = runs.1.until_begun(1) => drop(gone),
    }
    // As many as might run.
    let (again, ()) = tokio::join!(send(&app, json("/held", "k", "{}")), async { runs.1.release(2) });
    assert_eq!((again.status, again.is_replayed()), (201, Some(true)), "{again:?}");
    assert_eq!((ground.paid().await, runs.1.begun()), (vec!["held".to_owned()], 1));
}

pub(crate) async fn w9_a_response_that_does_not_end_has_no_effect<G: Ground>() {
    let (ground, runs) = (G::new().await, Counted::default());
    let patient = app::<G>(&builder(&ground).build().unwrap(), &runs);
    let endless = send(&patient, json("/stream", "k", "{}")).await;
    assert_eq!((endless.status, endless.is_replayed()), (500, None), "{endless:?}");
    let idempotency = builder(&ground).handler_deadline(Duration::from_secs(1)).build().unwrap();
    let late = send(&app::<G>(&idempotency, &runs), json("/slow", "l", "{}")).await;
    assert_eq!((late.status, late.header("retry-after")), (503, Some("1")), "{late:?}");
    assert_eq!(ground.paid().await.len(), 0);
}

/// W15: a step that failed is a problem of idem's, with whether another try may go better.
pub(crate) async fn w15_a_failed_step_says_whether_to_come_again<G: Ground>() {
    let (ground, runs) = (G::new().await, Counted::default());
    let app = app::<G>(&builder(&ground).build().unwrap(), &runs);
    for (class, status, retry_after, slug) in [
        ("permanent", 500, None, "#failed"),
        ("transient", 503, Some("1"), "#failed-for-now"),
        ("unclassed", 503, Some("1"), "#failed-for-now"),
    ] {
        for _ in 0..2 {
            let failed = send(&app, json(&format!("/fail/{class}"), class, "{}")).await;
            assert_eq!((failed.status, failed.header("retry-after")), (status, retry_after), "{class}: {failed:?}");
            assert_eq!(failed.header("content-type"), Some("application/problem+json"));
            assert!(failed.json()["type"].as_str().unwrap().ends_with(slug), "{class}: {failed:?}");
            assert_eq!(failed.is_replayed(), None, "{class}: nothing is kept");
        }
    }
    assert_eq!(ground.paid().await.len(), 0);
}

/// W30: the key that a handler gives to a provider follows from the service, the tenant, the route, the key and the call, and from
/// nothing else.
pub(crate) async fn w30_a_handler_is_told_its_key_and_derives_others<G: Ground>() {
    let (ground, runs) = (G::new().await, Counted::default());
    let payments = || builder(&ground).build().unwrap();
    let app = app::<G>(&payments(), &runs);
    let of = |token: &str, key: &str, body: &'static str| {
        let mut request = json("/told", key, body);
        request.headers_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
        request
    };
    let first = send(&app, of("acme/ann", "\"k 1\"", "{}")).await.json();
    assert_eq!((&first["key"], &first["tenant"]), (&"k 1".into(), &"acme".into()));
    assert_eq!((&first["subject"], &first["route"]), (&"ann".into(), &"POST /told".into()));
    assert_eq!(first["derived"], first["by_tx"], "as its transaction's message derives it");
    assert_eq!(first["hex"], first["derived"].as_str().unwrap().replace('-', ""));
    let mut all =
        std::collections::BTreeSet::from([first["derived"].clone(), first["other"].clone()].map(|key| key.to_string()));
    for (token, key) in [("globex", "\"k 1\""), ("acme", "k-2")] {
        all.insert(send(&app, of(token, key, "{}")).await.json()["derived"].to_string());
    }
    assert_eq!(all.len(), 4, "no two are the same");
    // A key whose first run was rolled back is derived from again.
    let elsewhere = Router::new().route("/told", post(shown::<G>)).layer(payments().layer()).with_state(runs);
    let forgotten = G::new().await;
    let other = Router::new().route("/told", post(shown::<G>)).layer(builder(&forgotten).build().unwrap().layer());
    assert_eq!(send(&elsewhere, of("acme/ann", "\"k 1\"", "{}")).await.json(), first);
    assert_eq!(send(&other, of("acme/ann", "\"k 1\"", "{}")).await.json()["derived"], first["derived"]);
}

/// W88: an event under its request's own key is not that of another tenant or route, and names the client's key as its cause.
pub(crate) async fn w88_events_with_their_requests_keys_stay_apart<G: Ground>() {
    async fn sent_on<G: Ground>(mut tx: IdempotentTx<G::Store>) -> Result<StatusCode, TxError> {
        tx.publish(Event::to("paid").same_key().body("it"))?;
        Ok(StatusCode::OK)
    }
    let ground = G::new().await;
    let idempotency = builder(&ground).engine(|engine| engine.publish_to(["paid"])).build().unwrap();
    let app = Router::new().route("/a", post(sent_on::<G>)).route("/b", post(sent_on::<G>)).layer(idempotency.layer());
    for (tenant, path) in [("acme", "/a"), ("globex", "/a"), ("acme", "/b"), ("acme", "/b")] {
        let mut request = json(path, "\"k 1\"", "{}");
        request.headers_mut().insert("authorization", format!("Bearer {tenant}").parse().unwrap());
        assert_eq!(send(&app, request).await.status, 200, "{tenant} {path}");
    }
    let events = ground.store().outbox().unwrap().events(Some("paid"), None, 10).await.unwrap();
    let told = |stored: &StoredEvent| {
        assert_eq!(stored.event.headers.text(CAUSED_BY), Some("k 1"));
        stored.event.key.as_str().to_owned()
    };
    let mut keys: Vec<_> = events.iter().map(told).collect();
    keys.sort();
    assert_eq!(keys, ["4:acme 7:POST /a k 1", "4:acme 7:POST /b k 1", "6:globex 7:POST /a k 1"]);
}

/// O6, O7: a request whose record is gone meets its event in the outbox: the same one is no news at its first try, and another one is no
/// failure that passes.
pub(crate) async fn o6_o7_a_request_meets_its_event_in_the_outbox<G: Server>() {
    async fn tells<G: Ground>(mut tx: IdempotentTx<G::Store>, body: String) -> Result<StatusCode, TxError> {
        tx.publish(Event::to("paid").body(body))?;
        Ok(StatusCode::CREATED)
    }
    let ground = G::new().await;
    let idempotency = builder(&ground).engine(|engine| engine.publish_to(["paid"])).build().unwrap();
    let app = Router::new().route("/a", post(tells::<G>)).layer(idempotency.layer());
    let mut operator = sqlx::PgConnection::connect(&url()).await.unwrap();
    for (body, status) in [("\"one\"", 201), ("\"one\"", 201), ("\"two\"", 500)] {
        let answered = send(&app, json("/a", "k", body)).await;
        assert_eq!(
            (answered.status, answered.is_replayed()),
            (status, (status == 201).then_some(false)),
            "{answered:?}"
        );
        let forget = format!("DELETE FROM {}.processed_messages", ground.schema().quoted());
        sqlx::raw_sql(sqlx::AssertSqlSafe(forget)).execute(&mut operator).await.unwrap();
        let forget = format!("DELETE FROM {}.processed_results", ground.schema().quoted());
        sqlx::raw_sql(sqlx::AssertSqlSafe(forget)).execute(&mut operator).await.unwrap();
    }
    assert_eq!(ground.store().outbox().unwrap().events(Some("paid"), None, 10).await.unwrap().len(), 1);
}

/// W19: no key is claimed, and no database asked, for a path or a method that no route takes.
#[tokio::test]
async fn w19_what_no_route_takes_claims_no_key() {
    let (ground, runs) = (Memory::new().await, Counted::default());
    let idempotency = builder(&ground).build().unwrap();
    let of_method = Router::new().route("/pay", post(pay::<Memory>).route_layer(idempotency.layer()));
    let of_router = Router::new().route("/pay", post(pay::<Memory>)).layer(idempotency.layer());
    let fallback = Router::new().fallback(async || "something was done").layer(idempotency.layer());
    let own = of_router.clone().method_not_allowed_fallback(async || StatusCode::METHOD_NOT_ALLOWED);
    let all = [of_method, of_router, own, fallback];
    let [of_method, of_router, own, fallback] = all.map(|app| app.with_state(runs.clone()));
    let of = |method: Method, path: &str| {
        let mut request = json(path, "k", r#"{"text":"one"}"#);
        *request.method_mut() = method;
        request
    };
    ground.store().inject(Operation::Begin, Fault::Error(ErrorClass::Permanent));
    for app in [&of_method, &of_router] {
        for method in [Method::POST, Method::PATCH, Method::PUT] {
            assert_eq!(send(app, of(method, "/nowhere")).await.status, 404);
        }
    }
    for app in [&of_method, &own] {
        for method in [Method::PATCH, Method::PUT, Method::DELETE] {
            let refused = send(app, of(method, "/pay")).await;
            assert_eq!((refused.status, refused.header("allow")), (405, Some("POST")));
        }
    }
    let done = send(&fallback, of(Method::POST, "/nowhere")).await;
    assert!(done.status == 500 && done.json()["type"].as_str().unwrap().ends_with("#unprotected"), "{done:?}");
    // The fault was there all the while.
    assert_eq!(send(&own, of(Method::POST, "/pay")).await.status, 500);
}

/// W14: a layer outside of idem's refuses a request before its key is looked up, also that of an answer which is kept.
#[tokio::test]
async fn w14_who_is_refused_outside_gets_no_answer_of_before() {
    let (ground, runs) = (Memory::new().await, Counted::default());
    let app = app::<Memory>(&builder(&ground).build().unwrap(), &runs);
    let guarded = app
        .clone()
        .layer(axum::middleware::from_fn(async |_: Request<Body>, _: axum::middleware::Next| StatusCode::FORBIDDEN));
    let pay = |key: &str| json("/pay", key, r#"{"text":"one"}"#);
    assert_eq!(send(&app, pay("kept")).await.status, 201);
    ground.store().inject(Operation::Begin, Fault::Error(ErrorClass::Permanent));
    for key in ["kept", "new"] {
        let refused = send(&guarded, pay(key)).await;
        assert_eq!((refused.status, refused.is_replayed(), &*refused.body), (403, None, &b""[..]), "{key}");
    }
    // The fault was there all the while.
    assert_eq!(send(&app, pay("new")).await.status, 500);
    assert_eq!(send(&app, pay("kept")).await.is_replayed(), Some(true));
}

/// S4: a database quotes values in its errors, and neither the answer to a failed statement nor the log does.
#[tokio::test]
async fn s4_a_failed_statements_text_quotes_no_value() {
    async fn quoted(mut tx: IdempotentTx<idem_sqlx::PostgresStore>) -> Result<StatusCode, TxError> {
        sqlx::query("SELECT 'canary-4711'::text::uuid").execute(&mut *tx).await?;
        Ok(StatusCode::OK)
    }
    let log = Arc::new(std::sync::Mutex::new(Vec::new()));
    let writer = super::telemetry::Lines(Arc::clone(&log));
    let lines = tracing_subscriber::fmt().with_max_level(tracing::Level::WARN).with_writer(move || writer.clone());
    let guard = super::telemetry::set_default(lines.finish());
    let ground = Postgres::new().await;
    let app = Router::new().route("/quoted", post(quoted)).layer(builder(&ground).build().unwrap().layer());
    let failed = send(&app, json("/quoted", "l", "{}")).await;
    drop(guard);
    let log = String::from_utf8(std::mem::take(&mut *log.lock().unwrap())).unwrap();
    assert!(log.contains("22P02") && !log.contains("canary"), "{log}");
    assert!(failed.status == 500 && !String::from_utf8_lossy(&failed.body).contains("canary"), "{failed:?}");
}
