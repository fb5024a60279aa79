//! A store that is given by value or shared.

use std::sync::Arc;

use crate::store::Store;

/// A [`Store`], by value or in an [`Arc`] that its owner keeps a clone of: what `builder` of a consumer takes.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a store",
    note = "give a store by value, or an `Arc` of a store"
)]
pub trait IntoStore<S> {
    /// The store as it is shared.
    fn into_store(self) -> Arc<S>;
}

impl<S: Store> IntoStore<S> for S {
    fn into_store(self) -> Arc<S> {
        Arc::new(self)
    }
}

impl<S: Store> IntoStore<S> for Arc<S> {
    fn into_store(self) -> Self {
        self
    }
}
