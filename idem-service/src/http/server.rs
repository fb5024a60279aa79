//! Serves requests within limits: a client of the port may neither hold the service's memory nor keep it from stopping.

mod unread;
mod writes;

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::Router;
use hyper::service::{Service as _, service_fn};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use idem_core::{CancellationToken, Store};
use idem_http::Idempotency;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpListener,
    task::JoinSet,
    time::timeout,
};

use self::{unread::Rest, writes::Writes};

/// How many connections are open at once. One more waits until another has closed.
const CONNECTIONS_MAX: usize = 20_000;

/// How long a request's head may take, and a connection may rest between two requests.
const HEAD_MAX: Duration = Duration::from_secs(10);

/// The largest head of a request: the first line and all headers. A larger one is answered with 431.
const HEAD_BYTES_MAX: usize = 32 << 10;

/// How long nothing is accepted after the system had no connection to give, such as for want of file descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// The requests that a stop did not wait for any longer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Left {
    /// Those that had no answer, with a client that waited.
    pub(super) unanswered: usize,
    /// Those that ran, with or without a client.
    pub(super) running: usize,
}

/// Serves until `stop`, and then until running requests have been answered and the others, whose clients are gone, have ended, for at
/// most `drain`.
///
/// # Errors
/// The requests that were not done by then. A client that has yet to read its answer is not one of them.
pub(super) async fn serve<S: Store>(
    listener: TcpListener,
    routes: Router,
    stop: &CancellationToken,
    drain: Duration,
    idempotency: &Idempotency<S>,
) -> Result<(), Left> {
    let (mut open, unanswered) = (JoinSet::new(), Arc::<AtomicUsize>::default());
    loop {
        while open.try_join_next().is_some() {}
        if open.len() >= CONNECTIONS_MAX {
            tokio::select! {
                _ = open.join_next() => continue,
                () = stop.cancelled() => break,
            }
        }
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.cancelled() => break,
        };
        match accepted {
            Ok((stream, _)) => {
                // An answer is one small piece, and its client waits for it.
                let _ = stream.set_nodelay(true);
                open.spawn(connection(stream, routes.clone(), stop.clone(), Arc::clone(&unanswered)));
            }
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
    // Clients of the next process on this address are refused until it is there, and not left waiting.
    drop(listener);
    let all = async {
        while open.join_next().await.is_some() {}
        idempotency.idle().await;
    };
    if timeout(drain, all).await.is_ok() {
        return Ok(());
    }
    match (unanswered.load(Ordering::Relaxed), idempotency.running()) {
        (0, 0) => Ok(()),
        (unanswered, running) => Err(Left { unanswered, running }),
    }
}

async fn connection<I: AsyncRead + AsyncWrite + Unpin>(
    stream: I,
    routes: Router,
    stop: CancellationToken,
    unanswered: Arc<AtomicUsize>,
) {
    let mut server = hyper::server::conn::http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(HEAD_MAX).max_buf_size(HEAD_BYTES_MAX);
    let (stream, routes) = (TokioIo::new(Writes::new(stream, stop.clone())), TowerToHyperService::new(routes));
    let counted = service_fn(|request| {
        let (request, rest) = Rest::of(request);
        let (request_in_hand, answered) = (InHand::one(&unanswered), routes.call(request));
        async move {
            let mut answered = answered.await;
            if let Ok(answer) = &mut answered {
                rest.settle(answer.headers_mut()).await;
            }
            drop(request_in_hand);
            answered
        }
    });
    let mut served = pin!(server.serve_connection(stream, counted));
    // A connection that fails is that connection's affair.
    let _ = tokio::select! {
        ended = served.as_mut() => ended,
        () = stop.cancelled() => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
}

/// A request without an answer, until this is dropped.
struct InHand(Arc<AtomicUsize>);

impl InHand {
    fn one(all: &Arc<AtomicUsize>) -> Self {
        all.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(all))
    }
}

impl Drop for InHand {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
