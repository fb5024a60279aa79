//! Does what [`policy`](crate::policy) says after a failure: run again, hold, wait for the database, set aside.

use std::time::Duration;

use tokio::time::Instant;

use crate::{
    bugs::{self, Bug},
    dead_letter::Reason,
    error::{ErrorClass, StoreError},
    outcome::Failure,
    policy::{self, Action, Known, Seen, WaitCause},
    source::Source,
    store::{
        Bookkeeping as _, Store,
        describe::{code, one_line},
    },
    worker::{
        error::WorkerError,
        job::{Attempt, Counts, DeadLetterCause, HoldKey, Job},
        lane::Lane,
        shared::Shared,
        view::incidents::IncidentKind,
    },
};

/// The failed step, in words for the log.
#[derive(Debug)]
pub(super) enum Failed {
    Store(StoreError),
    Message(Failure),
}

impl Failed {
    fn text<S: Store>(&self) -> String {
        match self {
            Self::Store(error) => one_line::<S>(error),
            Self::Message(failure) => failure.text.clone(),
        }
    }

    /// As the failure of a message that ran alone.
    fn into_failure<S: Store>(self) -> Failure {
        match self {
            Self::Store(error) => Failure::new(error.class(), Reason::AttemptsExhausted, one_line::<S>(&error))
                .with_code(code::<S>(&error)),
            Self::Message(failure) => failure,
        }
    }

    fn into_error(self) -> WorkerError {
        WorkerError::Store(match self {
            Self::Store(error) => error,
            Self::Message(failure) => {
                let cure = "Nothing was lost; the message goes back to the broker".to_owned();
                StoreError::Refused { problem: failure.text, cure }
            }
        })
    }
}

impl<S: Store, B: Source> Lane<S, B> {
    /// Handles a failure of these messages, of which nothing was committed.
    pub(super) async fn after(&mut self, mut jobs: Vec<Job<B::Handle>>, mut seen: Seen, failed: Failed) {
        let known = self.known(&jobs);
        let mut action = policy::after(&known, seen);
        if action == Action::AskTheDatabase {
            seen = match self.shared.consumer.store.bookkeeping().control(self.shared.scope).await {
                Ok(_) => Seen::DatabaseAnswers,
                Err(error) if error.class() == ErrorClass::Infrastructure => Seen::DatabaseDown,
                Err(error) => Seen::StoreFailed(error.class()),
            };
            action = policy::after(&known, seen);
            jobs.iter_mut().for_each(|job| job.lost = job.lost.saturating_add(1));
        }
        match action {
            Action::RunAgain => self.run_again(jobs, &failed.text::<S>()),
            Action::RunAlone => {
                if let Seen::StoreFailed(_) = seen
                    && let Some(left_out) = self.shared.lines.again.pass()
                {
                    let (error, what) = (failed.text::<S>(), "a unit failed, and each of its messages runs alone");
                    tracing::warn!(idem.consumer = %self.shared.consumer.name, error, left_out, "{what}");
                    self.shared.recent.note(IncidentKind::Error, None, None, format!("{what}: {error}"));
                }
                self.run_alone(jobs, |_| true, false);
            }
            Action::ClaimAgain => self.returned.extend(jobs),
            Action::AskTheDatabase | Action::AwaitTheDatabase => self.await_the_database(jobs, &failed).await,
            Action::Wait(cause) => {
                let text = failed.text::<S>();
                for mut job in jobs {
                    self.uncount(&mut job).await;
                    self.wait_for(job, cause, &text).await;
                }
            }
            Action::Retry => {
                let failure = failed.into_failure::<S>();
                for job in jobs {
                    self.retry(job, &failure).await;
                }
            }
            Action::Later(number) => {
                let failure = failed.into_failure::<S>();
                let delay = self.shared.settings.retry.later.delay(number, fastrand::f64()).unwrap_or_default();
                for job in jobs {
                    let after = delay.max(failure.retry_after.unwrap_or_default());
                    self.try_later(job, failure.clone_text(), after).await;
                }
            }
            Action::DeadLetter => {
                // A handler failed, or lost its connection, that another delivery may run meanwhile, unless it said that no run can
                // succeed. Where the claim itself fails there is none to wait for.
                let lost = matches!(seen, Seen::DatabaseAnswers | Seen::DatabaseDown);
                let in_claim = matches!(seen, Seen::Failed(class) if class != ErrorClass::Permanent)
                    || (lost && !bugs::planted(Bug::LostConnectionsNeedNoClaim));
                let failure = failed.into_failure::<S>();
                for job in jobs {
                    self.set_aside(job, failure.clone_text(), in_claim).await;
                }
            }
            Action::Stop => {
                self.returned.extend(jobs);
                self.shared.fatal(failed.into_error());
            }
        }
    }

