//! The guide documents the names as they are.

use super::*;
use crate::{message::Message, telemetry::spans::Destination};

const GUIDE: &str = include_str!("../../../docs/internals/metrics.md");

fn is(kind: Kind) -> &'static str {
    match kind {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
        Kind::Histogram(_) => "histogram",
    }
}

/// As the exporter of idem-service writes it.
fn on_prometheus(metric: &Metric) -> String {
    let unit = if metric.unit == metrics::Unit::Seconds { "_seconds" } else { "" };
    let total = if metric.kind == Kind::Counter { "_total" } else { "" };
    format!("{}{unit}{total}", metric.name.replace('.', "_"))
}

#[test]
fn the_guide_lists_every_metric_and_no_other() {
    let rows: Vec<Vec<&str>> = GUIDE
        .lines()
        .filter(|line| {
            line.starts_with("| `idem.")
                || line.starts_with("| `consumer.")
                || line.starts_with("| `messaging.client.")
                || line.starts_with("| `messaging.process.")
        })
        .filter(|line| line.matches('|').count() == 7)
        .map(|line| line.split('|').map(str::trim).skip(1).collect())
        .collect();
    let listed: Vec<(String, String, &str)> =
        rows.iter().map(|row| (row[0].replace('`', ""), row[1].replace('`', ""), row[2])).collect();
    let known: Vec<(String, String, &str)> =
        METRICS.iter().map(|metric| (metric.name.to_owned(), on_prometheus(metric), is(metric.kind))).collect();
    for metric in &known {
        assert!(listed.contains(metric), "docs/internals/metrics.md has no row {metric:?}");
    }
    for metric in &listed {
        assert!(known.contains(metric), "docs/internals/metrics.md has a row {metric:?}, and there is no such metric");
    }
    assert_eq!(rows.len(), METRICS.len(), "each metric stands there once");
}

#[test]
fn a_traceparent_is_read_as_the_recommendation_says_or_not_at_all() {
    let valid = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let context = TraceContext::parse(valid).expect("it is valid");
    assert_eq!(context.trace_id, 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736);
    assert_eq!((context.span_id, context.flags), (0x00f0_67aa_0ba9_02b7, 1));
    assert_eq!(context.to_string(), valid);
    let newer = "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-what-may-come";
    assert_eq!(TraceContext::parse(newer), Some(context));
    for wrong in [
        "",
        "00",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
        "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
        "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e47-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-1",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-+0f067aa0ba902b7-01",
        "0-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    ] {
        assert_eq!(TraceContext::parse(wrong), None, "{wrong}");
    }
    let once = Message::new("x").with_header("traceparent", valid);
    assert_eq!(TraceContext::of(&once), Some(context));
    assert_eq!(TraceContext::of(&once.clone().with_header("traceparent", valid)), None, "it is there twice");
}

#[test]
fn a_destination_is_read_from_what_each_adapter_is_bound_to() {
    for (bound_to, system, name, group) in [
        ("kafka:M-kd9/orders/ledger/blue", Some("kafka"), "orders", Some("ledger/blue")),
        ("rabbitmq:///orders", Some("rabbitmq"), "orders", None),
        ("sqs:arn:aws:sqs:eu-central-1:123456789012:orders", Some("aws_sqs"), "orders", None),
        ("queue", None, "queue", None),
    ] {
        let read = Destination::of(bound_to);
        assert_eq!((read.system.as_deref(), &*read.name, read.group.as_deref()), (system, name, group));
    }
}

#[test]
fn a_servers_address_and_a_position_are_read_as_the_adapters_write_them() {
    for (server, address, port) in [
        ("kafka-1:9092", "kafka-1", Some(9092)),
        ("[::1]:5672", "::1", Some(5672)),
        ("::1", "::1", None),
        ("rabbitmq", "rabbitmq", None),
    ] {
        let read = Destination::of("queue").at(Some(server), None);
        assert_eq!((read.address.as_deref(), read.port), (Some(address), port), "{server}");
    }
    let kafka = Destination::of("kafka:M-kd9/orders/ledger");
    assert_eq!(kafka.position("orders/3/17@1700000000000"), Some(("3", 17)));
    assert_eq!(kafka.position("orders/3/17"), Some(("3", 17)));
    assert_eq!(kafka.position("other/3/17"), None);
    assert_eq!(Destination::of("rabbitmq:///orders").position("orders/3/17"), None);
}
