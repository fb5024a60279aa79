//! [`connect`]: a connection on which the client library sees nothing that it cannot read, see [`Frames`].

use std::{
    io::{self, IoSlice, Read, Write},
    net::SocketAddr,
    pin::Pin,
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use async_rs::{Runtime, Tokio, traits::Reactor, util::RuntimeParts};
use futures_io::{AsyncRead, AsyncWrite};
use futures_util::Stream;
use lapin::{
    AsyncTcpStream, Connection, ConnectionProperties,
    tcp::{AMQPUriTcpExt, OwnedTLSConfig},
    uri::AMQPUri,
};

use crate::frames::Frames;

/// Connects as the library does, with [`Frames`] between the socket, or TLS, and the library.
pub(crate) async fn connect(
    uri: AMQPUri,
    properties: ConnectionProperties,
    tls: OwnedTLSConfig,
) -> lapin::Result<Connection> {
    let tokio = Tokio::current();
    let plain = Runtime::new(tokio.clone());
    let guarded = Runtime::new(RuntimeParts::new(tokio.clone(), Guarding(tokio)));
    let open = async move |uri: AMQPUri, _: Runtime<_>| {
        let stream = uri.connect_with_config_async(tls.as_ref(), &plain).await?;
        let frame_max = uri.query.frame_max.unwrap_or_default();
        Ok(AsyncTcpStream::Plain(Guarded::new(stream, frame_max as usize)))
    };
    Connection::connector(uri, guarded, open, properties).await
}

/// The broker's side of a connection, looked through.
pub(crate) struct Guarded {
    stream: AsyncTcpStream<<Tokio as Reactor>::TcpStream>,
    frames: Frames,
    /// Looked through, and given out up to here.
    ready: Vec<u8>,
    given: usize,
}

impl Guarded {
    fn new(stream: AsyncTcpStream<<Tokio as Reactor>::TcpStream>, frame_max: usize) -> Self {
        Self { stream, frames: Frames::new(frame_max), ready: Vec::new(), given: 0 }
    }

    /// Gives out the bytes that are ready, as far as there is room for them.
    fn give(&mut self, buffer: &mut [u8]) -> usize {
        let rest = &self.ready[self.given..];
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        self.given += count;
        if self.given == self.ready.len() {
            self.ready.clear();
            self.given = 0;
        }
        count
    }
}

impl AsyncRead for Guarded {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        while this.ready.is_empty() && !buffer.is_empty() {
            let count = ready!(Pin::new(&mut this.stream).poll_read(context, buffer))?;
            if count == 0 {
                return Poll::Ready(Ok(0));
            }
            this.frames.pass(&buffer[..count], &mut this.ready)?;
        }
        Poll::Ready(Ok(this.give(buffer)))
    }
}

impl AsyncWrite for Guarded {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_close(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_close(context)
    }
}

/// Tokio's reactor, typed for the library so that its streams are [`Guarded`].
#[derive(Debug, Clone)]
struct Guarding(Tokio);

impl Reactor for Guarding {
    type TcpStream = Guarded;
    type Sleep = <Tokio as Reactor>::Sleep;

    /// The library registers nothing.
    fn register<H: Read + Write + Send + 'static>(
        &self,
        _socket: H,
    ) -> io::Result<impl AsyncRead + AsyncWrite + Send + Unpin + 'static> {
        Err::<Guarded, _>(io::ErrorKind::Unsupported.into())
    }

    fn sleep(&self, time: Duration) -> Self::Sleep {
        self.0.sleep(time)
    }

    fn interval(&self, time: Duration) -> impl Stream<Item = Instant> + Send + 'static {
        self.0.interval(time)
    }

    fn tcp_connect_addr(
        &self,
        address: SocketAddr,
    ) -> impl Future<Output = io::Result<Self::TcpStream>> + Send + 'static {
        let connected = self.0.tcp_connect_addr(address);
        async { Ok(Guarded::new(AsyncTcpStream::Plain(connected.await?), 0)) }
    }
}
