//! Draws a life: few features at a time, because a defect needs two or three of them, and the others hide it.

use std::time::Duration;

use fastrand::Rng;
use idem_core::{
    Effects,
    config::{OnConflict, RetryPolicy},
};
use idem_testkit::{
    Weather,
    memory::{Faults, Order, Rate, Revoke},
};

use crate::{
    rare,
    scenario::{Behaviour, Content, Event, Partitions, Protocol, Scenario, Theme},
    telling,
};

const DAY: Duration = Duration::from_secs(24 * 3600);
pub(crate) const WEEK: Duration = Duration::from_secs(7 * 24 * 3600);

pub(crate) fn one_in(rng: &mut Rng, n: u32) -> bool {
    rng.u32(0..n) == 0
}

pub(crate) fn pick<T: Copy>(rng: &mut Rng, of: &[T]) -> T {
    of[rng.usize(..of.len())]
}

pub(crate) fn millis(rng: &mut Rng, from: u64, to: u64) -> Duration {
    Duration::from_millis(rng.u64(from..=to))
}

pub(crate) fn scenario(theme: Theme, seed: u64) -> Scenario {
    // The lives of this theme are small ones, with partitions.
    let always = theme == Theme::Partitions;
    let theme = if always { Theme::Small } else { theme };
    let mut rng = Rng::with_seed(seed);
    let rng = &mut rng;
    let calm = theme == Theme::Calm || one_in(rng, 4);
    let small = theme == Theme::Small;
    let mut scenario = settings(theme, seed, calm, rng);
    if !calm {
        faults(&mut scenario, rng);
    }
    let span = if small { rng.u64(200..5_000) } else { pick(rng, &[1_000, 10_000, 60_000]) };
    contents(&mut scenario, theme, rng);
    if scenario.positions {
        one_killer(&mut scenario);
    }
    messages(&mut scenario, theme, span, rng);
    if !small && scenario.retention < DAY {
        used_again(&mut scenario, rng);
    }
    events(&mut scenario, span, rng);
    pauses(&mut scenario, span, seed);
    unpublished(&mut scenario, seed);
    disasters(&mut scenario, theme, span, seed);
    killers(&mut scenario, span, seed);
    partitions(&mut scenario, always, span, seed);
    telling::draw(&mut scenario, theme, span, seed);
    scenario.messages.sort_by_key(|(at, _)| *at);
    scenario.events.sort_by_key(|(at, _)| *at);
    rare::draw(&mut scenario, span, seed);
    scenario
}

fn settings(theme: Theme, seed: u64, calm: bool, rng: &mut Rng) -> Scenario {
    let order = pick(rng, &[Order::None, Order::None, Order::ByKey, Order::ByKeyOneAtATime]);
    let positions = order == Order::ByKey && one_in(rng, 2);
    let deadline = millis(rng, 500, 3_000);
    let batch = pick(rng, &[1, 2, 5, 20, 100]);
    let first = millis(rng, 10, 200);
    let short = theme != Theme::Small && one_in(rng, 3);
    Scenario {
        seed,
        calm,
        processes: if theme == Theme::Small { rng.usize(1..=2) } else { rng.usize(1..=3) },
        lanes: rng.usize(1..=3),
        in_batches: false,
        one_writer: false,
        batch,
        in_flight: batch.max(pick(rng, &[1, 10, 100])),
        order,
        positions,
        lease: (!positions && one_in(rng, 4)).then(|| deadline + millis(rng, 5_000, 30_000)),
        marks_redelivery: !one_in(rng, 4),
        effects: if one_in(rng, 4) { Effects::Outside } else { Effects::InTransaction },
        retry: RetryPolicy::new(rng.u32(1..=5), first, first + millis(rng, 0, 2_000)),
        deadline,
        busy_timeout: millis(rng, 50, 1_000),
        answer_timeout: millis(rng, 1_000, 3_000),
        retention: if short { Duration::from_secs(60) } else { WEEK },
        cleanup_every: (short || one_in(rng, 4)).then(|| millis(rng, 2_000, 20_000)),
        cache_for: one_in(rng, 4).then(|| millis(rng, 1_000, 30_000)),
        on_conflict: pick(
            rng,
            &[OnConflict::DeadLetter, OnConflict::DeadLetter, OnConflict::Acknowledge, OnConflict::Halt],
        ),
        breaker: one_in(rng, if theme == Theme::Small { 4 } else { 2 }),
        publisher: one_in(rng, 4),
        tenants: one_in(rng, 4),
        control_every: millis(rng, 100, 2_000),
        drain: millis(rng, 500, 5_000),
        weather: Weather::default(),
        faults: Faults::default(),
        dead_letter_faults: Faults::default(),
        wrong_counts: Rate::Never,
        settle_latency: pick(rng, &[0, 0, 5, 50]),
        contents: Vec::new(),
        messages: Vec::new(),
        events: Vec::new(),
        telling: None,
        partitions: None,
    }
}

