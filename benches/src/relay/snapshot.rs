//! Six turnovers of the outbox, with and without an old snapshot open: the size of the table, and the time of the relay's
//! looks, which meet the rows that the snapshot keeps.

use std::sync::Arc;

use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio::time::Instant;

use super::{
    Failed, Running,
    filling::{Filling, Keys},
    outbox, publisher,
    watched::Timed,
};
use crate::{
    kafka::Topic,
    postgres::RECORDS,
    report::{Line, Table},
};

const DESTINATION: &str = "bench";
const TURNOVERS: usize = 6;
/// The place of the turnover that the last one is compared with. Before it the table grows even beside a relay: pages of an
/// index that one vacuum has emptied can be used again after the next one.
const SETTLED: usize = 2;

/// The lines that targets are about.
pub(crate) const ALONE: &str = "the last turnover over the third, no snapshot";
pub(crate) const SNAPSHOT: &str = "the last turnover over the third, a snapshot open since before it";

/// One turnover: the sizes of the table and its indexes, its dead rows, its rate, and the average time of a look at the next
/// events.
struct Turnover {
    megabytes: f64,
    dead: f64,
    rate: f64,
    look: f64,
}

/// Puts in and publishes `events` events, six times, with the vacuum that autovacuum would do by then.
pub(crate) async fn all(url: &str, brokers: &str, events: usize) -> Result<Vec<Table>, Failed> {
    let mut tables = Vec::new();
    let mut ratios = Vec::new();
    for (is_open, name, ratio) in [(false, "no snapshot", ALONE), (true, "a snapshot open", SNAPSHOT)] {
        let turnovers = turnovers(url, brokers, events, is_open).await?;
        let each = |value: fn(&Turnover) -> f64| turnovers.iter().map(value).collect::<Vec<f64>>();
        println!("\n{TURNOVERS} turnovers of {events} events, {name}");
        println!("  table and indexes, MB:   {:>8.1?}", each(|t| t.megabytes));
        println!("  dead rows:               {:>8.0?}", each(|t| t.dead));
        println!("  events a second:         {:>8.0?}", each(|t| t.rate));
        println!("  a look at what is next, ms: {:.2?}", each(|t| t.look));
        let of = |value: fn(&Turnover) -> f64| {
            turnovers.get(SETTLED).zip(turnovers.last()).map_or(f64::NAN, |(third, last)| value(last) / value(third))
        };
        ratios.push(
            [("size", of(|t| t.megabytes)), ("rate", of(|t| t.rate)), ("look", of(|t| t.look))]
                .map(|(kind, share)| (kind, Line { name: ratio.to_owned(), rounds: vec![share] })),
        );
    }
    for kind in ["size", "rate", "look"] {
        let lines = ratios.iter().flatten().filter(|(of, _)| *of == kind).map(|(_, line)| line.clone()).collect();
        tables.push(Table::print(format!("relay-snapshot-{kind}"), format!("Six turnovers: {kind}"), "ratio", lines));
    }
    crate::postgres::remove(Filling::new(url, &[DESTINATION]).await?.connection()).await?;
    Ok(tables)
}

async fn turnovers(url: &str, brokers: &str, events: usize, is_open: bool) -> Result<Vec<Turnover>, Failed> {
    let topic = Topic::empty(brokers).await?;
    let mut filling = Filling::new(url, &[DESTINATION]).await?;
    let mut reader = PgConnection::connect(url).await?;
    if is_open {
        sqlx::raw_sql("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SELECT 1").execute(&mut reader).await?;
    }
    let timed = Timed::new(outbox(url)?);
    let running = Running::start(Arc::clone(&timed) as _, vec![(DESTINATION, Box::new(publisher(&topic)?))])?;
    let mut turnovers = Vec::new();
    for turnover in 0..TURNOVERS {
        filling.put(DESTINATION, turnover * events, events, Keys::None).await?;
        let (started, first) = (Instant::now(), running.view.published());
        timed.next.millis_each();
        running.published((turnover + 1) * events).await?;
        let rate = ((turnover + 1) * events) as f64 - first as f64;
        let (rate, look) = (rate / started.elapsed().as_secs_f64(), timed.next.millis_each());
        let vacuum = format!("VACUUM {RECORDS}.outbox");
        sqlx::raw_sql(AssertSqlSafe(vacuum)).execute(filling.connection()).await?;
        let size = format!(
            "SELECT pg_total_relation_size(id)::float8 / 1e6, pg_stat_get_dead_tuples(id)::float8
             FROM (SELECT '{RECORDS}.outbox'::regclass AS id) AS measured"
        );
        let (megabytes, dead) = sqlx::query_as(AssertSqlSafe(size)).fetch_one(filling.connection()).await?;
        turnovers.push(Turnover { megabytes, dead, rate, look });
    }
    running.stop().await?;
    reader.close().await?;
    topic.remove().await?;
    Ok(turnovers)
}
