//! The relay, on the store in memory and on destinations that fail in every way.

#![allow(clippy::disallowed_methods, reason = "a relay that is aborted is one whose process died")]

mod fixture;
mod identity;
mod limits;
mod measured;
mod side_by_side;
mod worker;

use std::{collections::BTreeMap, time::Duration};

use idem_core::{
    ConsumerName,
    config::RetryPolicy,
    outbox::{EventState, LeaseRequest},
    relay::{RelayStanding, Route},
};
use idem_testkit::Operation;
use tokio::time::{Instant, sleep};

use self::fixture::{Does, Fixture, Topic, running};

fn bodies(numbers: std::ops::Range<u32>) -> Vec<String> {
    numbers.map(|number| number.to_string()).collect()
}

/// The ids of the events in the outbox, in the order in which they were committed.
fn ids(fixture: &Fixture) -> Vec<String> {
    fixture.store.events().iter().map(|(_, event)| event.key.as_str().to_owned()).collect()
}

#[tokio::test(start_paused = true)]
async fn every_event_arrives_once_and_in_order_and_the_outbox_is_empty() {
    let (fixture, topic) = (Fixture::new(), Topic::new());
    fixture.commit_many("a", 0..250).await;
    let relay = fixture.relay().to("a", topic.clone()).build().unwrap();
    let view = relay.view();
    let stop = idem_core::CancellationToken::new();
    let run = tokio::spawn(relay.run(stop.clone().cancelled_owned()));
    fixture.drained_to(0).await;
    assert_eq!(topic.arrived(), bodies(0..250));
    assert!(view.is_idle().await);
    assert_eq!((view.published(), view.destinations()[0].standing), (250, RelayStanding::Relaying));
    stop.cancel();
    run.await.unwrap().unwrap();
    assert_eq!(fixture.outbox().backlog(None).await.unwrap()[0].relayed_by, None, "the lease was released");
}

/// O2: an event that was sent and not confirmed when its relay dies is sent again under its id; another relay goes on within 2
/// s.
#[tokio::test(start_paused = true)]
async fn o2_a_relay_that_dies_before_the_confirmation_leaves_a_copy_and_no_hole() {
    let fixture = Fixture::new();
    fixture.commit_many("a", 0..5).await;
    let ids = ids(&fixture);
    let first = Topic::new().with("2", Does::Hangs);
    let dying = running(fixture.relay().to("a", first.clone()).build().unwrap());
    while !first.set().contains("2") {
        sleep(Duration::from_millis(1)).await;
    }
    let second = Topic::new();
    let other = running(fixture.relay().to("a", second.clone()).build().unwrap());
    sleep(Duration::from_secs(5)).await;
    assert_eq!(second.arrived(), [""; 0], "the first one has the destination");
    dying.abort();
    let died = Instant::now();
    fixture.drained_to(0).await;
    assert!(died.elapsed() < Duration::from_secs(2), "{:?}", died.elapsed());
    assert_eq!(second.arrived(), bodies(0..5), "all of the batch, in order");
    assert_eq!(first.arrived(), bodies(0..3), "so there were copies");
    assert_eq!((first.ids(), second.ids()), (ids[..3].to_vec(), ids), "each under its id");
    other.abort();
}

/// O2: at whatever moment of its lease a relay dies, another one has sent the next event by the end of that lease.
#[tokio::test(start_paused = true)]
async fn o2_another_relay_goes_on_by_the_end_of_the_lease_whenever_the_first_one_dies() {
    let lease = Duration::from_millis(1_500);
    for moment in 0..15 {
        let (fixture, first, second) = (Fixture::new(), Topic::new(), Topic::new());
        fixture.commit_many("a", 0..1).await;
        let dying = running(fixture.relay().to("a", first.clone()).build().unwrap());
        fixture.drained_to(0).await;
        let other = running(fixture.relay().to("a", second.clone()).build().unwrap());
        sleep(Duration::from_secs(5) + moment * Duration::from_millis(100)).await;
        dying.abort();
        let died = Instant::now();
        fixture.commit_many("a", 1..2).await;
        fixture.drained_to(0).await;
        let took = died.elapsed();
        assert_eq!((first.arrived(), second.arrived()), (bodies(0..1), bodies(1..2)));
        // Beside the lease, the pause before it is asked for again, and this test's own look.
        assert!(took < lease + Duration::from_millis(50), "killed {moment} tenths later: {took:?}");
        other.abort();
    }
}

