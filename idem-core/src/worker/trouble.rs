//! What a lane does when something fails: run again, hold, wait for the database, set aside.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    WorkerError,
    job::{Dead, HoldKey, Job},
    lane::Lane,
    recent::IncidentKind,
};
use crate::{
    consumer,
    error::{ErrorClass, StoreError},
    outcome::Failure,
    source::Source,
    store::{Bookkeeping as _, Store},
};

/// How often a unit runs again as it is before its messages run alone.
pub(super) const AGAIN_MAX: u32 = 3;

impl<S: Store, B: Source> Lane<S, B> {
    pub(super) fn run_again(&mut self, jobs: Vec<Job<B::Handle>>, error: &StoreError) {
        self.again += 1;
        self.batch.shrink();
        tracing::debug!(idem.consumer = %self.shared.consumer.name, error = %error, "the unit runs again");
        let enough = self.again > AGAIN_MAX;
        if enough {
            self.again = 0;
        }
        self.put_back(jobs, |_, job| job.suspect |= enough);
    }

    pub(super) fn went_well(&mut self) {
        self.again = 0;
        self.batch.grow();
        if self.down > 0 {
            self.down = 0;
            self.shared.gate.lane_up();
            tracing::info!(idem.consumer = %self.shared.consumer.name, lane = self.number, "the database is back");
        }
    }

    /// The store failed over these messages, and nothing was written or charged.
    pub(super) fn store_failed(&mut self, jobs: Vec<Job<B::Handle>>, error: StoreError) {
        match error.class() {
            ErrorClass::RunUnitAgain => self.run_again(jobs, &error),
            // Something about one of these messages: alone, it is found, and the others are not held up by it.
            ErrorClass::Transient | ErrorClass::Permanent => self.put_back(jobs, |_, job| {
                job.suspect = true;
                job.looked = true;
            }),
            ErrorClass::Infrastructure => {
                self.queue.put_back(jobs);
                self.store_down(&error);
            }
            ErrorClass::Fatal => {
                self.queue.put_back(jobs);
                self.shared.fatal(WorkerError::Store(error));
            }
        }
    }

    /// Bookkeeping failed over a message, which keeps its place or waits; nobody is charged.
    pub(super) async fn bookkeeping_failed(&mut self, job: Job<B::Handle>, error: StoreError) {
        match error.class() {
            ErrorClass::Transient | ErrorClass::Permanent => {
                let text = consumer::describe::<S>(&error);
                self.waits(&job, &text, "a message waits for its bookkeeping");
                self.hold_uncharged(job).await;
            }
            ErrorClass::RunUnitAgain => self.returned.push(job),
            ErrorClass::Infrastructure => {
                self.returned.push(job);
                self.store_down(&error);
            }
            ErrorClass::Fatal => {
                self.returned.push(job);
                self.shared.fatal(WorkerError::Store(error));
            }
        }
    }

    /// The database cannot be used: intake waits, and the lane goes on with one message at a time until it answers.
    pub(super) fn store_down(&mut self, error: &StoreError) {
        if self.down == 0 {
            self.shared.gate.lane_down();
            let error = consumer::describe::<S>(error);
            tracing::warn!(
                idem.consumer = %self.shared.consumer.name, lane = self.number, error,
                "the database cannot be used; intake waits until it can"
            );
            self.shared.recent.note(IncidentKind::Error, None, None, format!("the database cannot be used: {error}"));
        } else {
            tracing::debug!(
                idem.consumer = %self.shared.consumer.name, lane = self.number, probes = self.down,
                error = consumer::describe::<S>(error), "the database still cannot be used"
            );
        }
        self.down = self.down.saturating_add(1);
    }

