//! Sequences drawn from a seed: few keys, payloads and origins, so that they meet; and texts that not every database takes.

use std::{ops::Range, time::Duration};

use idem_core::{ControlState, Reason, Retention, store::Expiring};

use super::steps::{End, Letter, Payload, Step, Unit, UnitEnd, Wish};

const MINUTE: Duration = Duration::from_secs(60);

/// No sum of [`AGES`] lies within minutes of any of them.
const RETENTIONS: [Retention; 3] =
    [Retention::For(MINUTE.saturating_mul(50)), Retention::For(MINUTE.saturating_mul(630)), Retention::Forever];

/// Longer than a replay is taken for, than a short retention, than attempts are kept.
const AGES: [Duration; 3] = [MINUTE.saturating_mul(20), MINUTE.saturating_mul(120), MINUTE.saturating_mul(1800)];

/// The first two are one under a rule that looks at the first letter only.
const PAYLOADS: [&str; 4] = ["a", "aa", "b", ""];
const ERRORS: [&str; 3] = ["it failed", "it failed otherwise", "it\0failed"];

/// The kinds of two of three steps of a sequence: places in [`step`]. Rare meetings, as of a copy and a replay, are then not
/// rare.
const THEMES: [Range<u8>; 4] = [0..100, 9..30, 25..43, 43..86];

/// A sequence that begins with a registration.
pub(super) fn sequence(rng: &mut fastrand::Rng, length: usize, ages: bool) -> Vec<Step> {
    let first = Step::Register {
        tenant: 0,
        bound_to: None,
        handler: None,
        key_rule: "header:k",
        hash_rules: vec!["twin/1", "twin/2"],
    };
    let theme = any(rng, &THEMES);
    let mut steps = vec![first];
    while steps.len() < length {
        let place = if rng.u8(..3) > 0 { rng.u8(theme.clone()) } else { rng.u8(..100) };
        let step = step(place, rng);
        if ages || !matches!(step, Step::Age(_)) {
            steps.push(step);
        }
    }
    steps
}

fn step(place: u8, rng: &mut fastrand::Rng) -> Step {
    match place {
        0..5 => register(rng),
        5..9 => Step::Scope { tenant: rng.usize(..3), registered: rng.u8(..4) > 0 },
        9..25 => Step::Unit(unit(rng)),
        25..30 => Step::Meet(unit(rng), unit(rng)),
        30..37 => Step::Count(payload(rng)),
        37..40 => Step::Uncount(payload(rng)),
        40..43 => Step::EndAttempts(payload(rng)),
        43..57 => Step::Store(Box::new(letter(rng))),
        57..59 => Step::MarkPublished(few(rng, 6)),
        59..68 => Step::RequestReplay((0..rng.usize(1..4)).map(|_| few(rng, 6)).collect()),
        68..75 => Step::TakeReplays(rng.u32(1..4)),
        75..86 => Step::FinishReplay(few(rng, 6), end(rng)),
        86..90 => Step::SetControl(wish(rng)),
        90..92 => Step::Audit { key: rng.bool().then(|| rng.usize(..3)), details: any(rng, &ERRORS) },
        92..96 => Step::Age(any(rng, &AGES)),
        _ => Step::Clean(any(rng, &[Expiring::Records, Expiring::Attempts, Expiring::DeadLetters])),
    }
}

fn any<T: Clone>(rng: &mut fastrand::Rng, of: &[T]) -> T {
    of[rng.usize(..of.len())].clone()
}

/// The lower ones more often, so that they meet.
fn few(rng: &mut fastrand::Rng, below: usize) -> usize {
    rng.usize(..below).min(rng.usize(..below))
}

fn some<T: Copy>(rng: &mut fastrand::Rng, of: &[T]) -> Option<T> {
    let one = any(rng, of);
    rng.u8(..3).eq(&0).then_some(one)
}

fn register(rng: &mut fastrand::Rng) -> Step {
    let hash_rules: [&[&str]; 4] = [&["twin/1", "twin/2"], &["twin/2", "twin/1"], &["twin/2"], &["twin/3", "twin/2"]];
    Step::Register {
        tenant: rng.usize(..2),
        bound_to: some(rng, &["queue one", "queue two"]),
        handler: some(rng, &["handler one", "handler two"]),
        key_rule: if rng.u8(..6) == 0 { "header:other" } else { "header:k" },
        hash_rules: any(rng, &hash_rules).to_vec(),
    }
}

fn payload(rng: &mut fastrand::Rng) -> Payload {
    Payload { scope: few(rng, 3), key: few(rng, 3), text: PAYLOADS[few(rng, 4)], rule: rng.usize(..3) }
}

fn unit(rng: &mut fastrand::Rng) -> Unit {
    Unit {
        claims: (0..rng.usize(..4)).map(|_| (payload(rng), any(rng, &RETENTIONS))).collect(),
        writes: rng.bool(),
        ends: any(rng, &[UnitEnd::Commit, UnitEnd::Commit, UnitEnd::Commit, UnitEnd::Rollback, UnitEnd::Dropped]),
    }
}

fn letter(rng: &mut fastrand::Rng) -> Letter {
    Letter {
        scope: few(rng, 3),
        key: (rng.u8(..4) > 0).then(|| few(rng, 2)),
        payload: (rng.u8(..8) > 0).then(|| PAYLOADS[few(rng, 4)]),
        hashed: rng.u8(..4) > 0,
        keep_payload: rng.u8(..3) > 0,
        origin: any(rng, &["q/1", "q/2", "q/3", "q\0/4"]),
        header: some(rng, &["one", "two", "\0"]),
        id: some(rng, &["m-1", "m\0"]),
        message_type: some(rng, &["Paid", "P\0"]),
        record_key: some(rng, &["r", "\0"]),
        ordering_key: some(rng, &["o", "\0"]),
        is_dated: rng.bool(),
        reason: any(rng, &[Reason::Permanent, Reason::Permanent, Reason::AttemptsExhausted]),
        attempts: rng.u32(1..5),
        error: any(rng, &ERRORS),
    }
}

fn end(rng: &mut fastrand::Rng) -> End {
    let failed = End::Failed(any(rng, &ERRORS));
    any(rng, &[End::Processed, End::Processed, End::Duplicate, failed, End::Released])
}

fn wish(rng: &mut fastrand::Rng) -> Wish {
    Wish {
        scope: rng.usize(..3),
        state: any(rng, &[ControlState::Running, ControlState::Paused, ControlState::Halted]),
        by: any(rng, &["ann", "b\0b"]),
        reason: any(rng, &ERRORS),
    }
}