/// The same where the first relay is alive and its publisher hangs: it keeps the destination, and goes on after the deadline.
#[tokio::test(start_paused = true)]
async fn a_publisher_that_hangs_is_given_up_at_the_deadline_and_its_lease_is_kept() {
    let (fixture, topic) = (Fixture::new(), Topic::new().with("0", Does::Hangs));
    fixture.commit_many("a", 0..1).await;
    let relay = fixture.relay().to("a", topic.clone()).build().unwrap();
    let view = relay.view();
    let run = running(relay);
    sleep(Duration::from_secs(9)).await;
    assert!(fixture.outbox().backlog(None).await.unwrap()[0].relayed_by.is_some(), "renewed while it publishes");
    sleep(Duration::from_millis(1_500)).await;
    let (why, _) = view.destinations()[0].trouble.clone().expect("trouble");
    assert!(why.contains("no confirmation came within 10s"), "{why}");
    topic.mend("0");
    fixture.drained_to(0).await;
    assert_eq!(topic.arrived(), ["0", "0"]);
    assert!(view.destinations()[0].trouble.is_none());
    run.abort();
}

/// O4: the notes of a relay that has lost its destination are of events that are gone, and bring none of them back.
#[tokio::test(start_paused = true)]
async fn o4_a_note_that_comes_late_brings_no_event_back() {
    let (fixture, topic) = (Fixture::new(), Topic::new());
    fixture.commit_many("a", 0..3).await;
    let id = fixture.outbox().declare(&["a".into()]).await.unwrap()[0].id;
    // The events in the hands of a frozen relay.
    let taken = fixture.outbox().next(id, 10, 1 << 20).await.unwrap();
    let run = running(fixture.relay().to("a", topic.clone()).build().unwrap());
    fixture.drained_to(0).await;
    let late = idem_core::outbox::EventEnd::Later {
        after: Duration::ZERO,
        error: "late".to_owned(),
        may_be_sent: true,
        counted: true,
    };
    let ends: Vec<_> = taken.iter().map(|event| (event, late.clone())).collect();
    fixture.outbox().settle(id, &ends).await.unwrap();
    sleep(Duration::from_secs(5)).await;
    assert_eq!(fixture.store.events().len(), 0);
    assert_eq!(topic.arrived(), bodies(0..3), "each once");
    run.abort();
}

/// O4: a relay cannot renew its lease while its publisher is slow, and another one takes over: the first one sends neither the next
/// event of the round that it had taken, nor one that waits in the outbox still.
#[tokio::test(start_paused = true)]
async fn o4_a_relay_that_has_lost_its_destination_sends_nothing_more() {
    let (lease, busy) = (Duration::from_millis(300), Duration::from_secs(5));
    // The first answer comes within the time of one step, or later than any step lasts.
    let cases = [(Topic::new(), 400), (Topic::new(), 3_000), (Topic::each(1), 3_000)];
    for (topic, answers_after) in cases {
        let fixture = Fixture::new();
        fixture.commit((0..2).map(|body| ("a", "x".to_owned(), body.to_string()))).await;
        let first = topic.with("0", Does::AnswersAfter(Duration::from_millis(answers_after)));
        let second = Topic::new().with("1", Does::AnswersAfter(busy));
        let relay = |to: &Topic| {
            running(fixture.relay().to("a", to.clone()).settings(|settings| settings.lease = lease).build().unwrap())
        };
        let slow = relay(&first);
        while first.arrived().is_empty() {
            sleep(Duration::from_millis(1)).await;
        }
        // This meets its next statement, which is the renewal: it has no place for another event.
        fixture.store.inject(Operation::Bookkeeping, idem_testkit::Fault::Delay(Duration::from_secs(20)));
        while fixture.store.faults_left(Operation::Bookkeeping) > 0 {
            sleep(Duration::from_millis(1)).await;
        }
        let other = relay(&second);
        fixture.drained_to(0).await;
        sleep(Duration::from_secs(30)).await;
        assert_eq!(first.arrived(), ["0"], "answered after {answers_after} ms");
        assert_eq!(second.arrived().last().map(String::as_str), Some("1"), "the other one has the destination");
        slow.abort();
        other.abort();
    }
}

