//! Two versions side by side.

use super::stage::{Ledger, PIPELINED, Stage, count};

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
    let stage = Stage::new("deploy", 4).await;
    stage.send(0..purchases / 2).await;
    let old = stage.start(&["--reset", "earliest", "--batch", "20"]);
    stage.until_purchases(1).await;
    let new = stage.start(new);
    stage.send(purchases / 2..purchases).await;
    stage.until_purchases(purchases * 3 / 4).await;
    assert!(old.stop().await.status.success());
    stage.until_purchases(purchases).await;
    stage.until_settled().await;
    assert!(new.stop().await.status.success());
    assert_eq!(stage.ledger().await, Ledger::of(0..purchases));
    stage.remove().await;
}

/// J1: SIGTERM under load, again and again. Each stop is clean, and the ledger is exact.
#[tokio::test(flavor = "multi_thread")]
async fn j1_a_worker_that_is_stopped_under_load_again_and_again_loses_nothing() {
    let (purchases, stops) = (count(30_000, 8_000), count(200, 8));
    let stage = Stage::new("stops", 4).await;
    stage.send(0..purchases).await;
    for _ in 0..stops {
        let before = stage.purchases().await;
        if before == purchases {
            break;
        }
        let worker = stage.start(&["--reset", "earliest", "--batch", "20", "--in-flight", "100"]);
        stage.until_purchases(before + 1).await;
        let ended = worker.stop().await;
        assert_eq!(ended.status.code(), Some(0), "{}", ended.log);
        assert_eq!(ended.count("duplicates"), 0, "a clean stop leaves nothing to be delivered again");
    }
    stage.drain(&[]).await;
    assert_eq!(stage.ledger().await, Ledger::of(0..purchases));
    stage.remove().await;
}
