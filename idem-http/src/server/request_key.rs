//! The key of a request, as its handler sees it.

use std::{fmt, sync::Arc};

use http::Request;
use idem_core::{Message, Uuid, outbox::IdForm};

use super::scope::Authenticated;

/// The key of the request that a handler runs for, and its scope.
///
/// A handler on axum gets it from [`IdempotentTx::key`](super::IdempotentTx::key), and every handler from the extensions of its request, by
/// [`RequestKey::of`]. To a provider a handler gives a [derived key](Self::derived_key), and not the client's own one: two tenants may send
/// the same key, and are one client to the provider; and two calls need two keys.
///
/// ```
/// # use idem_core::outbox::IdForm;
/// # use idem_http::RequestKey;
/// # fn call(key: &RequestKey) {
/// let of_the_charge = key.derived_key_as("charge", IdForm::V5); // the same on each try of the request, in each process
/// # let _ = of_the_charge;
/// # }
/// ```
///
/// `Debug` does not show the key.
#[derive(Clone)]
pub struct RequestKey(Arc<Parts>);

struct Parts {
    key: String,
    who: Authenticated,
    route: String,
    message: Message,
}

impl RequestKey {
    pub(crate) fn new(key: &str, who: &Authenticated, route: &str, message: Message) -> Self {
        Self(Arc::new(Parts { key: key.to_owned(), who: who.clone(), route: route.to_owned(), message }))
    }

    /// The key of a handler's request. `None` for a request that no route of idem's has let through, such as a `PUT` without a key.
    #[must_use]
    pub fn of<B>(request: &Request<B>) -> Option<&Self> {
        request.extensions().get()
    }

    /// The client's own key, without the quotes of its header.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0.key
    }

    /// The tenant that sent it; empty where there is [a single one](super::IdempotencyBuilder::single_tenant).
    #[must_use]
    pub fn tenant(&self) -> &str {
        &self.0.who.tenant
    }

    /// The tenant and, where the application has named one, the subject within it.
    #[must_use]
    pub fn sender(&self) -> &Authenticated {
        &self.0.who
    }

    /// The method and the path as the router knows it, such as `POST /accounts/{id}/transfers`.
    #[must_use]
    pub fn route(&self) -> &str {
        &self.0.route
    }

    /// A key for a call to another service, such as a provider: [`Message::derived_key`] of the operation. It follows from the service's
    /// name, tenant, route and key and from `label`, so it is the same on each try, and each call of a handler needs a label of its own.
    #[must_use]
    pub fn derived_key(&self, label: &str) -> Uuid {
        self.0.message.derived_key(label)
    }

    /// The same in the form that the provider takes. Keep the form: another one is another key.
    #[must_use]
    pub fn derived_key_as(&self, label: &str, form: IdForm) -> String {
        self.0.message.derived_key_as(label, form)
    }
}

impl fmt::Debug for RequestKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestKey").field("route", &self.0.route).finish_non_exhaustive()
    }
}