fn faults(scenario: &mut Scenario, rng: &mut Rng) {
    let some =
        |rng: &mut Rng, every: u32| if one_in(rng, 3) { Rate::OneIn(rng.u32(every..every * 8)) } else { Rate::Never };
    scenario.weather = Weather {
        seed: rng.u64(..),
        slow: if one_in(rng, 2) { Rate::OneIn(rng.u32(1..8)) } else { Rate::Never },
        slow_max: Duration::from_millis(pick(rng, &[2, 20, 500, 4_000])),
        errors: some(rng, 10),
        connections_lost: some(rng, 15),
        answers_lost: some(rng, 15),
        hangs: some(rng, 60),
        ..Weather::default()
    };
    scenario.faults = Faults {
        acks_lost: some(rng, 3),
        settles_lost: some(rng, 3),
        answers_lost: some(rng, 3),
        receipts_stale: some(rng, 3),
        resurrected: some(rng, 3),
        reordered: if scenario.order == Order::None { some(rng, 1) } else { Rate::Never },
        receives_failed: some(rng, 10),
        receive_delay: Duration::from_millis(pick(rng, &[0, 0, 5, 50])),
        ..Faults::default()
    };
}

fn behaviour(rng: &mut Rng) -> Behaviour {
    let times = rng.u32(1..=6);
    match rng.u32(0..11) {
        0 | 1 => Behaviour::FailsFor(times),
        2 => Behaviour::FailsAlways,
        3 => Behaviour::Permanent,
        4 => Behaviour::PanicsFor(times),
        5 => Behaviour::HangsFor(times.min(2)),
        6 => Behaviour::SwallowsFor(times),
        7 => Behaviour::LosesConnectionFor(times),
        8 => Behaviour::CommitsFor(times),
        9 => Behaviour::KillsFor(times.min(3)),
        _ => Behaviour::KillsAlways,
    }
}

fn contents(scenario: &mut Scenario, theme: Theme, rng: &mut Rng) {
    let keys = if theme == Theme::Small { rng.usize(3..20) } else { rng.usize(3..40) };
    let orders = rng.usize(1..6);
    let (bad, conflicting) = (one_in(rng, 2), one_in(rng, 3));
    let slow = pick(rng, &[0, 0, 1, 20, 300]);
    for key in 0..keys {
        let payloads = if conflicting && one_in(rng, 3) { rng.usize(2..=3) } else { 1 };
        let tenant = scenario.tenants.then(|| format!("t{}", rng.u32(0..3)));
        for payload in 0..payloads {
            let misbehaves = bad && theme != Theme::Junk && one_in(rng, 4);
            let order = if one_in(rng, 8) { rng.usize(..orders) } else { key % orders };
            scenario.contents.push(Content {
                key: Some(format!("k{}", if one_in(rng, 20) { rng.usize(0..=key) } else { key })),
                tenant: tenant.clone(),
                payload: format!("p{key}.{payload}"),
                order: (!one_in(rng, 10)).then(|| format!("o{order}")),
                behaviour: if misbehaves {
                    behaviour(rng)
                } else {
                    Behaviour::Good(if slow > 0 { rng.u64(0..=slow) } else { 0 })
                },
                ..Content::default()
            });
        }
    }
}

