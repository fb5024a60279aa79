//! Starts workers, waits for their log lines, signals them, and reads how they ended.

use std::{process::Stdio, time::Duration};

use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader, Lines},
    process::{Child, ChildStderr, ChildStdout, Command},
};

use crate::{place::Place, worker};

/// Only a worker that hangs needs longer.
const LIMIT: Duration = Duration::from_secs(60);

/// A worker to be started.
pub(crate) struct Worker {
    arguments: Vec<String>,
    variables: Vec<(String, String)>,
    process: &'static str,
    descriptors: Option<u32>,
}

pub(crate) struct Running {
    child: Child,
    output: ChildStdout,
    log: Lines<BufReader<ChildStderr>>,
    logged: String,
}

/// How a worker ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    /// Standard output, without the lines of the process's test harness.
    pub(crate) output: String,
    pub(crate) log: String,
}

impl Worker {
    /// One with these arguments, separated by blanks, and nothing else.
    pub(crate) fn bare(arguments: &str) -> Self {
        let arguments = arguments.split_whitespace().map(str::to_owned).collect();
        Self { arguments, variables: Vec::new(), process: "worker::worker_process", descriptors: None }
    }

    /// One that can start at this place; these arguments come on top.
    pub(crate) fn at(place: &Place, arguments: &str) -> Self {
        let (url, socket) = (place.url(), place.socket());
        Self::bare(&format!(
            "--database-url {url} --socket {socket} --consumer ledger --migrate --create-tables {arguments}"
        ))
    }

    /// Another worker than the usual one: the test of this name is it.
    pub(crate) fn of(mut self, process: &'static str) -> Self {
        self.process = process;
        self
    }

    pub(crate) fn argument(mut self, argument: &str) -> Self {
        self.arguments.push(argument.to_owned());
        self
    }

    pub(crate) fn variable(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The process with at most this many file descriptors.
    pub(crate) fn with_descriptors(mut self, count: u32) -> Self {
        self.descriptors = Some(count);
        self
    }

    /// Its process, without pipes.
    pub(crate) fn command(self) -> Command {
        let arguments: Vec<String> = [vec!["worker".to_owned()], self.arguments].concat();
        let program = std::env::current_exe().unwrap();
        let mut command = match self.descriptors {
            None => Command::new(program),
            Some(count) => {
                let mut shell = Command::new("sh");
                shell.args(["-c", &format!("ulimit -n {count}; exec \"$0\" \"$@\"")]).arg(program);
                shell
            }
        };
        // It ends its process, so that no line of the harness follows the worker's own.
        command.args([self.process, "--exact", "--nocapture", "--quiet"]).env_clear().envs(self.variables);
        command.env(worker::ARGUMENTS, serde_json::to_string(&arguments).unwrap()).stdin(Stdio::null());
        command.kill_on_drop(true);
        command
    }

    pub(crate) fn start(self) -> Running {
        let mut child = self.command().stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let output = child.stdout.take().unwrap();
        let log = BufReader::new(child.stderr.take().unwrap()).lines();
        Running { child, output, log, logged: String::new() }
    }

    /// Starts it and waits for its end.
    pub(crate) async fn run(self) -> Ended {
        self.start().ended().await
    }
}

impl Running {
    /// Waits for a line of the log with this text, and answers it.
    pub(crate) async fn line(&mut self, text: &str) -> String {
        loop {
            let line = tokio::time::timeout(LIMIT, self.log.next_line()).await;
            let line = line.unwrap_or_else(|_| panic!("{text:?} is not logged:\n{}", self.logged)).unwrap();
            let line = line.unwrap_or_else(|| panic!("it ended before it logged {text:?}:\n{}", self.logged));
            self.logged.push_str(&line);
            self.logged.push('\n');
            if line.contains(text) {
                return line;
            }
        }
    }

    /// Sends a signal, such as `TERM`.
    pub(crate) async fn signal(&self, signal: &str) {
        send(&self.child, signal).await;
    }

    pub(crate) async fn ended(mut self) -> Ended {
        let ended = tokio::time::timeout(LIMIT, async {
            let mut output = String::new();
            // Both at once, so that neither pipe fills up.
            let (read, ()) = tokio::join!(self.output.read_to_string(&mut output), async {
                while let Some(line) = self.log.next_line().await.unwrap() {
                    self.logged.push_str(&line);
                    self.logged.push('\n');
                }
            });
            read.unwrap();
            (self.child.wait().await.unwrap().code(), output)
        });
        let Ok((code, output)) = ended.await else { panic!("it does not end:\n{}", self.logged) };
        let output =
            output.lines().filter(|line| !line.is_empty() && !line.starts_with("running ")).collect::<Vec<_>>();
        Ended { code, output: output.join("\n"), log: self.logged }
    }
}

/// Sends a signal, such as `TERM`, to a process that runs.
pub(crate) async fn send(child: &Child, signal: &str) {
    // The standard library sends no signals, and every shell does.
    let script = format!("kill -{signal} {}", child.id().expect("it runs"));
    assert!(Command::new("sh").args(["-c", &script]).status().await.unwrap().success());
}

impl Ended {
    /// The last line on standard output.
    pub(crate) fn summary(&self) -> serde_json::Value {
        let line = self.output.lines().last().unwrap_or_else(|| panic!("no summary:\n{}", self.log));
        serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line:?}\n{}", self.log))
    }

    /// Fails with the log unless it ended with this status.
    pub(crate) fn with(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{}", self.log);
        self
    }

    /// The line that says why it ended.
    pub(crate) fn why(&self) -> &str {
        let line = self.log.lines().last().unwrap_or_default();
        line.strip_prefix("error: ").unwrap_or_else(|| panic!("the log does not end with an error:\n{}", self.log))
    }
}
