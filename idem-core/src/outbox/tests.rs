use super::*;
use crate::{
    message::Identity,
    names::{ConsumerName, IdempotencyKey, ScopeId, Tenant},
    outbox::collect::{CAUSED_BY, Collector, PublishRules},
    results::result::ResultBody,
    telemetry::trace_context::TraceContext,
};

fn message(key: Option<&str>) -> Message {
    Message::new("{}").with_identity(Identity {
        tenant: Tenant::default(),
        derives_as: ConsumerName::new("ledger").expect("a name"),
        key: key.map(|key| IdempotencyKey::new(key).expect("a key")),
    })
}

fn rules() -> PublishRules {
    let destinations = vec![Destination::new("a"), Destination::new("b").payload_bytes_max(3)];
    PublishRules { destinations, events_max: 3, events_bytes_max: 10, result_bytes_max: Some(4) }
}

fn published(rules: &PublishRules, message: &Message, events: Vec<Event>) -> Result<Vec<String>, PublishError> {
    let collector = Collector::of_one(rules, message);
    for event in events {
        // A handler may ignore the answer.
        let _ = collector.publish(message, event);
    }
    let handed_in = collector.finish()?.pop().unwrap_or_default();
    Ok(handed_in.events.into_iter().map(|event| event.key.as_str().to_owned()).collect())
}

/// O17: receivers know these ids, so the derivation may never change. Computed with Python's `hashlib` and `uuid`.
#[test]
fn o17_ids_match_their_golden_vectors() {
    let labelled = || Event::to("a").label("charged");
    let mut rules = rules();
    for form in IdForm::ALL {
        rules.destinations[0].id_form = form;
        let ids =
            published(&rules, &message(Some("order-1")), vec![labelled(), Event::to("a"), Event::to("a").same_key()]);
        let wanted = match form {
            IdForm::V8 => ["69a6d414-0469-81e6-beb3-ef5e4c1a38ab", "810bf505-f63b-87bb-9d3c-f469e22d4780"],
            IdForm::V5 => ["2eb96c21-63fb-5542-98f5-030f5fe9d409", "39a80690-7fff-5183-94e8-f41b98d82162"],
            IdForm::Hex32 => ["69a6d414046981e6beb3ef5e4c1a38ab", "810bf505f63b87bb9d3cf469e22d4780"],
        };
        assert_eq!(ids.expect("events"), [wanted[0], wanted[1], "order-1"]);
    }
}

/// O17: a message that runs again, in any process and any number of times, gives its events the ids that they had before:
/// receivers know them by these ids alone.
fn ids_of_two_runs() -> [Vec<String>; 2] {
    [(); 2].map(|()| {
        let events = vec![Event::to("a"), Event::to("b").label("x")];
        published(&rules(), &message(Some("order-1")), events).expect("events")
    })
}

#[test]
fn o17_a_second_run_makes_the_same_events() {
    let [first, second] = ids_of_two_runs();
    assert_eq!(first, second);
}

/// The check above would find random ids.
#[cfg(idem_bugs)]
#[test]
fn o17_ids_that_are_drawn_are_found() {
    crate::bugs::plant(Some(crate::bugs::Bug::RandomId));
    let [first, second] = ids_of_two_runs();
    crate::bugs::plant(None);
    assert!(first != second && first.len() == second.len());
}

/// O15: the id of an event differs for every destination and label.
#[test]
fn o15_two_destinations_and_two_labels_are_four_events() {
    let mut rules = rules();
    rules.events_max = 4;
    let events = ["a", "b"].iter().flat_map(|to| ["x", "y"].map(|label| Event::to(to).label(label))).collect();
    let ids = published(&rules, &message(Some("order-1")), events).expect("events");
    assert_eq!(ids.iter().collect::<std::collections::BTreeSet<_>>().len(), 4);
    let same = vec![Event::to("a").same_key(), Event::to("b").same_key()];
    assert_eq!(published(&rules, &message(Some("order-1")), same).expect("events"), ["order-1", "order-1"]);
}

/// O108: receivers know an event by its key alone, so that of two tenants with one key needs the tenant in it. No tenant's name runs into a
/// key, and without a tenant the key is the message's own.
#[test]
fn o108_two_tenants_with_one_key_are_two_events() {
    let id = |tenant: &str, key: &str| {
        let identity = Identity {
            tenant: Tenant::new(tenant).expect("a tenant"),
            derives_as: ConsumerName::new("ledger").expect("a name"),
            key: Some(IdempotencyKey::new(key).expect("a key")),
        };
        let ids = published(&rules(), &Message::new("{}").with_identity(identity), vec![Event::to("a").same_key()]);
        ids.expect("events").remove(0)
    };
    assert_eq!(
        (id("acme", "order-1"), id("umbrella", "order-1")),
        ("4:acme order-1".into(), "8:umbrella order-1".into())
    );
    assert_ne!(id("a", "b c"), id("a b", "c"));
    // The key itself, and not as it is shown.
    assert_eq!(id("acme", "a\u{200b}"), "4:acme a\u{200b}");
    let (long, other) = (id("acme", &"x".repeat(255)), id("umbrella", &"x".repeat(255)));
    assert!(long.starts_with("sha256:") && long.len() == 71 && long != other, "{long} {other}");
}

