//! What is answered where a request is refused, in the form of RFC 9457, and a page for each kind.

use axum::{
    Router,
    extract::Path,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use idem_service::axum;
use serde_json::json;

/// One section a kind: those of idem's layer, and ours.
const PAGES: &str = include_str!("problems.md");

pub(crate) fn routes() -> Router {
    Router::new().route("/problems/{name}", get(page))
}

async fn page(Path(name): Path<String>) -> Response {
    let mut sections = PAGES.split("\n## ").skip(1);
    match sections.find(|section| section.lines().next() == Some(&name)) {
        Some(section) => ([(header::CONTENT_TYPE, "text/markdown; charset=utf-8")], format!("# {section}")).into_response(),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

fn problem(status: StatusCode, name: &str, title: &str, detail: &str) -> Response {
    let body = json!({ "type": format!("/problems/{name}"), "title": title, "status": status.as_u16(), "detail": detail });
    (status, [(header::CONTENT_TYPE, "application/problem+json")], body.to_string()).into_response()
}

pub(crate) fn malformed(detail: &str) -> Response {
    problem(StatusCode::BAD_REQUEST, "malformed", "The request is malformed", detail)
}

pub(crate) fn no_amount(cents: i64) -> Response {
    let detail = format!("cents is {cents}, and must be 1 at least");
    problem(StatusCode::UNPROCESSABLE_ENTITY, "no-amount", "The transaction has no amount", &detail)
}

pub(crate) fn over_limit(cents: i64, limit: i64) -> Response {
    let detail = format!("cents is {cents}, and may be {limit} at most");
    problem(StatusCode::PAYMENT_REQUIRED, "over-limit", "The transaction was declined", &detail)
}
