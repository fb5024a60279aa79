//! Runs what a lane has taken, together, alone or only looked up, and hands each message on with its decision.

use std::{collections::HashSet, sync::Arc};

use tokio::time::Instant;

use super::{job::Job, lane::Lane, trouble::AGAIN_MAX};
use crate::{
    consumer::{self, End},
    dead_letter::Reason,
    error::{ErrorClass, StoreError},
    failpoint,
    handler::Work,
    outcome::{Decision, Failure},
    source::Source,
    store::{Bookkeeping as _, Store},
};

impl<S: Store, B: Source> Lane<S, B> {
    async fn unit(&mut self, jobs: &[Job<B::Handle>]) -> End {
        let (shared, was_open) = (Arc::clone(&self.shared), self.connection.is_some());
        let (connection, end) = consumer::run(&shared.consumer, self.connection.take(), self.number, jobs).await;
        self.keep(connection, was_open);
        end
    }

    async fn look_up(&mut self, jobs: &[Job<B::Handle>]) -> Result<Vec<Option<Decision>>, StoreError> {
        let (shared, was_open) = (Arc::clone(&self.shared), self.connection.is_some());
        let (connection, found) = consumer::look(&shared.consumer, self.connection.take(), self.number, jobs).await;
        self.keep(connection, was_open);
        found
    }

    pub(super) async fn probe(&mut self) -> Result<(), StoreError> {
        let (shared, was_open) = (Arc::clone(&self.shared), self.connection.is_some());
        let (connection, probed) = consumer::probe(&shared.consumer, self.connection.take(), self.number).await;
        self.keep(connection, was_open);
        probed
    }

    fn keep(&mut self, connection: Option<S::Lane>, was_open: bool) {
        self.connection = connection;
        if self.connection.is_some() && !was_open && std::mem::replace(&mut self.connected, true) {
            self.shared.metrics.reconnects.increment(1);
        }
    }

    pub(super) async fn together(&mut self, jobs: Vec<Job<B::Handle>>) {
        let begun = Instant::now();
        match self.unit(&jobs).await {
            End::Decided(decisions) => {
                self.went_well();
                self.batch.took(jobs.len(), begun.elapsed());
                self.duplicates = jobs.len() == self.batch.max && decisions.iter().all(Decision::is_skipped);
                self.apply(jobs.into_iter().zip(decisions)).await;
            }
            End::Isolate(culprits) => {
                // Injected errors mean nothing here: nothing is under way.
                let _ = failpoint!(ISOLATE);
                // A handler that fails alone stops the ones after it, so nobody knows how those would have ended.
                let everybody = matches!(self.shared.consumer.work, Work::Each(_)) || culprits.is_empty();
                self.put_back(jobs, |index, job| {
                    job.suspect |= everybody || culprits.contains(&index);
                    job.looked = true;
                });
            }
            End::Held => self.put_back(jobs, |_, job| job.suspect = true),
            End::NoWinner(error) => {
                if let Some(left_out) = self.shared.lines.again.pass() {
                    tracing::warn!(idem.consumer = %self.shared.consumer.name, %error, left_out, "the unit waits and claims again");
                }
                for job in jobs {
                    self.hold_uncharged(job).await;
                }
            }
            End::Again(error) => self.run_again(jobs, &error),
            End::Unknown(error) => {
                self.answer_was_lost(error);
                self.put_back(jobs, |_, job| job.unresolved = true);
            }
            End::Trouble(error) => self.store_failed(jobs, error),
        }
    }

    fn answer_was_lost(&self, error: crate::BoxError) {
        if let Some(left_out) = self.shared.lines.again.pass() {
            tracing::warn!(
                idem.consumer = %self.shared.consumer.name, error, left_out,
                "the answer to a commit was lost; its keys are claimed again"
            );
        }
    }

    pub(super) fn put_back(&mut self, mut jobs: Vec<Job<B::Handle>>, mark: impl Fn(usize, &mut Job<B::Handle>)) {
        jobs.iter_mut().enumerate().for_each(|(index, job)| mark(index, job));
        self.queue.put_back(jobs);
    }

