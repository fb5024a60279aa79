//! Runs the messages that a lane has taken, together, alone or only looked up, and hands each message on with its decision.

use std::{
    collections::HashSet,
    pin::pin,
    sync::{Arc, PoisonError, atomic::Ordering},
    time::Duration,
};

use futures_util::future::BoxFuture;
use tokio::time::Instant;

use crate::{
    bugs::{self, Bug},
    dead_letter::{DeadLetterId, DueEnd, Reason},
    error::{ErrorClass, SourceError, StoreError},
    failpoint,
    handler::Work,
    outcome::{Decision, Durable, Failure, Settle},
    policy::{self, Action, Seen, WaitCause},
    source::Source,
    store::{Bookkeeping as _, Store, describe::one_line},
    unit::{
        lookup::{self, Alone},
        run::{End, Gate},
    },
    worker::{
        job::{Attempt, DeliveredBy, Isolation, Job},
        lane::{Connection, Lane, failure::Failed},
        shared::Shared,
        unsettled::Place,
    },
};

/// How long messages that run alone do so one at a time, once their lanes had left no connection to count their attempts on.
const SCARCE_FOR: Duration = Duration::from_secs(600);

impl<S: Store, B: Source> Lane<S, B> {
    async fn unit(&mut self, jobs: &[Job<B::Handle>], gate: Option<Gate<'_>>) -> End {
        let (shared, connection) = (Arc::clone(&self.shared), self.connection.take());
        let was_open = connection.is_some();
        let (connection, end) =
            crate::unit::run::run(&shared.consumer, connection, self.number, jobs, gate, None).await;
        self.keep(connection, was_open);
        end
    }

    pub(super) async fn look_up(&mut self, jobs: &[Job<B::Handle>]) -> Result<Vec<Option<Decision>>, StoreError> {
        let (shared, connection) = (Arc::clone(&self.shared), self.connection.take());
        let was_open = connection.is_some();
        let (connection, found) = lookup::look_up(&shared.consumer, connection, self.number, jobs).await;
        self.keep(connection, was_open);
        found
    }

    pub(super) async fn probe(&mut self) -> Result<(), StoreError> {
        let (shared, connection) = (Arc::clone(&self.shared), self.connection.take());
        let was_open = connection.is_some();
        let (connection, probed) = lookup::probe(&shared.consumer, connection, self.number).await;
        self.keep(connection, was_open);
        probed
    }

    fn keep(&mut self, connection: Option<S::Session>, was_open: bool) {
        let Some(connection) = connection else { return };
        if !was_open && let Connection::Lost = self.connection {
            self.shared.metrics.reconnects.increment(1);
        }
        self.connection = Connection::Open(connection);
    }

    pub(super) async fn together(&mut self, mut jobs: Vec<Job<B::Handle>>) {
        if bugs::planted(Bug::WaitsForFullBatches) && jobs.len() < self.batch.max {
            self.pause(Duration::from_secs(10)).await;
        }
        let begun = Instant::now();
        if bugs::planted(Bug::AcknowledgesBeforeCommit) {
            jobs.iter_mut().for_each(|job| self.acknowledge_early(job));
        }
        if bugs::planted(Bug::RemembersBeforeCommit) {
            jobs.iter().for_each(|job| self.remember(job, None));
        }
        if bugs::planted(Bug::EndsRowsBeforeCommit) {
            jobs.iter().for_each(|job| self.end_early(job));
        }
        match self.unit(&jobs, None).await {
            End::Decided(decisions) => {
                self.succeeded();
                self.batch.took(jobs.len(), begun.elapsed());
                self.only_duplicates = jobs.len() == self.batch.max && decisions.iter().all(Decision::is_skipped);
                self.apply(jobs.into_iter().zip(decisions)).await;
            }
            End::Isolate(culprits) => {
                // Injected errors mean nothing here: nothing is under way.
                let _ = failpoint!(ISOLATE);
                // A handler that fails alone stops the ones after it, so it is unknown how those would have ended.
                let everybody = matches!(self.shared.consumer.work, Work::Each(_)) || culprits.is_empty();
                self.run_alone(jobs, |index| everybody || culprits.contains(&index), true);
            }
            end @ (End::Held
            | End::Behind(_)
            | End::NotBegun
            | End::Refused
            | End::NoWinner(_)
            | End::Again(_)
            | End::Unknown { .. }
            | End::Lost(_)
            | End::StoreFailed(_)) => self.did_not_end_well(jobs, end).await,
        }
    }

