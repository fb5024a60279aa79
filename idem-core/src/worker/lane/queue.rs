//! A lane's messages: those that are ready, in order, and those whose key waits. Pure: the time is passed in.

use std::collections::{BTreeMap, HashSet, VecDeque};

use tokio::time::Instant;

use crate::{
    bugs::{self, Bug},
    worker::job::{HoldKey, Isolation, Job},
};

/// The facts of a message that the queue reads.
pub(crate) trait Queued {
    /// The key by which it is held. Asked for only where something is held, which is rare.
    fn hold_key(&self) -> HoldKey;
    /// Whether it must run alone.
    fn alone(&self) -> bool;
    /// Whether a look-up should come before it runs alone.
    fn wants_look(&self) -> bool;
    /// Whether it is a row, which runs with rows alone: they failed before, and a unit that fails runs again one by one.
    fn is_row(&self) -> bool {
        false
    }
    /// It waits for another attempt, or behind one that does.
    fn wait(&mut self) {}
}

impl<H> Queued for Job<H> {
    fn hold_key(&self) -> HoldKey {
        HoldKey::of(&self.item)
    }

    fn alone(&self) -> bool {
        self.isolation != Isolation::None || self.dead.is_some()
    }

    fn wants_look(&self) -> bool {
        !self.looked_up && self.dead.is_none() && self.item.claim.is_some()
    }

    fn is_row(&self) -> bool {
        Job::is_row(self)
    }

    fn wait(&mut self) {
        if let Some(permit) = &mut self.permit {
            permit.wait();
        }
    }
}

/// The lane's next step.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next<J> {
    Nothing,
    /// Run these as one unit.
    Together(Vec<J>),
    /// Look up whether these are duplicates, before each runs alone.
    Look(Vec<J>),
    Alone(J),
}

#[derive(Debug)]
pub(crate) struct Queue<J> {
    ready: VecDeque<J>,
    held: BTreeMap<HoldKey, Held<J>>,
}

#[derive(Debug)]
struct Held<J> {
    until: Instant,
    jobs: VecDeque<J>,
}

impl<J: Queued> Queue<J> {
    pub(crate) fn new() -> Self {
        Self { ready: VecDeque::new(), held: BTreeMap::new() }
    }

    pub(crate) fn push(&mut self, jobs: impl IntoIterator<Item = J>) {
        self.ready.extend(jobs);
    }

    /// Puts jobs that were taken back to where they were, in their order.
    pub(crate) fn put_back(&mut self, jobs: impl IntoIterator<Item = J, IntoIter: DoubleEndedIterator>) {
        jobs.into_iter().rev().for_each(|job| self.ready.push_front(job));
    }

    /// Holds a job, and with it everything of its key, until an instant. Several of one take are held in their order:
    /// nothing else of the key can be held by then, because `take` leaves held keys alone.
    pub(crate) fn hold(&mut self, mut job: J, until: Instant) {
        job.wait();
        let held = self.held.entry(job.hold_key()).or_insert_with(|| Held { until, jobs: VecDeque::new() });
        held.until = until;
        held.jobs.push_back(job);
    }

    /// Makes jobs ready that have waited long enough, the longest due first, before later arrivals.
    pub(crate) fn release_due(&mut self, now: Instant) {
        self.release_where(|held| held.until <= now);
    }

    /// Makes ready the keys whose first message is as `wanted` says, before their time.
    pub(crate) fn release(&mut self, wanted: impl Fn(&J) -> bool) {
        self.release_where(|held| held.jobs.front().is_some_and(&wanted));
    }

    fn release_where(&mut self, wanted: impl Fn(&Held<J>) -> bool) {
        if self.held.is_empty() {
            return;
        }
        let mut due: Vec<(Instant, HoldKey)> =
            self.held.iter().filter(|(_, held)| wanted(held)).map(|(key, held)| (held.until, key.clone())).collect();
        due.sort();
        // The first of them is put to the front last.
        for (_, key) in due.into_iter().rev() {
            if let Some(held) = self.held.remove(&key) {
                self.put_back(held.jobs);
            }
        }
    }

    /// Whether the first message of a key that is held is as `wanted` says.
    pub(crate) fn any_held(&self, wanted: impl Fn(&J) -> bool) -> bool {
        self.held.values().any(|held| held.jobs.front().is_some_and(&wanted))
    }

    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.held.values().map(|held| held.until).min()
    }

    /// Takes the next step: up to `max` jobs that may run together, or the first one that must run alone.
    pub(crate) fn take(&mut self, max: usize, all_alone: bool) -> Next<J> {
        let (mut batch, mut passed, mut blocked) =
            (Vec::with_capacity(max.min(self.ready.len())), Vec::new(), HashSet::new());
        while batch.len() < max {
            let Some(mut job) = self.ready.pop_front() else { break };
            if let Some(held) = self.held_with(&job) {
                job.wait();
                held.jobs.push_back(job);
            } else if job.alone() || all_alone {
                if batch.is_empty() {
                    // Nothing was passed over yet: this one is first.
                    return self.alone(job, max, all_alone);
                }
                blocked.insert(job.hold_key());
                passed.push(job);
            } else if !blocked.is_empty() && blocked.contains(&job.hold_key()) {
                passed.push(job);
            } else if batch.first().is_some_and(|first: &J| first.is_row() != job.is_row()) {
                blocked.insert(job.hold_key());
                passed.push(job);
            } else {
                batch.push(job);
            }
        }
        self.put_back(passed);
        if batch.is_empty() { Next::Nothing } else { Next::Together(batch) }
    }

    fn held_with(&mut self, job: &J) -> Option<&mut Held<J>> {
        if self.held.is_empty() || bugs::planted(Bug::FollowersOvertake) {
            return None;
        }
        self.held.get_mut(&job.hold_key())
    }

    fn is_held(&self, job: &J) -> bool {
        !self.held.is_empty() && self.held.contains_key(&job.hold_key())
    }

    fn alone(&mut self, job: J, max: usize, all_alone: bool) -> Next<J> {
        if !job.wants_look() {
            return Next::Alone(job);
        }
        let mut looks = vec![job];
        while looks.len() < max
            && self
                .ready
                .front()
                .is_some_and(|next| (next.alone() || all_alone) && next.wants_look() && !self.is_held(next))
        {
            looks.extend(self.ready.pop_front());
        }
        Next::Look(looks)
    }

    /// Whether something that is not held is as `wanted` says.
    pub(crate) fn any_ready(&self, wanted: impl Fn(&J) -> bool) -> bool {
        self.ready.iter().any(|job| !self.is_held(job) && wanted(job))
    }

    /// Takes out the jobs that `unwanted` says, in order within each key.
    pub(crate) fn remove(&mut self, unwanted: impl Fn(&J) -> bool) -> Vec<J> {
        let mut removed = Vec::new();
        let mut sift = |jobs: &mut VecDeque<J>| {
            let (out, kept): (Vec<J>, Vec<J>) = std::mem::take(jobs).into_iter().partition(|job| unwanted(job));
            removed.extend(out);
            jobs.extend(kept);
        };
        // Held jobs are older than ready ones of their key.
        self.held.values_mut().for_each(|held| sift(&mut held.jobs));
        sift(&mut self.ready);
        self.held.retain(|_, held| !held.jobs.is_empty());
        removed
    }
}

#[cfg(test)]
mod tests;
