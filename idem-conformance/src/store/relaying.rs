//! A [`Relay`] on the outbox of each store.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use idem_core::{
    CancellationToken, Event,
    outbox::{Dispatch, EventError, EventPublisher, Outbox, OutgoingEvent, StoredEvent, UNDER_WAY},
    relay::Relay,
};

use super::{
    events::{DESTINATIONS, appended, offers, outbox, unit},
    fixture::Fixture,
    gate::within,
    subject::StoreUnderTest,
};

/// The one event that waits.
async fn waiting(outbox: &dyn Outbox) -> StoredEvent {
    within("listing events", outbox.events(None, None, 10)).await.unwrap().remove(0)
}

/// Waits until this is so of the one event that waits. An outbox reports nothing by itself.
async fn until(outbox: &dyn Outbox, so: impl Fn(&StoredEvent) -> bool) -> StoredEvent {
    loop {
        let event = waiting(outbox).await;
        if so(&event) {
            return event;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn is_under_way(event: &StoredEvent) -> bool {
    event.error.as_deref() == Some(UNDER_WAY)
}

const GONE: &str = "its table of endpoints is gone";

/// Refuses, the first time only when it is noted that the event is under way.
struct RefusesLate(Arc<dyn Outbox>, AtomicBool);

#[async_trait]
impl EventPublisher for RefusesLate {
    async fn publish_events(&self, _: &[&OutgoingEvent]) -> Vec<Result<(), EventError>> {
        if !self.1.swap(true, Ordering::Relaxed) {
            until(&*self.0, is_under_way).await;
        }
        let (problem, cure) = (GONE.to_owned(), "Bring it back".to_owned());
        vec![Err(EventError::Refused { problem, cure })]
    }

    fn dispatch(&self) -> Dispatch {
        Dispatch::Each { at_once: 1 }
    }
}

/// O100: a destination that is slow and then says that it accepts nothing was sent nothing: the mark of the note that the event is under
/// way goes with it.
pub async fn o100_a_slow_refusal_leaves_no_mark<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    if !offers(&fixture) {
        return;
    }
    let (registered, (outbox, ids)) = (fixture.register().await, outbox(&fixture).await);
    let event = appended(&registered, ids[0], "order-1", Event::to(DESTINATIONS[0]).body("1"));
    unit(&fixture, &registered, "order-1", &event).await.unwrap();
    let publisher = RefusesLate(Arc::clone(&outbox), AtomicBool::new(false));
    let relay = Relay::builder(Arc::clone(&outbox)).to(DESTINATIONS[0], publisher).build().unwrap();
    let view = relay.view();
    let stop = CancellationToken::new();
    let running = tokio::spawn(relay.run(stop.clone().cancelled_owned()));
    // The note itself may be there for a moment only. The publisher has waited for it.
    let is_refused = |event: &StoredEvent| event.error.as_deref().is_some_and(|error| error.contains(GONE));
    let refused = within("the refusal", until(&*outbox, is_refused)).await;
    assert_eq!((refused.event.first_sent_ago, refused.event.attempts), (None, 0));
    assert!(view.destinations()[0].trouble.as_ref().is_some_and(|(why, _)| why.contains("Bring it back")));
    stop.cancel();
    within("the end of the relay", running).await.unwrap().unwrap();
}
