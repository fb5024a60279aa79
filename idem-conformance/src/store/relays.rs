//! The contract of [`Outbox`], by its numbers.

use std::time::Duration;

use idem_core::{
    ConsumerName, Event, IdempotencyKey, Store,
    outbox::{
        Appended, Destination, DestinationId, EventEnd, EventName, EventState, IdForm, LeaseRequest, Leased,
        ORDERING_KEY_BYTES_MAX, Outbox, OutboxBacklog, OutgoingEvent, RECEIVER_KEEPS, StoredEvent, UNDER_WAY,
    },
    store::{Registered, UnitOfWork},
};

use super::{
    events::{DESTINATIONS, appended, bodies, next, offers, outbox, unit},
    fixture::{Fixture, claim, options},
    gate::within,
    subject::{Arrangement, StoreUnderTest},
};

const MINUTE: Duration = Duration::from_secs(60);

/// Commits events with these bodies and ordering keys, one a unit.
async fn publish<T: StoreUnderTest>(
    fixture: &Fixture<'_, T>,
    registered: &Registered,
    to: DestinationId,
    events: &[(&str, Option<&'static str>)],
) {
    for (body, key) in events {
        let mut event = Event::to("payments").body((*body).to_owned());
        if let Some(key) = key {
            event = event.ordering_key(*key);
        }
        let appended = appended(registered, to, body, event);
        unit(fixture, registered, body, &appended).await.unwrap();
    }
}

fn later(after: Duration) -> EventEnd {
    EventEnd::Later { after, error: "not now".to_owned(), may_be_sent: true, counted: true }
}

fn failed() -> EventEnd {
    EventEnd::Failed { error: "never".to_owned(), may_be_sent: false }
}

async fn settle(outbox: &dyn Outbox, destination: DestinationId, event: &OutgoingEvent, end: EventEnd) {
    within("settling an event", outbox.settle(destination, &[(event, end)])).await.unwrap();
}

async fn states(outbox: &dyn Outbox) -> Vec<(String, EventState)> {
    let events = within("listing events", outbox.events(None, None, 1_000)).await.unwrap();
    events.into_iter().map(|stored| (stored.event.key.to_string(), stored.state)).collect()
}

/// Contract 1 (O5): a number says nothing about the commit: one that is lower and comes later is answered all the same.
pub async fn o5_a_late_commit_of_a_lower_number_is_answered<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    // With one writer at a time, numbers are drawn in the order of commits.
    if !offers(&fixture) || !fixture.waits_per_key() {
        return;
    }
    let (registered, (outbox, ids)) = (fixture.register().await, outbox(&fixture).await);
    // A store that writes events with its seal draws their numbers there, until it has met one that was in the outbox already.
    for key in ["order-1", "order-2"] {
        unit(&fixture, &registered, key, &appended(&registered, ids[1], "known", Event::to(DESTINATIONS[1])))
            .await
            .unwrap();
    }
    let session = fixture.open().await;
    let mut slow = fixture.store.begin(session, options(registered.run)).await.unwrap();
    slow.claim(&[claim(&registered, "slow", "p")]).await.unwrap();
    slow.append(&appended(&registered, ids[0], "slow", Event::to("payments").body("slow"))).await.unwrap();
    publish(&fixture, &registered, ids[0], &[("fast", None)]).await;
    let fast = next(&*outbox, ids[0]).await;
    assert_eq!(bodies(&fast), ["fast"], "an uncommitted event is not answered");
    settle(&*outbox, ids[0], &fast[0], EventEnd::Published).await;
    slow.commit().await.1.unwrap();
    let late = next(&*outbox, ids[0]).await;
    assert_eq!(bodies(&late), ["slow"]);
    assert!(late[0].number < fast[0].number, "the case proves nothing: {late:?}");
}

/// Contract 2: the events of one unit go in the order in which they were published, with any ids.
pub async fn events_of_one_unit_keep_their_order<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    if !offers(&fixture) {
        return;
    }
    let (registered, (outbox, ids)) = (fixture.register().await, outbox(&fixture).await);
    let keys: Vec<String> = (0..20).map(|number| format!("event-{number}")).collect();
    let mut all = Appended::default();
    for key in &keys {
        let event = Event::to("payments").body(key.clone()).ordering_key("account");
        all.events.push(appended(&registered, ids[0], key, event).events.remove(0));
    }
    unit(&fixture, &registered, "order", &all).await.unwrap();
    assert_eq!(bodies(&next(&*outbox, ids[0]).await), keys);
}

