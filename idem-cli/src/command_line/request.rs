//! Keys of requests over HTTP, which are recorded with their tenant and route.

use clap::Args;
use idem_http::ScopedKey;

use crate::exit::Failure;

/// Whose request it was, where the key is a request's.
#[derive(Debug, Args)]
pub(crate) struct OfRequest {
    /// The key is the Idempotency-Key of a request to this route: its method, and its path as the router knows it, such as
    /// "POST /accounts/{id}/transfers"
    #[arg(long, value_name = "ROUTE", value_parser = route)]
    pub(crate) route: Option<String>,
    /// The tenant whose request it was [default: the one of a service that has no others]
    #[arg(long, value_name = "NAME", requires = "route")]
    pub(crate) tenant: Option<String>,
}

impl OfRequest {
    /// The key as it is recorded. That of a request is taken as its client sent it, with quotes or without.
    pub(crate) fn recorded(&self, key: &str) -> Result<String, Failure> {
        let refused = |why: &dyn std::fmt::Display| Failure::refused(format!("that is no key: {why}"));
        let key = match &self.route {
            None => idem_core::IdempotencyKey::new(key),
            Some(route) => {
                let key = &ScopedKey::sent(key).map_err(|why| refused(&why))?;
                ScopedKey { tenant: self.tenant.as_deref().unwrap_or_default(), route, key }.joined()
            }
        };
        key.map(|key| key.as_str().to_owned()).map_err(|error| refused(&error))
    }

    /// Tenant, route and key, where `key`, recorded as `recorded`, is a request's.
    pub(crate) fn named(&self, key: &str, recorded: &str) -> Option<Named> {
        match &self.route {
            // Of a long one the record has no more than a hash.
            Some(route) => {
                let key = &ScopedKey::sent(key).ok()?;
                Some(ScopedKey { tenant: self.tenant.as_deref().unwrap_or_default(), route, key }.into())
            }
            None => ScopedKey::parse(recorded).map(Named::from),
        }
    }
}

impl OfRequest {
    /// The key as its sender knows it, and as events that it has caused name it.
    pub(crate) fn senders_key(&self, key: &str, recorded: &str) -> String {
        self.named(key, recorded).map_or_else(|| recorded.to_owned(), |named| named.key)
    }
}

/// A request's key as people name it.
#[derive(Debug)]
pub(crate) struct Named {
    pub(crate) tenant: String,
    pub(crate) route: String,
    pub(crate) key: String,
}

impl From<ScopedKey<'_>> for Named {
    fn from(ScopedKey { tenant, route, key }: ScopedKey<'_>) -> Self {
        Self { tenant: tenant.to_owned(), route: route.to_owned(), key: key.to_owned() }
    }
}

fn route(text: &str) -> Result<String, String> {
    let is_method = |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_uppercase());
    match text.split_once(' ') {
        Some((method, path)) if is_method(method) && path.starts_with('/') => Ok(text.to_owned()),
        _ => Err("it must be a method and a path as the router knows it, such as \"POST /transactions\"".to_owned()),
    }
}
