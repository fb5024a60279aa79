//! Serves the routes within limits: a client of the port may neither hold connections nor use up the worker's resources.

use std::{net::IpAddr, sync::Arc, time::Duration};

use axum::{
    Router,
    extract::{Request, State},
    http::{StatusCode, header, uri::Authority},
    middleware::{self, Next},
    response::{IntoResponse as _, Response},
};
use hyper::{
    body::Incoming,
    service::{Service as _, service_fn},
};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::net::{TcpListener, TcpStream};

use crate::connections::{Connections, Waits};

/// How many connections are open at once. One more closes the one that has waited longest for its client or its response, so that a
/// probe is answered whatever other clients hold.
pub(super) const CONNECTIONS_MAX: usize = 64;

/// How long a request's head may take.
const HEAD_MAX: Duration = Duration::from_secs(5);

/// How long a connection may take in all, which serves one request.
const CONNECTION_MAX: Duration = Duration::from_secs(30);

/// Serves until the runtime ends.
pub(super) async fn serve(listener: TcpListener, routes: Router) {
    let mut open = Connections::new(CONNECTIONS_MAX, metrics::Counter::noop());
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                open.room().await;
                open.serve(|waits| connection(stream, routes.clone(), waits));
            }
            Err(error) => open.refused(&error).await,
        }
    }
}

async fn connection(stream: TcpStream, routes: Router, waits: Arc<Waits>) {
    let routes = TowerToHyperService::new(routes);
    let counted = service_fn(|request: hyper::Request<Incoming>| {
        waits.begin();
        routes.call(request)
    });
    let mut server = hyper::server::conn::http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(HEAD_MAX).keep_alive(false);
    // A connection that fails is that connection's affair.
    let _ = tokio::time::timeout(CONNECTION_MAX, server.serve_connection(TokioIo::new(stream), counted)).await;
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

/// Lets only requests pass that name this worker as it is known.
pub(super) fn guarded(routes: Router, hosts: Hosts) -> Router {
    routes.layer(middleware::from_fn_with_state(hosts, check_host))
}

async fn check_host(State(hosts): State<Hosts>, request: Request, next: Next) -> Response {
    let host = request.headers().get(header::HOST).map(|host| host.to_str().unwrap_or_default());
    if hosts.allow(host) {
        return next.run(request).await;
    }
    let text = "this name is not known here: ask for the address, or start the worker with --admin-host NAME\n";
    (StatusCode::MISDIRECTED_REQUEST, text).into_response()
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