/// Contract 2: events behind a waiting one, in its ordering key, wait with it; others do not.
pub async fn what_waits_holds_its_ordering_key_back<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    if !offers(&fixture) {
        return;
    }
    let (registered, (outbox, ids)) = (fixture.register().await, outbox(&fixture).await);
    let events =
        [("a1", Some("a")), ("b1", Some("b")), ("a2", Some("a")), ("n1", None), ("a3", Some("a")), ("n2", None)];
    publish(&fixture, &registered, ids[0], &events).await;
    let all = next(&*outbox, ids[0]).await;
    assert_eq!(bodies(&all), ["a1", "b1", "a2", "n1", "a3", "n2"], "in the order of their numbers");
    settle(&*outbox, ids[0], &all[0], later(MINUTE)).await;
    settle(&*outbox, ids[0], &all[3], failed()).await;
    assert_eq!(bodies(&next(&*outbox, ids[0]).await), ["b1", "n2"]);
    // A new one of the key waits too, and the same key of another destination is another key.
    publish(&fixture, &registered, ids[0], &[("a4", Some("a"))]).await;
    publish(&fixture, &registered, ids[1], &[("other-a", Some("a"))]).await;
    assert_eq!(bodies(&next(&*outbox, ids[0]).await), ["b1", "n2"]);
    assert_eq!(bodies(&next(&*outbox, ids[1]).await), ["other-a"]);
    let backlog = first_of(&*outbox, None).await;
    assert_eq!((backlog.pending, backlog.waiting, backlog.failed, backlog.behind), (2, 1, 1, 3), "{backlog:?}");
    // It is tried again, and only when it has gone may the others go.
    settle(&*outbox, ids[0], &all[0], later(Duration::ZERO)).await;
    let again = next(&*outbox, ids[0]).await;
    assert_eq!(bodies(&again), ["a1", "b1", "n2"]);
    assert_eq!((again[0].attempts, again[0].first_sent_ago.is_some()), (2, true));
    settle(&*outbox, ids[0], &all[0], EventEnd::Published).await;
    assert_eq!(bodies(&next(&*outbox, ids[0]).await), ["b1", "a2", "a3", "n2", "a4"]);
}

/// Contract 2 and 3: one that failed holds its key until an operator lets it go, again or for good.
pub async fn what_failed_waits_for_an_operator<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    if !offers(&fixture) {
        return;
    }
    let (registered, (outbox, ids)) = (fixture.register().await, outbox(&fixture).await);
    let events = [("a1", Some("a")), ("a2", Some("a")), ("a3", Some("a")), ("a4", Some("a"))];
    publish(&fixture, &registered, ids[0], &events).await;
    let all = next(&*outbox, ids[0]).await;
    let names: Vec<EventName> = all.iter().map(OutgoingEvent::name).collect();
    settle(&*outbox, ids[0], &all[0], failed()).await;
    settle(&*outbox, ids[0], &all[2], failed()).await;
    assert!(next(&*outbox, ids[0]).await.is_empty());
    if fixture.arrange(Arrangement::Age(Duration::from_secs(86_400))).await {
        assert!(next(&*outbox, ids[0]).await.is_empty(), "a failed event is never tried by itself");
    }
    use EventState::{Behind, Failed, Pending};
    let named = |states: [EventState; 4]| {
        ["a1", "a2", "a3", "a4"].map(str::to_owned).into_iter().zip(states).collect::<Vec<_>>()
    };
    assert_eq!(states(&*outbox).await, named([Failed, Behind, Failed, Behind]));
    let failed_ones = outbox.events(Some(DESTINATIONS[0]), Some(Failed), 10).await.unwrap();
    assert_eq!((failed_ones.len(), failed_ones[0].error.as_deref()), (2, Some("never")));
    assert_eq!((failed_ones[0].event.payload.len(), failed_ones[0].payload_bytes), (0, 2));
    // The blocked events cannot be retried: they do not wait for themselves.
    assert_eq!(within("retrying", outbox.retry(&[names[0].clone(), names[1].clone()])).await.unwrap(), 1);
    let again = next(&*outbox, ids[0]).await;
    assert_eq!((bodies(&again), again[0].attempts), (vec!["a1".to_owned()], 0));
    assert_eq!(within("skipping", outbox.skip(&names[..1])).await.unwrap(), 1);
    assert_eq!(bodies(&next(&*outbox, ids[0]).await), ["a2"], "up to the next that has failed");
    assert_eq!(states(&*outbox).await, named([Pending, Pending, Failed, Behind])[1..]);
    assert_eq!(outbox.skip(&[names[0].clone(), names[2].clone()]).await.unwrap(), 1);
    assert_eq!(bodies(&next(&*outbox, ids[0]).await), ["a2", "a4"]);
}

