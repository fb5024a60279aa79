//! The description for machines, held against the running service.

use std::collections::BTreeSet;

use serde_yaml_ng::Value;

use super::{
    client::{Answer, Request},
    collections::read,
    fixture::Fixture,
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

/// W68: the service's statuses, headers and bodies are those of its description, which it serves.
#[tokio::test(flavor = "multi_thread")]
async fn w68_the_description_is_what_the_service_does() {
    let all: Value = serde_yaml_ng::from_str(&read("openapi.yaml")).expect("YAML");
    let fixture = Fixture::new("http").await;
    let api = fixture.start(&["--limit", "10000"]).await;
    let (pay, order) = ("/transactions", "order-1");
    let first = Request::pay(order, "00001", 1177).answer(&api.address).await;
    let get = |path: &str| Request::new("GET", path).tenant("acme");
    let location = first.header("location").expect("a place").to_owned();
    let too_large = format!("{{\"customer\":\"{}\"}}", "0".repeat(2 << 20));
    let long = "0".repeat(20 << 10);
    // Its body never comes. That takes the service's limit, so it goes on beside the others.
    let (late, at) = (Request::post("order-8", "").header("content-length", "99"), api.address.clone());
    let late = tokio::spawn(async move { late.answer(&at).await });
    let requests = [
        (pay, "post", Request::pay(order, "00001", 1177)),
        (pay, "post", Request::pay(order, "00001", 1)),
        (pay, "post", Request::pay("order-2", "00001", 0)),
        (pay, "post", Request::pay("order-3", "00001", 10_001)),
        (pay, "post", Request::post("order-4", "{")),
        (pay, "post", Request::pay(order, "00001", 1177).without("idempotency-key")),
        (pay, "post", Request::pay(order, "00001", 1177).without("authorization")),
        (pay, "post", Request::post("order-5", &too_large)),
        (pay, "post", Request::post("order-6", "{}").header("content-encoding", "gzip")),
        (pay, "post", Request::post("order-7", "{}").header("x-long", &long)),
        ("/transactions/{id}", "get", get(&location)),
        ("/transactions/{id}", "get", get("/transactions/none")),
        ("/transactions/{id}", "get", get(&location).without("authorization")),
        ("/idempotency/{key}", "get", get("/idempotency/order-1")),
        ("/idempotency/{key}", "get", get("/idempotency/order-9")),
        ("/idempotency/{key}", "get", get("/idempotency/order-1?answer=true").header("prefer", "wait=1")),
        ("/idempotency/{key}", "get", get(&format!("/idempotency/{}", "k".repeat(256)))),
        ("/idempotency/{key}", "get", get("/idempotency/order-1").header("x-long", &long)),
        ("/idempotency/{key}", "get", get("/idempotency/order-1").without("authorization")),
    ];
    let late = late.await.expect("an answer");
    for answer in [&first, &late] {
        check(&all, pay, "post", answer);
    }
    let mut seen = BTreeSet::from([(pay, first.status), (pay, late.status)]);
    for (path, method, request) in requests {
        let answer = request.answer(&api.address).await;
        check(&all, path, method, &answer);
        seen.insert((path, answer.status));
    }
    // Answers that take a race, a crowd, an outage or a bug are in tests of their own.
    let key = "/idempotency/{key}";
    let elsewhere =
        [(pay, 409), (pay, 429), (pay, 500), (pay, 503), ("/transactions/{id}", 503), (key, 429), (key, 503)];
    for (path, methods) in all["paths"].as_mapping().expect("paths") {
        for (_, operation) in methods.as_mapping().expect("methods") {
            for (status, _) in operation["responses"].as_mapping().expect("responses") {
                let status: u16 = status.as_str().and_then(|text| text.parse().ok()).expect("a status");
                let at = (path.as_str().expect("a path"), status);
                assert!(seen.contains(&at) || elsewhere.contains(&at), "nobody gets {at:?}");
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
            // It gives answers to each caller of a tenant.
            "other-subject" => {}
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
