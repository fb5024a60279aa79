//! Lives of a queue under every fault, for `./chaos`.

use idem_testkit::proxy::Proxy;
use tokio::time::Instant;

use super::{
    fixture::{Database, Fixture},
    own_servers::OwnServers,
    purchase::Purchase,
    queue::host,
    shared_chaos::{Pair, Stage, live, wanted},
    worker::Worker,
};

struct OnRabbitMq<'s> {
    fixture: Fixture,
    servers: &'s OwnServers,
    proxy: Proxy,
}

impl Stage for OnRabbitMq<'_> {
    fn database(&self) -> &Database {
        &self.fixture
    }

    fn start(&self, more: &[&str]) -> Worker {
        let queue = &self.fixture.queue;
        let url = queue.url.replace(host(&queue.url), self.proxy.address());
        self.fixture.start_with(&self.fixture.arguments_to(&url, &self.fixture.url, more))
    }

    async fn publish(&self, numbers: Vec<i64>) {
        self.fixture.queue.send(numbers.into_iter().map(Purchase::number)).await;
    }

    async fn settled(&self) {
        self.fixture.until_settled().await;
    }

    fn restart_broker(&self) -> bool {
        self.servers.restart("rabbitmq");
        true
    }

    fn broker_proxy(&self) -> Option<&Proxy> {
        Some(&self.proxy)
    }
}

/// Does nothing without `./chaos`, which sets how long it takes.
#[tokio::test(flavor = "multi_thread")]
async fn chaos_leaves_an_exact_ledger() {
    let Some(wanted) = wanted() else { return };
    let (servers, begun) = (OwnServers::up("chaos-amqp", 3_100, &["rabbitmq"]), Instant::now());
    for life in 0.. {
        if begun.elapsed() >= wanted {
            break;
        }
        let mut pair = Pair::up(&servers, "chaos_amqp_").await;
        let (broker, management) = (servers.url("rabbitmq"), servers.url("rabbitmq_management"));
        let fixture = Fixture::on_servers("chaos", &broker, &management, &pair.url).await;
        // The queue is on the disk from now on.
        servers.restart_in_order("rabbitmq");
        let proxy = Proxy::to(host(&broker)).await.expect("a proxy");
        let stage = OnRabbitMq { fixture, servers: &servers, proxy };
        live(&stage, &mut pair, "RabbitMQ", life).await;
        pair.remove();
    }
}
