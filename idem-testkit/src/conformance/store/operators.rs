//! Events after what operators do to them and to their writers.

use idem_core::{
    Event,
    outbox::{CloudEvents, EventEnd, OutgoingEvent},
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
    let again = EventEnd::Later {
        after: std::time::Duration::ZERO,
        error: "no answer".to_owned(),
        may_be_sent: true,
        counted: true,
    };
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
