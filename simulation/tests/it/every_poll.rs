//! A process that dies after any of its polls.

use simulation::{Lives, Theme, Until, Way, silence_panics};

/// Some small lives, each again for every poll of its first process, which dies after that one.
#[test]
fn no_promise_breaks_whichever_poll_a_process_dies_after() {
    let lives = Lives {
        theme: Theme::Small,
        seed: 1,
        count: 10,
        jobs: 2,
        way: Way::default(),
        every_poll: true,
        until: Until::Never,
    };
    let sum = lives.run(silence_panics);
    assert!(sum.broken.is_empty(), "{:?}", sum.broken);
    assert!(sum.lives > 1_000, "only {} deaths were tried", sum.lives);
}
