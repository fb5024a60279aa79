//! Faults of every kind in any order, on servers of its own, for as long as `./chaos` says. The tests of every worker include
//! this file, and add their broker.

use std::{fs::OpenOptions, io::Write as _, time::Duration};

use fastrand::Rng;
use idem_testkit::proxy::Proxy;
use sqlx::{AssertSqlSafe, Connection, PgConnection, query, query_scalar};
use tokio::time::Instant;

use super::{
    database::{Database, Ledger, until},
    own_servers::OwnServers,
    worker::Worker,
};

/// The stage of a life: a broker's topic or queue, a database, and the workers between them.
pub(crate) trait Stage {
    fn database(&self) -> &Database;

    /// Starts a worker with these further arguments.
    fn start(&self, more: &[&str]) -> Worker;

    /// Publishes the purchases of these numbers, some of them more than once.
    async fn publish(&self, numbers: Vec<i64>);

    /// Waits until the broker has nothing left that is unsettled.
    async fn settled(&self);

    /// The broker crashes, and starts again, if it can be had do that without losing what it has confirmed.
    fn restart_broker(&self) -> bool;

    /// The proxy that connections to the broker go through, where they can.
    fn broker_proxy(&self) -> Option<&Proxy>;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// A worker is killed.
    Kill,
    /// A worker is stopped as a deployment does it.
    Stop,
    /// A worker stands still for longer than its session at the broker, and goes on.
    Freeze,
    /// Every connection to the database breaks, or every one to the broker.
    Cut,
    /// Nothing passes on them for a while, without an error.
    Hang,
    /// The database crashes, and starts again.
    CrashDatabase,
    /// The broker does.
    CrashBroker,
    /// The database's machine is gone, and its synchronous standby takes over.
    FailOver,
}

impl Fault {
    const ALL: [Self; 8] = [
        Self::Kill,
        Self::Stop,
        Self::Freeze,
        Self::Cut,
        Self::Hang,
        Self::CrashDatabase,
        Self::CrashBroker,
        Self::FailOver,
    ];
}

/// How workers reach the database and run handlers.
const KINDS: [(&str, &[&str]); 6] = [
    ("sqlx, one by one", &["--batch", "1"]),
    ("sqlx, in batches", &["--batch", "50"]),
    ("tokio-postgres, one by one", &["--store", "tokio-postgres", "--batch", "1"]),
    ("tokio-postgres, in batches", &["--store", "tokio-postgres", "--batch", "50"]),
    ("pipelined, one by one", &["--store", "tokio-postgres", "--handlers", "pipelined", "--batch", "1"]),
    ("pipelined, in batches", &["--store", "tokio-postgres", "--handlers", "pipelined", "--batch", "50"]),
];

/// How many faults a life has, and how many purchases are published with each.
const FAULTS: usize = 12;
const EACH: i64 = 150;

/// For how many seconds `./chaos` wants lives; `None` where it does not run.
pub(crate) fn wanted() -> Option<Duration> {
    std::env::var("IDEM_CHAOS_SECONDS").ok()?.parse().ok().map(Duration::from_secs)
}

/// A PostgreSQL that has a synchronous standby, and the proxy through which all clients reach the one that answers.
pub(crate) struct Pair<'s> {
    servers: &'s OwnServers,
    primary: String,
    standby: String,
    proxy: Proxy,
    /// Where databases are made, through the proxy.
    pub(crate) url: String,
    failed_over: bool,
}

impl<'s> Pair<'s> {
    /// New clusters of these names, in place of any earlier ones.
    pub(crate) async fn up(servers: &'s OwnServers, name: &str) -> Self {
        let (primary, standby) = (format!("{name}a"), format!("{name}b"));
        let url = servers.scratch(&primary, None);
        let mut connection = PgConnection::connect(&url).await.expect("the primary answers");
        servers.scratch(&standby, Some(&primary));
        for statement in ["ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()"] {
            query(statement).execute(&mut connection).await.expect("a setting");
        }
        let text = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'";
        until("the standby", async || query_scalar(text).fetch_one(&mut connection).await.unwrap_or(0) == 1_i64).await;
        connection.close().await.expect("the connection closes");
        let host = host(&url).to_owned();
        let proxy = Proxy::to(&host).await.expect("a proxy");
        let url = url.replace(&host, proxy.address());
        Self { servers, primary, standby, proxy, url, failed_over: false }
    }

    fn answers(&self) -> &str {
        if self.failed_over { &self.standby } else { &self.primary }
    }

    /// The primary's processes end at once, and stay down.
    async fn fail_over(&mut self) {
        self.servers.scratch_down(&self.primary);
        let url = self.servers.url(&self.standby);
        let mut standby = PgConnection::connect(&url).await.expect("the standby answers");
        query(AssertSqlSafe("SELECT pg_promote()".to_owned())).execute(&mut standby).await.expect("a promotion");
        // It has no standby of its own, and would wait for one for ever.
        for statement in ["ALTER SYSTEM SET synchronous_standby_names = ''", "SELECT pg_reload_conf()"] {
            query(statement).execute(&mut standby).await.expect("a setting");
        }
        standby.close().await.expect("the connection closes");
        self.proxy.switch_to(host(&url));
        self.proxy.cut().await;
        self.failed_over = true;
    }