/// Contract 3 and 4: a published event is gone, and nothing brings it back.
pub async fn settling_what_is_gone_does_no_harm<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    if !offers(&fixture) {
        return;
    }
    let (registered, (outbox, ids)) = (fixture.register().await, outbox(&fixture).await);
    publish(&fixture, &registered, ids[0], &[("1", None), ("2", None)]).await;
    let all = next(&*outbox, ids[0]).await;
    settle(&*outbox, ids[1], &all[0], EventEnd::Published).await;
    assert_eq!(next(&*outbox, ids[0]).await.len(), 2, "another destination's relay settles nothing here");
    for end in [EventEnd::Published, EventEnd::Published, later(Duration::ZERO), failed()] {
        settle(&*outbox, ids[0], &all[0], end).await;
        assert_eq!(bodies(&next(&*outbox, ids[0]).await), ["2"]);
    }
    assert_eq!(within("retrying", outbox.retry(&[all[0].name(), all[1].name()])).await.unwrap(), 0);
    within("settling nothing", outbox.settle(ids[0], &[])).await.unwrap();
    // All ends at once.
    publish(&fixture, &registered, ids[0], &[("3", None), ("4", None)]).await;
    let all = next(&*outbox, ids[0]).await;
    let ends = [EventEnd::Published, failed(), later(Duration::ZERO)];
    let ends: Vec<_> = all.iter().zip(ends).collect();
    within("settling three", outbox.settle(ids[0], &ends)).await.unwrap();
    let wanted = [("3".to_owned(), EventState::Failed), ("4".to_owned(), EventState::Waiting)];
    assert_eq!(states(&*outbox).await, wanted);
}

/// Contract 5 (O41): a number that another event has now is not that of the event that a relay had, whatever became of it.
pub async fn o41_an_event_is_settled_by_its_number_and_its_key<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    if !offers(&fixture) {
        return;
    }
    let (registered, (outbox, ids)) = (fixture.register().await, outbox(&fixture).await);
    publish(&fixture, &registered, ids[0], &[("1", Some("a")), ("2", Some("a")), ("3", None)]).await;
    let all = next(&*outbox, ids[0]).await;
    let mut lost = all[0].clone();
    lost.key = IdempotencyKey::new("lost").unwrap();
    let ends = || [EventEnd::Published, later(MINUTE), failed()];
    for end in ends() {
        settle(&*outbox, ids[0], &lost, end).await;
        let again = next(&*outbox, ids[0]).await;
        assert_eq!(bodies(&again), ["1", "2", "3"]);
        assert!(again.iter().all(|event| event.attempts == 0 && event.first_sent_ago.is_none()), "{again:?}");
    }
    // Each of two has the other's key now.
    let mut crossed = [all[0].clone(), all[2].clone()];
    (crossed[0].key, crossed[1].key) = (all[2].key.clone(), all[0].key.clone());
    let published = crossed.each_ref().map(|event| (event, EventEnd::Published));
    within("settling two others", outbox.settle(ids[0], &published)).await.unwrap();
    let names = crossed.each_ref().map(OutgoingEvent::name);
    assert_eq!(within("skipping two others", outbox.skip(&names)).await.unwrap(), 0);
    assert_eq!(bodies(&next(&*outbox, ids[0]).await), ["1", "2", "3"]);
    settle(&*outbox, ids[0], &all[0], failed()).await;
    assert_eq!(bodies(&next(&*outbox, ids[0]).await), ["3"]);
    use EventState::{Behind, Failed, Pending};
    let named = [("1".to_owned(), Failed), ("2".to_owned(), Behind), ("3".to_owned(), Pending)];
    for end in ends() {
        settle(&*outbox, ids[0], &lost, end).await;
        assert_eq!(states(&*outbox).await, named);
    }
    // An operator names the lost event too.
    let both = [lost.name(), all[1].name()];
    assert_eq!(within("retrying", outbox.retry(&both[..1])).await.unwrap(), 0);
    assert_eq!(within("skipping", outbox.skip(&both[..1])).await.unwrap(), 0);
    settle(&*outbox, ids[0], &all[2], later(Duration::ZERO)).await;
    assert_eq!(within("retrying two others", outbox.retry(&names)).await.unwrap(), 0);
    let named = [named[0].clone(), named[1].clone(), ("3".to_owned(), EventState::Waiting)];
    assert_eq!(states(&*outbox).await, named);
    // Beside one that is meant.
    let ends = [(&lost, EventEnd::Published), (&all[2], EventEnd::Published)];
    within("settling two", outbox.settle(ids[0], &ends)).await.unwrap();
    assert_eq!(states(&*outbox).await, named[..2]);
    assert!(next(&*outbox, ids[0]).await.is_empty());
    assert_eq!(outbox.skip(&both).await.unwrap(), 1);
    assert_eq!(states(&*outbox).await, named[..1]);
}

