//! A key can be asked about.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use idem_core::{
    Retention, Store,
    cleanup::{Expiring, Removal, Removed},
};
use idem_http::{AskService, Idempotency, Profile};
use sqlx::Connection as _;
use tower::ServiceExt as _;

use super::{
    grounds::{Ground, Memory, Postgres},
    support::{Runs, Seen, builder, held, request, request_of, route, send},
};

pub(crate) async fn ask<S: Store>(service: &AskService<S>, token: &str, path: &str, prefer: &str) -> Seen {
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
    let elsewhere = builder(&ground).answers_by_subject().build().unwrap().asks(["PATCH /t", "POST /t"]).unwrap();
    let (route, asks) = (route::<G>(&payments, &runs), payments.asks(["PATCH /t", "POST /t"]).unwrap());
    let unknown = ask(&asks, "acme", "/idempotency/k", "").await;
    assert_eq!((unknown.status, &unknown.json()["state"]), (404, &"unknown".into()));
    let first = send(&route, held(request_of("acme/ann", "k", "one")));
    let meanwhile = async {
        runs.until_begun(1).await;
        let here = ask(&asks, "acme/ann", "/idempotency/k", "").await;
        for path in ["/idempotency/k", "/idempotency/k?answer=true"] {
            let bob = ask(&asks, "acme/bob", path, "").await;
            assert_eq!((bob.status, bob.json()), (404, unknown.json()), "as one that is unknown");
        }
        let waited = ask(&elsewhere, "acme/ann", "/idempotency/k", "respond-async, wait=60");
        let (waited, ()) = tokio::join!(waited, async { runs.release(1) });
        (here, waited)
    };
    let (first, (running, waited)) = tokio::join!(first, meanwhile);
    assert_eq!(running.json(), serde_json::json!({ "state": "in_progress", "route": "POST /t" }));
    assert_eq!((running.header("preference-applied"), waited.header("preference-applied")), (None, Some("wait=30")));
    let refused = ask(&asks, "acme", "/idempotency/", "wait=1").await;
    assert_eq!((refused.status, refused.header("preference-applied")), (400, None));
    assert_eq!((waited.status, &waited.json()["state"]), (200, &"completed".into()), "{waited:?}");
    let done = ask(&asks, "acme/ann", "/v1/idempotency/k?answer=true", "").await.json();
    assert_eq!((&done["state"], &done["status"]), (&"completed".into(), &201.into()));
    assert_eq!(done["location"], first.header("location").unwrap());
    assert_eq!(done["answer"]["body"], std::str::from_utf8(&first.body).unwrap());
    assert!(done["processed_at"].is_string() && done["key_expires"].is_string());
    assert!(waited.json().get("answer").is_none());
    // No other caller learns anything.
    assert_eq!(ask(&asks, "globex", "/idempotency/k", "").await.status, 404);
    for path in ["/idempotency/k", "/idempotency/k?answer=true"] {
        assert_eq!(ask(&asks, "acme/bob", path, "").await.json(), unknown.json());
    }
    let bob = send(&route, request_of("acme/bob", "k", "one")).await;
    assert_eq!((bob.status, bob.is_replayed()), (403, None), "{bob:?}");
    send(&route, request("f", "final")).await;
    assert_eq!(ask(&asks, "acme", "/idempotency/f", "").await.json()["state"], "failed");
    assert_eq!((ground.paid().await.len(), runs.begun()), (1, 2), "asking runs nothing");
}

/// W156: one key may be used for two operations: what is told is of one of them, and which it is stands beside it.
pub(crate) async fn w156_what_is_told_is_of_the_operation_that_is_asked_about<G: Ground>() {
    let (ground, runs) = (G::new().await, Arc::new(Runs::default()));
    let payments = builder(&ground).build().unwrap();
    let (route, asks) = (route::<G>(&payments, &runs), payments.asks(["POST /t", "PATCH /t"]).unwrap());
    let told = async |path: &str| {
        let seen = ask(&asks, "acme", path, "").await;
        (seen.status, seen.json()["route"].as_str().map(str::to_owned))
    };
    let (post, patch) = (Some("POST /t".to_owned()), Some("PATCH /t".to_owned()));
    let mut refund = request("k", "refund");
    *refund.method_mut() = http::Method::PATCH;
    send(&route, refund).await;
    // The charge has left no record: the refund's must not pass for it.
    assert_eq!(told("/idempotency/k?route=POST%20/t").await, (404, None));
    assert_eq!(told("/idempotency/k").await, (200, patch.clone()));
    send(&route, request("k", "charge")).await;
    for (path, of) in [("POST%20/t", &post), ("PATCH+%2Fv1%2Ft", &patch)] {
        assert_eq!(told(&format!("/idempotency/k?answer=true&route={path}")).await, (200, of.clone()));
    }
    for path in ["/idempotency/k", "/idempotency/k?route=POST%20/other"] {
        let unclear = ask(&asks, "acme", path, "").await;
        let problem = unclear.json();
        assert!(unclear.status == 400 && problem["type"].as_str().unwrap().ends_with("#route-unclear"), "{problem}");
        assert!(problem["detail"].as_str().unwrap().contains("PATCH /t"), "{problem}");
    }
}

