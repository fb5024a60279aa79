//! Requests over HTTP, from wrk: a handler under idem's layer beside the same one without a key, and with the textbook's table
//! of keys and answers written by hand.

mod by_hand;
mod debit;
mod first;
mod latency;
mod load;
mod memory;
mod open_loop;
mod refused;
mod server;

use std::error::Error;

use sqlx::{Connection, PgConnection};

use self::{by_hand::Driver, server::Running};
pub(crate) use self::{
    by_hand::textbook,
    debit::{BODY, LOCATION},
    first::{IDEM, REPLAYS, all, table},
    latency::{MORE, all as latency, table as latency_table},
    memory::{GROWN, watched as memory},
    refused::{HELD, KEYLESS, OTHER, REPLAY, all as refused, table as refused_table},
    server::serve,
};
use crate::postgres::{checkpoint, reset_tables, store};

type Failed = Box<dyn Error>;

/// The server that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// The handler in a transaction, and no key.
    Bare,
    ByHand,
    /// Under the layer.
    Idem,
}

impl Way {
    const ALL: [Self; 3] = [Self::Bare, Self::ByHand, Self::Idem];

    fn name(self) -> &'static str {
        match self {
            Self::Bare => "bare",
            Self::ByHand => "by-hand",
            Self::Idem => "idem",
        }
    }

    fn named(name: &str) -> Result<Self, Failed> {
        Ok(Self::ALL.into_iter().find(|way| way.name() == name).ok_or("no such way")?)
    }

    /// A server on tables without a row.
    async fn start(self, driver: Driver, url: &str, connection: &mut PgConnection) -> Result<Running, Failed> {
        self.prepare(url, connection).await?;
        Running::start(self, driver, url).await
    }

    /// Tables without a row, and nothing left to write of what was before.
    async fn prepare(self, url: &str, connection: &mut PgConnection) -> Result<(), Failed> {
        reset_tables(connection).await?;
        sqlx::raw_sql(debit::TABLES).execute(&mut *connection).await?;
        if self == Self::Idem {
            store(url).await?;
        }
        Ok(checkpoint(connection).await?)
    }
}

/// How many debits there are. Each has a key of its own, an answer where answers are kept, and is in its balance once. A
/// refused request is no debit.
async fn debits(connection: &mut PgConnection, way: Way) -> Result<usize, Failed> {
    let records = match way {
        Way::Bare => "idem_bench.transactions",
        Way::ByHand => "idem_bench.idempotency_keys",
        Way::Idem => "idem_bench_records.processed_results WHERE kind = 0",
    };
    let counted = format!(
        "SELECT (SELECT count(*) FROM idem_bench.transactions),
            (SELECT count(DISTINCT idempotency_key) FROM idem_bench.transactions),
            (SELECT sum(cents)::bigint / 1177 FROM idem_bench.balances), (SELECT count(*) FROM {records})"
    );
    let (debits, keys, counted, records): (i64, i64, i64, i64) =
        sqlx::query_as(sqlx::AssertSqlSafe(counted)).fetch_one(connection).await?;
    if [keys, counted, records].iter().any(|count| *count != debits) {
        return Err(format!("{way:?}: {debits} debits of {keys} keys, {counted} in balances, {records} records").into());
    }
    Ok(usize::try_from(debits)?)
}

async fn connected(url: &str) -> Result<PgConnection, Failed> {
    Ok(PgConnection::connect(url).await?)
}
