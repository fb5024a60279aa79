//! What a relay knows of a destination, and workers by its row.

use std::time::Duration;

use idem_core::{
    Decision, ErrorClass, Event,
    outbox::{DestinationLimits, LeaseRequest, Outbox},
};

use super::{
    events::{DESTINATIONS, announcer, builder, next, offers, outbox},
    fixture::{Fixture, Kind, decide, msg, process},
    gate::within,
    subject::{Arrangement, StoreUnderTest},
};

/// What the row of the first destination says it takes, to who declares it and to operators.
async fn known(outbox: &dyn Outbox) -> Option<DestinationLimits> {
    let declared = within("declaring", outbox.declare(&[DESTINATIONS[0].into()])).await.unwrap();
    let backlog = within("the backlog", outbox.backlog(None)).await.unwrap();
    let backlog = backlog.into_iter().find(|backlog| backlog.destination == DESTINATIONS[0]).unwrap();
    assert_eq!(backlog.limits, declared[0].limits);
    declared[0].limits.clone()
}

/// O116: what a relay has said of a destination holds as long as its lease. Otherwise a login that relays for a moment could say that
/// nothing fits, and nothing would be published as long as no other relay comes.
pub async fn o116_what_a_relay_says_ends_with_its_lease<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    if !offers(&fixture) {
        return;
    }
    let (outbox, ids) = outbox(&fixture).await;
    let limits = DestinationLimits::new("sqs").message_bytes_max(Some(1));
    let request = LeaseRequest::new("relay", Duration::from_secs(60)).limits(Some(&limits));
    within("leasing", outbox.lease(ids[0], request)).await.unwrap();
    assert_eq!(known(&*outbox).await, Some(limits));
    if !fixture.arrange(Arrangement::Age(Duration::from_secs(61))).await {
        return;
    }
    let declared = within("declaring", outbox.declare(&[DESTINATIONS[0].into()])).await.unwrap();
    assert_eq!(declared[0].limits, None);
}

/// O107: an event that no relay could ever send fails its message, and nothing of that is written, as soon as a relay has left in the
/// destination's row what it takes. Once the limit is raised, the same consumer publishes again.
pub async fn o107_an_event_that_never_fits_fails_its_message<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    if !offers(&fixture) {
        return;
    }
    let (outbox, ids) = outbox(&fixture).await;
    let relay = async |limits: Option<&DestinationLimits>| {
        let request = LeaseRequest::new("relay", Duration::from_secs(60)).limits(limits);
        within("leasing", outbox.lease(ids[0], request)).await.unwrap();
        assert_eq!(known(&*outbox).await.as_ref(), limits);
    };
    let consumer = || {
        let told = |message: &idem_core::Message| {
            let body = message.payload().cloned().unwrap_or_default();
            Ok(vec![Event::to(DESTINATIONS[0]).event_type("Charged").body(body)])
        };
        builder(&fixture, "orders").handler(announcer::<T>(told)).build().unwrap()
    };
    assert_eq!(known(&*outbox).await, None, "no relay was there yet");
    assert_eq!(process(&consumer(), [msg("order-0", "12345678901")]).await, [Kind::Processed]);

    let limits = DestinationLimits::new("sqs").message_bytes_max(Some(10));
    relay(Some(&limits)).await;
    let worker = consumer();
    let sent = [msg("order-1", "1234567890"), msg("order-2", "12345678901")];
    let decided = decide(&worker, sent.clone()).await;
    assert!(decided[0].is_processed(), "{decided:?}");
    let Decision::Failed(failure) = &decided[1] else { panic!("{decided:?}") };
    assert_eq!(failure.class, ErrorClass::Permanent);
    for part in ["11 bytes", "takes 10", DESTINATIONS[0], "sqs"] {
        assert!(failure.text.contains(part), "{}", failure.text);
    }
    fixture.assert_effects([("order-0", "12345678901"), ("order-1", "1234567890")]).await;
    assert_eq!(fixture.recorded().await, ["order-0", "order-1"]);
    assert_eq!(next(&*outbox, ids[0]).await.len(), 2);

    // In structured mode what is no JSON grows by a third, and JSON does not.
    relay(Some(&limits.clone().is_structured(true))).await;
    let sent_structured = [msg("order-3", "123456789"), msg("order-4", "text 6789")];
    let failed = Kind::Failed(ErrorClass::Permanent);
    assert_eq!(process(&consumer(), sent_structured).await, [Kind::Processed, failed]);

    relay(Some(&limits.message_bytes_max(Some(11)))).await;
    assert_eq!(process(&worker, sent).await, [Kind::Duplicate, Kind::Processed], "it looks again before it refuses");
    // Another kind of publisher, which does not know.
    relay(None).await;
    assert_eq!(process(&consumer(), [msg("order-5", &"9".repeat(100))]).await, [Kind::Processed]);
}
