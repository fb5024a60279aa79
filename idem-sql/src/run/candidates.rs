//! The numbers that a name is interned with, in rounds.

use idem_core::store::Interned;

/// Rounds of selecting and inserting. Between two of them another start may be first.
pub(crate) const INTERN_ROUNDS: u32 = 16;

/// How many numbers the first round asks for. Nearly every name gets one of them.
const FIRST: usize = 8;

/// The numbers that these names may have, the preferred one first: twice as many in each round. A round that follows an insert without
/// a row begins with the same numbers, because another insert may only have been faster, and the first free number is the one that
/// every server finds (J63).
pub(crate) fn candidates(kind: Interned, names: &[&str], round: u32) -> Vec<i64> {
    kind.numbers(names).take(FIRST << round.min(INTERN_ROUNDS)).map(i64::from).collect()
}

/// Why this has no number after all rounds, and what to do. A tenant's name is not in it: that may come from a message.
pub(crate) fn not_interned(what: &str) -> String {
    format!(
        "{what} has no number after {INTERN_ROUNDS} tries: other names have all {} numbers that were tried, or another start was first \
         each time. Remove the tenants that nothing refers to with `idem consumers prune CONSUMER`",
        FIRST << (INTERN_ROUNDS - 1)
    )
}