/// O8: an event that its destination can never take waits for a person, and holds back its own ordering key alone.
#[tokio::test(start_paused = true)]
async fn o8_a_poison_event_waits_for_a_person_and_the_others_go() {
    let (fixture, topic) = (Fixture::new(), Topic::new().with("1", Does::NeverFits));
    let of = |key: &str, body: u32| ("a", key.to_owned(), body.to_string());
    fixture.commit([of("x", 0), of("x", 1), of("x", 2), of("y", 3), of("", 4)]).await;
    let run = running(fixture.relay().to("a", topic.clone()).build().unwrap());
    fixture.drained_to(2).await;
    sleep(Duration::from_secs(60)).await;
    assert_eq!(topic.arrived(), ["0", "3", "4"]);
    let failed = fixture.left(EventState::Failed).await;
    assert_eq!(failed.len(), 1);
    assert_eq!(failed[0].error.as_deref(), Some("too large"));
    assert_eq!(fixture.left(EventState::Behind).await.len(), 1);
    topic.mend("1");
    fixture.outbox().retry(&[failed[0].event.name()]).await.unwrap();
    fixture.drained_to(0).await;
    assert_eq!(topic.arrived(), ["0", "3", "4", "1", "2"], "in the order of their key");
    run.abort();
}

/// O9: an outage of the broker charges no attempts however long it lasts, marks a bounded number of events, and later events go
/// at once.
#[tokio::test(start_paused = true)]
async fn o9_an_hours_outage_charges_nobody_and_drains() {
    let (fixture, topic) = (Fixture::new(), Topic::new());
    topic.away(true);
    fixture.commit_many("a", 0..1_000).await;
    let relay = fixture.relay().to("a", topic.clone()).build().unwrap();
    let view = relay.view();
    let run = running(relay);
    sleep(Duration::from_secs(3_600)).await;
    assert_eq!(fixture.left(EventState::Failed).await.len(), 0);
    assert!(fixture.store.events().iter().all(|(_, event)| event.attempts == 0));
    let sent = fixture.store.events().iter().filter(|(_, event)| event.first_sent_ago.is_some()).count();
    assert!(sent <= 100 + 3_600 / 8, "{sent} were noted");
    let (why, since) = view.destinations()[0].trouble.clone().expect("trouble");
    assert!(why.contains("no broker") && since > Duration::from_secs(3_500), "{why} {since:?}");
    assert!(!view.is_idle().await);
    topic.away(false);
    let mended = Instant::now();
    fixture.drained_to(0).await;
    assert!(mended.elapsed() < Duration::from_secs(45), "{:?}", mended.elapsed());
    assert_eq!(topic.set().len(), 1_000);
    fixture.commit_many("a", 1_000..1_001).await;
    let committed = Instant::now();
    fixture.drained_to(0).await;
    assert!(committed.elapsed() < Duration::from_secs(2));
    run.abort();
}

/// A destination that refuses everything, as where a topic is not there: no event is charged or noted, and it goes on by
/// itself.
#[tokio::test(start_paused = true)]
async fn o9_a_destination_that_refuses_all_is_waited_for() {
    let (fixture, topic) = (Fixture::new(), Topic::new());
    topic.refuses(true);
    fixture.commit_many("a", 0..50).await;
    let relay = fixture.relay().to("a", topic.clone()).build().unwrap();
    let view = relay.view();
    let run = running(relay);
    sleep(Duration::from_secs(3_600)).await;
    assert_eq!(fixture.left(EventState::Pending).await.len(), 50);
    assert!(topic.calls() < 3_600, "{} calls", topic.calls());
    let (why, _) = view.destinations()[0].trouble.clone().expect("trouble");
    assert_eq!(why, "no such topic. Create it");
    topic.refuses(false);
    fixture.drained_to(0).await;
    assert_eq!(topic.arrived(), bodies(0..50));
    run.abort();
}