    /// An attempt failed.
    pub(super) async fn failed(&mut self, mut job: Job<B::Handle>, failure: Failure) {
        let name = &self.shared.consumer.name;
        match failure.class {
            ErrorClass::Permanent => self.set_aside(job, failure).await,
            ErrorClass::Fatal => {
                let cure = "Nothing was lost; the message goes back to the broker".to_owned();
                self.returned.push(job);
                self.shared.fatal(WorkerError::Store(StoreError::Refused { problem: failure.text, cure }));
            }
            // The connection answers, so it is this message's statement that the database cannot serve now, such as
            // one on a table that a deploy is about to bring back (A27). It waits without being charged.
            ErrorClass::Infrastructure => {
                self.waits(&job, &failure.text, "a message waits for the database");
                self.uncount(&mut job).await;
                self.hold_uncharged(job).await;
            }
            ErrorClass::Transient | ErrorClass::RunUnitAgain if job.attempts == 0 => {
                job.suspect = true;
                job.looked = true;
                self.returned.push(job);
            }
            ErrorClass::Transient | ErrorClass::RunUnitAgain if job.attempts >= self.shared.settings.retry.attempts => {
                self.set_aside(job, failure).await;
            }
            ErrorClass::Transient | ErrorClass::RunUnitAgain => {
                tracing::debug!(idem.consumer = %name, attempt = job.attempts, error = failure.text, "the message is tried again later");
                self.shared.stats.retries.add(1);
                job.counted = false;
                let wait = self.shared.settings.retry.backoff_now(job.attempts);
                self.hold(job, wait).await;
            }
        }
    }

    fn waits(&self, job: &Job<B::Handle>, error: &str, what: &str) {
        if let Some(left_out) = self.shared.lines.waiting.pass() {
            let key = job.item.message.key();
            tracing::warn!(
                idem.consumer = %self.shared.consumer.name, idem.key = key.map(tracing::field::display), error, left_out,
                "{what}"
            );
            let text = format!("{what}: {error}");
            self.shared.recent.note(IncidentKind::Error, key, Some(job.item.message.origin()), text);
        }
    }

    pub(super) async fn set_aside(&mut self, mut job: Job<B::Handle>, failure: Failure) {
        let claim = job.item.claim.as_ref();
        job.attempts = job.attempts.max(1);
        job.counted = false;
        let (key, hash) = (claim.map(|claim| claim.key.clone()), claim.map(|claim| (claim.hash, claim.hash_rule)));
        let Failure { reason, class, text, code, .. } = failure;
        job.dead = Some(Box::new(Dead { reason, class, text, code, key, hash, fresh: true, unkeepable: None }));
        self.dead_letter(job).await;
    }

    /// Takes back an attempt that did not come to a verdict. Where that fails, it is the one that the next run uses.
    pub(super) async fn uncount(&mut self, job: &mut Job<B::Handle>) {
        let Some(claim) = job.item.claim.as_ref().filter(|_| job.counted) else { return };
        match self.shared.consumer.store.bookkeeping().uncount_attempt(claim.scope, &claim.key).await {
            Ok(()) => job.counted = false,
            Err(error) => {
                tracing::debug!(idem.consumer = %self.shared.consumer.name, %error, "an attempt could not be taken back");
            }
        }
    }

    /// Intake is closed for long, and the broker counts what is held: everything that was not begun goes back.
    pub(super) async fn give_back(&mut self) {
        for mut job in self.queue.remove(|job| !job.is_replay()) {
            self.uncount(&mut job).await;
            if job.counted {
                self.owed.extend(job.item.claim.clone());
            }
            self.shared.release(job, Duration::ZERO);
        }
    }

    /// Takes back the attempts of messages that went back while the database was down: an outage charges nobody.
    pub(super) async fn take_back_owed(&mut self) {
        for claim in std::mem::take(&mut self.owed) {
            if let Err(error) = self.shared.consumer.store.bookkeeping().uncount_attempt(claim.scope, &claim.key).await
            {
                tracing::debug!(idem.consumer = %self.shared.consumer.name, %error, "an attempt could not be taken back");
                self.owed.push(claim);
            }
        }
    }

    pub(super) async fn hold_uncharged(&mut self, mut job: Job<B::Handle>) {
        job.waits = job.waits.saturating_add(1);
        let wait = self.shared.settings.retry.backoff_now(job.waits);
        self.hold(job, wait).await;
    }

    /// Holds a message and what follows it in its key, or gives them back where the broker would not wait that long.
    pub(super) async fn hold(&mut self, job: Job<B::Handle>, wait: Duration) {
        let outlives = self.shared.hold_max.is_some_and(|max| job.received_at.elapsed() + wait >= max);
        if !outlives || job.is_replay() {
            return self.queue.hold(job, Instant::now() + wait);
        }
        let key = HoldKey::of(&job.item);
        let followers = self.queue.remove(|other| !other.is_replay() && HoldKey::of(&other.item) == key);
        for mut job in std::iter::once(job).chain(followers) {
            self.uncount(&mut job).await;
            self.shared.release(job, wait);
        }
    }
}