/// One answer is bounded by number and bytes, but has one event at least.
pub async fn what_is_answered_is_bounded<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    if !offers(&fixture) {
        return;
    }
    let (registered, (outbox, ids)) = (fixture.register().await, outbox(&fixture).await);
    let bodies_of = ["1".repeat(300), "2".repeat(300), "3".repeat(300)];
    for body in &bodies_of {
        let event = Event::to("payments").body(body.clone());
        unit(&fixture, &registered, &body[..9], &appended(&registered, ids[0], &body[..9], event)).await.unwrap();
    }
    for (events_max, bytes_max, wanted) in [(2, 10_000, 2), (10, 1, 1), (10, 800, 2), (10, 10_000, 3)] {
        let answered = within("reading the outbox", outbox.next(ids[0], events_max, bytes_max)).await.unwrap();
        assert_eq!(bodies(&answered), bodies_of[..wanted], "at most {events_max} events and {bytes_max} bytes");
    }
}

/// O23: behind many that wait, those of other keys are found in one call, and none of them is met again.
pub async fn o23_followers_of_one_key_hide_no_other_key<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    if !offers(&fixture) {
        return;
    }
    let (registered, (outbox, ids)) = (fixture.register().await, outbox(&fixture).await);
    let keys: Vec<String> = (0..30).map(|number| format!("a{number:02}")).collect();
    let events: Vec<(&str, Option<&'static str>)> = keys.iter().map(|key| (key.as_str(), Some("a"))).collect();
    publish(&fixture, &registered, ids[0], &events).await;
    publish(&fixture, &registered, ids[0], &[("b", Some("b"))]).await;
    let first = within("reading the outbox", outbox.next(ids[0], 4, 10_000)).await.unwrap();
    assert_eq!(bodies(&first), keys[..4]);
    for event in &first[1..] {
        settle(&*outbox, ids[0], event, later(Duration::ZERO)).await;
    }
    settle(&*outbox, ids[0], &first[0], failed()).await;
    let others = within("reading the outbox", outbox.next(ids[0], 4, 10_000)).await.unwrap();
    assert_eq!(bodies(&others), ["b"]);
    let followers = states(&*outbox).await.into_iter().filter(|(_, state)| *state == EventState::Behind).count();
    assert_eq!(followers, keys.len() - 1, "those that were sent before are marked too");
    // They go in their order, however many are let go at once.
    within("skipping", outbox.skip(&[first[0].name()])).await.unwrap();
    settle(&*outbox, ids[0], &others[0], EventEnd::Published).await;
    let mut gone = Vec::new();
    for _ in 0..40 {
        let some = within("reading the outbox", outbox.next(ids[0], 4, 10_000)).await.unwrap();
        gone.extend(bodies(&some));
        let ends: Vec<_> = some.iter().map(|event| (event, EventEnd::Published)).collect();
        within("settling", outbox.settle(ids[0], &ends)).await.unwrap();
    }
    assert_eq!(gone, keys[1..]);
    assert!(states(&*outbox).await.is_empty());
}

