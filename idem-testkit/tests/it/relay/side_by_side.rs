//! Relays, destinations and endpoints beside each other.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::{Instant, sleep};

use super::{
    bodies,
    fixture::{Does, Fixture, Topic, running},
};

/// O11: two relays, as of two versions in a deploy, do not send an event twice while both live.
#[tokio::test(start_paused = true)]
async fn o11_two_relays_share_the_destinations_and_send_no_copy() {
    let (fixture, topic) = (Fixture::new(), Topic::new());
    let relays: Vec<_> = (0..2).map(|_| fixture.relay().to("a", topic.clone()).build().unwrap()).collect();
    let views: Vec<_> = relays.iter().map(idem_core::relay::Relay::view).collect();
    let runs: Vec<_> = relays.into_iter().map(running).collect();
    for step in 0..20 {
        fixture.commit_many("a", step * 50..(step + 1) * 50).await;
        sleep(Duration::from_millis(500)).await;
    }
    fixture.drained_to(0).await;
    assert_eq!(topic.arrived(), bodies(0..1_000));
    let mut standings: Vec<_> = views.iter().map(|view| view.destinations()[0].standing.as_str()).collect();
    standings.sort_unstable();
    assert_eq!(standings, ["relaying", "standby"]);
    assert_eq!(views.iter().map(idem_core::relay::RelayView::published).sum::<u64>(), 1_000);
    runs.iter().for_each(tokio::task::JoinHandle::abort);
}

/// O16: of a hundred endpoints one hangs and one is dead, each with many events; the others do not wait for them.
#[tokio::test(start_paused = true)]
async fn o16_an_endpoint_that_hangs_holds_no_other_back() {
    let fixture = Fixture::new();
    let mut topic = Topic::each(64);
    for number in 0..20 {
        topic = topic.with(&format!("0-{number}"), Does::Hangs).with(&format!("1-{number}"), Does::FailsAndCounts);
    }
    let all = (0..20).flat_map(|number| {
        (0..100).map(move |endpoint| ("a", format!("merchant-{endpoint}"), format!("{endpoint}-{number}")))
    });
    fixture.commit(all).await;
    let begun = Instant::now();
    let run = running(fixture.relay().to("a", topic.clone()).build().unwrap());
    fixture.drained_to(40).await;
    let took = begun.elapsed();
    assert!(took < Duration::from_millis(1_500), "the other 98 endpoints had theirs after {took:?}");
    let mut by_endpoint: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    for body in topic.arrived() {
        let (endpoint, number) = body.split_once('-').unwrap();
        by_endpoint.entry(endpoint.to_owned()).or_default().push(number.parse().unwrap());
    }
    for (endpoint, numbers) in by_endpoint.into_iter().filter(|(endpoint, _)| endpoint != "0") {
        assert_eq!(numbers, (0..20).collect::<Vec<_>>(), "endpoint {endpoint} has its events in order, each once");
    }
    sleep(Duration::from_secs(30)).await;
    let hanging = topic.arrived().iter().filter(|body| body.starts_with("0-")).collect::<Vec<_>>().len();
    assert!((2..=3).contains(&hanging), "tried again after the deadline: {hanging}");
    run.abort();
}

/// How long the events of 99 endpoints wait that come at a steady rate, beside those of one more, which gets more of them and hangs or
/// does not. Sorted.
async fn waits_beside(hangs: bool) -> Vec<Duration> {
    const MORE: usize = 20;
    let (fixture, mut topic) = (Fixture::new(), Topic::each(64));
    for number in (0..50 * MORE).filter(|_| hangs) {
        topic = topic.with(&format!("0-{number}"), Does::Hangs);
    }
    let run = running(fixture.relay().to("a", topic.clone()).build().unwrap());
    let mut committed = Vec::new();
    for number in 0..50 {
        let event = |of: usize, number: usize| ("a", format!("merchant-{of}"), format!("{of}-{number}"));
        let more = (number * MORE..(number + 1) * MORE).map(|number| event(0, number));
        fixture.commit(more.chain((1..100).map(|of| event(of, number)))).await;
        committed.push(Instant::now());
        sleep(Duration::from_millis(100)).await;
    }
    fixture.drained_to(if hangs { 50 * MORE } else { 0 }).await;
    run.abort();
    let arrivals = topic.arrivals().into_iter().filter(|(body, _)| !body.starts_with("0-"));
    let wave = |body: &str| body.split_once('-').unwrap().1.parse::<usize>().unwrap();
    // The first ones wait for the relay's start.
    let arrivals = arrivals.map(|(body, at)| (wave(&body), at)).filter(|(wave, _)| *wave >= 10);
    let mut waits: Vec<_> = arrivals.map(|(wave, at)| at - committed[wave]).collect();
    waits.sort_unstable();
    assert_eq!(waits.len(), 99 * 40);
    waits
}

/// O16: of a hundred endpoints one hangs, and the slowest of a hundred events of the others waits at most half as long again as
/// where none does.
#[tokio::test(start_paused = true)]
async fn o16_the_slowest_events_are_nearly_as_quick_beside_an_endpoint_that_hangs() {
    let p99 = |waits: Vec<Duration>| waits[waits.len() * 99 / 100];
    let (alone, beside) = (p99(waits_beside(false).await), p99(waits_beside(true).await));
    assert!(beside * 2 <= alone * 3, "{beside:?} in place of {alone:?}");
}

/// O16: the trouble of a destination does not affect the others.
#[tokio::test(start_paused = true)]
async fn o16_a_destination_in_trouble_holds_no_other_back() {
    let (fixture, a, b) = (Fixture::new(), Topic::new(), Topic::new());
    a.away(true);
    let run = running(fixture.relay().to("a", a).to("b", b.clone()).build().unwrap());
    sleep(Duration::from_secs(5)).await;
    for step in 0..20 {
        fixture.commit_many("a", step..step + 1).await;
        fixture.commit_many("b", step..step + 1).await;
        let committed = Instant::now();
        while b.arrived().len() <= step as usize {
            sleep(Duration::from_millis(1)).await;
        }
        assert!(committed.elapsed() <= Duration::from_millis(1_010), "{:?}", committed.elapsed());
    }
    run.abort();
}
