//! Waiting for events instead of sleeping.

use std::{future::Future, sync::Arc, time::Duration};

use tokio::sync::watch;

/// How long a case waits for anything before it is red. Far beyond what a healthy store needs on a busy machine.
pub(super) const PATIENCE: Duration = Duration::from_secs(120);

/// The deadline of handlers that never answer, in cases where others must meet it on a busy machine.
pub(super) const DEADLINE: Duration = Duration::from_secs(1);

/// Waits for `future`, and makes the case red with `what` where that takes too long.
pub(super) async fn within<F: Future>(what: &str, future: F) -> F::Output {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(output) => output,
        Err(_) => panic!("nothing came of it within {PATIENCE:?}: {what}"),
    }
}

/// A place where handlers wait until the case lets them go on.
#[derive(Debug, Clone)]
pub(super) struct Gate(Arc<Halves>);

#[derive(Debug)]
struct Halves {
    arrived: watch::Sender<usize>,
    open: watch::Sender<bool>,
}

impl Gate {
    pub(super) fn new() -> Self {
        Self(Arc::new(Halves { arrived: watch::Sender::new(0), open: watch::Sender::new(false) }))
    }

    /// Arrives, and goes on when the gate is open.
    pub(super) async fn pass(&self) {
        self.0.arrived.send_modify(|arrived| *arrived += 1);
        let mut open = self.0.open.subscribe();
        // The sender lives as long as the gate.
        let _ = open.wait_for(|open| *open).await;
    }

    /// Waits until this many have arrived.
    pub(super) async fn arrived(&self, count: usize) {
        let mut arrived = self.0.arrived.subscribe();
        let wait = arrived.wait_for(|arrived| *arrived >= count);
        let _ = within(&format!("{count} arrivals at a gate"), wait).await;
    }

    /// Lets all waiters go on, now and later.
    pub(super) fn open(&self) {
        self.0.open.send_replace(true);
    }
}

/// A number that goes up, and that others wait for.
#[derive(Debug)]
pub(super) struct Counter(watch::Sender<usize>);

impl Default for Counter {
    fn default() -> Self {
        Self(watch::Sender::new(0))
    }
}

impl Counter {
    pub(super) fn add(&self) {
        self.0.send_modify(|count| *count += 1);
    }

    pub(super) fn get(&self) -> usize {
        *self.0.borrow()
    }

    pub(super) async fn at_least(&self, count: usize, what: &str) {
        let mut receiver = self.0.subscribe();
        let _ = within(what, receiver.wait_for(|now| *now >= count)).await;
    }
}
