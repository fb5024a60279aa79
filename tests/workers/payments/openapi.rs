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
    let requests = [
        (pay, "post", Request::pay(order, "00001", 1177)),
        (pay, "post", Request::pay(order, "00001", 1)),
        (pay, "post", Request::pay("order-2", "00001", 0)),
        (pay, "post", Request::pay("order-3", "00001", 10_001)),
        (pay, "post", Request::post("order-4", "{")),
        (pay, "post", Request::pay(order, "00001", 1177).without("idempotency-key")),
        (pay, "post", Request::pay(order, "00001", 1177).without("authorization")),
        (pay, "post", Request::post("order-5", &too_large)),
        ("/transactions/{id}", "get", get(&location)),
        ("/transactions/{id}", "get", get("/transactions/none")),
        ("/transactions/{id}", "get", get(&location).without("authorization")),
        ("/idempotency/{key}", "get", get("/idempotency/order-1")),
        ("/idempotency/{key}", "get", get("/idempotency/order-9")),
        ("/idempotency/{key}", "get", get("/idempotency/order-1").without("authorization")),
    ];
    check(&all, pay, "post", &first);
    let mut seen = BTreeSet::from([(pay, first.status)]);
    for (path, method, request) in requests {
        let answer = request.answer(&api.address).await;
        check(&all, path, method, &answer);
        seen.insert((path, answer.status));
    }
    // Answers that take a race, a crowd or an outage are in tests of their own.
    let elsewhere = [(pay, 409), (pay, 429), (pay, 503)];
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
