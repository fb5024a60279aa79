//! The description for machines, held against the running service.

use std::collections::{BTreeMap, BTreeSet};

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

/// Headers of any answer of HTTP, which a description leaves out; it has `Cache-Control` in its words, and the media type in another place.
const OF_HTTP: [&str; 5] = ["cache-control", "connection", "content-length", "content-type", "date"];

/// The headers that a response is described with.
fn headers(response: &Value) -> impl Iterator<Item = (String, &Value)> {
    let described = response["headers"].as_mapping().into_iter().flatten();
    described.map(|(name, header)| (name.as_str().expect("a name").to_ascii_lowercase(), header))
}

/// That the answer is one that is described: its status, its headers, its media type, and the members that are required.
fn check(all: &Value, path: &str, method: &str, answer: &Answer) {
    let responses = &all["paths"][path][method]["responses"];
    let response = responses.get(answer.status.to_string()).unwrap_or_else(|| panic!("{path}: not there: {answer:?}"));
    for (sent, _) in &answer.headers {
        let is_described = headers(response).any(|(name, _)| name == *sent);
        assert!(is_described || OF_HTTP.contains(&&**sent), "{path}: {sent} is not described: {answer:?}");
    }
    for (name, header) in headers(response) {
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

/// The description, and all that was seen of it.
struct Compared {
    all: Value,
    /// Answers, by path and status, with each of their headers.
    seen: BTreeMap<(String, u16), BTreeSet<String>>,
    /// The headers of requests.
    sent: BTreeSet<(String, String)>,
}

impl Compared {
    fn new() -> Self {
        let all = serde_yaml_ng::from_str(&read("openapi.yaml")).expect("YAML");
        Self { all, seen: BTreeMap::new(), sent: BTreeSet::new() }
    }

    /// Sends a request, and compares its answer.
    async fn ask(&mut self, (path, method, request): (&str, &str, Request), address: &str) -> Answer {
        let described = self.all["paths"][path][method]["parameters"].as_sequence().into_iter().flatten();
        let names = described.filter(|one| one["in"] == "header").filter_map(|one| one["name"].as_str());
        self.sent.extend(names.filter(|name| request.has(name)).map(|name| (path.to_owned(), name.to_owned())));
        let answer = request.answer(address).await;
        self.note((path, method), &answer);
        answer
    }

    fn note(&mut self, (path, method): (&str, &str), answer: &Answer) {
        check(&self.all, path, method, answer);
        let headers = answer.headers.iter().map(|(name, _)| name.clone());
        self.seen.entry((path.to_owned(), answer.status)).or_default().extend(headers);
    }

    /// That nothing is described that was not seen.
    fn all_was_seen(&self) {
        for (path, methods) in self.all["paths"].as_mapping().expect("paths") {
            let path = path.as_str().expect("a path");
            for (_, operation) in methods.as_mapping().expect("methods") {
                for (status, response) in operation["responses"].as_mapping().expect("responses") {
                    let status: u16 = status.as_str().and_then(|text| text.parse().ok()).expect("a status");
                    let seen = self.seen.get(&(path.to_owned(), status));
                    let seen = seen.unwrap_or_else(|| panic!("no answer was {status} at {path}"));
                    for (name, _) in headers(response) {
                        assert!(seen.contains(&name), "no {status} at {path} has {name}");
                    }
                }
                for parameter in operation["parameters"].as_sequence().into_iter().flatten() {
                    let sent = (path.to_owned(), parameter["name"].as_str().expect("a name").to_owned());
                    assert!(parameter["in"] != "header" || self.sent.contains(&sent), "no request has {sent:?}");
                }
            }
        }
    }
}

fn get(path: &str) -> Request {
    Request::new("GET", path).tenant("acme")
}

/// A question about a key, which would wait for the end of its request.
fn question(key: &str) -> Request {
    get(&format!("/idempotency/{key}")).header("prefer", "wait=1")
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
        ("/idempotency/{key}", "get", question("order-1")),
    ] {
        let crowded = compared.ask(request, &patient.address).await;
        assert_eq!((crowded.status, crowded.header("retry-after")), (429, Some("1")), "{crowded:?}");
    }
    sqlx::raw_sql("COMMIT").execute(&mut *held).await.expect("the balances are let go");
    drop(held);
    drop(waiting);
    assert!(patient.stop().await.status.success());
}

/// What is answered at once, with its status.
fn requests(location: &str) -> Vec<(u16, (&'static str, &'static str, Request))> {
    let post = |request: Request| ("/transactions", "post", request);
    let transaction = |request: Request| ("/transactions/{id}", "get", request);
    let key = |request: Request| ("/idempotency/{key}", "get", request);
    let too_large = format!("{{\"customer\":\"{}\"}}", "0".repeat(2 << 20));
    let again = || Request::pay("order-1", "00001", 1177);
    let wrong = "sha-256=:RK/0qy18MlBSVnWgjwz6lZEWjP/lF5HF9bvEF8FabDg=:";
    vec![
        (201, post(again())),
        (201, post(again().header("idempotency-attempt", "3"))),
        (422, post(Request::pay("order-1", "00001", 1))),
        (422, post(Request::pay("order-2", "00001", 0))),
        (422, post(Request::pay("order-2", "00001", 0))),
        (402, post(Request::pay("order-3", "00001", 10_001))),
        (402, post(Request::pay("order-3", "00001", 10_001))),
        (400, post(Request::post("order-4", "{"))),
        (400, post(again().without("idempotency-key"))),
        (400, post(again().header("content-digest", wrong))),
        (400, post(again().header("repr-digest", wrong))),
        (401, post(again().without("authorization"))),
        (413, post(Request::post("order-5", &too_large))),
        (415, post(again().header("content-encoding", "gzip"))),
        (431, post(again().header("x-padding", &"x".repeat(20 << 10)))),
        (500, post(Request::pay("order-6", "refused", 1))),
        (200, transaction(get(location))),
        (404, transaction(get("/transactions/none"))),
        (401, transaction(get(location).without("authorization"))),
        (200, key(get("/idempotency/order-1"))),
        (200, key(question("order-1?answer=true"))),
        (400, key(question(&"k".repeat(256)))),
        (404, key(question("order-9"))),
        (431, key(question("order-1").header("x-padding", &"x".repeat(20 << 10)))),
        (401, key(question("order-1").without("authorization"))),
    ]
}

/// In the profile `guardia` replays have another header, and a key that is used for another request another status.
async fn in_guardia(compared: &mut Compared, fixture: &Fixture) {
    let api = fixture.start(&["--profile", "guardia", "--limit", "10000"]).await;
    let pay = |number: u8, cents| {
        let key = format!("0b7f5c52-6d4e-4d8f-8f3e-0d7a1a0f3f0{number}");
        ("/transactions", "post", Request::pay(&key, "00001", cents))
    };
    let requests = [
        (201, pay(1, 1)),
        (201, pay(1, 1)),
        (409, pay(1, 2)),
        (422, pay(2, 0)),
        (422, pay(2, 0)),
        (402, pay(3, 10_001)),
    ];
    for (status, request) in requests.into_iter().chain([(402, pay(3, 10_001))]) {
        let answer = compared.ask(request, &api.address).await;
        assert_eq!(answer.status, status, "{answer:?}");
    }
    assert!(api.stop().await.status.success());
}

/// W68, W151: the service's statuses, headers and bodies are those of its description, which it serves: each that is described was seen,
/// those of a race, a crowd and an outage too, and each header that was seen is described.
#[tokio::test(flavor = "multi_thread")]
async fn w68_w151_the_description_is_what_the_service_does() {
    let mut compared = Compared::new();
    let fixture = Fixture::new("http").await;
    let proxy = Proxy::to(fixture.host()).await.expect("a proxy");
    let url = fixture.url.replace(fixture.host(), proxy.address());
    let api = fixture.start_with(&fixture.arguments_on(&url, &["--limit", "10000"]), &[]).await;
    let pay = ("/transactions", "post");
    let again = || (pay.0, pay.1, Request::pay("order-1", "00001", 1177));
    let first = compared.ask(again(), &api.address).await;
    let location = first.header("location").expect("a place").to_owned();
    let refuse = "ALTER TABLE balances ADD CONSTRAINT none CHECK (customer <> 'refused')";
    sqlx::raw_sql(refuse).execute(fixture.pool()).await.expect("a constraint");
    for (status, request) in requests(&location) {
        let answer = compared.ask(request, &api.address).await;
        assert_eq!(answer.status, status, "{answer:?}");
    }
    in_guardia(&mut compared, &fixture).await;
    a_race(&mut compared, &fixture, &api.address).await;
    a_crowd(&mut compared, &fixture).await;
    let half = Request::pay("order-10", "00001", 1).begin(&api.address, Cut::InTheBody).await.expect("a connection");
    let late = Answer::of(half).await.expect("an answer to half a body");
    assert_eq!(late.status, 408, "{late:?}");
    compared.note(pay, &late);
    // The end of each answer's time.
    let age = "UPDATE idem.processed_results SET answer_until = now() - interval '1 s';
        SELECT idem.remove_expired('processed_results', 1000, 0)";
    sqlx::raw_sql(age).execute(fixture.pool()).await.expect("the answers");
    let over = compared.ask(again(), &api.address).await;
    assert_eq!((over.status, over.header("location")), (409, Some(&*location)), "{over:?}");
    // An outage.
    proxy.refuse(true);
    proxy.cut().await;
    let reads = ("/transactions/{id}", "get", get(&location));
    for request in [again(), reads, ("/idempotency/{key}", "get", question("order-1"))] {
        assert_eq!(compared.ask(request, &api.address).await.status, 503);
    }
    compared.all_was_seen();
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
