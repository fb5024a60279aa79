//! Who may run what, and when.

use idem_core::{Effects, config::RetryPolicy};
use idem_testkit::{
    Weather,
    memory::{Order, Rate, Revoke},
};
use simulation::{Behaviour, Content, Event, Partitions, Protocol};

use super::{at, content, found, messages, plain};

/// J19: a lane that rests while an assignment drains waits for the next command, and not for what it holds back.
#[test]
fn j19_a_resting_lane_waits() {
    found("RestingLaneSpins", 0..50, |seed| {
        let mut scenario = plain(seed);
        // On the one lane a handler takes long, on the other a message waits for its next attempt, and it is not the first
        // of its lane, which would run alone in the process.
        (scenario.lanes, scenario.batch, scenario.effects) = (2, 1, Effects::InTransaction);
        (scenario.deadline, scenario.drain) = (at(3_000), at(5_000));
        scenario.retry = RetryPolicy::new(5, at(300), at(300));
        let mut next = |behaviour| {
            // Other keys with each seed are on other lanes.
            let number = seed as usize * 100 + scenario.contents.len();
            scenario.contents.push(content(number, behaviour));
        };
        (0..6).for_each(|_| next(Behaviour::Good(0)));
        next(Behaviour::HangsFor(1));
        (0..3).for_each(|_| next(Behaviour::FailsFor(2)));
        scenario.messages = (0..6).map(|number| (at(5), number)).collect();
        scenario.messages.extend((6..10).map(|number| (at(100 + seed), number)));
        scenario.events = (0..6).map(|time| (at(200 * time), Event::Revoke(Revoke::Drained))).collect();
        scenario
    });
}

/// E41: every partition is lost again and again while statements hang and their units fail: what these give back does not run here once
/// more. Where it does, a process is seen to handle a message of a partition with which it said that it has finished.
#[test]
fn e41_messages_of_a_lost_partition_do_not_run_again_after_their_unit_failed() {
    found("LossesMissTheUnit", 0..60, |seed| {
        let mut scenario = plain(seed);
        (scenario.calm, scenario.processes) = (false, 2);
        (scenario.order, scenario.positions, scenario.drain) = (Order::ByKey, true, at(5_000));
        scenario.partitions = Some(Partitions {
            count: 4,
            protocol: Protocol::Cooperative,
            session: at(2_000),
            drain: at(5_000),
            commit_every: at(200),
        });
        scenario.answer_timeout = at(900);
        scenario.weather = Weather { seed, hangs: Rate::OneIn(3), ..Weather::default() };
        messages(&mut scenario, 8, at(100), at(50), Behaviour::Good(50));
        for (number, content) in scenario.contents.iter_mut().enumerate() {
            content.order = Some(format!("o{}", number % 4));
        }
        scenario.events = (0..10).map(|time| (at(150 + 350 * time), Event::Revoke(Revoke::Lost))).collect();
        scenario
    });
}

/// E10: a partition is given back while messages of one lane wait behind settled ones of another. They are finished first, so that
/// the next holder is handed nothing that was settled.
#[test]
fn e10_a_partition_that_is_given_back_leaves_nothing_settled_behind_its_position() {
    found("RevocationsFinishNothing", 0..30, |seed| {
        let mut scenario = plain(seed);
        (scenario.processes, scenario.lanes, scenario.batch) = (2, 2, 1);
        (scenario.order, scenario.positions, scenario.drain) = (Order::ByKey, true, at(20_000));
        scenario.partitions = Some(Partitions {
            count: 2,
            protocol: Protocol::Cooperative,
            session: at(10_000),
            drain: at(10_000),
            commit_every: at(200),
        });
        scenario.contents = (0..12)
            .map(|number| {
                let behaviour = Behaviour::Good(if number % 3 == 0 { 300 } else { 5 });
                Content { order: Some(format!("o{number}.{seed}")), ..content(number, behaviour) }
            })
            .collect();
        scenario.messages = (0..12).map(|number| (at(1_000 + number), number as usize)).collect();
        scenario.events = vec![(at(1_350), Event::Revoke(Revoke::Drained))];
        scenario
    });
}

/// J74: an operator's pause holds in a calm life, too: handlers that begin after it was to be obeyed are a breach.
#[test]
fn j74_nothing_runs_while_an_operator_pauses_the_consumer() {
    found("IgnoresPauses", 0..5, |seed| {
        let mut scenario = plain(seed);
        messages(&mut scenario, 1, at(20_000), at(0), Behaviour::Good(0));
        scenario.events = vec![(at(100), Event::Pause(25_000))];
        scenario
    });
}

/// D11: a panic that nothing planned is a breach, also where the runtime catches it with its task.
#[test]
fn d11_a_panic_of_a_task_that_nothing_waits_for_is_seen() {
    found("TaskPanics", 0..2, |seed| {
        let mut scenario = plain(seed);
        messages(&mut scenario, 1, at(10), at(0), Behaviour::Good(0));
        scenario
    });
}
