//! The log of one thread, as text.

use std::{
    io,
    sync::{Arc, Mutex, OnceLock},
};

use tracing::{Dispatch, subscriber::DefaultGuard};
use tracing_subscriber::fmt::MakeWriter;

#[derive(Clone, Default)]
pub(super) struct Captured(Arc<Mutex<Vec<u8>>>);

impl Captured {
    /// Captures what is logged from now on, on this thread.
    pub(super) fn log(level: tracing::Level) -> (Self, DefaultGuard) {
        let captured = Self::default();
        let subscriber =
            tracing_subscriber::fmt().with_max_level(level).with_writer(captured.clone()).with_ansi(false).finish();
        (captured, set_default(subscriber))
    }

    pub(super) fn lines(&self) -> Vec<String> {
        String::from_utf8_lossy(&self.0.lock().unwrap()).lines().map(str::to_owned).collect()
    }
}

/// Makes this the subscriber of one thread. Another one lives on beside it: where there is only one, a thread that has none
/// may be asked first whether a line is of interest, and its no is remembered for all (tokio-rs/tracing#3611).
pub(super) fn set_default(subscriber: impl Into<Dispatch>) -> DefaultGuard {
    static ANOTHER: OnceLock<Dispatch> = OnceLock::new();
    ANOTHER.get_or_init(|| Dispatch::new(tracing_subscriber::registry()));
    tracing::dispatcher::set_default(&subscriber.into())
}

impl io::Write for Captured {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Captured {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}
