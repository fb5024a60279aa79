//! `docs/guide/getting-started.md` as one script for each broker: each of its commands, in its order, in one shell.

use std::{os::unix::fs::PermissionsExt as _, time::Duration};

use tokio::process::Command;

use super::programs;

/// How long the whole page may take. It only ends a page that waits for something that does not come.
const PATIENCE: Duration = Duration::from_secs(300);

/// The text with the next free port and a name of its own, because tests share their servers.
fn made_unique(text: &str, name: &str) -> String {
    let free = std::net::TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).unwrap();
    text.replace("getting_started", name).replace("9900", &free.port().to_string())
}

/// The page without what is for the other brokers, each of which has a part of its own where they differ.
fn for_broker(page: &str, broker: &str) -> String {
    let of_broker = |part: &&str| part.starts_with(&format!("{broker}\n"));
    let sections = page.split("\n## ").flat_map(|section| {
        let mut parts = section.split("\n### ");
        parts.next().into_iter().chain(parts.filter(of_broker))
    });
    sections.collect::<Vec<_>>().join("\n")
}

#[tokio::test]
async fn the_page_works_on_rabbitmq_from_its_first_command_to_its_last() {
    works_on("RabbitMQ", "rabbitmqctl list_queues").await;
}

#[tokio::test]
async fn the_page_works_on_kafka_from_its_first_command_to_its_last() {
    works_on("Kafka", "7 days 6 days 12:05:00").await;
}

#[tokio::test]
async fn the_page_works_on_sqs_from_its_first_command_to_its_last() {
    works_on("SQS", "aws sqs get-queue-attributes").await;
}

/// `heard` is what `idem doctor` says of the broker. Of the brokers here, Kafka alone reports for how long it may
/// deliver again.
async fn works_on(broker: &str, heard: &str) {
    let name = format!("getting_started_{:08x}", fastrand::u32(..));
    let whole = programs::read("docs/guide/getting-started.md");
    let page = for_broker(&whole, broker);
    assert!(page.len() + 500 < whole.len(), "there is nothing for other brokers");
    assert!(page.contains(&format!("./servers up {}", broker.to_lowercase())), "there is nothing for {broker}");
    // The programs are built already: in this test's own profile, beside it.
    let script = programs::blocks(&page, "sh").concat().replace("cargo build ", ": cargo build ");
    let outputs = programs::blocks(&page, "text").concat();
    assert!(script.lines().count() > 40 && outputs.lines().count() > 5, "{script}\n{outputs}");
    // It stands for the root of the clone, in which the page leaves files.
    let folder = std::env::temp_dir().join(&name);
    std::fs::create_dir_all(folder.join("target")).unwrap();
    std::os::unix::fs::symlink(programs::folder(), folder.join("target/release")).unwrap();
    let servers = folder.join("servers");
    // Where the servers are is for `./servers` alone: a worker refuses variables that it does not know.
    let same = ["IDEM_PORT_OFFSET", "IDEM_POSTGRES_VERSION", "IDEM_RABBITMQ_VERSION"]
        .map(|name| format!("{name}={} ", std::env::var(name).unwrap_or_default()))
        .concat();
    let root = programs::root();
    let to_ours = format!("#!/bin/sh\n{same}exec '{}/servers' \"$@\"\n", root.display());
    std::fs::write(&servers, to_ours).unwrap();
    std::fs::set_permissions(&servers, std::fs::Permissions::from_mode(0o755)).unwrap();

    // Shows the output that a terminal would show; a failed command ends the script, and no worker outlives it.
    let strict = "exec 2>&1; set -euo pipefail; trap 'kill -KILL $(jobs -p) 2>/dev/null || true' EXIT\n";
    let mut shell = Command::new("timeout");
    for (variable, _) in std::env::vars().filter(|(variable, _)| variable.starts_with("IDEM_")) {
        shell.env_remove(variable);
    }
    let shell = shell
        .args([&PATIENCE.as_secs().to_string(), "bash", "-c"])
        .arg(format!("{strict}{}", made_unique(&script, &name)))
        .current_dir(&folder)
        .env_remove("DATABASE_URL")
        .output();
    let output = shell.await.unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    let log = std::fs::read_to_string(folder.join("worker.log")).unwrap_or_default();
    assert!(output.status.success(), "{}:\n{printed}\n{log}", output.status);
    let mut lines = printed.lines();
    for wanted in outputs.lines() {
        assert!(lines.any(|line| line.contains(wanted)), "not printed, or not in this order: {wanted}\n{printed}");
    }
    let doctor = printed.split("synchronous_commit is off").nth(1).unwrap();
    let words = doctor.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains(heard), "the doctor did not say {heard:?}:\n{doctor}");
    std::fs::remove_dir_all(folder).unwrap();
}
