//! Attempts and dead letters: each message has its own, once.

use idem_core::{Effects, config::RetryPolicy};
use idem_testkit::{
    Weather,
    memory::{Faults, Order, Rate},
};
use simulation::{Behaviour, Event, Scenario};

use super::{at, content, found, messages, plain};

/// D36: the answer to the count of an attempt is lost, and the message has that attempt all the same.
#[test]
fn d36_a_lost_count_sets_nothing_aside() {
    found("LostCountsCount", 0..50, |seed| {
        let mut scenario = plain(seed);
        scenario.calm = false;
        scenario.retry = RetryPolicy::new(1, scenario.retry.first, scenario.retry.max);
        scenario.effects = Effects::Outside;
        scenario.weather = Weather { seed, answers_lost: Rate::OneIn(4), ..Weather::default() };
        messages(&mut scenario, 5, at(0), at(100), Behaviour::Good(0));
        scenario
    });
}

/// D38: two copies of a message that always kills its process come to rest.
#[test]
fn d38_two_that_kill_their_process_do_not_bring_each_other_back() {
    found("KillersLoseSettlements", 0..20, |seed| {
        let mut scenario = plain(seed);
        scenario.settle_latency = 5_000;
        scenario.contents = vec![content(0, Behaviour::KillsAlways), content(1, Behaviour::Good(0))];
        scenario.messages = vec![(at(10), 0), (at(20), 0), (at(30), 1)];
        scenario
    });
}

/// J73: copies of a message that always kills its process do not bring each other back while a message before them, in another lane,
/// has no turn.
#[test]
fn j73_copies_that_kill_do_not_take_the_turn_of_a_message_before_them() {
    found("KillersGoBeforeTheirTurn", 0..6, |seed| {
        let mut scenario = plain(seed);
        (scenario.order, scenario.positions, scenario.lanes) = (Order::ByKey, true, 3);
        scenario.retry = RetryPolicy::new(3, scenario.retry.first, scenario.retry.max);
        scenario.settle_latency = 5_000;
        // Other keys with each seed are on other lanes.
        let number = seed as usize * 10;
        let behaviours = [Behaviour::Good(0), Behaviour::Good(0), Behaviour::Good(0), Behaviour::KillsAlways];
        scenario.contents = (number..).zip(behaviours).map(|(number, behaviour)| content(number, behaviour)).collect();
        // The second is in front. Behind it in its lane are copies that conflict with the first, whose dead letters take their time.
        scenario.contents[2].key = scenario.contents[0].key.clone();
        scenario.contents[1..3].iter_mut().for_each(|content| content.order = Some(format!("o{seed}")));
        let together = [1, 2, 2, 2, 2, 2, 2, 3, 3, 3].map(|number| (at(10_000), number));
        scenario.messages = std::iter::once((at(10), 0)).chain(together).collect();
        scenario
    });
}

/// D29: two copies of a message that has one attempt, in two processes: whichever runs, the other finds its key held or
/// recorded, and never an attempt that has not run.
#[test]
fn d29_a_copy_finds_no_attempt_used_up_that_has_not_run() {
    found("CountsBeforeTheClaim", 0..50, |seed| {
        let mut scenario = plain(seed);
        (scenario.processes, scenario.effects) = (2, Effects::Outside);
        // Neither takes both copies.
        (scenario.batch, scenario.in_flight) = (1, 1);
        scenario.retry = RetryPolicy::new(1, scenario.retry.first, scenario.retry.max);
        // One process is between its count and its claim while the other does both.
        scenario.weather = Weather { seed, slow: Rate::OneIn(2), slow_max: at(50), ..Weather::default() };
        scenario.contents = (0..10).map(|number| content(number, Behaviour::Good(0))).collect();
        scenario.messages = (0..20).map(|number| (at(100 * (number as u64 / 2)), number / 2)).collect();
        scenario
    });
}

/// J64: everything fails for good, the breaker is open, and deliveries come back before their turn to be tried has come: each
/// message has its attempts once.
#[test]
fn j64_what_is_settled_too_late_does_not_begin_anew_under_an_open_breaker() {
    found("LateDeadLettersBeginAnew", 0..3, |seed| {
        let mut scenario = plain(seed);
        (scenario.breaker, scenario.in_flight, scenario.batch) = (true, 100, 10);
        (scenario.deadline, scenario.lease) = (at(2_000), Some(at(8_000)));
        scenario.retry = RetryPolicy::new(5, at(100), at(1_000));
        messages(&mut scenario, 79, at(0), at(10), Behaviour::FailsAlways);
        scenario
    });
}

