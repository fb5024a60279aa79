//! How long an event takes from its commit to its confirmation, at half of what the relay must carry.

use std::{sync::Arc, time::Duration};

use tokio::time::sleep;

use super::{
    Failed, Running,
    filling::{Filling, number_in},
    outbox, percentile, publisher,
    watched::{Stopwatch, Timed, Watched},
};
use crate::{
    kafka::Topic,
    report::{Line, Table},
};

const DESTINATION: &str = "bench";

/// Half of 20,000.
const RATES: [usize; 3] = [100, 1_000, 10_000];
pub(crate) const P99: &str = "10000 events a second: p99";

/// How long the relay runs before it counts.
const WARM_UP: Duration = Duration::from_secs(2);

/// The percentiles at each rate.
pub(crate) async fn all(url: &str, brokers: &str, rounds: usize, time: Duration) -> Result<Table, Failed> {
    let name = |rate: usize, percent| format!("{rate} events a second: p{percent}");
    let mut lines = RATES.map(|rate| [50, 99].map(|percent| Line::new(name(rate, percent))));
    for _ in 0..rounds {
        for (rate, [p50, p99]) in RATES.into_iter().zip(&mut lines) {
            let mut took = round(url, brokers, rate, time).await?;
            p50.rounds.push(percentile(&mut took, 50));
            p99.rounds.push(percentile(&mut took, 99));
        }
    }
    crate::postgres::remove(Filling::new(url, &[DESTINATION]).await?.connection()).await?;
    let title = format!("From commit to confirmation by Kafka, a relay by itself, {rounds} rounds of {time:?}");
    Ok(Table::print("relay-half-load", title, "ms", lines.into_iter().flatten().collect()))
}

async fn round(url: &str, brokers: &str, rate: usize, time: Duration) -> Result<Vec<Duration>, Failed> {
    let topic = Topic::empty(brokers).await?;
    let filling = Filling::new(url, &[DESTINATION]).await?;
    let stopwatch = Arc::new(Stopwatch::default());
    let (committed, confirmed) = (Arc::clone(&stopwatch), Arc::clone(&stopwatch));
    let watched = Watched {
        publisher: publisher(&topic)?,
        confirmed: move |event: &idem_core::outbox::OutgoingEvent| {
            if let Some(number) = number_in(&event.payload) {
                confirmed.confirmed(number);
            }
        },
    };
    let timed = Timed::new(outbox(url)?);
    let running = Running::start(Arc::clone(&timed) as _, vec![(DESTINATION, Box::new(watched))])?;
    let producer = filling.at_rate(DESTINATION.to_owned(), rate, move |first, events| committed.begins(first, events));
    let measured = async {
        sleep(WARM_UP).await;
        stopwatch.taken();
        sleep(time).await;
        stopwatch.taken()
    };
    let took = tokio::select! {
        ended = producer => return Err(format!("the producer ended: {ended:?}").into()),
        took = measured => took,
    };
    running.stop().await?;
    topic.remove().await?;
    let there = took.len() as f64 / time.as_secs_f64();
    if there < rate as f64 * 0.9 {
        // What is not confirmed has no time, and would be missing among the slowest.
        return Err(format!("at {rate} events a second only {there:.0} were confirmed: the relay fell behind").into());
    }
    if std::env::var_os("IDEM_BENCH_STEPS").is_some() {
        println!("  {rate}: take: {}; settle: {}", timed.next.told(), timed.settle.told());
    }
    Ok(took)
}
