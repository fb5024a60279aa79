//! Makes a life that breaks a promise smaller, for the person who has to understand it: leaves messages and events out for as
//! long as the same promise is broken.

use crate::{
    journal::Rule,
    life::{Way, live},
    scenario::Scenario,
};

/// A smaller life that still breaks `rule`. It takes up to some hundred lives.
#[must_use]
pub fn shrink(scenario: &Scenario, way: Way, rule: Rule) -> Scenario {
    let breaks =
        |scenario: &Scenario| live(scenario, Way { trace: false, ..way }).breaches.iter().any(|b| b.rule == rule);
    let mut smallest = scenario.clone();
    loop {
        let before = smallest.messages.len() + smallest.events.len();
        leave_out(&mut smallest, |scenario| &mut scenario.events, breaks);
        leave_out(&mut smallest, |scenario| &mut scenario.messages, breaks);
        if smallest.messages.len() + smallest.events.len() == before {
            return smallest;
        }
    }
}

/// Leaves parts of a list out: halves first, then ever smaller ones.
fn leave_out<T>(
    scenario: &mut Scenario,
    list: impl Fn(&mut Scenario) -> &mut Vec<T>,
    breaks: impl Fn(&Scenario) -> bool,
) {
    let mut size = list(scenario).len().div_ceil(2);
    while size > 0 {
        let mut from = 0;
        while from < list(scenario).len() {
            let mut without = scenario.clone();
            let end = (from + size).min(list(&mut without).len());
            list(&mut without).drain(from..end);
            if breaks(&without) {
                *scenario = without;
            } else {
                from = end;
            }
        }
        size /= 2;
    }
}
