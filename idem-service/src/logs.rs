//! The log, on standard error.

use std::io::{self, IsTerminal as _, Write as _};

use clap::ValueEnum;
use tracing_subscriber::EnvFilter;

/// How lines are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

/// The lines logged unless `RUST_LOG` says otherwise. sqlx passes on PostgreSQL's notices about existing tables as news,
/// and lapin and the SDK of AWS print errors in Rust's form, which our own lines say in words.
const DEFAULT: &str = "info,sqlx=warn,lapin=off,aws_config=error";

/// Starts the log.
///
/// # Errors
/// One line, where `RUST_LOG` cannot be read.
pub(crate) fn start(format: LogFormat) -> Result<(), String> {
    let filter = match std::env::var(EnvFilter::DEFAULT_ENV) {
        Ok(text) => EnvFilter::try_new(text).map_err(|error| format!("RUST_LOG: {error}"))?,
        Err(_) => EnvFilter::new(DEFAULT),
    };
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    // It fails only where the program has a log of its own already, which is then used.
    let _ = match format {
        LogFormat::Text => log.with_ansi(io::stderr().is_terminal()).try_init(),
        LogFormat::Json => log.json().flatten_event(true).try_init(),
    };
    Ok(())
}

/// The one line that says why a worker ends. It is no event of the log, because `RUST_LOG` must not silence it.
pub(crate) fn last_line(format: LogFormat, line: &str) {
    // An error's text may come from a server; it must not forge lines.
    let line: String = line.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let text = match format {
        LogFormat::Text => format!("error: {line}"),
        LogFormat::Json => serde_json::json!({ "level": "ERROR", "message": line }).to_string(),
    };
    // If standard error is closed, there is nowhere to report that.
    let _ = writeln!(io::stderr().lock(), "{text}");
}
