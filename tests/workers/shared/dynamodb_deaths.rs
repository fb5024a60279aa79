//! Workers on DynamoDB that die at failpoints and stand still, behind a proxy that does to their requests what a network and DynamoDB
//! do. The tests of the workers that run on DynamoDB include this file.

#![allow(dead_code, reason = "not every worker's tests use all of it")]

use std::{collections::BTreeMap, ops::Range, os::unix::process::ExitStatusExt as _, time::Duration};

use fastrand::Rng;
use idem_testkit::proxy::dynamodb::{DynamoFault, DynamoProxy};
use tokio::time::{Instant, sleep};

use super::{
    database::Ledger,
    shared_dynamodb::Table,
    worker::{Ended, Worker},
};

/// Where a worker dies: the points that a message meets.
pub(crate) const POINTS: [&str; 9] =
    ["recv", "begin", "claimed", "handler_mid", "handler_done", "guard", "commit_sent", "commit_ok", "ack_ok"];

/// How a process ends that a failpoint kills.
const SIGABRT: i32 = 6;

/// Twice the lease.
const STOPPED: Duration = Duration::from_secs(10);

/// How long the proxy leaves requests alone between two faults, at most.
const CALM_MS: u64 = 400;

/// A broker with messages, and a table.
pub(crate) trait Stage {
    fn table(&self) -> &Table;

    fn start(&self, url: &str, more: &[&str], variables: &[(&str, &str)]) -> Worker;

    async fn send(&self, numbers: Range<i64>);

    /// Runs a worker until nothing is left.
    async fn finish(&self, url: &str, variables: &[(&str, &str)]) -> Ended;
}

/// What is there when all have ended.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) sent: i64,
    pub(crate) ledger: Ledger,
    pub(crate) dead_letters: BTreeMap<String, i64>,
    /// The line of a worker that met what its store cannot have written.
    pub(crate) refused: Option<String>,
}

/// A worker's end that is not what was asked for.
fn refusal(ended: &Ended) -> Option<String> {
    (!ended.status.success()).then(|| ended.log.clone())
}

/// All of them with `./test --all`, and otherwise `few`, which other seeds begin elsewhere.
pub(crate) fn of_this_run<T: Copy>(all: &[T], few: usize) -> Vec<T> {
    if std::env::var_os("IDEM_TEST_ALL").is_some() {
        return all.to_vec();
    }
    let from = usize::try_from(idem_testkit::seed() % all.len() as u64).expect("less than there are");
    all.iter().cycle().skip(from).take(few).copied().collect()
}

/// Sends every message twice, has one worker die at each of `points` and one stand still meanwhile, and lets the others finish. `bug` is
/// planted in all of them, or none where it is empty.
pub(crate) async fn through_deaths(stage: &impl Stage, sent: i64, points: &[&str], bug: &str) -> End {
    let seed = idem_testkit::seed();
    let (table, mut rng) = (stage.table(), Rng::with_seed(seed));
    let proxy = DynamoProxy::start(&table.server).await.expect("a proxy");
    proxy.conflicts(true);
    let url = table.url_at(proxy.endpoint());
    let planted = [("IDEM_BUG", bug)];
    let planted = if bug.is_empty() { &[][..] } else { &planted };
    for _ in 0..2 {
        stage.send(0..sent).await;
    }
    let deaths = async {
        // Commits take their time, so that it is stopped in the middle of some.
        let zombie = stage.start(&url, &[], &[&[("IDEM_FAILPOINTS", "guard=sleep(300)")], planted].concat());
        table.until_purchases(1).await;
        zombie.signal("STOP").await;
        let (stopped, mut refused) = (Instant::now(), None);
        for point in points {
            let armed = format!("guard=sleep(20);{point}={}+1*abort", rng.u8(1..20));
            let worker = stage.start(&url, &[], &[&[("IDEM_FAILPOINTS", armed.as_str())], planted].concat());
            let ended = worker.ended().await;
            if ended.status.signal() == Some(SIGABRT) {
                continue;
            }
            assert!(!bug.is_empty(), "{armed}: {}", ended.log);
            refused = refused.or_else(|| refusal(&ended));
        }
        let last = stage.finish(&url, planted).await;
        (zombie, stopped, refused.or_else(|| refusal(&last)))
    };
    let (zombie, stopped, mut refused) = tokio::select! {
        ended = deaths => ended,
        () = trouble(&proxy, Rng::with_seed(seed ^ 1)) => unreachable!("it goes on until it is dropped"),
    };
    println!("conflicts: {}, commits: {}", proxy.conflicts_met(), proxy.requests("TransactWriteItems"));
    tokio::time::sleep_until(stopped + STOPPED).await;
    zombie.signal("CONT").await;
    // What it was in the middle of, it sends now.
    sleep(Duration::from_secs(2)).await;
    let (zombie, last) = (zombie.stop().await, stage.finish(&url, planted).await);
    refused = refused.or_else(|| refusal(&zombie)).or_else(|| refusal(&last));
    assert!(refused.is_none() || !bug.is_empty(), "{}", refused.unwrap_or_default());
    End { sent, ledger: table.ledger().await, dead_letters: table.dead_letters().await, refused }
}

/// Puts one fault after another in the way of requests.
async fn trouble(proxy: &DynamoProxy, mut rng: Rng) {
    loop {
        sleep(Duration::from_millis(rng.u64(..CALM_MS))).await;
        let (late, slow) = (Duration::from_millis(rng.u64(100..6_000)), Duration::from_millis(rng.u64(..200)));
        let faults = [
            DynamoFault::Lost,
            DynamoFault::AnswerLost,
            DynamoFault::Late(late),
            DynamoFault::Slow(slow),
            DynamoFault::Refused("ThrottlingException"),
            DynamoFault::Refused("InternalServerError"),
            // These are of transactions alone.
            DynamoFault::Refused("TransactionInProgressException"),
            DynamoFault::Cancelled(rng.usize(..2), "TransactionConflict"),
            DynamoFault::Cancelled(rng.usize(..2), "ThrottlingError"),
        ];
        match rng.u8(..8) {
            0 => proxy.inject("GetItem", faults[rng.usize(..6)].clone()),
            1..4 => proxy.inject("UpdateItem", faults[rng.usize(..6)].clone()),
            _ => proxy.inject("TransactWriteItems", faults[rng.usize(..faults.len())].clone()),
        }
    }
}
