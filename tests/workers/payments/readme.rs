//! The commands of the README, in their order, in one shell.

use std::process::Stdio;

use super::{
    collections::read,
    fixture::{Fixture, PROGRAM},
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
    let mut rest = &*printed;
    for wanted in outputs.lines().filter(|line| !line.is_empty()) {
        let at = rest.find(wanted).unwrap_or_else(|| panic!("not printed, or not in this order: {wanted}\n{printed}"));
        rest = &rest[at + wanted.len()..];
    }
    fixture.remove().await;
}
