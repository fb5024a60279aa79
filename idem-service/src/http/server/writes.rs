//! A connection whose writes have an end, which hyper's do not.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use idem_core::CancellationToken;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep},
};

/// How long a client may take none of its answers' bytes.
const STALLED_MAX: Duration = Duration::from_secs(10);

/// The same during a stop, which waits for each client: two packets may get lost in that time, one behind the other.
const STALLED_MAX_AT_STOP: Duration = Duration::from_secs(3);

/// Fails once its client has taken nothing for too long. Whoever takes something, however slowly, is served to the end.
pub(super) struct Writes<I> {
    of: I,
    stop: CancellationToken,
    /// Since when nothing could be written, and the end of that.
    stalled: Option<(Instant, Pin<Box<Sleep>>)>,
}

impl<I> Writes<I> {
    pub(super) fn new(of: I, stop: CancellationToken) -> Self {
        Self { of, stop, stalled: None }
    }

    fn within<T>(&mut self, polled: Poll<io::Result<T>>, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            self.stalled = None;
            return polled;
        }
        let (since, end) = self.stalled.get_or_insert_with(|| (Instant::now(), Box::pin(sleep(STALLED_MAX))));
        // A connection is polled when a stop begins.
        if self.stop.is_cancelled() {
            end.as_mut().reset(*since + STALLED_MAX_AT_STOP);
        }
        ready!(end.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Writes<I> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.of).poll_write(context, bytes);
        self.within(polled, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.of).poll_write_vectored(context, parts);
        self.within(polled, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.of.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.of).poll_flush(context);
        self.within(polled, context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.of).poll_shutdown(context);
        self.within(polled, context)
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for Writes<I> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.of).poll_read(context, into)
    }
}
