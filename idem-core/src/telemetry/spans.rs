//! The spans: `receive`, `unit` with a `process` for each message that its handler runs for, `settle`, and `send` for events and dead
//! letters; around the unit of a request over HTTP, `request`.
//!
//! `otel.name`, `otel.kind` and `otel.status_code` are for tracing-opentelemetry.

use std::sync::OnceLock;

use tracing::{Span, debug_span, field};

use crate::{
    dead_letter::DeadLetter,
    message::Message,
    names::{ConsumerName, IdempotencyKey},
    telemetry::{SPANS, trace_context::TraceContext},
};

/// How spans become part of the traces of other processes, by the exporter of a program: with idem-service its feature `otel`. It
/// is called only for spans that a subscriber wants.
#[derive(Debug, Clone, Copy)]
pub struct Tracing {
    /// Continues the trace of the sender of one message or request: the span becomes a child of the sender's.
    pub continues: fn(&Span, &TraceContext),
    /// Links the span of several messages to the sender of one of them.
    pub links: fn(&Span, &TraceContext),
    /// The context of a span, under which what it sends goes on.
    pub context: fn(&Span) -> Option<TraceContext>,
}

static TRACING: OnceLock<Tracing> = OnceLock::new();

/// Says how spans become part of traces: once in a process, by a program that exports its spans. With tracing-opentelemetry:
///
/// ```text
/// idem_core::telemetry::trace_with(Tracing {
///     continues: |span, sender| drop(span.set_parent(Context::new().with_remote_span_context(remote(sender)))),
///     links: |span, sender| span.add_link(remote(sender)),
///     context: |span| local(span.context().span().span_context()),
/// });
/// ```
///
/// Answers whether this was the first call; a later one changes nothing.
pub fn trace_with(tracing: Tracing) -> bool {
    TRACING.set(tracing).is_ok()
}

/// The context of the span that runs now, under which an event goes out; `None` where no spans are exported.
pub(crate) fn current() -> Option<TraceContext> {
    TRACING.get().and_then(|tracing| (tracing.context)(&Span::current()))
}

/// Where messages come from, in the terms of the conventions.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Destination {
    pub(super) system: Option<String>,
    pub(super) name: String,
    pub(super) group: Option<String>,
    pub(super) address: Option<String>,
    pub(super) port: Option<u16>,
    client_id: Option<String>,
}

impl Destination {
    /// Reads it from the text that a source is [attached](crate::source::Attached::bound_to) to:
    /// `kafka:cluster/topic/group`, `rabbitmq:vhost/queue`, `sqs:arn`. Of another source the whole text is the name.
    pub(crate) fn of(bound_to: &str) -> Self {
        let (scheme, rest) = bound_to.split_once(':').unwrap_or_default();
        let last = |separator| rest.rsplit(separator).next().unwrap_or(rest).to_owned();
        let mut kafka = rest.splitn(3, '/').skip(1).map(str::to_owned);
        let (system, name, group) = match scheme {
            "kafka" => (Some("kafka"), kafka.next().unwrap_or_default(), kafka.next()),
            "rabbitmq" => (Some("rabbitmq"), last('/'), None),
            "sqs" => (Some("aws_sqs"), last(':'), None),
            _ => (None, bound_to.to_owned(), None),
        };
        Self { system: system.map(str::to_owned), name, group, ..Self::default() }
    }

    /// The same at this server, `host:port` or a host alone, whose client has this name there.
    pub(crate) fn at(mut self, server: Option<&str>, client_id: Option<&str>) -> Self {
        let (host, port) = match server.and_then(|server| server.rsplit_once(':')) {
            // Of an address of version 6 without brackets the last part is none.
            Some((host, port)) if !host.contains(':') || host.ends_with(']') => (Some(host), port.parse().ok()),
            Some(_) | None => (server, None),
        };
        self.address = host.map(|host| host.trim_matches(['[', ']']).to_owned());
        self.port = port;
        self.client_id = client_id.map(str::to_owned);
        self
    }

