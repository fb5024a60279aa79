//! Resident memory, measured in a process of its own: what an earlier measurement left behind is not the worker's.

use std::{error::Error, process::Stdio};

use serde_json::{Value, json};

use crate::{amqp, engine, kafka};

/// The first argument of a process that measures memory.
pub(crate) const FLAG: &str = "--alone";

/// What such a process does, and prints as JSON.
pub(crate) async fn measure(arguments: &[String]) -> Result<Value, Box<dyn Error>> {
    match arguments {
        [what, messages] if what == "engine" => engine::memory(messages.parse()?).await,
        [what, topic, messages] if what == "kafka" => kafka::resident(topic, messages.parse()?).await,
        [what, queue, messages] if what == "rabbitmq" => amqp::resident(queue, messages.parse()?).await,
        _ => Err(format!("{FLAG} is for the benchmark itself").into()),
    }
}

/// Starts such a process, prints what it measured, and answers it.
pub(crate) async fn resident(title: &str, arguments: &[&str]) -> Result<Value, Box<dyn Error>> {
    let mut process = tokio::process::Command::new(std::env::current_exe()?);
    let output = process.arg(FLAG).args(arguments).stderr(Stdio::inherit()).kill_on_drop(true).output().await?;
    if !output.status.success() {
        return Err(format!("{title}: {}", output.status).into());
    }
    let measured: Value = serde_json::from_slice(&output.stdout)?;
    println!("\n{title}");
    println!("  MiB at each tenth: {}; {} messages a second", measured["resident_mib"], measured["rate"]);
    Ok(json!({ "title": title, "measured": measured }))
}

/// The process's resident memory in MiB.
pub(crate) fn resident_mib() -> Result<usize, Box<dyn Error>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).ok_or("no VmRSS in /proc/self/status")?;
    let kib: usize = line.split_whitespace().nth(1).ok_or("VmRSS has no value")?.parse()?;
    Ok(kib / 1024)
}

/// What was measured, for the process that asked.
pub(crate) fn answer(resident_mib: &[usize], messages: usize, seconds: f64) -> Value {
    json!({ "resident_mib": resident_mib, "messages": messages, "rate": (messages as f64 / seconds).round() })
}
