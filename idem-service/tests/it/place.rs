//! A worker's surroundings: a broker on a socket, a database, a folder for both.

use std::{path::PathBuf, process};

use idem_core::{
    Message,
    standing::{Fact, to_json},
};
use idem_testkit::memory::{Broker, Queue, QueueOptions, Server};
use sqlx::{Connection as _, SqliteConnection};

/// A place of its own for one test; it is left behind where the test fails.
pub(crate) struct Place {
    pub(crate) folder: PathBuf,
    pub(crate) broker: Broker,
    pub(crate) orders: Queue,
    server: Option<Server>,
}

impl Place {
    pub(crate) async fn new() -> Self {
        let folder = std::env::temp_dir().join(format!("idem-service-{}-{:08x}", process::id(), fastrand::u32(..)));
        std::fs::create_dir(&folder).unwrap();
        let broker = Broker::new();
        let orders = broker.create("orders", QueueOptions::default()).unwrap();
        broker.create("dead", QueueOptions::default()).unwrap();
        let mut place = Self { folder, broker, orders, server: None };
        place.serve().await;
        place
    }

    /// Lets the broker listen.
    pub(crate) async fn serve(&mut self) {
        self.server = Some(self.broker.serve(self.socket()).await.unwrap());
    }

    /// The socket is closed.
    pub(crate) fn stop_serving(&mut self) {
        self.server = None;
    }

    pub(crate) fn socket(&self) -> String {
        self.folder.join("broker").display().to_string()
    }

    pub(crate) fn url(&self) -> String {
        format!("sqlite://{}", self.folder.join("idem.db").display())
    }

    /// Publishes a purchase of one CD for 1177 cents.
    pub(crate) fn publish(&self, key: &str, customer: &str) {
        self.publish_text(&purchase(key, customer, 1177));
    }

    pub(crate) fn publish_text(&self, payload: &str) {
        self.orders.publish(Message::new(payload.to_owned())).unwrap();
    }

    /// Each customer's purchases and cents.
    pub(crate) async fn customers(&self) -> Vec<(String, i64, i64)> {
        let mut connection = SqliteConnection::connect(&self.url()).await.unwrap();
        let text = "SELECT customer, purchases, cents FROM customers ORDER BY customer";
        sqlx::query_as(text).fetch_all(&mut connection).await.unwrap()
    }

    /// The keys of the rows of `purchases`.
    pub(crate) async fn purchases(&self) -> Vec<String> {
        let mut connection = SqliteConnection::connect(&self.url()).await.unwrap();
        let text = "SELECT idempotency_key FROM purchases ORDER BY 1";
        sqlx::query_scalar(text).fetch_all(&mut connection).await.unwrap()
    }

    /// An operator's control of the consumer.
    pub(crate) async fn control(&self, state: &str, by: &str, reason: &str) {
        let mut connection = SqliteConnection::connect(&self.url()).await.unwrap();
        let text = "INSERT INTO idem_controls (consumer, state, \"by\", reason, at) SELECT id, ?1, ?2, ?3, unixepoch() * 1000000 FROM \
                    idem_consumers WHERE true ON CONFLICT (consumer) DO UPDATE SET state = ?1, \"by\" = ?2, reason = ?3, \
                    at = excluded.at";
        sqlx::query(text).bind(state).bind(by).bind(reason).execute(&mut connection).await.unwrap();
    }

    /// Another worker of the consumer, which reports these facts.
    pub(crate) async fn report(&self, facts: &[Fact]) {
        let mut connection = SqliteConnection::connect(&self.url()).await.unwrap();
        let text = "INSERT INTO idem_worker_runs (host, process, version, started_at, consumer, seen_at, standing)
            SELECT 'elsewhere', 1, '1', unixepoch() * 1000000, id, (unixepoch() + 600) * 1000000, ?1 FROM idem_consumers";
        sqlx::query(text).bind(to_json(facts)).execute(&mut connection).await.unwrap();
    }

    pub(crate) fn remove(self) {
        drop(self.server);
        std::fs::remove_dir_all(self.folder).unwrap();
    }
}

pub(crate) fn purchase(key: &str, customer: &str, cents: i64) -> String {
    format!(r#"{{"idempotencykey":"{key}","customer":"{customer}","day":"1997-01-01","cds":1,"cents":{cents}}}"#)
}
