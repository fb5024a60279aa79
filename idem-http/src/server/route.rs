//! What one route has of its own.

use std::time::Duration;

use super::{builder::Limits, fingerprint::Fingerprint};

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

/// The setters that every way in has, on its field `settings`.
macro_rules! route_setters {
    () => {
        /// What counts of the bodies of these routes. Defaults to their bytes.
        #[must_use]
        pub fn fingerprint(mut self, fingerprint: $crate::Fingerprint) -> Self {
            self.settings.fingerprint = fingerprint;
            self
        }

        /// The largest body of a request here, in bytes.
        #[must_use]
        pub fn body_bytes_max(mut self, bytes: usize) -> Self {
            self.settings.body_bytes_max = bytes;
            self
        }

        /// How long a body may take to come here.
        #[must_use]
        pub fn body_deadline(mut self, deadline: std::time::Duration) -> Self {
            self.settings.body_deadline = deadline;
            self
        }

        /// A layer outside of this one decodes bodies, so that a request's `Content-Digest` is of something else than what comes
        /// here, and is left to that layer.
        #[must_use]
        pub fn bodies_are_decoded_before(mut self) -> Self {
            self.settings.decoded_before = true;
            self
        }
    };
}
pub(crate) use route_setters;
