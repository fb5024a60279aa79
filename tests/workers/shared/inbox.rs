//! Workers behind an inbox: the same ledger, dead letters and totals as directly at the broker, also when receivers and workers die.
//! The tests of every worker include this file.

#![allow(dead_code, reason = "not every worker's tests use all of it")]

use std::collections::BTreeMap;

use sqlx::{query_scalar, raw_sql};

use crate::{
    database::{Database, Ledger, count, until},
    purchase::Purchase,
    worker::{Ended, Worker},
};

/// A queue or topic, a database, and the workers between them.
pub(crate) trait Stage {
    fn database(&self) -> &Database;
    fn start(&self, more: &[&str]) -> Worker;
    async fn publish(&self, texts: Vec<String>);
    /// Waits until the broker has everything acknowledged.
    async fn settled(&self);
}

async fn send(stage: &impl Stage, numbers: impl Iterator<Item = i64>) {
    stage.publish(numbers.map(|number| Purchase::number(number).json()).collect()).await;
}

/// Messages that wait in the inbox.
async fn rows(database: &Database) -> i64 {
    query_scalar("SELECT count(*) FROM idem.inbox").fetch_one(database.pool()).await.expect("the inbox")
}

/// Messages of the seed's view that have not been processed.
async fn pending(database: &Database) -> i64 {
    let text = "SELECT count(*) FROM idem.inbox_messages WHERE processed_at IS NULL";
    query_scalar(text).fetch_one(database.pool()).await.expect("the view")
}

/// The slots of the inbox.
async fn slots(database: &Database) -> i64 {
    query_scalar("SELECT count(*) FROM idem.inbox_slots").fetch_one(database.pool()).await.unwrap_or(0)
}

async fn until_empty(stage: &impl Stage) {
    stage.settled().await;
    until("an empty inbox", async || rows(stage.database()).await == 0).await;
}

/// Everything that a worker can meet: purchases, copies, a conflict, and messages that cannot be handled.
fn of_every_kind(purchases: i64) -> [Vec<String>; 2] {
    let number = |number| Purchase::number(number).json();
    let aside = [
        Purchase { cents: 999_999, ..Purchase::number(7) }.json(),
        r#"{"customer":"1","day":"1997-01-01","cds":1,"cents":1}"#.to_owned(),
        "not json".to_owned(),
        r#"{"idempotencykey":"","customer":"1","day":"1997-01-01","cds":1,"cents":1}"#.to_owned(),
    ];
    let second = (0..purchases / 5).map(number).chain(aside).chain((purchases..2 * purchases).map(number));
    [(0..purchases).map(number).collect(), second.collect()]
}

fn totals(ended: &Ended) -> [u64; 4] {
    ["processed", "duplicates", "conflicts", "dead_lettered"].map(|name| ended.count(name))
}

async fn worked_off(stage: &impl Stage, purchases: i64, more: &[&str]) -> (Vec<[u64; 4]>, BTreeMap<String, i64>) {
    let mut all = Vec::new();
    for texts in of_every_kind(purchases) {
        stage.publish(texts).await;
        all.push(totals(&stage.start(&[&["--until-idle", "3s"], more].concat()).ended().await));
        stage.settled().await;
    }
    assert_eq!(stage.database().ledger().await, Ledger::of(0..2 * purchases), "{more:?}");
    (all, stage.database().dead_letters().await)
}

/// N8: the effects, dead letters and totals of a worker behind an inbox are those of one at the broker, and what waits in the seed's view
/// at the end are the dead letters.
pub(crate) async fn n8_behind_an_inbox_is_as_at_the_broker(direct: &impl Stage, inbox: &impl Stage) {
    let purchases = count(2_000, 200);
    let expected = worked_off(direct, purchases, &[]).await;
    let found = worked_off(inbox, purchases, &["--inbox", "--inbox-slots", "3"]).await;
    assert_eq!(found, expected);
    let database = inbox.database();
    assert_eq!((rows(database).await, pending(database).await, slots(database).await), (0, 4, 3));
    // The number of slots is that of the first start.
    let ended = inbox.start(&["--inbox", "--until-idle", "1s"]).ended().await;
    assert!(ended.status.success() && ended.log.contains("keeps the number of slots"), "{}", ended.log);
    assert_eq!(slots(database).await, 3);
}

