//! Defects of idem that the simulation found, each as a small life that shows it with many seeds, so that it keeps showing it
//! when lives are drawn differently.

mod attempts;
mod events;
mod failovers;
mod identity;
mod lanes;

use std::{ops::Range, time::Duration};

use idem_core::outbox::Dispatch;
use idem_testkit::{
    Weather,
    memory::{Faults, Order, Rate},
};
use simulation::{Behaviour, Content, Receiver, Scenario, Telling, Theme, Way, live, silence_panics, teeth};

/// A calm life without messages: one process, one lane, and everything else as it is by default.
fn plain(seed: u64) -> Scenario {
    let mut scenario = Scenario::draw(Theme::Calm, seed);
    (scenario.processes, scenario.lanes, scenario.batch, scenario.in_flight) = (1, 1, 10, 10);
    (scenario.order, scenario.positions, scenario.lease, scenario.marks_redelivery) = (Order::None, false, None, true);
    (scenario.tenants, scenario.breaker, scenario.publisher) = (false, false, false);
    (scenario.in_batches, scenario.one_writer) = (false, false);
    (scenario.cleanup_every, scenario.cache_for) = (None, None);
    scenario.on_conflict = idem_core::config::OnConflict::DeadLetter;
    scenario.weather = Weather::default();
    scenario.faults = Faults::default();
    scenario.dead_letter_faults = Faults::default();
    scenario.wrong_counts = Rate::Never;
    scenario.contents.clear();
    scenario.messages.clear();
    scenario.events.clear();
    (scenario.telling, scenario.partitions) = (None, None);
    scenario
}

fn content(number: usize, behaviour: Behaviour) -> Content {
    Content { key: Some(format!("k{number}")), payload: format!("p{number}"), behaviour, ..Content::default() }
}

/// One receiver, which always takes what it is given.
fn telling() -> Telling {
    let dispatch = Dispatch::Batches { events_max: 1_000 };
    Telling {
        receivers: vec![Receiver { dispatch, keeps_order: false, attempts: 5, latency: 2, faults: Rate::Never }],
        relays: 1,
        lease: at(1_500),
        poll_busy: at(100),
        poll_idle: at(1_000),
        publish_deadline: at(3_000),
        operations: Vec::new(),
        calls: Vec::new(),
    }
}

fn at(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// So many messages, each of a key of its own, one behind the other.
fn messages(scenario: &mut Scenario, count: u32, first: Duration, every: Duration, behaviour: Behaviour) {
    scenario.contents = (0..count as usize).map(|number| content(number, behaviour)).collect();
    scenario.messages = (0..count).map(|number| (first + every * number, number as usize)).collect();
}

/// Lives of these seeds keep every promise; and where the bug is planted again that they are about, one of them does not. Those of the
/// engine are there with `--cfg idem_bugs` alone, those of the store always.
fn found(bug: &str, seeds: Range<u64>, scenario: impl Fn(u64) -> Scenario) {
    silence_panics();
    for seed in seeds.clone() {
        let report = live(&scenario(seed), Way::default());
        assert!(report.breaches.is_empty(), "seed {seed}: {:?}", report.breaches);
    }
    let way = match teeth::plant(bug) {
        Err(_) if !cfg!(idem_bugs) => return,
        way => way.unwrap(),
    };
    let broken = seeds.into_iter().any(|seed| !live(&scenario(seed), way).breaches.is_empty());
    teeth::plant_nothing();
    assert!(broken, "{bug} is not found");
}
