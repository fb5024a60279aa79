//! Connections that break, hang and are slow.

use idem_testkit::proxy::Proxy;

use super::{
    queue::{self, host},
    shared_storm::storm,
    stage::{Ledger, Stage, count, until},
};

/// G1, G2, A25: for a minute (a few seconds in `./test`) connections to the broker and to the database are cut, frozen and
/// delayed at random, under load. The ledger is exact, everything is settled, and the worker still ends cleanly.
#[tokio::test(flavor = "multi_thread")]
async fn a_storm_of_broken_connections_leaves_an_exact_ledger() {
    let (each, seconds) = (count(1_000, 300), count(60, 8));
    let stage = Stage::new("storm").await;
    let broker = Proxy::to(host(&queue::url())).await.expect("a proxy");
    let database = Proxy::to(stage.host()).await.expect("a proxy");
    let arguments = stage.arguments_to(
        &stage.queue.url.replace(host(&stage.queue.url), broker.address()),
        &stage.url.replace(stage.host(), database.address()),
        // What a broken connection interrupts is counted while it runs.
        &["--attempts", "100", "--batch", "20"],
    );
    let workers = [stage.start_with(&arguments), stage.start_with(&arguments)];
    stage.send(0..each).await;
    stage.until_purchases(1).await;
    let sent = storm([&broker, &database], seconds, each, each, async |purchases| stage.send(purchases).await).await;
    for proxy in [&broker, &database] {
        proxy.cut().await;
        proxy.calm();
    }
    stage.until_purchases(sent).await;
    stage.until_settled().await;
    for worker in workers {
        // The last cut may be a moment ago, and the other worker have handled everything since.
        until("a new connection", async || worker.logged().contains("consuming again")).await;
        let ended = worker.stop().await;
        assert!(ended.status.success(), "{}", ended.log);
    }
    assert_eq!(stage.ledger().await, Ledger::of(0..sent));
    assert!(stage.dead_letters().await.is_empty(), "{:?}", stage.dead_letters().await);
    stage.remove().await;
}
