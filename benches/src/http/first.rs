//! First runs and replays.

use std::time::Duration;

use super::{
    Failed, Way,
    by_hand::Driver,
    connected, debit, debits,
    load::{self, CONNECTIONS, Sent},
    server::POOL,
};
use crate::{
    cases::At,
    pgbench::{Claims, PgBench},
    postgres::remove,
    report::{Line, Table},
};

const RATE: &str = "requests a second";

/// The lines, two of which targets are about.
const BARE: &str = "the handler without a key";
const BY_HAND: &str = "by hand: the textbook's table of keys, with the answer in it";
pub(crate) const IDEM: &str = "idem";
pub(crate) const REPLAYS: &str = "idem, replays";

/// The servers whose first runs are compared.
const WAYS: [Way; 3] = [Way::Bare, Way::ByHand, Way::Idem];

/// The statements of a request without what sends them.
const SERVER: [(&str, Claims); 4] = [
    ("a row and a balance, no key", Claims::Nothing),
    ("the textbook's key and answer", Claims::WithAnswerByHand),
    ("idem's, one after the other", Claims::WithAnswer),
    ("idem's, the claim with the BEGIN and the seal with the COMMIT", Claims::WithAnswerPipelined),
];

/// One driver.
struct Compared {
    driver: Driver,
    rates: [Line; 4],
    over_by_hand: [Line; 3],
    over_bare: [Line; 3],
    replays: [Line; 2],
}

impl Compared {
    fn new(driver: Driver) -> Self {
        Self {
            driver,
            rates: [BARE, BY_HAND, IDEM, REPLAYS].map(Line::new),
            over_by_hand: [BY_HAND, BARE, IDEM].map(Line::new),
            over_bare: [BARE, BY_HAND, IDEM].map(Line::new),
            replays: [IDEM, REPLAYS].map(Line::new),
        }
    }

    /// Each once; every other round the other way round, so that a drift favours no line.
    async fn measure(&mut self, number: usize, url: &str, time: Duration) -> Result<(), Failed> {
        let mut rates = [0.0; 4];
        let order = if number.is_multiple_of(2) { [0, 1, 2] } else { [2, 1, 0] };
        for at in order {
            let way = WAYS[at];
            let (first, replayed) = round(way, self.driver, url, time).await?;
            rates[at] = first;
            if way == Way::Idem {
                rates[3] = replayed;
            }
        }
        let [bare, by_hand, idem, replayed] = rates;
        note(&mut self.rates, rates);
        note(&mut self.over_by_hand, [1.0, bare / by_hand, idem / by_hand]);
        note(&mut self.over_bare, [1.0, by_hand / bare, idem / bare]);
        note(&mut self.replays, [1.0, replayed / idem]);
        Ok(())
    }

    fn print(self, rounds: usize, time: Duration) -> [Table; 4] {
        let (id, driver) = (table(self.driver.id()), self.driver.name());
        let title = format!(
            "HTTP on {driver}, a debit a request, {CONNECTIONS} connections, a pool of {POOL}; {rounds} rounds of {time:?}"
        );
        [
            Table::print(format!("{id}-rates"), title, RATE, self.rates.into()),
            Table::print(&id, "The same, round by round", "of the rate by hand", self.over_by_hand.into()),
            Table::print(
                format!("{id}-bare"),
                "The same, round by round",
                "of the rate without a key",
                self.over_bare.into(),
            ),
            Table::print(
                format!("{id}-replays"),
                "The same, round by round",
                "of the rate of first runs",
                self.replays.into(),
            ),
        ]
    }
}

pub(super) fn note<const N: usize>(lines: &mut [Line; N], values: [f64; N]) {
    for (line, value) in lines.iter_mut().zip(values) {
        line.rounds.push(value);
    }
}

/// The table of this driver in which idem is a share of what is written by hand.
pub(crate) fn table(driver: &str) -> String {
    format!("http-{driver}")
}

/// The rates of first runs and, where answers are kept, of replays of them.
async fn round(way: Way, driver: Driver, url: &str, time: Duration) -> Result<(f64, f64), Failed> {
    let mut connection = connected(url).await?;
    let server = way.start(driver, url, &mut connection).await?;
    // Counts for nothing: connections are made in it, and statements are prepared.
    load::run(server.port, Sent::First, &load::prefix(), Duration::from_secs(1)).await?;
    let prefix = load::prefix();
    let first = load::run(server.port, Sent::First, &prefix, time).await?;
    let there = debits(&mut connection, way).await?;
    if there < first.requests {
        return Err(format!("{way:?} on {driver:?}: {there} debits of {} requests", first.requests).into());
    }
    let mut replayed = f64::NAN;
    if way == Way::Idem {
        // Requests that wrk has not waited for run to their end.
        let before = settled(&mut connection, way).await?;
        replayed = load::run(server.port, Sent::Replay, &prefix, Duration::from_secs(1)).await?.rate();
        let after = debits(&mut connection, way).await?;
        if after != before {
            return Err(format!("{way:?} on {driver:?}: {} debits by replays", after - before).into());
        }
    }
    server.stop().await?;
    Ok((first.rate(), replayed))
}

/// Waits until no request is under way, and counts the debits.
async fn settled(connection: &mut sqlx::PgConnection, way: Way) -> Result<usize, Failed> {
    let mut there = debits(connection, way).await?;
    loop {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let now = debits(connection, way).await?;
        if now == there {
            return Ok(now);
        }
        there = now;
    }
}

/// The cost of a key and its answer for the server itself, with as many sessions; and how much of the textbook's rate is left then.
async fn pgbench(lines: &mut [Line; 4], shares: &mut [Line; 3], url: &str, time: Duration) -> Result<(), Failed> {
    let mut connection = connected(url).await?;
    let mut rates = [0.0; 4];
    for ((line, rate), claims) in lines.iter_mut().zip(&mut rates).zip(SERVER.map(|(_, claims)| claims)) {
        Way::Idem.prepare(url, &mut connection).await?;
        let round = PgBench { clients: POOL, claims }.round_of(&debit::script(), url, time).await?;
        line.note(round.messages, round.took);
        *rate = round.messages as f64 / round.took.as_secs_f64();
    }
    let [_, by_hand, idem, pipelined] = rates;
    note(shares, [1.0, idem / by_hand, pipelined / by_hand]);
    Ok(())
}

pub(crate) async fn all((url, rounds, time): At<'_>) -> Result<Vec<Table>, Failed> {
    let mut compared = Driver::ALL.map(Compared::new);
    let mut server = SERVER.map(|(name, _)| Line::new(name));
    let [_, by_hand, one_by_one, pipelined] = SERVER;
    let mut shares = [by_hand, one_by_one, pipelined].map(|(name, _)| Line::new(name));
    for number in 0..rounds {
        for one in &mut compared {
            one.measure(number, url, time).await?;
        }
        pgbench(&mut server, &mut shares, url, time).await?;
    }
    remove(&mut connected(url).await?).await?;
    let mut tables: Vec<Table> = compared.into_iter().flat_map(|one| one.print(rounds, time)).collect();
    let title =
        format!("PostgreSQL itself, the statements of each: pgbench with {POOL} clients, between the same rounds");
    tables.push(Table::print("http-pgbench", title, "transactions a second", server.into()));
    tables.push(Table::print(
        "http-pgbench-share",
        "The same, round by round",
        "of the textbook's rate",
        shares.into(),
    ));
    Ok(tables)
}
