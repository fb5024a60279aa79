//! Names requests for their spans and counts.

use http::{Extensions, Method};
use idem_core::telemetry::requests;
pub(crate) use idem_core::telemetry::requests::{GONE, NO_SUCH_METHOD, Outcomes, begin};

/// A method in OpenTelemetry's words, of which there are few.
pub(crate) fn method(method: &Method) -> &str {
    requests::method(method.as_str())
}

pub(crate) fn is_known(method: &Method) -> bool {
    requests::is_known(method.as_str())
}

/// The name of a request's span where the service does not know its own path: axum's router may.
pub(crate) fn named(of: &Method, extensions: &Extensions) -> String {
    match extensions.get::<axum::extract::MatchedPath>() {
        Some(path) => format!("{} {}", method(of), path.as_str()),
        None => method(of).to_owned(),
    }
}
