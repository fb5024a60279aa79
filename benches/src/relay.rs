//! The relay alone, from PostgreSQL to Kafka: its rate beside a loop written by hand, the time of an event at half load,
//! the time until another relay goes on, the effect of one destination's backlog on another, and the size of the table
//! while an old snapshot is open.

mod backlog;
mod by_hand;
mod filling;
mod half_load;
mod rate;
mod snapshot;
mod takeover;
mod watched;

use std::{error::Error, sync::Arc, time::Duration};

use idem_core::{
    CancellationToken, Store as _,
    outbox::{EventPublisher, Outbox},
    relay::{Relay, RelayView},
};
use idem_kafka::{KafkaOptions, KafkaPublisher};
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep},
};

pub(crate) use self::{
    backlog::{BESIDE, DRAINED, all as backlog},
    half_load::{P99, all as half_load},
    rate::{RELAY, all as rate},
    snapshot::{ALONE, SNAPSHOT, all as snapshot},
    takeover::{LONGEST, all as takeover, relay_until_killed},
};
use crate::{
    kafka::Topic,
    postgres::{RECORDS, records},
};

type Failed = Box<dyn Error>;

/// A relay that runs until it is stopped or dropped.
struct Running {
    view: RelayView,
    stop: CancellationToken,
    task: JoinHandle<Result<(), idem_core::relay::RelayError>>,
}

impl Running {
    /// Begins with these destinations.
    fn start(outbox: Arc<dyn Outbox>, routes: Vec<(&str, Box<dyn EventPublisher>)>) -> Result<Self, Failed> {
        let mut relay = Relay::builder(outbox).named("bench");
        for (destination, publisher) in routes {
            relay = relay.route(idem_core::relay::Route::to_shared(destination, Arc::from(publisher)));
        }
        let relay = relay.build()?;
        let (view, stop) = (relay.view(), CancellationToken::new());
        let task = tokio::spawn(relay.run(stop.clone().cancelled_owned()));
        Ok(Self { view, stop, task })
    }

    async fn stop(self) -> Result<(), Failed> {
        self.stop.cancel();
        Ok(self.task.await??)
    }

    /// Waits until so many events were confirmed in all.
    async fn published(&self, events: usize) -> Result<(), Failed> {
        until(&self.task, || self.view.published() >= events as u64).await
    }
}

/// Waits until it is so, and no longer than the relay runs, or two minutes.
async fn until<T>(task: &JoinHandle<T>, is_so: impl Fn() -> bool) -> Result<(), Failed> {
    let started = Instant::now();
    while !is_so() {
        if task.is_finished() || started.elapsed() > Duration::from_secs(120) {
            return Err("the relay ended, or did not get there in two minutes".into());
        }
        sleep(Duration::from_millis(1)).await;
    }
    Ok(())
}

/// The publisher that brings events to this topic.
fn publisher(topic: &Topic) -> Result<KafkaPublisher, Failed> {
    Ok(KafkaPublisher::new(&KafkaOptions::new(&topic.brokers, &topic.name, "idem-bench"), &topic.name)?.for_events()?)
}

/// The outbox of the store on sqlx.
fn outbox(url: &str) -> Result<Arc<dyn Outbox>, Failed> {
    Ok(Arc::new(records(url, RECORDS)?).outbox().ok_or("no outbox")?)
}

/// That of the store on tokio-postgres.
fn tokio_outbox(url: &str) -> Result<Arc<dyn Outbox>, Failed> {
    let options = idem_tokio_postgres::PostgresOptions::parse(url)?.schema(RECORDS.parse()?);
    Ok(Arc::new(options.build()?).outbox().ok_or("no outbox")?)
}

/// The value below which so many hundredths of them are.
fn percentile(times: &mut [Duration], percent: usize) -> f64 {
    times.sort_unstable();
    times.get((times.len() * percent / 100).min(times.len().saturating_sub(1))).map_or(f64::NAN, Duration::as_secs_f64)
        * 1e3
}
