//! A process as a member of a group: a source on the real state of `idem-kafka` (its `state.rs` and `offsets.rs`), with a task in
//! the place of the thread that polls. Its turns are those of `poll.rs`, `rebalance.rs` and `commit.rs` there, without the
//! client library.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError, atomic::Ordering},
    time::Duration,
};

use idem_core::{
    Source, SourceError,
    failpoint::Life,
    source::{Assignment, Attached, Received, Settle, Settled, SourceCapabilities},
};
use tokio::{
    sync::oneshot::{self, error::TryRecvError},
    time::{Instant, sleep, timeout},
};

use crate::{
    group::{Group, Refused, Step},
    journal::Happened,
    state::{Ending, KafkaHandle, Shared, Start},
    teeth::Slip,
    world::World,
};

/// How long a turn waits where nothing happens, and while it looks out for the worker.
const PATIENCE: Duration = Duration::from_millis(50);
const ATTENTION: Duration = Duration::from_millis(2);
/// How many records of a partition are taken in at once.
const BURST: usize = 200;
/// How long the last commits of an assignment may take, and how long the group is left alone that did not answer one.
const LAST_COMMIT: Duration = Duration::from_secs(5);
const REST: Duration = Duration::from_secs(5);
/// How long a flush waits.
const FLUSH: Duration = Duration::from_secs(5);

/// The source of a process.
#[derive(Debug)]
pub(crate) struct GroupSource {
    shared: Arc<Shared>,
    group: Arc<Group>,
    world: Arc<World>,
    process: usize,
    over: Over,
}

/// The assignments that were lost or given back.
type Over = Arc<Mutex<BTreeSet<Assignment>>>;

impl GroupSource {
    pub(crate) fn new(world: Arc<World>, group: Arc<Group>, process: usize) -> Self {
        Self { shared: Arc::default(), group, world, process, over: Over::default() }
    }

    /// Whether this assignment is over, so that none of its messages can be settled any more.
    pub(crate) fn is_over(&self, assignment: Assignment) -> bool {
        self.over.lock().unwrap_or_else(PoisonError::into_inner).contains(&assignment)
    }
}

impl Drop for GroupSource {
    fn drop(&mut self) {
        self.shared.end(Ending::Drop);
    }
}

impl Source for GroupSource {
    type Handle = KafkaHandle;

    fn capabilities(&self) -> SourceCapabilities {
        SourceCapabilities::minimal()
    }

    async fn attach(&self) -> Result<Attached, SourceError> {
        if self.shared.begin() {
            let turns = Turns::new(self).run();
            // The process's own, so that it dies with the others.
            match Life::current() {
                Some(life) => drop(life.spawn(turns)),
                None => drop(tokio::spawn(turns)),
            }
        }
        Ok(Attached::new("group/orders"))
    }

    async fn receive(&self, max: usize) -> Result<Received<KafkaHandle>, SourceError> {
        sleep(self.group.receive_delay()).await;
        if self.group.strikes(|faults| faults.receives_failed) {
            return Err(SourceError::Unavailable { doing: "receiving", source: "a fault".into() });
        }
        self.shared.receive(max).await
    }

    async fn settle(&self, settlements: Vec<(KafkaHandle, Settle)>) -> Vec<Settled> {
        self.shared.settle(settlements)
    }

    async fn flush(&self) -> Result<(), SourceError> {
        match timeout(FLUSH, self.shared.flush()).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(SourceError::Unavailable { doing: "committing", source: "no answer".into() }),
        }
    }

    fn holds_back(&self, handle: &KafkaHandle) -> bool {
        self.shared.holds_back(handle)
    }

    fn is_held_back(&self, handle: &KafkaHandle) -> bool {
        self.shared.is_held_back(handle)
    }

    async fn is_idle(&self) -> bool {
        self.shared.is_idle()
    }

    fn takes_part(&self) -> bool {
        self.shared.has_joined()
    }

    fn stop(&self) {
        self.shared.stop();
    }

    async fn close(&self, deadline: Duration) {
        self.shared.end(Ending::Close);
        if timeout(deadline, self.shared.ended()).await.is_err() {
            self.shared.over(None);
        }
    }
}

/// Partitions that are still held while their messages are finished.
#[derive(Debug)]
struct Drain {
    partitions: Vec<i32>,
    answer: oneshot::Receiver<()>,
    /// The worker said that it has finished.
    is_answered: bool,
    since: Instant,
}

#[derive(Debug)]
struct Turns {
    shared: Arc<Shared>,
    group: Arc<Group>,
    world: Arc<World>,
    process: usize,
    member: Option<u64>,
    /// Where each partition is fetched next, and since how many settlements it is held.
    next: BTreeMap<i32, i64>,
    since: BTreeMap<i32, u64>,
    over: Over,
    drain: Option<Drain>,
    /// What the group has not heard of yet.
    let_go: Vec<i32>,
    commit_at: Instant,
    flushes: Vec<oneshot::Sender<()>>,
    slip: Option<Slip>,
}

