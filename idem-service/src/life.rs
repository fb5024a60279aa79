//! What every program of this crate does around its work: reads the command line, listens to signals, ends with an exit status.

use std::{future::Future, sync::Arc};

use idem_core::{BoxError, CancellationToken, internal::chain};

use crate::{
    command_line::Stop,
    descriptors,
    exit::{Exit, Failure},
    flags::Flags,
    key_secret,
    logs::{self, LogFormat},
    runtime, signals,
    status::Status,
};

/// Runs a command line, and returns how that ended.
pub(crate) fn run<L>(
    read: Result<L, Stop>,
    flags: impl FnOnce(&L) -> &Flags,
    start: impl FnOnce(L) -> Result<(), Failure>,
) -> Exit {
    let line = match read {
        Ok(line) => line,
        Err(Stop::Answered) => return Exit::Done,
        Err(Stop::Refused(text)) => {
            logs::last_line(LogFormat::Text, &text);
            return Exit::Refused;
        }
    };
    let flags = flags(&line);
    let (format, secret) = (flags.log_format, flags.key_secret_file.as_deref());
    let prepared = logs::start(format).and_then(|()| secret.map_or(Ok(()), key_secret::hide_keys));
    ended(format, prepared.map_err(Failure::refused).and_then(|()| start(line)))
}

/// The exit status, once the log has ended with the line that says why.
pub(crate) fn ended(format: LogFormat, ended: Result<(), Failure>) -> Exit {
    #[cfg(feature = "otel")]
    crate::otel::end();
    match ended {
        Ok(()) => {
            logs::end();
            Exit::Done
        }
        Err(Failure { exit, line }) => {
            logs::last_line(format, &line);
            exit
        }
    }
}

/// Starts the runtime, listens for signals, and passes its status to `tell` at the end. `what` is the kind of process in
/// the log, and `consumer` its name in the database, where that is known already.
pub(crate) fn serve<F>(
    what: &str,
    consumer: Option<&str>,
    serve: impl FnOnce(Arc<Status>) -> F,
    tell: impl FnOnce(&Status),
) -> Result<(), Failure>
where
    F: Future<Output = Result<(), Failure>> + Send + 'static,
{
    let stop = CancellationToken::new();
    let system = |error| Failure::new(Exit::Bug, format!("the system gives no thread or signal handler: {error}"));
    signals::listen(stop.clone()).map_err(system)?;
    descriptors::raise();
    let runtime = runtime::build().map_err(system)?;
    let ended = runtime.block_on(async {
        let status = Arc::new(Status::new(consumer, stop));
        // In a task, whose panic is an answer.
        let ended = tokio::spawn(serve(Arc::clone(&status))).await;
        tell(&status);
        ended.unwrap_or_else(|_| {
            let why = format!(
                "the {what} panicked; the place is on standard error. Outside of the application's own functions and hooks \
                 that is a bug in idem: report it, with the log"
            );
            Err(Failure::new(Exit::Bug, why))
        })
    });
    // A handler that passed the drain deadline may block its thread, and is not waited for.
    std::mem::forget(runtime);
    ended
}

/// An error and its sources in one line.
pub(crate) fn texts(error: &BoxError) -> String {
    chain(&**error).map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
