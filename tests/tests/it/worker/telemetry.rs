//! The telemetry of a worker: metrics, spans, and log lines that stay few.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use idem_core::{
    ConsumerName, Message,
    config::{OnConflict, RetryPolicy},
    inbox::{InboxStore as _, Intake, ReceiverSettings},
    telemetry,
};
use idem_testkit::{
    MemoryStore,
    memory::{Faults, Rate},
};
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use opentelemetry::trace::{SpanContext, SpanId, SpanKind, TraceFlags, TraceId, TraceState, TracerProvider as _};
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};
use tracing_opentelemetry::OpenTelemetrySpanExt as _;
use tracing_subscriber::layer::SubscriberExt as _;

use super::{
    captured::{Captured, set_default},
    fixture::{Fixture, Running, drain, message, within},
};

/// The recorded values, by metric and labels, as a number: of a histogram, how many values.
fn recorded(snapshotter: &Snapshotter) -> BTreeMap<String, f64> {
    let value = |value| match value {
        DebugValue::Counter(count) => count as f64,
        DebugValue::Gauge(value) => value.0,
        DebugValue::Histogram(values) => values.len() as f64,
    };
    let snapshot = snapshotter.snapshot().into_vec().into_iter();
    snapshot
        .map(|(key, _, _, recorded)| {
            let labels: Vec<String> =
                key.key().labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
            (format!("{}{{{}}}", key.key().name(), labels.join(",")), value(recorded))
        })
        .collect()
}

/// Every outcome is counted by consumer, duplicates by their cause too and dead letters by their reason, and no
/// label holds a key, a hash or a payload.
#[tokio::test]
async fn outcomes_are_counted_by_consumer_and_duplicates_by_cause() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let fixture = Fixture::new();
    let worker = metrics::with_local_recorder(&recorder, || Running::new(fixture.worker()));
    fixture.publish("a", "fine");
    fixture.publish("a", "fine");
    fixture.publish("a", "another payload");
    fixture.publish("b", "permanent");
    fixture.queue.publish(Message::new("{}")).unwrap();
    within("draining the queue", fixture.queue.drained()).await;
    worker.view.measure();
    worker.stop().await.unwrap();
    let recorded = recorded(&snapshotter);
    for (metric, value) in [
        ("idem.received{consumer=ledger}", 5.0),
        ("idem.processed{consumer=ledger}", 1.0),
        ("idem.duplicates{consumer=ledger}", 1.0),
        ("consumer.duplicate_skipped{consumer=ledger,cause=producer}", 1.0),
        ("consumer.duplicate_skipped{consumer=ledger,cause=redelivery}", 0.0),
        ("consumer.duplicate_skipped{consumer=ledger,cause=replay}", 0.0),
        ("idem.duplicate_age{consumer=ledger}", 1.0),
        ("idem.conflicts{consumer=ledger}", 1.0),
        ("idem.dead_lettered{consumer=ledger}", 3.0),
        ("idem.dead_letter_reasons{consumer=ledger,reason=conflict}", 1.0),
        ("idem.dead_letter_reasons{consumer=ledger,reason=permanent}", 1.0),
        ("idem.dead_letter_reasons{consumer=ledger,reason=missing-key}", 1.0),
        ("idem.dead_letter_reasons{consumer=ledger,reason=malformed}", 0.0),
        ("idem.in_flight{consumer=ledger}", 0.0),
        ("idem.paused{consumer=ledger}", 0.0),
    ] {
        assert_eq!(recorded.get(metric), Some(&value), "{metric} in {recorded:#?}");
    }
    // Those of the messaging conventions have other labels, and are read back from a collector on Kafka. Those of the outbox are its relays', by destination, those of an inbox its receiver's or source's, how far it is behind its source's,
    // and others are a service's over HTTP or of the process around the worker.
    for metric in telemetry::METRICS.iter().filter(|metric| {
        ![
            "messaging.",
            "idem.outbox_",
            "idem.inbox_",
            "idem.http_",
            "idem.log_",
            "idem.behind_",
            telemetry::CLEANUP_LAG_MAX.name,
        ]
        .iter()
        .any(|of| metric.name.starts_with(of))
    }) {
        let told = recorded.keys().any(|key| key.starts_with(&format!("{}{{consumer=ledger", metric.name)));
        assert!(told, "nobody records {}", metric.name);
    }
    for metric in [telemetry::CLAIM_WAIT, telemetry::COMMIT_TIME, telemetry::HANDLER_TIME, telemetry::BATCH_SIZE] {
        assert!(recorded[&format!("{}{{consumer=ledger}}", metric.name)] >= 1.0, "{}", metric.name);
    }
    let known = ["consumer=ledger", "cause=", "reason="];
    for key in recorded.keys().filter(|key| !key.starts_with("messaging.")) {
        let labels = key.split_once('{').unwrap().1.trim_end_matches('}');
        assert!(labels.split(',').all(|label| known.iter().any(|known| label.starts_with(known))), "{key}");
    }
}

