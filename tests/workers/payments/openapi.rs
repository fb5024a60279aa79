//! The description for machines, held against the running service.

use std::collections::BTreeSet;

use idem_testkit::proxy::Proxy;
use serde_yaml_ng::Value;

use super::{
    client::{Answer, Cut, Request},
    collections::read,
    fixture::{Fixture, until},
    seen,
};

/// The target of a reference, or the value itself.
fn resolved<'a>(all: &'a Value, value: &'a Value) -> &'a Value {
    let Some(reference) = value.get("$ref").and_then(Value::as_str) else { return value };
    reference.trim_start_matches("#/").split('/').fold(all, |value, name| &value[name])
}

/// That the answer is one that is described: its status, its headers, its media type, and the members that are required.
fn check(all: &Value, path: &str, method: &str, answer: &Answer) {
    let responses = &all["paths"][path][method]["responses"];
    let response = responses.get(answer.status.to_string()).unwrap_or_else(|| panic!("{path}: not there: {answer:?}"));
    for (name, header) in response["headers"].as_mapping().into_iter().flatten() {
        let name = name.as_str().expect("a name").to_ascii_lowercase();
        let value = answer.header(&name);
        let header = resolved(all, header);
        assert!(value.is_some() || header["required"] != Value::Bool(true), "{name} is missing: {answer:?}");
        if let (Some(value), Some(allowed)) = (value, header["schema"]["enum"].as_sequence()) {
            assert!(allowed.iter().any(|one| one.as_str() == Some(value)), "{name}: {value}");
        }
    }
    for (media_type, content) in response["content"].as_mapping().into_iter().flatten() {
        assert_eq!(answer.header("content-type"), media_type.as_str(), "{answer:?}");
        let schema = resolved(all, &content["schema"]);
        for member in schema["required"].as_sequence().into_iter().flatten() {
            let member = member.as_str().expect("a name");
            assert!(answer.json().get(member).is_some(), "{member} is missing: {answer:?}");
        }
    }
}

/// The description, and the answers that were compared with it.
struct Compared {
    all: Value,
    seen: BTreeSet<(String, u16)>,
}

impl Compared {
    /// Sends a request, and compares its answer.
    async fn ask(&mut self, (path, method, request): (&str, &str, Request), address: &str) -> Answer {
        let answer = request.answer(address).await;
        self.note((path, method), &answer);
        answer
    }

    fn note(&mut self, (path, method): (&str, &str), answer: &Answer) {
        check(&self.all, path, method, answer);
        self.seen.insert((path.to_owned(), answer.status));
    }
}

fn get(path: &str) -> Request {
    Request::new("GET", path).tenant("acme")
}

/// The first request with its key is held in its handler.
async fn a_race(compared: &mut Compared, fixture: &Fixture, address: &str) {
    let mut held = fixture.hold_balances().await;
    let (request, running_at) = (Request::pay("order-7", "00001", 1), address.to_owned());
    let running = tokio::spawn({
        let request = request.clone();
        async move { request.answer(&running_at).await }
    });
    until("the request to run", async || fixture.waits().await > 0).await;
    let refused = compared.ask(("/transactions", "post", request), address).await;
    assert_eq!((refused.status, refused.header("retry-after")), (409, Some("1")), "{refused:?}");
    sqlx::raw_sql("COMMIT").execute(&mut *held).await.expect("the balances are let go");
    drop(held);
    assert_eq!(running.await.expect("no panic").status, 201);
}

/// As many requests of one tenant's as may be in hand wait for the first of them.
async fn a_crowd(compared: &mut Compared, fixture: &Fixture) {
    let patient =
        fixture.start(&["--in-progress-wait", "60s", "--handler-deadline", "5m", "--admin", "127.0.0.1:0"]).await;
    let mut held = fixture.hold_balances().await;
    let mut waiting = Vec::new();
    for _ in 0..1_000 {
        let repeat = Request::pay("order-8", "00001", 1);
        waiting.push(repeat.begin(&patient.address, Cut::BeforeTheAnswer).await.expect("a connection"));
    }
    until("a crowd", async || seen::waiting(&patient).await == waiting.len() - 1).await;
    for request in [
        ("/transactions", "post", Request::pay("order-9", "00002", 1)),
        ("/idempotency/{key}", "get", get("/idempotency/order-1")),
    ] {
        let crowded = compared.ask(request, &patient.address).await;
        assert_eq!((crowded.status, crowded.header("retry-after")), (429, Some("1")), "{crowded:?}");
    }
    sqlx::raw_sql("COMMIT").execute(&mut *held).await.expect("the balances are let go");
    drop(held);
    drop(waiting);
    assert!(patient.stop().await.status.success());
}

