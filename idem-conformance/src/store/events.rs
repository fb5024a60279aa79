//! The events that handlers hand in beside their writes.

use std::{
    marker::PhantomData,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use idem_core::{
    Concurrency, Decision, DedupConsumer, Effects, ErrorClass, Event, Handler, HandlerError, Message, ResultBody,
    RunOnce, Store, Tenant, Tx, Worker,
    cleanup::Expiring,
    consumer::DedupConsumerBuilder,
    dead_letter::Reason,
    handler::{BatchAnswer, BatchHandler},
    once::{Begun, Request, RunOnceError},
    outbox::{
        AppendError, Appended, CAUSE, CAUSED_BY, DestinationId, EVENT_PAYLOAD_BYTES_MAX, NewEvent, Outbox,
        OutgoingEvent,
    },
    results::NewResult,
    store::{CommitError, Registered, UnitOfWork},
};

use super::{
    fixture::{Fixture, Kind, Seen, Step, claim, decide, effect, key_from, msg, options, process, write},
    gate::within,
    records::clean,
    subject::{Arrangement, HandlerAction, StoreUnderTest},
};
use idem_testkit::memory::{Broker, QueueOptions};

type Announced = dyn Fn(&Message) -> Result<Vec<Event>, HandlerError> + Send + Sync;

/// A handler that writes its effect and publishes what a function says.
pub(super) struct Announcer<T>(Arc<Announced>, PhantomData<fn() -> T>);

impl<T: StoreUnderTest> Announcer<T> {
    async fn run(&self, message: &Message, tx: &mut Tx<'_, Seen<T>>) -> Result<(), HandlerError> {
        T::write(&mut Tx::new(tx.connection()), &effect(message, "")).await?;
        for event in (self.0)(message)? {
            tx.publish(message, event)?;
        }
        tx.set_result(message, ResultBody::new(message.payload().cloned().unwrap_or_default()))?;
        Ok(())
    }
}

impl<T: StoreUnderTest> Handler<Seen<T>> for Announcer<T> {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, Seen<T>>) -> Result<(), HandlerError> {
        self.run(message, tx).await
    }
}

impl<T: StoreUnderTest> BatchHandler<Seen<T>> for Announcer<T> {
    async fn handle_batch(&self, messages: &[&Message], tx: &mut Tx<'_, Seen<T>>) -> Result<BatchAnswer, HandlerError> {
        let mut answers = Vec::with_capacity(messages.len());
        for message in messages {
            answers.push(self.run(message, tx).await);
        }
        Ok(BatchAnswer::each(answers))
    }
}

pub(super) const DESTINATIONS: [&str; 2] = ["payments", "https://example.com/hook?of=\"a\"&é"];

pub(super) fn announcer<T: StoreUnderTest>(
    events: impl Fn(&Message) -> Result<Vec<Event>, HandlerError> + Send + Sync + 'static,
) -> Announcer<T> {
    Announcer(Arc::new(events), PhantomData)
}

pub(super) fn builder<T: StoreUnderTest>(fixture: &Fixture<'_, T>, name: &str) -> DedupConsumerBuilder<Seen<T>> {
    let builder = DedupConsumer::builder(Arc::clone(&fixture.store), name).effects(Effects::InTransaction);
    builder.publish_to(DESTINATIONS).keep_results(1_000)
}

/// Whether the store has an outbox and keeps results; the suite's cases ask for both at once.
pub(super) fn offers<T: StoreUnderTest>(fixture: &Fixture<'_, T>) -> bool {
    let capabilities = fixture.store.capabilities();
    assert_eq!(capabilities.outbox, fixture.store.outbox().is_some(), "what is said and what is there");
    capabilities.outbox && capabilities.results
}

/// The outbox, with the ids of the destinations.
pub(super) async fn outbox<T: StoreUnderTest>(fixture: &Fixture<'_, T>) -> (Arc<dyn Outbox>, Vec<DestinationId>) {
    let outbox = fixture.store.outbox().unwrap();
    let declared = within("declaring destinations", outbox.declare(&DESTINATIONS.map(Into::into))).await.unwrap();
    let ids: Vec<_> = declared.into_iter().map(|row| row.id).collect();
    assert_eq!(ids.len(), DESTINATIONS.len());
    (outbox, ids)
}

