//! Servers that one test has for itself, because it stops them.

use std::process::Command;

/// Those of [`OwnServers::up`], by `./servers`. They go with this value.
pub(crate) struct OwnServers(&'static str);

/// Ports away from those that everybody shares.
const PORT_OFFSET: u32 = 600;

impl OwnServers {
    /// Starts these, with data of their own in the set of this name.
    pub(crate) fn up(set: &'static str, names: &[&str]) -> Self {
        let servers = Self(set);
        servers.run(&[&["up"], names].concat());
        servers
    }

    pub(crate) fn url(&self, name: &str) -> String {
        self.run(&["url", name]).trim().to_owned()
    }

    /// Stops it as after a crash, and starts it again.
    pub(crate) fn restart(&self, name: &str) {
        self.run(&["restart", name, "--immediate"]);
    }

    fn run(&self, arguments: &[&str]) -> String {
        let outer: u32 = std::env::var("IDEM_PORT_OFFSET").ok().and_then(|offset| offset.parse().ok()).unwrap_or(0);
        let output = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../servers"))
            .args(arguments)
            .env("IDEM_SERVERS_SET", self.0)
            .env("IDEM_PORT_OFFSET", (outer + PORT_OFFSET).to_string())
            .output()
            .expect("./servers runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(output.status.success(), "./servers {arguments:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }
}

impl Drop for OwnServers {
    fn drop(&mut self) {
        self.run(&["down", "--purge"]);
    }
}