/// J78: the row of a dead letter is written without an answer, and its message comes again: it has had its attempts.
#[test]
fn j78_what_was_set_aside_without_an_answer_does_not_begin_anew() {
    found("UnansweredRowsAreForgotten", 0..30, |seed| {
        let mut scenario = plain(seed);
        (scenario.calm, scenario.publisher) = (false, true);
        scenario.retry = RetryPolicy::new(2, at(50), at(100));
        scenario.weather = Weather { seed, answers_lost: Rate::OneIn(4), ..Weather::default() };
        messages(&mut scenario, 5, at(0), at(50), Behaviour::FailsFor(2));
        scenario.events = (1..20).map(|number| (at(100) * number, Event::Disconnect)).collect();
        scenario
    });
}

/// J64: the same on more lanes than one, which take the breaker's turns one after the other: a message that comes again is
/// settled before its lease runs out once more.
#[test]
fn j64_what_comes_again_under_an_open_breaker_waits_for_no_turn() {
    found("LateDeadLettersWait", 0..3, |seed| {
        let mut scenario = plain(seed);
        (scenario.breaker, scenario.in_flight, scenario.batch, scenario.lanes) = (true, 100, 1, 3);
        (scenario.order, scenario.effects, scenario.settle_latency) = (Order::ByKeyOneAtATime, Effects::Outside, 50);
        (scenario.deadline, scenario.lease) = (at(3_000), Some(at(8_000)));
        scenario.retry = RetryPolicy::new(5, at(150), at(600));
        messages(&mut scenario, 79, at(0), at(10), Behaviour::FailsAlways);
        scenario
    });
}

/// Two processes, to each of which a message comes while the other may still have it, on a store whose statements fail now and then.
fn handed_over(seed: u64, attempts: u32, behaviour: Behaviour) -> Scenario {
    let mut scenario = plain(seed);
    (scenario.calm, scenario.processes, scenario.batch, scenario.in_flight) = (false, 2, 1, 1);
    scenario.retry = RetryPolicy::new(attempts, at(50), at(50));
    scenario.weather =
        Weather { seed, errors: Rate::OneIn(8), slow: Rate::OneIn(4), slow_max: at(50), ..Weather::default() };
    messages(&mut scenario, 10, at(0), at(300), behaviour);
    scenario.events = (0..20).map(|time| (at(100 + 150 * time), Event::ExpireLeases)).collect();
    scenario
}

/// J71: the dead letter of a message without an attempt left could not be written, and it runs elsewhere by then.
#[test]
fn j71_a_dead_letter_that_is_written_later_is_of_nothing_that_runs_elsewhere() {
    found("SetsAsideLaterWithoutClaim", 0..200, |seed| handed_over(seed, 1, Behaviour::Good(150)));
}

/// J76: its last attempt has lost its connection, and it runs elsewhere by then.
#[test]
fn j76_a_last_attempt_that_lost_its_connection_is_of_nothing_that_runs_elsewhere() {
    found("LostConnectionsNeedNoClaim", 0..200, |seed| {
        let mut scenario = handed_over(seed, 2, Behaviour::LosesConnectionFor(4));
        (scenario.weather.lingers, scenario.weather.lingers_max) = (Rate::OneIn(2), at(100));
        scenario
    });
}

/// J75: the queue for dead letters refuses some of them: each is published in the end.
#[test]
fn j75_a_dead_letter_that_was_refused_is_published_later() {
    found("RefusedIsPublished", 0..20, |seed| {
        let mut scenario = plain(seed);
        (scenario.calm, scenario.publisher) = (false, true);
        scenario.dead_letter_faults = Faults { publishes_refused: Rate::OneIn(3), ..Faults::default() };
        messages(&mut scenario, 5, at(0), at(100), Behaviour::Permanent);
        scenario
    });
}

/// D36, where the store has one writer: an attempt is counted before its key is claimed there.
#[test]
fn d36_a_lost_count_sets_nothing_aside_where_one_unit_writes_at_a_time() {
    found("LostCountsCount", 0..50, |seed| {
        let mut scenario = plain(seed);
        (scenario.calm, scenario.one_writer) = (false, true);
        scenario.retry = RetryPolicy::new(1, scenario.retry.first, scenario.retry.max);
        scenario.effects = Effects::Outside;
        scenario.weather = Weather { seed, answers_lost: Rate::OneIn(4), yields: true, ..Weather::default() };
        messages(&mut scenario, 5, at(0), at(100), Behaviour::Good(0));
        scenario
    });
}