/// O18: a refused event fails its message, even if the handler ignores the refusal.
#[test]
fn o18_what_is_refused_fails_the_message() {
    let refused = |events: Vec<Event>| published(&rules(), &message(Some("order-1")), events).expect_err("refused");
    let to = || Event::to("a");
    assert!(matches!(refused(vec![Event::to("c"), to()]), PublishError::UnknownDestination { .. }));
    assert!(matches!(refused(vec![to(), to()]), PublishError::Repeated { .. }));
    assert!(matches!(refused(vec![to().same_key(), to().label("x").same_key()]), PublishError::Repeated { .. }));
    assert!(matches!(refused(vec![Event::to("b").body("four")]), PublishError::TooLarge { bytes: 4, max: 3, .. }));
    let many = (0..4).map(|n| to().label(&n.to_string())).collect();
    assert!(matches!(refused(many), PublishError::TooMany { what: "events", max: 3 }));
    for event in [
        to().body("eleven byte"),
        to().header("name", "a value"),
        to().ordering_key("customer-77"),
        to().body("five ").ordering_key("longer"),
    ] {
        assert!(matches!(refused(vec![event]), PublishError::TooMany { what: "bytes", max: 10 }));
    }
    for event in [
        to().label("idem:x"),
        to().label("a\nb"),
        to().event_type(""),
        to().content_type("text/plain\r\nx: y"),
        to().header("Idempotencykey", "x"),
        to().header("ce_id", "x"),
        to().header("with space", "x"),
        to().header("name", "a\nb"),
        to().header("name", &[0xff][..]),
    ] {
        assert!(matches!(refused(vec![event.clone()]), PublishError::Invalid { .. }), "{event:?}");
    }
    let unprotected = published(&rules(), &message(None), vec![to()]);
    assert_eq!(unprotected.expect_err("refused"), PublishError::Unprotected);
}

/// O102: what a plain outbox takes is bounded as the events of a message are; how large a payload may be says its destination.
#[test]
fn o102_an_event_of_a_plain_outbox_is_bounded() {
    let plain =
        |event| NewEvent::plain(ScopeId(1), DestinationId(1), IdempotencyKey::new("invoice-1").expect("a key"), event);
    let with = |bytes: usize| Event::to("a").body(vec![0; 2 << 20]).header("name", vec![b'x'; bytes]);
    plain(with((4 << 20) - 4)).map(drop).expect("as large as it may be");
    assert_eq!(
        plain(with((4 << 20) - 3)).map(drop).expect_err("too large"),
        PublishError::Invalid {
            what: "headers and ordering key",
            value: "of 4194305 bytes".to_owned(),
            rule: "at most 4 MiB: put what is large into the payload"
        }
    );
    assert!(plain(with((4 << 20) - 4).ordering_key("x")).is_err());
}

#[test]
fn a_message_of_another_call_is_refused_and_a_clone_of_its_own_is_not() {
    let (rules, own, other) = (rules(), message(Some("order-1")), message(Some("order-2")));
    let both = [&own];
    let collector = Collector::of_many(&rules, &both);
    collector.publish(&own.clone(), Event::to("a")).expect("its own");
    assert_eq!(collector.publish(&other, Event::to("a")), Err(PublishError::OtherMessage));
    assert_eq!(collector.finish().err(), Some(PublishError::OtherMessage));
}

#[test]
fn a_result_is_bounded_and_the_last_one_counts() {
    let (mut rules, own) = (rules(), message(Some("order-1")));
    let collector = Collector::of_one(&rules, &own);
    collector.set_result(&own, ResultBody::new("one")).expect("a result");
    collector.set_result(&own, ResultBody::new("two")).expect("a result");
    let handed_in = collector.finish().expect("nothing was refused").pop().expect("one message");
    assert_eq!(handed_in.result, Some(ResultBody::new("two")));
    let collector = Collector::of_one(&rules, &own);
    let too_large = collector.set_result(&own, ResultBody::new("fiver"));
    assert_eq!(too_large, Err(PublishError::ResultTooLarge { bytes: 5, max: 4 }));
    let referring = |bytes| ResultBody::default().with_reference(&"x".repeat(bytes));
    assert_eq!(Collector::of_one(&rules, &own).set_result(&own, referring(64)), Ok(()));
    for (body, field) in [
        (ResultBody::default().with_status(32_768), "the status of the result"),
        (ResultBody::default().with_content_type("a\0"), "the content type of the result"),
        (ResultBody::default().with_reference("/a\0"), "the reference of the result"),
    ] {
        let refused = Collector::of_one(&rules, &own).set_result(&own, body);
        assert!(matches!(refused, Err(PublishError::Invalid { what, .. }) if what == field), "{field}: {refused:?}");
    }
    assert_eq!(Collector::of_one(&rules, &own).set_result(&own, ResultBody::default().with_status(32_767)), Ok(()));
    let too_long = Collector::of_one(&rules, &own).set_result(&own, referring(65));
    assert_eq!(too_long, Err(PublishError::ReferenceTooLong { bytes: 65 }));
    rules.result_bytes_max = None;
    assert_eq!(Collector::of_one(&rules, &own).set_result(&own, ResultBody::default()), Err(PublishError::NoResults));
}