/// O82: an event with the longest ordering key that may be published can be noted as failed, and another one stand behind it.
pub async fn o82_the_longest_ordering_key_fails_and_waits<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    if !offers(&fixture) {
        return;
    }
    let (registered, (outbox, ids)) = (fixture.register().await, outbox(&fixture).await);
    // Bytes that a database cannot compress.
    let mut state = 1_u64;
    let longest: Vec<u8> = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state.to_be_bytes()[0]
    })
    .take(ORDERING_KEY_BYTES_MAX)
    .collect();
    for body in ["head", "behind"] {
        let event = Event::to("payments").body(body).ordering_key(longest.clone());
        unit(&fixture, &registered, body, &appended(&registered, ids[0], body, event)).await.unwrap();
    }
    let first = within("reading the outbox", outbox.next(ids[0], 1, 10_000)).await.unwrap();
    settle(&*outbox, ids[0], &first[0], failed()).await;
    assert!(within("reading the outbox", outbox.next(ids[0], 4, 10_000)).await.unwrap().is_empty());
    let now: Vec<_> = states(&*outbox).await.into_iter().map(|(_, state)| state).collect();
    assert_eq!(now, [EventState::Failed, EventState::Behind]);
    within("skipping", outbox.skip(&[first[0].name()])).await.unwrap();
    let freed = within("reading the outbox", outbox.next(ids[0], 4, 10_000)).await.unwrap();
    assert_eq!(bodies(&freed), ["behind"]);
}

/// One relay at a time has a destination, by the database's clock, until it gives it up or is paused.
pub async fn one_relay_at_a_time_has_a_destination<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    if !offers(&fixture) {
        return;
    }
    let (outbox, ids) = outbox(&fixture).await;
    let lease = async |relay: &str| {
        let request = LeaseRequest::new(relay, MINUTE).receiver_keeps(3 * MINUTE);
        within("leasing", outbox.lease(ids[0], request)).await.unwrap()
    };
    assert_eq!(first_of(&*outbox, None).await.receiver_keeps, RECEIVER_KEEPS);
    assert_eq!(lease("one").await, Leased::Mine);
    assert_eq!(first_of(&*outbox, None).await.receiver_keeps, 3 * MINUTE, "operators go by it");
    assert_eq!(lease("one").await, Leased::Mine, "it is renewed");
    let Leased::Others { left } = lease("two").await else { panic!("two relays have one destination") };
    assert!(left > Duration::ZERO && left <= MINUTE, "{left:?}");
    assert_eq!(
        outbox.lease(ids[1], LeaseRequest::new("two", MINUTE)).await.unwrap(),
        Leased::Mine,
        "another destination is free"
    );
    outbox.release(ids[0], "two").await.unwrap();
    assert!(matches!(lease("two").await, Leased::Others { .. }), "it is not its to release");
    assert_eq!(first_of(&*outbox, None).await.relayed_by.as_deref(), Some("one"));
    outbox.release(ids[0], "one").await.unwrap();
    assert_eq!(lease("two").await, Leased::Mine);
    if fixture.arrange(Arrangement::Age(2 * MINUTE)).await {
        assert_eq!(first_of(&*outbox, None).await.relayed_by, None);
        assert_eq!(lease("three").await, Leased::Mine, "the lease of one that died ends");
    }
    // O55: a clock that was ahead gave a lease, and was set right.
    for (relay, time) in [("two", 3 * MINUTE), ("three", MINUTE)] {
        assert_eq!(outbox.lease(ids[1], LeaseRequest::new(relay, time)).await.unwrap(), Leased::Mine);
    }
    assert!(outbox.pause(DESTINATIONS[0], true).await.unwrap());
    assert!(!outbox.pause("nowhere", true).await.unwrap());
    assert_eq!(lease("three").await, Leased::Paused);
    assert!(first_of(&*outbox, None).await.is_paused);
    // O75: the relay that has it may have events in hand, and keeps its lease; it gets no new one.
    if fixture.arrange(Arrangement::Age(MINUTE / 2)).await {
        assert_eq!(lease("three").await, Leased::Paused);
        fixture.arrange(Arrangement::Age(3 * MINUTE / 4)).await;
        assert_eq!(first_of(&*outbox, None).await.relayed_by.as_deref(), Some("three"));
        fixture.arrange(Arrangement::Age(MINUTE / 2)).await;
        assert_eq!(lease("three").await, Leased::Paused);
        assert_eq!(first_of(&*outbox, None).await.relayed_by, None);
    }
    assert!(outbox.pause(DESTINATIONS[0], false).await.unwrap());
    assert_eq!(lease("three").await, Leased::Mine);
}

