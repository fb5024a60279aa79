//! Events on their way to receivers.

use idem_testkit::memory::Rate;
use simulation::{Behaviour, Operation, Scenario, Told};

use super::{at, found, messages, plain, telling};

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