/// The events that may go now.
pub(super) async fn next(outbox: &dyn Outbox, destination: DestinationId) -> Vec<OutgoingEvent> {
    within("reading the outbox", outbox.next(destination, 1_000, u64::from(u32::MAX))).await.unwrap()
}

pub(super) fn bodies(events: &[OutgoingEvent]) -> Vec<String> {
    events.iter().map(|event| String::from_utf8_lossy(&event.payload).into_owned()).collect()
}

/// All that is in the outbox, by destination and in order of the numbers.
async fn everything<T: StoreUnderTest>(fixture: &Fixture<'_, T>) -> Vec<(usize, OutgoingEvent)> {
    let (outbox, ids) = outbox(fixture).await;
    let mut all = Vec::new();
    for (place, id) in ids.into_iter().enumerate() {
        all.extend(next(&*outbox, id).await.into_iter().map(|event| (place, event)));
    }
    all
}

/// Record, effect and events of a message are committed together, each event as it was published.
pub async fn append_is_atomic_with_the_record<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    if !offers(&fixture) {
        return;
    }
    let events = |message: &Message| {
        let body = message.payload().cloned().unwrap_or_default();
        let first = Event::to(DESTINATIONS[0]).event_type("Charged").ordering_key("acct-7").header("tenant", "é");
        let second = Event::to(DESTINATIONS[1]).label("x").content_type("text/plain");
        Ok(vec![first.body(body), second, Event::to(DESTINATIONS[1]).label("y").same_key().body(&b"\0\xff"[..])])
    };
    let consumer = builder(&fixture, "orders").handler(announcer::<T>(events)).build().unwrap();
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let messages = [msg("order-1", "1177").with_header("traceparent", trace), msg("order-2", "2")];
    assert_eq!(process(&consumer, messages.clone()).await, [Kind::Processed; 2]);
    fixture.assert_effects([("order-1", "1177"), ("order-2", "2")]).await;
    let all = everything(&fixture).await;
    assert_eq!(all.iter().map(|(place, _)| *place).collect::<Vec<_>>(), [0, 0, 1, 1, 1, 1]);
    let first = &all[0].1;
    assert_eq!((first.consumer.as_str(), &*first.tenant), ("orders", ""));
    assert_eq!((first.event_type.as_deref(), first.content_type.as_deref()), (Some("Charged"), None));
    assert_eq!(first.ordering_key.as_ref().map(|key| key.as_bytes().to_vec()), Some(b"acct-7".to_vec()));
    let headers = ["tenant", CAUSE, CAUSED_BY, "traceparent"].map(|name| first.headers.text(name));
    assert_eq!(headers, [Some("é"), Some("order-1"), Some("order-1"), Some(trace)]);
    assert_eq!((&first.payload[..], first.attempts, first.first_sent_ago), (&b"1177"[..], 0, None));
    let [x, y] = [&all[2].1, &all[3].1];
    assert_eq!(
        (x.content_type.as_deref(), &x.payload[..], x.ordering_key.is_none()),
        (Some("text/plain"), &[][..], true)
    );
    assert_eq!((y.key.as_str(), &y.payload[..]), ("order-1", &b"\0\xff"[..]));
    // A duplicate publishes nothing.
    assert_eq!(process(&consumer, messages).await, [Kind::Duplicate; 2]);
    assert_eq!(everything(&fixture).await.len(), 6);
    let units = if fixture.units_hold_one() { 2 } else { 1 };
    assert_eq!(fixture.spy.appended.get(), units, "one append a unit");
}

/// A handler that might publish and does not has the store write nothing but what it writes for any other.
pub async fn a_handler_that_publishes_nothing_appends_nothing<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    if !offers(&fixture) {
        return;
    }
    let builder = fixture.builder("orders", write).publish_to(DESTINATIONS).keep_results(1_000);
    let consumer = builder.build().unwrap();
    assert_eq!(process(&consumer, [msg("a", "1"), msg("b", "2")]).await, [Kind::Processed; 2]);
    assert_eq!(process(&consumer, [msg("c", "3")]).await, [Kind::Processed]);
    assert_eq!(fixture.spy.appended.get(), 0);
    assert!(everything(&fixture).await.is_empty());
}