/// N19: what waits in an inbox is counted by consumer, and so are slots that no worker holds.
#[tokio::test]
async fn n19_what_waits_in_an_inbox_is_measured() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let (inbox, name) = (Arc::new(MemoryStore::new()).inbox(), ConsumerName::new("ledger").unwrap());
    // Counted before each message.
    let settings = ReceiverSettings::default().count_every(Duration::ZERO);
    let intake = metrics::with_local_recorder(&recorder, || Intake::new(Arc::clone(&inbox), name.clone(), settings));
    for key in ["a", "b", "c"] {
        intake.put(message(key, "fine")).await.unwrap();
    }
    let recorded = recorded(&snapshotter);
    for (metric, value) in [
        ("idem.inbox_received{consumer=ledger}", 3.0),
        ("idem.inbox_rows{consumer=ledger}", 2.0),
        ("idem.inbox_free_slots{consumer=ledger}", 16.0),
    ] {
        assert_eq!(recorded.get(metric), Some(&value), "{metric} in {recorded:#?}");
    }
    for metric in telemetry::METRICS.iter().filter(|metric| metric.name.starts_with("idem.inbox_")) {
        assert!(
            recorded.contains_key(&format!("{}{{consumer=ledger}}", metric.name)),
            "nobody records {}",
            metric.name
        );
    }
}

/// A26: a transaction that stays open is measured, and warned of once; its handler ends at its deadline, and it with it.
#[tokio::test(start_paused = true)]
async fn a26_a_transaction_that_stays_open_is_measured_warned_of_and_ended() {
    let (captured, _guard) = Captured::log(tracing::Level::WARN);
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let fixture = Fixture::new();
    fixture.publish("1", "block");
    let worker = metrics::with_local_recorder(&recorder, || {
        let consumer = fixture.consumer().handler_deadline(Duration::from_secs(300)).build().unwrap();
        Running::new(fixture.worker_of(consumer).retry(RetryPolicy::default().attempts(1)))
    });
    fixture.script.blocked().await;
    let open_for = || {
        worker.view.measure();
        recorded(&snapshotter)["idem.oldest_transaction{consumer=ledger}"]
    };
    let warnings = || captured.lines().iter().filter(|line| line.contains("a transaction is open for 60s")).count();
    for (wait, seconds, warned) in [(50, 50, 0), (20, 70, 1), (200, 270, 1), (40, 0, 1)] {
        // The clock is paused: it goes on to the end of this once nothing else is left to do.
        tokio::time::sleep(Duration::from_secs(wait)).await;
        let open = open_for();
        assert!((open - f64::from(seconds)).abs() < 5.0, "open for {open} s instead of {seconds} s");
        assert_eq!(warnings(), warned, "after {seconds} s: {:?}", captured.lines());
    }
    let letters = fixture.dead_letters().await;
    assert!(letters[0].error.contains("deadline of 300s"), "{letters:?}");
    worker.stop().await.unwrap();
}

