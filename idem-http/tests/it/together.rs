//! The client and the protected routes: one protocol.

use std::time::Duration;

use axum::{
    Router,
    extract::State,
    middleware::{Next, from_fn},
    response::{IntoResponse as _, Response},
    routing::post,
};
use bytes::Bytes;
use http::{Request, StatusCode};
use idem_core::HandlerError;
use idem_http::{HashSecret, Idempotency, IdempotentTx, TxError};
use idem_http_client::{Ended, IdempotentClient, Intent, Profile, Refusal, Reqwest, Retries};
use idem_sqlx::PostgresStore;
use tokio::{net::TcpListener, sync::watch};
use tower::util::MapRequest;

use crate::server::grounds::{Ground as _, Postgres};

/// The requests of both kinds that have arrived.
type Arrived = watch::Sender<usize>;

/// Answers once the client has given this try up, and sends something else.
async fn pay(
    State(arrived): State<Arrived>,
    mut tx: IdempotentTx<PostgresStore>,
    text: String,
) -> Result<Response, TxError> {
    let so_far = *arrived.borrow();
    sqlx::query("INSERT INTO paid VALUES ($1)").bind(text).execute(&mut *tx).await?;
    arrived.subscribe().wait_for(|arrived| *arrived > so_far).await.unwrap();
    Ok((StatusCode::CREATED, "paid").into_response())
}

/// Fails for good, or for the first time only.
async fn fail(
    State(arrived): State<Arrived>,
    _: IdempotentTx<PostgresStore>,
    class: String,
) -> Result<Response, TxError> {
    let is_first = *arrived.borrow() == 1;
    match class.as_str() {
        "permanent" => return Err(HandlerError::permanent("it does not fit").into()),
        _ if is_first => return Err(HandlerError::transient("not now").into()),
        _ => {}
    }
    Ok((StatusCode::CREATED, "paid").into_response())
}

async fn serve(ground: &Postgres) -> String {
    let secret = HashSecret::new(1, b"0123456789abcdef0123456789abcdef").unwrap();
    let builder = Idempotency::builder(ground.store(), "payments");
    let payments = builder.single_tenant().hash_secret(secret).build().unwrap();
    payments.start().await.unwrap();
    let arrived = Arrived::new(0);
    let counting = arrived.clone();
    let count = from_fn(move |request: Request<axum::body::Body>, next: Next| {
        counting.send_modify(|arrived| *arrived += 1);
        next.run(request)
    });
    let app = Router::new()
        .route("/payments", post(pay))
        .route("/failures", post(fail))
        .route_service("/idempotency/{key}", payments.asks(["POST /payments"]).unwrap())
        .layer(payments.layer())
        .layer(count)
        .with_state(arrived);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await });
    url
}

fn profile() -> Profile {
    Profile::idem(Duration::from_secs(3_600), "")
}

/// W38: an answer that comes too late for the client is asked for, waited for and fetched from idem's own server; the same key for something
/// else is refused.
#[tokio::test]
async fn w38_a_late_answer_of_idems_own_server_is_fetched() {
    let ground = Postgres::new().await;
    let url = format!("{}/payments", serve(&ground).await);
    let impatient = Retries::default().try_within(Duration::from_secs(2)).tries_max(1);
    let client = IdempotentClient::new(Reqwest::new(crate::http_settings()).unwrap(), profile()).retries(impatient);
    let intent = Intent::of("order-4711", "charge");
    let request =
        |text: &'static str| Request::post(&url).header("content-type", "text/plain").body(text.into()).unwrap();
    match client.send(&intent, request("order-4711")).await.unwrap() {
        Ended::Known(answer) => {
            assert_eq!((answer.response.status().as_u16(), &answer.response.body()[..]), (201, &b"paid"[..]));
            assert_eq!((answer.tries, answer.replayed), (2, true));
        }
        other => panic!("not known: {other:?}"),
    }
    assert_eq!(ground.paid().await, ["order-4711"]);
    // Waited for by trying again, where one may.
    let patient = client.clone().retries(Retries::default().try_within(Duration::from_secs(2)));
    let other = Intent::of("order-4712", "charge");
    assert!(matches!(patient.send(&other, request("order-4712")).await.unwrap(), Ended::Known(_)));
    match patient.send(&intent, request("another amount")).await.unwrap() {
        Ended::Refused(answer, why) => assert_eq!((answer.response.status().as_u16(), why), (422, Refusal::KeyReused)),
        other => panic!("not refused: {other:?}"),
    }
    assert_eq!(ground.paid().await, ["order-4711", "order-4712"]);
}

/// W163: behind a gateway that gives a route another path, none of whose parts the route has, a client that is told the route's name learns
/// the outcome of its request.
#[tokio::test]
async fn w163_behind_a_gateway_that_renames_its_route_a_client_asks_by_name() {
    let ground = Postgres::new().await;
    let url = format!("{}/v2/orders", serve(&ground).await);
    let gateway = |mut request: Request<Bytes>| {
        *request.uri_mut() = request.uri().to_string().replace("/v2/orders", "/payments").parse().unwrap();
        request
    };
    let direct = Reqwest::new(crate::http_settings()).unwrap();
    let impatient = Retries::default().try_within(Duration::from_secs(2)).tries_max(1);
    let client = IdempotentClient::new(MapRequest::new(direct, gateway), profile()).retries(impatient);
    let request = || Request::post(&url).header("content-type", "text/plain").body("order-4711".into()).unwrap();
    let intent = Intent::of("order-4711", "charge");
    match client.route("POST /payments").send(&intent, request()).await.unwrap() {
        Ended::Known(answer) => assert_eq!((answer.tries, answer.replayed), (2, true)),
        other => panic!("not known: {other:?}"),
    }
    assert_eq!(ground.paid().await, ["order-4711"]);
}

/// W15: of idem's own failures the client tries again those that may pass, and no others; in either case the try leaves nothing.
#[tokio::test]
async fn w15_the_client_does_as_idems_own_failures_say() {
    let ground = Postgres::new().await;
    for (class, tries) in [("transient", 2), ("permanent", 1)] {
        let url = format!("{}/failures", serve(&ground).await);
        let client = IdempotentClient::new(Reqwest::new(crate::http_settings()).unwrap(), profile());
        let request = Request::post(&url).header("content-type", "text/plain").body(class.into()).unwrap();
        match client.send(&Intent::of(class, "charge"), request).await.unwrap() {
            Ended::Known(answer) => assert_eq!((class, answer.tries, answer.replayed), ("transient", tries, false)),
            Ended::Refused(answer, why) => {
                assert_eq!((class, answer.tries, why), ("permanent", tries, Refusal::Request));
                assert_eq!(answer.response.status(), 500);
                assert!(!answer.response.headers().contains_key("retry-after"), "{answer:?}");
            }
            Ended::Indeterminate(doubt) => panic!("{class}: {doubt}"),
        }
    }
}
