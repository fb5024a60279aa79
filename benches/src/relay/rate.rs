//! How fast a backlog goes to Kafka.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

use super::{
    Failed, Running, by_hand,
    filling::{Filling, Keys},
    outbox, publisher, tokio_outbox, until,
    watched::{Timed, Watched},
};
use crate::{
    kafka::Topic,
    report::{Line, Table},
};

const DESTINATION: &str = "bench";

/// The lines that the docs and a target are about.
const BY_HAND_BEST: &str = "by hand: poll 1000, publish, wait for all, update";
pub(crate) const RELAY: &str = "the relay";

#[derive(Clone, Copy)]
enum Way {
    ByHand { a_poll: i64, one_by_one: bool },
    Relay { keys: Keys, is_tokio: bool },
}

const LINES: [(&str, Way); 5] = [
    ("by hand: poll 100, publish one by one, update", Way::ByHand { a_poll: 100, one_by_one: true }),
    (BY_HAND_BEST, Way::ByHand { a_poll: 1000, one_by_one: false }),
    (RELAY, Way::Relay { keys: Keys::None, is_tokio: false }),
    ("the relay, ordering keys of 10,000 customers", Way::Relay { keys: Keys::Customers, is_tokio: false }),
    ("the relay on tokio-postgres", Way::Relay { keys: Keys::None, is_tokio: true }),
];

/// Each line in turn, round by round. The slowest has a tenth of the events.
pub(crate) async fn all(url: &str, brokers: &str, rounds: usize, events: usize) -> Result<Vec<Table>, Failed> {
    let mut lines = LINES.map(|(name, _)| Line::new(name));
    for _ in 0..rounds {
        for ((_, way), line) in LINES.into_iter().zip(&mut lines) {
            let topic = Topic::empty(brokers).await?;
            // By hand the statements stand in the same database, next to the same tables.
            let mut filling = Filling::new(url, &[DESTINATION]).await?;
            let (events, took) = match way {
                Way::ByHand { a_poll, one_by_one } => {
                    let events = if one_by_one { events / 20 } else { events };
                    (events, by_hand::publish(url, &topic, events, a_poll, one_by_one).await?)
                }
                Way::Relay { keys, is_tokio } => {
                    filling.backlog(DESTINATION, events, keys).await?;
                    let outbox = if is_tokio { tokio_outbox(url)? } else { outbox(url)? };
                    (events, relay(Timed::new(outbox), &topic, events).await?)
                }
            };
            line.note(events, took);
            topic.holds(events).await?;
            topic.remove().await?;
        }
    }
    crate::postgres::remove(Filling::new(url, &[DESTINATION]).await?.connection()).await?;
    let title =
        format!("PostgreSQL to Kafka, a backlog of {events} events of 200-byte JSON, {rounds} rounds interleaved");
    Ok(vec![Table::print("relay", title, "events a second", lines.into())])
}

/// Timed from the first confirmation, so that connecting to the broker is left out.
async fn relay(timed: Arc<Timed>, topic: &Topic, events: usize) -> Result<Duration, Failed> {
    let confirmed = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&confirmed);
    let watched = Watched {
        publisher: publisher(topic)?,
        confirmed: move |_: &_| {
            counted.fetch_add(1, Ordering::Relaxed);
        },
    };
    let running = Running::start(Arc::clone(&timed) as _, vec![(DESTINATION, Box::new(watched))])?;
    until(&running.task, || confirmed.load(Ordering::Relaxed) > 0).await?;
    let (started, first) = (Instant::now(), confirmed.load(Ordering::Relaxed));
    running.published(events).await?;
    let took = started.elapsed();
    if std::env::var_os("IDEM_BENCH_STEPS").is_some() {
        println!("  take: {}; settle: {}; took {took:?}", timed.next.told(), timed.settle.told());
    }
    running.stop().await?;
    Ok(took.mul_f64(events as f64 / (events - first).max(1) as f64))
}
