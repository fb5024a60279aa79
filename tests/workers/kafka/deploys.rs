//! Two versions side by side.

use super::fixture::{Fixture, Ledger, PIPELINED, count};

/// A deployment from the handler a message to the set-based one.
#[tokio::test(flavor = "multi_thread")]
async fn a_rolling_deploy_to_the_set_based_handler() {
    rolling_deploy_to(&["--batch-handler", "--kafka", "client.id=the-new-version"]).await;
}

/// A deployment to the other client library, with handlers at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_rolling_deploy_to_the_other_store() {
    rolling_deploy_to(PIPELINED).await;
}

/// Both versions run for a while: one consumer, one handler name, two versions of its code, one database.
async fn rolling_deploy_to(new: &[&str]) {
    let purchases = count(20_000, 4_000);
    let fixture = Fixture::new("deploy", 4).await;
    fixture.send(0..purchases / 2).await;
    let old = fixture.start(&["--reset", "earliest", "--batch", "20"]);
    fixture.until_purchases(1).await;
    let new = fixture.start(new);
    fixture.send(purchases / 2..purchases).await;
    fixture.until_purchases(purchases * 3 / 4).await;
    assert!(old.stop().await.status.success());
    fixture.until_purchases(purchases).await;
    fixture.until_settled().await;
    assert!(new.stop().await.status.success());
    assert_eq!(fixture.ledger().await, Ledger::of(0..purchases));
    fixture.remove().await;
}

/// J1: SIGTERM under load, again and again. Each stop is clean, and the ledger is exact.
#[tokio::test(flavor = "multi_thread")]
async fn j1_a_worker_that_is_stopped_under_load_again_and_again_loses_nothing() {
    let (purchases, stops) = (count(30_000, 5_000), count(200, 8));
    let fixture = Fixture::new("stops", 4).await;
    fixture.send(0..purchases).await;
    for _ in 0..stops {
        let before = fixture.purchases().await;
        if before == purchases {
            break;
        }
        let worker = fixture.start(&["--reset", "earliest", "--batch", "20", "--in-flight", "100"]);
        fixture.until_purchases(before + 1).await;
        let ended = worker.stop().await;
        assert_eq!(ended.status.code(), Some(0), "{}", ended.log);
        assert_eq!(ended.count("duplicates"), 0, "a clean stop leaves nothing to be delivered again");
    }
    fixture.drain(&[]).await;
    assert_eq!(fixture.ledger().await, Ledger::of(0..purchases));
    fixture.remove().await;
}
