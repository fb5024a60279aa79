//! A key can be asked about.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use idem_core::Store;
use idem_http::AskService;
use tower::ServiceExt as _;

use super::{
    grounds::Ground,
    support::{Runs, Seen, builder, pausing, request, request_of, route, send},
};

async fn ask<S: Store>(service: &AskService<S>, token: &str, path: &str, prefer: &str) -> Seen {
    let request = Request::get(path)
        .header("authorization", format!("Bearer {token}"))
        .header("prefer", prefer)
        .body(Full::new(Bytes::new()))
        .unwrap();
    Seen::of(service.clone().oneshot(request).await.unwrap()).await
}

pub(crate) async fn w21_a_key_can_be_asked_about<G: Ground>() {
    let (ground, runs) = (G::new().await, Arc::new(Runs::default()));
    let payments = builder(&ground).answers_by_subject().build().unwrap();
    let elsewhere = builder(&ground).answers_by_subject().build().unwrap().asks(["PATCH /t", "POST /t"]);
    let (route, asks) = (route::<G>(&payments, &runs), payments.asks(["PATCH /t", "POST /t"]));
    let unknown = ask(&asks, "acme", "/idempotency/k", "").await;
    assert_eq!((unknown.status, &unknown.json()["state"]), (404, &"unknown".into()));
    let first = async { send::<G>(&route, pausing(request_of("acme/ann", "k", "one"), 2_000)).await };
    let meanwhile = async {
        while runs.begun.load(Ordering::SeqCst) == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let here = ask(&asks, "acme/ann", "/idempotency/k", "").await;
        let waited = ask(&elsewhere, "acme/ann", "/idempotency/k", "respond-async, wait=20").await;
        (here, waited)
    };
    let (first, (running, waited)) = tokio::join!(first, meanwhile);
    assert_eq!(running.json(), serde_json::json!({ "state": "in_progress" }));
    assert_eq!((waited.status, &waited.json()["state"]), (200, &"completed".into()), "{waited:?}");
    let done = ask(&asks, "acme/ann", "/v1/idempotency/k?answer=true", "").await.json();
    assert_eq!((&done["state"], &done["status"]), (&"completed".into(), &201.into()));
    assert_eq!(done["location"], first.header("location").unwrap());
    assert_eq!(done["answer"]["body"], std::str::from_utf8(&first.body).unwrap());
    assert!(done["processed_at"].is_string() && done["key_expires"].is_string());
    assert!(waited.json().get("answer").is_none());
    // Nobody else is told anything.
    assert_eq!(ask(&asks, "globex", "/idempotency/k", "").await.status, 404);
    assert_eq!(ask(&asks, "acme/bob", "/idempotency/k", "").await.status, 404);
    let bob = send::<G>(&route, request_of("acme/bob", "k", "one")).await;
    assert_eq!((bob.status, bob.is_replayed()), (403, None), "{bob:?}");
    send::<G>(&route, request("f", "final")).await;
    assert_eq!(ask(&asks, "acme", "/idempotency/f", "").await.json()["state"], "failed");
    assert_eq!((ground.paid().await.len(), runs.begun.load(Ordering::SeqCst)), (1, 2), "asking runs nothing");
}