/// O10: a destination that no relay has keeps its events, and gets them once one has it; the others are not held back.
#[tokio::test(start_paused = true)]
async fn o10_a_destination_without_a_route_keeps_its_events() {
    let (fixture, a, b) = (Fixture::new(), Topic::new(), Topic::new());
    fixture.commit_many("b", 0..10).await;
    fixture.commit_many("a", 0..10).await;
    let run = running(fixture.relay().to("a", a.clone()).build().unwrap());
    fixture.drained_to(10).await;
    sleep(Duration::from_secs(600)).await;
    assert_eq!((a.arrived(), fixture.store.events().len()), (bodies(0..10), 10));
    run.abort();
    let run = running(fixture.relay().to("a", a).to("b", b.clone()).build().unwrap());
    fixture.drained_to(0).await;
    assert_eq!(b.arrived(), bodies(0..10));
    run.abort();
}

/// O24: under any failure, the first copies of one ordering key arrive in the order of their commits.
#[tokio::test(start_paused = true)]
async fn o24_first_copies_of_a_key_arrive_in_order_whatever_fails() {
    let (fixture, mut topic) = (Fixture::new(), Topic::new());
    let mut rng = fastrand::Rng::with_seed(idem_testkit::seed());
    let all: Vec<_> = (0..300).map(|number: u32| (number % 7, number)).collect();
    for (_, number) in &all {
        match rng.u8(..10) {
            0 => topic = topic.with(&number.to_string(), Does::LosesTheAnswer),
            1 => topic = topic.with(&number.to_string(), Does::FailsAndCounts),
            _ => {}
        }
    }
    fixture.commit(all.iter().map(|(key, number)| ("a", key.to_string(), number.to_string()))).await;
    let retry = RetryPolicy::new(100, Duration::from_millis(50), Duration::from_secs(1));
    let run = running(fixture.relay().route(Route::to("a", topic.clone()).retry(retry)).build().unwrap());
    sleep(Duration::from_secs(10)).await;
    for (_, number) in &all {
        topic.mend(&number.to_string());
        sleep(Duration::from_millis(100)).await;
    }
    fixture.drained_to(0).await;
    let mut first: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for body in topic.arrived() {
        let number: u32 = body.parse().unwrap();
        let of_key = first.entry(number % 7).or_default();
        if !of_key.contains(&number) {
            of_key.push(number);
        }
    }
    assert!(topic.arrived().len() > 300, "no answer was lost");
    for (key, numbers) in first {
        assert!(numbers.is_sorted(), "key {key}: {numbers:?}");
    }
    assert_eq!(topic.set().len(), 300);
    run.abort();
}

/// An event that uses its attempts up waits for a person, and is never discarded; one that panics its publisher is found out.
#[tokio::test(start_paused = true)]
async fn o8_attempts_used_up_and_panics_cost_their_own_event() {
    let topic = Topic::new().with("3", Does::FailsAndCounts).with("5", Does::Panics);
    let fixture = Fixture::new();
    fixture.commit_many("a", 0..10).await;
    let retry = RetryPolicy::new(3, Duration::from_millis(100), Duration::from_secs(1));
    let run = running(fixture.relay().route(Route::to("a", topic.clone()).retry(retry)).build().unwrap());
    fixture.drained_to(2).await;
    while fixture.left(EventState::Failed).await.len() < 2 {
        sleep(Duration::from_millis(100)).await;
    }
    let failed = fixture.left(EventState::Failed).await;
    let errors: Vec<_> = failed.iter().map(|event| event.error.clone().unwrap()).collect();
    assert!(errors[0].contains("attempt 3 of 3") && errors[0].contains("not this one"), "{}", errors[0]);
    assert!(errors[1].contains("the publisher panicked"), "{}", errors[1]);
    assert_eq!(topic.set().len(), 8);
    run.abort();
}

/// O25: an event is not sent again once its receivers may have forgotten the first copy.
#[tokio::test(start_paused = true)]
async fn o25_an_event_whose_first_copy_is_old_is_left_to_a_person() {
    let (fixture, topic) = (Fixture::new(), Topic::new().with("0", Does::LosesTheAnswer));
    fixture.commit_many("a", 0..1).await;
    let keeps = Duration::from_secs(2 * 60 * 60);
    let relay = || fixture.relay().route(Route::to("a", topic.clone()).receiver_keeps(keeps)).build().unwrap();
    let run = running(relay());
    sleep(Duration::from_secs(5)).await;
    run.abort();
    let known = fixture.outbox().backlog(None).await.unwrap();
    assert_eq!(known[0].receiver_keeps, keeps, "O51: operators go by it");
    let before = topic.arrived().len();
    the_first_is_stale_an_hour_later(&fixture, relay()).await;
    assert_eq!(topic.arrived()[before..], ["1"], "one that was never sent goes, however old");
}

