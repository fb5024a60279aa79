//! SIGTERM and SIGINT: the first stops the worker, the second ends the process.

use std::{io, thread};

use idem_core::CancellationToken;
use tokio::{
    runtime,
    signal::unix::{Signal, SignalKind, signal},
};

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
    tracing::info!(signal = first.as_raw_value(), "stopping; a second signal ends the process at once");
    stop.cancel();
    let second = next(&mut terminate, &mut interrupt).await;
    // As a shell reports a process that a signal has ended.
    std::process::exit(128 + second.as_raw_value());
}

async fn next(terminate: &mut Signal, interrupt: &mut Signal) -> SignalKind {
    tokio::select! {
        _ = terminate.recv() => SignalKind::terminate(),
        _ = interrupt.recv() => SignalKind::interrupt(),
    }
}