    /// Deletes both.
    pub(crate) fn remove(self) {
        if !self.failed_over {
            self.servers.scratch_down(&self.primary);
        }
        self.servers.scratch_down(&self.standby);
    }
}

/// `host:port` of a URL with a user.
fn host(url: &str) -> &str {
    let (_, rest) = url.split_once('@').expect("a URL with a user");
    rest.split('/').next().expect("a host")
}

/// One life: purchases, some of them sent more than once, and twelve faults; then everything comes to rest, and the ledger
/// has each purchase once. A line about it goes to the report of `./chaos`.
pub(crate) async fn live(stage: &impl Stage, pair: &mut Pair<'_>, broker: &str, life: u64) {
    let seed = idem_testkit::seed().wrapping_add(life);
    let (mut rng, begun) = (Rng::with_seed(seed), Instant::now());
    let (kind, flags) = KINDS[rng.usize(..KINDS.len())];
    println!("life {life}, seed {seed}: {broker}, {kind}");
    // A run that a broken connection or a death interrupts counts as an attempt.
    let settings = [&["--attempts", "100", "--in-flight", "200"], flags].concat();
    let mut workers = vec![stage.start(&settings), stage.start(&settings)];
    let (mut sent, mut counts) = (0, [0; Fault::ALL.len()]);
    for _ in 0..FAULTS {
        let numbers: Vec<i64> = (sent..sent + EACH).flat_map(|number| copies(&mut rng, number)).collect();
        stage.publish(numbers).await;
        sent += EACH;
        if rng.bool() {
            // Some of them have come, and others are under way.
            stage.database().until_purchases(sent - EACH / 2).await;
        }
        let fault = Fault::ALL[rng.usize(..Fault::ALL.len())];
        if meet(fault, stage, pair, &mut workers, &settings, &mut rng).await {
            let place = Fault::ALL.iter().position(|of| *of == fault).expect("one of them");
            counts[place] += 1;
        }
    }
    for proxy in [Some(&pair.proxy), stage.broker_proxy()].into_iter().flatten() {
        proxy.calm();
    }
    stage.database().until_purchases(sent).await;
    stage.settled().await;
    for worker in workers {
        let ended = worker.stop().await;
        assert!(ended.status.success(), "seed {seed}: {}", ended.log);
    }
    assert_eq!(stage.database().ledger().await, Ledger::of(0..sent), "seed {seed}");
    assert!(
        stage.database().dead_letters().await.is_empty(),
        "seed {seed}: {:?}",
        stage.database().dead_letters().await
    );
    report(broker, kind, seed, sent, &counts, begun.elapsed());
}

/// A purchase once, or now and then up to three times.
fn copies(rng: &mut Rng, number: i64) -> impl Iterator<Item = i64> + use<> {
    let times = if rng.u8(..10) == 0 { rng.usize(2..=3) } else { 1 };
    std::iter::repeat_n(number, times)
}

/// Has the fault happen, unless it cannot here.
async fn meet(
    fault: Fault,
    stage: &impl Stage,
    pair: &mut Pair<'_>,
    workers: &mut Vec<Worker>,
    settings: &[&str],
    rng: &mut Rng,
) -> bool {
    println!("    {fault:?}");
    let which = rng.usize(..workers.len());
    let proxy = if rng.bool() { stage.broker_proxy() } else { None };
    match fault {
        Fault::Kill => {
            workers.swap_remove(which).kill().await;
            workers.push(stage.start(settings));
        }
        Fault::Stop => {
            let ended = workers.swap_remove(which).stop().await;
            assert!(ended.status.success(), "{}", ended.log);
            workers.push(stage.start(settings));
        }
        Fault::Freeze => {
            workers[which].signal("STOP").await;
            // Its session ends after six seconds.
            tokio::time::sleep(Duration::from_millis(rng.u64(500..9_000))).await;
            workers[which].signal("CONT").await;
        }
        Fault::Cut => proxy.unwrap_or(&pair.proxy).cut().await,
        Fault::Hang => {
            let proxy = proxy.unwrap_or(&pair.proxy);
            proxy.freeze();
            tokio::time::sleep(Duration::from_millis(rng.u64(200..6_000))).await;
            proxy.thaw();
        }
        Fault::CrashDatabase => pair.servers.restart(pair.answers()),
        Fault::CrashBroker => return stage.restart_broker(),
        Fault::FailOver if pair.failed_over => return false,
        Fault::FailOver => pair.fail_over().await,
    }
    true
}

/// Adds a line to the report.
fn report(broker: &str, kind: &str, seed: u64, purchases: i64, counts: &[u32], took: Duration) {
    let counts = counts.iter().map(u32::to_string).collect::<Vec<_>>().join("\t");
    let line = format!("{broker}\t{kind}\t{seed}\t{purchases}\t{counts}\t{}", took.as_secs());
    println!("{line}");
    let Some(path) = std::env::var_os("IDEM_CHAOS_REPORT") else { return };
    let mut file = OpenOptions::new().create(true).append(true).open(path).expect("the report can be written");
    writeln!(file, "{line}").expect("the report can be written");
}
