//! A process's connection to the broker: each settlement is checked at that moment, because a later commit hides an early
//! acknowledgement; and settling takes time, in which anything may happen.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use idem_core::{
    Source, SourceError,
    source::{Assignment, Attached, Delivery, Received, Settle, Settled, SourceCapabilities},
};
use idem_testkit::memory::{MemoryHandle, MemorySource, Rate};

use crate::{
    journal::{Happened, Rule},
    member::GroupSource,
    state::KafkaHandle,
    teeth::Slip,
    world::World,
};

/// The source of one process.
#[derive(Debug)]
pub(crate) struct CheckedSource {
    inner: Inner,
    world: Arc<World>,
    process: usize,
    generation: usize,
}

/// What it is connected to.
#[derive(Debug)]
enum Inner {
    Queue(MemorySource),
    Group(GroupSource),
}

#[derive(Debug)]
enum InnerHandle {
    Queue(MemoryHandle),
    Group(KafkaHandle),
}

/// A delivery, with its message's number.
#[derive(Debug)]
pub(crate) struct CheckedHandle {
    inner: InnerHandle,
    message: usize,
    assignment: Assignment,
}

/// Asks the queue or the group.
macro_rules! ask {
    ($of:expr, $source:ident => $answer:expr) => {
        match $of {
            Inner::Queue($source) => $answer,
            Inner::Group($source) => $answer,
        }
    };
}

impl CheckedSource {
    pub(crate) fn new(world: &Arc<World>, process: usize) -> Self {
        let generation = world.generation.load(Ordering::SeqCst);
        let inner = match &world.group {
            None => Inner::Queue(world.queue().source()),
            Some(group) => Inner::Group(GroupSource::new(Arc::clone(world), Arc::clone(group), process)),
        };
        Self { inner, generation, world: Arc::clone(world), process }
    }

    fn checked<H>(&self, received: Received<H>, wrap: impl Fn(H) -> InnerHandle) -> Received<CheckedHandle> {
        match received {
            Received::Deliveries(deliveries) => {
                let checked = deliveries.into_iter().map(|delivery| {
                    let message = self.world.message(self.generation, delivery.message.origin().as_str());
                    self.world.delivered(self.process, message, delivery.attempt);
                    let Delivery { message: of, attempt, redelivered, suspect, assignment, handle } = delivery;
                    let attempt = self.counted(attempt);
                    let handle = CheckedHandle { inner: wrap(handle), message, assignment };
                    Delivery { message: of, attempt, redelivered, suspect, assignment, handle }
                });
                Received::Deliveries(checked.collect())
            }
            Received::Revoked(revocation) => Received::Revoked(revocation),
            Received::End | _ => Received::End,
        }
    }

    async fn take_time(&self) {
        tokio::task::yield_now().await;
        let max = self.world.scenario.settle_latency;
        if max > 0 {
            tokio::time::sleep(Duration::from_millis(fastrand::u64(0..=max))).await;
        }
    }

    /// The number of this delivery, as the broker reports it.
    fn counted(&self, attempt: u32) -> u32 {
        match self.world.scenario.wrong_counts {
            Rate::OneIn(n) if fastrand::u32(0..n.max(1)) == 0 => fastrand::u32(1..=50),
            Rate::Never | Rate::Always | Rate::OneIn(_) => attempt,
        }
    }

    /// Whether what is settled is safe already.
    fn check(&self, message: usize, settle: &Settle) -> &'static str {
        let world = &self.world;
        let publication = world.known().publications.get(message).cloned();
        let Some(publication) = publication else { return "unknown" };
        let about = &world.scenario.contents[publication.content];
        match settle {
            Settle::Release { .. } => "released",
            Settle::Acknowledge(_) => {
                if !world.is_handled(&publication) && !world.is_undone(publication.content) {
                    let text = format!("m{message} ({about:?}) is acknowledged, and no effect of it is committed");
                    world.journal.breach(Rule::SettledTooEarly, text);
                }
                "acknowledged"
            }
            Settle::DeadLetter(_) => {
                if !world.is_set_aside(&publication) && !world.is_undone(publication.content) {
                    let text = format!("m{message} ({about:?}) is settled as a dead letter, and no row has it whole");
                    world.journal.breach(Rule::SettledTooEarly, text);
                }
                "a dead letter"
            }
        }
    }

    /// A settlement was taken.
    fn check_settled(&self, message: usize, how: &str, is_over: bool) {
        let world = &self.world;
        if is_over {
            let text = format!("m{message} is settled under an assignment of process {} that is over", self.process);
            world.journal.breach(Rule::OtherHolder, text);
        }
        if how != "released" {
            let mut known = world.known();
            let number = known.settlements;
            known.settlements += 1;
            known.settled.insert(message, (self.process, number));
        }
    }
}

