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
    extract::State,
    response::{IntoResponse as _, Response},
    routing::post,
};
use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::Full;
use idem_http::{Idem, Idempotency, StepError};
use tower::ServiceExt as _;

use super::{
    grounds::Ground,
    support::{Seen, builder},
};

#[derive(Clone, Default)]
struct Counted(Arc<AtomicUsize>);

fn app<G: Ground>(idempotency: &Idempotency<G::Store>, runs: &Counted) -> Router {
    Router::new()
        .route("/pay", post(pay::<G>).put(pay::<G>))
        .route("/refuse", post(refuse::<G>))
        .route("/stream", post(stream::<G>))
        .route("/slow", post(slow::<G>))
        .route("/plain", post(async || "nothing of the database"))
        .layer(idempotency.layer())
        .with_state(runs.clone())
}

async fn pay<G: Ground>(
    State(runs): State<Counted>,
    idem: Idem<G::Store>,
    Json(body): Json<serde_json::Value>,
) -> Result<Response, StepError> {
    runs.0.fetch_add(1, Ordering::SeqCst);
    let text = body["text"].to_string();
    idem.with(move |tx| G::pay(tx, text)).await?;
    // Two steps in one transaction.
    idem.with(move |tx| G::pay(tx, "and more".to_owned())).await?;
    tokio::time::sleep(Duration::from_millis(50)).await;
    Ok((StatusCode::CREATED, fastrand::u64(..).to_string()).into_response())
}

async fn refuse<G: Ground>(State(runs): State<Counted>, idem: Idem<G::Store>) -> Result<Response, StepError> {
    runs.0.fetch_add(1, Ordering::SeqCst);
    idem.with(move |tx| G::pay(tx, "refused".to_owned())).await?;
    idem.refuse();
    Ok((StatusCode::PAYMENT_REQUIRED, fastrand::u64(..).to_string()).into_response())
}

async fn stream<G: Ground>(idem: Idem<G::Store>) -> Result<Response, StepError> {
    idem.with(move |tx| G::pay(tx, "streamed".to_owned())).await?;
    Ok(Body::new(Endless).into_response())
}

async fn slow<G: Ground>(idem: Idem<G::Store>) -> Result<Response, StepError> {
    idem.with(move |tx| G::pay(tx, "slow".to_owned())).await?;
    tokio::time::sleep(Duration::from_secs(60)).await;
    Ok(StatusCode::OK.into_response())
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
    // A refusal is kept, and what was written is not.
    let first = send(&app, json("/refuse", "r", "{}")).await;
    let again = send(&app, json("/refuse", "r", "{}")).await;
    assert_eq!((first.status, &first.body), (402, &again.body));
    assert_eq!(again.is_replayed(), Some(true));
    assert_eq!(ground.paid().await.len(), 2);
    // A PUT is protected where it has a key, and where it has none its handler says what it needs.
    let mut put = json("/pay", "p", r#"{"text":"put"}"#);
    *put.method_mut() = http::Method::PUT;
    assert_eq!(send(&app, put).await.is_replayed(), Some(false));
    let mut put = json("/pay", "p", r#"{"text":"put"}"#);
    *put.method_mut() = http::Method::PUT;
    put.headers_mut().remove("idempotency-key");
    assert_eq!(send(&app, put).await.status, 400);
    // A handler that does not take its transaction is answered all the same.
    let plain = send(&app, json("/plain", "x", "{}")).await;
    assert_eq!((plain.status, plain.is_replayed()), (200, Some(false)));
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

pub(crate) async fn w9_a_response_that_does_not_end_has_no_effect<G: Ground>() {
    let (ground, runs) = (G::new().await, Counted::default());
    let idempotency = builder(&ground).handler_deadline(Duration::from_secs(1)).build().unwrap();
    let app = app::<G>(&idempotency, &runs);
    let endless = send(&app, json("/stream", "k", "{}")).await;
    assert_eq!((endless.status, endless.is_replayed()), (500, None), "{endless:?}");
    let late = send(&app, json("/slow", "l", "{}")).await;
    assert_eq!((late.status, late.header("retry-after")), (503, Some("1")), "{late:?}");
    assert_eq!(ground.paid().await.len(), 0);
}
