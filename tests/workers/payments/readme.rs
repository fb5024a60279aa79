//! The commands of the README and of the guide, in their order, in one shell.

use std::process::Stdio;

use tokio::io::{AsyncBufReadExt as _, BufReader};

use super::{
    client::Request,
    collections::read,
    fixture::{Books, Fixture, PROGRAM, until},
};

fn blocks(text: &str, kind: &str) -> String {
    let of_kind = text.split("\n```").filter_map(|block| block.strip_prefix(&format!("{kind}\n")));
    of_kind.map(|block| format!("{block}\n")).collect()
}

/// W69: the README's commands have the output that it shows.
#[tokio::test(flavor = "multi_thread")]
async fn w69_the_readme_works_from_its_first_command_to_its_last() {
    let fixture = Fixture::new("http").await;
    let page = read("README.md");
    let free = std::net::TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port");
    let listen = format!("127.0.0.1:{}", free.port());
    let start = "cargo run --release -p payments-api --";
    assert!(page.contains(start));
    let script = blocks(&page, "sh")
        .replace("./servers up postgres", ":")
        .replace("$(./servers url postgres)", &format!("'{}?options[search_path]=public'", fixture.owner_url))
        .replace(start, &format!("'{PROGRAM}' --listen {listen}"))
        .replace("127.0.0.1:8080", &listen);
    let outputs = blocks(&page, "text");
    assert!(script.lines().count() > 8 && outputs.lines().count() > 8, "{script}\n{outputs}");
    let strict = "exec 2>&1; set -euo pipefail; trap 'kill -TERM $(jobs -p) 2>/dev/null || true' EXIT\n";
    let mut shell = tokio::process::Command::new("timeout");
    for (variable, _) in std::env::vars().filter(|(variable, _)| variable.starts_with("IDEM_")) {
        shell.env_remove(variable);
    }
    shell.args(["120", "bash", "-c"]).arg(format!("{strict}{script}")).stdin(Stdio::null());
    let output = shell.output().await.expect("a shell");
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}:\n{printed}", output.status);
    check(&printed, &outputs);
    fixture.remove().await;
}

/// That each of these lines was printed, in their order.
fn check(printed: &str, outputs: &str) {
    let mut rest = printed;
    for wanted in outputs.lines().filter(|line| !line.is_empty()) {
        let at = rest.find(wanted).unwrap_or_else(|| panic!("not printed, or not in this order: {wanted}\n{printed}"));
        rest = &rest[at + wanted.len()..];
    }
}

/// How many clients are connected to this address.
fn connections_to(address: &str) -> usize {
    let port: u16 = address.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).expect("a port");
    let (port, established) = (format!(":{port:04X}"), "01");
    let table = std::fs::read_to_string("/proc/net/tcp").expect("the connections");
    let rows = table.lines().map(|row| row.split_whitespace().collect::<Vec<_>>());
    rows.filter(|row| matches!(&row[..], [_, _, to, state, ..] if to.ends_with(&port) && *state == established)).count()
}

/// W98: a client whose answer is lost asks about its key, waits for the end, and gets the answer that its request had, by the commands of
/// the guide.
#[tokio::test(flavor = "multi_thread")]
async fn w98_a_client_that_lost_its_answer_asks_for_it() {
    let page = read("../../docs/guide/http.md");
    let page = page.split("\n## Asking about a key\n").nth(1).and_then(|rest| rest.split("\n## ").next());
    let page = page.expect("its part of the guide");
    let fixture = Fixture::new("http").await;
    let api = fixture.start(&[]).await;
    assert_eq!(Request::pay("order-1", "00001", 23).answer(&api.address).await.status, 201);
    let held = fixture.hold_balances().await;
    let script = blocks(page, "bash").replace("127.0.0.1:8080", &api.address);
    let mut shell = tokio::process::Command::new("timeout");
    shell.args(["120", "bash", "-c"]).arg(format!("exec 2>&1; set -euo pipefail\n{script}")).stdin(Stdio::null());
    let mut shell = shell.stdout(Stdio::piped()).kill_on_drop(true).spawn().expect("a shell");
    let mut lines = BufReader::new(shell.stdout.take().expect("its output")).lines();
    let mut printed = lines.next_line().await.expect("a line").expect("a line");
    assert_eq!(printed, "no answer");
    until("a run that goes on without its client", async || fixture.waits().await == 1).await;
    // Only a question that comes while the request runs has something to wait for. Once it is on its way, others of the same kind that
    // do not wait are answered, and so is it if its wait is not heeded.
    let question = Request::new("GET", "/idempotency/order-7").tenant("acme");
    let on_its_way = async {
        until("the question's connection", async || connections_to(&api.address) == 1).await;
        for _ in 0..20 {
            assert_eq!(question.answer(&api.address).await.json()["state"], "in_progress");
        }
    };
    tokio::select! {
        line = lines.next_line() => panic!("the question has not waited: {line:?}"),
        () = on_its_way => {}
    }
    held.close().await.expect("the balances are free");
    while let Some(line) = lines.next_line().await.expect("its output") {
        printed = format!("{printed}\n{line}");
    }
    assert!(shell.wait().await.expect("its end").success(), "{printed}");
    check(&printed, &blocks(page, "text"));
    // What a repeat gets is what was told.
    let again = Request::post("order-7", r#"{"customer":"00001","cents":1177}"#).answer(&api.address).await;
    assert_eq!((again.status, again.header("idempotent-replayed")), (201, Some("true")));
    let told: serde_json::Value = serde_json::from_str(printed.lines().last().expect("an answer")).expect("JSON");
    assert_eq!(told["answer"]["body"], again.text());
    assert_eq!(fixture.books().await, Books::of(2, 1200));
    assert!(api.stop().await.status.success());
    fixture.remove().await;
}
