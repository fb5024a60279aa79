//! Requests of one tenant to one route that share transactions: see
//! [`IdempotentRoute::shares_units`](super::IdempotentRoute::shares_units).

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, PoisonError},
};

use http::Method;
use idem_core::{Call, Ran, RunOnce, RunOnceError, store::Store};
use tokio::sync::{Semaphore, oneshot};

use super::{gates::Admitted, tenants::InHand};

/// The most requests of one unit: each waits for all, and each holds its rows until all are done.
pub(crate) const REQUESTS_MAX: usize = 16;

/// The most units of one group at once. Requests that come while they run are in the next one's company; with more units, each
/// would have less.
const UNITS_MAX: usize = 4;

/// The end of a request in company; `None` if it has to run alone.
type Ended = Option<Result<Ran, RunOnceError>>;

/// The groups of one route.
pub(crate) struct Sharing<S: Store> {
    requests_max: usize,
    groups: Mutex<HashMap<Id, Arc<Group<S>>>>,
}

/// A tenant and the method. The path is the route's own.
type Id = (Arc<str>, Method);

/// The requests of one tenant that are in progress.
struct Group<S: Store> {
    waiting: Mutex<VecDeque<Waiting<S>>>,
    /// A permit for each unit that may run.
    units: Semaphore,
}

struct Waiting<S: Store> {
    call: Call<S>,
    ended: oneshot::Sender<Ended>,
}

impl<S: Store> Sharing<S> {
    pub(crate) fn new(requests_max: usize) -> Self {
        Self { requests_max, groups: Mutex::default() }
    }

    /// Runs a request with those of its group that came meanwhile. It waits for no other: it leads a unit as soon as one may
    /// run.
    pub(crate) async fn run(&self, engine: &RunOnce<S>, admitted: &Admitted, call: Call<S>) -> Ended {
        let member = self.join(&admitted.in_hand, &admitted.parts.method);
        let (ended, mut told) = oneshot::channel();
        member.group.waiting().push_back(Waiting { call, ended });
        loop {
            let lead = async {
                let permits = (member.group.units.acquire().await, admitted.in_hand.run_at_last().await);
                (permits, engine.shared_unit().await)
            };
            let (permits, unit) = tokio::select! {
                biased;
                // A leader that has panicked sends no end, and its transaction was rolled back.
                ended = &mut told => return ended.unwrap_or_default(),
                lead = lead => lead,
            };
            let next = member.group.next(self.requests_max);
            if next.is_empty() {
                // Others have taken all that waited, and this request with it.
                drop((permits, unit));
                return told.await.unwrap_or_default();
            }
            let (calls, others): (Vec<_>, Vec<_>) = next.into_iter().map(|one| (one.call, one.ended)).unzip();
            let all = unit.run(calls).await;
            drop(permits);
            for (other, ended) in others.into_iter().zip(all) {
                // Each request runs in a task of its own, and is there.
                let _ = other.send(ended);
            }
        }
    }

    fn join<'s>(&'s self, in_hand: &InHand, method: &Method) -> Member<'s, S> {
        let id = (in_hand.tenant(), method.clone());
        let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || Arc::new(Group { waiting: Mutex::default(), units: Semaphore::new(UNITS_MAX) });
        let group = Arc::clone(groups.entry(id.clone()).or_insert_with(new));
        Member { sharing: self, id, group }
    }
}

impl<S: Store> Group<S> {
    fn waiting(&self) -> std::sync::MutexGuard<'_, VecDeque<Waiting<S>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Those that have waited longest.
    fn next(&self, requests_max: usize) -> Vec<Waiting<S>> {
        let mut waiting = self.waiting();
        let count = waiting.len().min(requests_max);
        waiting.drain(..count).collect()
    }
}

/// A request's place in its group, which the last one takes with it.
struct Member<'s, S: Store> {
    sharing: &'s Sharing<S>,
    id: Id,
    group: Arc<Group<S>>,
}

impl<S: Store> Drop for Member<'_, S> {
    fn drop(&mut self) {
        let mut groups = self.sharing.groups.lock().unwrap_or_else(PoisonError::into_inner);
        // The map's and this one's; others are made under the same lock.
        if Arc::strong_count(&self.group) == 2 {
            groups.remove(&self.id);
        }
    }
}
