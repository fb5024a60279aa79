//! The suite's own bookkeeping.

/// A case that is written and not listed would never run.
#[test]
fn every_case_is_listed_in_the_macro() {
    let list = include_str!("mod.rs");
    let modules = [
        ("batches", include_str!("batches.rs")),
        ("competition", include_str!("competition.rs")),
        ("consumers", include_str!("consumers.rs")),
        ("dead_letters", include_str!("dead_letters.rs")),
        ("deliveries", include_str!("deliveries.rs")),
        ("dropped", include_str!("dropped.rs")),
        ("events", include_str!("events.rs")),
        ("failures", include_str!("failures.rs")),
        ("keys", include_str!("keys.rs")),
        ("lost_commits", include_str!("lost_commits.rs")),
        ("operators", include_str!("operators.rs")),
        ("relaying", include_str!("relaying.rs")),
        ("relays", include_str!("relays.rs")),
        ("records", include_str!("records.rs")),
        ("repeats", include_str!("repeats.rs")),
        ("results", include_str!("results.rs")),
        ("transactions", include_str!("transactions.rs")),
        ("twin", include_str!("twin.rs")),
    ];
    let mut cases = 0;
    for (module, text) in modules {
        let public = text.lines().filter_map(|line| line.strip_prefix("pub async fn "));
        for case in public.filter_map(|line| line.split('<').next()) {
            assert!(list.contains(&format!("                {case},\n")), "{module}::{case} is not listed");
            cases += 1;
        }
    }
    assert!(cases >= 60, "{cases}");
}