    /// A planted bug.
    fn acknowledge_early(&self, job: &mut Job<B::Handle>) {
        let from = std::mem::replace(&mut job.from, DeliveredBy::Row(DeadLetterId(0)));
        if let DeliveredBy::Broker(handle) = from {
            self.shared.settle(handle, Settle::Acknowledge(Durable::committed()), job.permit.take());
        }
    }

    /// A planted bug.
    fn end_early(&self, job: &Job<B::Handle>) {
        if let DeliveredBy::Row(id) = job.from {
            self.shared.due.ended(id, DueEnd::Processed);
        }
    }

    /// A unit that came to no decision, whether of one message or of several.
    async fn did_not_end_well(&mut self, mut jobs: Vec<Job<B::Handle>>, end: End) {
        let (seen, error) = match end {
            End::Decided(_) | End::Isolate(_) | End::NotBegun | End::Refused => return self.returned.extend(jobs),
            End::Held => return self.run_alone(jobs, |_| true, false),
            End::Behind(ahead) => return self.stand_behind(jobs, ahead).await,
            End::NoWinner(error) => {
                if let Some(left_out) = self.shared.lines.again.pass() {
                    let error = one_line::<S>(&error);
                    tracing::warn!(idem.consumer = %self.shared.consumer.name, error, left_out, "the unit waits and claims again");
                }
                (Seen::NoWinner, error)
            }
            End::Again(error) => (Seen::Contended, error),
            End::Unknown { error, of } => {
                of.into_iter().for_each(|index| jobs[index].unresolved = true);
                if let Some(left_out) = self.shared.lines.again.pass() {
                    tracing::warn!(
                        idem.consumer = %self.shared.consumer.name, error, left_out,
                        "the answer to a commit was lost; its keys are claimed again"
                    );
                }
                (Seen::CommitUnanswered, StoreError::Unavailable { doing: "committing", source: error })
            }
            End::Lost(error) => (Seen::ConnectionLost, error),
            End::StoreFailed(error) => (Seen::StoreFailed(error.class()), error),
        };
        self.after(jobs, seen, Failed::Store(error)).await;
    }

    /// Looks up which messages are duplicates, so that a redelivered backlog costs one statement a batch.
    pub(super) async fn look(&mut self, mut jobs: Vec<Job<B::Handle>>) {
        let decisions = match self.look_up(&jobs).await {
            Ok(decisions) => decisions,
            Err(error) => {
                // Alone, each is claimed without another look, which would fail the same way again and again (S61).
                let is_theirs = error.class() != ErrorClass::Infrastructure;
                jobs.iter_mut().for_each(|job| job.looked_up |= is_theirs);
                return self.after(jobs, Seen::StoreFailed(error.class()), Failed::Store(error)).await;
            }
        };
        self.succeeded();
        let (mut leaders, mut decided) = (HashSet::new(), Vec::new());
        for (mut job, decision) in jobs.into_iter().zip(decisions) {
            match decision {
                Some(decision) => decided.push((job, decision)),
                None => {
                    // A copy is looked up again once the first of its key has run: it is then a duplicate, most likely.
                    job.looked_up =
                        leaders.insert(job.item.claim.as_ref().map(|claim| (claim.scope, claim.key.clone())));
                    self.returned.push(job);
                }
            }
        }
        self.only_duplicates &= self.returned.is_empty();
        self.apply(decided).await;
    }

