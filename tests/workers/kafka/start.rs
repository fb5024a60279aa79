//! The log of a worker about itself and its group once it runs.

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
    fixture::{Fixture, until},
    worker::Worker,
};

async fn number(fixture: &Fixture, text: &'static str) -> i64 {
    sqlx::query_scalar(text).fetch_one(fixture.pool()).await.expect("a number")
}

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
    let fixture = Fixture::new("share", 3).await;
    let worker = fixture.start(&["--reset", "earliest", "--admin", "0", "--payload-max", "1KiB"]);
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
    let expected: Vec<String> = (0..3).map(|partition| format!("{}/{partition}", fixture.name)).collect();
    assert_eq!(ready["partitions"], serde_json::json!(expected), "{ready}");
    // A33: the size of messages that the broker takes and the worker would set aside is logged at the start.
    let log = worker.logged();
    assert!(log.contains("the broker takes messages of up to"), "{log}");
    worker.stop().await;
    fixture.remove().await;
}

/// B-M3: a member that is left of another client, with the assignment strategies that most have, keeps this worker out.
#[tokio::test(flavor = "multi_thread")]
async fn e26_a_worker_that_its_group_keeps_out_says_why_and_is_not_ready() {
    let fixture = Fixture::new("kept_out", 1).await;
    fixture.send(0..1).await;
    fixture.topic.move_to(&fixture.name, &[(0, 0)].into()).await;
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", &fixture.topic.brokers)
        .set("group.id", &fixture.name)
        .set("enable.auto.commit", "false");
    let other: BaseConsumer = config.create().expect("a client");
    other.subscribe(&[&fixture.topic.name]).expect("a subscription");
    until("the other member", async || {
        drop(other.poll(std::time::Duration::from_millis(50)));
        other.assignment().is_ok_and(|assignment| assignment.count() == 1)
    })
    .await;
    let worker = fixture.start(&["--admin", "0"]);
    until("the worker to say why", async || {
        let log = worker.logged();
        let line = log.lines().find(|line| line.contains("WARN") && line.contains("the broker cannot be used"));
        line.is_some_and(|line| line.contains("--kafka partition.assignment.strategy"))
    })
    .await;
    let (ok, json) = readyz(&worker).await.expect("an answer");
    assert!(!ok && json["ready"] == false, "{json}");
    drop(other);
    fixture.until_purchases(1).await;
    until("the worker to be ready", async || readyz(&worker).await.is_some_and(|(ok, _)| ok)).await;
    worker.stop().await;
    fixture.remove().await;
}

/// U13: by its own defaults Kafka keeps a record for up to a fortnight.
#[tokio::test(flavor = "multi_thread")]
async fn e24_a_topic_that_outlives_the_records_is_warned_of() {
    let fixture = Fixture::new("pair", 1).await;
    let ended = fixture.drain(&[]).await;
    assert!(ended.log.contains("is handled twice"), "{}", ended.log);
    let ended = fixture.drain(&["--retention", "15d"]).await;
    assert!(!ended.log.contains("is handled twice"), "{}", ended.log);
    fixture.remove().await;
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

/// S8: the workers of these suites have a login that owns nothing and may remove no record, so that a right which
/// `roles.sql` forgets fails here first.
#[tokio::test(flavor = "multi_thread")]
async fn s8_workers_and_their_cleanup_run_with_the_rights_of_their_roles() {
    let fixture = Fixture::new("roles", 1).await;
    fixture.send(0..10).await;
    let worker = fixture.start(&["--reset", "earliest", "--cleanup-every", "1s"]);
    fixture.until_purchases(10).await;
    let expire = "UPDATE idem.processed_messages SET expires_at = now() - interval '1 hour'";
    sqlx::query(expire).execute(fixture.pool()).await.expect("the records expire");
    until("cleanup", async || number(&fixture, "SELECT count(*) FROM idem.processed_messages").await == 0).await;
    let strangers = "SELECT count(*) FROM pg_stat_activity
         WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name LIKE 'idem%'
           AND NOT usename = ANY (ARRAY[current_database(), current_database() || '_cleanup'])";
    assert_eq!(number(&fixture, strangers).await, 0, "a connection of the worker is another login's");
    let may = "SELECT has_table_privilege(current_database()::name, 'idem.processed_messages', 'DELETE')::int::bigint";
    assert_eq!(number(&fixture, may).await, 0, "the worker's login may remove a record");
    worker.stop().await.summary();
    fixture.remove().await;
}

/// The README's first command, on an empty database.
#[tokio::test(flavor = "multi_thread")]
async fn an_owner_makes_the_tables_at_the_first_start() {
    let fixture = Fixture::empty("owner").await;
    fixture.send(0..1).await;
    for expected in [1, 0] {
        let ended = fixture.drain(&["--migrate", "--create-tables"]).await;
        assert_eq!(ended.count("processed"), expected, "{}", ended.log);
    }
    assert_eq!(fixture.purchases().await, 1);
    fixture.remove().await;
}