    /// Looks up which messages are duplicates, so that a redelivered backlog costs one statement a batch.
    pub(super) async fn look(&mut self, jobs: Vec<Job<B::Handle>>) {
        let decisions = match self.look_up(&jobs).await {
            Ok(decisions) => decisions,
            Err(error) => return self.store_failed(jobs, error),
        };
        self.went_well();
        let (mut leaders, mut decided) = (HashSet::new(), Vec::new());
        for (mut job, decision) in jobs.into_iter().zip(decisions) {
            match decision {
                Some(decision) => decided.push((job, decision)),
                None => {
                    // A copy is looked up again once the first of its key has run: it is then a duplicate, most likely.
                    job.looked = leaders.insert(job.item.claim.as_ref().map(|claim| (claim.scope, claim.key.clone())));
                    self.returned.push(job);
                }
            }
        }
        self.duplicates &= self.returned.is_empty();
        self.apply(decided).await;
    }

    /// Runs a message alone, its attempt counted before it runs: if it kills the process, that is remembered.
    pub(super) async fn alone(&mut self, mut job: Job<B::Handle>) {
        if job.dead.is_some() {
            return self.dead_letter(job).await;
        }
        // Taken before the attempt is counted, so that whoever waits for it is not charged.
        let shared = Arc::clone(&self.shared);
        let dangerous = std::mem::take(&mut job.dangerous) || self.probation > 0;
        let _alone_in_the_process = if dangerous { Some(shared.one_at_a_time.lock().await) } else { None };
        match &job.item.claim {
            // An attempt that came to no verdict is not counted again.
            _ if job.counted => {}
            None => job.attempts += 1,
            Some(claim) => {
                match self.shared.consumer.store.bookkeeping().count_attempt(claim.scope, &claim.key, claim.hash).await
                {
                    Ok(attempt) => (job.attempts, job.counted) = (attempt, true),
                    Err(error) => return self.bookkeeping_failed(job, error).await,
                }
            }
        }
        if job.attempts > self.shared.settings.retry.attempts {
            return self.exhausted(job).await;
        }
        job.suspect = true;
        match self.unit(std::slice::from_ref(&job)).await {
            End::Decided(decisions) => {
                self.went_well();
                self.apply(std::iter::once(job).zip(decisions)).await;
            }
            End::Again(error) if self.again >= AGAIN_MAX => {
                self.again = 0;
                let text = consumer::describe::<S>(&error);
                self.failed(job, Failure::new(ErrorClass::Transient, Reason::AttemptsExhausted, text)).await;
            }
            End::Again(error) => self.run_again(vec![job], &error),
            End::Unknown(error) => {
                self.answer_was_lost(error);
                job.unresolved = true;
                self.returned.push(job);
            }
            // A unit of one message is never isolated or held: it has its decision.
            End::NoWinner(_) | End::Isolate(_) | End::Held => self.hold_uncharged(job).await,
            End::Trouble(error) => match error.class() {
                class @ (ErrorClass::Transient | ErrorClass::Permanent) => {
                    let text = consumer::describe::<S>(&error);
                    self.failed(job, Failure::new(class, Reason::AttemptsExhausted, text)).await;
                }
                ErrorClass::Infrastructure | ErrorClass::Fatal | ErrorClass::RunUnitAgain => {
                    self.uncount(&mut job).await;
                    self.store_failed(vec![job], error);
                }
            },
        }
    }

    /// A message whose attempts are used up without a verdict: each ended with its process, or a copy of it was set
    /// aside. It may also have been handled meanwhile, under another delivery.
    async fn exhausted(&mut self, mut job: Job<B::Handle>) {
        match self.look_up(std::slice::from_ref(&job)).await {
            Ok(decisions) => match decisions.into_iter().next().flatten() {
                Some(decision) => self.apply([(job, decision)]).await,
                None => {
                    let text = "the process ended in each of its attempts, or an equal message was set aside before";
                    job.attempts = self.shared.settings.retry.attempts;
                    self.set_aside(job, Failure::new(ErrorClass::Permanent, Reason::AttemptsExhausted, text)).await;
                }
            },
            Err(error) => {
                self.uncount(&mut job).await;
                self.bookkeeping_failed(job, error).await;
            }
        }
    }
}
