//! A server takes over that has not what the last one had.

use idem_core::outbox::Dispatch;
use idem_testkit::{Weather, memory::Rate};
use simulation::{Behaviour, Event, Told};

use super::{at, content, found, messages, plain, telling};

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
