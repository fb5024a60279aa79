//! Where a test's random choices come from.

use std::{
    env,
    hash::{DefaultHasher, Hash, Hasher},
    sync::OnceLock,
};

/// The seed of this process: the environment variable `IDEM_SEED`, else one that is drawn once. It is printed at each call,
/// and a run with it makes the same choices; the scheduler's are not among them.
///
/// # Panics
/// `IDEM_SEED` is no whole number.
#[must_use]
#[expect(clippy::print_stderr, clippy::panic, reason = "it is for tests: the reader of a failed one needs the seed")]
pub fn seed() -> u64 {
    static SEED: OnceLock<u64> = OnceLock::new();
    let seed = *SEED.get_or_init(|| match env::var("IDEM_SEED") {
        Ok(text) => text.trim().parse().unwrap_or_else(|_| panic!("IDEM_SEED={text:?} is no whole number")),
        Err(_) => u64::from(fastrand::u32(..)),
    });
    eprintln!("IDEM_SEED={seed}");
    seed
}

/// Choices of one part of a test. They do not depend on what other parts draw, nor on the order in which they run.
///
/// # Panics
/// As [`seed`].
#[must_use]
pub fn rng(part: &str) -> fastrand::Rng {
    let mut hasher = DefaultHasher::new();
    (seed(), part).hash(&mut hasher);
    fastrand::Rng::with_seed(hasher.finish())
}