/// W68: the service's statuses, headers and bodies are those of its description, which it serves: each that is described was seen,
/// those of a race, a crowd and an outage too.
#[tokio::test(flavor = "multi_thread")]
async fn w68_the_description_is_what_the_service_does() {
    let mut compared =
        Compared { all: serde_yaml_ng::from_str(&read("openapi.yaml")).expect("YAML"), seen: BTreeSet::new() };
    let fixture = Fixture::new("http").await;
    let proxy = Proxy::to(fixture.host()).await.expect("a proxy");
    let url = fixture.url.replace(fixture.host(), proxy.address());
    let api = fixture.start_with(&fixture.arguments_on(&url, &["--limit", "10000"]), &[]).await;
    let (pay, transaction, key) = ("/transactions", "/transactions/{id}", "/idempotency/{key}");
    let post = |request: Request| (pay, "post", request);
    let first = compared.ask(post(Request::pay("order-1", "00001", 1177)), &api.address).await;
    let location = first.header("location").expect("a place").to_owned();
    let too_large = format!("{{\"customer\":\"{}\"}}", "0".repeat(2 << 20));
    let refuse = "ALTER TABLE balances ADD CONSTRAINT none CHECK (customer <> 'refused')";
    sqlx::raw_sql(refuse).execute(fixture.pool()).await.expect("a constraint");
    let again = || Request::pay("order-1", "00001", 1177);
    let requests = [
        (201, post(again())),
        (422, post(Request::pay("order-1", "00001", 1))),
        (422, post(Request::pay("order-2", "00001", 0))),
        (402, post(Request::pay("order-3", "00001", 10_001))),
        (400, post(Request::post("order-4", "{"))),
        (400, post(again().without("idempotency-key"))),
        (401, post(again().without("authorization"))),
        (413, post(Request::post("order-5", &too_large))),
        (415, post(again().header("content-encoding", "gzip"))),
        (431, post(again().header("x-padding", &"x".repeat(20 << 10)))),
        (500, post(Request::pay("order-6", "refused", 1))),
        (200, (transaction, "get", get(&location))),
        (404, (transaction, "get", get("/transactions/none"))),
        (401, (transaction, "get", get(&location).without("authorization"))),
        (200, (key, "get", get("/idempotency/order-1"))),
        (200, (key, "get", get("/idempotency/order-1?answer=true").header("prefer", "wait=1"))),
        (400, (key, "get", get(&format!("/idempotency/{}", "k".repeat(256))))),
        (404, (key, "get", get("/idempotency/order-9"))),
        (431, (key, "get", get("/idempotency/order-1").header("x-padding", &"x".repeat(20 << 10)))),
        (401, (key, "get", get("/idempotency/order-1").without("authorization"))),
    ];
    for (status, request) in requests {
        let answer = compared.ask(request, &api.address).await;
        assert_eq!(answer.status, status, "{answer:?}");
    }
    a_race(&mut compared, &fixture, &api.address).await;
    a_crowd(&mut compared, &fixture).await;
    let half = Request::pay("order-10", "00001", 1).begin(&api.address, Cut::InTheBody).await.expect("a connection");
    let late = Answer::of(half).await.expect("an answer to half a body");
    assert_eq!(late.status, 408, "{late:?}");
    compared.note((pay, "post"), &late);
    // An outage.
    proxy.refuse(true);
    proxy.cut().await;
    for request in [post(again()), (transaction, "get", get(&location)), (key, "get", get("/idempotency/order-1"))] {
        assert_eq!(compared.ask(request, &api.address).await.status, 503);
    }
    let Compared { all, seen } = compared;
    for (path, methods) in all["paths"].as_mapping().expect("paths") {
        for (_, operation) in methods.as_mapping().expect("methods") {
            for (status, _) in operation["responses"].as_mapping().expect("responses") {
                let status: u16 = status.as_str().and_then(|text| text.parse().ok()).expect("a status");
                let at = (path.as_str().expect("a path").to_owned(), status);
                assert!(seen.contains(&at), "nobody gets {at:?}");
            }
        }
    }
    let served = Request::new("GET", "/openapi.yaml").answer(&api.address).await;
    assert_eq!(served.text(), read("openapi.yaml"));
    assert!(api.stop().await.status.success());
    fixture.remove().await;
}

/// The statuses of one of idem's own problems: the numbers of its page's first sentence.
fn statuses(section: &str) -> (&str, Vec<u16>) {
    let (name, text) = section.split_once('\n').expect("a name");
    let first = text.trim_start().split(". ").next().expect("a sentence");
    let numbers = first.split(|other: char| !other.is_ascii_digit()).filter_map(|number| number.parse().ok());
    (name, numbers.filter(|status| (400..600).contains(status)).collect())
}

/// W97: each problem that idem can answer with is described, with its status in each profile. `problem::w97_…` of idem-http compares its page
/// with the code.
#[test]
fn w97_every_problem_of_idem_is_described() {
    let all: Value = serde_yaml_ng::from_str(&read("openapi.yaml")).expect("YAML");
    let page = read("../../docs/http-problems.md");
    let problems: Vec<_> = page.split("\n## ").skip(1).map(statuses).collect();
    assert!(problems.len() > 20 && problems.contains(&("key-reused", vec![422, 409, 400])), "{problems:?}");
    let of_a_question =
        ["unauthenticated", "headers-too-large", "key-malformed", "too-many-requests", "overloaded", "unavailable"];
    let mut wanted = BTreeSet::new();
    for (name, statuses) in &problems {
        match *name {
            // It gives answers to each caller of a tenant, and a safe method is no operation of the description's.
            "other-subject" | "method-not-allowed" => {}
            "key-unknown" => wanted.extend(statuses.iter().map(|status| ("/idempotency/{key}", "get", *status))),
            _ => wanted.extend(statuses.iter().map(|status| ("/transactions", "post", *status))),
        }
        if of_a_question.contains(name) {
            wanted.extend(statuses.iter().map(|status| ("/idempotency/{key}", "get", *status)));
        }
    }
    assert!(wanted.len() > 15, "{wanted:?}");
    for (path, method, status) in wanted {
        let response = &all["paths"][path][method]["responses"][status.to_string()];
        assert!(
            response["content"]["application/problem+json"].is_mapping(),
            "{method} {path}: {status} is not described"
        );
    }
}