    /// Runs a message alone, its attempt counted before its handler runs: if it kills the process, that is remembered. It is
    /// counted while its key is claimed, so that no copy of it finds the attempts used up before the last one has run (E4). A
    /// store with one writer could not count meanwhile: there it is counted first.
    pub(super) async fn alone(&mut self, mut job: Job<B::Handle>) {
        if job.dead.is_some() {
            return self.set_aside_later(job).await;
        }
        // Taken before the attempt is counted, so that a message that waits for it is not charged.
        let shared = Arc::clone(&self.shared);
        // A message that costs its connection may cost all others', and messages beside it would be charged too (D42).
        let isolation = std::mem::replace(&mut job.isolation, Isolation::Unit);
        let may_kill = isolation == Isolation::Process || self.probation > 0 || job.lost > 0;
        let alone = may_kill || shared.connections_are_scarce();
        let _alone_in_the_process = if alone { Some(shared.one_at_a_time.lock().await) } else { None };
        let mut attempted = None;
        let in_the_claim =
            shared.consumer.store.capabilities().waits_per_key && !bugs::planted(Bug::CountsBeforeTheClaim);
        let mut end = {
            let mut begin = pin!(async {
                let begun = shared.begin_attempt(&job, may_kill).await;
                attempted.insert(begun).goes()
            });
            if in_the_claim {
                self.unit(std::slice::from_ref(&job), Some(begin)).await
            } else if begin.as_mut().await {
                self.unit(std::slice::from_ref(&job), None).await
            } else {
                End::NotBegun
            }
        };
        if attempted.is_none() && self.is_charged(&job, &end) {
            // Its claim failed, which is its own doing as far as is known.
            let begun = shared.begin_attempt(&job, false).await;
            if !attempted.insert(begun).goes() {
                end = End::NotBegun;
            }
        }
        // What waits behind another row did not run.
        job.isolation = if let End::Behind(_) = end { isolation } else { job.isolation };
        match attempted {
            None => {}
            Some(Attempted::Begins(attempt)) => job.attempt = attempt,
            Some(Attempted::Exhausted(attempt)) => {
                job.attempt = attempt;
                return self.exhausted(job).await;
            }
            Some(Attempted::Uncounted(error)) => {
                let answers = in_the_claim && matches!(self.connection, Connection::Open(_));
                return self.uncounted(job, error, answers && !alone).await;
            }
            Some(Attempted::AwaitsTheBroker(attempt, error)) => {
                (job.attempt, job.isolation) = (attempt, Isolation::Process);
                // It did not run, and the next message may end the process while this one waits.
                self.uncount(&mut job).await;
                return self.wait_for(job, WaitCause::Broker, &one_line::<S>(&error)).await;
            }
        }
        if let End::Decided(decisions) = end {
            self.succeeded();
            self.apply(std::iter::once(job).zip(decisions)).await;
        } else {
            self.did_not_end_well(vec![job], end).await;
        }
    }

    /// A message whose attempts are used up without a verdict. Its dead letter ends their count, so it is written once the broker
    /// can have its settlement: otherwise the next message that kills the process, such as a copy, brings this one back with all of
    /// its attempts, and both do so for ever, while a message before them has no turn (J73). An open breaker keeps it by itself.
    async fn exhausted(&mut self, mut job: Job<B::Handle>) {
        let shared = Arc::clone(&self.shared);
        if shared.is_held_back(&job)
            && !shared.gate.breaker_is_open()
            && !shared.has_waited_long(&job, WaitCause::Broker)
            && !bugs::planted(Bug::KillersGoBeforeTheirTurn)
        {
            let why = "all of its attempts are used up, and a message before it in its partition is not finished";
            return self.wait_for(job, WaitCause::Broker, why).await;
        }
        let attempts = shared.attempts_max(&job);
        let text = format!(
            "all of its {attempts} attempts were counted before this delivery, and no verdict is known: each failed, or its \
             process or its connection ended; the logs of the workers that ran it may say which"
        );
        job.attempt = Attempt::Ended(attempts);
        let failure = Failure::new(ErrorClass::Permanent, Reason::AttemptsExhausted, text).of("no-verdict");
        self.set_aside(job, failure, !bugs::planted(Bug::ExhaustedWithoutClaim)).await;
    }