/// N16, J2, J3: receivers and workers, in one process and apart, are killed and stand still for longer than their leases. The ledger is exact.
pub(crate) async fn n16_killed_and_frozen_workers_leave_an_exact_ledger(stage: &impl Stage) {
    let (purchases, rounds) = (count(12_000, 1_200), count(12, 4));
    // Attempts are counted for what a killed worker had in hand; more of them than there are kills.
    let settings = ["--attempts", "100", "--batch", "20"];
    let kinds = [["--inbox", "on"], ["--inbox", "receive"], ["--inbox", "process"]];
    let start = |kind: [&str; 2]| stage.start(&[&settings[..], &kind].concat());
    let mut workers: Vec<Worker> = kinds.into_iter().map(start).collect();
    for round in 0..rounds {
        let sent = purchases * round / rounds..purchases * (round + 1) / rounds;
        send(stage, sent.clone()).await;
        // Each message but every tenth comes once.
        send(stage, sent.clone().filter(|number| number % 10 == 0)).await;
        stage.database().until_purchases(sent.start + (sent.end - sent.start) / 3).await;
        let kind = [2, 0, 1, 0][usize::try_from(round % 4).expect("a place")];
        if round % 4 == 1 {
            // The lease of its slots is ten seconds.
            workers[0].signal("STOP").await;
            stage.database().until_purchases(sent.end - 1).await;
            workers[0].signal("CONT").await;
            continue;
        }
        let worker = std::mem::replace(&mut workers[kind], start(kinds[kind]));
        worker.kill().await;
    }
    stage.database().until_purchases(purchases).await;
    until_empty(stage).await;
    for worker in workers {
        let ended = worker.stop().await;
        assert!(ended.status.success(), "{}", ended.log);
    }
    assert_eq!(stage.database().ledger().await, Ledger::of(0..purchases));
    assert!(stage.database().dead_letters().await.is_empty(), "{:?}", stage.database().dead_letters().await);
    assert_eq!(pending(stage.database()).await, 0);
}

/// The two parts as processes of their own, one after the other: the receiver leaves all messages in the inbox and nothing at the broker, and
/// ends when the broker has no more. A worker without the broker's messages handles them then.
pub(crate) async fn n1_receiving_and_processing_are_two_processes(stage: &impl Stage) {
    let purchases = 100;
    // It may start before the receiver has made the inbox.
    let early = stage.start(&["--inbox", "process"]);
    until("the wait for the inbox", async || early.logged().contains("has no inbox yet")).await;
    assert!(early.stop().await.status.success());
    send(stage, 0..purchases).await;
    let received = stage.start(&["--inbox", "receive", "--until-idle", "2s"]).ended().await;
    assert_eq!((totals(&received), stage.database().purchases().await), ([0; 4], 0), "{}", received.log);
    assert_eq!(received.count("received"), u64::try_from(purchases).expect("a count"));
    stage.settled().await;
    assert_eq!((rows(stage.database()).await, pending(stage.database()).await), (purchases, purchases));
    let processed = stage.start(&["--inbox", "process", "--until-idle", "1s"]).ended().await;
    assert_eq!(totals(&processed)[0], u64::try_from(purchases).expect("a count"));
    assert_eq!(stage.database().ledger().await, Ledger::of(0..purchases));
    assert_eq!((rows(stage.database()).await, pending(stage.database()).await), (0, 0));
}

/// Each purchase takes so many seconds from now on.
async fn slow(database: &Database, seconds: i64) {
    let slow = format!(
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep({seconds}); RETURN new; END $$; \
         CREATE TRIGGER slow BEFORE INSERT ON purchases FOR EACH ROW EXECUTE FUNCTION slow()"
    );
    raw_sql(sqlx::AssertSqlSafe(slow)).execute(database.pool()).await.expect("a slow handler");
}

/// A handler that takes longer than the broker leaves a message with its consumer: nothing is lost, and nothing is delivered twice.
pub(crate) async fn f1_g4_a_handler_is_slower_than_the_broker_allows(stage: &impl Stage, seconds: i64, more: &[&str]) {
    slow(stage.database(), seconds).await;
    send(stage, 0..4).await;
    let deadline = format!("{}s", seconds + 20);
    let settings = [&["--inbox", "--batch", "1", "--handler-deadline", &deadline], more].concat();
    let worker = stage.start(&settings);
    stage.settled().await;
    assert!(stage.database().purchases().await < 4, "the broker is done before the handlers");
    stage.database().until_purchases(4).await;
    until_empty(stage).await;
    let ended = worker.stop().await;
    assert_eq!(totals(&ended), [4, 0, 0, 0], "{}", ended.log);
    assert_eq!(stage.database().ledger().await, Ledger::of(0..4));
}
