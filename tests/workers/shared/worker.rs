//! A worker in a process of its own. The tests of every worker include this file.

#![allow(dead_code, reason = "not every worker's tests use all of it")]

use std::{
    fs::File,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use serde_json::Value;
use tokio::process::{Child, Command};

/// How long a worker may take to end once it is asked to, or once everything is consumed.
const PATIENCE: Duration = Duration::from_secs(300);

pub(crate) struct Worker {
    process: Child,
    log: PathBuf,
    output: PathBuf,
}

/// How a worker ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) log: String,
    pub(crate) output: String,
}

impl Worker {
    /// Starts `program` with these arguments and variables, and its log in `log`. An empty RUST_LOG is none.
    pub(crate) fn start(program: &str, arguments: &[String], variables: &[(&str, &str)], log: &Path) -> Self {
        let output = log.with_extension("out");
        let mut command = Command::new(program);
        command
            .args(arguments)
            // A worker refuses variables that look like its own, and the tests have some.
            .env_clear()
            // Assignments and probes of the database, which tests wait for, are logged at debug.
            .env("RUST_LOG", "info,idem_kafka=debug,idem_core::worker::lane::failure=debug")
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(File::create(&output).expect("the output can be written"))
            .stderr(File::create(log).expect("the log can be written"))
            .kill_on_drop(true);
        if variables.contains(&("RUST_LOG", "")) {
            command.env_remove("RUST_LOG");
        }
        let process = command.spawn().expect("the worker starts");
        Self { process, log: log.to_owned(), output }
    }

    /// Sends a signal, such as `TERM`.
    pub(crate) async fn signal(&self, signal: &str) {
        let Some(id) = self.process.id() else { return };
        // The standard library sends no signals, and every shell does.
        let script = format!("kill -{signal} {id}");
        Command::new("sh").args(["-c", &script]).stderr(Stdio::null()).status().await.expect("sh runs");
    }

    /// Kills it without a word, and waits until it is gone.
    pub(crate) async fn kill(mut self) {
        self.process.kill().await.expect("it can be killed");
    }

    /// Stops it as a deployment does.
    pub(crate) async fn stop(self) -> Ended {
        self.signal("TERM").await;
        self.ended().await
    }

    pub(crate) async fn ended(mut self) -> Ended {
        let status = match tokio::time::timeout(PATIENCE, self.process.wait()).await {
            Ok(status) => status.expect("a child can be waited for"),
            Err(_) => panic!("the worker did not end within {PATIENCE:?}; its log: {}", self.log.display()),
        };
        Ended { status, log: read(&self.log), output: read(&self.output) }
    }

    /// Its log so far.
    pub(crate) fn logged(&self) -> String {
        read(&self.log)
    }

    /// Whether it is a member of its Kafka group.
    pub(crate) fn joined(&self) -> bool {
        self.logged().contains("Assign(")
    }

    /// The most memory that it has taken, in bytes.
    pub(crate) fn memory_max(&self) -> u64 {
        let status = format!("/proc/{}/status", self.process.id().expect("it runs"));
        let text = std::fs::read_to_string(status).expect("the system tells");
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("its peak");
        let kib: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
        kib << 10
    }

    /// Whether it still runs.
    pub(crate) fn runs(&mut self) -> bool {
        self.process.try_wait().expect("a child can be asked").is_none()
    }
}

/// A test that fails while its worker runs shows what the worker said last.
impl Drop for Worker {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.logged();
            let lines: Vec<_> = log.lines().collect();
            println!("the worker's log ends with:\n{}", lines[lines.len().saturating_sub(60)..].join("\n"));
        }
    }
}

impl Ended {
    /// The line that a worker prints at its end, which it must have reached.
    pub(crate) fn summary(&self) -> Value {
        assert!(self.status.success(), "the worker ended with {}:\n{}", self.status, self.log);
        let line = self.output.lines().last().expect("a summary");
        serde_json::from_str(line).expect("the summary is JSON")
    }

    /// A number of the summary.
    pub(crate) fn count(&self, name: &str) -> u64 {
        self.summary()[name].as_u64().unwrap_or_else(|| panic!("{name} is no number in {}", self.output))
    }
}

fn read(path: &Path) -> String {
    std::fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}