    /// The attempt of a message could not be counted. If the lane's own connection answers, connections may be scarce, and the message
    /// runs again alone in the process.
    async fn uncounted(&mut self, mut job: Job<B::Handle>, error: StoreError, answers: bool) {
        job.counts_unanswered = job.counts_unanswered.saturating_add(1);
        if answers && error.class() == ErrorClass::Infrastructure {
            self.shared.connections_were_scarce(&error);
            return self.returned.push(job);
        }
        self.bookkeeping_failed(job, error).await;
    }

    /// Sets a message aside whose row could not be written, or that came again, or for which the breaker was open: another delivery may
    /// run it meanwhile.
    pub(super) async fn set_aside_later(&mut self, job: Job<B::Handle>) {
        let in_claim = job.dead.as_ref().is_some_and(|dead| dead.in_claim);
        if in_claim && !bugs::planted(Bug::SetsAsideLaterWithoutClaim) {
            self.set_aside_in_claim(job).await;
        } else {
            self.dead_letter(job).await;
        }
    }

    /// Sets a message aside while its key is claimed: it may be running under another delivery, as one of its attempts, or have
    /// been handled meanwhile. Boxed, because that may fail, and end here once more.
    pub(super) fn set_aside_in_claim(&mut self, job: Job<B::Handle>) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let (shared, connection, number) = (Arc::clone(&self.shared), self.connection.take(), self.number);
            let (was_open, item) = (connection.is_some(), job.item.clone());
            let mut slot = Some(job);
            let set_aside = async {
                if let Some(job) = slot.take() {
                    self.dead_letter(job).await;
                }
            };
            let (connection, done) = lookup::alone_with(&shared.consumer, connection, number, &item, set_aside).await;
            self.keep(connection, was_open);
            // It is gone where it was set aside, whatever the rolling back of the claim answered.
            let Some(job) = slot else { return };
            match done {
                Ok(Alone::Done(())) => self.returned.push(job),
                Ok(Alone::Decided(decision)) => {
                    // The database is back, so that a conflict is dealt with now.
                    self.succeeded();
                    if let Some(place) = Place::of(&job) {
                        shared.unsettled.settled(&place);
                    }
                    self.apply([(job, decision)]).await;
                }
                Ok(Alone::Held) => self.busy(job).await,
                Err(error) => self.bookkeeping_failed(job, error).await,
            }
        })
    }

    /// Whether a unit that came to no claim is charged to its message. One that runs again as it is has not: another process
    /// that is handed the message meanwhile would find an attempt used up that nothing came of.
    fn is_charged(&self, job: &Job<B::Handle>, end: &End) -> bool {
        match end {
            End::Again(_) => policy::after(&self.known(std::slice::from_ref(job)), Seen::Contended) != Action::RunAgain,
            End::StoreFailed(error) => matches!(error.class(), ErrorClass::Transient | ErrorClass::Permanent),
            End::Decided(_)
            | End::NotBegun
            | End::Refused
            | End::Isolate(_)
            | End::Held
            | End::Behind(_)
            | End::NoWinner(_)
            | End::Unknown { .. }
            | End::Lost(_) => false,
        }
    }

    /// Bookkeeping about a message, outside of its unit, failed; no message is charged.
    pub(super) async fn bookkeeping_failed(&mut self, job: Job<B::Handle>, error: StoreError) {
        // Boxed, because the next step may itself write, and fail.
        Box::pin(self.after(vec![job], Seen::BookkeepingFailed(error.class()), Failed::Store(error))).await;
    }
}