/// Where positions are kept, what was settled comes again for as long as something before it is unsettled. Two messages that
/// always kill their process can then keep each other and the lanes beside them from getting anywhere, which is not mended:
/// theme any, seed 1088 was the first to show it.
fn one_killer(scenario: &mut Scenario) {
    let kills = |content: &&mut Content| content.behaviour == Behaviour::KillsAlways;
    scenario.contents.iter_mut().filter(kills).skip(1).for_each(|content| content.behaviour = Behaviour::KillsFor(2));
}

fn messages(scenario: &mut Scenario, theme: Theme, span: u64, rng: &mut Rng) {
    for content in 0..scenario.contents.len() {
        for _ in 0..if one_in(rng, 4) { rng.usize(2..=3) } else { 1 } {
            scenario.messages.push((millis(rng, 0, span), content));
        }
    }
    let junk = match theme {
        Theme::Junk => rng.usize(30..200),
        Theme::Small | Theme::Any | Theme::Calm | Theme::Partitions if one_in(rng, 10) => rng.usize(1..60),
        Theme::Small | Theme::Any | Theme::Calm | Theme::Partitions => 0,
    };
    let burst = millis(rng, 0, span);
    for number in 0..junk {
        scenario.contents.push(Content {
            key: None,
            tenant: scenario.tenants.then(|| "t0".to_owned()),
            payload: format!("junk {}", if one_in(rng, 8) { 0 } else { number }),
            order: one_in(rng, 2).then(|| format!("o{}", rng.u32(0..4))),
            ..Content::default()
        });
        let at = if one_in(rng, 4) { millis(rng, 0, span) } else { burst };
        scenario.messages.push((at, scenario.contents.len() - 1));
    }
}

/// A key that is used every now and then, each time after its record could have been removed.
fn used_again(scenario: &mut Scenario, rng: &mut Rng) {
    let every = scenario.retention + 2 * scenario.cleanup_every.unwrap_or_default() + Duration::from_secs(5);
    let content = rng.usize(..scenario.contents.len());
    let first = millis(rng, 0, 1_000);
    for time in 0..rng.u32(1..8) {
        scenario.messages.push((first + every * time, content));
    }
}

fn events(scenario: &mut Scenario, span: u64, rng: &mut Rng) {
    let mut happens = |rng: &mut Rng, event| scenario.events.push((millis(rng, 0, span), event));
    if one_in(rng, 6) {
        happens(rng, Event::Replay);
        happens(rng, Event::Replay);
    }
    if scenario.calm {
        return;
    }
    for _ in 0..rng.u32(0..4) {
        let (process, down) = (rng.usize(..scenario.processes), rng.u64(0..3_000));
        let polls = if one_in(rng, 2) { rng.u64(0..400) } else { 0 };
        happens(rng, Event::Kill { process, polls, down });
    }
    for (often, event) in [
        (6, Event::Stop { process: rng.usize(..scenario.processes) }),
        (6, Event::Disconnect),
        (4, Event::Revoke(Revoke::Drained)),
        (4, Event::Revoke(Revoke::Lost)),
        (8, Event::ExpireLeases),
        (8, Event::Pause(rng.u64(500..20_000))),
        (12, Event::Recreate),
    ] {
        if one_in(rng, often) {
            happens(rng, event);
        }
    }
}