impl Turns {
    fn new(source: &GroupSource) -> Self {
        Self {
            shared: Arc::clone(&source.shared),
            group: Arc::clone(&source.group),
            world: Arc::clone(&source.world),
            process: source.process,
            member: None,
            next: BTreeMap::new(),
            since: BTreeMap::new(),
            over: Arc::clone(&source.over),
            drain: None,
            let_go: Vec::new(),
            commit_at: Instant::now(),
            flushes: Vec::new(),
            slip: source.world.slip,
        }
    }

    async fn run(mut self) {
        let group = Arc::clone(&self.group);
        while self.shared.ending().is_none() {
            let changed = group.changed.notified();
            self.contact();
            self.fetch();
            self.rebalance().await;
            self.commit_if_due();
            let attends = self.drain.is_some() || !self.flushes.is_empty();
            tokio::select! {
                biased;
                () = changed, if !attends => {}
                () = sleep(if attends { ATTENTION } else { PATIENCE }) => {}
            }
        }
        if self.shared.ending() == Some(Ending::Close) {
            let held = self.next.keys().copied().collect::<Vec<_>>();
            self.commit_and_wait(&held).await;
        }
        if let Some(member) = self.member {
            self.group.leave(self.process, member);
        }
        self.shared.over(None);
    }

    /// Tells the group that this member lives, or learns that it went on without it.
    fn contact(&mut self) {
        let heard = match self.member {
            Some(member) => self.group.hear(self.process, member),
            None => Err(Refused::Unknown),
        };
        match heard {
            Err(Refused::Unreachable) => return,
            Err(Refused::Unknown) => {
                if self.member.take().is_some() {
                    self.lose();
                }
                let Ok(member) = self.group.join(self.process) else { return };
                self.member = Some(member);
            }
            Ok(()) => {}
        }
        if let Some(member) = self.member
            && !self.let_go.is_empty()
            && self.group.let_go(self.process, member, &self.let_go).is_ok()
        {
            self.let_go.clear();
        }
    }

    fn lose(&mut self) {
        let held: Vec<i32> = self.next.keys().copied().collect();
        self.note(&format!("finds itself out of the group, with partitions {held:?}"));
        if !held.is_empty() {
            self.world.cut_off.fetch_add(1, Ordering::Relaxed);
        }
        self.let_go.clear();
        self.drain = None;
        self.end(&held);
    }

    /// Assignments are over.
    fn end(&mut self, partitions: &[i32]) {
        let ended = self.shared.progress().into_iter().filter(|of| partitions.contains(&of.partition));
        self.over.lock().unwrap_or_else(PoisonError::into_inner).extend(ended.map(|of| of.assignment));
        self.next.retain(|partition, _| !partitions.contains(partition));
        if self.slip != Some(Slip::KeepsWhatItGaveBack) {
            self.shared.forget(partitions);
        }
    }

    fn fetch(&mut self) {
        for (partition, next) in &mut self.next {
            let Ok((messages, is_end)) = self.group.fetch(self.process, *partition, *next, BURST) else { continue };
            let records = messages.into_iter().map(|message| {
                *next += 1;
                (*partition, *next - 1, message)
            });
            let records: Vec<_> = records.collect();
            self.shared.deliver(records);
            if is_end {
                self.shared.reached_end(*partition);
            }
        }
    }

    async fn rebalance(&mut self) {
        if let Some(mut drain) = self.drain.take() {
            if self.is_awaited(&mut drain) {
                self.drain = Some(drain);
                return;
            }
            // Where the worker said in time that it has finished, everything must be in good order.
            let in_time = drain.since.elapsed() < self.group.settings.drain.min(self.world.scenario.drain / 2);
            if in_time && drain.is_answered {
                self.world.check_finished(self.process, &drain.partitions);
            }
            let has_all =
                self.slip == Some(Slip::GivesBackUncommitted) || self.commit_and_wait(&drain.partitions).await;
            // One that the group went on without cannot commit; it has nothing more to commit where its worker has closed, too.
            let is_in = self.member.is_some_and(|member| self.group.has(member));
            if in_time && has_all && is_in && drain.is_answered {
                self.check_committed(&drain.partitions);
            }
            self.give_back(drain.partitions);
        }
        let Some(member) = self.member else { return };
        match self.group.step(self.process, member) {
            Some(Step::Assign(partitions)) => self.begin(member, &partitions),
            Some(Step::Revoke(partitions)) => {
                self.note(&format!("is to give partitions {partitions:?} back"));
                let answer = self.shared.drain(&partitions);
                self.drain = Some(Drain { partitions, answer, is_answered: false, since: Instant::now() });
            }
            None => {}
        }
    }

