//! The admin endpoints: `/metrics`, `/healthz`, `/readyz`, and a page at `/`. All are read-only.

mod server;

use std::sync::Arc;

use axum::{
    Json, Router,
    extract::State,
    http::{HeaderName, StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::net::TcpListener;

use self::server::Hosts;
use crate::{exit::Failure, metrics, page, status::Status};

#[derive(Debug, Clone)]
struct Admin {
    status: Arc<Status>,
    /// `None` where the program has a recorder of its own.
    recorded: Option<PrometheusHandle>,
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
    recorded: Option<PrometheusHandle>,
    own: Router,
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
    let routes = routes(Admin { status: Arc::clone(&status), recorded }).merge(own);
    let routes = server::guarded(routes, Hosts(hosts.into()));
    status.supervise("admin", server::serve(listener, routes));
    Ok(())
}

fn routes(admin: Admin) -> Router {
    Router::new()
        .route("/", get(show))
        .route(page::STYLE_PATH, get(style))
        .route("/metrics", get(metrics))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .with_state(admin)
}

/// A browser may only show the page, in this style.
const POLICY: [(HeaderName, &str); 4] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; style-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-store"),
];

async fn show(State(Admin { status, .. }): State<Admin>) -> impl IntoResponse {
    (POLICY, [(header::CONTENT_TYPE, "text/html; charset=utf-8")], page::html(&status))
}

async fn style() -> impl IntoResponse {
    (POLICY, [(header::CONTENT_TYPE, "text/css; charset=utf-8")], page::STYLE)
}

async fn metrics(State(Admin { status, recorded }): State<Admin>) -> Response {
    let Some(recorded) = recorded else {
        return (StatusCode::NOT_FOUND, "this program has a recorder of its own, which has its metrics\n")
            .into_response();
    };
    // On a thread of its own, because thousands of series take longer to write than the worker should wait.
    match tokio::task::spawn_blocking(move || metrics::text(&status, &recorded)).await {
        Ok(text) => ([(header::CONTENT_TYPE, metrics::MEDIA_TYPE)], text).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// That this answers at all is news too: handlers that block every thread of the runtime keep it from doing so.
async fn healthz(State(Admin { status, .. }): State<Admin>) -> Response {
    match status.dead() {
        None => "ok\n".into_response(),
        Some(task) => (StatusCode::SERVICE_UNAVAILABLE, format!("the task {task} died\n")).into_response(),
    }
}

async fn readyz(State(Admin { status, .. }): State<Admin>) -> impl IntoResponse {
    let readiness = status.readiness();
    let code = if readiness.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (code, Json(readiness))
}

#[cfg(test)]
mod tests;