/// The append of a unit that is made by hand.
pub(super) fn appended(registered: &Registered, to: DestinationId, key: &str, event: Event) -> Appended {
    let mut appended = Appended::default();
    let event = NewEvent::plain(registered.scope, to, key_from(key), event).unwrap();
    appended.events.push(event);
    let result = NewResult::new(registered.scope, key_from(key), false, ResultBody::new("an answer"));
    appended.results.push(result);
    appended
}

/// Runs a unit with one claim that appends this event, and again where the store asks for that.
pub(super) async fn unit<T: StoreUnderTest>(
    fixture: &Fixture<'_, T>,
    registered: &Registered,
    key: &str,
    appended: &Appended,
) -> Result<(), AppendError> {
    for _ in 0..3 {
        let session = fixture.open().await;
        let mut unit = fixture.store.begin(session, options(registered.run)).await.unwrap();
        unit.claim(&[claim(registered, key, "p")]).await.unwrap();
        let written = within("appending", unit.append(appended)).await;
        if written.is_err() {
            unit.rollback().await.unwrap();
            return written;
        }
        match unit.commit().await.1 {
            Err(CommitError::RolledBack(error)) if error.class() == ErrorClass::RunUnitAgain => {}
            committed => {
                committed.unwrap();
                return Ok(());
            }
        }
    }
    panic!("the third unit is told to run again too");
}

/// O1: the events of a unit go with the unit, rolled back or dropped.
pub async fn o1_append_of_a_rolled_back_unit_leaves_nothing<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    if !offers(&fixture) {
        return;
    }
    let (registered, (_, ids)) = (fixture.register().await, outbox(&fixture).await);
    let appended = appended(&registered, ids[0], "event-1", Event::to("payments").body("1"));
    for is_dropped in [false, true] {
        let session = fixture.open().await;
        let mut unit = fixture.store.begin(session, options(registered.run)).await.unwrap();
        unit.claim(&[claim(&registered, "order-1", "p")]).await.unwrap();
        unit.append(&appended).await.unwrap();
        assert!(everything(&fixture).await.is_empty(), "nothing is visible before the commit");
        if is_dropped {
            drop(unit);
        } else {
            unit.rollback().await.unwrap();
        }
        assert!(everything(&fixture).await.is_empty() && fixture.recorded().await.is_empty());
    }
    // Nothing of it stands in the way of the run that goes well.
    unit(&fixture, &registered, "order-1", &appended).await.unwrap();
    assert_eq!((everything(&fixture).await.len(), fixture.recorded().await), (1, vec!["order-1".to_owned()]));
}

/// A capability that is off is refused where it is asked for, and one that is on is not.
pub async fn append_is_refused_when_off<T: StoreUnderTest>(subject: &T) {
    for fixture in [Fixture::new(subject), Fixture::bare(subject)] {
        let capabilities = fixture.store.capabilities();
        let plain = || DedupConsumer::builder(Arc::clone(&fixture.store), "orders").effects(Effects::InTransaction);
        let refused = |builder: DedupConsumerBuilder<Seen<T>>| {
            builder.handler(announcer::<T>(|_| Ok(vec![]))).build().err().map(|error| error.field)
        };
        let unless = |is_on: bool, field: &'static str| (!is_on).then_some(field);
        assert_eq!(refused(plain().publish_to(["payments"])), unless(capabilities.outbox, "publish_to"));
        assert_eq!(refused(plain().keep_results(1)), unless(capabilities.results, "keep_results"));
        let worker = |relays: bool| {
            let consumer = plain().handler(announcer::<T>(|_| Ok(vec![]))).build().unwrap();
            let queue = Broker::new().create("orders", QueueOptions::default()).unwrap();
            let worker = Worker::builder(consumer, queue.source());
            let worker = if relays { worker.relay(|routes| routes) } else { worker };
            worker.build().err().map(|error| error.rule.to_string())
        };
        assert_eq!(worker(false), None);
        if !capabilities.outbox {
            assert_eq!(worker(true).as_deref(), Some("a relay needs a store with an outbox"));
        }
    }
    let fixture = Fixture::new(subject);
    let capabilities = fixture.store.capabilities();
    let registered = fixture.register().await;
    let appended = appended(&registered, DestinationId(1), "event-1", Event::to("payments"));
    if !capabilities.outbox && !capabilities.results {
        let refused = unit(&fixture, &registered, "order-1", &appended).await;
        assert!(matches!(refused, Err(AppendError::Store(error)) if error.class() == ErrorClass::Fatal));
    }
}

