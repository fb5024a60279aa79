//! Requests that share transactions, beside the same handler without.

use std::time::Duration;

use super::{
    Failed, Way,
    by_hand::Driver,
    connected, debits,
    first::note,
    load::{self, CONNECTIONS, Sent},
};
use crate::report::{Line, Table};

/// The lines of the shares; a target is about the second one.
const OWN: &str = "each its own transaction";
pub(crate) const SHARED: &str = "up to 16 share one";
const OWN_REFUSED: &str = "5 % refused: each its own transaction";
const SHARED_REFUSED: &str = "5 % refused: up to 16 share one";

/// The measurements, in the order of the lines.
const MEASURED: [(Way, Sent); 4] =
    [(Way::Route, Sent::First), (Way::Shared, Sent::First), (Way::Route, Sent::Refused), (Way::Shared, Sent::Refused)];

/// One driver.
pub(super) struct Compared {
    driver: Driver,
    rates: [Line; 4],
    shares: [Line; 4],
}

/// The table of this driver, in which the rates of shared units are a ratio to those of units of one call.
pub(crate) fn table(driver: &str) -> String {
    format!("http-{driver}-shared")
}

impl Compared {
    pub(super) fn new(driver: Driver) -> Self {
        let lines = || [OWN, SHARED, OWN_REFUSED, SHARED_REFUSED].map(Line::new);
        Self { driver, rates: lines(), shares: lines() }
    }

    /// Each once; every other round the other way round, so that a drift favours no line.
    pub(super) async fn measure(&mut self, number: usize, url: &str, time: Duration) -> Result<(), Failed> {
        let mut rates = [0.0; 4];
        let order = if number.is_multiple_of(2) { [0, 1, 2, 3] } else { [3, 2, 1, 0] };
        for at in order {
            let (way, sent) = MEASURED[at];
            rates[at] = round(way, sent, self.driver, url, time).await?;
        }
        let [own, shared, own_refused, shared_refused] = rates;
        note(&mut self.rates, rates);
        note(&mut self.shares, [1.0, shared / own, 1.0, shared_refused / own_refused]);
        Ok(())
    }

    pub(super) fn print(self, rounds: usize, time: Duration) -> [Table; 2] {
        let (id, driver) = (table(self.driver.id()), self.driver.name());
        let title = format!(
            "HTTP on {driver} by routes, a debit a request of 10,000 customers, {CONNECTIONS} connections of one tenant; {rounds} \
             rounds of {time:?}"
        );
        [
            Table::print(format!("{id}-rates"), title, "requests a second", self.rates.into()),
            Table::print(id, "The same, round by round", "of the rate without sharing", self.shares.into()),
        ]
    }
}

/// The rate of first runs. Refused ones have had their effects taken back, and count.
async fn round(way: Way, sent: Sent, driver: Driver, url: &str, time: Duration) -> Result<f64, Failed> {
    let mut connection = connected(url).await?;
    let server = way.start(driver, url, &mut connection).await?;
    // Counts for nothing: connections are made in it, and statements are prepared.
    load::run(server.port, sent, &load::prefix(), Duration::from_secs(1)).await?;
    let load = load::run(server.port, sent, &load::prefix(), time).await?;
    let there = debits(&mut connection, way).await?;
    if there < load.requests - load.refused {
        return Err(format!("{way:?} on {driver:?}: {there} debits of {} requests", load.requests).into());
    }
    server.stop().await?;
    Ok(load.rate())
}