/// The backlog of the first of the destinations.
async fn first_of(outbox: &dyn Outbox, consumer: Option<&ConsumerName>) -> OutboxBacklog {
    let all = within("the backlog", outbox.backlog(consumer)).await.unwrap();
    all.into_iter().find(|backlog| backlog.destination == DESTINATIONS[0]).unwrap()
}

/// A destination keeps its id and the form of its events' ids.
pub async fn a_destination_is_declared_once<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    if !offers(&fixture) {
        return;
    }
    let (outbox, ids) = outbox(&fixture).await;
    let again = [DESTINATIONS[1], "third", DESTINATIONS[0]].map(Destination::from);
    let declared = within("declaring", outbox.declare(&again)).await.unwrap();
    let declared: Vec<_> = declared.into_iter().map(|row| row.id).collect();
    assert_eq!((declared[0], declared[2]), (ids[1], ids[0]));
    assert!(!ids.contains(&declared[1]));
    let other = [Destination::new(DESTINATIONS[0]).id_form(IdForm::Hex32)];
    let refused = within("declaring", outbox.declare(&other)).await.unwrap_err().to_string();
    assert!(["hex32", "uuid8", DESTINATIONS[0]].iter().all(|part| refused.contains(part)), "{refused}");
    let names: Vec<String> = outbox.backlog(None).await.unwrap().into_iter().map(|row| row.destination).collect();
    assert_eq!(names, [DESTINATIONS[1], DESTINATIONS[0], "third"], "by name");
}

/// The backlog is counted for each destination, and for one writer on request.
pub async fn what_waits_is_told_by_writer<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    if !offers(&fixture) {
        return;
    }
    let (registered, (outbox, ids)) = (fixture.register().await, outbox(&fixture).await);
    publish(&fixture, &registered, ids[0], &[("1", None), ("2", None)]).await;
    let [orders, nobody] = ["orders", "nobody"].map(|name| ConsumerName::new(name).unwrap());
    for (consumer, pending) in [(None, 2), (Some(&orders), 2), (Some(&nobody), 0)] {
        let first = first_of(&*outbox, consumer).await;
        assert_eq!((first.pending, first.oldest.is_some()), (pending, pending > 0), "{consumer:?}");
        let backlog = within("the backlog", outbox.backlog(consumer)).await.unwrap();
        assert_eq!((backlog.len(), backlog[0].pending, backlog[0].oldest), (2, 0, None));
    }
    // O25: how long its receivers must have remembered a copy, where one may have been sent.
    let both = next(&*outbox, ids[0]).await;
    let [first, second] = &both[..] else { panic!("{both:?}") };
    settle(&*outbox, ids[0], second, failed()).await;
    assert_eq!(first_of(&*outbox, None).await.first_sent_ago, None, "it was not sent");
    settle(&*outbox, ids[0], first, later(Duration::ZERO)).await;
    if fixture.arrange(Arrangement::Age(MINUTE)).await {
        let ago = first_of(&*outbox, None).await.first_sent_ago;
        assert!(ago.is_some_and(|ago| ago >= MINUTE), "{ago:?}");
    }
    assert_eq!(within("retrying", outbox.retry(&[first.name()])).await.unwrap(), 1);
    assert!(first_of(&*outbox, None).await.first_sent_ago.is_some(), "who lets it go does not take it back");
}

