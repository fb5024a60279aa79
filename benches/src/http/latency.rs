//! How long an answer takes at half of what the bare handler can, and at a quarter, by requests that come at a fixed rate.

use std::time::{Duration, Instant};

use sqlx::PgConnection;

use super::{
    Failed, Way,
    by_hand::Driver,
    connected,
    first::note,
    load::{self, CONNECTIONS, Sent},
    open_loop,
};
use crate::{
    cases::At,
    postgres::remove,
    report::{Line, Table},
};

/// The line that a target is about.
pub(crate) const MORE: &str = "p99: idem more than without a key, less a round trip";

const LINES: [&str; 5] =
    ["p50: the handler without a key", "p50: idem", "p99: the handler without a key", "p99: idem", MORE];

const WAYS: [Way; 2] = [Way::Bare, Way::Idem];

const WARM_UP: Duration = Duration::from_millis(500);

/// The table of this driver at half of the bare rate.
pub(crate) fn table(driver: &str) -> String {
    format!("http-p99-{driver}")
}

/// How much of the bare rate comes.
#[derive(Debug, Clone, Copy)]
enum Share {
    Half,
    Quarter,
}

impl Share {
    fn of(self, rate: f64) -> f64 {
        match self {
            Self::Half => rate / 2.0,
            Self::Quarter => rate / 4.0,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Half => "half",
            Self::Quarter => "a quarter",
        }
    }

    fn table(self, driver: Driver) -> String {
        match self {
            Self::Half => table(driver.id()),
            Self::Quarter => format!("{}-quarter", table(driver.id())),
        }
    }
}

pub(crate) async fn all((url, rounds, time): At<'_>) -> Result<Vec<Table>, Failed> {
    let mut tables = Vec::new();
    for driver in Driver::ALL {
        for share in [Share::Half, Share::Quarter] {
            tables.push(compare(driver, share, url, rounds, time).await?);
        }
    }
    remove(&mut connected(url).await?).await?;
    Ok(tables)
}

async fn compare(driver: Driver, share: Share, url: &str, rounds: usize, time: Duration) -> Result<Table, Failed> {
    let mut connection = connected(url).await?;
    let rate = share.of(bare(driver, url, &mut connection, time).await?);
    let (mut lines, mut trips) = (LINES.map(Line::new), Line::new("a round trip to the database, p50"));
    for number in 0..rounds {
        let mut percentiles = [[0.0; 2]; 2];
        let order = if number.is_multiple_of(2) { [0, 1] } else { [1, 0] };
        for at in order {
            let server = WAYS[at].start(driver, url, &mut connection).await?;
            let port = server.port;
            let sending = move || open_loop::run(port, &load::prefix(), rate, WARM_UP, time);
            let took = tokio::task::spawn_blocking(sending).await??;
            server.stop().await?;
            percentiles[at] = [50, 99].map(|percent| percentile(&took, percent));
        }
        let trip = round_trip(&mut connection).await?;
        let [[bare_50, bare_99], [idem_50, idem_99]] = percentiles;
        note(&mut lines, [bare_50, idem_50, bare_99, idem_99, idem_99 - bare_99 - trip]);
        trips.rounds.push(trip);
    }
    let title = format!(
        "HTTP on {}, {rate:.0} requests a second, {} of what the handler without a key can, over {CONNECTIONS} connections; \
         {rounds} rounds of {time:?}",
        driver.name(),
        share.name()
    );
    Ok(Table::print(share.table(driver), title, "ms", lines.into_iter().chain([trips]).collect()))
}

/// The bare handler's rate.
async fn bare(driver: Driver, url: &str, connection: &mut PgConnection, time: Duration) -> Result<f64, Failed> {
    let server = Way::Bare.start(driver, url, connection).await?;
    load::run(server.port, Sent::First, &load::prefix(), Duration::from_secs(1)).await?;
    let load = load::run(server.port, Sent::First, &load::prefix(), time).await?;
    server.stop().await?;
    Ok(load.rate())
}

fn percentile(sorted: &[Duration], percent: usize) -> f64 {
    let at = (sorted.len() * percent / 100).min(sorted.len().saturating_sub(1));
    sorted.get(at).map_or(f64::NAN, |took| took.as_secs_f64() * 1e3)
}

/// The time of one round trip to the database, in milliseconds: the median of two hundred.
async fn round_trip(connection: &mut PgConnection) -> Result<f64, Failed> {
    let mut took = Vec::new();
    for _ in 0..200 {
        let started = Instant::now();
        sqlx::query_scalar::<_, i32>("SELECT 1").fetch_one(&mut *connection).await?;
        took.push(started.elapsed());
    }
    took.sort_unstable();
    Ok(percentile(&took, 50))
}
