//! How long an answer takes at half of what the bare handler can, by requests that come at a fixed rate.

use std::time::{Duration, Instant};

use sqlx::PgConnection;

use super::{
    Failed, Way,
    by_hand::Driver,
    connected,
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

const WARM_UP: Duration = Duration::from_millis(500);

/// The table of this driver.
pub(crate) fn table(driver: &str) -> String {
    format!("http-p99-{driver}")
}

pub(crate) async fn all((url, rounds, time): At<'_>) -> Result<Vec<Table>, Failed> {
    let mut tables = Vec::new();
    for driver in Driver::ALL {
        tables.push(compare(driver, url, rounds, time).await?);
    }
    remove(&mut connected(url).await?).await?;
    Ok(tables)
}

async fn compare(driver: Driver, url: &str, rounds: usize, time: Duration) -> Result<Table, Failed> {
    let mut connection = connected(url).await?;
    let rate = half(driver, url, &mut connection, time).await?;
    let names = ["p50: the handler without a key", "p50: idem", "p99: the handler without a key", "p99: idem", MORE];
    let (mut lines, mut trips) = (names.map(Line::new), Line::new("a round trip to the database, p50"));
    for number in 0..rounds {
        let mut percentiles = [[0.0; 2]; 2];
        let order = if number.is_multiple_of(2) { [0, 1] } else { [1, 0] };
        for at in order {
            let way = [Way::Bare, Way::Idem][at];
            let server = way.start(driver, url, &mut connection).await?;
            let port = server.port;
            let sending = move || open_loop::run(port, &load::prefix(), rate, WARM_UP, time);
            let took = tokio::task::spawn_blocking(sending).await??;
            server.stop().await?;
            percentiles[at] = [50, 99].map(|percent| percentile(&took, percent));
        }
        let trip = round_trip(&mut connection).await?;
        let [[bare_50, bare_99], [idem_50, idem_99]] = percentiles;
        let values = [bare_50, idem_50, bare_99, idem_99, idem_99 - bare_99 - trip];
        for (line, value) in lines.iter_mut().zip(values) {
            line.rounds.push(value);
        }
        trips.rounds.push(trip);
    }
    let title = format!(
        "HTTP on {}, {rate:.0} requests a second, half of what the handler without a key can, over {CONNECTIONS} connections; \
         {rounds} rounds of {time:?}",
        driver.name()
    );
    Ok(Table::print(table(driver.id()), title, "ms", lines.into_iter().chain([trips]).collect()))
}

/// Half of the bare handler's rate.
async fn half(driver: Driver, url: &str, connection: &mut PgConnection, time: Duration) -> Result<f64, Failed> {
    let server = Way::Bare.start(driver, url, connection).await?;
    load::run(server.port, Sent::First, &load::prefix(), Duration::from_secs(1)).await?;
    let load = load::run(server.port, Sent::First, &load::prefix(), time).await?;
    server.stop().await?;
    Ok(load.rate() / 2.0)
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
