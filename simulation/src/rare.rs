//! Draws what few lives have, each by a generator of its own: all other lives stay what they are.

use fastrand::Rng;

use idem_core::Effects;
use idem_testkit::memory::Rate;

use crate::{
    draw::{millis, one_in, pick},
    identify::Identifies,
    scenario::{Content, Event, Finds, Scenario, Unidentified},
};

pub(crate) fn draw(scenario: &mut Scenario, span: u64, seed: u64) {
    unidentified(scenario, seed);
    twice(scenario, seed);
    batches(scenario, seed);
    renames(scenario, span, seed);
    rebinds(scenario, span, seed);
    one_writer(scenario, seed);
    look_alikes(scenario, seed);
    yields(scenario, seed);
}

/// Effects of two rows.
fn twice(scenario: &mut Scenario, seed: u64) {
    let rng = &mut Rng::with_seed(seed ^ 0x0070_07F0_1DEF_FEC7);
    if one_in(rng, 24) {
        contents(scenario).for_each(|content| content.writes_twice = one_in(rng, 2));
    }
}

/// A handler that is called once for a unit, which must not call other services.
fn batches(scenario: &mut Scenario, seed: u64) {
    let rng = &mut Rng::with_seed(seed ^ 0x00BA_7C4E_5000_1234);
    scenario.in_batches = one_in(rng, 24) && scenario.effects == Effects::InTransaction;
}

/// Other tasks run before the answer of each operation of the store too, so that more places are there where a process may die.
fn yields(scenario: &mut Scenario, seed: u64) {
    let rng = &mut Rng::with_seed(seed ^ 0x0071_E1D5_0B07_451D);
    scenario.weather.yields = one_in(rng, 24);
}

/// Operators who give the consumer another name. A server that goes back may have lost that, and only people can mend it.
fn renames(scenario: &mut Scenario, span: u64, seed: u64) {
    let rng = &mut Rng::with_seed(seed ^ 0x007E_9A3E_D0C0_4512);
    if one_in(rng, 32) && !scenario.calm && !scenario.goes_back() {
        for _ in 0..rng.u32(1..=3) {
            scenario.events.push((millis(rng, 0, span), Event::Rename));
        }
        scenario.events.sort_by_key(|(at, _)| *at);
    }
}

/// Operators who have the consumer bound anew. A server that goes back may have lost that, and its workers would be refused.
fn rebinds(scenario: &mut Scenario, span: u64, seed: u64) {
    let rng = &mut Rng::with_seed(seed ^ 0x0000_5EB1_4DA6_A145);
    let has_rules_of_its_own = Identifies::are_needed(scenario);
    if one_in(rng, 32) && !scenario.calm && !scenario.goes_back() && !has_rules_of_its_own {
        for _ in 0..rng.u32(1..=3) {
            scenario.events.push((millis(rng, 0, span), Event::Rebind));
        }
        scenario.events.sort_by_key(|(at, _)| *at);
    }
}

/// A store with one writer, in the one process that a life then has.
fn one_writer(scenario: &mut Scenario, seed: u64) {
    let rng = &mut Rng::with_seed(seed ^ 0x00E3_BEDD_ED00_57E5);
    let is_paired = |content: &Content| matches!(content.key.as_deref(), Some("twin" | "killer"));
    if !one_in(rng, 24) || scenario.partitions.is_some() || scenario.contents.iter().any(is_paired) {
        return;
    }
    (scenario.one_writer, scenario.processes, scenario.lanes) = (true, 1, 1);
    // No server is left with what a process held.
    scenario.weather.lingers = Rate::Never;
    for (_, event) in &mut scenario.events {
        if let Event::Kill { process, .. } | Event::Stop { process } | Event::CutOff { process, .. } = event {
            *process = 0;
        }
    }
    if let Some(telling) = &mut scenario.telling {
        telling.relays = 1;
        telling.calls.iter_mut().for_each(|(_, process, _)| *process = 0);
    }
}

/// The forms of a key that look alike: another case, a space, another form in Unicode, and what is longer than others keep.
const FORMS: [&str; 8] = ["key", "KEY", "key ", "key\u{e9}", "keye\u{301}", "key\u{200b}", "\u{ff4b}ey", "key0000000"];

/// Keys that must not be one.
fn look_alikes(scenario: &mut Scenario, seed: u64) {
    let rng = &mut Rng::with_seed(seed ^ 0x0010_0CA1_1CE5_0000);
    if !one_in(rng, 24) {
        return;
    }
    // Long enough that those are equal that keep a part.
    let long = if one_in(rng, 2) { "0".repeat(rng.usize(60..200)) } else { String::new() };
    for content in contents(scenario) {
        let number = content.key.as_deref().and_then(|key| key.strip_prefix('k')?.parse::<usize>().ok());
        let Some(number) = number else { continue };
        let (form, round) = (FORMS[number % FORMS.len()], number / FORMS.len());
        content.key = Some(format!("{}{long}{form}", "a".repeat(round)));
    }
}

/// The contents that may be drawn anew: two payloads of one key have to go on as they do.
fn contents(scenario: &mut Scenario) -> impl Iterator<Item = &mut Content> {
    let is_free = |key: &str| key != "twin" && key != "killer";
    scenario.contents.iter_mut().filter(move |content| content.key.as_deref().is_some_and(is_free))
}

/// Functions that find no tenant, key or hash of some messages, for a while or for ever.
fn unidentified(scenario: &mut Scenario, seed: u64) {
    let rng = &mut Rng::with_seed(seed ^ 0x001D_E071_F1ED_0FF5);
    if !one_in(rng, 24) {
        return;
    }
    let tenants = scenario.tenants;
    for content in contents(scenario) {
        if one_in(rng, 4) {
            let function = pick(rng, &[Finds::Tenant, Finds::Key, Finds::Key, Finds::Hash]);
            let function = if function == Finds::Tenant && !tenants { Finds::Hash } else { function };
            let calls = one_in(rng, 2).then(|| rng.u32(1..4));
            content.unidentified = Some(Unidentified { function, panics: one_in(rng, 2), calls });
        }
    }
}
