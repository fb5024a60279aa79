//! A route's name and settings.

use std::time::Duration;

use http::Method;

use super::{builder::Limits, fingerprint::Fingerprint};
use crate::outcomes::is_known;

/// A route's name.
#[derive(Debug)]
pub(crate) struct RouteName {
    /// Method and path: the scope of keys.
    pub(crate) scope: String,
    is_bounded: bool,
}

impl RouteName {
    /// The route of this path, as the router knows it.
    pub(crate) fn new(method: &Method, template: &str) -> Self {
        Self { scope: format!("{method} {template}"), is_bounded: is_known(method) }
    }

    /// The name for metrics and spans, of which there are no more than the service has routes.
    pub(crate) fn label(&self) -> &str {
        if self.is_bounded { &self.scope } else { "other" }
    }
}

/// Whether a route can have this name, and its requests records.
pub(crate) fn has_records(name: &str) -> bool {
    let Some((method, path)) = name.split_once(' ') else { return false };
    let is_in_capitals = !method.bytes().any(|byte| byte.is_ascii_lowercase());
    let has_method = Method::from_bytes(method.as_bytes()).is_ok_and(|method| is_in_capitals && !method.is_safe());
    has_method && path.starts_with('/') && !path.contains(char::is_whitespace)
}

/// The settings of a route.
#[derive(Debug, Clone)]
pub(crate) struct RouteSettings {
    pub(crate) fingerprint: Fingerprint,
    pub(crate) body_bytes_max: usize,
    pub(crate) body_deadline: Duration,
    pub(crate) response_bytes_max: usize,
    pub(crate) decoded_before: bool,
}

impl RouteSettings {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            fingerprint: Fingerprint::raw(),
            body_bytes_max: limits.body_bytes_max,
            body_deadline: limits.body_deadline,
            response_bytes_max: limits.response_bytes_max,
            decoded_before: false,
        }
    }
}

/// The setters that routes and layers share, on their field `settings`.
macro_rules! route_setters {
    () => {
        /// Sets which part of the bodies of these routes is compared. Defaults to all bytes.
        #[must_use]
        pub fn fingerprint(mut self, fingerprint: $crate::Fingerprint) -> Self {
            self.settings.fingerprint = fingerprint;
            self
        }

        /// Sets the largest body of a request here, in bytes.
        #[must_use]
        pub fn body_bytes_max(mut self, bytes: usize) -> Self {
            self.settings.body_bytes_max = bytes;
            self
        }

        /// Sets how long a body may take to arrive here.
        #[must_use]
        pub fn body_deadline(mut self, deadline: std::time::Duration) -> Self {
            self.settings.body_deadline = deadline;
            self
        }

        /// Says that a layer outside of this one decodes bodies. The request's `Content-Digest` and `Repr-Digest` are then those of the coded
        /// body, and are not looked at here: [`VerifyDigest`](crate::VerifyDigest), outside of that layer, verifies them.
        #[must_use]
        pub fn bodies_are_decoded_before(mut self) -> Self {
            self.settings.decoded_before = true;
            self
        }
    };
}
pub(crate) use route_setters;
