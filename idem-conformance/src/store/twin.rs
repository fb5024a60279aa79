//! The store beside its twin: the same operations, drawn from a seed, on the store under test and on a [`MemoryStore`], with
//! equal answers after each. The simulation runs on the twin, so a twin that differs hides a defect, as would a store.
//!
//! A difference is made smaller by leaving steps out, and reported as the steps that are left.

mod draw;
mod memory;
mod outbox;
mod side;
mod steps;
mod units;

use std::{env, future::Future, ops::Range, time::Duration};

use self::{memory::Twin, side::Side, steps::Step};
use super::subject::{Arrangement, StoreUnderTest};
use idem_testkit::{MemoryStore, rng, seed};

/// Sequences of a run, and with the environment variable `IDEM_TEST_ALL`.
const SEQUENCES: [usize; 2] = [16, 48];

/// Steps of a sequence.
const STEPS: usize = 40;

/// Runs at most that make a difference smaller.
const SHRINKS_MAX: usize = 150;

/// Long beside what a claim takes on a machine with much else to do, where a shorter one ends it as if it had been held. The
/// twin never waits.
const PATIENCE: Duration = Duration::from_millis(300);

/// The answers of the two where they differ.
struct Difference {
    /// The step after which it was seen.
    at: usize,
    twin: String,
    store: String,
}

/// J61: random sequences of operations have the same answers as on the store in memory: ids by the order in which they came,
/// times coarsely.
pub async fn j61_random_sequences_have_the_answers_of_the_twin<T: StoreUnderTest>(subject: &T) {
    let all = SEQUENCES[usize::from(env::var_os("IDEM_TEST_ALL").is_some())];
    let of_requests = idem_core::Store::capabilities(&*subject.store()).messages_max == Some(1);
    // Where each look at a row is a request, a sequence takes several times as long.
    sequences(subject, 0..if of_requests { all / 4 } else { all }).await;
}

/// These sequences of the seed, until one has shown a difference.
///
/// # Panics
/// It has; the text says in which steps.
pub fn sequences<T: StoreUnderTest>(subject: &T, those: Range<usize>) -> impl Future<Output = ()> + '_ {
    compare(subject, those)
}

async fn compare<T: StoreUnderTest>(subject: &T, those: Range<usize>) {
    let capabilities = idem_core::Store::capabilities(&*subject.store());
    let offered = draw::Offered {
        ages: subject.arranges(Arrangement::Age(Duration::ZERO)),
        hands_in: capabilities.outbox && capabilities.results,
    };
    let mut runs = Runs { subject, hands_in: offered.hands_in, done: 0 };
    for sequence in those {
        let steps = draw::sequence(&mut rng(&format!("twin {sequence}")), STEPS, offered);
        if let Some(difference) = runs.run(&steps).await {
            let (steps, Difference { at, twin, store }) = runs.shrink(steps, difference).await;
            let list: Vec<_> = steps.iter().map(|step| format!("  {step:?}")).collect();
            panic!(
                "the store and its twin in memory differ (IDEM_SEED={}, sequence {sequence}) at the last of these steps:\n{}\n\
                 the twin:\n{twin}\nthe store:\n{store}\n",
                seed(),
                list[..=at].join("\n"),
            );
        }
    }
}

struct Runs<'s, T> {
    subject: &'s T,
    /// Whether it offers events and results.
    hands_in: bool,
    /// Each run has a consumer of its own, because all share a database.
    done: usize,
}

impl<T: StoreUnderTest> Runs<'_, T> {
    /// Answers the first difference.
    async fn run(&mut self, steps: &[Step]) -> Option<Difference> {
        self.done += 1;
        let consumer = format!("twin-{}", self.done);
        let keys_one_by_one = idem_core::Store::capabilities(&*self.subject.store()).waits_per_key;
        let memory = Twin::of(if keys_one_by_one { MemoryStore::new() } else { MemoryStore::embedded() });
        let mut twin = Side::new(&memory, &consumer, self.hands_in, Duration::ZERO).await;
        let mut store = Side::new(self.subject, &consumer, self.hands_in, PATIENCE).await;
        for (at, step) in steps.iter().enumerate() {
            let (said, seen) = (twin.take(step).await, store.take(step).await);
            if said != seen {
                return Some(Difference { at, twin: said, store: seen });
            }
        }
        let (said, seen) = (twin.left().await, store.left().await);
        (said != seen).then(|| Difference { at: steps.len().saturating_sub(1), twin: said, store: seen })
    }

    /// Leaves out what the difference does not need: ever smaller groups of steps, from the end.
    async fn shrink(&mut self, mut steps: Vec<Step>, mut difference: Difference) -> (Vec<Step>, Difference) {
        steps.truncate(difference.at + 1);
        let last = self.done + SHRINKS_MAX;
        let mut group = steps.len() / 2;
        while group > 0 {
            let mut end = steps.len();
            while end > 0 && self.done < last {
                let start = end.saturating_sub(group);
                let fewer: Vec<_> = [&steps[..start], &steps[end..]].concat();
                if let Some(smaller) = self.run(&fewer).await {
                    (steps, difference) = (fewer, smaller);
                    steps.truncate(difference.at + 1);
                }
                end = start.min(steps.len());
            }
            group /= 2;
        }
        (steps, difference)
    }
}
