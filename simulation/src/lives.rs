//! Many lives, on several threads, in the order of their seeds.

use std::{
    collections::BTreeMap,
    hash::Hasher as _,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::{
    journal::{Breach, Mixer, Rule},
    life::{Report, Way, live},
    scenario::{Scenario, Theme},
};

/// Which lives.
#[derive(Debug, Clone, Copy)]
pub struct Lives {
    /// Of which theme.
    pub theme: Theme,
    /// The first seed.
    pub seed: u64,
    /// How many seeds.
    pub count: u64,
    /// How many threads.
    pub jobs: usize,
    /// How each is run.
    pub way: Way,
    /// Whether the first process of each also dies after each of its polls in turn.
    pub every_poll: bool,
    /// The result that ends the run early.
    pub until: Until,
}

/// The result that ends a run before its last life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// Nothing.
    Never,
    /// Any promise that is broken.
    Any,
    /// This one.
    Rule(Rule),
}

/// The results of all lives.
#[derive(Debug, Default)]
pub struct Sum {
    /// Lives that ended, with those that died at another poll.
    pub lives: u64,
    /// One hash of all of them.
    pub hash: u64,
    /// Polls of their processes' tasks.
    pub polls: u64,
    /// Deaths of processes.
    pub deaths: u64,
    /// Commits that lost their connection before the answer.
    pub unknown_commits: u64,
    /// Time that passed for them.
    pub took: Duration,
    /// Per rule, how many lives broke it, and the first of them.
    pub broken: BTreeMap<Rule, Broken>,
}

/// The lives that broke a rule.
#[derive(Debug)]
pub struct Broken {
    /// How many.
    pub lives: u64,
    /// The first seed.
    pub seed: u64,
    /// After how many polls its first process died, where each was tried.
    pub dies_at: Option<u64>,
    /// The breach that was found in it.
    pub breach: Breach,
}

/// The result of a seed: the same on every thread.
#[derive(Debug, Default)]
struct Outcome {
    lives: u64,
    hash: Mixer,
    polls: u64,
    deaths: u64,
    unknown_commits: u64,
    took: Duration,
    breaches: Vec<(Option<u64>, Breach)>,
}

impl Outcome {
    fn add(&mut self, dies_at: Option<u64>, report: Report) {
        self.lives += 1;
        self.hash.write_u64(report.hash);
        self.polls += report.polls;
        self.deaths += report.deaths;
        self.unknown_commits += report.unknown_commits;
        self.took += report.took;
        self.breaches.extend(report.breaches.into_iter().map(|breach| (dies_at, breach)));
    }
}

impl Lives {
    /// Runs them. `setup` is called on each thread before its first life.
    pub fn run(&self, setup: impl Fn() + Sync) -> Sum {
        let (next, over, outcomes) = (AtomicU64::new(0), AtomicBool::new(false), Mutex::new(BTreeMap::new()));
        std::thread::scope(|scope| {
            for _ in 0..self.jobs {
                scope.spawn(|| {
                    setup();
                    while !over.load(Ordering::Relaxed) {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        if number >= self.count {
                            break;
                        }
                        let outcome = self.one(self.seed + number);
                        let ends = |breach: &Breach| self.until == Until::Any || self.until == Until::Rule(breach.rule);
                        if outcome.breaches.iter().any(|(_, breach)| ends(breach)) {
                            over.store(true, Ordering::Relaxed);
                        }
                        outcomes.lock().unwrap_or_else(PoisonError::into_inner).insert(self.seed + number, outcome);
                    }
                });
            }
        });
        sum(outcomes.into_inner().unwrap_or_else(PoisonError::into_inner))
    }

    fn one(&self, seed: u64) -> Outcome {
        let scenario = Scenario::draw(self.theme, seed);
        let mut outcome = Outcome::default();
        let whole = live(&scenario, self.way);
        let polls = whole.first_polls;
        outcome.add(None, whole);
        if self.every_poll {
            for poll in 1..=polls {
                outcome.add(Some(poll), live(&scenario, Way { first_dies_at: Some(poll), ..self.way }));
            }
        }
        outcome
    }
}

fn sum(outcomes: BTreeMap<u64, Outcome>) -> Sum {
    let (mut sum, mut hash) = (Sum::default(), Mixer::default());
    for (seed, outcome) in outcomes {
        sum.lives += outcome.lives;
        hash.write_u64(outcome.hash.0);
        sum.polls += outcome.polls;
        sum.deaths += outcome.deaths;
        sum.unknown_commits += outcome.unknown_commits;
        sum.took += outcome.took;
        let mut counted = Vec::new();
        for (dies_at, breach) in outcome.breaches {
            let (rule, is_first) = (breach.rule, !counted.contains(&(dies_at, breach.rule)));
            counted.push((dies_at, rule));
            let broken = sum.broken.entry(rule).or_insert(Broken { lives: 0, seed, dies_at, breach });
            broken.lives += u64::from(is_first);
        }
    }
    sum.hash = hash.finish();
    sum
}