    pub(super) fn known(&self, jobs: &[Job<B::Handle>]) -> Known {
        let again = jobs.iter().map(|job| job.again).max().unwrap_or_default();
        let known = Known { attempts_max: self.shared.settings.retry.attempts, again, ..Known::default() };
        // Of a unit of several, no fact about a single message is known.
        let [job] = jobs else { return known };
        let waited_long = self.shared.has_waited_long(job, WaitCause::Database);
        let later = if self.may_wait(job) { self.shared.settings.retry.later.tries() } else { 0 };
        Known { attempt: job.attempt.number(), later, lost: job.lost, waited_long, ..known }
    }

    fn run_again(&mut self, mut jobs: Vec<Job<B::Handle>>, error: &str) {
        jobs.iter_mut().for_each(|job| job.again = job.again.saturating_add(1));
        self.batch.shrink();
        tracing::debug!(idem.consumer = %self.shared.consumer.name, error, "the unit runs again");
        self.returned.extend(jobs);
    }

    /// Those that `culprit` names run alone; of all of them `looked_up` may say that no record of their keys exists.
    pub(super) fn run_alone(&mut self, jobs: Vec<Job<B::Handle>>, culprit: impl Fn(usize) -> bool, looked_up: bool) {
        self.put_back(jobs, |index, job| {
            if culprit(index) {
                job.isolate();
            }
            job.looked_up |= looked_up;
            job.again = 0;
        });
    }

    fn put_back(&mut self, mut jobs: Vec<Job<B::Handle>>, mark: impl Fn(usize, &mut Job<B::Handle>)) {
        jobs.iter_mut().enumerate().for_each(|(index, job)| mark(index, job));
        self.returned.extend(jobs);
    }

    pub(super) fn succeeded(&mut self) {
        self.batch.grow();
        if std::mem::take(&mut self.down) > 0 {
            self.shared.gate.lane_up();
            tracing::info!(idem.consumer = %self.shared.consumer.name, lane = self.number, "the database is back");
        }
    }

    async fn await_the_database(&mut self, jobs: Vec<Job<B::Handle>>, failed: &Failed) {
        for mut job in jobs {
            self.uncount(&mut job).await;
            self.returned.push(job);
        }
        self.store_down(&failed.text::<S>());
    }

    /// The database cannot be used: intake waits, and the lane goes on with one message at a time until it answers.
    pub(super) fn store_down(&mut self, error: &str) {
        if self.down == 0 {
            self.shared.gate.lane_down();
            tracing::warn!(
                idem.consumer = %self.shared.consumer.name, lane = self.number, error,
                "the database cannot be used; intake waits until it can"
            );
            self.shared.recent.note(IncidentKind::Error, None, None, format!("the database cannot be used: {error}"));
        } else {
            tracing::debug!(
                idem.consumer = %self.shared.consumer.name, lane = self.number, probes = self.down, error,
                "the database still cannot be used"
            );
        }
        self.down = self.down.saturating_add(1);
    }

    /// An attempt failed, and there are more.
    async fn retry(&mut self, mut job: Job<B::Handle>, failure: &Failure) {
        let attempt = job.attempt.number();
        let long = failure.retry_after.filter(|wanted| *wanted > self.shared.settings.retry.max);
        if let Some(after) = long.filter(|_| self.may_wait(&job)) {
            return self.try_later(job, failure.clone_text(), after).await;
        }
        tracing::debug!(
            idem.consumer = %self.shared.consumer.name, attempt, error = failure.text, "the message is tried again later"
        );
        self.shared.stats.retries.add(1);
        (job.attempt, job.again) = (job.attempt.ended(), 0);
        let wait = failure.retry_after.unwrap_or_else(|| self.shared.settings.retry.between_attempts(attempt));
        self.hold(job, WaitCause::Retry, wait).await;
    }

    /// Holds a message that is not charged, and says what it waits for: at first, and then ever more rarely.
    pub(super) async fn wait_for(&mut self, job: Job<B::Handle>, cause: WaitCause, error: &str) {
        if cause != WaitCause::KeyHeld
            && job.waits.saturating_add(1).is_power_of_two()
            && let Some(left_out) = self.shared.lines.waiting.pass()
        {
            let key = job.item.message.key();
            let what = match cause {
                WaitCause::Database => "a message waits for the database",
                WaitCause::Publisher => "a dead letter waits to be confirmed by its publisher",
                WaitCause::Broker => "a message that may end the process waits until the broker has the settlements",
                WaitCause::Retry
                | WaitCause::KeyHeld
                | WaitCause::Bookkeeping
                | WaitCause::Unkeepable
                | WaitCause::DeadLetterQuota
                | WaitCause::Behind
                | WaitCause::Breaker => "a message waits for its bookkeeping",
            };
            tracing::warn!(
                idem.consumer = %self.shared.consumer.name, idem.key = key.map(tracing::field::display), error, left_out,
                "{what}"
            );
            let text = format!("{what}: {error}");
            self.shared.recent.note(IncidentKind::Error, key, Some(job.item.message.origin()), text);
        }
        self.hold_uncharged(job, cause).await;
    }

    pub(super) async fn set_aside(&mut self, mut job: Job<B::Handle>, failure: Failure, in_claim: bool) {
        self.failed_for(&mut job, failure, in_claim, None);
        if in_claim {
            self.set_aside_in_claim(job).await;
        } else {
            self.dead_letter(job).await;
        }
    }