    fn begin(&mut self, member: u64, partitions: &[i32]) {
        let Ok(committed) = self.group.committed(self.process, partitions) else {
            // It is cut off just now, and gives them back to have them again.
            self.let_go.extend(partitions);
            return;
        };
        self.note(&format!("as member {member} has partitions {partitions:?} from {committed:?} on"));
        let start = |(partition, committed): (&i32, Option<i64>)| Start {
            partition: *partition,
            offset: committed.unwrap_or_default(),
            committed: committed.is_some(),
        };
        let starts: Vec<Start> = partitions.iter().zip(committed).map(start).collect();
        self.shared.assign(&starts);
        let settlements = self.world.known().settlements;
        self.since.extend(partitions.iter().map(|partition| (*partition, settlements)));
        self.next.extend(starts.iter().map(|start| (start.partition, start.offset)));
        self.commit_at = Instant::now();
    }

    /// Whether the end of an assignment still waits for the worker.
    fn is_awaited(&self, drain: &mut Drain) -> bool {
        let answer = drain.answer.try_recv();
        drain.is_answered = answer.is_ok();
        drain.since.elapsed() < self.group.settings.drain
            && answer == Err(TryRecvError::Empty)
            && !self.shared.is_drained(&drain.partitions)
    }

    /// The group's positions are not behind messages that were settled under this assignment.
    fn check_committed(&self, partitions: &[i32]) {
        let Ok(committed) = self.group.committed(self.process, partitions) else { return };
        for (partition, position) in partitions.iter().zip(committed) {
            let Some(since) = self.since.get(partition) else { continue };
            self.world.check_committed(self.process, *partition, position.unwrap_or_default(), *since);
        }
    }

    fn give_back(&mut self, partitions: Vec<i32>) {
        self.note(&format!("gives partitions {partitions:?} back"));
        self.end(&partitions);
        self.let_go.extend(partitions);
        self.contact();
    }

    fn commit_if_due(&mut self) {
        self.flushes.extend(self.shared.take_flushes());
        self.flushes.retain(|flush| !flush.is_closed());
        if self.drain.is_some() {
            return self.flushes.clear();
        }
        if Instant::now() < self.commit_at && self.flushes.is_empty() {
            return;
        }
        let rest = match self.commit(&|_| true) {
            Ok(has_all) => {
                if has_all {
                    for flush in self.flushes.drain(..) {
                        // The caller may have given up.
                        let _ = flush.send(());
                    }
                }
                self.group.settings.commit_every
            }
            Err(_) => {
                self.flushes.clear();
                self.group.settings.commit_every.max(REST)
            }
        };
        self.commit_at = Instant::now() + rest;
    }

    /// Sends positions until the group has them, but not for ever. Answers whether it has them.
    async fn commit_and_wait(&mut self, among: &[i32]) -> bool {
        let until = Instant::now() + LAST_COMMIT;
        loop {
            if self.commit(&|partition| among.contains(&partition)) == Ok(true) {
                return true;
            }
            if Instant::now() >= until {
                return false;
            }
            sleep(ATTENTION).await;
            if let Some(member) = self.member {
                // Where it is out of the group, the next turn sees to it.
                let _ = self.group.hear(self.process, member);
            }
        }
    }

    /// Reads which positions the group has, and sends those that it does not have. True when it has them all.
    fn commit(&mut self, among: &impl Fn(i32) -> bool) -> Result<bool, Refused> {
        let mut changed: BTreeMap<i32, i64> =
            self.shared.changed(among).into_iter().map(|position| (position.partition, position.offset)).collect();
        if self.slip == Some(Slip::PositionsPassUnfinished) {
            let next = self.shared.progress().into_iter().filter(|of| among(of.partition));
            changed.extend(next.map(|of| (of.partition, of.next)));
        }
        let Some(member) = self.member else {
            return if changed.is_empty() { Ok(true) } else { Err(Refused::Unknown) };
        };
        let partitions: Vec<i32> = changed.keys().copied().collect();
        let theirs = self.group.committed(self.process, &partitions)?;
        for (partition, theirs) in partitions.into_iter().zip(theirs) {
            self.shared.committed(partition, theirs);
            if changed.get(&partition).copied() == theirs {
                changed.remove(&partition);
            }
        }
        for (partition, position) in &changed {
            // Its answer is not looked at: the next look shows whether the group has it.
            if !self.group.strikes(|faults| faults.settles_lost)
                && let Ok((passed, holds_it)) = self.group.commit(self.process, member, *partition, *position)
            {
                self.world.check_passed(self.process, *partition, passed, holds_it);
            }
        }
        Ok(changed.is_empty())
    }

    fn note(&self, text: &str) {
        self.world.journal.note(&Happened::Noted(format!("process {} {text}", self.process)));
    }
}
