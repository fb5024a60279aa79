//! Through a worker, until every message of a broker is settled.

use std::{error::Error, time::Duration};

use idem_core::{CancellationToken, Effects, Source, Store, Worker, consumer::DedupConsumerBuilder};
use tokio::time::Instant;

use crate::alone::resident_mib;

/// Timed from the first message that is settled, so that joining a group or subscribing, which a loop by hand must too, is
/// left out. Also answers the process's resident memory in MiB at each tenth.
pub(crate) async fn drain<S: Store, B: Source>(
    source: B,
    consumer: DedupConsumerBuilder<S>,
    batch: usize,
    cache: Option<Duration>,
    messages: usize,
) -> Result<(Duration, Vec<usize>), Box<dyn Error>> {
    let consumer = consumer.effects(Effects::InTransaction).build()?;
    let mut worker = Worker::builder(consumer, source).batch(batch).cleanup(None);
    if let Some(cache) = cache {
        worker = worker.cache_for(cache);
    }
    let worker = worker.build()?;
    let (view, stop) = (worker.view(), CancellationToken::new());
    let running = tokio::spawn(worker.run(stop.clone().cancelled_owned()));
    let (mut started, mut resident, all) = (None, Vec::new(), u64::try_from(messages)?);
    loop {
        let summary = view.summary();
        let settled = summary.processed + summary.duplicates;
        if settled > 0 {
            started.get_or_insert_with(Instant::now);
        }
        if settled * 10 >= all * (resident.len() as u64 + 1) {
            resident.push(resident_mib()?);
        }
        if settled >= all {
            break;
        }
        if running.is_finished() {
            return Err(format!("the worker ended: {:?}", running.await?).into());
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let took = started.map(|started| started.elapsed()).unwrap_or_default();
    stop.cancel();
    running.await??;
    Ok((took, resident))
}
