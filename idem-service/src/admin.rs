//! The admin endpoints: `/metrics`, `/healthz`, `/readyz`.

use std::sync::Arc;

use axum::{
    Json, Router,
    extract::State,
    http::{StatusCode, header},
    response::IntoResponse,
    routing::get,
};
use tokio::net::TcpListener;

use crate::{exit::Failure, metrics, status::Status};

/// Serves them on `address` until the runtime ends.
///
/// # Errors
/// Where the address cannot be had.
pub(crate) async fn serve(address: &str, status: Arc<Status>) -> Result<(), Failure> {
    let address = if address.contains(':') { address.to_owned() } else { format!("127.0.0.1:{address}") };
    let refused = |error| Failure::refused(format!("--admin is {address:?}, which cannot be listened on: {error}"));
    let listener = TcpListener::bind(&address).await.map_err(refused)?;
    let bound = listener.local_addr().map_err(refused)?;
    tracing::info!(address = %bound, "serving /metrics, /healthz and /readyz");
    let routes = Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .with_state(status);
    tokio::spawn(async move {
        // It never ends by itself, and a connection that fails is that connection's affair.
        let _ = axum::serve(listener, routes).await;
    });
    Ok(())
}

async fn metrics(State(status): State<Arc<Status>>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, metrics::MEDIA_TYPE)], metrics::text(&status))
}

/// That this answers at all is the news: handlers that block every thread of the runtime keep it from doing so.
async fn healthz() -> &'static str {
    "ok\n"
}

async fn readyz(State(status): State<Arc<Status>>) -> impl IntoResponse {
    let readiness = status.readiness();
    let code = if readiness.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (code, Json(readiness))
}
