//! A topic, a database and the workers between them.

use std::{collections::BTreeMap, ops::Deref};

use super::{
    purchase::Purchase,
    topic::{Topic, brokers},
    worker::{Ended, Worker},
};

pub(crate) use super::database::{Database, Ledger, count, until};

/// The flags of a client library and of how handlers run.
pub(crate) type Client = &'static [&'static str];

/// The default.
pub(crate) const SQLX: Client = &[];
pub(crate) const TOKIO_POSTGRES: Client = &["--store", "tokio-postgres"];
pub(crate) const PIPELINED: Client = &["--store", "tokio-postgres", "--handlers", "pipelined"];

/// A test of each function of these names, which takes the client: with each with `./test --all`, else with one that is drawn by
/// the seed, of three tests in a row another one each.
macro_rules! with_each_client {
    ($($name:ident),* $(,)?) => { $crate::fixture::with_each_client!(@ 0; $($name,)*); };
    (@ $turn:expr; $name:ident, $($others:ident,)*) => {
        mod $name {
            #[tokio::test(flavor = "multi_thread")]
            async fn with_each_client() {
                for client in crate::fixture::clients($turn) {
                    println!("{client:?}");
                    super::$name(client).await;
                }
            }
        }
        $crate::fixture::with_each_client!(@ $turn + 1; $($others,)*);
    };
    (@ $turn:expr;) => {};
}
pub(crate) use with_each_client;

/// All clients with `./test --all`, else the one whose turn it is.
pub(crate) fn clients(turn: u64) -> Vec<Client> {
    let all = vec![SQLX, TOKIO_POSTGRES, PIPELINED];
    match std::env::var_os("IDEM_TEST_ALL") {
        Some(_) => all,
        None => vec![all[usize::try_from((idem_testkit::seed() + turn) % 3).expect("below 3")]],
    }
}

pub(crate) struct Fixture {
    pub(crate) topic: Topic,
    database: Database,
    client: Client,
}

impl Deref for Fixture {
    type Target = Database;

    fn deref(&self) -> &Database {
        &self.database
    }
}

impl Fixture {
    /// A new topic and a new database. `label` helps to find the leftovers of a failed test.
    pub(crate) async fn new(label: &str, partitions: i32) -> Self {
        Self::on(label, partitions, &brokers(), &super::database::server()).await
    }

    /// The same on servers of the caller's.
    pub(crate) async fn on(label: &str, partitions: i32, brokers: &str, server: &str) -> Self {
        Self::of(Database::create(label, server).await, partitions, brokers).await
    }

    /// The same with nothing in the database, of which workers are the owner.
    pub(crate) async fn empty(label: &str) -> Self {
        Self::of(Database::empty(label, &super::database::server()).await, 1, &brokers()).await
    }

    async fn of(database: Database, partitions: i32, brokers: &str) -> Self {
        let topic = Topic::create(brokers, &database.name, partitions).await;
        Self { topic, database, client: SQLX }
    }

    /// Its workers have this client.
    pub(crate) fn client(self, client: Client) -> Self {
        Self { client, ..self }
    }

    /// The arguments of a worker, which further ones may follow.
    pub(crate) fn arguments(&self, more: &[&str]) -> Vec<String> {
        self.arguments_of(&self.name, more)
    }

    /// The same as consumer and group `name`.
    pub(crate) fn arguments_of(&self, name: &str, more: &[&str]) -> Vec<String> {
        let Topic { name: topic, brokers, .. } = &self.topic;
        let own = ["--brokers", brokers, "--topic", topic, "--group", name, "--consumer", name]
            .into_iter()
            .chain(["--database-url", &self.url, "--cleanup-database-url", &self.cleanup_url, "--lanes", "2"])
            // So that a member that dies is missed after seconds.
            .chain(["--kafka", "session.timeout.ms=6000", "--kafka", "heartbeat.interval.ms=1000"]);
        own.chain(self.client.iter().chain(more).copied()).map(str::to_owned).collect()
    }

    pub(crate) fn start(&self, more: &[&str]) -> Worker {
        self.start_with(&self.arguments(more))
    }

    pub(crate) fn start_with(&self, arguments: &[String]) -> Worker {
        Worker::start(env!("CARGO_BIN_EXE_kafka-rig"), arguments, &[], &self.next_log())
    }

    /// With a failpoint armed.
    pub(crate) fn start_armed(&self, more: &[&str], armed: &str) -> Worker {
        let variables = [("IDEM_FAILPOINTS", armed)];
        Worker::start(env!("CARGO_BIN_EXE_kafka-rig"), &self.arguments(more), &variables, &self.next_log())
    }

    /// Runs one worker from the beginning of the topic until there is nothing left.
    pub(crate) async fn drain(&self, more: &[&str]) -> Ended {
        let more = [&["--reset", "earliest", "--until-idle", "1s"], more].concat();
        self.start(&more).ended().await
    }

    /// Waits until the group's committed offsets are the ends of all partitions: everything is settled.
    pub(crate) async fn until_settled(&self) {
        let ends: BTreeMap<i32, i64> = self.topic.ends().await.into_iter().filter(|(_, end)| *end > 0).collect();
        until(&format!("the offsets of {} at {ends:?}", self.name), async || {
            let mut committed = self.topic.committed(&self.name).await;
            committed.retain(|partition, _| ends.contains_key(partition));
            committed == ends
        })
        .await;
    }

    /// Sends the purchases of these numbers.
    pub(crate) async fn send(&self, numbers: impl IntoIterator<Item = i64>) {
        self.topic.send(numbers.into_iter().map(Purchase::number)).await;
    }
}
