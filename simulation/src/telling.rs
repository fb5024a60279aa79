//! The outputs of a life, as plain data: the events that handlers publish, the receivers to which relays bring them, and
//! the calls whose answers are kept; and how all of it is drawn.

use std::time::Duration;

use fastrand::Rng;
use idem_core::outbox::Dispatch;
use idem_testkit::memory::Rate;

use crate::{
    draw::{millis, one_in, pick},
    scenario::{Scenario, Theme},
};

/// The receivers of events and the callers.
#[derive(Debug, Clone)]
pub struct Telling {
    /// Where events go.
    pub receivers: Vec<Receiver>,
    /// How many of the processes have a relay.
    pub relays: usize,
    /// For how long a relay has a receiver to itself.
    pub lease: Duration,
    /// How often relays look while they find something.
    pub poll_busy: Duration,
    /// How often they look while they find nothing.
    pub poll_idle: Duration,
    /// How long a publisher may take.
    pub publish_deadline: Duration,
    /// The operations that callers want done once.
    pub operations: Vec<Operation>,
    /// Which process is asked for which operation, and when.
    pub calls: Vec<(Duration, usize, usize)>,
}

/// A receiver of events.
#[derive(Debug, Clone, Copy)]
pub struct Receiver {
    /// How a relay hands events over.
    pub dispatch: Dispatch,
    /// Whether what follows an event that fails in its ordering key fails too.
    pub keeps_order: bool,
    /// How often an event is tried before it waits for a person.
    pub attempts: u32,
    /// How long it takes at most, there and back, in milliseconds.
    pub latency: u64,
    /// How often it refuses, loses an answer, is away, hangs, or its client panics.
    pub faults: Rate,
}

/// An event that a handler publishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Told {
    /// To which of the receivers.
    pub receiver: usize,
    /// Whether it has the key of the message.
    pub same_key: bool,
    /// Its receiver's ordering key.
    pub order: Option<u8>,
    /// Whether its receiver can take it at all.
    pub fits: bool,
}

/// Something that callers want done once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operation {
    /// Two tenants have the same keys.
    pub tenant: usize,
    /// The number in its key.
    pub key: usize,
    /// This many runs fail for now.
    pub fails_for: u32,
    /// Whether it is refused for good once it runs to its end.
    pub refuses: bool,
    /// How long it takes, in milliseconds.
    pub takes: u64,
    /// Whether it publishes an event.
    pub tells: bool,
}

/// Draws it for a life that has none yet, from a generator of its own: all other lives stay what they are.
pub(crate) fn draw(scenario: &mut Scenario, theme: Theme, span: u64, seed: u64) {
    let rng = &mut Rng::with_seed(seed ^ 0x007E_111F_0A11_7E11);
    if theme == Theme::Junk || !one_in(rng, 5) {
        return;
    }
    let receivers: Vec<Receiver> = (0..rng.usize(1..=2)).map(|_| receiver(scenario.calm, rng)).collect();
    let orders = rng.u8(1..4);
    for content in scenario.contents.iter_mut().filter(|content| content.key.is_some()) {
        content.tells = tells(receivers.len(), orders, rng);
    }
    let poll_busy = millis(rng, 10, 100);
    let operations: Vec<Operation> = if one_in(rng, 2) { operations(rng) } else { Vec::new() };
    let mut calls = Vec::new();
    for operation in 0..operations.len() {
        let first = millis(rng, 0, span);
        for _ in 0..rng.usize(1..=3) {
            let at = if one_in(rng, 2) { first + millis(rng, 0, 20) } else { millis(rng, 0, span) };
            calls.push((at, rng.usize(..scenario.processes), operation));
        }
    }
    calls.sort_unstable();
    scenario.telling = Some(Telling {
        receivers,
        relays: rng.usize(1..=scenario.processes),
        lease: millis(rng, 300, 1_500),
        poll_busy,
        poll_idle: poll_busy + millis(rng, 0, 1_000),
        publish_deadline: millis(rng, 1_000, 3_000),
        operations,
        calls,
    });
}

fn receiver(calm: bool, rng: &mut Rng) -> Receiver {
    let dispatch = if one_in(rng, 2) {
        Dispatch::Each { at_once: rng.usize(1..=4) }
    } else {
        Dispatch::Batches { events_max: pick(rng, &[1, 3, 1_000]) }
    };
    Receiver {
        dispatch,
        keeps_order: matches!(dispatch, Dispatch::Batches { .. }) && one_in(rng, 2),
        attempts: rng.u32(1..=5),
        latency: pick(rng, &[0, 2, 20, 300]),
        faults: if calm || one_in(rng, 3) { Rate::Never } else { Rate::OneIn(rng.u32(2..20)) },
    }
}

fn tells(receivers: usize, orders: u8, rng: &mut Rng) -> Vec<Told> {
    let mut tells: Vec<Told> = Vec::new();
    for _ in 0..pick(rng, &[0, 1, 1, 2, 4]) {
        let receiver = rng.usize(..receivers);
        // One of a message can have its key, for each receiver.
        let same_key = one_in(rng, 5) && !tells.iter().any(|told| told.same_key && told.receiver == receiver);
        let order = (!one_in(rng, 4)).then(|| rng.u8(..orders));
        tells.push(Told { receiver, same_key, order, fits: !one_in(rng, 30) });
    }
    tells
}

fn operations(rng: &mut Rng) -> Vec<Operation> {
    let operation = |number: usize, rng: &mut Rng| Operation {
        tenant: number % 2,
        key: number / 2,
        fails_for: if one_in(rng, 4) { rng.u32(1..4) } else { 0 },
        refuses: one_in(rng, 3),
        takes: pick(rng, &[0, 0, 5, 100]),
        tells: one_in(rng, 2),
    };
    (0..rng.usize(1..8)).map(|number| operation(number, rng)).collect()
}
