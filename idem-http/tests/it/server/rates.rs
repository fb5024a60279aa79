//! How many requests of a tenant come in a second.

use std::{sync::Arc, time::Duration};

use super::{
    grounds::{Ground, Memory},
    support::{Runs, builder, counted, request, request_of, route, send},
};

/// W158: a tenant that sends faster than is allowed is told so before its body is read; others, and it itself a moment later, are not.
#[tokio::test(start_paused = true)]
async fn w158_a_tenant_has_its_rate() {
    let (ground, runs) = (Memory::new().await, Arc::new(Runs::default()));
    let idempotency = builder(&ground).tenant_rate_max(4).build().unwrap();
    let (route, asks) = (route::<Memory>(&idempotency, &runs), idempotency.asks(["POST /t"]).unwrap());
    let ask = async || super::ask::ask(&asks, "acme", "/idempotency/k", "").await;
    for (body, replayed) in [("one", false), ("one", true)] {
        assert_eq!(send(&route, request("k", body)).await.is_replayed(), Some(replayed));
    }
    // Malformed ones and strangers' are refused before, and take nothing of it.
    for key in ["a,b", "c,d"] {
        assert_eq!(send(&route, request(key, "one")).await.status, 400);
    }
    assert_eq!(ask().await.status, 200);
    // Another payload counts too.
    assert_eq!(send(&route, request("k", "two")).await.status, 422);
    let read = tokio::sync::watch::Sender::new(0);
    let refused = send(&route, counted(request("l", ""), "one", &read)).await;
    assert_eq!((refused.status, refused.header("retry-after")), (429, Some("1")), "{refused:?}");
    assert!(refused.json()["type"].as_str().unwrap().ends_with("#rate-exceeded"), "{refused:?}");
    let detail = refused.json()["detail"].as_str().unwrap().to_owned();
    assert!(detail.starts_with("4 of your requests may come in a second, as a mean, and as many at once"), "{detail}");
    assert_eq!(*read.borrow(), 0, "its body was read");
    assert_eq!(ask().await.status, 429);
    assert_eq!(send(&route, request_of("globex", "k", "one")).await.status, 201);
    tokio::time::advance(Duration::from_millis(250)).await;
    assert_eq!(send(&route, request("l", "one")).await.status, 201);
    assert_eq!(send(&route, request("l", "one")).await.status, 429, "one a quarter of a second");
    assert_eq!(ground.paid().await, ["one", "one", "one"]);
    for rate in [0, 1_000_001] {
        let refused = builder(&ground).tenant_rate_max(rate).build().unwrap_err();
        assert_eq!(refused.field, "tenant_rate_max");
    }
}
