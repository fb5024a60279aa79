//! [`StepError`]: the error of a step in a request's transaction.

use axum::response::{IntoResponse, Response};
use http::StatusCode;
use idem_core::{
    ErrorClass, HandlerError, PublishError, chain,
    store::{Store, describe},
};

use super::{error, problem::Problem};

/// Why a step in a transaction failed. As a handler's answer it is 503 with `Retry-After` if another try may succeed, as is assumed
/// of unclassified errors, and otherwise 500 without; both as problems, in the words of the service's profile.
///
/// `Display` has the error without any value of a statement or row; [`handler_error`](Self::handler_error) is the error itself.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct StepError {
    error: HandlerError,
    problem: Problem,
    text: String,
    /// Whether a statement has failed, so that the transaction may have failed too.
    pub(super) is_of_database: bool,
    /// Whether a rule of the application's own has refused the statement.
    is_own_rule: bool,
}

/// What a trigger or a function of the application raises: PL/pgSQL's RAISE and its kin, and SQLite's RAISE. A worker tries such an error
/// again, but a handler that responds with 4xx to it has decided.
const OWN_RULES: [&str; 5] = ["P0001", "P0002", "P0003", "P0004", "1811"];

/// Marks the response of a [`StepError`], for the layer around the handler.
#[derive(Debug, Clone)]
pub(super) struct OfStep(pub(super) Problem);

impl StepError {
    pub(super) fn of<S: Store>(error: HandlerError) -> Self {
        // A refused event is refused on each try.
        let is_refused = error.downcast_ref::<PublishError>().is_some();
        let code = chain(error.inner()).find_map(S::code);
        let comes_again = error::comes_again(error.class_by(S::classify), error.class().is_some(), code.as_deref());
        let problem = if comes_again && !is_refused { Problem::FailedForNow } else { Problem::Failed };
        // A query without a row is an error of the driver's, and no statement has failed.
        let is_of_database = code.is_some() || S::classify(error.inner()) == Some(ErrorClass::Infrastructure);
        let is_own_rule = code.as_deref().is_some_and(|code| OWN_RULES.contains(&code));
        Self { text: describe::<S>(error.inner()), problem, error, is_of_database, is_own_rule }
    }

    /// The same error, for the transaction that it may have spoilt.
    pub(super) fn noted(&self) -> HandlerError {
        let text = self.text.clone();
        if matches!(self.problem, Problem::FailedForNow) && !self.is_own_rule {
            HandlerError::transient(text)
        } else {
            HandlerError::permanent(text)
        }
    }

    /// The error below.
    #[must_use]
    pub fn handler_error(&self) -> &HandlerError {
        &self.error
    }
}

/// A value that JSON cannot represent, such as one for [`Event::json`](idem_core::Event::json). Another try fails too.
impl From<serde_json::Error> for StepError {
    fn from(error: serde_json::Error) -> Self {
        // Its own text may quote a value.
        Self {
            text: "a value cannot be written as JSON, or read".to_owned(),
            problem: Problem::Failed,
            error: error.into(),
            is_of_database: false,
            is_own_rule: false,
        }
    }
}

impl IntoResponse for StepError {
    fn into_response(self) -> Response {
        tracing::warn!("a step of a request failed: {self}");
        // For layers between the handler and idem's, which answers with the problem.
        let mut response = if matches!(self.problem, Problem::FailedForNow) {
            StatusCode::SERVICE_UNAVAILABLE.into_response()
        } else {
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        };
        response.extensions_mut().insert(OfStep(self.problem));
        response
    }
}
