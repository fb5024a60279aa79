//! How long things may take, written down before a life is judged by it. Each follows from the settings of the life.

use std::time::Duration;

use idem_core::dead_letter::DUE_LEASE;

use crate::scenario::{Behaviour, Scenario};

/// The longest that a handler takes by itself.
const SLOWEST: Duration = Duration::from_millis(300);
/// For how long a message that failed for good is kept in hand while the breaker is open.
const BREAKER_HOLD: Duration = Duration::from_secs(600);

/// For how long an operator asks the store for what he wants. Faults of the store are single ones, and a worker puts back a consumer's
/// row that a failover has lost when it next reads its controls; five minutes are hundreds of both.
pub(crate) const OPERATOR: Duration = Duration::from_secs(300);

/// After how long no handler begins any more once the consumer was paused: the controls are read, and the units that run
/// then are finished.
pub(crate) fn pause(scenario: &Scenario) -> Duration {
    let unit = SLOWEST * u32::try_from(scenario.batch).unwrap_or(u32::MAX);
    scenario.control_every + unit + scenario.deadline + Duration::from_secs(2)
}

/// How long partitions may be on their way to another process: a session ends, everything is given back, and what is left is
/// committed or not.
fn rebalance(scenario: &Scenario) -> Duration {
    scenario
        .partitions
        .map_or(Duration::ZERO, |of| of.session + of.drain + of.commit_every * 2 + Duration::from_secs(6))
}

/// How long a good message may wait in a life where nothing else is slow and nothing fails.
pub(crate) fn good_message(scenario: &Scenario) -> Duration {
    let in_turn = u32::try_from(scenario.messages.len()).unwrap_or(u32::MAX);
    // Where handlers wait for each other's rows, all of them may have to run in turn, and some twice.
    let in_turn_all = scenario.one_writer || scenario.contents.iter().any(|content| !content.accounts.is_empty());
    let side_by_side = if in_turn_all { 1 } else { 4 };
    // Each process that begins moves partitions.
    let moves = rebalance(scenario) * u32::try_from(scenario.processes).unwrap_or(u32::MAX);
    Duration::from_secs(2)
        + moves
        + (SLOWEST + Duration::from_millis(2 * scenario.settle_latency)) * in_turn / side_by_side
}

/// By when the last event has arrived and the last caller is answered, once every effect is committed.
fn telling(scenario: &Scenario) -> Duration {
    let Some(telling) = &scenario.telling else { return Duration::ZERO };
    let events: usize = scenario.messages.iter().map(|(_, content)| scenario.contents[*content].tells.len()).sum();
    let latency = telling.receivers.iter().map(|receiver| receiver.latency).max().unwrap_or_default();
    let event = Duration::from_millis(4 * latency) + telling.poll_busy * 2;
    let call = scenario.deadline + scenario.busy_timeout + scenario.answer_timeout * 4;
    let calls = call * 4 * u32::try_from(telling.calls.len()).unwrap_or(u32::MAX);
    // The longest wait of an event or a relay, and the work under way when faults ended.
    event * u32::try_from(events).unwrap_or(u32::MAX) + calls + telling.publish_deadline * 4 + Duration::from_secs(60)
}

/// How long after the end of all faults everything is at rest: every message has used all of its attempts in turn,
/// the breaker was open the whole time, and a replay was taken by a process that died.
pub(crate) fn rest(scenario: &Scenario) -> Duration {
    let attempts = scenario.retry.attempts + 1;
    let answers = scenario.busy_timeout + scenario.answer_timeout * 4;
    let attempt = scenario.deadline + scenario.retry.max + answers;
    let of = |behaviour: Behaviour| if behaviour.is_good() { SLOWEST + answers } else { attempt * attempts };
    let messages: Duration =
        scenario.messages.iter().map(|(_, content)| of(scenario.contents[*content].behaviour)).sum();
    let probes = Duration::from_secs(2) * u32::try_from(scenario.messages.len()).unwrap_or(u32::MAX);
    // A replay whose process died is taken over later, and each that kills may take the others' with it.
    let kills = |behaviour: Behaviour| matches!(behaviour, Behaviour::KillsAlways | Behaviour::KillsFor(_));
    let killers = scenario.contents.iter().filter(|content| kills(content.behaviour)).count();
    let taken_over = DUE_LEASE * attempts * (1 + u32::try_from(killers).unwrap_or(u32::MAX));
    let replays = if scenario.events.is_empty() { Duration::ZERO } else { taken_over + messages };
    // A clock that was set back makes everything wait that goes by it, and sessions that the server holds to be alive do too.
    let store = scenario.clock_moves() + scenario.weather.lingers_max * 2;
    let failing =
        scenario.messages.iter().filter(|(_, content)| !scenario.contents[*content].behaviour.is_good()).count();
    // Those beyond what may be in flight are held after the others, and those of one partition one behind the other.
    let at_once = if scenario.breaker && scenario.partitions.is_some() { 1 } else { scenario.in_flight };
    let holds = BREAKER_HOLD * (1 + u32::try_from(failing / at_once).unwrap_or(u32::MAX));
    // Each death moves partitions, and each killer has its attempts.
    let moves = rebalance(scenario) * (8 + attempts * (1 + u32::try_from(killers).unwrap_or(u32::MAX)));
    telling(scenario)
        + moves
        + messages
        + replays
        + holds
        + probes
        + scenario.lease.unwrap_or_default() * 3
        + store
        + Duration::from_secs(120)
}
