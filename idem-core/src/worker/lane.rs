//! A lane: many ordering keys, the order kept within each, one connection. It decides what to run next and what
//! becomes of each message.

use std::{collections::HashSet, sync::Arc, time::Duration};

use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};

use super::{
    Shared,
    batch_size::BatchSize,
    cache,
    gate::Turn,
    job::Job,
    parting::{Counted, Parting},
    queue::{Next, Queue},
    trouble::AGAIN_MAX,
};
use crate::{
    consumer::{self, End},
    dead_letter::Reason,
    error::{ErrorClass, StoreError},
    failpoint,
    handler::Work,
    outcome::{Decision, Failure},
    retry::RetryPolicy,
    source::{Assignment, Source},
    store::Store,
};

/// The longest wait between two probes of a database that is down: it comes back for everybody at once.
const PROBE_MAX: Duration = Duration::from_secs(5);

#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "a box would cost every message an allocation, and revocations are rare")]
pub(crate) enum Command<H> {
    Job(Job<H>),
    /// Finish what runs, and begin nothing before the next command; assignments are about to end.
    Rest(oneshot::Sender<()>),
    /// These assignments end, and are still held: finish what holds settled messages back, and give back the rest.
    Part(Arc<Vec<Assignment>>, oneshot::Sender<()>),
    /// These assignments are lost: drop what was not begun of them.
    Drop(Arc<Vec<Assignment>>),
}

pub(crate) struct Lane<S: Store, B: Source> {
    pub(super) shared: Arc<Shared<S, B>>,
    pub(super) number: i32,
    commands: mpsc::UnboundedReceiver<Command<B::Handle>>,
    pub(super) queue: Queue<Job<B::Handle>>,
    /// Messages of the unit at hand that go back to the queue, in their order, once it is dealt with.
    pub(super) returned: Vec<Job<B::Handle>>,
    connection: Option<S::Lane>,
    /// Whether it has had one, so that the next is a reconnect.
    connected: bool,
    /// Fresh messages that still run alone and counted, after a start or an assignment: whatever killed the last
    /// process may be among them.
    pub(super) probation: usize,
    newest: Assignment,
    /// Units in a row that found the database down.
    pub(super) down: u32,
    /// Units in a row that others got in the way of.
    pub(super) again: u32,
    pub(super) batch: BatchSize,
    /// Nothing is begun before the next command.
    resting: bool,
    pub(super) parting: Option<Parting>,
    _present: Counted,
    /// `None` once everything that was begun before a stop has ended.
    pub(super) at_work: Option<Counted>,
    /// The moment before the claims of the unit at hand.
    pub(super) before: Option<cache::Before>,
}

impl<S: Store, B: Source> Lane<S, B> {
    pub(super) fn new(
        shared: Arc<Shared<S, B>>,
        number: i32,
        commands: mpsc::UnboundedReceiver<Command<B::Handle>>,
    ) -> Self {
        let batch = BatchSize::new(shared.batch_max(), shared.hold_max);
        let probation = batch.max;
        let (newest, (present, at_work)) = (Assignment::default(), shared.lanes.enter());
        Self {
            shared,
            number,
            commands,
            queue: Queue::new(),
            returned: Vec::new(),
            connection: None,
            connected: false,
            probation,
            newest,
            down: 0,
            again: 0,
            batch,
            resting: false,
            parting: None,
            _present: present,
            at_work: Some(at_work),
            before: None,
        }
    }

