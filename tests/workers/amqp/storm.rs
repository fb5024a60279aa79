//! Connections that break, hang and are slow.

use idem_testkit::proxy::Proxy;

use super::{
    fixture::{Fixture, Ledger, count, until},
    queue::{self, host},
    shared_storm::storm,
};

/// G1, G2, A25: for a minute (a few seconds in `./test`) connections to the broker and to the database are cut, frozen and
/// delayed at random, under load. The ledger is exact, everything is settled, and the worker still ends cleanly.
#[tokio::test(flavor = "multi_thread")]
async fn a_storm_of_broken_connections_leaves_an_exact_ledger() {
    let (each, seconds) = (count(1_000, 300), count(60, 8));
    let fixture = Fixture::new("storm").await;
    let broker = Proxy::to(host(&queue::url())).await.expect("a proxy");
    let database = Proxy::to(fixture.host()).await.expect("a proxy");
    let arguments = fixture.arguments_to(
        &fixture.queue.url.replace(host(&fixture.queue.url), broker.address()),
        &fixture.url.replace(fixture.host(), database.address()),
        // A run that a broken connection interrupts counts as an attempt.
        &["--attempts", "100", "--batch", "20"],
    );
    let workers = [fixture.start_with(&arguments), fixture.start_with(&arguments)];
    fixture.send(0..each).await;
    fixture.until_purchases(1).await;
    let sent = storm([&broker, &database], seconds, each, each, async |purchases| fixture.send(purchases).await).await;
    for proxy in [&broker, &database] {
        proxy.cut().await;
        proxy.calm();
    }
    fixture.until_purchases(sent).await;
    fixture.until_settled().await;
    for worker in workers {
        // The last cut may be a moment ago, and the other worker have handled everything since.
        until("a new connection", async || worker.logged().contains("consuming again")).await;
        let ended = worker.stop().await;
        assert!(ended.status.success(), "{}", ended.log);
    }
    assert_eq!(fixture.ledger().await, Ledger::of(0..sent));
    assert!(fixture.dead_letters().await.is_empty(), "{:?}", fixture.dead_letters().await);
    fixture.remove().await;
}
