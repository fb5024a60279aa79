//! Workers whose standard error and standard output nothing reads.

use std::{
    io::{PipeReader, PipeWriter, Read as _, Write as _, pipe},
    net::TcpListener,
    process::ExitStatus,
    time::Duration,
};

use tokio::process::Child;

use crate::{
    admin::Admin,
    place::Place,
    postgres::Database,
    process::{Worker, send},
    worker::STUCK,
};

/// Only a worker that hangs needs longer.
const LIMIT: Duration = Duration::from_secs(60);

/// As many bytes as a pipe takes.
const PIPE_BYTES: usize = 64 << 10;

/// What stands at the other ends of the two pipes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reader {
    StandsStill,
    IsGone,
}

/// A worker whose log is full or closed from the start, and whose standard output is so from its first answer on: the harness of its
/// process writes there before.
struct Unread {
    child: Child,
    admin: Admin,
    reader: Reader,
    output: Option<(PipeReader, PipeWriter)>,
    log: Option<PipeReader>,
}

impl Unread {
    fn start(database: &Database, place: &Place, reader: Reader, arguments: &str) -> Self {
        let port = free_port();
        let (url, socket) = (database.url(), place.socket());
        let arguments = format!(
            "--database-url {url} --socket {socket} --consumer ledger --migrate --create-tables --admin {port} {arguments}"
        );
        let (output, (log, to_log)) = (pipe().unwrap(), full_pipe());
        let mut command = Worker::bare(&arguments).variable("RUST_LOG", "trace").command();
        let child = command.stdout(output.1.try_clone().unwrap()).stderr(to_log).spawn().unwrap();
        let log = (reader == Reader::StandsStill).then_some(log);
        Self { child, admin: Admin::at(port), reader, output: Some(output), log }
    }

    /// Waits until it is up.
    async fn up(&mut self) {
        self.admin.until("/healthz", |code, _| code == 200).await;
        if self.reader == Reader::IsGone {
            self.output = None;
        } else if let Some((_, to_output)) = &self.output {
            let mut to_output = to_output.try_clone().unwrap();
            std::thread::spawn(move || to_output.write_all(&[b'.'; 2 * PIPE_BYTES]));
        }
    }

    /// Publishes until lines of the log were lost, and returns how many messages that took.
    async fn publish(&self, place: &Place) -> usize {
        for round in 0..100 {
            for number in 0..50 {
                place.publish(&format!("order-{round}-{number}"), "1");
            }
            tokio::time::timeout(LIMIT, place.orders.drained()).await.expect("messages are handled");
            if lines_lost(&self.admin).await > 0 {
                return 50 * (round + 1);
            }
        }
        panic!("no line was lost");
    }

    async fn ended(mut self) -> ExitStatus {
        tokio::time::timeout(LIMIT, self.child.wait()).await.expect("it ends").unwrap()
    }
}

/// A pipe that takes nothing more, and its end to be read.
pub(crate) fn full_pipe() -> (PipeReader, PipeWriter) {
    let (read, mut write) = pipe().unwrap();
    write.write_all(&[b'.'; PIPE_BYTES]).unwrap();
    (read, write)
}

pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// How many lines of its log the process has lost.
async fn lines_lost(admin: &Admin) -> u64 {
    let (_, text) = admin.get("/metrics").await;
    let lost = text.lines().find_map(|line| line.strip_prefix("idem_log_lines_lost_total{consumer=\"ledger\"} "));
    lost.expect("the metric is there").parse().unwrap()
}

async fn handled(database: &Database) -> usize {
    let count = sqlx::query_scalar::<_, i64>("SELECT count(*) FROM purchases");
    usize::try_from(count.fetch_one(&mut database.connect().await).await.unwrap()).unwrap()
}

/// J92: a worker whose log and summary nothing reads handles messages, answers probes, counts the lines that it lost, and ends at a signal
/// in time with 0.
#[tokio::test]
async fn j92_a_log_that_nothing_reads_stops_nothing() {
    for reader in [Reader::StandsStill, Reader::IsGone] {
        let (database, place) = (Database::fresh().await, Place::new().await);
        let mut unread = Unread::start(&database, &place, reader, "");
        unread.up().await;
        let published = unread.publish(&place).await;
        assert_eq!(handled(&database).await, published, "{reader:?}");
        assert_eq!(unread.admin.get("/healthz").await, (200, "ok\n".to_owned()));
        send(&unread.child, "TERM").await;
        assert_eq!(unread.ended().await.code(), Some(0), "{reader:?}");
        place.remove();
        database.remove().await;
    }
}

/// J92: once the log is read again, the first line after the gap says how many lines are missing, and no other line is torn.
#[tokio::test]
async fn j92_the_first_line_after_a_gap_says_how_many_are_missing() {
    let (database, place) = (Database::fresh().await, Place::new().await);
    let mut unread = Unread::start(&database, &place, Reader::StandsStill, "--log-format json");
    unread.up().await;
    unread.publish(&place).await;
    let (output, to_output) = unread.output.take().unwrap();
    drop(to_output);
    let readers = [output, unread.log.take().unwrap()].map(|mut pipe| {
        tokio::task::spawn_blocking(move || {
            let mut text = String::new();
            pipe.read_to_string(&mut text).unwrap();
            text
        })
    });
    send(&unread.child, "TERM").await;
    assert_eq!(unread.ended().await.code(), Some(0));
    let [output, log] = readers;
    let (output, log) = (output.await.unwrap(), log.await.unwrap());
    assert!(output.contains("\"processed\":"), "the summary");
    let lines = log[PIPE_BYTES..].lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let gaps: Vec<_> = lines
        .filter_map(|line| {
            Some(line["message"].as_str()?.split_once(" lines of the log are missing")?.0.parse::<u64>())
        })
        .collect();
    assert!(gaps.iter().any(|missing| *missing.as_ref().unwrap() > 0), "{gaps:?}");
    place.remove();
    database.remove().await;
}

/// J92: the second signal ends a worker whose handler hangs and whose log nothing reads.
#[tokio::test]
async fn j92_a_second_signal_ends_it_whatever_reads_the_log() {
    let (database, place) = (Database::fresh().await, Place::new().await);
    place.publish("a", STUCK);
    let mut unread =
        Unread::start(&database, &place, Reader::StandsStill, "--drain 10m --handler-deadline 10m --lanes 1");
    unread.up().await;
    unread.admin.until("/metrics", |_, text| text.contains("\nidem_in_flight{consumer=\"ledger\"} 1\n")).await;
    send(&unread.child, "TERM").await;
    unread.admin.until("/readyz", |code, _| code == 503).await;
    send(&unread.child, "INT").await;
    assert_eq!(unread.ended().await.code(), Some(128 + 2));
    assert_eq!(handled(&database).await, 0);
    place.remove();
    database.remove().await;
}

/// J92: a panic is reported in the log too, and does not wait for a reader.
#[tokio::test]
async fn j92_a_panic_waits_for_no_reader() {
    let (database, place) = (Database::fresh().await, Place::new().await);
    let mut unread = Unread::start(&database, &place, Reader::StandsStill, "--panic-at second-receive");
    unread.up().await;
    unread.admin.until("/readyz", |code, _| code == 200).await;
    place.publish("a", "1");
    tokio::time::timeout(LIMIT, place.orders.drained()).await.expect("it is handled");
    place.publish("b", "1");
    assert_eq!(unread.ended().await.code(), Some(70));
    assert_eq!(handled(&database).await, 1);
    place.remove();
    database.remove().await;
}
