//! The tools for a person who has to understand a life: a smaller one, and the same one again.

use std::process::Command;

use idem_testkit::Defect;
use simulation::{Lives, Scenario, Theme, Until, Way, live, shrink, silence_panics};

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

/// The option for a death at a poll runs the life that was run among all polls.
#[test]
fn a_death_at_a_poll_is_run_again_by_its_option() {
    let run = Command::new(env!("CARGO_BIN_EXE_sim")).args(["--lives", "1", "--dies-at", "40"]).output().unwrap();
    let told = String::from_utf8(run.stdout).unwrap();
    let lives = |first_dies_at| Lives {
        theme: Theme::Small,
        seed: 1,
        count: 1,
        jobs: 1,
        way: Way { first_dies_at, ..Way::default() },
        every_poll: false,
        until: Until::Never,
    };
    let sum = |dies_at| lives(dies_at).run(silence_panics);
    assert_ne!(sum(None).hash, sum(Some(40)).hash, "the death changes the life");
    // Without tokio_unstable the choices of tokio's own select! come from elsewhere.
    if cfg!(tokio_unstable) {
        assert!(told.contains(&format!("hash {:016x}", sum(Some(40)).hash)), "{told}");
    }
}
