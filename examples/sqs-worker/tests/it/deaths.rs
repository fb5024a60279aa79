//! Workers that die, stand still, and are deployed.

use std::time::Duration;

use super::{
    queue::{Server, on_both_servers},
    stage::{Ledger, Stage, count, until},
};

on_both_servers!(f1_f2_j3_a_zombie_changes_nothing);

/// J2: workers are killed while they run, one after the other.
#[tokio::test(flavor = "multi_thread")]
async fn j2_killed_workers_leave_an_exact_ledger() {
    let purchases = count(10_000, 1_500);
    let stage = Stage::new("killed", "").await;
    stage.send(0..purchases).await;
    // Attempts are counted for what a killed worker had in hand; more of them than there are kills.
    let settings = ["--attempts", "100", "--batch", "20", "--in-flight", "100"];
    for part in 1..=4 {
        let worker = stage.start(&settings);
        stage.until_purchases(purchases * part / 6).await;
        worker.kill().await;
    }
    stage.drain(&settings).await;
    assert_eq!(stage.ledger().await, Ledger::of(0..purchases));
    assert!(stage.dead_letters().await.is_empty(), "{:?}", stage.dead_letters().await);
    assert_eq!(stage.queue.counts().await, [0, 0, 0]);
    stage.remove().await;
}

/// F1, F2, J3: a worker that stands still for longer than the visibility, and then goes on as if nothing had happened.
async fn f1_f2_j3_a_zombie_changes_nothing(server: Server) {
    let purchases = count(5_000, 1_000);
    let stage = Stage::on(&server, "zombie", "").await;
    stage.send(0..purchases).await;
    let settings = ["--attempts", "100", "--batch", "20", "--in-flight", "200"];
    let zombie = stage.start(&settings);
    stage.until_purchases(1).await;
    zombie.signal("STOP").await;
    let other = stage.start(&settings);
    // What the zombie had is missing until its visibility has passed; what it held open, until the database gives it up.
    stage.until_purchases(purchases - 200).await;
    zombie.signal("CONT").await;
    stage.until_purchases(purchases).await;
    until("an empty queue", async || stage.queue.counts().await == [0, 0, 0]).await;
    for ended in [zombie.stop().await, other.stop().await] {
        assert!(ended.status.success(), "{}", ended.log);
    }
    assert_eq!(stage.ledger().await, Ledger::of(0..purchases));
    assert!(stage.dead_letters().await.is_empty(), "{:?}", stage.dead_letters().await);
    stage.remove().await;
}

/// F8: a deployment gives everything back for the next worker to have at once, and what it settled does not return.
#[tokio::test(flavor = "multi_thread")]
async fn f8_a_rolling_restart_delivers_nothing_twice() {
    let purchases = count(5_000, 1_500);
    let stage = Stage::new("rolling", "").await;
    stage.send(0..purchases).await;
    let mut worker = stage.start(&["--batch", "20", "--in-flight", "100"]);
    let mut duplicates = 0;
    for part in 1..=4 {
        stage.until_purchases(purchases * part / 6).await;
        let next = stage.start(&["--batch", "20", "--in-flight", "100"]);
        let ended = worker.stop().await;
        duplicates += ended.count("duplicates");
        worker = next;
    }
    stage.until_purchases(purchases).await;
    until("an empty queue", async || stage.queue.counts().await == [0, 0, 0]).await;
    duplicates += worker.stop().await.count("duplicates");
    assert_eq!((stage.ledger().await, duplicates), (Ledger::of(0..purchases), 0));
    stage.remove().await;
}

/// F1: a handler that takes longer than the visibility keeps its message; there is one of it in the end, and no rival had it.
#[tokio::test(flavor = "multi_thread")]
async fn f1_a_message_that_waits_behind_slow_ones_is_kept() {
    let stage = Stage::new("slow", "").await;
    // For its tables.
    stage.drain(&[]).await;
    let slow = "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(5); RETURN new; END $$; \
                CREATE TRIGGER slow BEFORE INSERT ON purchases FOR EACH ROW EXECUTE FUNCTION slow()";
    sqlx::raw_sql(slow).execute(stage.pool()).await.expect("a slow handler");
    // As many as a worker takes in before it has settled one.
    stage.send(0..10).await;
    // Two at a time, so the last ones wait for longer than the visibility of 20 s.
    let worker = stage.start(&["--batch", "1"]);
    until("all messages in hand", async || stage.queue.counts().await == [0, 10, 0]).await;
    let rival = stage.start(&["--batch", "1"]);
    stage.until_purchases(10).await;
    until("an empty queue", async || stage.queue.counts().await == [0, 0, 0]).await;
    let (worker, rival) = (worker.stop().await, rival.stop().await);
    assert_eq!((worker.count("processed"), rival.count("processed"), rival.count("duplicates")), (10, 0, 0));
    assert_eq!(stage.ledger().await, Ledger::of(0..10));
    stage.remove().await;
}

/// F15: a worker does not hoard what it cannot handle soon, so another one that is started gets its share.
#[tokio::test(flavor = "multi_thread")]
async fn f15_a_worker_that_is_added_gets_its_share_of_a_slow_backlog() {
    let stage = Stage::new("share", "").await;
    // For its tables.
    stage.drain(&[]).await;
    let slow = "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.1); RETURN new; END $$; \
                CREATE TRIGGER slow BEFORE INSERT ON purchases FOR EACH ROW EXECUTE FUNCTION slow()";
    sqlx::raw_sql(slow).execute(stage.pool()).await.expect("a slow handler");
    stage.send(0..400).await;
    let first = stage.start(&[]);
    stage.until_purchases(40).await;
    let second = stage.start(&[]);
    stage.until_purchases(400).await;
    until("an empty queue", async || stage.queue.counts().await == [0, 0, 0]).await;
    let (first, second) = (first.stop().await.count("processed"), second.stop().await.count("processed"));
    assert_eq!(first + second, 400);
    assert!(second >= 40, "{first} and {second}");
    assert_eq!(stage.ledger().await, Ledger::of(0..400));
    stage.remove().await;
}

/// F18: a stop while nothing is there waits for the receives under way, and has time for it by default. One that was
/// abandoned would keep what is sent meanwhile from others.
#[tokio::test(flavor = "multi_thread")]
async fn f18_a_worker_with_nothing_to_do_stops_with_status_0_and_abandons_no_receive() {
    let stage = Stage::new("nothing", "").await;
    let mut arguments = stage.arguments(&[]);
    let wait = arguments.iter().position(|argument| argument == "--wait").expect("a usual flag");
    arguments.drain(wait..=wait + 1);
    let worker = stage.start_with(&arguments, &[]);
    // Written once it has attached, and receives.
    until("its start", async || {
        let text = "SELECT EXISTS (SELECT FROM idem.audit WHERE action = 'start')";
        sqlx::query_scalar::<_, bool>(text).fetch_one(stage.pool()).await.unwrap_or(false)
    })
    .await;
    let stopped = tokio::time::timeout(Duration::from_secs(60), worker.stop()).await.expect("it ends");
    assert_eq!(stopped.count("processed"), 0);
    assert!(!stopped.log.contains("a receive did not end in time"), "{}", stopped.log);
    stage.remove().await;
}