    /// Partition and offset of a message of Kafka's, from its origin `topic/partition/offset@time`.
    pub(super) fn position<'o>(&self, origin: &'o str) -> Option<(&'o str, i64)> {
        let rest = origin.strip_prefix(&*self.name)?.strip_prefix('/')?;
        let (partition, offset) = rest.split('@').next()?.split_once('/')?;
        (self.system.as_deref() == Some("kafka")).then_some((partition, offset.parse().ok()?))
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
            server.address = to.and_then(|to| to.address.as_deref()), server.port = to.and_then(|to| to.port),
            messaging.client.id = to.and_then(|to| to.client_id.as_deref()),
            messaging.destination.partition.id = field::Empty, messaging.kafka.offset = field::Empty,
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
        let origin = message.origin();
        span.record("idem.origin", field::display(origin));
        if let Some((partition, offset)) = from.and_then(|from| from.position(origin.as_str())) {
            span.record("messaging.destination.partition.id", partition);
            span.record("messaging.kafka.offset", offset);
        }
        message.shown_id().map(|id| span.record("messaging.message.id", id));
        message.key().map(|key| span.record("idem.key", field::display(key)));
    } else {
        span.record("messaging.batch.message_count", messages.len());
    }
    for message in messages {
        let Some(producer) = TraceContext::of(message) else { continue };
        if messages.len() == 1 {
            continue_from(&span, &producer);
        } else if let Some(tracing) = TRACING.get() {
            (tracing.links)(&span, &producer);
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
        continue_from(&span, &client);
    }
    span
}

/// Sending an event with this key to its destination: a child of the span that `handled` the event's message.
pub(crate) fn send_event(
    system: Option<&str>,
    destination: &str,
    consumer: &ConsumerName,
    key: &IdempotencyKey,
    handled: Option<TraceContext>,
) -> Span {
    let span = send(system, Some(destination), consumer);
    if span.is_disabled() {
        return span;
    }
    span.record("messaging.message.id", field::display(key));
    if let Some(handled) = handled {
        continue_from(&span, &handled);
    }
    span
}

/// Sending a dead letter to its topic or queue, whose name only the publisher knows: a child of the sender's span.
pub(crate) fn send_dead_letter(from: Option<&Destination>, letter: &DeadLetter, consumer: &ConsumerName) -> Span {
    let span = send(from.and_then(|from| from.system.as_deref()), None, consumer);
    if span.is_disabled() {
        return span;
    }
    span.record("idem.origin", field::display(letter.message.origin()));
    letter.message.shown_id().map(|id| span.record("messaging.message.id", id));
    if let Some(sender) = TraceContext::of(&letter.message) {
        continue_from(&span, &sender);
    }
    span
}

/// No child of the span that runs now: a relay sends the events of many messages.
fn send(system: Option<&str>, destination: Option<&str>, consumer: &ConsumerName) -> Span {
    let span = debug_span!(
        target: SPANS, parent: None, "send",
        otel.name = field::Empty, otel.kind = "producer", otel.status_code = field::Empty, error.type = field::Empty,
        messaging.operation.name = "send", messaging.operation.type = "send",
        messaging.system = system, messaging.destination.name = destination,
        messaging.message.id = field::Empty, idem.consumer = %consumer, idem.origin = field::Empty,
        idem.producer.trace_id = field::Empty, idem.producer.span_id = field::Empty,
    );
    if !span.is_disabled() {
        span.record("otel.name", format!("send {}", destination.unwrap_or("dead letters")));
    }
    span
}

/// Notes that what a span stands for failed, in one word.
pub(crate) fn failed(span: &Span, why: &str) {
    span.record("error.type", why);
    span.record("otel.status_code", "ERROR");
}

fn continue_from(span: &Span, sender: &TraceContext) {
    span.record("idem.producer.trace_id", format!("{:032x}", sender.trace_id));
    span.record("idem.producer.span_id", format!("{:016x}", sender.span_id));
    if let Some(tracing) = TRACING.get() {
        (tracing.continues)(span, sender);
    }
}
