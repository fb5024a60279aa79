//! The client and the protected routes: one protocol.

use std::time::Duration;

use axum::{
    Router,
    response::{IntoResponse as _, Response},
    routing::post,
};
use http::{Request, StatusCode};
use idem_http::{
    HashSecret, Idem, Idempotency, StepError,
    client::{Ended, IdempotentClient, Intent, Profile, Refusal, Reqwest, Retries},
};
use idem_sqlx::PostgresStore;
use tokio::net::TcpListener;

use crate::inbound::fixture::Fixture;

async fn pay(idem: Idem<PostgresStore>, text: String) -> Result<Response, StepError> {
    let insert = idem.with(move |tx| {
        Box::pin(async move {
            let query = sqlx::query("INSERT INTO effects (key, payload) VALUES ($1, '')");
            query.bind(text).execute(tx.connection()).await.map(|_| ())
        })
    });
    insert.await?;
    // Longer than the client waits for one try.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    Ok((StatusCode::CREATED, "paid").into_response())
}

async fn serve(fixture: &Fixture) -> String {
    let secret = HashSecret::new(1, b"0123456789abcdef0123456789abcdef").unwrap();
    let builder = Idempotency::builder(fixture.store.clone(), "payments");
    let payments = builder.single_tenant().hash_secret(secret).build().unwrap();
    payments.start().await.unwrap();
    let app = Router::new()
        .route("/payments", post(pay))
        .route_service("/idempotency/{key}", payments.asks(["POST /payments"]))
        .layer(payments.layer());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/payments", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await });
    url
}

/// W38: an answer that comes too late for the client is asked for, waited for and fetched from idem's own server; the same key for something
/// else is refused.
#[tokio::test]
async fn w38_a_late_answer_of_idems_own_server_is_fetched() {
    let fixture = Fixture::new().await;
    let url = serve(&fixture).await;
    let impatient = Retries::default().try_within(Duration::from_millis(500)).tries_max(1);
    let profile = || Profile::idem(Duration::from_secs(3_600), "");
    let client = IdempotentClient::new(Reqwest::new(crate::http_client()), profile()).retries(impatient);
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
    assert_eq!(fixture.effects().await, ["order-4711"]);
    // Waited for by trying again, where one may.
    let patient = client.clone().retries(Retries::default().try_within(Duration::from_millis(500)));
    let other = Intent::of("order-4712", "charge");
    assert!(matches!(patient.send(&other, request("order-4712")).await.unwrap(), Ended::Known(_)));
    match patient.send(&intent, request("another amount")).await.unwrap() {
        Ended::Refused(answer, why) => assert_eq!((answer.response.status().as_u16(), why), (422, Refusal::KeyReused)),
        other => panic!("not refused: {other:?}"),
    }
    assert_eq!(fixture.effects().await, ["order-4711", "order-4712"]);
    fixture.drop().await;
}