/// How far the attempt of a message that runs alone came.
enum Attempted {
    /// It was counted, and its handler runs.
    Begins(Attempt),
    /// All attempts were counted before.
    Exhausted(Attempt),
    /// It could not be counted.
    Uncounted(StoreError),
    /// It may kill the process, and the broker does not take settlements.
    AwaitsTheBroker(Attempt, SourceError),
}

impl Attempted {
    fn goes(&self) -> bool {
        matches!(self, Self::Begins(_))
    }
}

impl<S: Store, B: Source> Shared<S, B> {
    /// The attempts that a message gets: as a row its later tries are among them, and one at least. A process that dies in one burns it.
    fn attempts_max(&self, job: &Job<B::Handle>) -> u32 {
        let retry = &self.settings.retry;
        match job.attempts_before {
            0 => retry.attempts,
            before => (retry.attempts + retry.later.tries()).max(before + 1),
        }
    }

    /// Counts an attempt of a message that is about to run alone, and says whether it may.
    async fn begin_attempt(&self, job: &Job<B::Handle>, may_kill: bool) -> Attempted {
        let attempt = match (&job.item.claim, job.attempt) {
            // An attempt that came to no verdict is not counted again.
            (_, open @ Attempt::Open(_)) => open,
            (None, last) => Attempt::Ended(last.number() + 1),
            (Some(_), last) if bugs::planted(Bug::CountsInMemory) => Attempt::Ended(last.number() + 1),
            (Some(claim), _) => {
                match self.consumer.store.bookkeeping().count_attempt(claim.scope, &claim.key, claim.hash).await {
                    Ok(number) => Attempt::Open(job.attempt_counted(number)),
                    Err(error) => return Attempted::Uncounted(error),
                }
            }
        };
        if attempt.number() > self.attempts_max(job) {
            return Attempted::Exhausted(attempt);
        }
        if may_kill
            && (attempt.number() > 1 || self.dead_letter_settled.load(Ordering::Relaxed))
            && let Err(error) = self.hand_settlements_over().await
            && !self.has_waited_long(job, WaitCause::Broker)
        {
            return Attempted::AwaitsTheBroker(attempt, error);
        }
        Attempted::Begins(attempt)
    }

    /// An attempt could not be counted while the connection with its claim answered: lanes that each hold one and wait for
    /// another would go on so (D50).
    fn connections_were_scarce(&self, error: &StoreError) {
        if !self.connections_are_scarce() {
            let (error, minutes) = (one_line::<S>(error), SCARCE_FOR.as_secs() / 60);
            tracing::warn!(
                idem.consumer = %self.consumer.name, error,
                "an attempt could not be counted while its key was claimed: the database, or the pooler before it, has no \
                 connection left. Give it more than all lanes have; for {minutes} minutes one message at a time runs alone"
            );
        }
        *self.scarce_until.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now() + SCARCE_FOR);
    }

    fn connections_are_scarce(&self) -> bool {
        let until = *self.scarce_until.lock().unwrap_or_else(PoisonError::into_inner);
        until.is_some_and(|until| Instant::now() < until)
    }

    /// Waits until the broker has the settlements, before a message runs that may kill the process: a dead letter whose
    /// settlement is lost comes again with all of its attempts, and two that kill could bring each other back for ever (D38).
    async fn hand_settlements_over(&self) -> Result<(), SourceError> {
        if bugs::planted(Bug::KillersLoseSettlements) {
            return Ok(());
        }
        // Cleared first: a dead letter that is settled meanwhile may not be among those that are handed over.
        self.dead_letter_settled.store(false, Ordering::Relaxed);
        self.flush().await;
        let handed_over = self.source.flush().await;
        if handed_over.is_err() {
            self.dead_letter_settled.store(true, Ordering::Relaxed);
        }
        handed_over
    }
}