/// O106: what may go and does not is told apart from what waits for its next try, as with one endpoint of many that fails.
pub async fn o106_what_may_go_is_told_apart_from_what_waits<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    if !offers(&fixture) {
        return;
    }
    let (registered, (outbox, ids)) = (fixture.register().await, outbox(&fixture).await);
    let ages = async || {
        let backlog = first_of(&*outbox, None).await;
        (backlog.oldest.is_some_and(|age| age >= MINUTE), backlog.due.map(|age| age >= MINUTE))
    };
    publish(&fixture, &registered, ids[0], &[("1", None)]).await;
    assert_eq!(ages().await, (false, Some(false)));
    if !fixture.arrange(Arrangement::Age(2 * MINUTE)).await {
        return;
    }
    assert_eq!(ages().await, (true, Some(true)), "nobody relays it");
    let taken = next(&*outbox, ids[0]).await.remove(0);
    settle(&*outbox, ids[0], &taken, later(3 * MINUTE)).await;
    assert_eq!(ages().await, (true, None), "it waits for its next try");
    assert!(fixture.arrange(Arrangement::Age(3 * MINUTE)).await);
    assert_eq!(ages().await, (true, Some(false)), "its wait has just ended");
    settle(&*outbox, ids[0], &taken, failed()).await;
    assert_eq!(ages().await, (false, None));
}

/// O25: a relay whose lease ran out has recorded nothing about the events in its hands. Every event that was free to go by
/// then, and has no outcome, may have been sent since.
pub async fn o25_what_a_relay_that_died_had_in_hand_may_have_been_sent<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    if !offers(&fixture) {
        return;
    }
    let (registered, (outbox, ids)) = (fixture.register().await, outbox(&fixture).await);
    let sent = async || {
        let events = within("listing events", outbox.events(None, None, 1_000)).await.unwrap();
        let sent = |stored: StoredEvent| (stored.event.key.to_string(), stored.event.first_sent_ago.is_some());
        events.into_iter().map(sent).collect::<Vec<_>>()
    };
    let all = |is_sent: [bool; 3]| ["1", "k1", "k2"].map(str::to_owned).into_iter().zip(is_sent).collect::<Vec<_>>();
    let lease =
        async |relay: &str| within("leasing", outbox.lease(ids[0], LeaseRequest::new(relay, MINUTE))).await.unwrap();
    publish(&fixture, &registered, ids[0], &[("1", None), ("k1", Some("k")), ("k2", Some("k"))]).await;
    for relay in ["one", "one", "two"] {
        assert_eq!(lease(relay).await, Leased::Mine);
        next(&*outbox, ids[0]).await;
        outbox.release(ids[0], relay).await.unwrap();
    }
    assert_eq!(sent().await, all([false; 3]), "who lets it go has nothing in hand");
    assert_eq!(lease("one").await, Leased::Mine);
    let in_hand = next(&*outbox, ids[0]).await;
    if !fixture.arrange(Arrangement::Age(2 * MINUTE)).await {
        return;
    }
    assert_eq!(lease("one").await, Leased::Mine);
    assert_eq!(
        sent().await,
        all([true; 3]),
        "it is late, as after a restore, and for all that is known it has sent them"
    );
    assert!(fixture.arrange(Arrangement::Age(2 * MINUTE)).await);
    publish(&fixture, &registered, ids[0], &[("later", None)]).await;
    assert_eq!(lease("two").await, Leased::Mine);
    let again = next(&*outbox, ids[0]).await;
    let ago = |event: &OutgoingEvent| event.first_sent_ago.is_some_and(|ago| ago >= 4 * MINUTE);
    assert_eq!(again.iter().map(ago).collect::<Vec<_>>(), [true, true, true, false], "{again:?}");
    assert_eq!(again[3].first_sent_ago, None);
    let known = async || first_of(&*outbox, None).await.first_sent_ago;
    assert!(known().await.is_some_and(|ago| ago >= 4 * MINUTE));
    // No outcome of a later copy makes the first one younger.
    settle(&*outbox, ids[0], &in_hand[0], later(Duration::ZERO)).await;
    settle(&*outbox, ids[0], &in_hand[1], failed()).await;
    let again = next(&*outbox, ids[0]).await;
    assert!(again.iter().any(|event| event.number == in_hand[0].number && ago(event)), "{again:?}");
    assert_eq!(sent().await[..3], all([true; 3]), "one waits, one failed, and one is behind it");
    for event in [&in_hand[0], &in_hand[1], again.last().unwrap()] {
        settle(&*outbox, ids[0], event, EventEnd::Published).await;
    }
    let [ref follower] = next(&*outbox, ids[0]).await[..] else { panic!("k2 may go") };
    assert!(ago(follower), "{follower:?}");
}

