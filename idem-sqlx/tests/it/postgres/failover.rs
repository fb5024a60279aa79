//! A24: a primary that dies, and a standby that is promoted in its place.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use idem_core::{
    CancellationToken, Event, Store as _, Worker,
    outbox::{EventError, EventPublisher, OutgoingEvent},
    relay::Relay,
    worker::WorkerBuilder,
};
use idem_sqlx::PostgresStore;
use idem_testkit::{
    memory::{Broker, MemorySource, Queue, QueueOptions},
    proxy::Proxy,
};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use tokio::sync::{Semaphore, mpsc};

use super::{
    consumers::{Write, builder, consumer, keys, messages, msg, process},
    fixture::{Fixture, PATIENCE},
    scratch::Scratch,
};

/// A primary and its standby, with one schema, and a proxy before whichever of them is the primary.
struct Pair {
    primary: Scratch,
    before: Fixture,
    standby: Scratch,
    after: Fixture,
    proxy: Proxy,
}

/// The standby, after it has taken over.
struct Survivor {
    standby: Scratch,
    after: Fixture,
    _proxy: Proxy,
}

fn address(server: &Scratch) -> (String, u16) {
    let options: PgConnectOptions = server.url.parse().unwrap();
    (options.get_host().to_owned(), options.get_port())
}

fn authority(server: &Scratch) -> String {
    let (host, port) = address(server);
    format!("{host}:{port}")
}

/// The schema of a fixture at another address.
fn at(host: &str, port: u16, fixture: &Fixture) -> Fixture {
    let connection = fixture.connection.clone().host(host).port(port);
    let admin = PgPoolOptions::new().max_connections(2).connect_lazy_with(connection.clone());
    let store = PostgresStore::with_options(connection.clone()).schema(fixture.schema.clone()).build().unwrap();
    Fixture { store, schema: fixture.schema.clone(), admin, connection, is_reused: false, own_server: None }
}

async fn set(fixture: &Fixture, setting: &str) {
    fixture.run(format!("ALTER SYSTEM SET {setting}")).await;
    fixture.run("SELECT pg_reload_conf()").await;
}

impl Pair {
    async fn new(name: &str) -> Self {
        let primary = Scratch::new(name).await;
        let before = Fixture::on(&primary.url).await;
        let standby = Scratch::standby_of(&format!("{name}s"), &primary).await;
        let (host, port) = address(&standby);
        let after = at(&host, port, &before);
        let proxy = Proxy::to(&authority(&primary)).await.unwrap();
        Self { primary, before, standby, after, proxy }
    }

    /// The schema through the proxy.
    fn through(&self) -> Fixture {
        let (host, port) = self.proxy.address().split_once(':').unwrap();
        at(host, port.parse().unwrap(), &self.before)
    }

    /// The standby has everything so far, and gets nothing from now on.
    async fn part(&self) {
        self.before.until("SELECT replay_lsn >= pg_current_wal_flush_lsn() FROM pg_stat_replication").await;
        set(&self.after, "primary_conninfo = ''").await;
        self.before.until("SELECT count(*) = 0 FROM pg_stat_replication").await;
    }

    /// The primary is gone for ever, and the standby takes over.
    async fn fail_over(self) -> Survivor {
        let Self { primary, before, standby, after, proxy } = self;
        primary.down().await;
        before.store.disconnect().await;
        before.admin.close().await;
        assert_eq!(after.text("SELECT pg_promote()").await, "t");
        after.until("SELECT NOT pg_is_in_recovery()").await;
        proxy.switch_to(&authority(&standby));
        proxy.cut().await;
        Survivor { standby, after, _proxy: proxy }
    }
}

impl Survivor {
    async fn down(self) {
        self.after.drop().await;
        self.standby.down().await;
    }
}