/// O12: the events of a failed handler are not published, and its neighbours' are.
pub async fn o12_a_failed_handler_of_a_batch_appends_nothing<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    if !offers(&fixture) {
        return;
    }
    let events = |message: &Message| {
        let body = message.payload().cloned().unwrap_or_default();
        let mut events = vec![Event::to("payments").body(body.clone())];
        // The second is refused, and so the message fails although its handler might not look.
        events.extend((body == "bad").then(|| Event::to("payments")));
        // So are one for an undeclared destination, a label of idem's own, a header that would end itself, and too many bytes.
        let to = || Event::to("payments").label("other");
        match &body[..] {
            b"astray" => events.push(Event::to("nowhere")),
            b"reserved" => events.push(to().label("idem:other")),
            b"control" => events.push(to().header("name", "a\r\nb")),
            b"large" => events.push(to().body(vec![b'x'; EVENT_PAYLOAD_BYTES_MAX + 1])),
            _ => {}
        }
        Ok(events)
    };
    let consumer = builder(&fixture, "orders").handler(announcer::<T>(events)).build().unwrap();
    let refused = Kind::Failed(ErrorClass::Permanent);
    let bad = ["bad", "astray", "reserved", "control", "large"].map(|body| msg(body, body));
    let kinds = process(&consumer, [msg("a", "1")].into_iter().chain(bad).chain([msg("c", "3")])).await;
    assert_eq!(kinds, [[Kind::Processed].as_slice(), &[refused; 5], &[Kind::Processed]].concat());
    let Decision::Failed(failure) = decide(&consumer, [msg("astray", "astray")]).await.remove(0) else {
        panic!("published")
    };
    assert!(failure.text.contains("destination \"nowhere\" is not declared"), "{failure:?}");
    fixture.assert_effects([("a", "1"), ("c", "3")]).await;
    let all = everything(&fixture).await;
    assert_eq!(bodies(&all.into_iter().map(|(_, event)| event).collect::<Vec<_>>()), ["1", "3"]);
}

