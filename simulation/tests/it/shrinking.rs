//! A life that breaks a promise is made smaller.

use idem_testkit::Defect;
use simulation::{Scenario, Theme, Way, live, shrink, silence_panics};

/// A store that loses effects breaks a promise with any message, so one or two are left, and no event.
#[test]
fn a_life_is_made_smaller_and_breaks_the_same_promise() {
    silence_panics();
    let way = Way { defect: Some(Defect::LosesEffects), ..Way::default() };
    let whole = Scenario::draw(Theme::Small, 1);
    let rule = live(&whole, way).breaches[0].rule;
    let small = shrink(&whole, way, rule);
    assert!(whole.messages.len() > 2, "the life was small before");
    assert!(small.messages.len() <= 2 && small.events.is_empty(), "{small:?}");
    let broken: Vec<_> = live(&small, way).breaches.iter().map(|breach| breach.rule).collect();
    assert!(broken.contains(&rule), "{broken:?}, not {rule:?}");
}