/// A copy that the broker marks as delivered before is a redelivery, and one without the mark is the producer's.
#[tokio::test]
async fn a_redelivery_is_told_from_a_producer_that_sends_twice() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let fixture = Fixture::new();
    fixture.queue.misbehave(Faults { resurrected: Rate::Always, ..Faults::default() });
    fixture.publish("a", "fine");
    let worker = metrics::with_local_recorder(&recorder, || Running::new(fixture.worker()));
    worker.until("the message to come again", |worker| worker.view.summary().duplicates == 1).await;
    within("draining the queue", fixture.queue.drained()).await;
    worker.stop().await.unwrap();
    let recorded = recorded(&snapshotter);
    assert_eq!(recorded["consumer.duplicate_skipped{consumer=ledger,cause=redelivery}"], 1.0, "{recorded:#?}");
    assert_eq!(recorded["consumer.duplicate_skipped{consumer=ledger,cause=producer}"], 0.0);
}

/// After a full unit of nothing but duplicates the next is looked up, which takes no claim; its new messages are then
/// claimed and handled.
#[tokio::test]
async fn a_backlog_of_duplicates_is_looked_up_and_not_claimed() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let fixture = Fixture::new();
    let worker = metrics::with_local_recorder(&recorder, || Running::new(fixture.worker().batch(10)));
    let publish = |keys: std::ops::Range<usize>| keys.for_each(|key| drop(fixture.publish(&key.to_string(), "fine")));
    publish(0..10);
    within("draining the queue", fixture.queue.drained()).await;
    fixture.publish("block", "block");
    fixture.script.blocked().await;
    [0..10, 0..10, 5..15].into_iter().for_each(publish);
    worker.until("all to be in hand", |worker| worker.view.load().messages == 31).await;
    fixture.script.unblock();
    within("draining the queue", fixture.queue.drained()).await;
    let summary = worker.stop().await.unwrap();
    assert_eq!((summary.processed, summary.duplicates), (16, 25));
    // After a start ten messages run alone. Then: the one that blocks, the first ten duplicates, the five that are new.
    assert_eq!(recorded(&snapshotter)["idem.batch_size{consumer=ledger}"], 13.0, "units");
    assert!(fixture.counted().values().all(|count| *count == 1), "{:?}", fixture.counted());
}

fn left_out(line: &str) -> usize {
    let number = line.split_once("left_out=").map_or("0", |(_, rest)| rest.split(' ').next().unwrap_or("0"));
    number.parse().unwrap_or_else(|error| panic!("{error}: {line}"))
}

/// J8: 20,000 conflicts, as fast as they come, are at most ten lines a second, and each is logged or counted as left
/// out.
#[tokio::test]
async fn j8_each_of_20_000_conflicts_is_told_or_counted_in_few_lines() {
    let (captured, _guard) = Captured::log(tracing::Level::INFO);
    let fixture = Fixture::new();
    fixture.publish("order-1", "fine");
    (0..20_000).for_each(|_| drop(fixture.publish("order-1", "another payload")));
    let begun = tokio::time::Instant::now();
    let worker = Running::new(fixture.worker().on_conflict(OnConflict::Acknowledge).batch(1_000));
    within("draining the queue", fixture.queue.drained()).await;
    assert_eq!(worker.stop().await.unwrap().conflicts, 20_000);
    let seconds = begun.elapsed().as_secs() as usize + 1;
    let lines = captured.lines();
    let written = lines.iter().filter(|line| line.contains("the key was used before for another payload")).count();
    let counted: usize = lines.iter().map(|line| left_out(line)).sum();
    assert_eq!(written + counted, 20_000, "{written} written, {counted} counted");
    assert!(written <= 10 * (seconds + 1), "{written} lines in {seconds} s");
    assert!(lines.len() <= written + seconds + 3, "{lines:#?}");
}

