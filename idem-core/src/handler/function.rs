//! Handlers from functions and closures.

use std::{fmt, future::Future, marker::PhantomData};

use serde::de::DeserializeOwned;

use crate::{
    handler::Handler,
    handler_error::HandlerError,
    message::Message,
    store::{Store, tx::Tx},
};

/// A function or closure that can be a handler; see [`handler_fn`]. Its parameters are the argument types, because a bound on
/// a plain `async fn` is otherwise not general enough over their lifetimes.
pub trait HandlerFn<M, T>: Clone + Send + Sync + 'static {
    /// The future of the call.
    type Future: Future<Output = Result<(), HandlerError>> + Send;

    /// Calls the function.
    fn call(self, message: M, tx: T) -> Self::Future;
}

// `FnOnce` on a clone, because an async closure that captures lends to its future, and is no `Fn`. The bound that would say
// so, `AsyncFn` with a future that can be sent, cannot be written yet.
impl<F, M, T, R> HandlerFn<M, T> for F
where
    F: FnOnce(M, T) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Result<(), HandlerError>> + Send,
{
    type Future = R;

    fn call(self, message: M, tx: T) -> R {
        self(message, tx)
    }
}

/// See [`handler_fn`].
#[derive(Clone, Copy)]
pub struct FnHandler<F>(F);

impl<F> fmt::Debug for FnHandler<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FnHandler")
    }
}

/// A handler from an `async fn(&Message, &mut Tx<'_, S>) -> Result<(), HandlerError>`, or from an async closure of that form.
///
/// Captured values are cloned for each call, so keep large ones in an [`Arc`](std::sync::Arc):
///
/// ```
/// use std::sync::Arc;
///
/// use idem_core::{Handler, Message, Store, Tx, handler_fn};
///
/// fn ledger<S: Store>(table: Arc<str>) -> impl Handler<S> {
///     handler_fn(async move |message: &Message, tx: &mut Tx<'_, S>| {
///         let purchase: serde_json::Value = message.json()?;
///         let _connection = tx.connection(); // run statements on it
///         println!("{purchase} goes into {table}");
///         Ok(())
///     })
/// }
/// ```
pub fn handler_fn<F>(function: F) -> FnHandler<F> {
    FnHandler(function)
}

impl<S, F> Handler<S> for FnHandler<F>
where
    S: Store,
    F: for<'m, 'a, 't> HandlerFn<&'m Message, &'a mut Tx<'t, S>>,
{
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, S>) -> Result<(), HandlerError> {
        self.0.clone().call(message, tx).await
    }
}

/// A function or closure of `ARGUMENTS` arguments that can handle a decoded payload; see [`json_fn`].
pub trait JsonFn<P, M, T, const ARGUMENTS: usize>: Clone + Send + Sync + 'static {
    /// The future of the call.
    type Future: Future<Output = Result<(), HandlerError>> + Send;

    /// Calls the function.
    fn call(self, payload: P, message: M, tx: T) -> Self::Future;
}

impl<F, P, M, T, R> JsonFn<P, M, T, 2> for F
where
    F: FnOnce(P, T) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Result<(), HandlerError>> + Send,
{
    type Future = R;

    fn call(self, payload: P, _: M, tx: T) -> R {
        self(payload, tx)
    }
}

impl<F, P, M, T, R> JsonFn<P, M, T, 3> for F
where
    F: FnOnce(P, M, T) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Result<(), HandlerError>> + Send,
{
    type Future = R;

    fn call(self, payload: P, message: M, tx: T) -> R {
        self(payload, message, tx)
    }
}

/// See [`json_fn`].
pub struct JsonHandler<P, F, const ARGUMENTS: usize> {
    function: F,
    payload: PhantomData<fn() -> P>,
}

impl<P, F, const ARGUMENTS: usize> fmt::Debug for JsonHandler<P, F, ARGUMENTS> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JsonHandler")
    }
}

/// A handler from an `async fn(P, &mut Tx<'_, S>) -> Result<(), HandlerError>`, or an async closure of that form, that is given the
/// payload decoded from JSON. With the message between the two, `async fn(P, &Message, &mut Tx<'_, S>)`, it is given that too. A
/// payload that is not a `P` is dead-lettered as `malformed`, and the function is not called.
///
/// ```
/// use idem_core::{HandlerError, Message, Router, Store, Tx, json_fn};
/// use serde::Deserialize;
///
/// #[derive(Deserialize)]
/// struct Purchase {
///     cents: u32,
/// }
///
/// async fn purchase<S: Store>(purchase: Purchase, tx: &mut Tx<'_, S>) -> Result<(), HandlerError> {
///     let _connection = tx.connection();
///     println!("somebody buys for {} cents", purchase.cents);
///     Ok(())
/// }
///
/// async fn refund<S: Store>(refund: Purchase, message: &Message, tx: &mut Tx<'_, S>) -> Result<(), HandlerError> {
///     let _connection = tx.connection();
///     println!("{:?} gets {} cents back", message.ordering_key(), refund.cents);
///     Ok(())
/// }
///
/// fn routes<S: Store>() -> Router<S> {
///     Router::new().on("purchase", json_fn(purchase)).on("refund", json_fn(refund))
/// }
/// ```
pub fn json_fn<P, F, const ARGUMENTS: usize>(function: F) -> JsonHandler<P, F, ARGUMENTS> {
    JsonHandler { function, payload: PhantomData }
}

impl<S, P, F, const ARGUMENTS: usize> Handler<S> for JsonHandler<P, F, ARGUMENTS>
where
    S: Store,
    P: DeserializeOwned + Send + 'static,
    F: for<'m, 'a, 't> JsonFn<P, &'m Message, &'a mut Tx<'t, S>, ARGUMENTS>,
{
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, S>) -> Result<(), HandlerError> {
        let payload: P = message.json()?;
        self.function.clone().call(payload, message, tx).await
    }
}
