//! How soon another relay goes on when one is killed.

use std::{process::Stdio, sync::Arc, time::Duration};

use sqlx::AssertSqlSafe;
use tokio::{
    sync::Notify,
    time::{Instant, sleep, timeout},
};

use super::{Failed, Running, filling::Filling, outbox, publisher, watched::Watched};
use crate::{
    alone,
    kafka::Topic,
    postgres::RECORDS,
    report::{Line, Table},
};

const DESTINATION: &str = "bench";
const TAKEN_OVER: &str = "from the kill to the next confirmation";
/// What a promise is about.
pub(crate) const LONGEST: &str = "the longest of them";

/// Kills a relay in a process of its own, beside which another one stands by, while events keep coming.
pub(crate) async fn all(url: &str, brokers: &str, kills: usize) -> Result<Table, Failed> {
    let topic = Topic::empty(brokers).await?;
    let filling = Filling::new(url, &[DESTINATION]).await?;
    let mut looking = filling.beside().await?;
    let mut line = Line::new(TAKEN_OVER);
    let producer = filling.at_rate(DESTINATION.to_owned(), 1_000, |_, _| {});
    let measured = async {
        for kill in 0..kills {
            // At another moment of the lease each time.
            let at = Duration::from_millis(97 * kill as u64);
            line.rounds.push(kill_one(url, &topic, &mut looking, at).await?.as_secs_f64());
        }
        Ok::<_, Failed>(())
    };
    tokio::select! {
        ended = producer => return Err(format!("the producer ended: {ended:?}").into()),
        measured = measured => measured?,
    }
    topic.remove().await?;
    crate::postgres::remove(looking.connection()).await?;
    let title = format!("A relay is killed while another one stands by, 1000 events a second, {kills} kills");
    let longest = Line { name: LONGEST.to_owned(), rounds: vec![line.max()] };
    Ok(Table::print("relay-takeover", title, "seconds", vec![line, longest]))
}

async fn kill_one(url: &str, topic: &Topic, looking: &mut Filling, at: Duration) -> Result<Duration, Failed> {
    let mut process = tokio::process::Command::new(std::env::current_exe()?);
    process.args([alone::FLAG, "relay", url, &topic.brokers, &topic.name]).stdin(Stdio::null()).stdout(Stdio::null());
    let mut killed = process.kill_on_drop(true).spawn()?;
    let relayed =
        format!("SELECT relayed_by IS NOT NULL FROM {RECORDS}.outbox_destinations WHERE name = '{DESTINATION}'");
    let relayed_within = async {
        while !sqlx::query_scalar::<_, bool>(AssertSqlSafe(relayed.clone())).fetch_one(looking.connection()).await? {
            sleep(Duration::from_millis(20)).await;
        }
        Ok::<_, sqlx::Error>(())
    };
    timeout(Duration::from_secs(20), relayed_within).await??;
    let confirmed = Arc::new(Notify::new());
    let told = Arc::clone(&confirmed);
    let watched = Watched { publisher: publisher(topic)?, confirmed: move |_: &_| told.notify_one() };
    let standby = Running::start(outbox(url)?, vec![(DESTINATION, Box::new(watched))])?;
    sleep(Duration::from_secs(1) + at).await;
    killed.start_kill()?;
    let since = Instant::now();
    timeout(Duration::from_secs(20), confirmed.notified()).await?;
    let took = since.elapsed();
    killed.wait().await?;
    standby.stop().await?;
    Ok(took)
}

/// The relay in the process that is killed.
pub(crate) async fn relay_until_killed(url: &str, brokers: &str, topic: &str) -> Result<(), Failed> {
    let topic = Topic::named(brokers, topic);
    let running = Running::start(outbox(url)?, vec![(DESTINATION, Box::new(publisher(&topic)?))])?;
    Ok(running.task.await??)
}
