//! Connections that break, hang and are slow.

use idem_testkit::proxy::Proxy;

use super::{
    fixture::{Fixture, Ledger, count, until},
    shared_storm::storm,
};

/// F1, F3, A25: for a minute (a few seconds in `./test`) connections to SQS and to the database are cut, frozen and delayed
/// at random, under load. The ledger is exact, everything is settled, and the worker still ends cleanly.
#[tokio::test(flavor = "multi_thread")]
async fn a_storm_of_broken_connections_leaves_an_exact_ledger() {
    let (each, seconds) = (count(150, 50), count(60, 6));
    let fixture = Fixture::new("storm", "").await;
    let sqs = Proxy::to(fixture.queue.server.endpoint().trim_start_matches("http://")).await.expect("a proxy");
    let database = Proxy::to(fixture.host()).await.expect("a proxy");
    // A run that a broken connection interrupts counts as an attempt. Few are in flight, because the emulator is slow, and
    // more could not be extended every two seconds.
    let mut arguments = fixture.arguments(&["--attempts", "100", "--batch", "20", "--in-flight", "100"]);
    let url = fixture.url.replace(fixture.host(), database.address());
    // A worker that an answer of SQS does not reach holds its messages for as long as the visibility.
    for (flag, value) in [("--database-url", &*url), ("--handler-deadline", "4s"), ("--visibility", "5s")] {
        let at = arguments.iter().position(|argument| argument == flag).expect("a usual flag");
        value.clone_into(&mut arguments[at + 1]);
    }
    let endpoint = format!("http://{}", sqs.address());
    let variables = [("AWS_ENDPOINT_URL", &*endpoint)];
    let workers = [fixture.start_with(&arguments, &variables), fixture.start_with(&arguments, &variables)];
    fixture.send(0..each).await;
    fixture.until_purchases(1).await;
    let sent = storm([&sqs, &database], seconds, each, each, async |purchases| fixture.send(purchases).await).await;
    // It ends with an outage that both must have noticed.
    sqs.refuse(true);
    for proxy in [&sqs, &database] {
        proxy.calm();
        proxy.cut().await;
    }
    for worker in &workers {
        until("a poll to fail", async || worker.logged().contains("the broker cannot be used")).await;
    }
    sqs.refuse(false);
    fixture.until_purchases(sent).await;
    until("an empty queue", async || fixture.queue.counts().await == [0, 0, 0]).await;
    for worker in workers {
        let ended = worker.stop().await;
        assert!(ended.status.success(), "{}", ended.log);
    }
    assert_eq!(fixture.ledger().await, Ledger::of(0..sent));
    assert!(fixture.dead_letters().await.is_empty(), "{:?}", fixture.dead_letters().await);
    fixture.remove().await;
}
