//! Lives of a queue under every fault, for `./chaos`. The queue is that of the test kit's server, which is strict as SQS's
//! documentation is.

use idem_testkit::proxy::Proxy;
use tokio::time::Instant;

use super::{
    fixture::{Database, Fixture, until},
    own_servers::OwnServers,
    purchase::Purchase,
    queue::Server,
    shared_chaos::{Pair, Stage, live, wanted},
    worker::Worker,
};

struct OnSqs {
    fixture: Fixture,
    proxy: Proxy,
}

impl Stage for OnSqs {
    fn database(&self) -> &Database {
        &self.fixture
    }

    fn start(&self, more: &[&str]) -> Worker {
        let endpoint = format!("http://{}", self.proxy.address());
        let mut arguments = self.fixture.arguments(more);
        // A worker that an answer of SQS does not reach holds its messages for as long as the visibility.
        for (flag, value) in [("--handler-deadline", "4s"), ("--visibility", "5s")] {
            let at = arguments.iter().position(|argument| argument == flag).expect("a usual flag");
            value.clone_into(&mut arguments[at + 1]);
        }
        self.fixture.start_with(&arguments, &[("AWS_ENDPOINT_URL", &*endpoint)])
    }

    async fn publish(&self, numbers: Vec<i64>) {
        self.fixture.queue.send(numbers.into_iter().map(Purchase::number)).await;
    }

    async fn settled(&self) {
        until("an empty queue", async || self.fixture.queue.counts().await == [0, 0, 0]).await;
    }

    /// It lives in this process, and with it its messages would be gone.
    fn restart_broker(&self) -> bool {
        false
    }

    fn broker_proxy(&self) -> Option<&Proxy> {
        Some(&self.proxy)
    }
}

/// Does nothing without `./chaos`, which sets how long it takes.
#[tokio::test(flavor = "multi_thread")]
async fn chaos_leaves_an_exact_ledger() {
    let Some(wanted) = wanted() else { return };
    // It needs clusters alone.
    let (servers, begun) = (OwnServers::up("chaos-sqs", 3_200, &["postgres"]), Instant::now());
    for life in 0.. {
        if begun.elapsed() >= wanted {
            break;
        }
        let mut pair = Pair::up(&servers, "chaos_sqs_").await;
        let server = Server::strict().await;
        let proxy = Proxy::to(server.endpoint().trim_start_matches("http://")).await.expect("a proxy");
        let fixture = Fixture::on_servers(&server, "chaos", "", &pair.url).await;
        live(&OnSqs { fixture, proxy }, &mut pair, "SQS", life).await;
        pair.remove();
    }
}
