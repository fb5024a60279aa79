//! Keys, names and hashes, and the rows of one effect.

use idem_core::{Effects, config::RetryPolicy};
use simulation::{Behaviour, Event, Finds, Scenario, Unidentified};

use super::{at, found, messages, plain};

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

/// C13: messages that came before their consumer was bound anew, to another source, handler and hash rule, are known when they come
/// again: each record is compared by the rule that it has, and kept.
#[test]
fn c13_a_consumer_that_is_bound_anew_knows_what_it_has_handled() {
    found("SharesHashRules", 0..5, |seed| {
        let mut scenario = renamed(seed, Behaviour::Good(0));
        scenario.events.iter_mut().for_each(|(_, event)| *event = Event::Rebind);
        scenario
    });
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
