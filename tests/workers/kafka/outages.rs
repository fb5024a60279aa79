//! A broker and a database that go away and come back.

use std::collections::BTreeSet;

use super::{
    chain::ids,
    fixture::{Client, Fixture, Ledger, count, until, with_each_client},
    own_servers::OwnServers,
    shared_chain::pending,
    topic::Topic,
};

with_each_client!(j4_a_worker_that_is_killed_in_a_long_statement_does_not_keep_its_key);

/// A25, J9: the broker crashes, the database crashes, both do. The worker waits, says so, and goes on; no message is
/// charged an attempt for it, and nothing is set aside.
#[tokio::test(flavor = "multi_thread")]
async fn a25_j9_outages_are_waited_out_and_charged_to_nobody() {
    let servers = OwnServers::up("kafka-worker-outages", 400, &["postgres", "kafka"]);
    let fixture = Fixture::on("outages", 4, &servers.url("kafka"), &servers.url("postgres")).await;
    let told = Topic::create(&servers.url("kafka"), &format!("{}_told", fixture.name), 1).await;
    let each = count(10_000, 600);
    // A message that is redelivered after an outage is counted while it runs, and the count goes with its success.
    let mut worker =
        fixture.start(&["--reset", "earliest", "--attempts", "2", "--batch", "20", "--announce", &told.name]);
    let mut sent = 0;
    for outage in [&["kafka"][..], &["postgres"], &["kafka", "postgres"]] {
        fixture.send(sent..sent + each).await;
        fixture.until_purchases(sent + each / 10).await;
        sent += each;
        servers.restart_all(outage);
        fixture.until_purchases(sent).await;
        assert!(worker.runs(), "after {outage:?}:\n{}", worker.logged());
    }
    fixture.until_settled().await;
    // O9: committed events are sent once the broker is back, under as many ids as there are purchases.
    until("an empty outbox", async || pending(&fixture).await == 0).await;
    let ids = ids(&told).await.into_iter().collect::<BTreeSet<_>>();
    assert_eq!(i64::try_from(ids.len()).expect("a count"), sent);
    let ended = worker.stop().await;
    assert_eq!(ended.count("dead_lettered"), 0);
    assert_eq!(fixture.ledger().await, Ledger::of(0..sent));
    assert!(fixture.dead_letters().await.is_empty());
    a_database_that_is_away_for_longer_is_reported(&servers, &fixture, sent).await;
    fixture.remove().await;
}

/// It pauses and says so, in its log and at `/readyz`, and burns no attempt however long it takes.
async fn a_database_that_is_away_for_longer_is_reported(servers: &OwnServers, fixture: &Fixture, sent: i64) {
    let mut worker = fixture.start(&["--attempts", "2"]);
    // It has started: a start waits for a database in its own way, and not for ever.
    fixture.send(sent..sent + 1).await;
    fixture.until_purchases(sent + 1).await;
    servers.down("postgres");
    fixture.send(sent + 1..sent + 100).await;
    until("the worker to say so", async || {
        assert!(worker.runs(), "{}", worker.logged());
        worker.logged().contains("the database cannot be used")
    })
    .await;
    // Several probes, each of which would be an attempt if it were charged.
    until("probes", async || worker.logged().matches("the database still cannot be used").count() >= 3).await;
    servers.up_again("postgres");
    fixture.until_purchases(sent + 100).await;
    assert_eq!(worker.stop().await.count("dead_lettered"), 0);
    assert!(fixture.most_attempts().await <= 1, "an attempt was charged to an outage");
    assert_eq!(fixture.ledger().await, Ledger::of(0..sent + 100));
}

/// J4: a worker that is killed in the middle of a statement leaves a server process without a client. It does not keep
/// the key for as long as the statement would take.
async fn j4_a_worker_that_is_killed_in_a_long_statement_does_not_keep_its_key(client: Client) {
    let fixture = Fixture::new("killed", 1).await.client(client);
    // For its tables.
    fixture.drain(&[]).await;
    let statement = "CREATE TABLE asleep (); \
                     CREATE FUNCTION sleep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
                         IF to_regclass('asleep') IS NOT NULL THEN PERFORM pg_sleep(3600); END IF; RETURN new; END $$; \
                     CREATE TRIGGER sleep BEFORE INSERT ON purchases FOR EACH ROW EXECUTE FUNCTION sleep()";
    sqlx::raw_sql(statement).execute(fixture.pool()).await.expect("a handler that takes an hour");
    fixture.send(0..1).await;
    let worker = fixture.start(&["--handler-deadline", "1h"]);
    until("the handler to sleep", async || {
        let text =
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()";
        sqlx::query_scalar::<_, i64>(text).fetch_one(fixture.pool()).await.expect("the activity") == 1
    })
    .await;
    worker.kill().await;
    sqlx::raw_sql("ALTER TABLE asleep RENAME TO awake").execute(fixture.pool()).await.expect("the next one is awake");
    let ended = fixture.drain(&[]).await;
    assert_eq!(ended.count("processed"), 1);
    assert_eq!(fixture.ledger().await, Ledger::of(0..1));
    fixture.remove().await;
}