    pub(super) async fn run(mut self) {
        while !self.shared.shutdown.is_cancelled() {
            while let Ok(command) = self.commands.try_recv() {
                self.accept(command);
            }
            let returned = std::mem::take(&mut self.returned);
            self.queue.put_back(returned);
            self.end_parting();
            if self.resting {
                if !self.wait().await {
                    break;
                }
                continue;
            }
            if self.shared.gate.is_halted() {
                if !self.wait_while_halted().await {
                    break;
                }
                continue;
            }
            self.queue.release_due(Instant::now());
            if self.down > 0 {
                // Only one message goes: it probes whether the database is back.
                self.pause(backoff_of(&self.shared.settings.retry, PROBE_MAX).backoff_now(self.down)).await;
                if self.shared.shutdown.is_cancelled() {
                    break;
                }
            }
            let turn = tokio::select! {
                turn = self.shared.gate.turn() => turn,
                () = self.shared.shutdown.cancelled() => break,
            };
            // A probe is one message, alone and counted; its claim finds out whether it is a duplicate.
            let probing = turn == Turn::Probe;
            self.before = self.shared.cache.as_ref().map(|cache| {
                // The next connection may be to another server, or to one that was restored.
                if self.connection.is_none() {
                    cache.drop_all();
                }
                cache.before(Instant::now())
            });
            let max = if self.down > 0 || probing { 1 } else { self.batch.now() };
            let next = self.queue.take(max, self.all_alone() || probing);
            if self.step(next, probing).await {
                continue;
            }
            if self.down > 0 {
                self.look_for_the_store().await;
            } else if !self.wait().await {
                break;
            }
        }
        self.leave().await;
    }

    /// Runs what comes next; false where that is nothing.
    pub(super) async fn step(&mut self, next: Next<Job<B::Handle>>, probing: bool) -> bool {
        match next {
            Next::Nothing => return false,
            Next::Together(jobs) => self.together(jobs).await,
            Next::Look(jobs) if probing => {
                for job in jobs {
                    self.alone(job).await;
                }
            }
            Next::Look(jobs) => self.look(jobs).await,
            Next::Alone(job) => self.alone(job).await,
        }
        true
    }

    pub(super) fn all_alone(&self) -> bool {
        self.probation > 0 || self.shared.consumer.effects == crate::Effects::Outside
    }

    /// Waits for a message, or for one that is held; answers whether there may be more.
    async fn wait(&mut self) -> bool {
        let due = self.queue.next_due();
        tokio::select! {
            command = self.commands.recv() => match command {
                Some(command) => self.accept(command),
                None => return false,
            },
            () = self.shared.shutdown.cancelled() => {}
            () = async { tokio::time::sleep_until(due.unwrap_or_else(Instant::now)).await }, if due.is_some() => {}
        }
        true
    }

    /// Nothing runs while the consumer is halted, not even what is in hand: it would only halt again. Answers whether
    /// there may be more.
    async fn wait_while_halted(&mut self) -> bool {
        let shared = Arc::clone(&self.shared);
        tokio::select! {
            command = self.commands.recv() => match command {
                Some(command) => self.accept(command),
                None => return false,
            },
            () = shared.shutdown.cancelled() => {}
            () = shared.gate.resumed() => {}
        }
        true
    }

    async fn pause(&mut self, time: Duration) {
        tokio::select! {
            () = tokio::time::sleep(time) => {}
            () = self.shared.shutdown.cancelled() => {}
        }
    }

    fn accept(&mut self, command: Command<B::Handle>) {
        match command {
            Command::Job(job) => {
                if job.assignment > self.newest {
                    self.newest = job.assignment;
                    self.probation = self.batch.max;
                }
                self.queue.push(job);
            }
            Command::Rest(resting) => {
                self.resting = true;
                // Intake may have given up waiting.
                let _ = resting.send(());
            }
            Command::Part(assignments, done) => {
                self.resting = false;
                self.part(assignments, done);
            }
            Command::Drop(assignments) => {
                drop(self.queue.remove(|job| !job.is_replay() && assignments.contains(&job.assignment)));
            }
        }
    }

    /// Takes no more commands, and sees to those that were sent already.
    pub(super) async fn close_commands(&mut self) {
        self.commands.close();
        while let Some(command) = self.commands.recv().await {
            self.accept(command);
        }
        let returned = std::mem::take(&mut self.returned);
        self.queue.put_back(returned);
    }

