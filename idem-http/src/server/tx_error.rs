//! [`TxError`]: the error of a handler whose transaction failed.

use std::{fmt, sync::Arc};

use axum::response::{IntoResponse, Response};
use http::StatusCode;
use idem_core::{ErrorClass, HandlerError, Store, internal::chain, outbox::PublishError, store::describe};

use super::{error, problem::Problem};

/// Why a handler's transaction failed. `?` makes one of any error, and as the handler's answer it is 503 with `Retry-After` if another try may
/// succeed, as is assumed of unclassified errors, and otherwise 500 without; both as problems, in the words of the service's profile.
///
/// A handler can have an error type of its own instead: its response is treated by its status.
///
/// ```
/// # use idem_http::{IdempotentTx, TxError, idem_core::Store};
/// async fn pay<S: Store>(mut tx: IdempotentTx<S>, cents: String) -> Result<String, TxError> {
///     let cents: u32 = cents.parse()?;
///     let _connection = tx.connection(); // the store's own: run statements on it
///     Ok(format!("paid {cents}"))
/// }
/// ```
pub struct TxError(Arc<HandlerError>);

/// What a trigger or a function of the application raises: PL/pgSQL's RAISE and its kin, and SQLite's RAISE. A worker tries such an error
/// again, but a handler that responds with 4xx to it has decided.
const OWN_RULES: [&str; 5] = ["P0001", "P0002", "P0003", "P0004", "1811"];

/// Marks the response of a [`TxError`], for the layer around the handler.
#[derive(Clone)]
pub(super) struct OfTx(Arc<HandlerError>);

impl OfTx {
    /// The problem of the error on this store.
    pub(super) fn problem<S: Store>(&self) -> Problem {
        let error = &*self.0;
        tracing::warn!("a request failed: {}", text::<S>(error));
        problem::<S>(error)
    }
}

/// The error's text without any value of a statement, of a row or of the request.
fn text<S: Store>(error: &HandlerError) -> String {
    if error.downcast_ref::<serde_json::Error>().is_some() {
        return "a value cannot be written as JSON, or read".to_owned();
    }
    describe::<S>(error.inner())
}

fn problem<S: Store>(error: &HandlerError) -> Problem {
    // An event that is refused, and a value that JSON cannot represent, are so on each try.
    if error.downcast_ref::<PublishError>().is_some() || error.downcast_ref::<serde_json::Error>().is_some() {
        return Problem::Failed;
    }
    let code = chain(error.inner()).find_map(S::code);
    let comes_again = error::comes_again(error.class_by(S::classify), error.class().is_some(), code.as_deref());
    if comes_again { Problem::FailedForNow } else { Problem::Failed }
}

/// The same error for the transaction that it may have spoilt. `None` where no statement has failed, as for a query without a row.
pub(super) fn noted<S: Store>(error: &HandlerError) -> Option<HandlerError> {
    let code = chain(error.inner()).find_map(S::code);
    let is_of_database = code.is_some() || S::classify(error.inner()) == Some(ErrorClass::Infrastructure);
    let is_own_rule = code.is_some_and(|code| OWN_RULES.contains(&&*code));
    let may_pass = matches!(problem::<S>(error), Problem::FailedForNow) && !is_own_rule;
    let text = is_of_database.then(|| text::<S>(error))?;
    Some(if may_pass { HandlerError::transient(text) } else { HandlerError::permanent(text) })
}

impl TxError {
    /// The error below.
    #[must_use]
    pub fn handler_error(&self) -> &HandlerError {
        &self.0
    }
}

impl<E: Into<HandlerError>> From<E> for TxError {
    fn from(error: E) -> Self {
        Self(Arc::new(error.into()))
    }
}

impl fmt::Debug for TxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TxError").field(&self.0).finish()
    }
}

impl IntoResponse for TxError {
    fn into_response(self) -> Response {
        // For layers between the handler and idem's, which answers with the problem.
        let mut response = StatusCode::INTERNAL_SERVER_ERROR.into_response();
        response.extensions_mut().insert(OfTx(self.0));
        response
    }
}
