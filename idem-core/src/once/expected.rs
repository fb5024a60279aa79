//! Whether a call is likely to repeat an operation that is done, so that its record is looked up before anything is claimed.
//!
//! A look-up is one statement where a claim in vain is a transaction, and a first run must not pay for it. So it is made only
//! for a reason: the key was seen here before, or one call after the other repeats a key that was not, as after the end of
//! another process. This decides nothing: a wrong guess costs one statement, or the claim that every other call makes.

use std::{
    collections::HashSet,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    mem,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
};

use crate::{outcome::Decision, store::claim::Claim};

/// This many of the latest keys are remembered at least, and twice as many at most, in 2.5 MB.
const KEYS: usize = 65_536;

/// After this many unexpected repeats in a row, the next call is expected to be one.
const IN_A_ROW: u32 = 4;

/// The keys that calls had lately, and how the guesses went.
#[derive(Debug, Default)]
pub(super) struct Repeats {
    seen: Mutex<Seen>,
    /// Repeats in a row among the calls with keys that were not known.
    in_a_row: AtomicU32,
}

/// Digests of keys. When the younger ones are as many as may be, they replace the older ones.
#[derive(Debug, Default)]
struct Seen {
    younger: HashSet<u64>,
    older: HashSet<u64>,
}

/// The expectation of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Expected {
    /// A repeat, because its key is known.
    Repeat,
    /// A repeat, because its neighbours were.
    Another,
    /// A first run.
    First,
}

impl Repeats {
    pub(super) fn expected(&self, claim: &Claim) -> Expected {
        let key = digest(claim);
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.younger.contains(&key) || seen.older.contains(&key) {
            Expected::Repeat
        } else if self.in_a_row.load(Ordering::Relaxed) >= IN_A_ROW {
            Expected::Another
        } else {
            Expected::First
        }
    }

    /// Learns from a call that has ended.
    pub(super) fn note(&self, claim: &Claim, expected: Expected, decision: &Decision) {
        let is_repeat = match decision {
            Decision::Processed(_) => false,
            Decision::Duplicate(..) | Decision::Conflict(..) => true,
            // The holder of the key will most likely be done when the call comes again. Whether this was a repeat is unknown.
            Decision::Busy => return self.see(claim),
            Decision::Failed(_) => return,
        };
        self.see(claim);
        match expected {
            Expected::Repeat => {}
            Expected::Another | Expected::First if is_repeat => {
                // It stops at where it matters, and so never wraps around.
                let next = |count: u32| Some(count.saturating_add(1).min(IN_A_ROW));
                let _ = self.in_a_row.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
            }
            Expected::Another | Expected::First => self.in_a_row.store(0, Ordering::Relaxed),
        }
    }

    fn see(&self, claim: &Claim) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.younger.len() >= KEYS {
            seen.older = mem::take(&mut seen.younger);
        }
        seen.younger.insert(digest(claim));
    }
}

/// The same in every life of a simulation. Two keys that share one are a wrong guess.
pub(super) fn digest(claim: &Claim) -> u64 {
    let mut hasher = DefaultHasher::new();
    (claim.scope, claim.key.as_str()).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        hash::PayloadHash,
        names::{HashRuleId, IdempotencyKey, Retention, RunId, ScopeId},
        outcome::{ConflictKind, Durable},
        store::claim::Recorded,
    };

    fn claim(key: &str) -> Claim {
        let (key, hash) = (IdempotencyKey::new(key).unwrap(), PayloadHash::from_bytes([0; 32]));
        Claim { scope: ScopeId(1), key, hash, hash_rule: HashRuleId(1), retention: Retention::Forever }
    }

    fn conflict(claim: &Claim) -> Decision {
        let (key, at) = (claim.key.clone(), std::time::SystemTime::UNIX_EPOCH);
        let recorded = Recorded::new(key, claim.hash, claim.hash_rule, at, RunId(1), None);
        Decision::Conflict(recorded, ConflictKind::OtherPayload)
    }

    fn first() -> Decision {
        Decision::Processed(Durable::committed())
    }

    fn call(repeats: &Repeats, key: &str, decision: impl FnOnce(&Claim) -> Decision) -> Expected {
        let claim = claim(key);
        let expected = repeats.expected(&claim);
        repeats.note(&claim, expected, &decision(&claim));
        expected
    }

    #[test]
    fn v14_a_key_that_was_seen_is_expected_again() {
        let repeats = Repeats::default();
        assert_eq!(call(&repeats, "a", |_| first()), Expected::First);
        assert_eq!(call(&repeats, "a", conflict), Expected::Repeat);
        assert_eq!(call(&repeats, "b", |_| Decision::Busy), Expected::First);
        assert_eq!(call(&repeats, "b", conflict), Expected::Repeat);
        let other = Claim { scope: ScopeId(2), ..claim("a") };
        assert_eq!(repeats.expected(&other), Expected::First);
    }

    #[test]
    fn v14_repeats_of_unknown_keys_are_expected_after_four_and_until_a_first_run() {
        let repeats = Repeats::default();
        for key in ["1", "2", "3", "4"] {
            assert_eq!(call(&repeats, key, conflict), Expected::First, "{key}");
        }
        for key in ["5", "6"] {
            assert_eq!(call(&repeats, key, conflict), Expected::Another, "{key}");
        }
        assert_eq!(call(&repeats, "7", |_| first()), Expected::Another);
        assert_eq!(call(&repeats, "8", |_| first()), Expected::First, "a wrong guess is not repeated");
        // Those of known keys say nothing of others.
        for _ in 0..10 {
            assert_eq!(call(&repeats, "1", conflict), Expected::Repeat);
        }
        assert_eq!(call(&repeats, "9", |_| first()), Expected::First);
    }

    #[test]
    fn v14_what_is_kept_of_keys_is_bounded() {
        let repeats = Repeats::default();
        for number in 0..3 * KEYS {
            repeats.see(&claim(&number.to_string()));
        }
        let seen = repeats.seen.lock().unwrap();
        assert!(seen.younger.len() <= KEYS && seen.older.len() <= KEYS);
        drop(seen);
        assert_eq!(repeats.expected(&claim("0")), Expected::First);
        assert_eq!(repeats.expected(&claim(&(2 * KEYS).to_string())), Expected::Repeat);
    }
}
