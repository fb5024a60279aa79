//! Events after what operators do to them and to their writers.

use std::time::Duration;

use idem_core::{
    Event,
    outbox::{CloudEvents, EventEnd, EventName, EventState, OutgoingEvent},
};

use super::{
    events::{appended, next, offers, outbox, unit},
    fixture::Fixture,
    gate::within,
    subject::{Arrangement, StoreUnderTest},
};

/// O105: an event that goes again after `idem consumers rename` has the id, the bytes and the headers that it had before, so that
/// receivers which compare them take it for the copy that it is.
pub async fn o105_an_event_is_the_same_after_its_consumer_was_renamed<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    if !offers(&fixture) {
        return;
    }
    let (registered, (outbox, ids)) = (fixture.register().await, outbox(&fixture).await);
    let event = Event::to("payments").event_type("Charged").body("{}");
    unit(&fixture, &registered, "order-1", &appended(&registered, ids[0], "order-1", event)).await.unwrap();
    let sent = next(&*outbox, ids[0]).await.remove(0);
    let again =
        EventEnd::Later { after: Duration::ZERO, error: "no answer".to_owned(), may_be_sent: true, counted: true };
    within("settling an event", outbox.settle(ids[0], &[(&sent, again)])).await.unwrap();
    if !fixture.arrange(Arrangement::Rename).await {
        return;
    }
    let copy = next(&*outbox, ids[0]).await.remove(0);
    assert_eq!((sent.consumer.as_str(), copy.consumer.as_str()), ("orders", "purchases"), "as people know it now");
    let wires = |event: &OutgoingEvent| {
        let modes = [CloudEvents::structured(), CloudEvents::binary()];
        modes.map(|mode| {
            let wire = mode.on_wire(event, "ce_");
            let text = |(name, value): (&str, Option<&[u8]>)| (name.to_owned(), value.map(<[u8]>::to_vec));
            (wire.payload, wire.headers.iter().map(text).collect::<Vec<_>>())
        })
    };
    assert_eq!(wires(&copy), wires(&sent));
    let listed = within("listing events", outbox.events(None, None, 10)).await.unwrap().remove(0).event;
    assert_eq!((listed.consumer, listed.derives_as), (copy.consumer, sent.consumer));
}

/// O101: a stale event that an operator lets go is new enough for a relay to send it, and that a copy may be out there stays known. The
/// mark of one that is only retried is as old as it was, and one that was never sent gets none.
pub async fn o101_a_stale_event_that_is_let_go_stays_known<T: StoreUnderTest>(subject: &T) {
    const DAYS: Duration = Duration::from_secs(8 * 86_400);
    let fixture = Fixture::new(subject);
    if !offers(&fixture) {
        return;
    }
    let (registered, (outbox, ids)) = (fixture.register().await, outbox(&fixture).await);
    let failed = |error: &str, may_be_sent| EventEnd::Failed { error: error.to_owned(), may_be_sent };
    for (key, end) in [
        ("stale", failed("stale: a copy of it may have been sent", true)),
        ("sent", failed("too many attempts", true)),
        ("retried", failed("too many attempts", true)),
        ("unsent", failed("too large", false)),
    ] {
        let event = appended(&registered, ids[0], key, Event::to("payments").body(key));
        unit(&fixture, &registered, key, &event).await.unwrap();
        let taken = next(&*outbox, ids[0]).await.remove(0);
        within("settling an event", outbox.settle(ids[0], &[(&taken, end)])).await.unwrap();
    }
    if !fixture.arrange(Arrangement::Age(DAYS)).await {
        return;
    }
    let listed = async || within("listing events", outbox.events(None, None, 10)).await.unwrap();
    let names: Vec<EventName> = listed().await.iter().map(|stored| stored.event.name()).collect();
    let mut going = [&names[..2], &names[3..]].concat();
    // O41: another event may have its number by now.
    going.push(EventName { number: names[0].number, key: names[1].key.clone() });
    assert_eq!(within("retrying stale ones", outbox.retry_stale(&going)).await.unwrap(), 3);
    assert_eq!(within("retrying stale ones", outbox.retry_stale(&going)).await.unwrap(), 0, "they go already");
    assert_eq!(within("retrying", outbox.retry(&names[2..3])).await.unwrap(), 1);
    let ages: Vec<_> = next(&*outbox, ids[0]).await.iter().map(|event| event.first_sent_ago).collect();
    let [stale, sent, retried, unsent] = ages[..] else { panic!("all may go: {ages:?}") };
    let is_new = |ago: Option<Duration>| ago.is_some_and(|ago| ago < DAYS / 2);
    assert!(is_new(stale) && is_new(sent), "{ages:?}");
    assert!(retried.is_some_and(|ago| ago >= DAYS) && unsent.is_none(), "{ages:?}");
    let said: Vec<_> =
        listed().await.into_iter().map(|stored| (stored.state, stored.event.attempts, stored.error)).collect();
    let of = |error: Option<&str>| (EventState::Pending, 0, error.map(str::to_owned));
    let tried = || of(Some("too many attempts"));
    assert_eq!(said, [of(None), tried(), tried(), of(Some("too large"))]);
}
