//! The scope of a key: its tenant and its route.

use std::{future::Future, pin::Pin};

use http::request::Parts;
use idem_core::{BoxError, IdempotencyKey, key::KeyError};

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
pub(crate) enum TenantFn {
    /// From the request alone.
    AtOnce(Box<AtOnceFn>),
    /// With the application's state.
    Asks(Box<AsksFn>),
}

type AtOnceFn = dyn Fn(&Parts) -> Option<Authenticated> + Send + Sync;

type AsksFn = dyn for<'p> Fn(&'p mut Parts) -> Asking<'p> + Send + Sync;

type Asking<'p> = Pin<Box<dyn Future<Output = Result<Option<Authenticated>, BoxError>> + Send + 'p>>;

impl TenantFn {
    pub(crate) fn asks<A, F>(state: A, sender: F) -> Self
    where
        A: Clone + Send + Sync + 'static,
        F: for<'p> SenderFn<A, &'p mut Parts>,
    {
        Self::Asks(Box::new(move |parts| Box::pin(sender.clone().call(state.clone(), parts))))
    }

    /// The sender of a request.
    ///
    /// # Errors
    /// That of an application that could not find out.
    pub(crate) async fn of(&self, parts: &mut Parts) -> Result<Option<Authenticated>, BoxError> {
        match self {
            Self::AtOnce(sender) => Ok(sender(parts)),
            Self::Asks(sender) => sender(parts).await,
        }
    }
}

/// An async function that identifies the sender of a request; see [`tenant_with`](super::IdempotencyBuilder::tenant_with). Its parameters are
/// the argument types, because a bound on a plain `async fn` is otherwise not general enough over their lifetimes.
pub trait SenderFn<A, P>: Clone + Send + Sync + 'static {
    /// The future of the call.
    type Future: Future<Output = Result<Option<Authenticated>, BoxError>> + Send;

    /// Calls the function.
    fn call(self, state: A, parts: P) -> Self::Future;
}

impl<F, A, P, R> SenderFn<A, P> for F
where
    F: FnOnce(A, P) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Result<Option<Authenticated>, BoxError>> + Send,
{
    type Future = R;

    fn call(self, state: A, parts: P) -> R {
        self(state, parts)
    }
}

/// The key of the record of a request.
pub(crate) fn joined(tenant: &str, route: &str, key: &str) -> Result<IdempotencyKey, KeyError> {
    ScopedKey { tenant, route, key }.joined()
}
