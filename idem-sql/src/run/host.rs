//! The name of this machine, as a row of `worker_runs` shows it to people.

/// The host's name by the environment or the system; `unknown` where neither has one. Nothing depends on it.
#[must_use]
pub fn host_name() -> String {
    let from_environment = || std::env::var("HOSTNAME").ok();
    let from_system = || std::fs::read_to_string("/etc/hostname").ok();
    let name = from_environment().or_else(from_system).unwrap_or_default();
    let name: String = name.trim().chars().filter(|c| !c.is_control()).take(100).collect();
    if name.is_empty() { "unknown".to_owned() } else { name }
}