/// A pause in a calm life, where the check of it is, from a generator of its own. It lasts beyond the time by which it must be obeyed,
/// and messages come then.
fn pauses(scenario: &mut Scenario, span: u64, seed: u64) {
    let rng = &mut Rng::with_seed(seed ^ 0x009A_05E5_0BE7_ED00);
    if !scenario.calm || !one_in(rng, 12) {
        return;
    }
    let (at, obeyed) = (millis(rng, 0, span), crate::bounds::pause(scenario));
    let messages = rng.usize(1..=5);
    for number in 0..messages {
        scenario.contents.push(Content {
            key: Some(format!("paused {number}")),
            tenant: scenario.tenants.then(|| "t0".to_owned()),
            payload: format!("paused {number}"),
            ..Content::default()
        });
        scenario.messages.push((at + obeyed + millis(rng, 100, 4_000), scenario.contents.len() - 1));
    }
    let lasts = u64::try_from(obeyed.as_millis()).unwrap_or(u64::MAX) + 5_000;
    scenario.events.push((at, Event::Pause(lasts)));
}

/// Faults of the queue for dead letters, from a generator of their own.
fn unpublished(scenario: &mut Scenario, seed: u64) {
    let rng = &mut Rng::with_seed(seed ^ 0x00DE_AD1E_77E2_5000);
    if !scenario.calm && scenario.publisher && one_in(rng, 2) {
        scenario.dead_letter_faults = Faults {
            confirms_lost: Rate::OneIn(rng.u32(2..8)),
            publishes_refused: Rate::OneIn(rng.u32(2..8)),
            ..Faults::default()
        };
    }
}

/// The rare events, from a generator of their own: a life without them is the same as before there were any.
fn disasters(scenario: &mut Scenario, theme: Theme, span: u64, seed: u64) {
    let rng = &mut Rng::with_seed(seed ^ 0x005E_ED0F_D15A_57E5);
    if one_in(rng, 6) {
        accounts(scenario, rng);
    }
    if one_in(rng, 12) {
        for _ in 0..rng.u32(1..4) {
            let content = rng.usize(..scenario.contents.len());
            scenario.events.push((millis(rng, 0, span), Event::Forget(content)));
        }
    }
    if theme != Theme::Small && one_in(rng, 24) {
        poison(scenario, span, rng);
    }
    if one_in(rng, 24) {
        twins(scenario, span, rng);
    }
    if scenario.calm {
        return;
    }
    if one_in(rng, 6) {
        scenario.weather.lingers = Rate::OneIn(rng.u32(1..4));
        scenario.weather.lingers_max = Duration::from_millis(pick(rng, &[100, 2_000, 20_000]));
    }
    if one_in(rng, 8) {
        scenario.wrong_counts = Rate::OneIn(rng.u32(1..5));
    }
    if one_in(rng, 10) {
        let (from, to) = (millis(rng, 0, span), millis(rng, 0, span));
        let goes_back = pick(rng, &[Event::FailOver, Event::FailOver, Event::Restore]);
        // Without a checkpoint before it nothing is lost.
        scenario.events.push((from, Event::Checkpoint));
        scenario.events.push((to, goes_back));
    }
    if one_in(rng, 12) {
        let far = if scenario.retention < DAY { 200_000 } else { 12 * 3_600_000 };
        for _ in 0..rng.u32(1..3) {
            // Back by less, because the life has to wait for it.
            let by = if one_in(rng, 2) { rng.i64(1..far) } else { -rng.i64(1..60_000) };
            scenario.events.push((millis(rng, 0, span), Event::ClockJumps(by)));
        }
    }
}

/// A few rows to which most handlers add, one after the other in any order: they wait for each other, also in a circle.
fn accounts(scenario: &mut Scenario, rng: &mut Rng) {
    let rows = rng.u8(1..4);
    for content in scenario.contents.iter_mut().filter(|content| content.key.is_some()) {
        let mut all: Vec<u8> = (0..rows).collect();
        rng.shuffle(&mut all);
        all.truncate(rng.usize(0..3));
        content.accounts = all;
    }
}