/// W14: no record shows yet whose request another process runs, so no subject learns of it, its own neither.
#[tokio::test]
async fn w14_no_subject_is_told_what_another_process_runs() {
    let (ground, runs) = (Postgres::new().await, Arc::new(Runs::default()));
    let payments = || builder(&ground).answers_by_subject().build().unwrap();
    let (route, asks) = (route::<Postgres>(&payments(), &runs), payments().asks(["POST /t"]).unwrap());
    let first = tokio::spawn(send(&route, held(request_of("acme/ann", "k", "one"))));
    runs.until_begun(1).await;
    for (token, status) in [("acme/bob", 404), ("acme/ann", 404), ("acme", 200), ("globex", 404)] {
        assert_eq!(ask(&asks, token, "/idempotency/k", "").await.status, status, "{token}");
    }
    runs.release(1);
    assert_eq!(first.await.unwrap().status, 201);
    assert_eq!(ask(&asks, "acme/ann", "/idempotency/k", "").await.json()["state"], "completed");
}

/// W21: a key is asked about without the quotes that it has in the header, and who gives them is told; so is who asks about no key.
#[tokio::test]
async fn w21_a_question_that_is_no_keys_is_told_why() {
    let (ground, runs) = (Memory::new().await, Arc::new(Runs::default()));
    let payments = builder(&ground).build().unwrap();
    assert_eq!(send(&route::<Memory>(&payments, &runs), request("\"k\"", "one")).await.status, 201);
    let uuids = builder(&ground).profile(Profile::guardia()).build().unwrap();
    let (asks, of_uuids) = (payments.asks(["POST /t"]).unwrap(), uuids.asks(["POST /t"]).unwrap());
    assert_eq!(ask(&asks, "acme", "/idempotency/k", "").await.status, 200);
    for (asks, path, status, told) in [
        (&asks, "/idempotency/%22k%22", 404, "without the quotes that it has in the header"),
        (&of_uuids, "/idempotency/%228e03978e-40d5-43e8-bc93-6894a57f9324%22", 400, "without its quotes"),
        (&asks, "/idempotency/%FF", 400, "is no UTF-8"),
        (&asks, "/idempotency/%zz", 400, "two hexadecimal digits"),
        (&asks, "/idempotency/", 400, "no key"),
    ] {
        let seen = ask(asks, "acme", path, "").await;
        let detail = seen.json()["detail"].as_str().unwrap_or_default().to_owned();
        assert_eq!((seen.status, detail.contains(told)), (status, true), "{path}: {detail}");
        assert_eq!(seen.header("content-type"), Some("application/problem+json"), "{path}");
    }
    let unknown = ask(&asks, "acme", "/idempotency/other", "").await.json();
    assert!(!unknown["detail"].to_string().contains("quotes"), "{unknown}");
}

/// W13: a tenant's questions count towards its share of the connections.
#[tokio::test]
async fn w13_one_tenants_questions_leave_connections_to_others() {
    let (ground, runs) = (Memory::new().await, Arc::new(Runs::default()));
    let payments = builder(&ground).lanes(2).build().unwrap();
    let (route, asks) = (route::<Memory>(&payments, &runs), payments.asks(["POST /t"]).unwrap());
    let first = tokio::spawn(send(&route, held(request("k", "one"))));
    runs.until_begun(1).await;
    let questions: Vec<_> = (0..40)
        .map(|number| {
            let (asks, prefer) = (asks.clone(), if number % 2 == 0 { "" } else { "wait=30" });
            tokio::spawn(async move { ask(&asks, "acme", &format!("/idempotency/of-{number}"), prefer).await })
        })
        .collect();
    for number in 0..40 {
        assert_eq!(ask(&asks, "globex", &format!("/idempotency/of-{number}"), "").await.status, 404);
    }
    assert!(!questions.iter().any(tokio::task::JoinHandle::is_finished), "its one connection is taken");
    runs.release(1);
    assert_eq!(first.await.unwrap().status, 201);
    for question in questions {
        assert_eq!(question.await.unwrap().status, 404);
    }
}