/// Every kind of handler publishes the same rows, in the same order, and keeps the same answers.
pub async fn every_kind_of_handler_appends_the_same_rows<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    if !offers(&fixture) {
        return;
    }
    let events = |message: &Message| {
        let body = message.payload().cloned().unwrap_or_default();
        let event =
            |label: &'static str| Event::to("payments").body([&body[..], label.as_bytes()].concat()).label(label);
        let derived =
            event("x").ordering_key("customer").header("of", [b"order ", &body[..]].concat()).event_type("paid");
        Ok(vec![derived, event("y").content_type("text/plain")])
    };
    let hour = idem_core::Retention::For(Duration::from_secs(3600));
    let mut seen = Vec::new();
    for kind in 0..3 {
        // One name, so that ids are derived alike; what the kind before has left is gone.
        let builder = builder(&fixture, "orders").retention(hour);
        let builder = match kind {
            0 => builder.handler(announcer::<T>(events)),
            1 if fixture.units_hold_one() => continue,
            1 => builder.batch_handler(announcer::<T>(events)),
            _ if !fixture.store.capabilities().concurrent_handlers => continue,
            _ => builder.handler(announcer::<T>(events)).handlers(Concurrency::Pipelined { at_once: 4 }),
        };
        let consumer = builder.build().unwrap();
        let messages = || (0..5).map(|number| msg(&format!("order-{number}"), &number.to_string()));
        assert_eq!(process(&consumer, messages()).await, [Kind::Processed; 5]);
        let again =
            within("asking for answers", consumer.process_with_results(messages().collect::<Vec<_>>())).await.unwrap();
        let answers: Vec<_> = again.into_iter().map(|decided| decided.result.unwrap().unwrap().result).collect();
        let (outbox, ids) = outbox(&fixture).await;
        let rows = next(&*outbox, ids[0]).await;
        let ends: Vec<_> = rows.iter().map(|row| (row, idem_core::outbox::EventEnd::Published)).collect();
        outbox.settle(ids[0], &ends).await.unwrap();
        let row = |row: &OutgoingEvent| {
            let words = (row.event_type.clone(), row.content_type.clone(), row.headers.clone());
            (row.consumer.clone(), row.key.clone(), row.ordering_key.clone(), words, row.payload.clone())
        };
        seen.push((rows.iter().map(row).collect::<Vec<_>>(), answers));
        if !fixture.arrange(Arrangement::Age(Duration::from_secs(7 * 24 * 3600))).await {
            break;
        }
        assert_eq!(clean(&fixture, Expiring::Records, Duration::ZERO, 10).await, 5);
    }
    let (rows, answers) = &seen[0];
    let bodies: Vec<_> = rows.iter().map(|(.., payload)| String::from_utf8_lossy(payload).into_owned()).collect();
    let wanted: Vec<String> = (0..5).flat_map(|number| [format!("{number}x"), format!("{number}y")]).collect();
    assert_eq!((bodies, answers.len()), (wanted, 5));
    assert!(seen.iter().all(|of_kind| *of_kind == seen[0]), "{seen:#?}");
}

/// Events belong to their message, whatever becomes of nested transactions.
pub async fn events_stay_where_a_nested_transaction_goes<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    if !offers(&fixture) {
        return;
    }
    let publish = |body: &'static str| Step::Publish(Event::to("payments").label(body).body(body));
    let plan = move |_: &Message, _: usize| {
        let nested = Step::Swallow(HandlerAction::NestedRolledBack);
        vec![Step::Write(""), publish("before"), nested, publish("after")]
    };
    let consumer = fixture.builder("orders", plan).publish_to(DESTINATIONS).build().unwrap();
    assert_eq!(process(&consumer, [msg("order-1", "p")]).await, [Kind::Processed]);
    let (outbox, ids) = outbox(&fixture).await;
    assert_eq!(bodies(&next(&*outbox, ids[0]).await), ["before", "after"]);
    fixture.assert_effects([("order-1", "p")]).await;
}

/// O15: an event is one by destination, scope and key: one key to two destinations and from two consumers is four events.
pub async fn o15_two_scopes_and_two_destinations_with_one_key_are_four_events<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    if !offers(&fixture) {
        return;
    }
    for name in ["orders", "invoices"] {
        let events = |_: &Message| Ok(DESTINATIONS.map(|to| Event::to(to).same_key().body("1")).into());
        let consumer = builder(&fixture, name).handler(announcer::<T>(events)).build().unwrap();
        assert_eq!(process(&consumer, [msg("order-1", "p")]).await, [Kind::Processed]);
    }
    let all = everything(&fixture).await;
    let of = |(place, event): &(usize, OutgoingEvent)| (*place, event.consumer.to_string(), event.key.to_string());
    let mut all: Vec<_> = all.iter().map(of).collect();
    all.sort();
    let wanted = [(0, "invoices"), (0, "orders"), (1, "invoices"), (1, "orders")];
    assert_eq!(all, wanted.map(|(place, name)| (place, name.to_owned(), "order-1".to_owned())));
}