/// Enough messages fail for good to open the breaker.
fn poison(scenario: &mut Scenario, span: u64, rng: &mut Rng) {
    // Each is held for ten minutes while the breaker is open, and with few in flight they would be so one after the other.
    (scenario.breaker, scenario.in_flight) = (true, scenario.in_flight.max(100));
    let behaviour = pick(rng, &[Behaviour::Permanent, Behaviour::FailsAlways]);
    for number in 0..rng.usize(30..90) {
        scenario.contents.push(Content {
            key: Some(format!("poison {number}")),
            tenant: scenario.tenants.then(|| "t0".to_owned()),
            payload: format!("poison {number}"),
            behaviour,
            ..Content::default()
        });
        scenario.messages.push((millis(rng, 0, span), scenario.contents.len() - 1));
    }
}

/// Two payloads of one key that always fail, a process for each.
fn twins(scenario: &mut Scenario, span: u64, rng: &mut Rng) {
    two_of_one_key(scenario, "twin", Behaviour::FailsAlways, span, rng);
}

/// The same with two that kill their processes in turn, from a generator of its own.
fn killers(scenario: &mut Scenario, span: u64, seed: u64) {
    let rng = &mut Rng::with_seed(seed ^ 0x00C1_11E5_0DD5_EED5);
    if one_in(rng, 48) {
        two_of_one_key(scenario, "killer", Behaviour::KillsAlways, span, rng);
    }
}

fn two_of_one_key(scenario: &mut Scenario, key: &str, behaviour: Behaviour, span: u64, rng: &mut Rng) {
    // Neither process takes both.
    (scenario.processes, scenario.batch, scenario.in_flight) = (scenario.processes.max(2), 1, 1);
    (scenario.positions, scenario.breaker) = (false, false);
    let at = millis(rng, 0, span);
    for number in 0..2 {
        scenario.contents.push(Content {
            key: Some(key.to_owned()),
            tenant: scenario.tenants.then(|| "t0".to_owned()),
            payload: format!("{key} {number}"),
            behaviour,
            ..Content::default()
        });
        scenario.messages.push((at + millis(rng, 0, 50), scenario.contents.len() - 1));
    }
}

/// Several partitions, from a generator of their own, with what makes them move.
fn partitions(scenario: &mut Scenario, always: bool, span: u64, seed: u64) {
    let rng = &mut Rng::with_seed(seed ^ 0x00AB_A1A2_CE0F_9A27);
    // Two payloads of one key need positions that are not kept.
    let is_paired = |content: &Content| matches!(content.key.as_deref(), Some("twin" | "killer"));
    if !(one_in(rng, 24) || always) || scenario.contents.iter().any(is_paired) {
        return;
    }
    scenario.partitions = Some(Partitions {
        count: rng.usize(2..=6),
        protocol: pick(rng, &[Protocol::Eager, Protocol::Cooperative]),
        session: millis(rng, 300, 3_000),
        drain: millis(rng, 500, 5_000),
        commit_every: millis(rng, 50, 2_000),
    });
    (scenario.order, scenario.positions, scenario.lease) = (Order::ByKey, true, None);
    scenario.processes = scenario.processes.max(rng.usize(2..=4));
    scenario.faults.reordered = Rate::Never;
    one_killer(scenario);
    scenario.events.retain(|(_, event)| *event != Event::Recreate);
    if scenario.calm {
        return;
    }
    let mut happens = |rng: &mut Rng, event| scenario.events.push((millis(rng, 0, span), event));
    for _ in 0..rng.u32(0..4) {
        happens(rng, Event::Revoke(Revoke::Drained));
    }
    for _ in 0..rng.u32(0..3) {
        let (process, milliseconds) = (rng.usize(..scenario.processes), rng.u64(100..8_000));
        happens(rng, Event::CutOff { process, milliseconds });
    }
    for _ in 0..rng.u32(0..2) {
        let process = rng.usize(..scenario.processes);
        happens(rng, Event::Stop { process });
    }
    if one_in(rng, 4) {
        happens(rng, Event::Revoke(Revoke::Lost));
    }
}