/// O82: a longer ordering key could not be noted as failed on every database.
#[test]
fn o82_an_ordering_key_is_bounded() {
    let of = |bytes| vec![Event::to("a").ordering_key(vec![0xff; bytes])];
    let refused = published(&rules(), &message(Some("order-1")), of(ORDERING_KEY_BYTES_MAX + 1)).expect_err("refused");
    let told = "ordering key \"of 1025 bytes\" is refused: at most 1,024 bytes: use a digest of a longer one";
    assert_eq!(refused.to_string(), told);
    let rules = PublishRules { events_bytes_max: ORDERING_KEY_BYTES_MAX, ..rules() };
    for bytes in [0, ORDERING_KEY_BYTES_MAX] {
        assert_eq!(published(&rules, &message(Some("order-1")), of(bytes)).map(|ids| ids.len()), Ok(1));
    }
}

/// Every hop passes the first cause on, and another trace does not make a copy a different event.
#[test]
fn causes_travel_and_the_trace_is_no_content() {
    let row = |message: &Message| {
        let (rules, own) = (rules(), message.clone());
        let collector = Collector::of_one(&rules, &own);
        collector.publish(&own, Event::to("a").body("{}")).expect("an event");
        let event = collector.finish().expect("an event").remove(0).events.remove(0);
        NewEvent::of(ScopeId(1), &[DestinationId(1)], &own, event).expect("a destination")
    };
    let first = row(&message(Some("order-1")));
    assert_eq!((first.headers.text(CAUSE), first.headers.text(CAUSED_BY)), (Some("order-1"), Some("order-1")));
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let second = row(&message(Some("order-1")).with_header("traceparent", trace));
    assert_eq!((second.headers.text("traceparent"), second.hash), (Some(trace), first.hash));
    // What a stranger wrote must not keep the event from its destination.
    let (torn, long, state) = ("a\nb", "a".repeat(600), "vendor=1");
    for (trace, state, passed) in [
        (trace, state, [Some(trace), Some(state)]),
        (trace, torn, [Some(trace), None]),
        (trace, &long, [Some(trace), None]),
        (torn, state, [None, None]),
    ] {
        let sent = message(Some("order-1")).with_header("traceparent", trace.to_owned());
        let third = row(&sent.with_header("tracestate", state.to_owned()).with_header(CAUSE, torn));
        assert_eq!(["traceparent", "tracestate"].map(|name| third.headers.text(name)), passed);
        assert_eq!(third.headers.text(CAUSE), Some("order-1"));
    }
    let hop = row(&message(Some("event-1")).with_header(CAUSE, "order-1"));
    assert_eq!((hop.headers.text(CAUSE), hop.headers.text(CAUSED_BY)), (Some("order-1"), Some("event-1")));
    // Receivers know the sender's key, and ids follow from the one under which it is handled.
    let joined = row(&message(Some("4:acme 7:POST /t order-1")));
    let sent = row(&message(Some("4:acme 7:POST /t order-1")).with_senders_key("order-1"));
    assert_eq!((sent.headers.text(CAUSE), sent.headers.text(CAUSED_BY)), (Some("order-1"), Some("order-1")));
    assert_eq!(sent.key, joined.key);
}

/// J120: an event goes on from the span that published it. What other systems added to the trace goes with it, and to no other trace.
#[test]
fn j120_an_event_carries_the_span_that_published_it() {
    let sender = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let of = |trace: &str| TraceContext::parse(trace).expect("a context");
    let own = "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01";
    let other = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let message = message(Some("order-1")).with_header("traceparent", sender).with_header("tracestate", "vendor=1");
    let carried = |event: &Event, trace: Option<&str>| {
        let headers = collect::headers(event, &message, trace.map(of));
        ["traceparent", "tracestate"].map(|name| headers.text(name).map(str::to_owned))
    };
    let plain = Event::to("a");
    for (trace, carries) in [
        (None, [Some(sender), Some("vendor=1")]),
        (Some(own), [Some(own), Some("vendor=1")]),
        (Some(other), [Some(other), None]),
    ] {
        assert_eq!(carried(&plain, trace), carries.map(|value| value.map(str::to_owned)), "{trace:?}");
    }
    let set = Event::to("a").header("traceparent", other);
    assert_eq!(carried(&set, Some(own)), [Some(other.to_owned()), None], "the handler's own");
}

#[test]
fn an_event_is_read_back_from_its_name() {
    let name = EventName { number: EventNumber(4711), key: IdempotencyKey::new("payments/a:b").expect("a key") };
    assert_eq!(name.to_string(), "4711:payments/a:b");
    assert_eq!(name.to_string().parse::<EventName>().ok(), Some(name));
    for wrong in ["", "4711", "4711:", ":key", "key:4711", "4711 :key"] {
        assert!(wrong.parse::<EventName>().is_err(), "{wrong}");
    }
}
