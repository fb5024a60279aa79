//! The spans: `receive`, `unit` with a `process` for each message that its handler runs for, and `settle`; around the unit of a
//! request over HTTP, `request`.
//!
//! `otel.name`, `otel.kind` and `otel.status_code` are for tracing-opentelemetry.

use std::sync::OnceLock;

use tracing::{Span, debug_span, field};

use crate::{
    message::Message,
    names::ConsumerName,
    telemetry::{SPANS, trace_context::TraceContext},
};

/// Links a span to the trace of a producer.
pub type Link = fn(&Span, &TraceContext);

static LINK: OnceLock<Link> = OnceLock::new();

/// Says how `process` spans are linked to the spans of their messages' producers: once in a process, by an application
/// that exports its spans. It is called only for spans that a subscriber wants. With tracing-opentelemetry:
///
/// ```text
/// idem_core::telemetry::link_spans_with(|span, producer| {
///     span.add_link(SpanContext::new(
///         TraceId::from(producer.trace_id),
///         SpanId::from(producer.span_id),
///         TraceFlags::new(producer.flags),
///         true,
///         TraceState::NONE,
///     ));
/// });
/// ```
///
/// Answers whether this was the first call; a later one changes nothing.
pub fn link_spans_with(link: Link) -> bool {
    LINK.set(link).is_ok()
}

/// Where messages come from, in the terms of the conventions.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Destination {
    system: Option<String>,
    name: String,
    group: Option<String>,
}

impl Destination {
    /// Reads it from the text that a source is [attached](crate::source::Attached::bound_to) to:
    /// `kafka:cluster/topic/group`, `rabbitmq:vhost/queue`, `sqs:arn`. Of another source the whole text is the name.
    pub(crate) fn of(bound_to: &str) -> Self {
        let (scheme, rest) = bound_to.split_once(':').unwrap_or_default();
        let last = |separator| rest.rsplit(separator).next().unwrap_or(rest).to_owned();
        let system = |name: &str| Some(name.to_owned());
        match scheme {
            "kafka" => {
                let mut parts = rest.splitn(3, '/').skip(1).map(str::to_owned);
                Self { system: system("kafka"), name: parts.next().unwrap_or_default(), group: parts.next() }
            }
            "rabbitmq" => Self { system: system("rabbitmq"), name: last('/'), group: None },
            "sqs" => Self { system: system("aws_sqs"), name: last(':'), group: None },
            _ => Self { system: None, name: bound_to.to_owned(), group: None },
        }
    }
}

/// A span of one of the conventions' operations.
macro_rules! operation {
    ($name:literal, $kind:literal, $type:literal, $consumer:expr, $to:expr) => {{
        let (consumer, to): (&ConsumerName, Option<&Destination>) = ($consumer, $to);
        let span = debug_span!(
            target: SPANS, $name,
            otel.name = field::Empty, otel.kind = $kind, otel.status_code = field::Empty, error.type = field::Empty,
            messaging.operation.name = $name, messaging.operation.type = $type,
            messaging.system = to.and_then(|to| to.system.as_deref()),
            messaging.destination.name = to.map(|to| to.name.as_str()),
            messaging.consumer.group.name = to.and_then(|to| to.group.as_deref()),
            messaging.batch.message_count = field::Empty, messaging.message.id = field::Empty,
            idem.consumer = %consumer, idem.key = field::Empty, idem.origin = field::Empty,
            idem.producer.trace_id = field::Empty, idem.producer.span_id = field::Empty,
        );
        if let Some(to) = to && !span.is_disabled() {
            span.record("otel.name", format!(concat!($name, " {}"), to.name));
        }
        span
    }};
}

/// Asking the broker for messages.
pub(crate) fn receive(consumer: &ConsumerName, from: Option<&Destination>) -> Span {
    operation!("receive", "client", "receive", consumer, from)
}

/// Settling this many messages with the broker.
pub(crate) fn settle(consumer: &ConsumerName, to: Option<&Destination>, messages: usize) -> Span {
    let span = operation!("settle", "client", "settle", consumer, to);
    span.record("messaging.batch.message_count", messages);
    span
}

/// A unit of work, which has no name in the conventions: claim, handlers and commit of so many messages.
pub(crate) fn unit(consumer: &ConsumerName, messages: usize) -> Span {
    debug_span!(
        target: SPANS, "unit",
        messaging.batch.message_count = messages, idem.consumer = %consumer, idem.unit.end = field::Empty
    )
}

/// One call of the handler, for one message or, by a set-based handler, for several.
pub(crate) fn process(consumer: &ConsumerName, from: Option<&Destination>, messages: &[&Message]) -> Span {
    let span = operation!("process", "consumer", "process", consumer, from);
    if span.is_disabled() {
        return span;
    }
    if let [message] = messages {
        span.record("idem.origin", field::display(message.origin()));
        message.shown_id().map(|id| span.record("messaging.message.id", id));
        message.key().map(|key| span.record("idem.key", field::display(key)));
    } else {
        span.record("messaging.batch.message_count", messages.len());
    }
    for message in messages {
        let Some(producer) = TraceContext::of(message) else { continue };
        if messages.len() == 1 {
            link_to(&span, &producer);
        } else if let Some(link) = LINK.get() {
            link(&span, &producer);
        }
    }
    span
}

/// A request over HTTP, by OpenTelemetry's HTTP conventions v1.44.0; its unit is within it. `route` is method and path as the router
/// knows them, or the method alone. The fields `idem.key`, `idem.outcome`, `http.response.status_code`, `error.type` and
/// `otel.status_code` are for the caller to record. `traceparent` is the client's.
pub fn request(consumer: &ConsumerName, method: &str, route: &str, traceparent: Option<&str>) -> Span {
    let span = debug_span!(
        target: SPANS, "request",
        otel.name = field::Empty, otel.kind = "server", otel.status_code = field::Empty, error.type = field::Empty,
        http.request.method = method, http.route = field::Empty, http.response.status_code = field::Empty,
        idem.consumer = %consumer, idem.key = field::Empty, idem.outcome = field::Empty,
        idem.producer.trace_id = field::Empty, idem.producer.span_id = field::Empty,
    );
    if span.is_disabled() {
        return span;
    }
    span.record("otel.name", route);
    if let Some((_, path)) = route.split_once(' ') {
        span.record("http.route", path);
    }
    if let Some(client) = traceparent.and_then(TraceContext::parse) {
        link_to(&span, &client);
    }
    span
}

fn link_to(span: &Span, producer: &TraceContext) {
    span.record("idem.producer.trace_id", format!("{:032x}", producer.trace_id));
    span.record("idem.producer.span_id", format!("{:016x}", producer.span_id));
    if let Some(link) = LINK.get() {
        link(span, producer);
    }
}
