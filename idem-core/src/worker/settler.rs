//! Hands settlements to the source, as many at a time as there are.

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use super::{flight::Permit, stats::Stats};
use tracing::Instrument as _;

use crate::{
    consumer::Inner,
    failpoint,
    outcome::Settle,
    source::{Settled, Source},
    store::Store,
    telemetry,
};

/// The most settlements that are handed over at once.
const AT_ONCE: usize = 1_000;

#[derive(Debug)]
pub(crate) enum Settlement<H> {
    Of(H, Settle, Option<Permit>),
    /// Answered once everything before it was handed over.
    Flush(oneshot::Sender<()>),
}

/// Runs until nobody can settle any more, so it must not hold what the others share.
pub(crate) async fn run<S: Store, B: Source>(
    consumer: Arc<Inner<S>>,
    source: Arc<B>,
    stats: Arc<Stats>,
    mut settlements: mpsc::UnboundedReceiver<Settlement<B::Handle>>,
) {
    let mut received = Vec::new();
    while settlements.recv_many(&mut received, AT_ONCE).await > 0 {
        let (mut batch, mut permits, mut flushes) = (Vec::new(), Vec::new(), Vec::new());
        for settlement in received.drain(..) {
            match settlement {
                Settlement::Of(handle, settle, permit) => {
                    batch.push((handle, settle));
                    permits.push(permit);
                }
                Settlement::Flush(done) => flushes.push(done),
            }
        }
        if !batch.is_empty() {
            // Injected errors stand for a settlement that got lost; the message comes back.
            let lost = failpoint!(ACK_SENT).is_err();
            let span = telemetry::settle(&consumer.name, consumer.source.get(), batch.len());
            let answers = if lost { Vec::new() } else { source.settle(batch).instrument(span).await };
            let _ = failpoint!(ACK_OK);
            let stale = answers.iter().filter(|answer| **answer == Settled::Stale).count();
            stats.stale_settlements.add(stale as u64);
        }
        drop(permits);
        for done in flushes {
            // Whoever asked may have given up.
            let _ = done.send(());
        }
    }
}
