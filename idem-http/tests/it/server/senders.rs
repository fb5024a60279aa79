//! Senders that the application looks up, in an async function with its state.

use std::sync::Arc;

use axum::{Router, extract::FromRequestParts as _, routing::post};
use http::{Request, StatusCode, request::Parts};
use http_body_util::Full;
use idem_core::BoxError;
use idem_http::{Authenticated, Idempotency, IdempotentTx};
use tower::ServiceExt as _;

use super::{
    grounds::{Ground, Memory},
    support::{Runs, Seen, request_of},
};

/// The application's state: the sessions that it knows, and its runs.
#[derive(Clone)]
struct App(&'static [(&'static str, &'static str)], Arc<Runs>);

/// The application's own extractor of the caller.
struct Caller(&'static str);

impl axum::extract::FromRequestParts<App> for Caller {
    type Rejection = StatusCode;

    async fn from_request_parts(parts: &mut Parts, App(sessions, _): &App) -> Result<Self, StatusCode> {
        tokio::task::yield_now().await;
        let token = parts.headers.get("authorization").and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
        if token == Some("away") {
            return Err(StatusCode::SERVICE_UNAVAILABLE);
        }
        let known = sessions.iter().find(|(session, _)| Some(*session) == token);
        known.map(|(_, shop)| Self(shop)).ok_or(StatusCode::UNAUTHORIZED)
    }
}

async fn shop(app: App, parts: &mut Parts) -> Result<Option<Authenticated>, BoxError> {
    match Caller::from_request_parts(parts, &app).await {
        Ok(Caller(shop)) => Ok(Some(Authenticated::tenant(shop))),
        Err(StatusCode::UNAUTHORIZED) => Ok(None),
        Err(status) => Err(format!("the sessions cannot be read: {status}").into()),
    }
}

/// W195: the application's own extractor says whose keys a request uses. A stranger gets 401, and where it cannot be found out who sends a
/// request it is 503: nothing runs, and the response says nothing of the key.
#[tokio::test]
async fn w195_a_sender_that_cannot_be_looked_up_is_not_a_stranger() {
    async fn pay(
        axum::extract::State(app): axum::extract::State<App>,
        mut tx: IdempotentTx<<Memory as Ground>::Store>,
    ) -> StatusCode {
        app.1.one_begun();
        let shop = tx.key().tenant().to_owned();
        Memory::pay(&mut tx.tx(), shop).await.unwrap();
        StatusCode::CREATED
    }
    let ground = Memory::new().await;
    let app = App(&[("ann", "acme"), ("bob", "acme"), ("cyd", "globex")], Arc::default());
    let payments = Idempotency::builder(ground.store(), "payments").plain_hashes().tenant_with(app.clone(), shop);
    let payments = payments.build().unwrap();
    let routes = Router::new()
        .route("/t", post(pay).route_layer(payments.layer()))
        .route_service("/idempotency/{key}", payments.asks(["POST /t"]).unwrap())
        .with_state(app.clone());
    for (session, status, replayed) in [
        ("away", 503, None),
        ("dan", 401, None),
        ("ann", 201, Some(false)),
        ("bob", 201, Some(true)),
        ("cyd", 201, Some(false)),
        ("away", 503, None),
    ] {
        let sent = routes.clone().oneshot(request_of(session, "k", "one").map(axum::body::Body::new));
        let seen = Seen::of(sent.await.unwrap()).await;
        assert_eq!((seen.status, seen.is_replayed()), (status, replayed), "{session}: {seen:?}");
        assert_eq!(seen.header("retry-after").is_some(), status == 503, "{session}: {seen:?}");
    }
    assert_eq!((ground.paid().await, app.1.begun()), (vec!["acme".to_owned(), "globex".to_owned()], 2));
    for (session, status) in [("away", 503), ("dan", 401), ("bob", 200)] {
        let question = Request::get("/idempotency/k").header("authorization", format!("Bearer {session}"));
        let question = question.body(axum::body::Body::new(Full::<axum::body::Bytes>::default())).unwrap();
        let seen = Seen::of(routes.clone().oneshot(question).await.unwrap()).await;
        assert_eq!(seen.status, status, "{session}: {seen:?}");
    }
}