/// One line each at DEBUG with consumer and key, and at INFO one line for all of them.
#[tokio::test]
async fn skipped_duplicates_are_a_line_each_at_debug_and_one_line_at_info() {
    for (level, each) in [(tracing::Level::DEBUG, 500), (tracing::Level::INFO, 0)] {
        let (captured, _guard) = Captured::log(level);
        let fixture = Fixture::new();
        (0..501).for_each(|_| drop(fixture.publish("order-1", "fine")));
        let summary = drain(&fixture, fixture.worker()).await;
        assert_eq!(summary.duplicates, 500);
        let lines = captured.lines();
        let skips = lines.iter().filter(|line| line.contains("[ledger] Skipping duplicate: order-1")).count();
        assert_eq!(skips, each, "at {level}");
        let told: Vec<_> = lines.iter().filter(|line| line.contains("[ledger] Skipped ")).collect();
        // One when it was noticed, and one at the stop for those that came after.
        assert!((1..=2).contains(&told.len()), "{told:#?}");
        assert!(told.last().unwrap().contains("500 in all"), "{told:#?}");
    }
}

const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

fn attribute(span: &SpanData, name: &str) -> Option<String> {
    span.attributes.iter().find(|attribute| attribute.key.as_str() == name).map(|found| found.value.to_string())
}

/// An application that exports its spans sees each message's process span, linked to the span of its producer; with no
/// trace, or one that is not valid, there is no link.
#[tokio::test]
async fn a_process_span_is_linked_to_the_producers() {
    let exporter = InMemorySpanExporter::default();
    let provider = SdkTracerProvider::builder().with_simple_exporter(exporter.clone()).build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("idem"));
    let _guard = set_default(tracing_subscriber::registry().with(layer));
    let link = |span: &tracing::Span, sender: &telemetry::TraceContext| {
        span.add_link(SpanContext::new(
            TraceId::from(sender.trace_id),
            SpanId::from(sender.span_id),
            TraceFlags::new(sender.flags),
            true,
            TraceState::NONE,
        ));
    };
    assert!(telemetry::trace_with(telemetry::Tracing { continues: link, links: link, context: |_| None }));
    let fixture = Fixture::new();
    fixture.queue.publish(message("linked", "fine").with_id("m-1").with_header("traceparent", TRACE)).unwrap();
    fixture.queue.publish(message("invalid", "fine").with_header("traceparent", "00-0-0-00")).unwrap();
    fixture.publish("failed", "permanent");
    drain(&fixture, fixture.worker()).await;
    let spans = exporter.get_finished_spans().unwrap();
    let of = |key: &str| {
        let found = spans.iter().find(|span| attribute(span, "idem.key").as_deref() == Some(key));
        found.unwrap_or_else(|| panic!("no span of {key} in {spans:#?}"))
    };
    let linked = of("linked");
    assert_eq!((linked.name.as_ref(), &linked.span_kind), ("process memory/orders", &SpanKind::Consumer));
    assert_eq!(linked.links.len(), 1);
    let producer = &linked.links[0].span_context;
    assert_eq!(producer.trace_id().to_string(), "4bf92f3577b34da6a3ce929d0e0e4736");
    assert_eq!((producer.span_id().to_string().as_str(), producer.is_sampled()), ("00f067aa0ba902b7", true));
    for (name, value) in [
        ("messaging.operation.name", "process"),
        ("messaging.operation.type", "process"),
        ("messaging.destination.name", "memory/orders"),
        ("messaging.message.id", "m-1"),
        ("idem.consumer", "ledger"),
        ("idem.producer.trace_id", "4bf92f3577b34da6a3ce929d0e0e4736"),
        ("idem.producer.span_id", "00f067aa0ba902b7"),
    ] {
        assert_eq!(attribute(linked, name).as_deref(), Some(value), "{name}");
    }
    assert!(of("invalid").links.is_empty());
    assert_eq!(attribute(of("failed"), "error.type").as_deref(), Some("handler"));
    for name in ["receive memory/orders", "settle memory/orders", "unit"] {
        assert!(spans.iter().any(|span| span.name == name), "no span {name}");
    }
}
