//! Whose key it is, and of which route.

use http::request::Parts;
use idem_core::{IdempotencyKey, KeyError};
use sha2::{Digest as _, Sha256};

/// Who sends a request: what an application has found out before, such as from a token that it has checked.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Authenticated {
    /// The tenant: keys of two tenants never meet.
    pub tenant: String,
    /// Who it is within the tenant, where answers are for nobody else; see
    /// [`answers_by_subject`](super::IdempotencyBuilder::answers_by_subject).
    pub subject: Option<String>,
}

impl Authenticated {
    /// A tenant.
    #[must_use]
    pub fn tenant(tenant: impl Into<String>) -> Self {
        Self { tenant: tenant.into(), subject: None }
    }

    /// Sets who it is within the tenant.
    #[must_use]
    pub fn with_subject(self, subject: impl Into<String>) -> Self {
        Self { subject: Some(subject.into()), ..self }
    }
}

/// Tells who sends a request; `None` for nobody that it knows.
pub(crate) type TenantFn = dyn Fn(&Parts) -> Option<Authenticated> + Send + Sync;

/// The key of the record: that of the request within tenant and route, each with its length, so that no tenant's name can run
/// into a route's. One that would be too long, or that holds what no key may hold, is the SHA-256 of the same text; it begins
/// with a letter, and the others with a digit.
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
