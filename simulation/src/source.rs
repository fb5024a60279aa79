//! A process's connection to the broker: each settlement is checked at that moment, because a later commit hides an early
//! acknowledgement; and settling takes time, in which anything may happen.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use idem_core::{
    OnConflict, Source, SourceError,
    source::{Attached, Delivery, Received, Settle, Settled, SourceCapabilities},
};
use idem_testkit::memory::{MemoryHandle, MemorySource, Rate};

use crate::{
    journal::{Happened, Rule},
    world::World,
};

/// The source of one process.
#[derive(Debug)]
pub(crate) struct CheckedSource {
    inner: MemorySource,
    world: Arc<World>,
    process: usize,
    generation: usize,
}

/// A delivery, with its message's number.
#[derive(Debug)]
pub(crate) struct CheckedHandle {
    inner: MemoryHandle,
    message: usize,
}

impl CheckedSource {
    pub(crate) fn new(world: Arc<World>, process: usize) -> Self {
        let generation = world.generation.load(Ordering::SeqCst);
        Self { inner: world.queue().source(), generation, world, process }
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
                let (key, known) = (about.scoped_key(), world.effects());
                let runs = world.known();
                let mut effects = known.iter().filter(|(effect, _)| Some(effect) == key.as_ref());
                let same = |run: usize| {
                    runs.runs.get(run).is_some_and(|run| world.scenario.contents[run.content].payload == about.payload)
                };
                let acknowledges_conflicts = world.scenario.on_conflict == OnConflict::Acknowledge;
                let is_safe = effects.any(|(_, run)| acknowledges_conflicts || same(*run));
                drop(runs);
                if !is_safe && !world.is_undone(publication.content) {
                    let text = format!("m{message} ({about:?}) is acknowledged, and no effect of it is committed");
                    world.journal.breach(Rule::SettledTooEarly, text);
                }
                "acknowledged"
            }
            Settle::DeadLetter(_) => {
                let same = |kept: &idem_core::Message| {
                    kept.payload() == publication.message.payload() && kept.headers() == publication.message.headers()
                };
                let rows = world.store.kept_dead_letters();
                let is_whole = rows.iter().any(|row| row.message.as_ref().is_some_and(same));
                if !is_whole && !world.is_undone(publication.content) {
                    let text = format!("m{message} ({about:?}) is settled as a dead letter, and no row has it whole");
                    world.journal.breach(Rule::SettledTooEarly, text);
                }
                "a dead letter"
            }
        }
    }
}

impl Source for CheckedSource {
    type Handle = CheckedHandle;

    fn capabilities(&self) -> SourceCapabilities {
        self.inner.capabilities()
    }

    async fn attach(&self) -> Result<Attached, SourceError> {
        self.take_time().await;
        self.inner.attach().await
    }

    async fn receive(&self, max: usize) -> Result<Received<CheckedHandle>, SourceError> {
        // No wait after it: a receive that is dropped must not lose what it has taken.
        Ok(match self.inner.receive(max).await? {
            Received::Deliveries(deliveries) => {
                let checked = deliveries.into_iter().map(|delivery| {
                    let message = self.world.message(self.generation, delivery.message.origin().as_str());
                    self.world.delivered(self.process, message, delivery.attempt);
                    let Delivery { message: of, attempt, redelivered, suspect, assignment, handle } = delivery;
                    let attempt = self.counted(attempt);
                    let handle = CheckedHandle { inner: handle, message };
                    Delivery { message: of, attempt, redelivered, suspect, assignment, handle }
                });
                Received::Deliveries(checked.collect())
            }
            Received::Revoked(revocation) => Received::Revoked(revocation),
            Received::End | _ => Received::End,
        })
    }

    async fn settle(&self, settlements: Vec<(CheckedHandle, Settle)>) -> Vec<Settled> {
        let (mut told, mut sent) = (Vec::new(), Vec::new());
        for (handle, settle) in settlements {
            told.push((handle.message, self.check(handle.message, &settle)));
            sent.push((handle.inner, settle));
        }
        self.take_time().await;
        let answers = self.inner.settle(sent).await;
        for ((message, how), answer) in told.into_iter().zip(&answers) {
            let answer = match answer {
                Settled::Settled => "settled",
                Settled::Stale => "stale",
                Settled::Unknown => "nothing",
            };
            self.world.journal.note(&Happened::Settled { process: self.process, message, how, answer });
        }
        self.take_time().await;
        answers
    }

    async fn flush(&self) -> Result<(), SourceError> {
        self.inner.flush().await
    }

    fn holds_back(&self, handle: &CheckedHandle) -> bool {
        self.inner.holds_back(&handle.inner)
    }

    async fn is_idle(&self) -> bool {
        self.inner.is_idle().await
    }

    fn pause(&self) {
        self.inner.pause();
    }

    fn resume(&self) {
        self.inner.resume();
    }

    fn stop(&self) {
        self.inner.stop();
    }

    async fn close(&self, deadline: Duration) {
        self.inner.close(deadline).await;
    }
}
