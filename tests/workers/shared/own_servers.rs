//! Servers that one test has for itself, because it stops them. The tests of every worker may include this file.

#![allow(dead_code, reason = "not every worker's tests use all of it")]

use std::process::Command;

/// Those of [`OwnServers::up`], by `./servers`. They go with this value.
pub(crate) struct OwnServers {
    set: &'static str,
    port_offset: u32,
}

impl OwnServers {
    /// Starts these, with data of their own in the set of this name, on ports so far away from those of the shared servers.
    pub(crate) fn up(set: &'static str, port_offset: u32, names: &[&str]) -> Self {
        let servers = Self { set, port_offset };
        Self::each(names, |name| servers.up_again(name));
        servers
    }

    fn each(names: &[&str], run: impl Fn(&str) + Sync) {
        let run = &run;
        std::thread::scope(|scope| {
            for name in names {
                scope.spawn(move || run(name));
            }
        });
    }

    pub(crate) fn url(&self, name: &str) -> String {
        self.run(&["url", name]).trim().to_owned()
    }

    /// Stops it in good order, and starts it again. RabbitMQ can lose a queue that was declared within the last moments before
    /// a crash, since its database of queues goes to the disk with a delay; after this it has it for good.
    pub(crate) fn restart_in_order(&self, name: &str) {
        self.run(&["restart", name]);
    }

    /// Stops it as after a crash, and starts it again.
    pub(crate) fn restart(&self, name: &str) {
        self.run(&["restart", name, "--immediate"]);
    }

    /// The same with all of these at once.
    pub(crate) fn restart_all(&self, names: &[&str]) {
        Self::each(names, |name| self.restart(name));
    }

    /// A new, empty PostgreSQL of this name, in the place of an old one: a primary, or a standby of this one. Answers its URL.
    pub(crate) fn scratch(&self, name: &str, primary: Option<&str>) -> String {
        let mut arguments = vec!["scratch", name];
        arguments.extend(primary.iter().flat_map(|primary| ["--standby-of", *primary]));
        self.run(&arguments);
        self.url(name)
    }

    /// Deletes it.
    pub(crate) fn scratch_down(&self, name: &str) {
        self.run(&["scratch-down", name]);
    }

    /// Stops it.
    pub(crate) fn down(&self, name: &str) {
        self.run(&["down", name]);
    }

    /// Starts it again.
    pub(crate) fn up_again(&self, name: &str) {
        self.run(&["up", name]);
    }

    fn run(&self, arguments: &[&str]) -> String {
        let outer: u32 = std::env::var("IDEM_PORT_OFFSET").ok().and_then(|offset| offset.parse().ok()).unwrap_or(0);
        let output = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../servers"))
            .args(arguments)
            .env("IDEM_SERVERS_SET", self.set)
            .env("IDEM_SERVERS_FOR", "tests")
            .env("IDEM_PORT_OFFSET", (outer + self.port_offset).to_string())
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
