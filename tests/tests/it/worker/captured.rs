//! The log of one thread, as text.

use std::{
    io,
    sync::{Arc, Mutex},
};

use tracing_subscriber::fmt::MakeWriter;

#[derive(Clone, Default)]
pub(super) struct Captured(Arc<Mutex<Vec<u8>>>);

impl Captured {
    /// Captures what is logged from now on, on this thread.
    pub(super) fn log(level: tracing::Level) -> (Self, tracing::subscriber::DefaultGuard) {
        let captured = Self::default();
        let subscriber =
            tracing_subscriber::fmt().with_max_level(level).with_writer(captured.clone()).with_ansi(false).finish();
        (captured, tracing::subscriber::set_default(subscriber))
    }

    pub(super) fn lines(&self) -> Vec<String> {
        String::from_utf8_lossy(&self.0.lock().unwrap()).lines().map(str::to_owned).collect()
    }
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
