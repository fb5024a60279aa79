//! A lane: many ordering keys, the order kept within each, one connection. It decides what to run next; running it is in `run`,
//! and `apply` carries out the decisions.

mod apply;
mod batch_size;
mod dead_letter;
pub(crate) mod drain;
mod failure;
mod later;
mod publishing;
mod queue;
mod run;

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};

use crate::{
    bugs::{self, Bug},
    config::Effects,
    pause::Turn,
    retry::RetryPolicy,
    source::{Assignment, Source},
    store::{Store, claim::Claim, describe::one_line},
    worker::{
        committed_keys,
        job::Job,
        lane::{
            batch_size::BatchSize,
            drain::Revoking,
            queue::{Next, Queue},
        },
        shared::{Counted, Shared},
    },
};

/// The longest wait between two probes of a database that is down: it comes back for all lanes at once.
const PROBE_MAX: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(crate) enum Command<H> {
    Jobs(Vec<Job<H>>),
    /// Finish running messages, and begin nothing before the next command; assignments are about to end.
    Rest(oneshot::Sender<()>),
    /// These assignments end, and are still held: finish messages that hold settled ones back, and give back the rest.
    Revoke(Arc<Vec<Assignment>>, oneshot::Sender<()>),
    /// These assignments are lost: drop their messages that were not begun.
    Drop(Arc<Vec<Assignment>>),
    /// Intake is closed for long: give back messages that were not begun.
    GiveBack,
}

/// The steps that a lane may take now.
#[derive(Debug)]
enum Duty {
    /// Run ready messages.
    Serve,
    /// Begin nothing before the next command.
    Rest,
    /// Run ready messages, and answer once nothing of assignments that end can be finished any more.
    Revoke(Revoking),
}

/// The connection of a lane.
#[derive(Debug)]
enum Connection<C> {
    NotYet,
    Open(C),
    /// It had one, so that the next is a reconnect.
    Lost,
}

impl<C> Connection<C> {
    fn is_open(&self) -> bool {
        matches!(self, Self::Open(_))
    }

    fn take(&mut self) -> Option<C> {
        match std::mem::replace(self, Self::Lost) {
            Self::Open(connection) => Some(connection),
            Self::NotYet => {
                *self = Self::NotYet;
                None
            }
            Self::Lost => None,
        }
    }
}

