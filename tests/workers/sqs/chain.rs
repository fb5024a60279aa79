//! Two workers in a row, with a queue between them.

use std::{ops::Range, sync::Arc, time::Duration};

use idem_testkit::sqs::FakeSqs;
use tokio::net::TcpStream;

use super::{
    database::Database,
    fixture::Fixture,
    own_servers::OwnServers,
    queue::{Server, on_both_servers},
    shared_chain::{self, Crashing, Link},
    worker::Worker,
};

on_both_servers!(o2_o3_both_ledgers_are_exact);

struct Chain {
    shop: Fixture,
    /// On the queue of what is announced.
    accounts: Fixture,
}

impl Link for Chain {
    // Standard queues promise none.
    const ORDERED: bool = false;

    fn shop(&self) -> &Database {
        &self.shop
    }

    fn accounts(&self) -> &Database {
        &self.accounts
    }

    fn start_shop(&self, more: &[&str]) -> Worker {
        self.shop.start(&[&["--announce", &self.accounts.queue.url, "--batch", "20"], more].concat())
    }

    fn start_accounts(&self, more: &[&str]) -> Worker {
        self.accounts.start(more)
    }

    fn start_shop_armed(&self, armed: &str) -> Worker {
        let announcing = ["--announce", &self.accounts.queue.url, "--batch", "20", "--attempts", "100"];
        self.shop.start_with(&self.shop.arguments(&announcing), &[("IDEM_FAILPOINTS", armed)])
    }

    fn start_accounts_armed(&self, armed: &str) -> Worker {
        self.accounts.start_with(&self.accounts.arguments(&["--attempts", "100"]), &[("IDEM_FAILPOINTS", armed)])
    }

    async fn send(&self, numbers: Range<i64>) {
        self.shop.send(numbers).await;
    }

    async fn arrived(&self) -> usize {
        let consumed = u64::try_from(self.accounts.purchases().await).expect("a count");
        usize::try_from(consumed + self.accounts.queue.counts().await.iter().sum::<u64>()).expect("a count")
    }

    fn gone(&self) {
        for queue in [&self.shop.queue, &self.accounts.queue] {
            queue.lapse();
        }
    }

    async fn ids(&self) -> Vec<String> {
        let ids = self.accounts.queue.values("idempotencykey").await;
        ids.into_iter().map(|id| id.expect("the id")).collect()
    }
}

async fn o2_o3_both_ledgers_are_exact(server: Server) {
    let shop = Fixture::on(&server, "shop", "").await;
    let chain = Chain { shop, accounts: Fixture::on(&server, "accounts", "").await };
    shared_chain::o2_o3_both_ledgers_are_exact(&chain).await;
    chain.shop.remove().await;
    chain.accounts.remove().await;
}

/// A PostgreSQL of the test's own, and SQS in this process.
struct Servers {
    own: OwnServers,
    sqs: Arc<FakeSqs>,
}

impl Crashing for Servers {
    async fn crash(&self, names: &[&str]) {
        let (sqs, others): (Vec<&str>, Vec<&str>) = names.iter().partition(|name| **name == "sqs");
        if !sqs.is_empty() {
            self.sqs.down().await;
            let address = self.sqs.endpoint().trim_start_matches("http://");
            assert!(TcpStream::connect(address).await.is_err(), "nothing listens there");
        }
        self.own.restart_all(&others);
        if !sqs.is_empty() {
            // As long as another server takes to come back.
            tokio::time::sleep(Duration::from_secs(1)).await;
            self.sqs.up().expect("its port is free");
        }
    }
}

/// On servers of its own, which it restarts.
#[tokio::test(flavor = "multi_thread")]
async fn o2_o3_o9_a_chain_outlives_its_servers() {
    let sqs = Arc::new(FakeSqs::start().await.expect("a port"));
    let servers = Servers { own: OwnServers::up("sqs-worker-chain", 900, &["postgres"]), sqs: Arc::clone(&sqs) };
    let (server, postgres) = (Server::Strict(sqs), servers.own.url("postgres"));
    let on_them = async |label| Fixture::on_servers(&server, label, "", &postgres).await;
    let chain = Chain { shop: on_them("shop").await, accounts: on_them("accounts").await };
    shared_chain::o2_o3_o9_a_chain_outlives_its_servers(&chain, &servers, "sqs").await;
    chain.shop.remove().await;
    chain.accounts.remove().await;
}

#[cfg(feature = "failpoints")]
#[tokio::test(flavor = "multi_thread")]
async fn o45_workers_die_at_each_failpoint() {
    let server = Server::strict().await;
    let chain =
        Chain { shop: Fixture::on(&server, "shop", "").await, accounts: Fixture::on(&server, "accounts", "").await };
    shared_chain::o45_workers_die_at_each_failpoint(&chain, shared_chain::points_of_a_chain()).await;
    chain.shop.remove().await;
    chain.accounts.remove().await;
}
