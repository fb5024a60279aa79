//! What a collector of OpenTelemetry gets from two workers in a row.

use idem_testkit::collector::{CollectedPoint, CollectedSpan, Collector};
use rdkafka::{
    message::{Header, OwnedHeaders},
    producer::FutureRecord,
};

use super::{
    fixture::{Fixture, until},
    purchase::Purchase,
    topic::Topic,
    worker::Worker,
};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const SENDER: &str = "00f067aa0ba902b7";

fn start(fixture: &Fixture, collector: &Collector, service: &str, more: &[&str]) -> Worker {
    let variables = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint()),
        ("OTEL_SERVICE_NAME", service),
        ("OTEL_BSP_SCHEDULE_DELAY", "100"),
        ("HOSTNAME", "host-1"),
    ];
    let arguments = fixture.arguments(&[&["--reset", "earliest"], more].concat());
    Worker::start(env!("CARGO_BIN_EXE_kafka-rig"), &arguments, &variables, &fixture.next_log())
}

/// A message that the sender's trace has.
fn send(topic: &Topic, payload: &str) {
    let traceparent = format!("00-{TRACE}-{SENDER}-01");
    let headers = OwnedHeaders::new().insert(Header { key: "traceparent", value: Some(&traceparent) });
    topic.send_record(FutureRecord::to(&topic.name).key("k").payload(payload).headers(headers));
}

/// The metrics of the first worker: one event of one purchase, and one dead letter.
fn check_metrics(points: &[CollectedPoint]) {
    let value = |name: &str, operation: &str| {
        let is_it = |of: &str| operation.is_empty() || of == operation;
        let found: Vec<f64> = points
            .iter()
            .filter(|point| point.service == "shop" && point.name == name)
            .filter(|point| is_it(point.attributes.get("messaging.operation.name").map_or("", String::as_str)))
            .map(|point| point.value)
            .collect();
        assert_eq!(found.len(), 1, "{name} {operation}: {points:#?}");
        found[0]
    };
    assert_eq!(value("messaging.client.consumed.messages", "receive"), 2.0);
    assert_eq!(value("messaging.client.sent.messages", "send"), 1.0);
    assert_eq!(value("messaging.client.operation.duration", "send"), 1.0);
    assert!(value("messaging.client.operation.duration", "settle") >= 1.0);
    assert!(value("messaging.process.duration", "process") >= 1.0);
    assert_eq!(value("idem.processed", ""), 1.0);
    let unit = points.iter().find(|point| point.name == "messaging.process.duration").map(|point| &*point.unit);
    assert_eq!(unit, Some("s"));
}

/// J120: the trace of a message goes on through two consumers, and through the topic between them, as one; its dead letter has a span
/// there too. The metrics of the conventions come with idem's own.
#[tokio::test(flavor = "multi_thread")]
async fn j120_one_trace_over_two_consumers_is_one_trace() {
    let collector = Collector::start().await.expect("a port");
    let (shop, accounts) = (Fixture::new("shop", 1).await, Fixture::new("accounts", 1).await);
    let dead = Topic::create(&shop.topic.brokers, &format!("{}-dead", shop.topic.name), 1).await;
    let more = ["--announce", &accounts.topic.name, "--dead-letter-topic", &dead.name];
    let first = start(&shop, &collector, "shop", &more);
    let second = start(&accounts, &collector, "accounts", &["--store", "tokio-postgres"]);
    send(&shop.topic, &Purchase::number(7).json());
    send(&shop.topic, "no purchase");
    shop.topic.flush().await;
    accounts.until_purchases(1).await;
    shop.until_settled().await;
    until("the dead letter in its topic", async || dead.ends().await[&0] == 1).await;
    // The last spans and all metrics are sent at the end.
    for worker in [first, second] {
        let ended = worker.stop().await;
        assert!(ended.status.success(), "{}", ended.log);
    }

    let spans = collector.spans();
    let of_trace: Vec<&CollectedSpan> = spans.iter().filter(|span| span.trace_id == TRACE).collect();
    let one = |service: &str, name: &str, is_it: &dyn Fn(&CollectedSpan) -> bool| {
        let found: Vec<_> =
            of_trace.iter().filter(|span| (&*span.service, &*span.name) == (service, name) && is_it(span)).collect();
        assert_eq!(found.len(), 1, "{service}: {name} in {spans:#?}");
        (*found[0]).clone()
    };
    let handled =
        one("shop", &format!("process {}", shop.topic.name), &|span| !span.attributes.contains_key("error.type"));
    assert_eq!(handled.parent_id, SENDER);
    let sent = one("shop", &format!("send {}", accounts.topic.name), &|_| true);
    assert_eq!(sent.parent_id, handled.span_id);
    let then = one("accounts", &format!("process {}", accounts.topic.name), &|_| true);
    assert_eq!(then.parent_id, handled.span_id, "the event carries the span that handled its message");
    let dead_letter = one("shop", "send dead letters", &|_| true);
    assert_eq!(dead_letter.parent_id, SENDER);

    let (host, port) = shop.topic.brokers.rsplit_once(':').expect("a port");
    let (topic, group) = (&*shop.topic.name, &*shop.name);
    let client = format!("{group}-host-1");
    for (name, value) in [
        ("messaging.system", "kafka"),
        ("messaging.destination.name", topic),
        ("messaging.destination.partition.id", "0"),
        ("messaging.kafka.offset", "0"),
        ("messaging.consumer.group.name", group),
        ("messaging.client.id", &client),
        ("server.address", host),
        ("server.port", port),
    ] {
        assert_eq!(handled.attributes.get(name).map(String::as_str), Some(value), "{name} of {handled:#?}");
    }
    assert_eq!(sent.attributes.get("messaging.system").map(String::as_str), Some("kafka"));
    assert_eq!(sent.attributes.get("messaging.message.id"), then.attributes.get("idem.key"));

    check_metrics(&collector.points());
    shop.remove().await;
    accounts.remove().await;
}