/// Another event comes, and an hour later this relay: it leaves the one from before to a person.
async fn the_first_is_stale_an_hour_later(fixture: &Fixture, relay: idem_core::relay::Relay) {
    // Behind the end of the first relay's lease: an event that could go before may have been in its hands.
    sleep(Duration::from_secs(2)).await;
    fixture.commit_many("a", 1..2).await;
    sleep(Duration::from_secs(60 * 60)).await;
    let run = running(relay);
    fixture.drained_to(1).await;
    sleep(Duration::from_secs(60)).await;
    let failed = fixture.left(EventState::Failed).await;
    assert!(failed[0].error.as_deref().unwrap().starts_with("stale: "), "{failed:?}");
    run.abort();
}

/// O13: after a restore, what was published since the backup comes again under the same ids, and counts as sent.
#[tokio::test(start_paused = true)]
async fn o13_after_a_restore_what_was_published_comes_again_under_the_same_ids() {
    let (fixture, topic) = (Fixture::new(), Topic::new().with("0", Does::Hangs));
    fixture.commit_many("a", 0..5).await;
    let before = ids(&fixture);
    let run = running(fixture.relay().to("a", topic.clone()).build().unwrap());
    while topic.arrived().is_empty() {
        sleep(Duration::from_millis(1)).await;
    }
    let backup = fixture.store.checkpoint();
    topic.mend("0");
    fixture.drained_to(0).await;
    run.abort();
    sleep(Duration::from_secs(60)).await;
    fixture.store.go_back_to(&backup);
    let sent = topic.arrived().len();
    let id = fixture.outbox().declare(&["a".into()]).await.unwrap()[0].id;
    fixture.outbox().lease(id, LeaseRequest::new("the next", Duration::from_secs(1))).await.unwrap();
    assert!(fixture.store.events().iter().all(|(_, event)| event.first_sent_ago.is_some()));
    let run = running(fixture.relay().to("a", topic.clone()).build().unwrap());
    fixture.drained_to(0).await;
    assert_eq!(topic.arrived()[sent..], bodies(0..5));
    assert_eq!((&topic.ids()[..1], &topic.ids()[sent..]), (&before[..1], &before[..]));
    run.abort();
}