/// Asynchronous: acknowledged messages may be lost, but record and effect together. So delivering again makes it whole.
#[tokio::test]
async fn a24_an_asynchronous_failover_loses_records_and_effects_together() {
    let pair = Pair::new("a24").await;
    let (all, acknowledged) = (keys(40), consumer(pair.before.store.clone(), Write));
    assert_eq!(process(&acknowledged, messages(&all[..20])).await, "P".repeat(20));
    pair.part().await;
    assert_eq!(process(&acknowledged, messages(&all[20..])).await, "P".repeat(20), "acknowledged, and not replicated");
    let survivor = pair.fail_over().await;
    let after = &survivor.after;

    assert_eq!(after.recorded().await, all[..20], "the last commits are lost");
    assert_eq!(after.effects().await, all[..20], "and nothing of them is left");
    let redelivered = consumer(after.store.clone(), Write);
    assert_eq!(process(&redelivered, messages(&all)).await, "D".repeat(20) + &"P".repeat(20));
    assert_eq!(process(&redelivered, messages(&all)).await, "D".repeat(40));
    assert_eq!((after.recorded().await, after.effects().await), (all.clone(), all), "each effect once");
    survivor.down().await;
}

fn worker(fixture: &Fixture, queue: &Queue) -> WorkerBuilder<PostgresStore, MemorySource> {
    // So long that nothing but the end of the server ends a COMMIT that hangs.
    let consumer = builder(fixture.store.clone(), Write).lanes(1).commit_timeout(PATIENCE).busy_timeout(PATIENCE);
    Worker::builder(consumer.build().unwrap(), queue.source()).cleanup(None).drain(Duration::from_secs(10))
}

async fn drained(queue: &Queue) {
    tokio::time::timeout(PATIENCE, queue.drained()).await.expect("every message is settled");
}

/// Synchronous: messages that the standby lacks were never acknowledged, so the broker still has them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a24_a_synchronous_failover_loses_nothing_that_was_acknowledged() {
    let pair = Pair::new("a24sync").await;
    let before = &pair.before;
    set(before, "synchronous_standby_names = '*'").await;
    before.until("SELECT sync_state = 'sync' FROM pg_stat_replication").await;
    let queue = Arc::new(Broker::new()).create("orders", QueueOptions::default()).unwrap();
    let (stop, first) = (CancellationToken::new(), worker(before, &queue).build().unwrap());
    let first = tokio::spawn(first.run(stop.clone().cancelled_owned()));
    queue.publish(msg("kept")).unwrap();
    drained(&queue).await;
    pair.part().await;
    queue.publish(msg("waits")).unwrap();
    before.until("SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'SyncRep'").await;
    assert_eq!(queue.unsettled().len(), 1, "its commit waits for the standby, and it waits for its commit");
    let survivor = pair.fail_over().await;
    let after = &survivor.after;
    stop.cancel();
    // Its database is gone; how it ends says nothing here.
    let _ = first.await.unwrap();

    assert_eq!((after.recorded().await, after.effects().await), (vec!["kept".to_owned()], vec!["kept".to_owned()]));
    assert_eq!(queue.unsettled().len(), 1, "what is lost was not acknowledged");
    let stop = CancellationToken::new();
    let second = tokio::spawn(worker(after, &queue).build().unwrap().run(stop.clone().cancelled_owned()));
    drained(&queue).await;
    stop.cancel();
    second.await.unwrap().unwrap();
    assert_eq!(after.effects().await, ["kept", "waits"], "each effect once");
    assert_eq!(after.recorded().await, ["kept", "waits"]);
    survivor.down().await;
}

