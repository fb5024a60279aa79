//! The scope of a key: its tenant and its route.

use http::request::Parts;
use idem_core::{IdempotencyKey, KeyError};

use super::scoped_key::ScopedKey;

/// The sender of a request, as the application has identified it, for example by a token that it has checked.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Authenticated {
    /// The tenant. Two tenants never share a key.
    pub tenant: String,
    /// The sender's name within the tenant, if only the same subject may read its answers; see
    /// [`answers_by_subject`](super::IdempotencyBuilder::answers_by_subject).
    pub subject: Option<String>,
}

impl Authenticated {
    /// A tenant.
    #[must_use]
    pub fn tenant(tenant: impl Into<String>) -> Self {
        Self { tenant: tenant.into(), subject: None }
    }

    /// Sets the sender's name within the tenant.
    #[must_use]
    pub fn with_subject(self, subject: impl Into<String>) -> Self {
        Self { subject: Some(subject.into()), ..self }
    }
}

/// Identifies the sender of a request; `None` for an unknown one.
pub(crate) type TenantFn = dyn Fn(&Parts) -> Option<Authenticated> + Send + Sync;

/// The key of the record of a request.
pub(crate) fn joined(tenant: &str, route: &str, key: &str) -> Result<IdempotencyKey, KeyError> {
    ScopedKey { tenant, route, key }.joined()
}
