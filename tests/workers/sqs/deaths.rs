//! Workers that die, stand still, and are deployed.

use std::time::Duration;

use super::{
    fixture::{Fixture, Ledger, count, until},
    queue::{Server, on_both_servers},
};

on_both_servers!(f1_f2_j3_a_zombie_changes_nothing);

/// J2: workers are killed while they run, one after the other.
#[tokio::test(flavor = "multi_thread")]
async fn j2_killed_workers_leave_an_exact_ledger() {
    let purchases = count(10_000, 1_500);
    let fixture = Fixture::new("killed", "").await;
    fixture.send(0..purchases).await;
    // Attempts are counted for what a killed worker had in hand; more of them than there are kills.
    let settings = ["--attempts", "100", "--batch", "20", "--in-flight", "100"];
    for part in 1..=4 {
        let worker = fixture.start(&settings);
        fixture.until_purchases(purchases * part / 6).await;
        worker.kill().await;
    }
    fixture.drain(&settings).await;
    assert_eq!(fixture.ledger().await, Ledger::of(0..purchases));
    assert!(fixture.dead_letters().await.is_empty(), "{:?}", fixture.dead_letters().await);
    assert_eq!(fixture.queue.counts().await, [0, 0, 0]);
    fixture.remove().await;
}

/// F1, F2, J3: a worker that stands still for longer than the visibility, and then goes on as if nothing had happened.
async fn f1_f2_j3_a_zombie_changes_nothing(server: Server) {
    let purchases = count(5_000, 1_000);
    let fixture = Fixture::on(&server, "zombie", "").await;
    fixture.send(0..purchases).await;
    let settings = ["--attempts", "100", "--batch", "20", "--in-flight", "200"];
    let zombie = fixture.start(&settings);
    fixture.until_purchases(1).await;
    zombie.signal("STOP").await;
    let other = fixture.start(&settings);
    // The zombie's messages are missing until their visibility has passed; its open keys, until the database gives them up.
    fixture.until_purchases(purchases - 200).await;
    zombie.signal("CONT").await;
    fixture.until_purchases(purchases).await;
    until("an empty queue", async || fixture.queue.counts().await == [0, 0, 0]).await;
    for ended in [zombie.stop().await, other.stop().await] {
        assert!(ended.status.success(), "{}", ended.log);
    }
    assert_eq!(fixture.ledger().await, Ledger::of(0..purchases));
    assert!(fixture.dead_letters().await.is_empty(), "{:?}", fixture.dead_letters().await);
    fixture.remove().await;
}

/// F8: a deployment gives everything back for the next worker to have at once, and its settled messages do not return.
#[tokio::test(flavor = "multi_thread")]
async fn f8_a_rolling_restart_delivers_nothing_twice() {
    let purchases = count(5_000, 1_500);
    let fixture = Fixture::new("rolling", "").await;
    fixture.send(0..purchases).await;
    let mut worker = fixture.start(&["--batch", "20", "--in-flight", "100"]);
    let mut duplicates = 0;
    for part in 1..=4 {
        fixture.until_purchases(purchases * part / 6).await;
        let next = fixture.start(&["--batch", "20", "--in-flight", "100"]);
        let ended = worker.stop().await;
        duplicates += ended.count("duplicates");
        worker = next;
    }
    fixture.until_purchases(purchases).await;
    until("an empty queue", async || fixture.queue.counts().await == [0, 0, 0]).await;
    duplicates += worker.stop().await.count("duplicates");
    assert_eq!((fixture.ledger().await, duplicates), (Ledger::of(0..purchases), 0));
    fixture.remove().await;
}

/// F1: a handler that takes longer than the visibility keeps its message; there is one of it in the end, and no rival had it.
#[tokio::test(flavor = "multi_thread")]
async fn f1_a_message_that_waits_behind_slow_ones_is_kept() {
    let fixture = Fixture::new("slow", "").await;
    // For its tables.
    fixture.drain(&[]).await;
    let slow = "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(5); RETURN new; END $$; \
                CREATE TRIGGER slow BEFORE INSERT ON purchases FOR EACH ROW EXECUTE FUNCTION slow()";
    sqlx::raw_sql(slow).execute(fixture.pool()).await.expect("a slow handler");
    // As many as a worker takes in before it has settled one.
    fixture.send(0..10).await;
    // Two at a time, so the last ones wait for longer than the visibility of 20 s.
    let worker = fixture.start(&["--batch", "1"]);
    until("all messages in hand", async || fixture.queue.counts().await == [0, 10, 0]).await;
    let rival = fixture.start(&["--batch", "1"]);
    fixture.until_purchases(10).await;
    until("an empty queue", async || fixture.queue.counts().await == [0, 0, 0]).await;
    let (worker, rival) = (worker.stop().await, rival.stop().await);
    assert_eq!((worker.count("processed"), rival.count("processed"), rival.count("duplicates")), (10, 0, 0));
    assert_eq!(fixture.ledger().await, Ledger::of(0..10));
    fixture.remove().await;
}

/// F15: a worker does not hoard what it cannot handle soon, so another one that is started gets its share.
#[tokio::test(flavor = "multi_thread")]
async fn f15_a_worker_that_is_added_gets_its_share_of_a_slow_backlog() {
    let fixture = Fixture::new("share", "").await;
    // For its tables.
    fixture.drain(&[]).await;
    let slow = "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.1); RETURN new; END $$; \
                CREATE TRIGGER slow BEFORE INSERT ON purchases FOR EACH ROW EXECUTE FUNCTION slow()";
    sqlx::raw_sql(slow).execute(fixture.pool()).await.expect("a slow handler");
    fixture.send(0..400).await;
    let first = fixture.start(&[]);
    fixture.until_purchases(40).await;
    let second = fixture.start(&[]);
    fixture.until_purchases(400).await;
    until("an empty queue", async || fixture.queue.counts().await == [0, 0, 0]).await;
    let (first, second) = (first.stop().await.count("processed"), second.stop().await.count("processed"));
    assert_eq!(first + second, 400);
    assert!(second >= 40, "{first} and {second}");
    assert_eq!(fixture.ledger().await, Ledger::of(0..400));
    fixture.remove().await;
}

/// F18: a stop while nothing is there waits for the receives under way, and has time for it by default. One that was
/// abandoned would keep what is sent meanwhile from others.
#[tokio::test(flavor = "multi_thread")]
async fn f18_a_worker_with_nothing_to_do_stops_with_status_0_and_abandons_no_receive() {
    let fixture = Fixture::new("nothing", "").await;
    let mut arguments = fixture.arguments(&[]);
    let wait = arguments.iter().position(|argument| argument == "--wait").expect("a usual flag");
    arguments.drain(wait..=wait + 1);
    let worker = fixture.start_with(&arguments, &[]);
    // Written once it has attached, and receives.
    until("its start", async || {
        let text = "SELECT EXISTS (SELECT FROM idem.audit WHERE action = 'start')";
        sqlx::query_scalar::<_, bool>(text).fetch_one(fixture.pool()).await.unwrap_or(false)
    })
    .await;
    let stopped = tokio::time::timeout(Duration::from_secs(60), worker.stop()).await.expect("it ends");
    assert_eq!(stopped.count("processed"), 0);
    assert!(!stopped.log.contains("a receive did not end in time"), "{}", stopped.log);
    fixture.remove().await;
}
