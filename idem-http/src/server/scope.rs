//! The scope of a key: its tenant and its route.

use http::request::Parts;
use idem_core::{IdempotencyKey, KeyError};
use sha2::{Digest as _, Sha256};

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

/// The key of the record: tenant, route and the request's key, each with its length, so that no tenant's name can run into a
/// route's. If that is too long or contains characters that no key may have, the key is the SHA-256 of the same text; it begins
/// with a letter, and other keys begin with a digit.
pub(crate) fn joined(tenant: &str, route: &str, key: &str) -> Result<IdempotencyKey, KeyError> {
    let text = format!("{}:{tenant} {}:{route} {key}", tenant.len(), route.len());
    IdempotencyKey::new(&text).or_else(|_| {
        let digest = Sha256::digest(text.as_bytes());
        let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        IdempotencyKey::new(&format!("sha256:{hex}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn w4_no_two_scopes_give_one_key() {
        let all = [
            ("a", "POST /b", "c"),
            ("a", "POST /b c", "c"),
            ("a 7:POST /b", "POST /b", "c"),
            ("", "POST /b", "c"),
            ("b", "POST /b", "c"),
            ("a", "PATCH /b", "c"),
        ];
        let keys: std::collections::BTreeSet<_> =
            all.iter().map(|(tenant, route, key)| joined(tenant, route, key).unwrap()).collect();
        assert_eq!(keys.len(), all.len());
        assert_eq!(joined("acme", "POST /t", "k").unwrap().as_str(), "4:acme 7:POST /t k");
        let long = "k".repeat(255);
        assert!(joined("acme", "POST /t", &long).unwrap().as_str().starts_with("sha256:"));
        assert_ne!(joined("acme", "POST /t", &long).unwrap(), joined("acme", "POST /u", &long).unwrap());
    }
}