    pub(super) async fn disconnect(&mut self) {
        if let Some(connection) = self.connection.take() {
            self.shared.consumer.store.close(connection).await;
        }
    }

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

    fn keep(&mut self, connection: Option<S::Lane>, was_open: bool) {
        self.connection = connection;
        if self.connection.is_some() && !was_open && std::mem::replace(&mut self.connected, true) {
            self.shared.metrics.reconnects.increment(1);
        }
    }

    async fn together(&mut self, jobs: Vec<Job<B::Handle>>) {
        let begun = Instant::now();
        match self.unit(&jobs).await {
            End::Decided(decisions) => {
                self.went_well();
                self.batch.took(jobs.len(), begun.elapsed());
                self.apply(jobs, decisions).await;
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
    async fn look(&mut self, jobs: Vec<Job<B::Handle>>) {
        let decisions = match self.look_up(&jobs).await {
            Ok(decisions) => decisions,
            Err(error) => return self.store_failed(jobs, error),
        };
        self.went_well();
        let mut leaders = HashSet::new();
        for (mut job, decision) in jobs.into_iter().zip(decisions) {
            match decision {
                Some(decision) => self.decide(job, decision).await,
                None => {
                    // A copy is looked up again once the first of its key has run: it is then a duplicate, most likely.
                    job.looked = leaders.insert(job.item.claim.as_ref().map(|claim| (claim.scope, claim.key.clone())));
                    self.returned.push(job);
                }
            }
        }
    }

    /// Runs a message alone, its attempt counted before it runs: if it kills the process, that is remembered.
    async fn alone(&mut self, mut job: Job<B::Handle>) {
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
            Some(claim) => match self.shared.consumer.store.count_attempt(claim.scope, &claim.key, claim.hash).await {
                Ok(attempt) => (job.attempts, job.counted) = (attempt, true),
                Err(error) => return self.bookkeeping_failed(job, error).await,
            },
        }
        if job.attempts > self.shared.settings.retry.attempts {
            return self.exhausted(job).await;
        }
        job.suspect = true;
        match self.unit(std::slice::from_ref(&job)).await {
            End::Decided(decisions) => {
                self.went_well();
                self.apply(vec![job], decisions).await;
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
                Some(decision) => self.decide(job, decision).await,
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

    async fn apply(&mut self, jobs: Vec<Job<B::Handle>>, decisions: Vec<Decision>) {
        for (job, decision) in jobs.into_iter().zip(decisions) {
            self.decide(job, decision).await;
        }
    }

    /// Deals with one decision of a unit. Once the database was found down over an earlier one, what would need it goes
    /// back to be decided again, rather than each message waiting for an answer in turn.
    async fn decide(&mut self, job: Job<B::Handle>, decision: Decision) {
        match decision {
            Decision::Processed(_) | Decision::Duplicate(..) => self.decided(job, decision).await,
            Decision::Conflict(..) | Decision::Busy | Decision::Failed(_) if self.down > 0 => self.returned.push(job),
            Decision::Conflict(..) | Decision::Busy | Decision::Failed(_) => self.decided(job, decision).await,
        }
    }

    /// Asks whether the database is back while there is no message to try it with. Intake is closed until it is.
    async fn look_for_the_store(&mut self) {
        match self.shared.consumer.store.control(self.shared.scope).await {
            Ok(_) => self.went_well(),
            Err(error) => self.store_down(&error),
        }
    }

    pub(super) fn fresh_succeeded(&mut self) {
        self.probation = self.probation.saturating_sub(1);
        if self.shared.gate.breaker_is_open() {
            self.shared.gate.close_breaker();
            tracing::info!(idem.consumer = %self.shared.consumer.name, "a probe went well; intake goes on");
        }
        self.shared.gate.note(false);
    }
}

fn backoff_of(retry: &RetryPolicy, max: Duration) -> RetryPolicy {
    RetryPolicy { max: retry.max.min(max), ..*retry }
}
