//! The bytes that the database writes for requests: none for one that is refused or replayed.

use std::time::Duration;

use sqlx::{Connection, PgConnection};

use super::{
    Failed, Way,
    by_hand::Driver,
    connected,
    load::{self, Sent},
    open_loop::Client,
};
use crate::{
    cases::At,
    postgres::{checkpoint, remove},
    report::{Line, Table},
};

/// The requests that are sent, by the names of their lines. Targets are about all but the first one.
const FIRST: &str = "first runs";
pub(crate) const REPLAY: &str = "replays";
pub(crate) const KEYLESS: &str = "400: no key";
pub(crate) const HELD: &str = "409: the key is in use";
pub(crate) const OTHER: &str = "422: the key was used for another request";
const LINES: [(&str, Sent); 5] =
    [(FIRST, Sent::First), (REPLAY, Sent::Replay), (KEYLESS, Sent::Keyless), (HELD, Sent::Held), (OTHER, Sent::Other)];

/// The server's log, and the number of the next transaction that writes.
async fn written(connection: &mut PgConnection) -> Result<(i64, i64), sqlx::Error> {
    let asked =
        "SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint, pg_snapshot_xmax(pg_current_snapshot())::text::bigint";
    sqlx::query_as(asked).fetch_one(connection).await
}

/// The table of this driver.
pub(crate) fn table(driver: &str, what: &str) -> String {
    format!("http-{what}-{driver}")
}

pub(crate) async fn all((url, rounds, time): At<'_>) -> Result<Vec<Table>, Failed> {
    let mut tables = Vec::new();
    for driver in Driver::ALL {
        let mut lines = LINES.map(|(name, _)| [Line::new(name), Line::new(name)]);
        for _ in 0..rounds {
            round(&mut lines, driver, url, time).await?;
        }
        let name = driver.name();
        let title = format!("HTTP on {name}: what the database writes for requests; {rounds} rounds");
        let (log, transactions) = lines.into_iter().map(|[log, transactions]| (log, transactions)).unzip();
        tables.push(Table::print(table(driver.id(), "log"), title, "bytes of log a request", log));
        tables.push(Table::print(
            table(driver.id(), "transactions"),
            "The same",
            "transactions that write, a request",
            transactions,
        ));
    }
    remove(&mut connected(url).await?).await?;
    Ok(tables)
}

async fn round(lines: &mut [[Line; 2]; 5], driver: Driver, url: &str, time: Duration) -> Result<(), Failed> {
    let mut connection = connected(url).await?;
    let server = Way::Idem.start(driver, url, &mut connection).await?;
    load::run(server.port, Sent::First, &load::prefix(), Duration::from_secs(1)).await?;
    checkpoint(&mut connection).await?;
    let prefix = load::prefix();
    for ([log, transactions], (_, sent)) in lines.iter_mut().zip(LINES) {
        let held = if sent == Sent::Held { Some(Held::begin(url, server.port, &prefix).await?) } else { None };
        let before = written(&mut connection).await?;
        let load = load::run(server.port, sent, &prefix, time).await?;
        let after = written(&mut connection).await?;
        log.rounds.push((after.0 - before.0) as f64 / load.requests as f64);
        transactions.rounds.push((after.1 - before.1) as f64 / load.requests as f64);
        if let Some(held) = held {
            held.end().await?;
        }
        // Requests that wrk has not waited for, and the work that the server has left to do.
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    server.stop().await
}

/// A request that waits in its handler, for a row that is locked.
struct Held {
    lock: PgConnection,
    request: std::thread::JoinHandle<std::io::Result<u16>>,
}

impl Held {
    async fn begin(url: &str, port: u16, key: &str) -> Result<Self, Failed> {
        let mut lock = PgConnection::connect(url).await?;
        let locked = "INSERT INTO idem_bench.balances VALUES ('shop', 'held', 0);
            BEGIN; UPDATE idem_bench.balances SET cents = cents WHERE customer = 'held'";
        sqlx::raw_sql(locked).execute(&mut lock).await?;
        let key = key.to_owned();
        let request = std::thread::spawn(move || Client::connect(port)?.send(&key, "held"));
        let waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted";
        while sqlx::query_scalar::<_, i64>(waiting).fetch_one(&mut lock).await? == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(Self { lock, request })
    }

    async fn end(mut self) -> Result<(), Failed> {
        sqlx::raw_sql("ROLLBACK").execute(&mut self.lock).await?;
        let status = tokio::task::spawn_blocking(|| self.request.join()).await?;
        match status.map_err(|_| "the request that held the key has panicked")?? {
            201 => Ok(()),
            status => Err(format!("the request that held the key was answered with {status}").into()),
        }
    }
}
