//! The admin endpoints: `/metrics`, `/healthz`, `/readyz`, and a page at `/`. All are read-only.

mod body;
mod own;
mod server;

use std::sync::Arc;

use hyper::{
    HeaderMap, Method, Response, StatusCode,
    header::{
        ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, HeaderValue, REFERRER_POLICY,
        X_CONTENT_TYPE_OPTIONS,
    },
};
use tokio::net::TcpListener;

pub(crate) use self::own::OwnRoutes;
use self::{
    body::Whole,
    server::{Hosts, Served},
};
use crate::{
    exit::Failure,
    metrics::{MEDIA_TYPE, Recorded},
    page,
    status::Status,
};

const PLAIN: &str = "text/plain; charset=utf-8";

#[derive(Debug, Clone)]
struct Admin {
    status: Arc<Status>,
    /// `None` where the program has a recorder of its own.
    recorded: Option<Recorded>,
}

/// Serves them on `address`, and the application's `own`, until the runtime ends. `hosts` are the names by which it may be
/// asked for, beside addresses and `localhost`.
///
/// # Errors
/// Where the address cannot be had.
pub(crate) async fn serve(
    address: &str,
    hosts: &[String],
    status: Arc<Status>,
    recorded: Option<Recorded>,
    own: OwnRoutes,
) -> Result<(), Failure> {
    let address = if address.contains(':') { address.to_owned() } else { format!("127.0.0.1:{address}") };
    let refused = |error| Failure::refused(format!("--admin is {address:?}, which cannot be listened on: {error}"));
    let listener = TcpListener::bind(&address).await.map_err(refused)?;
    let bound = listener.local_addr().map_err(refused)?;
    tracing::info!(address = %bound, "serving /metrics, /healthz, /readyz and a page");
    if !bound.ip().is_loopback() {
        tracing::warn!(
            address = %bound,
            "--admin is no address of this machine alone: every client that reaches it reads keys and errors, without a password"
        );
    }
    let served = Served { admin: Admin { status: Arc::clone(&status), recorded }, hosts: Hosts(hosts.into()), own };
    status.supervise("admin", server::serve(listener, served));
    Ok(())
}

/// A browser may only show the page, in this style.
const POLICY: [(HeaderName, &str); 4] = [
    (
        CONTENT_SECURITY_POLICY,
        "default-src 'none'; style-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (REFERRER_POLICY, "no-referrer"),
    (CACHE_CONTROL, "no-store"),
];

fn response(status: StatusCode, media_type: &'static str, text: impl Into<Whole>) -> Response<Whole> {
    let mut response = Response::new(text.into());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    response
}

/// A part of the page.
fn shown(media_type: &'static str, text: impl Into<Whole>) -> Response<Whole> {
    let mut response = response(StatusCode::OK, media_type, text);
    let policy = POLICY.map(|(name, value)| (name, HeaderValue::from_static(value)));
    response.headers_mut().extend(HeaderMap::from_iter(policy));
    response
}

impl Admin {
    /// The answer to a request for this path; `None` where the path is none of these endpoints'.
    async fn answer(&self, method: &Method, path: &str) -> Option<Response<Whole>> {
        if !["/", page::STYLE_PATH, "/metrics", "/healthz", "/readyz"].contains(&path) {
            return None;
        }
        if method != Method::GET && method != Method::HEAD {
            let mut refused = response(StatusCode::METHOD_NOT_ALLOWED, PLAIN, "");
            refused.headers_mut().insert(ALLOW, HeaderValue::from_static("GET,HEAD"));
            return Some(refused);
        }
        Some(match path {
            "/metrics" => self.metrics().await,
            "/healthz" => self.healthz(),
            "/readyz" => self.readyz(),
            page::STYLE_PATH => shown("text/css; charset=utf-8", page::STYLE),
            _ => shown("text/html; charset=utf-8", page::html(&self.status)),
        })
    }

    async fn metrics(&self) -> Response<Whole> {
        let Some(recorded) = self.recorded.clone() else {
            let text = "this program has a recorder of its own, which has its metrics\n";
            return response(StatusCode::NOT_FOUND, PLAIN, text);
        };
        let status = Arc::clone(&self.status);
        // On a thread of its own, because thousands of series take longer to write than the worker should wait.
        let text = tokio::task::spawn_blocking(move || {
            status.measure();
            recorded.text()
        });
        match text.await {
            Ok(text) => response(StatusCode::OK, MEDIA_TYPE, text),
            Err(_) => response(StatusCode::INTERNAL_SERVER_ERROR, PLAIN, ""),
        }
    }

    /// That this answers at all is news too: handlers that block every thread of the runtime keep it from doing so.
    fn healthz(&self) -> Response<Whole> {
        match self.status.dead() {
            None => response(StatusCode::OK, PLAIN, "ok\n"),
            Some(task) => response(StatusCode::SERVICE_UNAVAILABLE, PLAIN, format!("the task {task} died\n")),
        }
    }

    fn readyz(&self) -> Response<Whole> {
        let readiness = self.status.readiness();
        let status = if readiness.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        match serde_json::to_string(&readiness) {
            Ok(text) => response(status, "application/json", text),
            Err(_) => response(StatusCode::INTERNAL_SERVER_ERROR, PLAIN, ""),
        }
    }
}

#[cfg(test)]
mod tests;
