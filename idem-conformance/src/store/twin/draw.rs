//! Sequences drawn from a seed: few keys, payloads and origins, so that they meet; and texts that not every database takes.

use std::{ops::Range, time::Duration};

use idem_core::{
    Retention,
    cleanup::Expiring,
    dead_letter::Reason,
    outbox::{EventEnd, IdForm, RECEIVER_KEEPS},
    store::ControlState,
};

use super::steps::{Answer, End, Letter, Named, OutboxStep, Payload, ReplayStep, Sent, Step, Unit, UnitEnd, Wish};

const MINUTE: Duration = Duration::from_secs(60);

/// No sum of [`AGES`] lies within minutes of either.
const SHORT: Duration = MINUTE.saturating_mul(50);
const LONG: Duration = MINUTE.saturating_mul(630);
const RETENTIONS: [Retention; 3] = [Retention::For(SHORT), Retention::For(LONG), Retention::Forever];

/// Longer than the lease of a row that is due, than a short retention, than attempts are kept.
const AGES: [Duration; 3] = [MINUTE.saturating_mul(20), MINUTE.saturating_mul(120), MINUTE.saturating_mul(1800)];

/// The longer one ends so late that only a clock that was ahead can have given it; a sequence takes less than the shorter one.
const LEASES: [Duration; 2] = [Duration::from_secs(110), SHORT];

/// The first two are one under a rule that looks at the first letter only.
const PAYLOADS: [&str; 4] = ["a", "aa", "b", ""];
/// Those of events, by their keys: an event under a used key is mostly the same one.
const ORDERING_KEYS: [Option<&str>; 6] = [Some("o"), Some("o"), None, Some("o"), Some("\0"), None];
const CLEANED: [Expiring; 4] = [Expiring::Records, Expiring::Attempts, Expiring::DeadLetters, Expiring::Answers];
const ERRORS: [&str; 3] = ["it failed", "it failed otherwise", "it\0failed"];

/// The kinds of two of three steps of a sequence: places in [`step`]. Rare meetings, as of a copy and a replay, are then not
/// rare.
const THEMES: [Range<u8>; 6] = [0..PLACES, 40..61, 56..74, 74..117, 9..61, 9..61];
const PLACES: u8 = 131;

/// What the store under test offers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Offered {
    /// Its clock can be put forward.
    pub(super) ages: bool,
    /// Units write events and results.
    pub(super) hands_in: bool,
}

impl Offered {
    fn has(self, step: &Step) -> bool {
        (self.ages || !matches!(step, Step::Age(_))) && (self.hands_in || !step.hands_in())
    }
}

/// A sequence that begins with a registration.
pub(super) fn sequence(rng: &mut fastrand::Rng, length: usize, offered: Offered) -> Vec<Step> {
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
        let place = if rng.u8(..3) > 0 { rng.u8(theme.clone()) } else { rng.u8(..PLACES) };
        let step = step(place, rng);
        if offered.has(&step) {
            steps.push(step);
        }
    }
    steps
}

fn step(place: u8, rng: &mut fastrand::Rng) -> Step {
    match place {
        0..5 => register(rng),
        5..9 => Step::Scope { tenant: rng.usize(..3), registered: rng.u8(..4) > 0 },
        9..40 => outbox_step(place - 9, rng),
        40..59 => Step::Unit(unit(rng)),
        59..61 => Step::Meet(unit(rng), unit(rng)),
        61..68 => Step::Count(payload(rng)),
        68..71 => Step::Uncount(payload(rng)),
        71..74 => Step::EndAttempts(payload(rng)),
        74..88 => Step::Store(Box::new(letter(rng))),
        88..90 => Step::Replay(ReplayStep::MarkPublished(few(rng, 6))),
        90..99 => Step::Replay(ReplayStep::Request((0..rng.usize(1..4)).map(|_| few(rng, 6)).collect())),
        99..106 => Step::Replay(ReplayStep::Take(rng.u32(1..4))),
        106..108 => Step::Replay(ReplayStep::Renew(few(rng, 6))),
        108..117 => Step::Replay(ReplayStep::Finish(few(rng, 6), end(rng))),
        117..121 => Step::SetControl(wish(rng)),
        121..123 => Step::Audit { key: rng.bool().then(|| rng.usize(..3)), details: any(rng, &ERRORS) },
        123..127 => Step::Age(any(rng, &AGES)),
        _ => Step::Clean(any(rng, &CLEANED)),
    }
}

