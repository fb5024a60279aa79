//! SIGTERM and SIGINT: the first stops the worker, the second ends the process.

use std::{io, sync::mpsc, thread, time::Duration};

use idem_core::CancellationToken;
use tokio::{
    runtime,
    signal::unix::{Signal, SignalKind, signal},
};

use crate::logs;

/// How long a signal waits for its line in the log. A program with its own log may write it on the thread that logs.
const LOGGED_WITHIN: Duration = Duration::from_millis(100);

/// Listens from now on, on a thread of its own: the second signal must end the process also while handlers block every
/// thread of the worker's runtime.
///
/// # Errors
/// Where the system gives no thread or no handler.
pub(crate) fn listen(stop: CancellationToken) -> io::Result<()> {
    let runtime = runtime::Builder::new_current_thread().enable_io().build()?;
    let signals = {
        let _entered = runtime.enter();
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?)
    };
    let listen = move || runtime.block_on(obey(signals, stop));
    thread::Builder::new().name("signals".to_owned()).spawn(listen).map(|_| ())
}

async fn obey((mut terminate, mut interrupt): (Signal, Signal), stop: CancellationToken) {
    let first = next(&mut terminate, &mut interrupt).await;
    logged(move || {
        tracing::info!(signal = first.as_raw_value(), "stopping; a second signal ends the process at once");
    });
    stop.cancel();
    let second = next(&mut terminate, &mut interrupt).await;
    logs::flush(LOGGED_WITHIN);
    // As a shell reports a process that a signal has ended.
    std::process::exit(128 + second.as_raw_value());
}

/// Logs on another thread, so that no log keeps the signal from what it asks for.
fn logged(log: impl FnOnce() + Send + 'static) {
    let (done, is_done) = mpsc::channel::<()>();
    let log = move || {
        log();
        drop(done);
    };
    if thread::Builder::new().spawn(log).is_ok() {
        let _ = is_done.recv_timeout(LOGGED_WITHIN);
    }
}

async fn next(terminate: &mut Signal, interrupt: &mut Signal) -> SignalKind {
    tokio::select! {
        _ = terminate.recv() => SignalKind::terminate(),
        _ = interrupt.recv() => SignalKind::interrupt(),
    }
}
