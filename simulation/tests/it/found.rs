//! Defects of idem that the simulation found, each as a small life that shows it with many seeds, so that it keeps showing it
//! when lives are drawn differently.

use std::{ops::Range, time::Duration};

use idem_core::{Effects, RetryPolicy, outbox::Dispatch};
use idem_testkit::{
    Weather,
    memory::{Faults, Order, Rate, Revoke},
};
use simulation::{
    Behaviour, Content, Event, Finds, Operation, Partitions, Protocol, Receiver, Scenario, Telling, Theme, Told,
    Unidentified, Way, live, silence_panics, teeth,
};

/// A calm life without messages: one process, one lane, and everything else as it is by default.
fn plain(seed: u64) -> Scenario {
    let mut scenario = Scenario::draw(Theme::Calm, seed);
    (scenario.processes, scenario.lanes, scenario.batch, scenario.in_flight) = (1, 1, 10, 10);
    (scenario.order, scenario.positions, scenario.lease, scenario.marks_redelivery) = (Order::None, false, None, true);
    (scenario.tenants, scenario.breaker, scenario.publisher) = (false, false, false);
    (scenario.in_batches, scenario.one_writer) = (false, false);
    (scenario.cleanup_every, scenario.cache_for) = (None, None);
    scenario.on_conflict = idem_core::OnConflict::DeadLetter;
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
    Content {
        key: Some(format!("k{number}")),
        tenant: None,
        payload: format!("p{number}"),
        order: None,
        behaviour,
        unidentified: None,
        accounts: Vec::new(),
        writes_twice: false,
        tells: Vec::new(),
    }
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
/// engine are there with the feature `bugs` alone, those of the store always.
fn found(bug: &str, seeds: Range<u64>, scenario: impl Fn(u64) -> Scenario) {
    silence_panics();
    for seed in seeds.clone() {
        let report = live(&scenario(seed), Way::default());
        assert!(report.breaches.is_empty(), "seed {seed}: {:?}", report.breaches);
    }
    let way = match teeth::plant(bug) {
        Err(_) if !cfg!(feature = "bugs") => return,
        way => way.unwrap(),
    };
    let broken = seeds.into_iter().any(|seed| !live(&scenario(seed), way).breaches.is_empty());
    teeth::plant_nothing();
    assert!(broken, "{bug} is not found");
}

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

/// J63: a failover loses the rows of consumer and tenants, and of the workers one goes on by the numbers that it remembers, while
/// the other is started again and asks for them in another order.
#[test]
fn j63_a_failover_that_loses_what_tenants_are_called_mixes_none_up() {
    found("NumbersInOrder", 0..30, |seed| {
        let mut scenario = plain(seed);
        (scenario.calm, scenario.processes, scenario.tenants) = (false, 2, true);
        (scenario.control_every, scenario.marks_redelivery) = (at(2_000), false);
        // Neither takes more than it handles.
        (scenario.batch, scenario.in_flight) = (1, 1);
        scenario.contents = (0..12).map(|number| content(number / 3, Behaviour::Good(0))).collect();
        for (number, content) in scenario.contents.iter_mut().enumerate() {
            content.tenant = Some(format!("t{}", number % 3));
        }
        let mut numbers: Vec<usize> = (0..12).collect();
        let rng = &mut fastrand::Rng::with_seed(seed);
        rng.shuffle(&mut numbers);
        // Everything before the failover and right after it, and once workers have seen that another server answers, in another
        // order of the tenants.
        for from in [100, 2_400, 6_000] {
            let copies = numbers.iter().enumerate().map(|(place, number)| (at(from + 40 * place as u64), *number));
            scenario.messages.extend(copies);
            if from > 100 {
                numbers.reverse();
            }
        }
        scenario.events = vec![
            (at(1), Event::Checkpoint),
            // Workers have read the controls just before it.
            (at(2_300), Event::FailOver),
            (at(2_350), Event::Kill { process: 1, polls: 0, down: 500 }),
        ];
        scenario
    });
}

/// J63: a failover loses what a process has declared at its start, the destination of its events and a tenant: both are there again
/// soon, and every event arrives.
#[test]
fn j63_a_failover_that_loses_a_destination_and_a_tenant_holds_no_event_back() {
    found("DeclaresOnce", 0..30, |seed| {
        let mut scenario = plain(seed);
        (scenario.calm, scenario.tenants) = (false, true);
        scenario.control_every = at(500);
        scenario.contents = (0..4).map(|number| content(number, Behaviour::Good(0))).collect();
        for (number, content) in scenario.contents.iter_mut().enumerate() {
            content.tenant = Some(format!("t{}", number / 2));
            content.tells = vec![Told { receiver: 0, same_key: false, order: None, fits: true }];
        }
        // Each of the last two comes before the worker sees that another server answers.
        scenario.messages = vec![(at(100), 0), (at(200), 2), (at(650), 1), (at(650 + 5 * seed), 3)];
        scenario.events = vec![(at(1), Event::Checkpoint), (at(600), Event::FailOver)];
        scenario.telling = Some(telling());
        scenario
    });
}

/// J63: a failover that loses the consumer's row comes while a worker interns its tenants: it is registered again, and the worker goes on.
#[test]
fn j63_a_failover_amid_the_first_look_ends_no_worker() {
    found("RefusesLostTenants", 0..30, |seed| {
        let mut scenario = plain(seed);
        (scenario.calm, scenario.tenants) = (false, true);
        scenario.weather = Weather { seed, slow: Rate::OneIn(1), slow_max: at(400), ..Weather::default() };
        scenario.contents = (0..4).map(|number| content(number, Behaviour::Good(0))).collect();
        for (number, content) in scenario.contents.iter_mut().enumerate() {
            content.tenant = Some(format!("t{number}"));
            content.tells = vec![Told { receiver: 0, same_key: false, order: None, fits: true }];
        }
        scenario.messages = (0..4).map(|number| (at(number), number as usize)).collect();
        scenario.events = vec![(at(0), Event::Checkpoint), (at(300 + 40 * seed), Event::FailOver)];
        scenario.telling = Some(telling());
        scenario
    });
}

/// O41: a relay has an event while a server takes over that has lost it, and another event gets its number there: the outcome of the
/// one is not noted of the other.
#[test]
fn o41_an_event_is_not_removed_for_another_one_of_its_number() {
    found("SettlesByNumberAlone", 0..30, |seed| {
        let mut scenario = plain(seed);
        scenario.calm = false;
        scenario.contents = (0..6).map(|number| content(number, Behaviour::Good(0))).collect();
        for content in &mut scenario.contents {
            content.tells = vec![Told { receiver: 0, same_key: false, order: None, fits: true }];
        }
        scenario.messages = (0..3).map(|number| (at(300 + number), number as usize)).collect();
        scenario.messages.extend((3..6).map(|number| (at(400 + 10 * seed + number), number as usize)));
        scenario.events = vec![(at(200), Event::Checkpoint), (at(380 + 10 * seed), Event::FailOver)];
        let mut telling = telling();
        telling.receivers[0].latency = 600;
        scenario.telling = Some(telling);
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

/// J63: a failover that loses the consumer's row comes between a worker's registration and its first look at the controls.
#[test]
fn j63_a_consumer_that_is_lost_before_the_first_look_is_put_back() {
    found("TrustsTheFirstServer", 0..30, |seed| {
        let mut scenario = plain(seed);
        scenario.calm = false;
        scenario.weather = Weather { seed, slow: Rate::OneIn(1), slow_max: at(50), ..Weather::default() };
        messages(&mut scenario, 1, at(1_000), at(0), Behaviour::Good(0));
        scenario.events = vec![(at(0), Event::Checkpoint), (at(40), Event::FailOver)];
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

/// J70: a relay that sends each event by itself has one under way that a failover loses, and another event gets its number there:
/// those behind that one in its ordering key do not go before it.
#[test]
fn j70_an_event_with_the_number_of_a_lost_one_under_way_is_not_overtaken() {
    found("UnderWayByNumber", 0..30, |seed| {
        let mut scenario = plain(seed);
        scenario.calm = false;
        scenario.contents = (0..6).map(|number| content(number, Behaviour::Good(0))).collect();
        for (number, content) in scenario.contents.iter_mut().enumerate() {
            let order = (number >= 3).then_some(0);
            content.tells = vec![Told { receiver: 0, same_key: false, order, fits: true }];
        }
        scenario.messages = (0..3).map(|number| (at(300 + number), number as usize)).collect();
        scenario.messages.extend((3..6).map(|number| (at(400 + 10 * seed + number), number as usize)));
        scenario.events = vec![(at(200), Event::Checkpoint), (at(380 + 10 * seed), Event::FailOver)];
        let mut telling = telling();
        (telling.receivers[0].latency, telling.receivers[0].dispatch) = (600, Dispatch::Each { at_once: 4 });
        scenario.telling = Some(telling);
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

/// O1: the event of an operation goes with its effect: a store that loses events is noticed where there are no messages at all.
#[test]
fn o1_the_event_of_an_operation_arrives() {
    found("LosesEvents", 0..5, |seed| {
        let mut scenario = plain(seed);
        let mut telling = telling();
        telling.operations = vec![Operation { tenant: 0, key: 0, fails_for: 0, refuses: false, takes: 5, tells: true }];
        telling.calls = vec![(at(100), 0, 0)];
        scenario.telling = Some(telling);
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

/// Three functions and both ways in which they fail, each for one message of a few, for ever or for a while.
fn unidentified(seed: u64) -> Scenario {
    let mut scenario = plain(seed);
    scenario.tenants = true;
    messages(&mut scenario, 12, at(100), at(50), Behaviour::Good(0));
    for (number, content) in scenario.contents.iter_mut().enumerate() {
        content.tenant = Some("t".to_owned());
        let function = [Finds::Tenant, Finds::Key, Finds::Hash][number % 3];
        let calls = (number % 4 < 2).then_some(1);
        content.unidentified =
            (number < 10).then_some(Unidentified { function, panics: number as u64 % 2 == seed % 2, calls });
    }
    scenario.events = vec![(at(3_000), Event::Replay)];
    scenario
}

/// D11: a function that finds tenant, key or hash panics, and the worker goes on.
#[test]
fn d11_no_function_that_identifies_ends_a_worker() {
    found("CatchesNothing", 0..4, unidentified);
}

/// J86: a message whose tenant, key or hash is not found is a dead letter and never runs, and once they are found a replay handles it.
#[test]
fn j86_what_cannot_be_identified_never_runs() {
    found("UnhashedIsEmpty", 0..4, unidentified);
    found("MakesKeysUp", 0..4, unidentified);
}

/// J87: of the two rows that a run writes, both are there or none, with each kind of handler.
#[test]
fn j87_an_effect_of_two_rows_is_whole() {
    let twofold = |seed: u64| {
        let mut scenario = plain(seed);
        (scenario.in_batches, scenario.effects) = (seed.is_multiple_of(2), Effects::InTransaction);
        messages(&mut scenario, 6, at(100), at(1), Behaviour::Good(0));
        scenario.contents[2].behaviour = Behaviour::CommitsFor(1);
        scenario.contents[3].behaviour = Behaviour::SwallowsFor(1);
        scenario.contents[4].behaviour = Behaviour::FailsFor(1);
        scenario.retry = RetryPolicy::new(5, at(50), at(100));
        scenario.contents.iter_mut().for_each(|content| content.writes_twice = true);
        scenario
    };
    found("KeepsOneRowAKey", 0..6, twofold);
    found("CommitsUnsealed", 0..6, twofold);
}

/// A message comes, its consumer gets another name, and the message comes again.
fn renamed(seed: u64, behaviour: Behaviour) -> Scenario {
    let mut scenario = plain(seed);
    (scenario.calm, scenario.effects) = (false, Effects::Outside);
    scenario.retry = RetryPolicy::new(5, at(400), at(400));
    messages(&mut scenario, 3, at(500), at(10), behaviour);
    let again: Vec<_> = (0..3).map(|number| (at(5_000), number)).collect();
    scenario.messages.extend(again);
    scenario.events = vec![(at(900 + 10 * seed), Event::Rename), (at(3_000), Event::Rename)];
    scenario
}

/// J88: a consumer keeps its records where an operator gives it another name.
#[test]
fn j88_a_renamed_consumer_handles_nothing_again() {
    found("RenamesWithoutRecords", 0..5, |seed| renamed(seed, Behaviour::Good(0)));
}

/// O37: the ids that it derives stay what they were, also for messages that it has tried before.
#[test]
fn o37_a_renamed_consumer_calls_with_the_same_keys() {
    found("RenamesDerivedIds", 0..5, |seed| renamed(seed, Behaviour::FailsFor(3)));
}

/// J89: keys that look alike, and long ones with one beginning, are keys of their own.
#[test]
fn j89_keys_that_look_alike_are_different() {
    let alike = |seed: u64| {
        let mut scenario = plain(seed);
        messages(&mut scenario, 8, at(100), at(100), Behaviour::Good(0));
        let long = "0".repeat(if seed.is_multiple_of(2) { 0 } else { 100 });
        let forms = ["key", "KEY", "key ", "key\u{e9}", "keye\u{301}", "\u{ff4b}ey", "key\u{200b}", "ke"];
        for (content, form) in scenario.contents.iter_mut().zip(forms) {
            content.key = Some(format!("{long}{form}"));
        }
        scenario
    };
    found("FoldsKeys", 0..2, alike);
    found("CutsKeysAt64Bytes", 0..2, alike);
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

/// Each of some messages tells a receiver, which often fails, of three events, all of this ordering key.
fn told_in_vain(seed: u64, order: Option<u8>) -> Scenario {
    let mut scenario = plain(seed);
    scenario.calm = false;
    messages(&mut scenario, 10, at(0), at(500), Behaviour::Good(0));
    for content in &mut scenario.contents {
        content.tells = vec![Told { receiver: 0, same_key: false, order, fits: true }; 3];
    }
    let mut telling = telling();
    telling.receivers[0].faults = Rate::OneIn(2);
    scenario.telling = Some(telling);
    scenario
}

/// O2: an event whose receiver hangs or panics may be there or not: it is sent until a confirmation comes.
#[test]
fn o2_an_event_without_a_confirmation_is_sent_again() {
    found("SilenceConfirms", 0..10, |seed| told_in_vain(seed, None));
}

/// O2: each event of a batch has its own confirmation.
#[test]
fn o2_the_confirmation_of_one_event_is_none_of_the_others() {
    found("OneConfirmsAll", 0..10, |seed| told_in_vain(seed, None));
}

/// O24: what stands behind an event that failed waits for it.
#[test]
fn o24_nothing_goes_before_an_event_that_failed() {
    found("SendsFollowers", 0..10, |seed| told_in_vain(seed, Some(0)));
}
