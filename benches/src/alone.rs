//! Measurements in a process of their own: memory, because the leftovers of an earlier measurement are not the worker's;
//! and measurements on one thread.

use std::{error::Error, process::Stdio};

use serde_json::{Value, json};

use crate::{
    calls, engine, http, kafka, relay,
    report::{Line, Table},
};

/// The first argument of such a process.
pub(crate) const FLAG: &str = "--alone";

/// Runs the measurement of such a process, whose result is printed as JSON.
pub(crate) fn measure(arguments: &[String]) -> Result<Value, Box<dyn Error>> {
    let runtime = tokio::runtime::Runtime::new()?;
    match arguments {
        [what, kind, messages] if what == "engine-on-one-thread" => engine::on_one_thread(kind, messages.parse()?),
        [what, line, url] if what == "calls-on-one-thread" => calls::on_one_thread(line, url),
        [what, messages] if what == "engine" => runtime.block_on(engine::memory(messages.parse()?)),
        [what, topic, messages] if what == "kafka" => runtime.block_on(kafka::resident(topic, messages.parse()?)),
        [what, way, driver, url] if what == "http" => {
            runtime.block_on(http::serve(way, driver, url)).map(|()| Value::Null)
        }
        [what, url, brokers, topic] if what == "relay" => {
            runtime.block_on(relay::relay_until_killed(url, brokers, topic)).map(|()| Value::Null)
        }
        _ => Err(format!("{FLAG} is for the benchmark itself").into()),
    }
}

/// Starts such a process, and answers what it measured.
pub(crate) async fn run(arguments: &[&str]) -> Result<Value, Box<dyn Error>> {
    let mut process = tokio::process::Command::new(std::env::current_exe()?);
    let output = process.arg(FLAG).args(arguments).stderr(Stdio::inherit()).kill_on_drop(true).output().await?;
    if !output.status.success() {
        return Err(format!("{arguments:?}: {}", output.status).into());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Prints the resident memory of such a process at each tenth of its messages.
pub(crate) async fn resident(id: &str, title: &str, arguments: &[&str]) -> Result<Table, Box<dyn Error>> {
    let measured = run(arguments).await?;
    let tenths: Vec<f64> = serde_json::from_value(measured["resident_mib"].clone())?;
    println!("\n{title}");
    println!("  MiB at each tenth: {tenths:.0?}; {} messages a second", measured["rate"]);
    let line = Line { name: "resident memory at each tenth".to_owned(), rounds: tenths };
    Ok(Table { id: id.to_owned(), title: title.to_owned(), unit: "MiB".to_owned(), lines: vec![line] })
}

/// The process's resident memory in MiB.
pub(crate) fn resident_mib() -> Result<usize, Box<dyn Error>> {
    resident_mib_of("self")
}

/// That of the process with this id.
pub(crate) fn resident_mib_of(process: &str) -> Result<usize, Box<dyn Error>> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).ok_or("no VmRSS in /proc/…/status")?;
    let kib: usize = line.split_whitespace().nth(1).ok_or("VmRSS has no value")?.parse()?;
    Ok(kib / 1024)
}

/// The measurement, for the process that asked.
pub(crate) fn answer(resident_mib: &[usize], messages: usize, seconds: f64) -> Value {
    json!({ "resident_mib": resident_mib, "messages": messages, "rate": (messages as f64 / seconds).round() })
}
