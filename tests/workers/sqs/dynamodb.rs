//! Workers whose store is DynamoDB.

use std::{collections::BTreeMap, ops::Range};

use super::{
    database::{Ledger, count, until},
    queue::{Queue, Server},
    shared_dynamodb::{LET_IN, Table},
    shared_dynamodb_deaths::{POINTS, Stage, of_this_run, through_deaths},
    shared_page::{fetched, sent, served},
    worker::{Ended, Worker},
};
use crate::purchase::Purchase;

struct Fixture {
    queue: Queue,
    table: Table,
}

impl Fixture {
    async fn new(label: &str) -> Self {
        let table = Table::new(label);
        Self { queue: Queue::create(&Server::ElasticMq, &table.name).await, table }
    }

    fn start(&self, more: &[&str]) -> Worker {
        self.start_at(&self.table.url, more, &[])
    }

    fn start_at(&self, url: &str, more: &[&str], armed: &[(&str, &str)]) -> Worker {
        let endpoint = self.queue.server.endpoint();
        let variables =
            [&LET_IN[..], &[("AWS_ENDPOINT_URL", endpoint.as_str()), ("AWS_REGION", "eu-central-1")], armed].concat();
        let own = ["--queue-url", &self.queue.url, "--consumer", &self.table.name, "--database-url", url]
            .into_iter()
            .chain(["--migrate", "--wait", "1s", "--attempts", "100", "--lanes", "16"])
            // So that the messages of a worker that died are missing for seconds only.
            .chain(["--handler-deadline", "10s", "--visibility", "20s"]);
        let arguments: Vec<String> = own.chain(more.iter().copied()).map(str::to_owned).collect();
        Worker::start(env!("CARGO_BIN_EXE_sqs-rig"), &arguments, &variables, &self.table.next_log())
    }

    async fn send(&self, numbers: impl IntoIterator<Item = i64>) {
        self.queue.send(numbers.into_iter().map(Purchase::number)).await;
    }

    async fn remove(self) {
        self.table.remove().await;
        self.queue.delete().await;
    }
}

/// J2, Y14: workers are killed while they run, one stands still for longer than its lease, and every message was sent twice.
#[tokio::test(flavor = "multi_thread")]
async fn j2_killed_and_stopped_workers_leave_an_exact_ledger() {
    let purchases = count(5_000, 600);
    let fixture = Fixture::new("ddb_killed").await;
    fixture.send(0..purchases).await;
    fixture.send(0..purchases).await;
    let settings = ["--in-flight", "200"];
    let zombie = fixture.start(&settings);
    fixture.table.until_purchases(1).await;
    zombie.signal("STOP").await;
    for part in 1..=4 {
        let worker = fixture.start(&settings);
        fixture.table.until_purchases(purchases * part / 6).await;
        worker.kill().await;
    }
    zombie.signal("CONT").await;
    let last = fixture.start(&settings);
    fixture.table.until_purchases(purchases).await;
    until("an empty queue", async || fixture.queue.counts().await == [0, 0, 0]).await;
    for ended in [zombie.stop().await, last.stop().await] {
        assert!(ended.status.success(), "{}", ended.log);
    }
    assert_eq!(fixture.table.ledger().await, Ledger::of(0..purchases));
    assert_eq!(fixture.table.dead_letters().await, BTreeMap::new());
    fixture.remove().await;
}

/// A message that is malformed is a dead letter, and a duplicate and a conflict are what they are on every store.
#[tokio::test(flavor = "multi_thread")]
async fn decisions_are_those_of_every_store() {
    let fixture = Fixture::new("ddb_decisions").await;
    let text = |text: &str| (text.to_owned(), "group".to_owned());
    let first = Purchase::number(7);
    let other = Purchase { cents: 8, ..first.clone() };
    fixture.queue.send_texts(vec![text(&first.json()), text("{\"idempotencykey\":\"bad\"}")]).await;
    let ended = fixture.start(&["--until-idle", "1s"]).ended().await;
    assert_eq!((ended.count("processed"), ended.count("dead_lettered")), (1, 1));
    fixture.queue.send_texts(vec![text(&first.json()), text(&other.json())]).await;
    let ended = fixture.start(&["--until-idle", "1s"]).ended().await;
    assert_eq!((ended.count("processed"), ended.count("duplicates"), ended.count("conflicts")), (0, 1, 1));
    assert_eq!(fixture.table.ledger().await, Ledger::of(7..8));
    let letters = [("conflict".to_owned(), 1), ("malformed".to_owned(), 1)];
    assert_eq!(fixture.table.dead_letters().await, BTreeMap::from(letters));
    fixture.remove().await;
}

