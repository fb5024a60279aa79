//! A consumer in a process of its own.

use std::{
    fs::File,
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use idem_testkit::failpoints;
use idem_tests::plan::Plan;
use tokio::{process::Command, time::Instant};

/// How long a consumer may run. One that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(60);

/// A consumer that takes longer than this is mentioned, because none has so much to do.
const SLOW: Duration = Duration::from_secs(8);

/// How many lines of a log are shown.
const TAIL_LINES: usize = 40;

const SIGABRT: i32 = 6;

pub(crate) struct Child {
    process: tokio::process::Child,
    started: Instant,
    log: PathBuf,
}

/// How a consumer ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    log: PathBuf,
}

impl Child {
    /// Starts one with these failpoints, its output in the file `log`.
    pub(crate) fn start(plan: &Plan, armed: &str, log: &Path) -> Self {
        let output = File::create(log).expect("the log can be written");
        let process = Command::new(env!("CARGO_BIN_EXE_consumer"))
            .arg(serde_json::to_string(plan).unwrap())
            .env(failpoints::VARIABLE, armed)
            .env_remove("RUST_LOG")
            .stdin(Stdio::null())
            .stdout(output.try_clone().unwrap())
            .stderr(output)
            .kill_on_drop(true)
            .spawn()
            .expect("the consumer starts");
        Self { process, started: Instant::now(), log: log.to_owned() }
    }

    /// Sends a signal, such as `TERM`. One to a process that has ended is lost.
    pub(crate) async fn signal(&self, signal: &str) {
        let Some(id) = self.process.id() else { return };
        // The standard library sends no signals, and every shell does.
        let script = format!("kill -{signal} {id}");
        Command::new("sh").args(["-c", &script]).stderr(Stdio::null()).status().await.expect("sh runs");
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// With the end of its log where it hangs; it is then killed.
    pub(crate) async fn ended(self) -> Result<Ended, String> {
        self.ended_within(LIMIT).await
    }

    /// The same for one that has more to do than others.
    pub(crate) async fn ended_within(mut self, limit: Duration) -> Result<Ended, String> {
        match tokio::time::timeout(limit, self.process.wait()).await {
            Ok(status) => {
                let took = self.started.elapsed();
                if took > SLOW {
                    eprintln!("a consumer took {took:?}\n{}", tail(&self.log));
                }
                Ok(Ended { status: status.expect("a child can be waited for"), log: self.log })
            }
            Err(_) => {
                // It is gone with this function in any case.
                let _ = self.process.kill().await;
                Err(format!("it hung for {limit:?}\n{}", tail(&self.log)))
            }
        }
    }
}

impl Ended {
    /// Whether it ended by an abort.
    pub(crate) fn aborted(&self) -> bool {
        self.status.signal() == Some(SIGABRT)
    }

    /// Whether its log has this text.
    pub(crate) fn logged(&self, text: &str) -> bool {
        read(&self.log).contains(text)
    }

    /// An error that says how it ended instead of as `expected`, with the end of its log.
    pub(crate) fn unexpected<T>(&self, expected: &str) -> Result<T, String> {
        Err(format!("it should have {expected}, and ended with {}\n{}", self.status, tail(&self.log)))
    }
}

fn read(log: &Path) -> String {
    std::fs::read(log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

fn tail(log: &Path) -> String {
    let text = read(log);
    let lines: Vec<&str> = text.lines().collect();
    let last = lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n    ");
    format!("  the end of {}:\n    {last}", log.display())
}
