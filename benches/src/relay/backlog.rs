//! A backlog of one destination: how fast it drains while more arrives, and its effect on another destination.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep};

use super::{
    Failed, Running,
    filling::{Filling, Keys, number_in},
    outbox, percentile, publisher,
    watched::{Stopwatch, Watched},
};
use crate::{
    kafka::Topic,
    report::{Line, Table},
};

const BEHIND: &str = "behind";
const PROMPT: &str = "prompt";

/// Events a second for each of the two, meanwhile.
const ARRIVING: usize = 1_000;

/// The lines that targets are about.
pub(crate) const DRAINED: &str = "backlog drained, over the relay's rate less the arrivals";
pub(crate) const BESIDE: &str = "the other destination, while the first drains: p99";
const FREE: &str = "the other destination, while nothing waits: p99";

/// The result of the two destinations.
struct Round {
    /// Of the backlog, while it drained.
    drained: f64,
    /// Of the other destination, while the first drained, and afterwards.
    beside: f64,
    free: f64,
}

/// Drains a backlog while both destinations get more.
pub(crate) async fn all(url: &str, brokers: &str, rounds: usize, events: usize) -> Result<Vec<Table>, Failed> {
    let mut rates = [Line::new("the relay alone, nothing arriving"), Line::new("with arrivals for both destinations")];
    let mut shares = Line::new(DRAINED);
    let mut times = [Line::new(FREE), Line::new(BESIDE)];
    for _ in 0..rounds {
        let alone = alone(url, brokers, events).await?;
        let round = round(url, brokers, events).await?;
        rates[0].rounds.push(alone);
        rates[1].rounds.push(round.drained);
        shares.rounds.push(round.drained / (alone - 2.0 * ARRIVING as f64));
        times[0].rounds.push(round.free);
        times[1].rounds.push(round.beside);
    }
    crate::postgres::remove(Filling::new(url, &[BEHIND]).await?.connection()).await?;
    let title = format!(
        "A backlog of {events} events for one destination, {ARRIVING} a second arriving for it and for another, {rounds} rounds"
    );
    let [alone, beside] = rates;
    Ok(vec![
        Table::print("relay-backlog", title, "events of the backlog a second", vec![alone, beside]),
        Table::print("relay-backlog-share", "The same", "share", vec![shares]),
        Table::print("relay-backlog-beside", "The same, from commit to confirmation", "ms", times.into()),
    ])
}

/// The rate at which a backlog drains where nothing arrives.
async fn alone(url: &str, brokers: &str, events: usize) -> Result<f64, Failed> {
    let topic = Topic::empty(brokers).await?;
    let mut filling = Filling::new(url, &[BEHIND, PROMPT]).await?;
    filling.backlog(BEHIND, events, Keys::None).await?;
    let running = Running::start(outbox(url)?, vec![(BEHIND, Box::new(publisher(&topic)?))])?;
    running.published(1).await?;
    let (started, first) = (Instant::now(), running.view.published());
    running.published(events).await?;
    let rate = (events as u64 - first) as f64 / started.elapsed().as_secs_f64();
    running.stop().await?;
    topic.remove().await?;
    Ok(rate)
}

async fn round(url: &str, brokers: &str, events: usize) -> Result<Round, Failed> {
    let (behind, prompt) = (Topic::empty(brokers).await?, Topic::empty(brokers).await?);
    let mut filling = Filling::new(url, &[BEHIND, PROMPT]).await?;
    filling.backlog(BEHIND, events, Keys::None).await?;
    let (more, beside) = (filling.beside().await?, filling);
    let stopwatch = Arc::new(Stopwatch::default());
    let (committed, confirmed) = (Arc::clone(&stopwatch), Arc::clone(&stopwatch));
    let watched = Watched {
        publisher: publisher(&prompt)?,
        confirmed: move |event: &idem_core::outbox::OutgoingEvent| {
            if let Some(number) = number_in(&event.payload) {
                confirmed.confirmed(number);
            }
        },
    };
    let routes: Vec<(&str, Box<dyn idem_core::outbox::EventPublisher>)> =
        vec![(BEHIND, Box::new(publisher(&behind)?)), (PROMPT, Box::new(watched))];
    let running = Running::start(outbox(url)?, routes)?;
    let of_behind = || running.view.destinations().first().map_or(0, |one| one.published);
    let measured = async {
        // From when both have a confirmation: what waits for a connection to the broker does not wait for the backlog.
        super::until(&running.task, || running.view.destinations().iter().all(|one| one.published > 0)).await?;
        stopwatch.restart();
        let (started, first) = (Instant::now(), of_behind());
        super::until(&running.task, || of_behind() >= events as u64).await?;
        // The oldest first: by then the backlog is gone, and the events that have arrived meanwhile are not.
        let drained = (events as u64 - first) as f64 / started.elapsed().as_secs_f64();
        let beside = percentile(&mut stopwatch.taken(), 99);
        sleep(Duration::from_secs(2)).await;
        stopwatch.restart();
        sleep(Duration::from_secs(3)).await;
        Ok::<_, Failed>(Round { drained, beside, free: percentile(&mut stopwatch.taken(), 99) })
    };
    let round = tokio::select! {
        ended = more.at_rate(BEHIND.to_owned(), ARRIVING, |_, _| {}) => {
            return Err(format!("the producer ended: {ended:?}").into());
        }
        ended = beside.at_rate(PROMPT.to_owned(), ARRIVING, move |first, events| committed.begins(first, events)) => {
            return Err(format!("the producer ended: {ended:?}").into());
        }
        round = measured => round?,
    };
    running.stop().await?;
    behind.remove().await?;
    prompt.remove().await?;
    Ok(round)
}
