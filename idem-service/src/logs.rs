//! The log on standard error, and the summary on standard output. A reader that stands still stops neither the process nor its end.

mod outlet;

use std::{
    backtrace::{Backtrace, BacktraceStatus},
    io::{self, IsTerminal as _, Write},
    panic,
    sync::OnceLock,
    thread,
    time::Duration,
};

use clap::ValueEnum;
use tracing_subscriber::{Layer as _, filter::Targets, fmt, layer::SubscriberExt as _, util::SubscriberInitExt as _};

use self::outlet::Outlet;

/// How lines are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

/// The lines logged unless `RUST_LOG` says otherwise. sqlx passes on PostgreSQL's notices about existing tables as news,
/// and lapin and the SDK of AWS print errors in Rust's form, which our own lines say in words.
const DEFAULT: &str = "info,sqlx=warn,lapin=off,aws_config=error";

/// How long the end of the process waits for the last lines to be written, and again for the summary.
const LAST_WITHIN: Duration = Duration::from_secs(2);

/// The log, from its first line on, whose format it keeps.
static LOG: OnceLock<Outlet> = OnceLock::new();

fn log(format: LogFormat) -> &'static Outlet {
    LOG.get_or_init(|| Outlet::new(|| Box::new(io::stderr()), move |missing| gap(format, missing)))
}

/// An event of the log, which comes in one piece.
struct Event(&'static Outlet);

impl Write for Event {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Starts the log, and has panics reported there.
///
/// # Errors
/// One line, where `RUST_LOG` or a variable of OpenTelemetry cannot be read.
pub(crate) fn start(format: LogFormat) -> Result<(), String> {
    let asked = std::env::var("RUST_LOG").unwrap_or_else(|_| DEFAULT.to_owned());
    let filter: Targets = asked.parse().map_err(|error| format!("RUST_LOG: {error}"))?;
    let lines = log(format);
    // An event that cannot be formatted would be reported on standard error, past the thread of the log.
    let log = fmt::layer().log_internal_errors(false).with_writer(move || Event(lines));
    let log = match format {
        LogFormat::Text => log.with_ansi(cfg!(feature = "color") && io::stderr().is_terminal()).boxed(),
        LogFormat::Json => log.json().flatten_event(true).boxed(),
    };
    let registry = tracing_subscriber::registry().with(log.with_filter(filter));
    #[cfg(feature = "otel")]
    let started = {
        crate::otel::start()?;
        // No layer, rather than one that is `None`: beside a filtered layer, that loses an event behind each one that is disabled.
        match crate::otel::layer() {
            Some(spans) => registry.with(spans).try_init(),
            None => registry.try_init(),
        }
    };
    #[cfg(not(feature = "otel"))]
    let started = registry.try_init();
    // It fails only where the program has a log of its own already, which is then used, with its own hook.
    if started.is_ok() {
        report_panics(lines, format);
    }
    Ok(())
}

/// Replaces the hook of the standard library, which waits for standard error on the thread that panics.
fn report_panics(lines: &'static Outlet, format: LogFormat) {
    panic::set_hook(Box::new(move |panic| {
        let thread = thread::current();
        let name = thread.name().unwrap_or("<unnamed>");
        let mut text = format!("thread '{name}' {panic}");
        let backtrace = Backtrace::capture();
        if backtrace.status() == BacktraceStatus::Captured {
            text += &format!("\nstack backtrace:\n{backtrace}");
        }
        let text = match format {
            LogFormat::Text => text,
            LogFormat::Json => in_json("ERROR", &text),
        };
        lines.push(format!("{text}\n").as_bytes());
        // After these the process ends, and nothing else waits for the line.
        if name == "main" || cfg!(panic = "abort") {
            lines.flush(LAST_WITHIN);
        }
    }));
}

/// The one line that says why a worker ends, after which no other line comes. It is no event of the log, because `RUST_LOG` must not
/// silence it.
pub(crate) fn last_line(format: LogFormat, line: &str) {
    // An error's text may come from a server; it must not forge lines.
    let line: String = line.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let text = match format {
        LogFormat::Text => format!("error: {line}\n"),
        LogFormat::Json => in_json("ERROR", &line) + "\n",
    };
    log(format).push(text.as_bytes());
    flush(LAST_WITHIN);
}

/// Waits until the log is written, for this time at most.
pub(crate) fn flush(within: Duration) {
    if let Some(lines) = LOG.get() {
        lines.flush(within);
    }
}

/// The same at the end of the process.
pub(crate) fn end() {
    flush(LAST_WITHIN);
}

/// How many lines of the log were lost, because standard error took no more.
pub(crate) fn lost() -> u64 {
    LOG.get().map_or(0, Outlet::lost)
}

/// Writes a line to standard output. A reader that stands still costs it the line.
pub(crate) fn print(line: &str) {
    let out = Outlet::new(|| Box::new(io::stdout()), |_| String::new());
    out.push(format!("{line}\n").as_bytes());
    out.flush(LAST_WITHIN);
}

fn gap(format: LogFormat, missing: u64) -> String {
    let text = format!("{missing} lines of the log are missing here: standard error did not take them");
    match format {
        LogFormat::Text => format!("warning: {text}\n"),
        LogFormat::Json => in_json("WARN", &text) + "\n",
    }
}

fn in_json(level: &str, text: &str) -> String {
    serde_json::json!({ "level": level, "message": text }).to_string()
}

#[cfg(test)]
mod tests;
