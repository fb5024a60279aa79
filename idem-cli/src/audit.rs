//! Operators' actions, on the log target `idem::audit` as well as in the table `audit`. The table has everything: its rows
//! are written in the transaction of the act, and the lines follow the commit.

use std::io;

use idem_core::telemetry::AUDIT;
use tracing::Level;
use tracing_subscriber::EnvFilter;

use crate::exit::Failure;

/// A line of the trail.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Line<'a> {
    pub(crate) who: &'a str,
    pub(crate) action: &'a str,
    pub(crate) consumer: &'a str,
    pub(crate) key: Option<&'a str>,
    pub(crate) details: &'a str,
}

/// Starts the log, on standard error, where `RUST_LOG` asks for one.
pub(crate) fn start_log(is_json: bool) -> Result<(), Failure> {
    let Ok(directives) = std::env::var(EnvFilter::DEFAULT_ENV) else { return Ok(()) };
    let filter = EnvFilter::try_new(directives)
        .map_err(|error| Failure::refused(format!("RUST_LOG cannot be read: {error}")))?;
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).with_ansi(false);
    // Otherwise a line that cannot be written is reported on standard error, which panics where that is closed.
    let log = log.log_internal_errors(false);
    // It fails only where there is a log already.
    let _ = if is_json { log.json().flatten_event(true).try_init() } else { log.try_init() };
    Ok(())
}

/// Whether the log takes the lines.
pub(crate) fn is_heard() -> bool {
    tracing::enabled!(target: AUDIT, Level::INFO)
}

/// Writes a line.
pub(crate) fn tell(line: Line<'_>) {
    let Line { who, action, consumer, key, details } = line;
    tracing::info!(
        target: AUDIT,
        { idem.consumer = consumer, idem.key = key, who, action, details },
        "an operator has changed or read something"
    );
}
