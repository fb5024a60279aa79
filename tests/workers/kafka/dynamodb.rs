//! Workers whose store is DynamoDB.

use std::collections::BTreeMap;

use super::{
    database::{Ledger, count},
    purchase::Purchase,
    shared_dynamodb::{LET_IN, Table},
    topic::{Topic, brokers},
    worker::Worker,
};

struct Fixture {
    topic: Topic,
    table: Table,
}

impl Fixture {
    fn start(&self, more: &[&str]) -> Worker {
        let (name, Topic { name: topic, brokers, .. }) = (&self.table.name, &self.topic);
        let own = ["--brokers", brokers, "--topic", topic, "--group", name, "--consumer", name]
            .into_iter()
            .chain([
                "--database-url",
                &self.table.url,
                "--migrate",
                "--reset",
                "earliest",
                "--attempts",
                "100",
                "--lanes",
                "16",
            ])
            // So that a member that dies is missed after seconds.
            .chain(["--kafka", "session.timeout.ms=6000", "--kafka", "heartbeat.interval.ms=1000"]);
        let arguments: Vec<String> = own.chain(more.iter().copied()).map(str::to_owned).collect();
        Worker::start(env!("CARGO_BIN_EXE_kafka-rig"), &arguments, &LET_IN, &self.table.next_log())
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