/// A43: a worker that runs on after an asynchronous failover answers nothing from what it knew of the old primary, so that
/// the redelivery of what was lost repairs it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a43_a_failover_empties_what_a_running_worker_remembers() {
    let pair = Pair::new("a43").await;
    let through = pair.through();
    let queue = Arc::new(Broker::new()).create("orders", QueueOptions::default()).unwrap();
    let (all, stop) = (keys(40), CancellationToken::new());
    let worker = worker(&through, &queue).cache_for(Duration::from_secs(300)).build().unwrap();
    let running = tokio::spawn(worker.run(stop.clone().cancelled_owned()));
    let send = |keys: &[String]| {
        for key in keys {
            queue.publish(msg(key)).unwrap();
        }
    };
    send(&all[..20]);
    drained(&queue).await;
    pair.part().await;
    send(&all[20..]);
    drained(&queue).await;
    let survivor = pair.fail_over().await;
    let after = &survivor.after;
    // Its controls are read from the new primary, every second. When that begins for the second time, the first has been taken
    // in; until then what was confirmed last holds for 2 seconds at most, which no failover outside of a test is done in. The
    // statement of one look is prepared and then run: both count as its start.
    let read = "FROM pg_stat_activity WHERE query LIKE '%controls AS c ON c.consumer%' AND application_name = 'idem'";
    after.until(&format!("SELECT count(*) > 0 {read}")).await;
    let first = after.text(format!("SELECT max(query_start) {read}")).await;
    after
        .until(&format!("SELECT max(query_start) > '{first}'::timestamptz + interval '500 milliseconds' {read}"))
        .await;
    send(&all);
    drained(&queue).await;
    stop.cancel();
    running.await.unwrap().unwrap();
    assert_eq!(
        (after.recorded().await, after.effects().await),
        (all.clone(), all),
        "what was lost was done again, once"
    );
    through.store.disconnect().await;
    through.admin.close().await;
    survivor.down().await;
}

/// Tells the key of each event that it is given, and confirms it once it may.
struct Gate {
    given: mpsc::UnboundedSender<String>,
    open: Arc<Semaphore>,
}

#[async_trait]
impl EventPublisher for Gate {
    async fn publish_events(&self, events: &[&OutgoingEvent]) -> Vec<Result<(), EventError>> {
        for event in events {
            self.given.send(event.key.to_string()).unwrap();
            self.open.acquire().await.unwrap().forget();
        }
        events.iter().map(|_| Ok(())).collect()
    }
}

/// O41: a relay has an event in hand while its database fails over and loses it, and the new primary draws its number again: that
/// event is sent as well, and not removed for the other one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o41_a_relay_that_lives_through_a_failover_removes_no_event_unsent() {
    let pair = Pair::new("o41").await;
    let (through, before) = (pair.through(), &pair.before);
    let plain = before.store.plain_outbox("writer", ["payments"]).await.unwrap();
    let publish = async |fixture: &Fixture, key: &str| {
        let mut connection = fixture.connect().await;
        plain.publish(&mut connection, key, Event::to("payments").body("1")).await.unwrap();
        fixture.text(format!("SELECT number FROM outbox WHERE event_key = '{key}'")).await
    };
    let (given, mut told) = mpsc::unbounded_channel();
    let open = Arc::new(Semaphore::new(0));
    let relay = Relay::builder(Arc::new(through.store.clone()).outbox().unwrap())
        .to("payments", Gate { given, open: Arc::clone(&open) })
        .settings(|settings| {
            (settings.lease, settings.publish_deadline) = (Duration::from_secs(60), Duration::from_secs(300));
        });
    let stop = CancellationToken::new();
    let relaying = tokio::spawn(relay.build().unwrap().run(stop.clone().cancelled_owned()));
    let mut next = async || tokio::time::timeout(PATIENCE, told.recv()).await.expect("an event is sent").unwrap();
    publish(before, "kept").await;
    assert_eq!(next().await, "kept");
    open.add_permits(1);
    before.until("SELECT count(*) = 0 FROM outbox").await;

    pair.part().await;
    // The log has a server draw some thirty numbers ahead; what is lost is beyond these.
    before.run("SELECT nextval('outbox_numbers') FROM generate_series(1, 100)").await;
    let number = publish(before, "lost").await;
    assert_eq!(next().await, "lost");
    let survivor = pair.fail_over().await;
    let after = &survivor.after;
    let drawn =
        "SELECT nextval('outbox_numbers') FROM outbox_numbers AS s, generate_series(s.last_value + 1, {number} - 1)";
    after.run(drawn.replace("{number}", &number)).await;
    assert_eq!(publish(after, "new").await, number, "it is drawn again");
    open.add_permits(1);
    assert_eq!(next().await, "new");
    open.add_permits(1);
    after.until("SELECT count(*) = 0 FROM outbox").await;
    stop.cancel();
    relaying.await.unwrap().unwrap();
    through.store.disconnect().await;
    through.admin.close().await;
    survivor.down().await;
}
