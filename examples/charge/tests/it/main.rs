//! A worker that calls a payment provider is killed wherever the engine can be killed. The provider charges, and does
//! not answer the first call for an order.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test that cannot go on fails, and says why"
)]

use std::{
    collections::BTreeMap, os::unix::process::ExitStatusExt as _, path::PathBuf, process::ExitStatus, time::Duration,
};

use charge::{
    Charge,
    provider::{Keys, Provider},
    worker,
};
use futures_util::{StreamExt as _, stream};
use idem_core::{Effects, failpoint};
use idem_sqlx::SqliteScratch;
use idem_testkit::{
    failpoints,
    memory::{Broker, Queue, QueueOptions, Server},
    message, prove,
};
use sqlx::{Connection as _, SqliteConnection};
use tokio::process::Command;

const SIGABRT: i32 = 6;

/// Where this worker never comes by: it publishes nothing, has no batches, and cleanup has nothing to do for an hour.
const NOT_REACHED: [&str; 3] = [failpoint::APPENDED, failpoint::ISOLATE, failpoint::CLEAN_CHUNK];

struct Fixture {
    provider: Provider,
    folder: PathBuf,
    queue: Queue,
    _server: Server,
}

impl Fixture {
    /// Four orders, and one that the provider declines.
    async fn new(keys: Keys) -> Self {
        let folder = std::env::temp_dir().join(format!("idem-charge-{:016x}", fastrand::u64(..)));
        std::fs::create_dir(&folder).unwrap();
        let broker = Broker::new();
        let queue = broker.create("orders", QueueOptions::default()).unwrap();
        for (order, cents) in [("1", 1177), ("2", 1177), ("3", -1), ("4", 999), ("5", 1)] {
            let payload = format!(r#"{{"order":"{order}","cents":{cents}}}"#);
            queue.publish(message(&format!("order-{order}"), payload)).unwrap();
        }
        let server = broker.serve(folder.join("broker")).await.unwrap();
        Self { provider: Provider::start(keys).await.unwrap(), folder, queue, _server: server }
    }

    /// Runs the worker until it is done or dies.
    async fn run(&self, armed: &str) -> ExitStatus {
        let mut worker = Command::new(env!("CARGO_BIN_EXE_charge"));
        worker.arg(self.folder.join("broker")).arg(self.provider.address.to_string()).arg(self.folder.join("idem.db"));
        worker.env(failpoints::VARIABLE, armed).kill_on_drop(true).status().await.unwrap()
    }

    /// The orders that the worker has noted as charged.
    async fn noted(&self) -> Vec<String> {
        let url = format!("sqlite://{}", self.folder.join("idem.db").display());
        let mut database = SqliteConnection::connect(&url).await.unwrap();
        sqlx::query_scalar("SELECT order_number FROM charges ORDER BY 1").fetch_all(&mut database).await.unwrap()
    }

    fn remove(self) {
        std::fs::remove_dir_all(self.folder).unwrap();
    }
}

/// Kills the worker at the failpoint, runs it to its end, and checks. Answers whether it was killed.
async fn one_charge_an_order(point: &'static str) -> (&'static str, bool) {
    let fixture = Fixture::new(Keys::Honoured).await;
    let killed = fixture.run(&format!("{point}=1*abort")).await;
    assert!(killed.success() || killed.signal() == Some(SIGABRT), "{point}: {killed}");
    assert!(fixture.run("").await.success(), "{point}");
    let once = |orders: &[&str]| orders.iter().map(|order| ((*order).to_owned(), 1)).collect::<BTreeMap<_, _>>();
    assert_eq!(fixture.provider.charges(), once(&["1", "2", "4", "5"]), "{point}");
    assert_eq!(fixture.noted().await, ["1", "2", "4", "5"], "{point}");
    assert_eq!(fixture.queue.stats().unsettled(), 0, "{point}");
    fixture.remove();
    (point, killed.signal() == Some(SIGABRT))
}

#[tokio::test(flavor = "multi_thread")]
async fn one_charge_an_order_wherever_the_worker_is_killed() {
    let rows = stream::iter(failpoint::ALL.iter().filter(|point| !failpoint::OF_A_RELAY.contains(point)))
        .map(|point| one_charge_an_order(point))
        .buffer_unordered(4);
    let rows: Vec<_> = rows.collect().await;
    let mut spared: Vec<_> = rows.into_iter().filter(|(_, killed)| !killed).map(|(point, _)| point).collect();
    spared.sort_by_key(|point| failpoint::ALL.iter().position(|other| other == point));
    assert_eq!(spared, NOT_REACHED);
}

/// Proved on files of its own; and the provider has made one charge an order in all of it.
#[tokio::test]
async fn the_charge_is_proved_and_the_provider_charged_once() {
    let provider = Provider::start(Keys::Honoured).await.unwrap();
    let (address, databases) =
        (provider.address, SqliteScratch::new(async |file: PathBuf| worker::create_table(&file).await));
    let orders = [("1", 1177), ("2", 1177), ("3", 999)];
    let messages = orders
        .map(|(order, cents)| message(&format!("order-{order}"), format!(r#"{{"order":"{order}","cents":{cents}}}"#)));
    let proof = prove(databases, move |_| Charge { provider: address })
        .consumer(|consumer| consumer.effects(Effects::Outside).handler_deadline(Duration::from_secs(5)))
        .messages(messages);
    let proven = proof.run().await.unwrap_or_else(|error| panic!("{error}"));
    println!("{proven}");
    assert!(proven.kills > 20, "{proven}");
    assert!(
        provider.charges().len() == 3 && provider.charges().values().all(|charges| *charges == 1),
        "{:?}",
        provider.charges()
    );
}

/// The limit of the key alone.
#[tokio::test]
async fn a_provider_that_ignores_the_key_charges_twice() {
    let fixture = Fixture::new(Keys::Ignored).await;
    assert!(fixture.run("").await.success());
    assert!(fixture.provider.charges().values().all(|charges| *charges >= 2), "{:?}", fixture.provider.charges());
    assert_eq!(fixture.noted().await, ["1", "2", "4", "5"]);
    fixture.remove();
}
