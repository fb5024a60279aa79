//! wrk, and its counts.

use std::{process::Stdio, time::Duration};

use serde::Deserialize;
use tokio::process::Command;
use uuid::Uuid;

use super::Failed;

const SCRIPT: &str = include_str!("load.lua");

/// The number of connections, each of which sends one request after the other.
pub(super) const CONNECTIONS: usize = 64;

/// The kind of requests that are sent; `load.lua` says what each is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sent {
    First,
    Replay,
    Keyless,
    Other,
    Held,
}

impl Sent {
    fn mode(self) -> (&'static str, u16) {
        match self {
            Self::First => ("first", 201),
            Self::Replay => ("replay", 201),
            Self::Keyless => ("keyless", 400),
            Self::Other => ("other", 422),
            Self::Held => ("held", 409),
        }
    }
}

/// The counts of wrk.
#[derive(Debug, Clone, Copy, Deserialize)]
pub(super) struct Load {
    pub(super) requests: usize,
    microseconds: u64,
    refused: usize,
    broken: usize,
    as_expected: usize,
}

impl Load {
    pub(super) fn rate(&self) -> f64 {
        self.requests as f64 * 1e6 / self.microseconds as f64
    }
}

/// A prefix of keys that no other run has.
pub(super) fn prefix() -> String {
    Uuid::new_v4().simple().to_string()
}

/// Sends for this time, in whole seconds. An answer that is not the expected one is an error.
pub(super) async fn run(port: u16, sent: Sent, prefix: &str, time: Duration) -> Result<Load, Failed> {
    let file = std::env::temp_dir().join(format!("idem-wrk-{}.lua", std::process::id()));
    std::fs::write(&file, SCRIPT)?;
    let (mode, status) = sent.mode();
    let mut wrk = Command::new("wrk");
    wrk.args(["--threads", "2", "--connections", &CONNECTIONS.to_string()]);
    wrk.args(["--duration", &format!("{}s", time.as_secs().max(1)), "--timeout", "30s", "--script"]).arg(&file);
    wrk.args([&format!("http://127.0.0.1:{port}"), "--", mode, prefix, &status.to_string()]);
    let output = wrk.stderr(Stdio::piped()).kill_on_drop(true).output().await;
    let output = output.map_err(|error| format!("wrk, which ./bench installs: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let told = || format!("wrk {mode}: {text}{}", String::from_utf8_lossy(&output.stderr));
    let figures = text.lines().find_map(|line| line.strip_prefix("figures ")).ok_or_else(told)?;
    let load: Load = serde_json::from_str(figures)?;
    let is_right = match sent {
        Sent::First | Sent::Replay => load.refused == 0,
        Sent::Keyless | Sent::Other | Sent::Held => load.as_expected == load.requests,
    };
    if load.requests == 0 || load.broken > 0 || !is_right {
        return Err(told().into());
    }
    Ok(load)
}