/// O25: an event that waited for a person, or behind one that did, was in no relay's hands meanwhile, whichever died.
pub async fn o25_what_waited_behind_others_was_in_nobodys_hands<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    if !offers(&fixture) {
        return;
    }
    let (registered, (outbox, ids)) = (fixture.register().await, outbox(&fixture).await);
    let lease =
        async |relay: &str| within("leasing", outbox.lease(ids[0], LeaseRequest::new(relay, MINUTE))).await.unwrap();
    publish(&fixture, &registered, ids[0], &[("k1", Some("k")), ("k2", Some("k"))]).await;
    assert_eq!(lease("one").await, Leased::Mine);
    let first = next(&*outbox, ids[0]).await.remove(0);
    settle(&*outbox, ids[0], &first, failed()).await;
    assert!(next(&*outbox, ids[0]).await.is_empty(), "it is marked as behind");
    if !fixture.arrange(Arrangement::Age(2 * MINUTE)).await {
        return;
    }
    assert_eq!(lease("two").await, Leased::Mine);
    assert_eq!(first_of(&*outbox, None).await.first_sent_ago, None);
    assert_eq!(within("retrying", outbox.retry(&[first.name()])).await.unwrap(), 1);
    assert_eq!(next(&*outbox, ids[0]).await[0].first_sent_ago, None, "it may go from now on");
    // Two dies with it in hand.
    assert!(fixture.arrange(Arrangement::Age(2 * MINUTE)).await);
    assert_eq!(lease("three").await, Leased::Mine);
    let ago = next(&*outbox, ids[0]).await[0].first_sent_ago;
    assert!(ago.is_some_and(|ago| (2 * MINUTE..4 * MINUTE).contains(&ago)), "{ago:?}");
    settle(&*outbox, ids[0], &first, EventEnd::Published).await;
    assert_eq!(next(&*outbox, ids[0]).await[0].first_sent_ago, None, "it was behind the other until now");
}

/// O100: a relay notes that an event is under way, and then learns that nothing of it was sent: the mark of that try goes, that of an
/// older one stays, and so does one whose wait is over, when another relay may have the event.
pub async fn o100_a_note_of_a_try_that_sent_nothing_is_taken_back<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    if !offers(&fixture) {
        return;
    }
    let (registered, (outbox, ids)) = (fixture.register().await, outbox(&fixture).await);
    let tried = |after: Duration, may_be_sent: bool, error: &str| EventEnd::Later {
        after,
        error: error.to_owned(),
        may_be_sent,
        counted: false,
    };
    let unsent = || tried(MINUTE, false, "refused");
    // Whether it was sent before, for how long it is noted as under way, what became of it, and whether it may have been sent.
    let cases = [
        ("not sent", false, MINUTE, unsent(), false),
        ("fits not", false, MINUTE, failed(), false),
        ("no answer", false, MINUTE, later(MINUTE), true),
        ("sent before", true, MINUTE, unsent(), true),
        ("too late", false, Duration::ZERO, unsent(), true),
    ];
    for (body, was_sent, noted_for, end, is_sent) in cases {
        publish(&fixture, &registered, ids[0], &[(body, None)]).await;
        if was_sent {
            settle(&*outbox, ids[0], &next(&*outbox, ids[0]).await[0], later(Duration::ZERO)).await;
        }
        let taken = next(&*outbox, ids[0]).await.remove(0);
        assert_eq!(taken.first_sent_ago.is_some(), was_sent, "{body}");
        let now = async || {
            let all = within("listing events", outbox.events(None, None, 1_000)).await.unwrap();
            all.into_iter().find(|stored| stored.event.number == taken.number).unwrap().event.first_sent_ago
        };
        settle(&*outbox, ids[0], &taken, tried(noted_for, true, UNDER_WAY)).await;
        assert!(now().await.is_some(), "{body}: the relay may die now");
        settle(&*outbox, ids[0], &taken, end).await;
        assert_eq!(now().await.is_some(), is_sent, "{body}");
    }
}
