//! How a lane empties its hands when the worker stops or an assignment ends.
//!
//! A broker that keeps positions delivers every message again after the first that is not settled. So first every lane
//! finishes its running messages, then each finishes those before a settled message, and only the rest goes back: a clean
//! stop leaves no duplicates behind (E10).

use std::{sync::Arc, time::Duration};

use tokio::{sync::oneshot, time::Instant};

use crate::{
    bugs::{self, Bug},
    source::{Assignment, Source},
    store::Store,
    worker::{
        job::{DeliveredBy, Job},
        lane::{Duty, Lane},
        settler::Settlement,
        shared::Shared,
    },
};

/// Finishing messages that hold settled ones back takes at most this part of the drain deadline.
const PART: u32 = 2;

/// An assignment that ends, and of which this lane still finishes something.
#[derive(Debug)]
pub(super) struct Revoking {
    assignments: Arc<Vec<Assignment>>,
    done: oneshot::Sender<()>,
    until: Instant,
}

impl<S: Store, B: Source> Shared<S, B> {
    /// Waits until no lane runs anything any more and everything that they settled was handed over.
    async fn idle(&self) {
        self.lanes.none_at_work().await;
        self.flush().await;
    }

    /// Waits until every lane has left, after a stop.
    pub(crate) async fn all_stopped(&self) {
        self.lanes.none_present().await;
    }

    /// Waits until everything that was settled so far was handed over to the source.
    pub(crate) async fn flush(&self) {
        let (done, flushed) = oneshot::channel();
        if self.settlements.send(Settlement::Flush(done)).is_ok() {
            // A settler that died has stopped the worker.
            let _ = flushed.await;
        }
    }

    fn holds_back(&self, job: &Job<B::Handle>) -> bool {
        match &job.from {
            DeliveredBy::Broker(handle) => self.source.holds_back(handle),
            DeliveredBy::Row(_) => false,
        }
    }

    pub(super) fn is_held_back(&self, job: &Job<B::Handle>) -> bool {
        match &job.from {
            DeliveredBy::Broker(handle) => self.source.is_held_back(handle),
            DeliveredBy::Row(_) => false,
        }
    }
}

impl<S: Store, B: Source> Lane<S, B> {
    /// The assignments end, and are still held: keeps messages that hold settled ones back, and gives back the rest.
    pub(super) async fn part(&mut self, assignments: Arc<Vec<Assignment>>, done: oneshot::Sender<()>) {
        let shared = Arc::clone(&self.shared);
        let stays = |job: &Job<B::Handle>| shared.holds_back(job) && !bugs::planted(Bug::RevocationsFinishNothing);
        let goes = |job: &Job<B::Handle>| of(&assignments, job) && !stays(job);
        for job in self.queue.remove(goes) {
            self.owe(&job);
            self.shared.release(job, Duration::ZERO);
        }
        let until = Instant::now() + self.shared.settings.drain / PART;
        if let Duty::Revoke(earlier) =
            std::mem::replace(&mut self.duty, Duty::Revoke(Revoking { assignments, done, until }))
        {
            self.end(earlier).await;
        }
    }

    /// Answers for assignments that end, once nothing of them can be finished now.
    pub(super) async fn end_revocation(&mut self) {
        let Duty::Revoke(revoking) = &self.duty else { return };
        let goes_on = Instant::now() < revoking.until && self.shared.gate.pause().is_none();
        if goes_on && self.queue.any_ready(|job| of(&revoking.assignments, job)) {
            return;
        }
        if let Duty::Revoke(revoking) = std::mem::replace(&mut self.duty, Duty::Serve) {
            self.end(revoking).await;
        }
    }

    /// Gives back the remaining messages of assignments that end, and answers.
    pub(super) async fn end(&mut self, revoking: Revoking) {
        let Revoking { assignments, done, .. } = revoking;
        for job in self.queue.remove(|job| of(&assignments, job)) {
            self.owe(&job);
            self.shared.release(job, Duration::ZERO);
        }
        if self.down == 0 {
            // Before another process is handed these messages.
            self.take_back_owed().await;
        }
        // Intake may have given up waiting.
        let _ = done.send(());
    }

    /// The worker stops: finishes messages that hold settled ones back, and gives back the rest.
    pub(super) async fn leave(&mut self) {
        self.close_commands().await;
        self.at_work = None;
        let shared = Arc::clone(&self.shared);
        shared.idle().await;
        let mut back = self.queue.remove(|job| !shared.holds_back(job));
        let until = Instant::now() + shared.settings.drain / PART;
        while Instant::now() < until && shared.gate.pause().is_none() {
            self.take_returned();
            let next = self.queue.take(self.batch.now(), self.all_alone());
            if !self.step(next, false).await {
                break;
            }
        }
        back.append(&mut self.returned);
        back.extend(self.queue.remove(|_| true));
        for job in back {
            self.hand_back(job).await;
        }
        self.take_back_owed().await;
        if self.down > 0 {
            shared.gate.lane_up();
        }
        self.disconnect().await;
    }
}

fn of<H>(assignments: &[Assignment], job: &Job<H>) -> bool {
    !job.is_row() && (assignments.contains(&job.assignment) || bugs::planted(Bug::RevocationsTakeAll))
}
