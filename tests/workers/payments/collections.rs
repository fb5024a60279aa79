//! The files of requests beside the example, sent as editors send them.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{
    client::{Answer, Request},
    fixture::{Books, Fixture},
};

/// A request as a file has it, and the status that it says.
struct Step {
    name: String,
    request: Request,
    status: u16,
    /// Headers that the answer must have.
    headers: Vec<(String, String)>,
}

pub(crate) fn read(name: &str) -> String {
    let path = format!("{}/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// `{{name}}` as its value, which may hold others.
fn filled(text: &str, variables: &BTreeMap<String, String>) -> String {
    let mut text = text.to_owned();
    for _ in 0..5 {
        for (name, value) in variables {
            text = text.replace(&format!("{{{{{name}}}}}"), value);
        }
    }
    assert!(!text.contains("{{"), "a variable is not known: {text}");
    text
}

/// The path of a URL on the host.
fn path(url: &str) -> String {
    let rest = url.strip_prefix("http://").expect("http");
    rest.split_once('/').map(|(_, path)| format!("/{path}")).expect("a path")
}

/// Editors' format: `@name = value`, requests between lines of `###`, head and body apart by an empty line.
fn http_file(text: &str) -> Vec<Step> {
    let mut parts = text.split("\n### ");
    let variables = parts.next().expect("what comes first").lines();
    let variables: BTreeMap<String, String> = variables
        .filter_map(|line| line.strip_prefix('@')?.split_once('='))
        .map(|(name, value)| (name.trim().to_owned(), value.trim().to_owned()))
        .collect();
    parts
        .map(|part| {
            let mut lines = part.lines();
            let name = lines.next().expect("a name").to_owned();
            let status = lines.next().and_then(|line| line.strip_prefix("# ")?.parse().ok()).expect("a status");
            let first = filled(lines.next().expect("a request"), &variables);
            let (method, url) = first.split_once(' ').expect("a method");
            let mut request = Request::new(method, &path(url));
            for line in lines.by_ref().take_while(|line| !line.is_empty()) {
                let (name, value) = line.split_once(": ").expect("a header");
                request = request.header(name, &filled(value, &variables));
            }
            let body = lines.collect::<Vec<_>>().join("\n");
            Step { name, request: request.body(body.trim()), status, headers: Vec::new() }
        })
        .collect()
}

/// Postman's format 2.1, with its environment.
fn postman(collection: &str, environment: &str) -> Vec<Step> {
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let environment: Value = serde_json::from_str(environment).expect("JSON");
    let values = environment["values"].as_array().expect("values").iter();
    let variables =
        values.filter(|value| value["enabled"] == true).map(|value| (text(&value["key"]), text(&value["value"])));
    let variables: BTreeMap<String, String> = variables.collect();
    let collection: Value = serde_json::from_str(collection).expect("JSON");
    let schema = "https://schema.getpostman.com/json/collection/v2.1.0/collection.json";
    assert_eq!(collection["info"]["schema"], schema);
    let step = |item: &Value| {
        let request = &item["request"];
        let url = filled(&text(&request["url"]), &variables);
        let mut sent = Request::new(&text(&request["method"]), &path(&url));
        for header in request["header"].as_array().expect("headers") {
            sent = sent.header(&text(&header["key"]), &filled(&text(&header["value"]), &variables));
        }
        if let Some(raw) = request["body"]["raw"].as_str() {
            sent = sent.body(&filled(raw, &variables));
        }
        let script: Vec<String> =
            item["event"][0]["script"]["exec"].as_array().expect("tests").iter().map(text).collect();
        let script = script.join("\n");
        let after = |what: &str| script.split(what).skip(1).map(str::to_owned).collect::<Vec<_>>();
        let status =
            after("to.have.status(")[0].split(')').next().and_then(|text| text.parse().ok()).expect("a status");
        let headers = after("to.have.header(").into_iter().map(|rest| {
            let words: Vec<&str> = rest.split('"').collect();
            (words[1].to_ascii_lowercase(), words[3].to_owned())
        });
        Step { name: text(&item["name"]), request: sent, status, headers: headers.collect() }
    };
    collection["item"].as_array().expect("requests").iter().map(step).collect()
}

/// Sends each in turn.
async fn run(steps: &[Step]) -> Vec<Answer> {
    let fixture = Fixture::new("http").await;
    let api = fixture.start(&[]).await;
    let mut answers = Vec::new();
    for Step { name, request, status, headers } in steps {
        let answer = request.answer(&api.address).await;
        assert_eq!(answer.status, *status, "{name}: {answer:?}");
        for (header, value) in headers {
            assert_eq!(answer.header(header), Some(value.as_str()), "{name}: {answer:?}");
        }
        answers.push(answer);
    }
    assert_eq!(fixture.books().await, Books { declines: 1, ..Books::of(1, 1177) });
    assert!(api.stop().await.status.success());
    fixture.remove().await;
    answers
}

/// W67: the requests for editors and those for Postman are the same, and get what they say.
#[tokio::test(flavor = "multi_thread")]
async fn w67_the_collections_get_what_they_say() {
    let editors = http_file(&read("requests.http"));
    let postmans = postman(&read("payments.postman_collection.json"), &read("local.postman_environment.json"));
    assert!(editors.len() >= 10 && editors.len() == postmans.len());
    let one = run(&editors).await;
    let other = run(&postmans).await;
    assert_eq!(one[0].told(), one[1].told());
    let statuses = |answers: &[Answer]| answers.iter().map(|answer| answer.status).collect::<Vec<_>>();
    assert_eq!(statuses(&one), statuses(&other));
}
