//! A queue, a database and the workers between them.

use std::ops::Deref;

use lapin::types::AMQPValue;

use super::{
    database,
    purchase::Purchase,
    queue::Queue,
    worker::{Ended, Worker},
};

pub(crate) use super::database::{Database, Ledger, count, until};

pub(crate) struct Fixture {
    pub(crate) queue: Queue,
    database: Database,
}

impl Deref for Fixture {
    type Target = Database;

    fn deref(&self) -> &Database {
        &self.database
    }
}

/// The argument that makes a queue a quorum queue.
pub(crate) fn quorum() -> (&'static str, AMQPValue) {
    ("x-queue-type", AMQPValue::LongString("quorum".into()))
}

impl Fixture {
    /// A new classic queue and a new database. `label` helps to find the leftovers of a failed test.
    pub(crate) async fn new(label: &str) -> Self {
        Self::with(label, &[]).await
    }

    /// The same with these arguments of the queue.
    pub(crate) async fn with(label: &str, arguments: &[(&str, AMQPValue)]) -> Self {
        let database = Database::create(label, &database::server()).await;
        Self { queue: Queue::create(&database.name, arguments).await, database }
    }

    /// The same on servers of the caller's.
    pub(crate) async fn on_servers(label: &str, broker: &str, management: &str, server: &str) -> Self {
        let database = Database::create(label, server).await;
        Self { queue: Queue::create_on(broker, management, &database.name, &[]).await, database }
    }

    /// The arguments of a worker, which further ones may follow.
    pub(crate) fn arguments(&self, more: &[&str]) -> Vec<String> {
        self.arguments_to(&self.queue.url, &self.url, more)
    }

    /// The same for a worker that reaches its servers another way.
    pub(crate) fn arguments_to(&self, broker: &str, database: &str, more: &[&str]) -> Vec<String> {
        let own = ["--amqp-url", broker, "--queue", &self.queue.name, "--consumer", &self.name].into_iter().chain([
            "--database-url",
            database,
            "--cleanup-database-url",
            &self.cleanup_url,
            "--lanes",
            "2",
        ]);
        own.chain(more.iter().copied()).map(str::to_owned).collect()
    }

    pub(crate) fn start(&self, more: &[&str]) -> Worker {
        self.start_with(&self.arguments(more))
    }

    pub(crate) fn start_with(&self, arguments: &[String]) -> Worker {
        Worker::start(env!("CARGO_BIN_EXE_amqp-rig"), arguments, &[], &self.next_log())
    }

    /// The same with these failpoints.
    pub(crate) fn start_armed(&self, more: &[&str], armed: &str) -> Worker {
        let variables = [("IDEM_FAILPOINTS", armed)];
        Worker::start(env!("CARGO_BIN_EXE_amqp-rig"), &self.arguments(more), &variables, &self.next_log())
    }

    /// Runs one worker until the queue is empty.
    pub(crate) async fn drain(&self, more: &[&str]) -> Ended {
        let more = [&["--until-idle", "3s"], more].concat();
        self.start(&more).ended().await
    }

    /// Waits until the queue has nothing left, settled or not.
    pub(crate) async fn until_settled(&self) {
        until(&format!("the end of {}", self.name), async || self.queue.messages().await == 0).await;
    }

    /// Sends the purchases of these numbers.
    pub(crate) async fn send(&self, numbers: impl IntoIterator<Item = i64>) {
        self.queue.send(numbers.into_iter().map(Purchase::number)).await;
    }
}