/// O108: two tenants that send one key have two events, whose receivers know them by their keys alone.
pub async fn o108_two_tenants_with_one_key_have_two_events<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    if !offers(&fixture) {
        return;
    }
    let events = |_: &Message| Ok(vec![Event::to(DESTINATIONS[0]).same_key().body("1")]);
    let of_header = |message: &Message| message.headers().text("tenant").and_then(|name| Tenant::new(name).ok());
    let consumer = builder(&fixture, "orders").handler(announcer::<T>(events)).tenant_from(of_header).build().unwrap();
    let messages = ["acme", "umbrella"].map(|tenant| msg("order-1", tenant).with_header("tenant", tenant.to_owned()));
    assert_eq!(process(&consumer, messages).await, [Kind::Processed; 2]);
    let mut keys: Vec<_> = everything(&fixture).await.into_iter().map(|(_, event)| event.key.to_string()).collect();
    keys.sort();
    assert_eq!(keys, ["4:acme order-1", "8:umbrella order-1"]);
}

/// O6: the same event again, as after a `forget`, is nothing new while it waits; another body under its key is a conflict,
/// and nothing of that unit is committed (O7).
pub async fn o6_o7_the_same_event_again_is_no_news_and_another_one_is_a_conflict<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    if !offers(&fixture) {
        return;
    }
    let (registered, (_, ids)) = (fixture.register().await, outbox(&fixture).await);
    let event = |body: &'static str| Event::to("payments").body(body);
    let first = appended(&registered, ids[0], "event-2", event("1"));
    unit(&fixture, &registered, "order-1", &first).await.unwrap();
    unit(&fixture, &registered, "order-2", &first).await.unwrap();
    // Places are those of the caller, in any order of writing the rows.
    let mut others = appended(&registered, ids[0], "event-3", event("3"));
    others.events.push(appended(&registered, ids[0], "event-2", event("2")).events.remove(0));
    others.events.push(appended(&registered, ids[0], "event-1", event("0")).events.remove(0));
    let conflict = unit(&fixture, &registered, "order-3", &others).await;
    assert!(matches!(conflict, Err(AppendError::Conflict { event: 1 })), "{conflict:?}");
    assert_eq!(fixture.recorded().await, ["order-1", "order-2"]);
    assert_eq!(everything(&fixture).await.len(), 1);
}

/// O7: a handler that is not deterministic and runs again after its record is gone is found out, and changes nothing.
pub async fn o7_another_event_of_a_message_that_runs_again_is_a_conflict<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    if !offers(&fixture) {
        return;
    }
    let runs = Arc::new(AtomicUsize::new(0));
    let events = move |_: &Message| {
        let run = runs.fetch_add(1, Ordering::Relaxed);
        Ok(vec![Event::to("payments").body(run.to_string())])
    };
    let retention = idem_core::Retention::For(Duration::from_secs(3600));
    let consumer = builder(&fixture, "orders").retention(retention).handler(announcer::<T>(events)).build().unwrap();
    assert_eq!(process(&consumer, [msg("order-1", "p")]).await, [Kind::Processed]);
    if !fixture.arrange(Arrangement::Age(Duration::from_secs(7 * 24 * 3600))).await {
        return;
    }
    assert_eq!(clean(&fixture, Expiring::Records, Duration::ZERO, 10).await, 1);
    let decision = decide(&consumer, [msg("order-1", "p")]).await.remove(0);
    let Decision::Failed(failure) = decision else { panic!("{decision:?}") };
    assert_eq!((failure.class, failure.reason), (ErrorClass::Permanent, Reason::OutboxConflict), "{failure:?}");
    let all = everything(&fixture).await;
    assert_eq!(bodies(&all.into_iter().map(|(_, event)| event).collect::<Vec<_>>()), ["0"]);
    assert_eq!(fixture.effects().await.len(), 1, "the second run's effect was rolled back");
}

