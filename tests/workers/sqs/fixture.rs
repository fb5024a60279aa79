//! A queue, a database and the workers between them.

use std::ops::Deref;

use super::{
    database,
    purchase::Purchase,
    queue::{Queue, Server},
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

impl Fixture {
    /// A new queue, whose name ends so, and a new database. `label` helps to find the leftovers of a failed test.
    pub(crate) async fn new(label: &str, ending: &str) -> Self {
        Self::on(&Server::ElasticMq, label, ending).await
    }

    /// The same on this server.
    pub(crate) async fn on(server: &Server, label: &str, ending: &str) -> Self {
        Self::on_servers(server, label, ending, &database::server()).await
    }

    /// The same with this PostgreSQL.
    pub(crate) async fn on_servers(server: &Server, label: &str, ending: &str, postgres: &str) -> Self {
        let database = Database::create(label, postgres).await;
        Self { queue: Queue::create(server, &format!("{}{ending}", database.name)).await, database }
    }

    /// The arguments of a worker, which further ones may follow.
    pub(crate) fn arguments(&self, more: &[&str]) -> Vec<String> {
        let own = ["--queue-url", &self.queue.url, "--consumer", &self.name, "--database-url", &self.url]
            .into_iter()
            .chain(["--cleanup-database-url", &self.cleanup_url, "--lanes", "2", "--wait", "1s"])
            // So that the messages of a worker that died are missing for seconds only.
            .chain(["--handler-deadline", "10s", "--visibility", "20s"]);
        own.chain(more.iter().copied()).map(str::to_owned).collect()
    }

    pub(crate) fn start(&self, more: &[&str]) -> Worker {
        self.start_with(&self.arguments(more), &[])
    }

    /// The same with these arguments and, beside those of the AWS SDK, these variables.
    pub(crate) fn start_with(&self, arguments: &[String], variables: &[(&str, &str)]) -> Worker {
        let endpoint = self.queue.server.endpoint();
        let sdk = [
            ("AWS_ENDPOINT_URL", endpoint.as_str()),
            ("AWS_REGION", "eu-central-1"),
            ("AWS_ACCESS_KEY_ID", "test"),
            ("AWS_SECRET_ACCESS_KEY", "test"),
            // The SDK must not ask the machine for its identity.
            ("AWS_EC2_METADATA_DISABLED", "true"),
        ];
        let variables = [&sdk, variables].concat();
        Worker::start(env!("CARGO_BIN_EXE_sqs-rig"), arguments, &variables, &self.next_log())
    }

    /// Runs one worker until there is nothing left.
    pub(crate) async fn drain(&self, more: &[&str]) -> Ended {
        self.start(&[&["--until-idle", "1s"], more].concat()).ended().await
    }

    /// Sends the purchases of these numbers.
    pub(crate) async fn send(&self, numbers: impl IntoIterator<Item = i64>) {
        self.queue.send(numbers.into_iter().map(Purchase::number)).await;
    }

    /// Drops the database, even with open connections, and the queue; those of a test that fails stay.
    pub(crate) async fn remove(self) {
        self.database.remove().await;
        self.queue.delete().await;
    }
}
