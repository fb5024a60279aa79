//! The files of requests beside the example, sent as editors send them.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{
    client::{Answer, Request},
    fixture::{Books, Fixture},
};

/// A request as a file has it, and the status that it says.
pub(crate) struct Step {
    pub(crate) name: String,
    pub(crate) request: Request,
    pub(crate) status: u16,
    /// Headers that the answer must have.
    pub(crate) headers: Vec<(String, String)>,
}

pub(crate) fn read(name: &str) -> String {
    let path = format!("{}/../../../examples/payments-api/{name}", env!("CARGO_MANIFEST_DIR"));
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
pub(crate) fn postman(collection: &str, environment: &str) -> Vec<Step> {
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
        let (mut status, mut headers) = (None, Vec::new());
        for line in item["event"][0]["script"]["exec"].as_array().expect("tests") {
            // pm.test("name", () => pm.response.to.have.status(201));
            let line = text(line);
            let asked = line.split_once("() => pm.response.to.have.").map(|(_, asked)| asked.trim_end_matches("));"));
            match asked.and_then(|asked| asked.split_once('(')) {
                Some(("status", number)) => status = number.parse().ok(),
                Some(("header", pair)) => {
                    let words: Vec<&str> = pair.split('"').collect();
                    headers.push((words[1].to_ascii_lowercase(), words[3].to_owned()));
                }
                _ => panic!("a test that is not read here proves nothing: {line}"),
            }
        }
        Step { name: text(&item["name"]), request: sent, status: status.expect("a status"), headers }
    };
    collection["item"].as_array().expect("requests").iter().map(step).collect()
}

/// Sends each in turn, and then each once more: an answer that is kept is given again, and nothing runs.
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
    let books = Books { declines: 1, ..Books::of(1, 1177) };
    assert_eq!(fixture.books().await, books);
    let mut kept = Vec::new();
    for (Step { name, request, .. }, before) in steps.iter().zip(&answers) {
        let again = request.answer(&api.address).await;
        assert_eq!(again.told(), before.told(), "{name}");
        let is_kept = before.header("idempotent-replayed").is_some();
        assert_eq!(again.header("idempotent-replayed"), is_kept.then_some("true"), "{name}");
        kept.extend(is_kept.then_some(before.status));
    }
    assert_eq!(kept, [201, 201, 422, 402], "the payment, its repeat, the refusal and the decline");
    assert_eq!(fixture.books().await, books);
    assert!(api.stop().await.status.success());
    fixture.remove().await;
    answers
}

/// W67: the requests for editors and those for Postman are the same, and get what they say.
#[tokio::test(flavor = "multi_thread")]
async fn w67_the_collections_get_what_they_say() {
    let editors = http_file(&read("requests.http"));
    let postmans = postman(&read("payments.postman_collection.json"), &read("local.postman_environment.json"));
    assert!(editors.len() >= 10);
    let sent = |steps: &[Step]| steps.iter().map(|step| (step.request.clone(), step.status)).collect::<Vec<_>>();
    assert_eq!(sent(&editors), sent(&postmans));
    // Only Postman's have headers to compare: of the first request, of its repeat, and of a question that waits.
    assert_eq!(postmans.iter().map(|step| step.headers.len()).sum::<usize>(), 3);
    for steps in [editors, postmans] {
        let answers = run(&steps).await;
        assert_eq!(answers[0].told(), answers[1].told());
    }
}
