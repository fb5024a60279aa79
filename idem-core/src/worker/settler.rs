//! Hands settlements to the source, as many at a time as there are.

use std::sync::Arc;

use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};

use tracing::Instrument as _;

use crate::{
    failpoint,
    outcome::Settle,
    source::{Settled, Source},
    store::Store,
    telemetry::spans,
    unit::engine::Engine,
    worker::{
        in_flight::Permit,
        unsettled::{Place, Unsettled},
        view::stats::Stats,
    },
};

/// The most settlements that are sent to the source in one call.
const AT_ONCE: usize = 1_000;

/// Answers that go to the broker together, and the shares in flight that end with them.
#[derive(Debug)]
pub(crate) struct Answers<H> {
    of: Vec<(H, Settle)>,
    permits: Vec<Permit>,
    /// Which of them are dead letters, by their place among the answers.
    set_aside: Vec<(usize, Place)>,
}

impl<H> Default for Answers<H> {
    fn default() -> Self {
        Self { of: Vec::new(), permits: Vec::new(), set_aside: Vec::new() }
    }
}

impl<H> Answers<H> {
    pub(crate) fn push(&mut self, handle: H, settle: Settle, permit: Option<Permit>) {
        self.of.push((handle, settle));
        self.permits.extend(permit);
    }

    /// The next answer is that of this dead letter.
    pub(crate) fn next_is(&mut self, place: Option<Place>) {
        let next = self.of.len();
        self.set_aside.extend(place.map(|place| (next, place)));
    }

    fn append(&mut self, more: Self) {
        let before = self.of.len();
        self.set_aside.extend(more.set_aside.into_iter().map(|(index, place)| (before + index, place)));
        self.of.extend(more.of);
        self.permits.extend(more.permits);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.of.is_empty()
    }
}

#[derive(Debug)]
pub(crate) enum Settlement<H> {
    Of(Answers<H>),
    /// Answered once everything before it was handed over.
    Flush(oneshot::Sender<()>),
}

/// Runs until its last sender is dropped, so it must not hold the state that the others share.
pub(crate) async fn run<S: Store, B: Source>(
    consumer: Arc<Engine<S>>,
    source: Arc<B>,
    stats: Arc<Stats>,
    unsettled: Arc<Unsettled>,
    mut settlements: mpsc::UnboundedReceiver<Settlement<B::Handle>>,
) {
    while let Some(first) = settlements.recv().await {
        let (mut answers, mut flushes) = (Answers::default(), Vec::new());
        let mut next = Some(first);
        while let Some(settlement) = next {
            match settlement {
                Settlement::Of(more) if answers.is_empty() => answers = more,
                Settlement::Of(more) => answers.append(more),
                Settlement::Flush(done) => flushes.push(done),
            }
            next = if answers.of.len() < AT_ONCE { settlements.try_recv().ok() } else { None };
        }
        let Answers { of: batch, permits, set_aside } = answers;
        if !batch.is_empty() {
            // Injected errors stand for a settlement that got lost; the message comes back.
            let lost = failpoint!(ACK_SENT).is_err();
            let span = spans::settle(&consumer.name, consumer.source.get(), batch.len());
            let begun = Instant::now();
            let answers = if lost { Vec::new() } else { source.settle(batch).instrument(span).await };
            if let Some(metrics) = consumer.consumed.get() {
                metrics.settled.record(begun.elapsed());
            }
            let _ = failpoint!(ACK_OK);
            let stale = answers.iter().filter(|answer| **answer == Settled::Stale).count();
            stats.stale_settlements.add(stale as u64);
            for (index, place) in set_aside {
                if answers.get(index) == Some(&Settled::Settled) {
                    unsettled.settled(&place);
                }
            }
        }
        Permit::end(permits);
        for done in flushes {
            // The caller may have given up.
            let _ = done.send(());
        }
    }
}