/// J80: the page, the metrics, `/readyz` and the report at the end of a worker on DynamoDB.
#[tokio::test(flavor = "multi_thread")]
async fn j80_a_worker_on_dynamodb_shows_itself_as_on_every_store() {
    let fixture = Fixture::new("ddb_page").await;
    fixture.queue.send_texts(sent().into_iter().map(|text| (text, String::new())).collect()).await;
    let worker = fixture.start(&["--admin", "0"]);
    fixture.table.until_purchases(40).await;
    until("the dead letters", async || fixture.table.dead_letters().await.values().sum::<i64>() == 2).await;
    let shows = async |path: &str, text: &str| fetched(&worker, path).await.is_some_and(|all| all.contains(text));
    until("its readiness", async || shows("/readyz", "200 OK").await && shows("/readyz", "\"database\":\"up\"").await)
        .await;
    let name = &fixture.table.name;
    for (metric, wanted) in [("processed", 40), ("duplicates", 1), ("conflicts", 1), ("dead_lettered", 2)] {
        let line = format!("idem_{metric}_total{{consumer=\"{name}\"}} {wanted}\n");
        until(&line, async || shows("/metrics", &line).await).await;
    }
    let page = served(&worker).await.expect("the page");
    for shown in ["database up", "the key was recorded at run 1 with another payload", &format!("queue {name}")] {
        assert!(page.contains(shown), "{shown}: {page}");
    }
    let ended = worker.stop().await;
    assert!(ended.status.success(), "{}", ended.log);
    let report = ["processed", "duplicates", "conflicts", "dead_lettered"].map(|count| ended.count(count));
    assert_eq!(report, [40, 1, 1, 2], "{}", ended.output);
    fixture.remove().await;
}

/// What a table of DynamoDB cannot do is refused with one line and status 2.
#[tokio::test(flavor = "multi_thread")]
async fn what_dynamodb_cannot_do_is_refused() {
    let fixture = Fixture::new("ddb_refused").await;
    for (more, line) in [
        (&["--schema", "other"][..], "--schema is for SQL databases"),
        (&["--batch-handler"], "handles one message a unit"),
        (&["--handlers", "pipelined"], "does not share its transaction"),
        (&["--announce", "http://127.0.0.1:1/000000000000/elsewhere"], "has no outbox"),
    ] {
        let ended = fixture.start(more).ended().await;
        assert_eq!(ended.status.code(), Some(2), "{more:?}: {}", ended.log);
        assert!(ended.log.contains(line), "{more:?}: {}", ended.log);
    }
    fixture.queue.delete().await;
}

impl Stage for Fixture {
    fn table(&self) -> &Table {
        &self.table
    }

    fn start(&self, url: &str, more: &[&str], variables: &[(&str, &str)]) -> Worker {
        self.start_at(url, &[&["--in-flight", "200"], more].concat(), variables)
    }

    async fn send(&self, numbers: Range<i64>) {
        Self::send(self, numbers).await;
    }

    async fn finish(&self, url: &str, variables: &[(&str, &str)]) -> Ended {
        let last = self.start_at(url, &["--in-flight", "200"], variables);
        // A signal before its first line ends it as the system does.
        until("its start", async || last.logged().contains("starting")).await;
        until("an empty queue", async || self.queue.counts().await == [0, 0, 0]).await;
        last.stop().await
    }
}

/// J2, Y1, Y3, Y8, Y14: workers die at each failpoint and one stands still for twice its lease, while requests are lost before and after
/// they were applied, arrive late, conflict and are throttled.
#[tokio::test(flavor = "multi_thread")]
async fn j2_deaths_at_each_point_under_faults_leave_an_exact_ledger() {
    let fixture = Fixture::new("ddb_deaths").await;
    let points = of_this_run(&POINTS, 3);
    let end = through_deaths(&fixture, count(3_000, 400), &points, "").await;
    assert_eq!(end.ledger, Ledger::of(0..end.sent), "{end:?}");
    assert_eq!(end.dead_letters, BTreeMap::new());
    fixture.remove().await;
}
