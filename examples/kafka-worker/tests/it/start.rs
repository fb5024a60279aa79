//! What a worker says of itself and of its group once it runs.

use std::process::Command;

use rdkafka::{
    ClientConfig,
    consumer::{BaseConsumer, Consumer},
};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use super::{
    stage::{Stage, until},
    worker::Worker,
};

/// Status and JSON of `/readyz`; nothing where the worker does not serve it yet.
async fn readyz(worker: &Worker) -> Option<(bool, Value)> {
    let log = worker.logged();
    let line = log.lines().find(|line| line.contains("serving /metrics"))?;
    let address = line.split_once("address=")?.1.trim().trim_matches('"');
    let mut connection = TcpStream::connect(address).await.ok()?;
    connection.write_all(b"GET /readyz HTTP/1.0\r\n\r\n").await.ok()?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer).await.ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some((head.contains(" 200 "), serde_json::from_str(body).ok()?))
}

/// U11: which partitions a worker has is what operators ask first.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_is_ready_once_its_group_gave_it_its_share_and_names_it() {
    let stage = Stage::new("share", 3).await;
    let worker = stage.start(&["--reset", "earliest", "--admin", "0"]);
    let mut ready = Value::Null;
    until("the worker to be ready", async || match readyz(&worker).await {
        Some((true, json)) => {
            ready = json;
            true
        }
        Some((false, json)) => {
            assert_eq!(json["ready"], false, "{json}");
            false
        }
        None => false,
    })
    .await;
    let expected: Vec<String> = (0..3).map(|partition| format!("{}/{partition}", stage.name)).collect();
    assert_eq!(ready["partitions"], serde_json::json!(expected), "{ready}");
    worker.stop().await;
    stage.remove().await;
}

/// B-M3: a member that is left of another client, with the assignment strategies that most have, keeps this worker out.
#[tokio::test(flavor = "multi_thread")]
async fn e26_a_worker_that_its_group_keeps_out_says_why_and_is_not_ready() {
    let stage = Stage::new("kept_out", 1).await;
    stage.send(0..1).await;
    stage.topic.move_to(&stage.name, &[(0, 0)].into()).await;
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", &stage.topic.brokers)
        .set("group.id", &stage.name)
        .set("enable.auto.commit", "false");
    let other: BaseConsumer = config.create().expect("a client");
    other.subscribe(&[&stage.topic.name]).expect("a subscription");
    until("the other member", async || {
        drop(other.poll(std::time::Duration::from_millis(50)));
        other.assignment().is_ok_and(|assignment| assignment.count() == 1)
    })
    .await;
    let worker = stage.start(&["--admin", "0"]);
    until("the worker to say why", async || {
        let log = worker.logged();
        let line = log.lines().find(|line| line.contains("WARN") && line.contains("the broker cannot be used"));
        line.is_some_and(|line| line.contains("--kafka partition.assignment.strategy"))
    })
    .await;
    let (ok, json) = readyz(&worker).await.expect("an answer");
    assert!(!ok && json["ready"] == false, "{json}");
    drop(other);
    stage.until_purchases(1).await;
    until("the worker to be ready", async || readyz(&worker).await.is_some_and(|(ok, _)| ok)).await;
    worker.stop().await;
    stage.remove().await;
}

/// U13: by its own defaults Kafka keeps a record for up to a fortnight.
#[tokio::test(flavor = "multi_thread")]
async fn e24_a_topic_that_outlives_the_records_is_warned_of() {
    let stage = Stage::new("pair", 1).await;
    let ended = stage.drain(&[]).await;
    assert!(ended.log.contains("is handled twice"), "{}", ended.log);
    let ended = stage.drain(&["--retention", "15d"]).await;
    assert!(!ended.log.contains("is handled twice"), "{}", ended.log);
    stage.remove().await;
}

/// The first thing that a user of any managed broker meets is TLS, and any producer may compress with zstd.
#[test]
fn e21_tls_and_zstd_are_built_in() {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    let asked =
        ["tree", "--offline", "--manifest-path", manifest, "--edges", "normal,features", "--invert", "rdkafka-sys"];
    let output = Command::new(cargo).args(asked).output().expect("cargo runs");
    let tree = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for feature in ["ssl", "zstd"] {
        assert!(tree.contains(&format!("rdkafka-sys feature \"{feature}\"")), "{feature} is not in:\n{tree}");
    }
}
