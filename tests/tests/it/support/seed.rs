//! Where random choices come from, and how many of them are made.

use std::{
    env,
    hash::{DefaultHasher, Hash, Hasher},
    sync::OnceLock,
};

/// The seed of this run: `IDEM_SEED`, else one that was never used before. It is printed once, and a run with it makes
/// the same choices; what the scheduler does is not among them.
pub(crate) fn seed() -> u64 {
    static SEED: OnceLock<u64> = OnceLock::new();
    *SEED.get_or_init(|| {
        let seed = number("IDEM_SEED").unwrap_or_else(|| u64::from(fastrand::u32(..)));
        eprintln!("the seed of this run: IDEM_SEED={seed}");
        seed
    })
}

/// Choices of one part of a test. They do not depend on what other parts draw, nor on the order in which they run.
pub(crate) fn rng(part: &str) -> fastrand::Rng {
    let mut hasher = DefaultHasher::new();
    (seed(), part).hash(&mut hasher);
    fastrand::Rng::with_seed(hasher.finish())
}

/// How often a consumer is killed at each failpoint: `IDEM_CRASH_KILLS`, 3 unless set.
pub(crate) fn kills() -> u64 {
    number("IDEM_CRASH_KILLS").unwrap_or(3)
}

fn number(variable: &str) -> Option<u64> {
    let text = env::var(variable).ok()?;
    Some(text.trim().parse().unwrap_or_else(|_| panic!("{variable}={text:?} is no whole number")))
}
