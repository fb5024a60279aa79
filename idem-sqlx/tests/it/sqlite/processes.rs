//! Several processes on one file, and processes that die in the middle.

use idem_testkit::Decide as _;
use std::process::{Command, ExitStatus};

use idem_core::failpoint::{self, Action};
use idem_sqlx::SqliteStore;

use super::{File, consumer, fresh, message, names, open};

const CHILD: &str = "sqlite::processes::child";
const PATH: &str = "IDEM_TEST_SQLITE_PATH";
const POINT: &str = "IDEM_TEST_SQLITE_FAILPOINT";

/// The input of every child: batches, and single messages with a failure among them.
fn input() -> Vec<Vec<idem_core::Message>> {
    let batch = |from: u32, to: u32| (from..to).map(|number| message(&format!("k{number:03}"), "1")).collect();
    vec![batch(0, 30), batch(20, 50), batch(50, 51), batch(51, 80)]
}

/// Run as a process of its own by the tests below; alone it does nothing.
#[test]
fn child() {
    let Ok(path) = std::env::var(PATH) else { return };
    if let Ok(point) = std::env::var(POINT) {
        // The second pass dies, so that one unit is committed and the next is not.
        failpoint::arm(&point, 1, 1, Action::Abort);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = std::sync::Arc::new(SqliteStore::open(path).await.unwrap());
        let consumer = consumer(&store);
        for batch in input() {
            loop {
                let decisions = consumer.decisions(batch.clone()).await.unwrap();
                if decisions.into_iter().all(|decision| decision.into_durable().is_some()) {
                    break;
                }
            }
        }
    });
}

fn command(file: &File) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([CHILD, "--exact", "--nocapture"]).env(PATH, file.path()).env_remove(POINT);
    command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    command
}

async fn run(mut command: Command) -> ExitStatus {
    tokio::task::spawn_blocking(move || command.status().unwrap()).await.unwrap()
}

async fn everything_is_there_once(file: &File) {
    let keys: Vec<String> = (0..80).map(|number| format!("k{number:03}")).collect();
    assert_eq!(file.effects().await, keys.iter().map(|key| format!("{key}=1")).collect::<Vec<_>>());
    assert_eq!(file.recorded().await, keys);
    assert_eq!(file.ask("PRAGMA integrity_check").await, ["ok"]);
}

/// A1, A2, A6: a process that dies at any point of a unit leaves all of it or nothing, and the next one finishes.
#[tokio::test(flavor = "multi_thread")]
async fn a1_a_process_that_dies_anywhere_is_made_good_by_the_next() {
    for point in ["begin", "claimed", "handler_mid", "handler_done", "guard", "commit_sent", "commit_ok"] {
        let (file, _store) = fresh().await;
        let mut dying = command(&file);
        dying.env(POINT, point);
        assert!(!run(dying).await.success(), "the child was to die at {point}");
        assert!(file.effects().await.len() < 80, "{point}");
        assert_eq!(file.effects().await.len(), file.recorded().await.len(), "{point}");
        assert!(run(command(&file)).await.success(), "{point}");
        everything_is_there_once(&file).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_on_one_file_do_everything_exactly_once() {
    let (file, _store) = fresh().await;
    let ends = tokio::join!(run(command(&file)), run(command(&file)), run(command(&file)));
    assert!(ends.0.success() && ends.1.success() && ends.2.success());
    everything_is_there_once(&file).await;
    let store = open(&file).await;
    let decisions = consumer(&store).decisions(vec![message("k000", "1")]).await.unwrap();
    assert_eq!(names(&decisions), ["duplicate"]);
}