/// J63: who publishes without a worker puts back what another server has lost, before it commits anything there.
#[tokio::test(start_paused = true)]
async fn j63_a_failover_that_loses_a_destination_is_noticed_without_a_worker() {
    let fixture = Fixture::new();
    let standby = fixture.store.checkpoint();
    fixture.commit_many("a", 0..1).await;
    fixture.store.go_back_to(&standby);
    assert!(fixture.outbox().backlog(None).await.unwrap().is_empty(), "the rows are lost");
    // The first call finds its connection lost.
    let _ = fixture.consumer.process([idem_testkit::message("lost", r#"["a","","lost"]"#)]).await;
    fixture.commit_many("a", 1..2).await;
    let backlog = fixture.outbox().backlog(Some(&ConsumerName::new("teller").unwrap())).await.unwrap();
    assert!(backlog.iter().any(|of| of.destination == "a" && of.pending > 0), "{backlog:?}");
}

/// O25: a relay that dies after it has sent an event has noted nothing of it.
#[tokio::test(start_paused = true)]
async fn o25_an_event_that_a_relay_died_with_may_have_been_sent() {
    let (fixture, topic) = (Fixture::new(), Topic::new().with("0", Does::Hangs));
    fixture.commit_many("a", 0..1).await;
    let keeps = Duration::from_secs(2 * 60 * 60);
    let relay = || fixture.relay().route(Route::to("a", topic.clone()).receiver_keeps(keeps)).build().unwrap();
    let run = running(relay());
    while topic.arrived().is_empty() {
        sleep(Duration::from_millis(1)).await;
    }
    run.abort();
    topic.mend("0");
    the_first_is_stale_an_hour_later(&fixture, relay()).await;
    assert_eq!(topic.arrived(), ["0", "1"], "nobody had the second one in hand");
}

/// O25: a relay that ends without having noted the outcome of an event leaves its lease to run out, or the next one would
/// assume that it had no events in hand.
#[tokio::test(start_paused = true)]
async fn o25_a_relay_that_could_not_note_an_outcome_does_not_release_its_destination() {
    let (fixture, topic) = (Fixture::new(), Topic::new());
    fixture.commit_many("a", 0..1).await;
    let (lease, stop) = (Duration::from_secs(60), idem_core::CancellationToken::new());
    let relay = fixture.relay().to("a", topic.clone()).settings(|settings| settings.lease = lease).build().unwrap();
    let run = tokio::spawn(relay.run(stop.clone().cancelled_owned()));
    while topic.calls() == 0 {
        sleep(Duration::from_micros(100)).await;
    }
    // As often as it tries at its end.
    for _ in 0..4 {
        let class = idem_core::ErrorClass::Infrastructure;
        fixture.store.inject(Operation::Bookkeeping, idem_testkit::Fault::Error(class));
    }
    stop.cancel();
    run.await.unwrap().unwrap();
    let backlog = fixture.outbox().backlog(None).await.unwrap();
    assert_eq!((topic.arrived().len(), backlog[0].pending, backlog[0].relayed_by.is_some()), (1, 1, true));
    sleep(lease).await;
    fixture.outbox().lease(backlog[0].id, LeaseRequest::new("the next", lease)).await.unwrap();
    assert!(fixture.outbox().backlog(None).await.unwrap()[0].first_sent_ago.is_some());
}

/// A paused destination is left alone, and goes on.
#[tokio::test(start_paused = true)]
async fn a_paused_destination_rests_and_goes_on() {
    let (fixture, topic) = (Fixture::new(), Topic::new());
    let relay = fixture.relay().to("a", topic.clone()).build().unwrap();
    let view = relay.view();
    let run = running(relay);
    fixture.commit_many("a", 0..1).await;
    fixture.drained_to(0).await;
    fixture.outbox().pause("a", true).await.unwrap();
    sleep(Duration::from_secs(2)).await;
    fixture.commit_many("a", 1..2).await;
    sleep(Duration::from_secs(60)).await;
    assert_eq!((topic.arrived().len(), view.destinations()[0].standing), (1, RelayStanding::Paused));
    fixture.outbox().pause("a", false).await.unwrap();
    fixture.drained_to(0).await;
    run.abort();
}

/// O40: a relay whose destination is paused notes what it had in hand, and lets go of it: nothing else was sent.
#[tokio::test(start_paused = true)]
async fn o40_a_relay_lets_go_of_a_paused_destination() {
    let fixture = Fixture::new();
    let relay = fixture.relay().to("a", Topic::new()).build().unwrap();
    let run = running(relay);
    fixture.commit_many("a", 0..1).await;
    fixture.drained_to(0).await;
    fixture.outbox().pause("a", true).await.unwrap();
    // Later than it notices, and before its lease would have run out.
    sleep(Duration::from_millis(800)).await;
    fixture.commit_many("a", 1..2).await;
    sleep(Duration::from_secs(60)).await;
    run.abort();
    fixture.outbox().pause("a", false).await.unwrap();
    let id = fixture.outbox().backlog(None).await.unwrap()[0].id;
    fixture.outbox().lease(id, LeaseRequest::new("the next", Duration::from_secs(5))).await.unwrap();
    let backlog = &fixture.outbox().backlog(None).await.unwrap()[0];
    assert_eq!((backlog.pending, backlog.first_sent_ago), (1, None));
}

/// O75: a relay whose destination is paused has it until the last call has ended, however long that takes.
#[tokio::test(start_paused = true)]
async fn o75_a_paused_destination_is_let_go_once_nothing_is_under_way() {
    for topic in [Topic::new(), Topic::each(10)] {
        let fixture = Fixture::new();
        let topic = topic.with("0", Does::AnswersAfter(Duration::from_secs(7)));
        let run = running(fixture.relay().to("a", topic.clone()).build().unwrap());
        fixture.commit_many("a", 0..1).await;
        while topic.arrived().is_empty() {
            sleep(Duration::from_millis(5)).await;
        }
        fixture.outbox().pause("a", true).await.unwrap();
        let has_it = async || fixture.outbox().backlog(None).await.unwrap()[0].relayed_by.is_some();
        loop {
            let has_it = has_it().await;
            if fixture.store.events().is_empty() {
                break;
            }
            assert!(has_it, "it lets go while a call is under way");
            sleep(Duration::from_millis(50)).await;
        }
        let noted = Instant::now();
        while has_it().await {
            sleep(Duration::from_millis(5)).await;
            assert!(noted.elapsed() < Duration::from_secs(1), "it does not let go");
        }
        run.abort();
    }
}

#[test]
fn a_relay_without_a_route_or_with_two_for_one_destination_is_refused() {
    let fixture = Fixture::new();
    let refused = |builder: idem_core::relay::RelayBuilder| builder.build().unwrap_err().to_string();
    assert!(refused(fixture.relay()).contains("a relay has one at least"));
    assert!(refused(fixture.relay().to("a", Topic::new()).to("a", Topic::new())).contains("has one route"));
    assert!(refused(fixture.relay().to("", Topic::new())).contains("1 to 500 bytes"));
    let keeps = Route::to("a", Topic::new()).receiver_keeps(Duration::from_secs(3_600));
    assert!(refused(fixture.relay().route(keeps)).contains("more than an hour"));
    let lease = fixture.relay().to("a", Topic::new()).settings(|settings| settings.lease = Duration::from_millis(1));
    assert!(refused(lease).contains("300 ms to 60 s"));
}

/// How many of 20 events a destination lacks after the first relay has died while they were on their way.
async fn lost_with_a_death() -> usize {
    let fixture = Fixture::new();
    fixture.commit_many("a", 0..20).await;
    let (first, second) = (Topic::new().with("7", Does::Hangs), Topic::new());
    let dying = running(fixture.relay().to("a", first.clone()).build().unwrap());
    while !first.set().contains("7") {
        sleep(Duration::from_millis(1)).await;
    }
    dying.abort();
    let other = running(fixture.relay().to("a", second.clone()).build().unwrap());
    sleep(Duration::from_secs(30)).await;
    other.abort();
    let arrived = first.set().union(&second.set()).count();
    20 - arrived
}

#[tokio::test(start_paused = true)]
async fn o2_a_death_loses_no_event() {
    assert_eq!(lost_with_a_death().await, 0);
}

/// The check above finds a relay that notes events as published before they are.
#[cfg(idem_bugs)]
#[tokio::test(start_paused = true)]
async fn o2_a_relay_that_marks_first_is_found() {
    idem_core::bugs::plant(Some(idem_core::bugs::Bug::MarksFirst));
    let lost = lost_with_a_death().await;
    idem_core::bugs::plant(None);
    assert_eq!(lost, 12);
}

/// O62: while the database is waited for the calls go on, so that a confirmation is not taken for a time that is over.
#[tokio::test(start_paused = true)]
async fn o62_a_database_that_hangs_charges_no_event_that_was_confirmed() {
    let after = |millis| Does::AnswersAfter(Duration::from_millis(millis));
    let (fixture, topic) = (Fixture::new(), Topic::each(4).with("0", after(10)).with("1", after(1_000)));
    fixture.commit_many("a", 0..2).await;
    let run = running(fixture.relay().to("a", topic.clone()).build().unwrap());
    while topic.arrived().len() < 2 {
        sleep(Duration::from_millis(1)).await;
    }
    fixture.store.inject(Operation::Bookkeeping, idem_testkit::Fault::Delay(Duration::from_secs(20)));
    sleep(Duration::from_secs(60)).await;
    fixture.drained_to(0).await;
    assert_eq!(topic.arrived(), bodies(0..2), "each once");
    run.abort();
}

/// O3: a confirmed event that could not be noted is noted once the database answers again; it is no copy.
#[tokio::test(start_paused = true)]
async fn o3_a_confirmation_outlives_an_outage_of_the_database() {
    let (fixture, topic) = (Fixture::new(), Topic::new());
    fixture.commit_many("a", 0..5).await;
    let run = running(fixture.relay().to("a", topic.clone()).build().unwrap());
    while topic.arrived().is_empty() {
        sleep(Duration::from_micros(100)).await;
    }
    for _ in 0..20 {
        let class = idem_core::ErrorClass::Infrastructure;
        fixture.store.inject(Operation::Bookkeeping, idem_testkit::Fault::Error(class));
    }
    fixture.drained_to(0).await;
    sleep(Duration::from_secs(5)).await;
    assert_eq!(topic.arrived(), bodies(0..5));
    run.abort();
}
