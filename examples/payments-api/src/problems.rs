//! The answers to refused requests, in the form of RFC 9457, and a page for each kind.

use axum::{
    Router,
    extract::Path,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use idem_service::axum;
use serde_json::json;

/// One section a kind: ours, and those of idem's layer.
const PAGES: [&str; 2] = [include_str!("problems.md"), include_str!("../../../docs/http-problems.md")];

/// The service's interface, for machines.
const OPENAPI: &str = include_str!("../openapi.yaml");

pub(crate) fn routes() -> Router {
    let openapi = get(async || ([(header::CONTENT_TYPE, "application/yaml")], OPENAPI));
    Router::new().route("/problems/{name}", get(page)).route("/openapi.yaml", openapi)
}

async fn page(Path(name): Path<String>) -> Response {
    let mut sections = PAGES.iter().flat_map(|pages| pages.split("\n## ").skip(1));
    match sections.find(|section| section.lines().next() == Some(&name)) {
        Some(section) => {
            ([(header::CONTENT_TYPE, "text/markdown; charset=utf-8")], format!("# {section}")).into_response()
        }
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

fn problem(status: StatusCode, name: &str, title: &str, detail: &str) -> Response {
    let body =
        json!({ "type": format!("/problems/{name}"), "title": title, "status": status.as_u16(), "detail": detail });
    (status, [(header::CONTENT_TYPE, "application/problem+json")], body.to_string()).into_response()
}

pub(crate) fn malformed(detail: &str) -> Response {
    problem(StatusCode::BAD_REQUEST, "malformed", "The request is malformed", detail)
}

pub(crate) fn no_amount(cents: i64) -> Response {
    let detail = format!("cents is {cents}, and must be 1 at least");
    problem(StatusCode::UNPROCESSABLE_ENTITY, "no-amount", "The transaction has no amount", &detail)
}

pub(crate) fn balance_too_large(cents: i64) -> Response {
    let detail = format!("cents is {cents}, and the customer's balance would be more than a balance can be");
    problem(StatusCode::UNPROCESSABLE_ENTITY, "balance-too-large", "The balance would be too large", &detail)
}

pub(crate) fn over_limit(cents: i64, limit: i64) -> Response {
    let detail = format!("cents is {cents}, and may be {limit} at most");
    problem(StatusCode::PAYMENT_REQUIRED, "over-limit", "The transaction was declined", &detail)
}
