//! Facts become rows: words, order, fixes, and which runs are a crash loop.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::*;

fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_000_000 + seconds)
}

fn run(number: i32, started: u64) -> Run {
    Run::new(RunId(number), "host:1".to_owned(), at(started))
}

fn shown(facts: Vec<Fact>, now: u64) -> Vec<String> {
    let rows = rows("led ger", facts, at(now));
    rows.iter().map(|row| format!("{}: {} | {}", row.state, row.line(), row.fix.as_deref().unwrap_or("-"))).collect()
}

#[test]
fn j110_what_keeps_messages_from_being_handled_comes_first_and_each_row_has_its_fix() {
    let facts = vec![
        Fact::of(Condition::DeadLetters).count(3_u64).detail("1 of a conflict").latest(Some(at(0))),
        Fact::of(Condition::Paused).detail("ada: a deploy").since(Some(at(100))),
        Fact::of(Condition::DatabaseDown).count(2_u64).since(Some(at(200))),
    ];
    let now_and_then = |now| shown(facts.clone(), now);
    assert_eq!(
        now_and_then(300),
        [
            "database down: 2 lanes cannot reach the database, for 100 s; no attempt is charged, and the worker continues by \
             itself once the database answers | doctor",
            "paused: paused by ada: a deploy, for 3 min | consumers resume 'led ger'",
            "dead letters: 3 open dead letters, 1 of a conflict; the last 5 min ago | dead-letters groups --consumer 'led ger'",
        ]
    );
    assert!(now_and_then(30)[1].starts_with("dead letters: "), "those of the last minute go on happening");
}

#[test]
fn j110_several_workers_are_one_row_and_destinations_are_not() {
    let lanes = |count: u64, since| Fact::of(Condition::DatabaseDown).count(count).since(Some(at(since)));
    let events = |to: &str| Fact::of(Condition::EventsFailed).count(1_u64).subject(to);
    let rows = shown(vec![lanes(2, 80), events("b"), lanes(3, 60), events("a")], 100);
    assert!(rows[0].starts_with("database down: 5 lanes cannot reach the database, for 40 s"), "{rows:?}");
    assert_eq!(rows.len(), 3, "{rows:?}");
    assert!(rows[2].ends_with("outbox list --state failed --destination b"), "{rows:?}");
}

#[test]
fn a_short_wait_for_a_key_is_no_row() {
    let waits = |since| shown(vec![Fact::of(Condition::KeyHeld).count(1_u64).since(Some(at(since)))], 100).len();
    assert_eq!((waits(41), waits(40)), (0, 1));
}

/// T39: a handler that aborts its process, and a start that is refused after it was registered.
#[test]
fn j110_runs_that_end_again_and_again_are_a_crash_loop() {
    let failed = |number, started: u64| {
        let end = vec![Fact::of(Condition::Failed).detail("the store refused")];
        run(number, started).report(at(started + 5), Some(at(started + 5)), end)
    };
    let killed = |number, started: u64| run(number, started).report(at(started + 10), None, Vec::new());
    let stopped =
        |number, started: u64| run(number, started).report(at(started + 9), Some(at(started + 9)), Vec::new());
    let of = |now: u64, runs: Vec<Run>| Tables::new(at(now), Vec::new(), runs).all(None);
    let [found] = &of(200, vec![killed(3, 120), failed(2, 60), killed(1, 0)])[..] else { panic!("no crash loop") };
    assert_eq!((found.condition, found.count, found.since), (Condition::CrashLoop, 3, Some(at(0))));
    assert_eq!(found.detail, "run 3 (host:1): it was killed or aborted: it reported no end");
    assert_eq!(of(200, vec![stopped(3, 120), failed(2, 60), killed(1, 0)]), [], "two of them");
    assert_eq!(of(150, vec![killed(3, 120), failed(2, 60), killed(1, 0)]), [], "the last one may be alive");
    assert_eq!(of(4_000, vec![killed(3, 120), failed(2, 60), killed(1, 0)]), [], "long ago");
    let long = |number, started: u64| run(number, started).report(at(started + 400), None, Vec::new());
    assert_eq!(of(1_500, vec![long(3, 900), long(2, 450), long(1, 0)]), [], "killed by a deploy after its work");
}

#[test]
fn facts_are_kept_and_those_of_a_newer_release_are_left_out() {
    let facts = vec![
        Fact::of(Condition::BreakerOpen).since(Some(at(7))),
        Fact::of(Condition::EventsFailed).subject("a").count(2_u64).detail("so"),
    ];
    let text = to_json(&facts);
    assert_eq!(from_json(&text), facts);
    let newer = text.replace("breaker-open", "a-new-one");
    assert_eq!(from_json(&newer), facts[1..]);
    assert_eq!(from_json("no json"), []);
}

#[test]
fn only_a_run_that_reports_is_alive_and_its_facts_count() {
    let held = || vec![Fact::of(Condition::Unkeepable).count(1_u64)];
    let seen = |seconds| run(1, 0).report(at(seconds), None, held());
    let tables = |now, run| Tables::new(at(now), Vec::new(), vec![run]);
    assert!(tables(40, seen(10)).has_worker());
    assert_eq!(tables(40, seen(10)).all(None), held());
    assert_eq!(tables(40, seen(10)).all(Some(RunId(1))), [], "its own");
    assert!(!tables(41, seen(10)).has_worker());
    assert_eq!(tables(41, seen(10)).all(None), []);
}
