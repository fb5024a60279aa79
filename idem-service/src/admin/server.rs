//! Serves the routes within limits: a client of the port may neither hold connections nor use up the worker's resources.

use std::{convert::Infallible, net::IpAddr, sync::Arc, time::Duration};

use hyper::{Request, Response, StatusCode, body::Incoming, header::HOST, http::uri::Authority, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};

use super::{
    Admin, PLAIN,
    own::{Body, OwnRoutes},
    response,
};
use crate::connections::{Connections, Waits};

/// How many connections are open at once. One more closes the one that has waited longest for its client or its response, so that a
/// probe is answered whatever other clients hold.
pub(super) const CONNECTIONS_MAX: usize = 64;

/// How long a request's head may take.
const HEAD_MAX: Duration = Duration::from_secs(5);

/// How long a connection may take in all, which serves one request.
const CONNECTION_MAX: Duration = Duration::from_secs(30);

/// What is served.
#[derive(Debug, Clone)]
pub(super) struct Served {
    pub(super) admin: Admin,
    pub(super) hosts: Hosts,
    pub(super) own: OwnRoutes,
}

/// Serves until the runtime ends.
pub(super) async fn serve(listener: TcpListener, served: Served) {
    let mut open = Connections::new(CONNECTIONS_MAX, metrics::Counter::noop());
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                open.room().await;
                open.serve(|waits| connection(stream, served.clone(), waits));
            }
            Err(error) => open.refused(&error).await,
        }
    }
}

async fn connection(stream: TcpStream, served: Served, waits: Arc<Waits>) {
    let counted = service_fn(|request| {
        waits.begin();
        let served = served.clone();
        async move { Ok::<_, Infallible>(served.answer(request).await) }
    });
    let mut server = hyper::server::conn::http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(HEAD_MAX).keep_alive(false);
    // A connection that fails is that connection's affair.
    let _ = tokio::time::timeout(CONNECTION_MAX, server.serve_connection(TokioIo::new(stream), counted)).await;
}

impl Served {
    /// Answers a request that names this worker as it is known.
    async fn answer(self, request: Request<Incoming>) -> Response<Body> {
        let host = request.headers().get(HOST).map(|host| host.to_str().unwrap_or_default());
        if !self.hosts.allow(host) {
            let text = "this name is not known here: ask for the address, or start the worker with --admin-host NAME\n";
            return response(StatusCode::MISDIRECTED_REQUEST, PLAIN, text).map(Body::new);
        }
        match self.admin.answer(request.method(), request.uri().path()).await {
            Some(response) => response.map(Body::new),
            None => self.own.answer(request).await,
        }
    }
}

/// The names under which the endpoints may be asked, beside addresses and `localhost`.
#[derive(Debug, Clone, Default)]
pub(super) struct Hosts(pub(super) Arc<[String]>);

impl Hosts {
    /// Whether a request for this host may be answered. A page in an operator's browser can have a name of its own point to
    /// this port, and would read the answers; it cannot do so with an address.
    fn allow(&self, host: Option<&str>) -> bool {
        // Before HTTP/1.1 there was none, and no browser leaves it out.
        let Some(host) = host else { return true };
        let Ok(authority) = host.parse::<Authority>() else { return false };
        let name = authority.host().trim_start_matches('[').trim_end_matches(']');
        let is_told = || self.0.iter().any(|told| told.eq_ignore_ascii_case(name));
        name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok() || is_told()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s18_only_addresses_and_names_that_were_told_are_answered() {
        let hosts = Hosts(Arc::new(["worker.svc".to_owned()]));
        for host in
            ["127.0.0.1:9900", "[::1]:9900", "10.1.2.3", "localhost", "LOCALHOST:1", "worker.svc:9900", "Worker.svc"]
        {
            assert!(hosts.allow(Some(host)), "{host}");
        }
        for host in ["evil.example", "evil.example:9900", "localhost.evil.example", "127.0.0.1.evil.example", "", "a b"]
        {
            assert!(!hosts.allow(Some(host)), "{host}");
        }
        assert!(hosts.allow(None));
    }
}