    /// Marks a message with the failure for which it leaves the lane: for good, or until a later try.
    pub(super) fn failed_for(
        &self,
        job: &mut Job<B::Handle>,
        failure: Failure,
        in_claim: bool,
        after: Option<Duration>,
    ) {
        let claim = job.item.claim.as_ref();
        job.attempt = Attempt::Ended(job.attempt.number().max(1));
        let (key, hash) = (claim.map(|claim| claim.key.clone()), claim.map(|claim| (claim.hash, claim.hash_rule)));
        let (Failure { reason, class, text, code, .. }, counts) = (failure, Counts::Handler);
        job.dead = Some(Box::new(DeadLetterCause { reason, class, text, code, key, hash, in_claim, counts, after }));
    }

    /// Takes back an attempt that did not come to a verdict. Where that fails, it is the one that the next run uses.
    pub(super) async fn uncount(&mut self, job: &mut Job<B::Handle>) {
        let (Some(claim), Attempt::Open(number)) = (&job.item.claim, job.attempt) else { return };
        let books = self.shared.consumer.store.bookkeeping();
        match books.uncount_attempt(claim.scope, &claim.key, claim.hash).await {
            Ok(()) => job.attempt = Attempt::Ended(number.saturating_sub(1)),
            Err(error) => {
                tracing::debug!(idem.consumer = %self.shared.consumer.name, %error, "an attempt could not be taken back");
            }
        }
    }

    /// Intake is closed for long, and the broker counts held messages: those that were not begun go back, except where the
    /// next delivery would lack what is known of them.
    pub(super) async fn give_back(&mut self) {
        for mut job in self.queue.remove(Job::may_go_back) {
            self.uncount(&mut job).await;
            self.owe(&job);
            self.shared.release(job, Duration::ZERO);
        }
    }

    /// The message goes, and its attempt came to no verdict: it is taken back later, so that another process that is handed the
    /// message does not find it used up. One that lost connections may have ended the server, and stays charged.
    pub(super) fn owe(&mut self, job: &Job<B::Handle>) {
        if matches!(job.attempt, Attempt::Open(_)) && job.lost == 0 {
            self.owed.extend(job.item.claim.clone());
        }
    }

    /// Takes back the attempts of messages that have gone, until the database does not answer: an outage charges no message.
    pub(super) async fn take_back_owed(&mut self) {
        while let Some(claim) = self.owed.pop() {
            let books = self.shared.consumer.store.bookkeeping();
            if let Err(error) = books.uncount_attempt(claim.scope, &claim.key, claim.hash).await {
                tracing::debug!(idem.consumer = %self.shared.consumer.name, %error, "an attempt could not be taken back");
                return self.owed.push(claim);
            }
        }
    }

    pub(super) async fn hold_uncharged(&mut self, mut job: Job<B::Handle>, cause: WaitCause) {
        job.waits = job.waits.saturating_add(1);
        let wait = self.shared.settings.retry.backoff_now(job.waits);
        self.hold(job, cause, wait).await;
    }

    /// Whether the broker would take a message back before it has waited for so long.
    pub(super) fn outlives(&self, job: &Job<B::Handle>, wait: Duration) -> bool {
        self.shared.hold_max.is_some_and(|max| job.received_at.elapsed() + wait >= max)
    }

    /// Holds a message and those behind it in its key, or gives them back where the broker would not wait that long.
    pub(super) async fn hold(&mut self, mut job: Job<B::Handle>, cause: WaitCause, wait: Duration) {
        if job.waiting.as_ref().is_none_or(|waiting| waiting.cause != cause) {
            job.waiting = Some(Box::new(self.shared.waits.begin(cause)));
        }
        if job.is_row() || !self.outlives(&job, wait) {
            return self.queue.hold(job, Instant::now() + wait);
        }
        let (key, turn) = (HoldKey::of(&job.item), job.turn);
        let follows = |other: &Job<B::Handle>| !other.is_row() && other.turn > turn && HoldKey::of(&other.item) == key;
        // Some of its unit may be on their way back to the queue.
        let (mut followers, returned): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.returned).into_iter().partition(follows);
        self.returned = returned;
        followers.extend(self.queue.remove(follows));
        for mut job in std::iter::once(job).chain(followers) {
            self.uncount(&mut job).await;
            self.owe(&job);
            self.shared.release(job, wait);
        }
    }
}

impl<S: Store, B: Source> Shared<S, B> {
    /// Whether a message has waited, uncharged, for as long as it may. A broker that takes messages back sooner would begin
    /// anew each time, so there it is shorter.
    pub(super) fn has_waited_long(&self, job: &Job<B::Handle>, cause: WaitCause) -> bool {
        let max = self.settings.database_wait_max;
        let max = self.hold_max.map_or(max, |hold_max| max.min(hold_max / 2));
        job.waiting.as_ref().is_some_and(|waiting| waiting.cause == cause && waiting.since.elapsed() >= max)
    }
}
