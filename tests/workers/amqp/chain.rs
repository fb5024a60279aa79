//! Two workers in a row, with a queue between them.

use std::ops::Range;

use idem_testkit::idem_core::failpoint;
use lapin::types::FieldTable;

use super::{
    database::Database,
    fixture::{Fixture, quorum},
    own_servers::OwnServers,
    queue::Queue,
    shared_chain::{self, Link},
    worker::Worker,
};

struct Chain {
    shop: Fixture,
    /// On the queue of what is announced.
    accounts: Fixture,
}

impl Link for Chain {
    const ORDERED: bool = true;

    fn shop(&self) -> &Database {
        &self.shop
    }

    fn accounts(&self) -> &Database {
        &self.accounts
    }

    fn start_shop(&self, more: &[&str]) -> Worker {
        self.shop.start(&[&["--announce", &self.accounts.queue.name, "--batch", "20"], more].concat())
    }

    fn start_accounts(&self, more: &[&str]) -> Worker {
        self.accounts.start(more)
    }

    fn start_shop_armed(&self, armed: &str) -> Worker {
        let more = ["--announce", &self.accounts.queue.name, "--batch", "20", "--attempts", "100"];
        self.shop.start_armed(&more, armed)
    }

    fn start_accounts_armed(&self, armed: &str) -> Worker {
        self.accounts.start_armed(&["--attempts", "100"], armed)
    }

    async fn send(&self, numbers: Range<i64>) {
        self.shop.send(numbers).await;
    }

    async fn arrived(&self) -> usize {
        let consumed = u64::try_from(self.accounts.purchases().await).expect("a count");
        // For a moment the broker cannot tell.
        let waiting = Some(self.accounts.queue.messages().await).filter(|known| *known != u64::MAX);
        usize::try_from(consumed + waiting.unwrap_or_default()).expect("a count")
    }

    async fn ids(&self) -> Vec<String> {
        ids(&self.accounts.queue).await
    }
}

/// The ids of all events in the queue, in order. They stay there.
pub(crate) async fn ids(queue: &Queue) -> Vec<String> {
    let taken = queue.take().await;
    queue.send_with_headers(taken.iter().map(|(payload, headers)| (&payload[..], headers.clone()))).await;
    let id = |headers: &FieldTable| {
        let value = headers.inner().get("idempotencykey").expect("the id");
        String::from_utf8(value.as_long_string().expect("a text").as_bytes().to_vec()).expect("text")
    };
    taken.iter().map(|(_, headers)| id(headers)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn o2_o3_both_ledgers_are_exact() {
    let chain = Chain { shop: Fixture::new("shop").await, accounts: Fixture::with("accounts", &[quorum()]).await };
    shared_chain::o2_o3_both_ledgers_are_exact(&chain).await;
    chain.shop.remove().await;
    chain.accounts.remove().await;
}

/// On servers of its own, which it restarts.
#[tokio::test(flavor = "multi_thread")]
async fn o2_o3_o9_a_chain_outlives_its_servers() {
    let servers = OwnServers::up("amqp-worker-chain", 700, &["postgres", "rabbitmq"]);
    let url = |name| servers.url(name);
    let on_them =
        async |label| Fixture::on_servers(label, &url("rabbitmq"), &url("rabbitmq_management"), &url("postgres")).await;
    let chain = Chain { shop: on_them("shop").await, accounts: on_them("accounts").await };
    servers.restart_in_order("rabbitmq");
    shared_chain::o2_o3_o9_a_chain_outlives_its_servers(&chain, &servers, "rabbitmq").await;
    chain.shop.remove().await;
    chain.accounts.remove().await;
}

#[cfg(feature = "failpoints")]
#[tokio::test(flavor = "multi_thread")]
async fn o45_workers_die_at_each_failpoint() {
    let chain = Chain { shop: Fixture::new("shop").await, accounts: Fixture::new("accounts").await };
    let from_the_append = shared_chain::points_of_a_chain().skip_while(|point| *point != failpoint::APPENDED);
    shared_chain::o45_workers_die_at_each_failpoint(&chain, from_the_append).await;
    chain.shop.remove().await;
    chain.accounts.remove().await;
}