/// O6, O7: so it is with work that is done step by step, which cannot run again: the same event is no news, and another one is
/// refused with the cause.
pub async fn o6_o7_steps_meet_their_event_in_the_outbox<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    if !offers(&fixture) || !fixture.store.capabilities().results {
        return;
    }
    let builder = RunOnce::builder(Arc::clone(&fixture.store), "payments").effects(Effects::InTransaction);
    let builder = builder.publish_to(["payments"]).retention(idem_core::Retention::For(Duration::from_secs(3600)));
    let payments = builder.result_retention(idem_core::Retention::For(Duration::from_secs(3600))).build().unwrap();
    for (payload, refused) in [("paid", false), ("paid", false), ("refunded", true)] {
        let begun = within("beginning", payments.begin(Request::new("a", payload))).await.unwrap();
        let Begun::First(mut run) = begun else { panic!("{payload} is known already") };
        run.tx().unwrap().publish(Event::to("payments").body(payload)).unwrap();
        match within("the end", run.finish(ResultBody::new(payload))).await {
            Ok(ran) => assert!(!refused && !ran.is_replayed(), "{ran:?}"),
            Err(RunOnceError::Failed(failure)) if refused => {
                assert_eq!(
                    (failure.class, failure.reason),
                    (ErrorClass::Permanent, Reason::OutboxConflict),
                    "{failure}"
                );
                let told = &failure.text;
                assert!(told.contains("another content") && told.contains("its record has expired"), "{failure}");
            }
            Err(error) => panic!("{payload}: {error}"),
        }
        if !fixture.arrange(Arrangement::Age(Duration::from_secs(7 * 24 * 3600))).await {
            return;
        }
        clean(&fixture, Expiring::Records, Duration::ZERO, 10).await;
    }
    assert_eq!(bodies(&everything(&fixture).await.into_iter().map(|(_, event)| event).collect::<Vec<_>>()), ["paid"]);
}

/// O6: so it is with a batch, and with one of which another message is new: no message is charged for events that were
/// there already.
pub async fn o6_a_batch_that_runs_again_publishes_what_is_new<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    if !offers(&fixture) {
        return;
    }
    let events =
        |message: &Message| Ok(vec![Event::to("payments").body(message.payload().cloned().unwrap_or_default())]);
    let retention = idem_core::Retention::For(Duration::from_secs(3600));
    let consumer = builder(&fixture, "orders").retention(retention).handler(announcer::<T>(events)).build().unwrap();
    assert_eq!(process(&consumer, [msg("a", "1"), msg("b", "2")]).await, [Kind::Processed; 2]);
    if !fixture.arrange(Arrangement::Age(Duration::from_secs(7 * 24 * 3600))).await {
        return;
    }
    assert_eq!(clean(&fixture, Expiring::Records, Duration::ZERO, 10).await, 2);
    let again = [msg("c", "3"), msg("b", "2"), msg("a", "1"), msg("d", "4")];
    assert_eq!(process(&consumer, again).await, [Kind::Processed; 4]);
    let (outbox, ids) = outbox(&fixture).await;
    assert_eq!(bodies(&next(&*outbox, ids[0]).await), ["1", "2", "3", "4"]);
    assert_eq!(fixture.recorded().await, ["a", "b", "c", "d"]);
}

/// Two units with keys of the user's own in opposite orders wait for each other one way only.
pub async fn appended_keys_in_opposite_orders_never_deadlock<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    if !offers(&fixture) {
        return;
    }
    let (registered, (_, ids)) = (fixture.register().await, outbox(&fixture).await);
    let all = |order: &[u32]| {
        let mut all = Appended::default();
        for number in order {
            let key = format!("event-{number}");
            all.events.push(appended(&registered, ids[0], &key, Event::to("payments").body("same")).events.remove(0));
        }
        all
    };
    let forwards: Vec<u32> = (0..50).collect();
    let backwards: Vec<u32> = forwards.iter().rev().copied().collect();
    for round in 0..10 {
        let (one, other) = (format!("one-{round}"), format!("other-{round}"));
        let (forwards, backwards) = (all(&forwards), all(&backwards));
        let (one, other) = tokio::join!(
            unit(&fixture, &registered, &one, &forwards),
            unit(&fixture, &registered, &other, &backwards),
        );
        one.unwrap();
        other.unwrap();
        let all = everything(&fixture).await;
        assert_eq!(all.len(), 50);
        let (outbox, ids) = outbox(&fixture).await;
        let ends: Vec<_> = all.iter().map(|(_, event)| (event, idem_core::outbox::EventEnd::Published)).collect();
        outbox.settle(ids[0], &ends).await.unwrap();
    }
    if let Some(deadlocks) = fixture.subject.deadlocks().await {
        assert_eq!(deadlocks, 0);
    }
}