pub(crate) struct Lane<S: Store, B: Source> {
    shared: Arc<Shared<S, B>>,
    number: i32,
    commands: mpsc::UnboundedReceiver<Command<B::Handle>>,
    queue: Queue<Job<B::Handle>>,
    /// Messages of the unit at hand that go back to the queue, in the order in which they came, once it is dealt with.
    returned: Vec<Job<B::Handle>>,
    /// How many messages have come.
    turns: u64,
    connection: Connection<S::Session>,
    /// Fresh messages that still run alone and counted, after a start or an assignment: a message that killed the last
    /// process may be among them.
    probation: usize,
    newest: Assignment,
    /// Units in a row that found the database down.
    down: u32,
    batch: BatchSize,
    /// The last full unit was nothing but duplicates, so the next may be too.
    only_duplicates: bool,
    duty: Duty,
    /// Messages that were not begun go back to the broker before anything else.
    giving_back: bool,
    /// Among the new messages is one that was set aside before, which does not wait for a turn.
    came_again: bool,
    /// Attempts that were counted and never came to a verdict, of messages that have gone.
    owed: Vec<Claim>,
    _present: Counted,
    /// `None` once everything that was begun before a stop has ended.
    at_work: Option<Counted>,
    /// The moment before the claims of the unit at hand.
    before: Option<committed_keys::Before>,
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
            turns: 0,
            connection: Connection::NotYet,
            probation,
            newest,
            down: 0,
            batch,
            only_duplicates: false,
            duty: Duty::Serve,
            giving_back: false,
            came_again: false,
            owed: Vec::new(),
            _present: present,
            at_work: Some(at_work),
            before: None,
        }
    }

    pub(super) async fn run(mut self) {
        while !self.shared.shutdown.is_cancelled() {
            // Before the commands, which may be about these messages too (E41).
            if !bugs::planted(Bug::LossesMissTheUnit) {
                self.take_returned();
            }
            while let Ok(command) = self.commands.try_recv() {
                self.accept(command).await;
            }
            self.take_returned();
            self.end_revocation().await;
            if let Duty::Rest = self.duty {
                if !self.wait().await {
                    break;
                }
                continue;
            }
            if std::mem::take(&mut self.giving_back) {
                self.give_back().await;
            }
            if self.down == 0 && !self.owed.is_empty() {
                self.take_back_owed().await;
            }
            if self.shared.gate.is_paused() {
                if !self.wait_while_paused().await {
                    break;
                }
                continue;
            }
            if !self.shared.gate.breaker_is_open() {
                self.queue.release(|job| job.is_held_by_breaker());
            }
            self.queue.release_due(Instant::now());
            if self.down > 0 {
                // Only one message goes: it probes whether the database is back.
                self.pause(backoff_of(&self.shared.settings.retry, PROBE_MAX).backoff_now(self.down)).await;
                if self.shared.shutdown.is_cancelled() {
                    break;
                }
            }
            self.set_aside_again().await;
            let turn = tokio::select! {
                turn = self.shared.gate.turn() => turn,
                () = self.shared.shutdown.cancelled() => break,
            };
            // A probe is one message, alone and counted; its claim finds out whether it is a duplicate.
            let probing = turn == Turn::Probe;
            self.before = self.shared.cache.as_ref().map(|cache| {
                // The next connection may be to another server, or to one that was restored.
                if !self.connection.is_open() {
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

    /// Runs the next step; false where there is none.
    pub(super) async fn step(&mut self, next: Next<Job<B::Handle>>, probing: bool) -> bool {
        match self.without_set_aside(next).await {
            Next::Nothing => return false,
            Next::Together(jobs) | Next::Look(jobs) if jobs.is_empty() => {}
            // A claim that finds every key taken is followed by the same look-up.
            Next::Together(jobs) if self.only_duplicates => self.look(jobs).await,
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
        self.probation > 0 || self.shared.consumer.effects == Effects::Outside
    }

    /// Waits for a message, or for one that is held; answers whether there may be more.
    async fn wait(&mut self) -> bool {
        // While it rests, due messages wait for the next command too.
        let rests = matches!(self.duty, Duty::Rest) && !bugs::planted(Bug::RestingLaneSpins);
        let due = if rests { None } else { self.queue.next_due() };
        let shared = Arc::clone(&self.shared);
        let held_by_breaker = self.queue.any_held(|job| job.is_held_by_breaker());
        tokio::select! {
            command = self.commands.recv() => match command {
                Some(command) => self.accept(command).await,
                None => return false,
            },
            () = self.shared.shutdown.cancelled() => {}
            () = shared.gate.breaker_closed(), if held_by_breaker => {}
            () = async { tokio::time::sleep_until(due.unwrap_or_else(Instant::now)).await }, if due.is_some() => {}
        }
        true
    }

    /// Nothing is begun while the consumer is paused or halted, not even a message in hand: an operator who changes a
    /// table relies on it, and a consumer that halted would only halt again. Answers whether there may be more.
    async fn wait_while_paused(&mut self) -> bool {
        let shared = Arc::clone(&self.shared);
        tokio::select! {
            command = self.commands.recv() => match command {
                Some(command) => self.accept(command).await,
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

    async fn accept(&mut self, command: Command<B::Handle>) {
        match command {
            Command::Jobs(mut jobs) => {
                self.recognise(&mut jobs);
                for job in &mut jobs {
                    self.turns += 1;
                    job.turn = self.turns;
                }
                let newest = jobs.iter().map(|job| job.assignment).max().unwrap_or_default();
                if newest > self.newest {
                    self.newest = newest;
                    self.probation = self.batch.max;
                }
                self.queue.push(jobs);
            }
            Command::Rest(resting) => {
                if let Duty::Revoke(revoking) = std::mem::replace(&mut self.duty, Duty::Rest) {
                    self.end(revoking).await;
                }
                // Intake may have given up waiting.
                let _ = resting.send(());
            }
            Command::Revoke(assignments, done) => {
                self.part(assignments, done).await;
            }
            Command::Drop(assignments) => {
                for job in self.queue.remove(|job| !job.is_row() && assignments.contains(&job.assignment)) {
                    self.owe(&job);
                }
            }
            Command::GiveBack => self.giving_back = true,
        }
    }

    pub(super) fn take_returned(&mut self) {
        let mut returned = std::mem::take(&mut self.returned);
        returned.sort_by_key(|job| job.turn);
        self.queue.put_back(returned);
    }

    /// Takes no more commands, and obeys those that were sent already.
    pub(super) async fn close_commands(&mut self) {
        self.take_returned();
        self.commands.close();
        while let Some(command) = self.commands.recv().await {
            self.accept(command).await;
        }
    }

    pub(super) async fn disconnect(&mut self) {
        if let Some(connection) = self.connection.take() {
            self.shared.consumer.store.close(connection).await;
        }
    }

    /// Probes the database while there is no message to try it with. Intake is closed until it answers.
    async fn look_for_the_store(&mut self) {
        match self.probe().await {
            Ok(()) => self.succeeded(),
            Err(error) => self.store_down(&one_line::<S>(&error)),
        }
    }

    pub(super) fn fresh_succeeded(&mut self) {
        self.probation = self.probation.saturating_sub(1);
        if self.shared.gate.fresh_succeeded() {
            tracing::info!(idem.consumer = %self.shared.consumer.name, "a probe went well; intake goes on");
        }
    }
}

fn backoff_of(retry: &RetryPolicy, max: Duration) -> RetryPolicy {
    RetryPolicy { max: retry.max.min(max), ..*retry }
}