fn outbox_step(place: u8, rng: &mut fastrand::Rng) -> Step {
    let (destination, relay) = (few(rng, 2), rng.usize(..2));
    Step::Outbox(match place {
        0..6 => OutboxStep::Lease {
            destination,
            relay,
            time: any(rng, &LEASES),
            receiver_keeps: any(rng, &[RECEIVER_KEEPS, LONG]),
        },
        6..8 => OutboxStep::Release { destination, relay },
        8..16 => {
            OutboxStep::Next { destination, events: any(rng, &[1, 3, 100]), bytes: any(rng, &[1, 100_000, 100_000]) }
        }
        16..23 => {
            let ends = names(rng).into_iter().map(|named| (named, event_end(rng))).collect();
            OutboxStep::Settle { ends, elsewhere: rng.u8(..8) == 0 }
        }
        23..25 => OutboxStep::Retry(names(rng)),
        25 => OutboxStep::Skip(names(rng)),
        26..28 => OutboxStep::Pause { destination, is_paused: rng.bool() },
        28..30 => return Step::Age(any(rng, &AGES)),
        _ => OutboxStep::Declare { destination, form: any(rng, &[IdForm::V8, IdForm::V5]) },
    })
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
        is_refused: rng.u8(..6) == 0,
        events: if rng.bool() { (0..rng.usize(1..5)).map(|_| sent(rng)).collect() } else { Vec::new() },
        answer: rng.u8(..3).eq(&0).then(|| answer(rng)),
        ends: any(rng, &[UnitEnd::Commit, UnitEnd::Commit, UnitEnd::Commit, UnitEnd::Rollback, UnitEnd::Dropped]),
    }
}

fn sent(rng: &mut fastrand::Rng) -> Sent {
    let key = few(rng, ORDERING_KEYS.len());
    let (scope, destination, ordering_key) = (few(rng, 3), few(rng, 2), ORDERING_KEYS[key]);
    Sent { scope, destination, key, text: PAYLOADS[few(rng, 3)], ordering_key, is_typed: rng.u8(..6) == 0 }
}

fn answer(rng: &mut fastrand::Rng) -> Answer {
    Answer {
        text: any(rng, &["a", "b", "\0"]),
        status: some(rng, &[201, 422]),
        content_type: some(rng, &["text/plain"]),
        header: some(rng, &["one", "\0"]),
        reference: some(rng, &["/orders/7"]),
        sealed_with: any(rng, &[0, 0, 7]),
        kept_for: any(rng, &[None, Some(SHORT), Some(LONG)]),
    }
}

/// Names of events, some of which no event has: the number of one with the key of another.
fn names(rng: &mut fastrand::Rng) -> Vec<Named> {
    let event = few(rng, 5);
    let (itself, other) = (Named { event, key_of: None }, Named { event, key_of: Some(event + 1) });
    match rng.u8(..6) {
        0 => vec![other],
        1 => vec![other, Named { event: event + 1, key_of: Some(event) }],
        _ => [vec![itself], (0..rng.usize(..3)).map(|_| Named { event: few(rng, 5), key_of: None }).collect()].concat(),
    }
}

fn event_end(rng: &mut fastrand::Rng) -> EventEnd {
    let (error, may_be_sent) = (any(rng, &ERRORS).to_owned(), rng.bool());
    match rng.u8(..6) {
        0..2 => EventEnd::Published,
        2..4 => EventEnd::Later { after: any(rng, &[Duration::ZERO, SHORT]), error, may_be_sent, counted: rng.bool() },
        _ => EventEnd::Failed { error, may_be_sent },
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
