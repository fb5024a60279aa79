//! Workers whose store is DynamoDB.

use std::{collections::BTreeMap, ops::Range};

use super::{
    database::{Ledger, count},
    purchase::Purchase,
    shared_dynamodb::{LET_IN, Table},
    shared_dynamodb_deaths::{POINTS, Stage, of_this_run, through_deaths},
    topic::{Topic, brokers},
    worker::{Ended, Worker},
};

struct Fixture {
    topic: Topic,
    table: Table,
}

impl Fixture {
    fn start(&self, more: &[&str]) -> Worker {
        self.start_at(&self.table.url, more, &[])
    }

    fn start_at(&self, url: &str, more: &[&str], variables: &[(&str, &str)]) -> Worker {
        let (name, Topic { name: topic, brokers, .. }) = (&self.table.name, &self.topic);
        let own = ["--brokers", brokers, "--topic", topic, "--group", name, "--consumer", name]
            .into_iter()
            .chain(["--database-url", url, "--migrate", "--reset", "earliest", "--attempts", "100", "--lanes", "16"])
            // So that a member that dies is missed after seconds.
            .chain(["--kafka", "session.timeout.ms=6000", "--kafka", "heartbeat.interval.ms=1000"]);
        let arguments: Vec<String> = own.chain(more.iter().copied()).map(str::to_owned).collect();
        Worker::start(
            env!("CARGO_BIN_EXE_kafka-rig"),
            &arguments,
            &[&LET_IN[..], variables].concat(),
            &self.table.next_log(),
        )
    }
}

/// J2, Y14: workers are killed while they run, one stands still for longer than its lease and its session, and every message was sent
/// twice.
#[tokio::test(flavor = "multi_thread")]
async fn j2_killed_and_stopped_workers_leave_an_exact_ledger() {
    let purchases = count(5_000, 600);
    let table = Table::new("ddb_killed");
    let fixture = Fixture { topic: Topic::create(&brokers(), &table.name, 4).await, table };
    for _ in 0..2 {
        fixture.topic.send((0..purchases).map(Purchase::number)).await;
    }
    let zombie = fixture.start(&[]);
    fixture.table.until_purchases(1).await;
    zombie.signal("STOP").await;
    for part in 1..=4 {
        let worker = fixture.start(&[]);
        fixture.table.until_purchases(purchases * part / 6).await;
        worker.kill().await;
    }
    zombie.signal("CONT").await;
    fixture.table.until_purchases(purchases).await;
    let ended = zombie.stop().await;
    assert!(ended.status.success(), "{}", ended.log);
    let last = fixture.start(&["--until-idle", "2s"]).ended().await;
    assert!(last.status.success(), "{}", last.log);
    assert_eq!(fixture.table.ledger().await, Ledger::of(0..purchases));
    assert_eq!(fixture.table.dead_letters().await, BTreeMap::new());
    fixture.table.remove().await;
}

impl Stage for Fixture {
    fn table(&self) -> &Table {
        &self.table
    }

    fn start(&self, url: &str, more: &[&str], variables: &[(&str, &str)]) -> Worker {
        // Longer than one stands still: it is to send its commits then.
        self.start_at(url, &[&["--handler-deadline", "2m"], more].concat(), variables)
    }

    async fn send(&self, numbers: Range<i64>) {
        self.topic.send(numbers.map(Purchase::number)).await;
    }

    async fn finish(&self, url: &str, variables: &[(&str, &str)]) -> Ended {
        self.start_at(url, &["--until-idle", "2s"], variables).ended().await
    }
}

/// J2, Y1, Y3, Y8, Y14: workers die at each failpoint and one stands still for twice its lease, while requests are lost before and after
/// they were applied, arrive late, conflict and are throttled.
#[tokio::test(flavor = "multi_thread")]
async fn j2_deaths_at_each_point_under_faults_leave_an_exact_ledger() {
    let table = Table::new("ddb_deaths");
    let fixture = Fixture { topic: Topic::create(&brokers(), &table.name, 4).await, table };
    let points = of_this_run(&POINTS, 2);
    let end = through_deaths(&fixture, count(3_000, 400), &points, "").await;
    assert_eq!(end.ledger, Ledger::of(0..end.sent), "{end:?}");
    assert_eq!(end.dead_letters, BTreeMap::new());
    fixture.table.remove().await;
}

/// Y16: a store that marks before the effect, has no condition, or finds what is in progress turns that run red.
#[cfg(idem_bugs)]
#[tokio::test(flavor = "multi_thread")]
async fn y16_a_store_with_a_bug_is_seen() {
    use super::shared_dynamodb_deaths::End;

    let lost = |end: &End| end.ledger.keys < end.sent;
    // A transaction that applies twice puts its item once more at its place, and adds twice.
    let doubled = |end: &End| end.ledger.purchases.max(end.ledger.by_customer.0) > end.ledger.keys;
    for bug in of_this_run(&["MarkBeforeEffect", "NoCondition", "FoundInProgress"], 1) {
        let table = Table::new("ddb_bug");
        let fixture = Fixture { topic: Topic::create(&brokers(), &table.name, 4).await, table };
        let end = through_deaths(&fixture, 400, &["guard", "commit_sent"], bug).await;
        println!("{bug}: {end:?}");
        // An item that two wrote at once may also be one that no unit writes.
        let is_red = if bug == "NoCondition" { doubled(&end) || end.refused.is_some() } else { lost(&end) };
        assert!(is_red, "{bug} is green: {end:?}");
        fixture.table.remove().await;
    }
}
