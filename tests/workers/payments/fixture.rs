//! A database, and the services on it.

use std::{ops::Deref, time::Duration};

use sqlx::{AssertSqlSafe, Postgres, pool::PoolConnection, query_as, query_scalar, raw_sql};
use tokio::time::Instant;

use super::{
    client::Request,
    worker::{Ended, Worker},
};

pub(crate) use super::database::{Database, until};

/// How long a start may take.
const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) struct Fixture {
    database: Database,
}

impl Deref for Fixture {
    type Target = Database;

    fn deref(&self) -> &Database {
        &self.database
    }
}

/// One running service.
pub(crate) struct Api {
    pub(crate) address: String,
    pub(crate) process: Worker,
}

impl Api {
    pub(crate) async fn stop(self) -> Ended {
        self.process.stop().await
    }
}

/// The content of the books.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Books {
    pub(crate) transactions: i64,
    pub(crate) keys: i64,
    pub(crate) cents: i64,
    /// The same once more, from the table with one row a customer.
    pub(crate) balances: i64,
    pub(crate) declines: i64,
}

impl Fixture {
    /// A new database with all tables, whose services have the rights of a worker in production.
    pub(crate) async fn new(label: &str) -> Self {
        let fixture = Self { database: Database::create(label, &super::database::server()).await };
        // Its own tables are the service's to create, with a login that may.
        // The owner is called as idem's schema is, which would come first.
        let url = format!("{}?options[search_path]=public", fixture.owner_url);
        let owner = fixture.arguments_on(&url, &["--migrate", "--create-tables"]);
        fixture.start_with(&owner, &[]).await.stop().await;
        let grants = "GRANT SELECT, INSERT ON transactions, declines TO idem_worker;
            GRANT SELECT, INSERT, UPDATE ON balances TO idem_worker";
        raw_sql(AssertSqlSafe(grants)).execute(fixture.pool()).await.expect("its rights");
        fixture
    }

    /// The arguments of one on this database.
    pub(crate) fn arguments_on(&self, url: &str, more: &[&str]) -> Vec<String> {
        let own = ["--listen", "127.0.0.1:0", "--database-url", url, "--cleanup-every", "off"];
        own.iter().chain(more).map(|argument| (*argument).to_owned()).collect()
    }

    /// Starts one, and waits until it serves.
    pub(crate) async fn start(&self, more: &[&str]) -> Api {
        self.start_armed(more, "").await
    }

    /// The same with failpoints.
    pub(crate) async fn start_armed(&self, more: &[&str], failpoints: &str) -> Api {
        self.start_with(&self.arguments_on(&self.url, more), &[("IDEM_FAILPOINTS", failpoints)]).await
    }

    pub(crate) async fn start_with(&self, arguments: &[String], variables: &[(&str, &str)]) -> Api {
        start(arguments, variables, &self.next_log()).await
    }

    /// Starts one that need not get that far.
    pub(crate) fn begin(&self, more: &[&str]) -> Worker {
        Worker::start(PROGRAM, &self.arguments_on(&self.url, more), &[], &self.next_log())
    }

    pub(crate) async fn books(&self) -> Books {
        let text = "SELECT count(*), count(DISTINCT (tenant, idempotency_key)), coalesce(sum(cents), 0)::bigint
            FROM transactions";
        let (transactions, keys, cents) = query_as(text).fetch_one(self.pool()).await.expect("the books");
        let balances = "SELECT coalesce(sum(cents), 0)::bigint FROM balances";
        let balances = query_scalar(balances).fetch_one(self.pool()).await.expect("the books");
        let declines = query_scalar("SELECT count(*) FROM declines").fetch_one(self.pool()).await.expect("the books");
        Books { transactions, keys, cents, balances, declines }
    }

    /// How many requests are between their claim and their commit.
    pub(crate) async fn runs(&self) -> i64 {
        let text = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND usename = $1
            AND state = 'idle in transaction'";
        query_scalar(text).bind(&self.name).fetch_one(self.pool()).await.expect("the sessions")
    }

    /// How many requests wait for a row that another session has locked.
    pub(crate) async fn waits(&self) -> i64 {
        let text = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND usename = $1
            AND wait_event_type = 'Lock'";
        query_scalar(text).bind(&self.name).fetch_one(self.pool()).await.expect("the sessions")
    }

    /// How many connections its services have, and how many of these do anything.
    pub(crate) async fn connections(&self) -> (i64, i64) {
        let text = "SELECT count(*), count(*) FILTER (WHERE state <> 'idle') FROM pg_stat_activity
            WHERE datname = current_database() AND usename = $1";
        query_as(text).bind(&self.name).fetch_one(self.pool()).await.expect("the sessions")
    }

    /// Holds every balance that there is, until this session commits.
    pub(crate) async fn hold_balances(&self) -> PoolConnection<Postgres> {
        let mut held = self.pool().acquire().await.expect("a session");
        raw_sql("BEGIN; SELECT FROM balances FOR UPDATE").execute(&mut *held).await.expect("the balances");
        held
    }

    /// The number of records of keys and of answers.
    pub(crate) async fn records(&self) -> (i64, i64) {
        let text =
            "SELECT (SELECT count(*) FROM idem.processed_messages), (SELECT count(*) FROM idem.processed_results)";
        query_as(text).fetch_one(self.pool()).await.expect("the records")
    }
}

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_payments-rig");

/// Starts the program, and waits until it serves.
pub(crate) async fn start(arguments: &[String], variables: &[(&str, &str)], log: &std::path::Path) -> Api {
    let variables: Vec<_> = variables.iter().copied().filter(|(_, value)| !value.is_empty()).collect();
    let mut process = Worker::start(PROGRAM, arguments, &variables, log);
    let deadline = Instant::now() + PATIENCE;
    let address = loop {
        assert!(process.runs(), "it ended: {}", process.logged());
        let log = process.logged();
        let line = log.lines().find(|line| line.contains("serving requests"));
        if let Some(address) = line.and_then(|line| line.split("address=").nth(1)) {
            break address.trim().to_owned();
        }
        assert!(Instant::now() < deadline, "it does not serve: {log}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    Api { address, process }
}

impl Books {
    /// This many transactions of this many cents in all, each under a key of its own.
    pub(crate) fn of(transactions: i64, cents: i64) -> Self {
        Self { transactions, keys: transactions, cents, balances: cents, declines: 0 }
    }
}

/// Sends a request again until it is answered for good, as a client must, to one service after the other.
pub(crate) async fn insist(request: &Request, addresses: &[&str]) -> super::client::Answer {
    let mut last = String::new();
    for address in addresses.iter().cycle().take(20_000) {
        match request.send(address).await {
            // A conflict that no other try ends has no Retry-After.
            Ok(answer) if ![409, 429, 503].contains(&answer.status) => return answer,
            Ok(answer) if answer.status == 409 && answer.header("retry-after").is_none() => return answer,
            Ok(answer) => last = format!("{} {}", answer.status, answer.text()),
            Err(error) => last = error.to_string(),
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    panic!("no answer came for {request:?}; the last: {last}")
}