/// W21: each state in its words, with the times of the database.
#[tokio::test]
async fn w21_each_state_of_a_key_is_told() {
    let (ground, runs) = (Postgres::new().await, Arc::new(Runs::default()));
    let payments = builder(&ground).build().unwrap();
    let (route, asks) = (route::<Postgres>(&payments, &runs), payments.asks(["POST /t"]).unwrap());
    let ask = async |key: &str| {
        let seen = ask(&asks, "acme", &format!("/idempotency/{key}"), "").await;
        (seen.status, seen.json())
    };
    let (status, unknown) = ask("k").await;
    assert_eq!((status, &unknown["state"]), (404, &"unknown".into()));
    let meanwhile = async {
        runs.until_begun(1).await;
        let running = ask("k").await;
        runs.release(1);
        running
    };
    let (first, running) = tokio::join!(send(&route, held(request("k", "one"))), meanwhile);
    assert_eq!(running, (200, serde_json::json!({ "state": "in_progress", "route": "POST /t" })));
    let mut connection = sqlx::PgConnection::connect(&super::grounds::url()).await.unwrap();
    let times = format!(
        "SELECT to_char(m.processed_at AT TIME ZONE 'UTC', $1), to_char(m.expires_at AT TIME ZONE 'UTC', $1),
            to_char(r.answer_until AT TIME ZONE 'UTC', $1)
        FROM {0}.processed_messages AS m JOIN {0}.processed_results AS r USING (consumer, key_id)",
        ground.schema.quoted()
    );
    let times = sqlx::query_as(sqlx::AssertSqlSafe(times)).bind("YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"");
    let (processed_at, key_expires, answer_expires): (String, String, String) =
        times.fetch_one(&mut connection).await.unwrap();
    let completed = serde_json::json!({
        "state": "completed", "route": "POST /t", "status": 201, "location": first.header("location"), "processed_at": processed_at,
        "key_expires": key_expires, "answer_expires": answer_expires,
    });
    assert_eq!(ask("k").await, (200, completed.clone()));
    let shorter = builder(&ground).engine(|engine| engine.result_retention(Retention::For(Duration::from_secs(60))));
    let shorter =
        super::ask::ask(&shorter.build().unwrap().asks(["POST /t"]).unwrap(), "acme", "/idempotency/k", "").await;
    assert_eq!(shorter.json(), completed, "its times are those that were stored with it");
    send(&route, request("f", "final")).await;
    let (status, failed) = ask("f").await;
    assert_eq!((status, &failed["state"], &failed["status"]), (200, &"failed".into(), &422.into()));
    assert!(failed["answer_expires"].is_string(), "{failed}");
    // The answer's time is over, and its row has the rest.
    let age = format!("UPDATE {}.processed_results SET answer_until = now() - interval '1 s'", ground.schema.quoted());
    sqlx::raw_sql(sqlx::AssertSqlSafe(age)).execute(&mut connection).await.unwrap();
    let removal =
        Removal { kind: Expiring::Answers, kept: Duration::ZERO, rows_max: 100, timeout: Duration::from_secs(30) };
    assert!(matches!(ground.store().cleaner().remove(&removal).await, Ok(Removed::Rows(2))));
    let gone = serde_json::json!({
        "state": "answer_not_kept", "route": "POST /t", "status": 201, "location": first.header("location"), "processed_at": processed_at,
        "key_expires": key_expires,
    });
    assert_eq!(ask("k").await, (200, gone));
    // The state cannot be known, and the answer says so.
    let options: sqlx::postgres::PgConnectOptions = super::grounds::url().parse().unwrap();
    let store = idem_sqlx::PostgresStore::with_options(options.port(1)).build().unwrap();
    let without = Idempotency::builder(store, "payments").single_tenant().plain_hashes().build().unwrap();
    let uncertain = super::ask::ask(&without.asks(["POST /t"]).unwrap(), "acme", "/idempotency/k", "").await;
    assert_eq!((uncertain.status, &uncertain.json()["state"]), (503, &"uncertain".into()), "{uncertain:?}");
    assert_eq!(uncertain.header("retry-after"), Some("1"));
    assert_eq!(runs.begun(), 2, "asking runs nothing");
}

/// W157: no key is ever known of a route that is none, so a name that cannot be one is refused where it is given.
#[tokio::test]
async fn w157_a_misspelt_route_is_refused_where_it_is_named() {
    let payments = builder(&Memory::new().await).build().unwrap();
    let is_refused = |route: &str| payments.asks([route]).is_err_and(|error| error.field == "asks");
    for misspelt in [
        "",
        "/t",
        "POST",
        "POST t",
        "POST  /t",
        " POST /t",
        "POST /t ",
        "post /t",
        "POST:/t",
        "POST /t /u",
        "GET /t",
        "P\u{d6}ST /t",
    ] {
        assert!(is_refused(misspelt), "{misspelt:?}");
    }
    for route in ["POST /t", "PATCH /a/{id}", "MKCOL /", "DELETE /a/{*rest}"] {
        assert!(!is_refused(route), "{route:?}");
    }
}

/// A request that queues or claims its key has left no record: the answer must not say that none is on its way.
#[tokio::test]
async fn w21_what_is_unknown_may_still_come() {
    let asks = builder(&Memory::new().await).build().unwrap().asks(["POST /t"]).unwrap();
    let unknown = ask(&asks, "acme", "/idempotency/k", "").await.json();
    let detail = unknown["detail"].as_str().unwrap();
    assert!(detail.contains("may still come"), "{detail}");
}