impl Source for CheckedSource {
    type Handle = CheckedHandle;

    fn capabilities(&self) -> SourceCapabilities {
        ask!(&self.inner, source => source.capabilities())
    }

    async fn attach(&self) -> Result<Attached, SourceError> {
        self.take_time().await;
        if self.world.slip == Some(Slip::TaskPanics) {
            #[allow(clippy::panic, reason = "it is planted")]
            drop(tokio::spawn(async { panic!("planted") }));
        }
        let mut attached = ask!(&self.inner, source => source.attach().await)?;
        let rebound = self.world.rebound.load(Ordering::SeqCst);
        if rebound > 0 {
            attached.bound_to = format!("{}, moved {rebound} times", attached.bound_to);
        }
        Ok(attached)
    }

    async fn receive(&self, max: usize) -> Result<Received<CheckedHandle>, SourceError> {
        // No wait after it: a receive that is dropped must not lose what it has taken.
        Ok(match &self.inner {
            Inner::Queue(source) => self.checked(source.receive(max).await?, InnerHandle::Queue),
            Inner::Group(source) => self.checked(source.receive(max).await?, InnerHandle::Group),
        })
    }

    async fn settle(&self, settlements: Vec<(CheckedHandle, Settle)>) -> Vec<Settled> {
        let (mut told, mut to_queue, mut to_group) = (Vec::new(), Vec::new(), Vec::new());
        for (handle, settle) in settlements {
            told.push((handle.message, self.check(handle.message, &settle), handle.assignment));
            match handle.inner {
                InnerHandle::Queue(handle) => to_queue.push((handle, settle)),
                InnerHandle::Group(handle) => to_group.push((handle, settle)),
            }
        }
        self.take_time().await;
        let answers = match &self.inner {
            Inner::Queue(source) => source.settle(to_queue).await,
            // It does not wait, so nothing ends while it is asked.
            Inner::Group(source) => source.settle(to_group).await,
        };
        for ((message, how, assignment), answer) in told.into_iter().zip(&answers) {
            let answer = match answer {
                Settled::Settled => {
                    if let Inner::Group(group) = &self.inner {
                        self.check_settled(message, how, group.is_over(assignment));
                    }
                    "settled"
                }
                Settled::Stale => "stale",
                Settled::Unknown => "nothing",
            };
            self.world.journal.note(&Happened::Settled { process: self.process, message, how, answer });
        }
        self.take_time().await;
        answers
    }

    async fn flush(&self) -> Result<(), SourceError> {
        ask!(&self.inner, source => source.flush().await)
    }

    fn holds_back(&self, handle: &CheckedHandle) -> bool {
        match (&self.inner, &handle.inner) {
            (Inner::Queue(source), InnerHandle::Queue(handle)) => source.holds_back(handle),
            (Inner::Group(source), InnerHandle::Group(handle)) => source.holds_back(handle),
            (Inner::Queue(_), InnerHandle::Group(_)) | (Inner::Group(_), InnerHandle::Queue(_)) => false,
        }
    }

    fn is_held_back(&self, handle: &CheckedHandle) -> bool {
        match (&self.inner, &handle.inner) {
            (Inner::Queue(source), InnerHandle::Queue(handle)) => source.is_held_back(handle),
            (Inner::Group(source), InnerHandle::Group(handle)) => source.is_held_back(handle),
            (Inner::Queue(_), InnerHandle::Group(_)) | (Inner::Group(_), InnerHandle::Queue(_)) => false,
        }
    }

    async fn is_idle(&self) -> bool {
        ask!(&self.inner, source => source.is_idle().await)
    }

    fn takes_part(&self) -> bool {
        ask!(&self.inner, source => source.takes_part())
    }

    fn pause(&self) {
        ask!(&self.inner, source => source.pause());
    }

    fn resume(&self) {
        ask!(&self.inner, source => source.resume());
    }

    fn stop(&self) {
        ask!(&self.inner, source => source.stop());
    }

    async fn close(&self, deadline: Duration) {
        ask!(&self.inner, source => source.close(deadline).await);
    }
}
