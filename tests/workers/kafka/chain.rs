//! Two workers in a row, with a topic between them.

use std::{collections::BTreeSet, ops::Range};

use idem_testkit::idem_core::failpoint;
use rdkafka::message::{Headers as _, Message as _, OwnedMessage};

use super::{
    database::Database,
    fixture::{Fixture, PIPELINED, count},
    own_servers::OwnServers,
    shared_chain::{self, Link},
    topic::Topic,
    worker::Worker,
};

struct Chain {
    shop: Fixture,
    /// On the topic of what is announced.
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
        let announcing = ["--reset", "earliest", "--announce", &self.accounts.topic.name, "--batch", "20"];
        self.shop.start(&[&announcing, more].concat())
    }

    fn start_accounts(&self, more: &[&str]) -> Worker {
        self.accounts.start(&[&["--reset", "earliest"], more].concat())
    }

    fn start_shop_armed(&self, armed: &str) -> Worker {
        let topic = &self.accounts.topic.name;
        let more = ["--reset", "earliest", "--announce", topic, "--batch", "20", "--attempts", "100"];
        self.shop.start_armed(&more, armed)
    }

    fn start_accounts_armed(&self, armed: &str) -> Worker {
        self.accounts.start_armed(&["--reset", "earliest", "--attempts", "100"], armed)
    }

    async fn send(&self, numbers: Range<i64>) {
        self.shop.send(numbers).await;
    }

    async fn arrived(&self) -> usize {
        usize::try_from(self.accounts.topic.ends().await[&0]).expect("a count")
    }

    async fn ids(&self) -> Vec<String> {
        ids(&self.accounts.topic).await
    }
}

/// The ids of all events of the first partition, in order.
pub(crate) async fn ids(topic: &Topic) -> Vec<String> {
    let id = |record: &OwnedMessage| {
        let headers = record.headers().expect("headers");
        let header = headers.iter().find(|header| header.key == "idempotencykey").expect("the id");
        String::from_utf8(header.value.expect("a value").to_vec()).expect("text")
    };
    topic.records().await.iter().map(id).collect()
}

/// With a client and a way to run handlers on each side: the events are the same on all, as the ledger's own test shows.
#[tokio::test(flavor = "multi_thread")]
async fn o2_o3_both_ledgers_are_exact() {
    let shop = Fixture::new("shop", 2).await.client(PIPELINED);
    let chain = Chain { shop, accounts: Fixture::new("accounts", 1).await };
    shared_chain::o2_o3_both_ledgers_are_exact(&chain).await;
    chain.shop.remove().await;
    chain.accounts.remove().await;
}

/// On servers of its own, which it restarts.
#[tokio::test(flavor = "multi_thread")]
async fn o2_o3_o9_a_chain_outlives_its_servers() {
    let servers = OwnServers::up("kafka-worker-chain", 800, &["postgres", "kafka"]);
    let on_them =
        async |label, partitions| Fixture::on(label, partitions, &servers.url("kafka"), &servers.url("postgres")).await;
    let chain = Chain { shop: on_them("shop", 2).await, accounts: on_them("accounts", 1).await };
    shared_chain::o2_o3_o9_a_chain_outlives_its_servers(&chain, &servers, "kafka").await;
    chain.shop.remove().await;
    chain.accounts.remove().await;
}

/// The places where a worker dies that publishes, and two where the one behind it dies, too; each takes the time in which its group
/// misses a member. Without `--all` those that leave copies, at the topic or to the second worker, and the append.
#[cfg(feature = "failpoints")]
#[tokio::test(flavor = "multi_thread")]
async fn o45_workers_die_at_each_failpoint() {
    use failpoint::{APPENDED, COMMIT_OK, GUARD, RELAY_CONFIRMED, RELAY_SETTLED, RELAY_TAKEN};
    let chain = Chain { shop: Fixture::new("shop", 2).await, accounts: Fixture::new("accounts", 1).await };
    let all = [RELAY_CONFIRMED, APPENDED, COMMIT_OK, GUARD, RELAY_TAKEN, RELAY_SETTLED];
    let points = &all[..usize::try_from(count(6, 3)).expect("a count")];
    let copies = shared_chain::o45_workers_die_at_each_failpoint(&chain, points.iter().copied()).await;
    let sent = ids(&chain.accounts.topic).await;
    let sent_again = sent.len() - sent.iter().collect::<BTreeSet<_>>().len();
    assert!(sent_again > 0, "the relay that died has sent nothing twice, so this has shown nothing");
    assert!(
        copies > sent_again,
        "the second worker came to nothing again that it had committed: {copies}, {sent_again}"
    );
    chain.shop.remove().await;
    chain.accounts.remove().await;
}
