//! Workers that come and go.

use std::time::Duration;

use tokio::sync::Mutex;

use super::{
    fixture::{Client, Fixture, Ledger, count, until, with_each_client},
    worker::Worker,
};

with_each_client!(
    e8_j2_a_storm_of_rebalances_leaves_an_exact_ledger,
    e1_j3_a_zombie_changes_nothing,
    e10_a_rolling_restart_delivers_nothing_twice,
);

/// E1, E8, J2: three workers on twelve partitions, one of which joins or leaves every second, half of the leaving ones
/// without a word. The ledger is exact, and every message is settled.
async fn e8_j2_a_storm_of_rebalances_leaves_an_exact_ledger(client: Client) {
    let purchases = count(50_000, 6_000);
    let fixture = Fixture::new("storm", 12).await.client(client);
    fixture.send(0..purchases / 2).await;
    // Attempts are counted for what a killed worker had in hand; more of them than there are kills.
    let settings = ["--reset", "earliest", "--attempts", "100", "--batch", "50", "--in-flight", "300"];
    let mut workers: Vec<Worker> = (0..3).map(|_| fixture.start(&settings)).collect();
    let mut rng = fastrand::Rng::with_seed(idem_testkit::seed());
    let (mut rounds, mut kills) = (0, 0);
    let storm = async {
        let mut second_half = Some(fixture.send(purchases / 2..purchases));
        while fixture.purchases().await < purchases || rounds < 10 {
            // One a second is what the test is about.
            tokio::time::sleep(Duration::from_secs(1)).await;
            if let Some(sending) = second_half.take_if(|_| rounds == 3) {
                sending.await;
            }
            rounds += 1;
            if workers.len() < 3 || (workers.len() < 4 && rng.bool()) {
                workers.push(fixture.start(&settings));
                continue;
            }
            let leaving = workers.swap_remove(rng.usize(..workers.len()));
            if rng.bool() {
                kills += 1;
                leaving.kill().await;
            } else {
                let ended = leaving.stop().await;
                assert!(ended.status.success(), "{}", ended.log);
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(900), storm).await.expect("the storm ends");
    if workers.is_empty() {
        workers.push(fixture.start(&settings));
    }
    fixture.until_settled().await;
    for worker in workers {
        worker.stop().await;
    }
    println!("{rounds} rounds, {kills} kills");
    assert_eq!(fixture.ledger().await, Ledger::of(0..purchases));
    assert!(fixture.dead_letters().await.is_empty(), "{:?}", fixture.dead_letters().await);
    fixture.remove().await;
}

/// E1, J3: a worker that stands still for longer than its session, and then goes on as if nothing had happened.
async fn e1_j3_a_zombie_changes_nothing(client: Client) {
    let purchases = count(20_000, 4_000);
    let fixture = Fixture::new("zombie", 4).await.client(client);
    fixture.send(0..purchases).await;
    let settings = ["--reset", "earliest", "--batch", "20", "--handler-deadline", "2s"];
    let zombie = fixture.start(&settings);
    fixture.until_purchases(1).await;
    zombie.signal("STOP").await;
    let other = fixture.start(&settings);
    // Only what the zombie had is missing before the group has noticed; then nothing is.
    fixture.until_purchases(purchases).await;
    zombie.signal("CONT").await;
    fixture.send(purchases..2 * purchases).await;
    fixture.until_purchases(2 * purchases).await;
    fixture.until_settled().await;
    let ended = [zombie.stop().await, other.stop().await];
    assert!(ended.iter().all(|ended| ended.status.success()), "{}", ended[0].log);
    assert_eq!(fixture.ledger().await, Ledger::of(0..2 * purchases));
    assert!(fixture.dead_letters().await.is_empty());
    fixture.remove().await;
}

/// Rolling restarts side by side slow the broker's answer to a commit beyond what a revocation waits for.
static ONE_AT_A_TIME: Mutex<()> = Mutex::const_new(());

/// E10: with clean stops, nothing is delivered twice beyond what was in flight when a deadline ran out, and here none
/// does.
async fn e10_a_rolling_restart_delivers_nothing_twice(client: Client) {
    let _turn = ONE_AT_A_TIME.lock().await;
    let purchases = count(40_000, 8_000);
    let fixture = Fixture::new("rolling", 8).await.client(client);
    let mut workers = vec![];
    for _ in 0..2 {
        workers.push(fixture.start(&["--reset", "earliest", "--batch", "20"]));
    }
    let (mut duplicates, mut processed, mut sent) = (0, 0, 0);
    for round in 1..=4 {
        let next = purchases * round / 4;
        fixture.send(sent..next).await;
        fixture.until_purchases(sent + 1).await;
        sent = next;
        let mut newcomer = fixture.start(&["--batch", "20"]);
        until("the newcomer to run", async || newcomer.runs() && newcomer.joined()).await;
        let ended = workers.remove(0).stop().await;
        duplicates += ended.count("duplicates");
        processed += ended.count("processed");
        workers.push(newcomer);
    }
    fixture.until_purchases(purchases).await;
    fixture.until_settled().await;
    for worker in workers {
        let ended = worker.stop().await;
        duplicates += ended.count("duplicates");
        processed += ended.count("processed");
    }
    println!("{duplicates} of {purchases} messages were delivered twice in 4 restarts");
    assert_eq!((processed, duplicates), (u64::try_from(purchases).expect("a count"), 0));
    assert_eq!(fixture.ledger().await, Ledger::of(0..purchases));
    fixture.remove().await;
}
