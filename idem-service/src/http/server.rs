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
    time::timeout,
};

use self::{unread::Rest, writes::Writes};
use crate::connections::{Connections, Waits};

/// How long a request's head may take, and a connection may rest between two requests.
const HEAD_MAX: Duration = Duration::from_secs(10);

/// The largest head of a request: the first line and all headers. A larger one is answered with 431.
const HEAD_BYTES_MAX: usize = 32 << 10;

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
    mut open: Connections,
    routes: Router,
    stop: &CancellationToken,
    drain: Duration,
    idempotency: &Idempotency<S>,
) -> Result<(), Left> {
    let unanswered = Arc::<AtomicUsize>::default();
    let accept = async {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    open.room().await;
                    // An answer is one small piece, and its client waits for it.
                    let _ = stream.set_nodelay(true);
                    let (routes, stop, unanswered) = (routes.clone(), stop.clone(), Arc::clone(&unanswered));
                    open.serve(|waits| connection(stream, routes, stop, unanswered, waits));
                }
                Err(error) => open.refused(&error).await,
            }
        }
    };
    stop.run_until_cancelled(accept).await;
    // Clients of the next process on this address are refused until it is there, and not left waiting.
    drop(listener);
    let all = async {
        open.ended().await;
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
    waits: Arc<Waits>,
) {
    let mut server = hyper::server::conn::http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(HEAD_MAX).max_buf_size(HEAD_BYTES_MAX);
    let (stream, routes) = (TokioIo::new(Writes::new(stream, stop.clone())), TowerToHyperService::new(routes));
    let counted = service_fn(|request| {
        waits.begin();
        waits.works(true);
        let (request, rest) = Rest::of(request, &waits);
        let waits = Arc::clone(&waits);
        let (request_in_hand, answered) = (InHand::one(&unanswered), routes.call(request));
        async move {
            let mut answered = answered.await;
            if let Ok(answer) = &mut answered {
                rest.settle(answer.headers_mut()).await;
            }
            drop(request_in_hand);
            waits.begin();
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
