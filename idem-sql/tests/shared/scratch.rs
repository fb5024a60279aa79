//! Private clusters, made by `./servers scratch`, for tests that restart, stop or copy a server. Every PostgreSQL store's
//! tests include this file.

use std::{path::PathBuf, process::Stdio};

use tokio::process::Command;

/// A cluster of one test. A red test leaves it running, to be removed by `./servers scratch-down`.
pub(crate) struct Scratch {
    name: String,
    pub(crate) url: String,
}

async fn servers(arguments: &[&str]) -> String {
    let crate_folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).canonicalize().unwrap();
    let mut command = Command::new(crate_folder.parent().unwrap().join("servers"));
    // Processes that the script starts must not hold our pipe open, so only the answers of `url` and `disk` are read.
    let answers = matches!(arguments[0], "url" | "disk");
    command.args(arguments).stdin(Stdio::null()).stderr(Stdio::inherit());
    if answers {
        let output = command.output().await.unwrap();
        assert!(output.status.success(), "./servers {arguments:?}");
        return String::from_utf8(output.stdout).unwrap().trim().to_owned();
    }
    let status = command.stdout(Stdio::null()).status().await.unwrap();
    assert!(status.success(), "./servers {arguments:?}");
    String::new()
}

impl Scratch {
    /// An empty cluster.
    pub(crate) async fn new(name: &str) -> Self {
        Self::with(name, &[]).await
    }

    /// A hot standby of another.
    pub(crate) async fn standby_of(name: &str, primary: &Self) -> Self {
        Self::with(name, &["--standby-of", &primary.name]).await
    }

    async fn with(name: &str, more: &[&str]) -> Self {
        // Two stores run the same tests at once.
        let name = format!("{}_{name}", env!("CARGO_PKG_NAME").replace('-', "_"));
        servers(&[&["scratch", &name], more].concat()).await;
        let url = servers(&["url", &name]).await;
        Self { name, url }
    }

    /// The folder of a disk of this size that the cluster may have for a tablespace. It needs root, and goes with the cluster.
    #[allow(dead_code, reason = "tests of one store use it")]
    pub(crate) async fn disk(&self, size: &str) -> PathBuf {
        servers(&["disk", &self.name, size]).await.into()
    }

    /// Restarts the cluster as after a crash.
    pub(crate) async fn crash(&self) {
        servers(&["restart", &self.name, "--immediate"]).await;
    }

    /// Stops and removes the cluster.
    pub(crate) async fn down(self) {
        servers(&["scratch-down", &self.name]).await;
    }
}
