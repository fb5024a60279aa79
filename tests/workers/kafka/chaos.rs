//! Lives of a topic under every fault, for `./chaos`.

use idem_testkit::proxy::Proxy;
use tokio::time::Instant;

use super::{
    fixture::{Database, Fixture},
    own_servers::OwnServers,
    purchase::Purchase,
    shared_chaos::{Pair, Stage, live, wanted},
    worker::Worker,
};

struct OnKafka<'s> {
    fixture: Fixture,
    servers: &'s OwnServers,
}

impl Stage for OnKafka<'_> {
    fn database(&self) -> &Database {
        &self.fixture
    }

    fn start(&self, more: &[&str]) -> Worker {
        self.fixture.start(&[&["--reset", "earliest"], more].concat())
    }

    async fn publish(&self, numbers: Vec<i64>) {
        self.fixture.topic.send(numbers.into_iter().map(Purchase::number)).await;
    }

    async fn settled(&self) {
        self.fixture.until_settled().await;
    }

    fn restart_broker(&self) -> bool {
        self.servers.restart("kafka");
        true
    }

    /// Clients go on to the address that the broker advertises, past any proxy.
    fn broker_proxy(&self) -> Option<&Proxy> {
        None
    }
}

/// Does nothing without `./chaos`, which sets how long it takes.
#[tokio::test(flavor = "multi_thread")]
async fn chaos_leaves_an_exact_ledger() {
    let Some(wanted) = wanted() else { return };
    let (servers, begun) = (OwnServers::up("chaos-kafka", 3_000, &["kafka"]), Instant::now());
    for life in 0.. {
        if begun.elapsed() >= wanted {
            break;
        }
        let mut pair = Pair::up(&servers, "chaos_kafka_").await;
        let fixture = Fixture::on("chaos", 6, &servers.url("kafka"), &pair.url).await;
        let stage = OnKafka { fixture, servers: &servers };
        live(&stage, &mut pair, "Kafka", life).await;
        pair.remove();
    }
}
