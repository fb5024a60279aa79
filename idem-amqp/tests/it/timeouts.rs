//! A broker that takes messages back (G4), on a server of its own.

use std::process::Command;

use idem_core::{Message, Settled, Source};

use crate::{
    broker::{Kind, Queue},
    member::{Member, within},
};

/// A RabbitMQ that one test has for itself, by `./servers`. It goes with this value.
struct OwnServer {
    set: &'static str,
    conf: &'static str,
}

/// Ports away from those that everybody shares.
const PORT_OFFSET: u32 = 500;

impl OwnServer {
    /// Starts it with `conf` as further lines of its rabbitmq.conf.
    fn up(set: &'static str, conf: &'static str) -> Self {
        let server = Self { set, conf };
        server.run(&["up", "rabbitmq"]);
        server
    }

    fn url(&self) -> String {
        self.run(&["url", "rabbitmq"]).trim().to_owned()
    }

    fn run(&self, arguments: &[&str]) -> String {
        let outer: u32 = std::env::var("IDEM_PORT_OFFSET").ok().and_then(|offset| offset.parse().ok()).unwrap_or(0);
        let output = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../servers"))
            .args(arguments)
            .env("IDEM_SERVERS_SET", self.set)
            .env("IDEM_PORT_OFFSET", (outer + PORT_OFFSET).to_string())
            .env("IDEM_RABBITMQ_CONF", self.conf)
            .output()
            .unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(output.status.success(), "./servers {arguments:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }
}

impl Drop for OwnServer {
    fn drop(&mut self) {
        self.run(&["down", "--purge"]);
    }
}

/// G4: the broker closes the channel of a consumer that settles nothing. The next one begins at once, and the message
/// comes back.
#[tokio::test(flavor = "multi_thread")]
async fn g4_a_channel_that_timed_out_is_opened_anew() {
    let server =
        tokio::task::spawn_blocking(|| OwnServer::up("amqp-timeouts", "consumer_timeout = 10000")).await.unwrap();
    let url = server.url();
    let queue = Queue::on(&url, Kind::Classic, &[]).await;
    queue.publish(Message::new("slow")).await.unwrap();
    let member = Member::join(&queue.options()).await;
    let late = member.take(1).await;
    member.lost().await;
    let again = member.take(1).await;
    assert!(again[0].redelivered);
    assert_eq!(member.settle(late).await, [Settled::Stale]);
    member.acknowledge(again).await;
    assert!(within("is_idle", member.0.is_idle()).await);
    drop(member);
    tokio::task::spawn_blocking(move || drop(server)).await.unwrap();
}
