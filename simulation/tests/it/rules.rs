//! A check that cannot fire finds nothing.

use simulation::{Rule, Scenario, Theme, live, silence_panics, teeth};

/// For each rule a planted bug and a life that breaks the rule with it. Where lives are drawn differently another seed is
/// found by `./sim --theme THEME --bug BUG --until RULE`.
const BROKEN: [(Rule, &str, Theme, u64); 26] = [
    (Rule::SettledTooEarly, "AcknowledgesBeforeCommit", Theme::Small, 1),
    (Rule::Lost, "LosesEffects", Theme::Small, 1),
    (Rule::SecondEffect, "PutsEffectsOutside", Theme::Small, 3),
    (Rule::Unearned, "LosesEffects", Theme::Small, 2),
    (Rule::NotPublished, "RefusedIsPublished", Theme::Small, 100),
    (Rule::DeadWhileRunning, "SetsAsideLaterWithoutClaim", Theme::Small, 2_243_475),
    (Rule::RanTooOften, "CleansLiveRecords", Theme::Small, 140),
    (Rule::RecordWithoutEffect, "LosesEffects", Theme::Small, 1),
    (Rule::WrongSum, "PutsEffectsOutside", Theme::Small, 13),
    (Rule::OutOfOrder, "AcknowledgesBeforeCommit", Theme::Small, 1_884),
    (Rule::OtherDerivedKey, "DerivesByPlace", Theme::Small, 6),
    (Rule::RanWhilePaused, "IgnoresPauses", Theme::Small, 108),
    (Rule::Late, "WaitsForFullBatches", Theme::Calm, 59),
    (Rule::Spins, "RestingLaneSpins", Theme::Small, 138),
    (Rule::NotAtRest, "ScansByNumber", Theme::Small, 13),
    (Rule::WorkerEnded, "CatchesNothing", Theme::Small, 6),
    (Rule::Panicked, "TaskPanics", Theme::Small, 1),
    (Rule::EventLost, "PutsEffectsOutside", Theme::Small, 1),
    (Rule::EventOfNothing, "LosesEffects", Theme::Small, 1),
    (Rule::OtherEventId, "RandomId", Theme::Small, 1),
    (Rule::EventsOutOfOrder, "PutsEventsOutside", Theme::Small, 1),
    (Rule::NeedlessCopy, "LeasesToAll", Theme::Calm, 16),
    (Rule::OtherAnswer, "ResultInSecondTx", Theme::Small, 1),
    (Rule::OtherHolder, "GivesBackUncommitted", Theme::Small, 37),
    (Rule::HalfAnEffect, "KeepsOneRowAKey", Theme::Small, 101),
    (Rule::Unidentified, "UnhashedIsEmpty", Theme::Small, 6),
];

/// Each rule is in the list, and broken as it says.
#[test]
fn each_rule_can_be_broken() {
    for rule in Rule::ALL {
        let listed = BROKEN.iter().filter(|(of, ..)| *of == rule).count();
        assert_eq!(listed, 1, "{rule:?} is not in the list, or twice");
    }
    // Seeds are worth their lives only where tokio's choices are seeded, and the engine's bugs are there with their flag alone.
    if !cfg!(all(idem_bugs, tokio_unstable)) {
        return;
    }
    silence_panics();
    for (rule, bug, theme, seed) in BROKEN {
        let way = teeth::plant(bug).unwrap();
        let report = live(&Scenario::draw(theme, seed), way);
        teeth::plant_nothing();
        let broken: Vec<Rule> = report.breaches.iter().map(|breach| breach.rule).collect();
        assert!(broken.contains(&rule), "{} {seed} with {bug} breaks {broken:?}, and not {rule:?}", theme.as_str());
    }
}
