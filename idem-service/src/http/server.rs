//! Serves requests within limits: a client of the port may neither hold the service's memory nor keep it from stopping.

use std::{pin::pin, time::Duration};

use axum::Router;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use idem_core::CancellationToken;
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::timeout,
};

/// How many connections are open at once. One more waits until another has closed.
const CONNECTIONS_MAX: usize = 20_000;

/// How long a request's head may take, and a connection may rest between two requests.
const HEAD_MAX: Duration = Duration::from_secs(10);

/// The largest head of a request: the first line and all headers. A larger one is answered with 431.
const HEAD_BYTES_MAX: usize = 32 << 10;

/// How long nothing is accepted after the system had no connection to give, such as for want of file descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// Serves until `stop`, and then until running requests have been answered, for at most `drain`.
///
/// # Errors
/// How many connections were not done by then.
pub(super) async fn serve(
    listener: TcpListener,
    routes: Router,
    stop: &CancellationToken,
    drain: Duration,
) -> Result<(), usize> {
    let mut open = JoinSet::new();
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
            Ok((stream, _)) => drop(open.spawn(connection(stream, routes.clone(), stop.clone()))),
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
    // Clients of the next process on this address are refused until it is there, and not left waiting.
    drop(listener);
    let all = async { while open.join_next().await.is_some() {} };
    let ended = timeout(drain, all).await;
    ended.map_err(|_| open.len())
}

async fn connection(stream: TcpStream, routes: Router, stop: CancellationToken) {
    // An answer is one small piece, and its client waits for it.
    let _ = stream.set_nodelay(true);
    let mut server = hyper::server::conn::http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(HEAD_MAX).max_buf_size(HEAD_BYTES_MAX);
    let mut served = pin!(server.serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes)));
    // A connection that fails is that connection's affair.
    let _ = tokio::select! {
        ended = served.as_mut() => ended,
        () = stop.cancelled() => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
}
