//! Middleware for handlers: spans, metrics, checks.

use std::{fmt, future::Future, marker::PhantomData};

use crate::{
    handler::{DynHandler, Handler},
    handler_error::HandlerError,
    message::Message,
    message_type::TypePlace,
    store::{Store, tx::Tx},
};

/// The handler that [`Handler::around`] runs a function around.
pub struct Next<'n, S: Store>(&'n dyn DynHandler<S>);

impl<S: Store> Next<'_, S> {
    /// Runs it. A function that does not call this answers in the handler's place; its `Ok(())` records the key.
    ///
    /// # Errors
    /// The handler's error.
    ///
    /// # Cancel safety
    /// As for [`Handler::handle`].
    pub async fn run(self, message: &Message, tx: &mut Tx<'_, S>) -> Result<(), HandlerError> {
        self.0.handle_dyn(message, tx).await
    }
}

impl<S: Store> fmt::Debug for Next<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Next")
    }
}

/// A function or closure that can run around a handler; see [`Handler::around`].
pub trait AroundFn<N, M, T>: Clone + Send + Sync + 'static {
    /// The future of the call.
    type Future: Future<Output = Result<(), HandlerError>> + Send;

    /// Calls the function.
    fn call(self, next: N, message: M, tx: T) -> Self::Future;
}

impl<F, N, M, T, R> AroundFn<N, M, T> for F
where
    F: FnOnce(N, M, T) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Result<(), HandlerError>> + Send,
{
    type Future = R;

    fn call(self, next: N, message: M, tx: T) -> R {
        self(next, message, tx)
    }
}

/// See [`Handler::around`].
pub struct Around<S, H, F> {
    handler: H,
    function: F,
    store: PhantomData<fn() -> S>,
}

impl<S, H, F> Around<S, H, F> {
    pub(super) fn new(handler: H, function: F) -> Self {
        Self { handler, function, store: PhantomData }
    }
}

impl<S, H, F> fmt::Debug for Around<S, H, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Around")
    }
}

impl<S, H, F> Handler<S> for Around<S, H, F>
where
    S: Store,
    H: Handler<S>,
    F: for<'n, 'm, 'a, 't> AroundFn<Next<'n, S>, &'m Message, &'a mut Tx<'t, S>>,
{
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, S>) -> Result<(), HandlerError> {
        self.function.clone().call(Next(&self.handler), message, tx).await
    }

    fn dispatches_by(&self) -> Option<TypePlace> {
        self.handler.dispatches_by()
    }

    fn calls_outside(&self, message: Option<&Message>) -> bool {
        self.handler.calls_outside(message)
    }
}
