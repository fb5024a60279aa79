//! The traits that users write, and the error they may answer with.

use std::{collections::HashMap, error::Error, fmt, future::Future, sync::Arc, time::Duration};

use async_trait::async_trait;

use crate::{
    error::{BoxError, ErrorClass},
    message::Message,
    store::{Store, Tx},
};

/// What a handler answers when a message could not be handled.
///
/// `?` turns any error into one, also `anyhow::Error` and texts. The class is then found from the chain of sources:
/// errors of the database by their code, a [`DecodePayloadError`](crate::DecodePayloadError) as permanent, everything
/// unknown as transient with bounded attempts. [`HandlerError::permanent`] and [`HandlerError::transient`] decide it
/// by hand. Whatever a handler answers, a broken connection is never its fault: the engine probes the connection first.
///
/// It does not implement [`Error`] itself, which is what lets `?` take everything that does.
pub struct HandlerError {
    mark: Option<Mark>,
    retry_after: Option<Duration>,
    source: BoxError,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mark {
    Permanent,
    Transient,
}

/// The longest wait that a handler may ask for.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(3_600);

impl HandlerError {
    /// The message can never succeed: dead-letter it at once.
    pub fn permanent(error: impl Into<BoxError>) -> Self {
        Self { mark: Some(Mark::Permanent), ..Self::from(error) }
    }

    /// The message may succeed later: hold it for a back-off and try again, up to the configured attempts.
    pub fn transient(error: impl Into<BoxError>) -> Self {
        Self { mark: Some(Mark::Transient), ..Self::from(error) }
    }

    /// The message may succeed after this long, as a provider says that answers `Retry-After`: it is held for that time in
    /// place of the back-off, and the attempt counts. At most an hour; where the broker does not leave it in hand for so
    /// long, it is given back, with the delay where the broker knows one.
    pub fn retry_after(error: impl Into<BoxError>, after: Duration) -> Self {
        let retry_after = Some(after.min(RETRY_AFTER_MAX));
        Self { mark: Some(Mark::Transient), retry_after, ..Self::from(error) }
    }

    /// When the next attempt is wanted, where that was said.
    pub(crate) fn wanted_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// The error that the handler answered with.
    #[must_use]
    pub fn source(&self) -> &(dyn Error + Send + Sync + 'static) {
        &*self.source
    }

    /// The class that was set by hand, or that one of `classify` and core's own errors gives.
    pub(crate) fn class(&self, classify: impl Fn(&(dyn Error + 'static)) -> Option<ErrorClass>) -> ErrorClass {
        match self.mark {
            Some(Mark::Permanent) => ErrorClass::Permanent,
            Some(Mark::Transient) => ErrorClass::Transient,
            None if self.find::<crate::DecodePayloadError>().is_some() || self.find::<UnknownTypeError>().is_some() => {
                ErrorClass::Permanent
            }
            None => classify(&*self.source).unwrap_or(ErrorClass::Transient),
        }
    }

    /// The first error of type `E` in the chain.
    pub(crate) fn find<E: Error + 'static>(&self) -> Option<&E> {
        chain(&*self.source).find_map(|error| error.downcast_ref())
    }
}

/// An error and its sources, outermost first.
pub fn chain<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |error: &&'a (dyn Error + 'static)| (*error).source())
}

impl<E: Into<BoxError>> From<E> for HandlerError {
    fn from(error: E) -> Self {
        Self { mark: None, retry_after: None, source: error.into() }
    }
}

impl fmt::Debug for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandlerError").field("mark", &self.mark).field("source", &self.source).finish()
    }
}

impl fmt::Display for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.source, f)
    }
}

/// Handles one message inside the transaction that also records its key.
///
/// # Contract
/// 1. Everything that must happen exactly once is written through `tx`. Calls over another connection or to another
///    system happen at least once; see [`Effects::Outside`](crate::Effects) and [`Message::derived_key`].
/// 2. The handler neither commits nor rolls back the transaction; nested ones (savepoints) are its own affair, and end
///    before it returns.
/// 3. An error leaves nothing behind: the transaction is rolled back, and the message runs again or is dead-lettered.
///
/// # Cancel safety
/// The future is dropped only when the handler's deadline passes. The connection is then closed, so nothing of the
/// attempt remains.
///
/// # Example
/// ```
/// use idem_core::{Handler, HandlerError, Message, Store, Tx};
///
/// struct Ledger;
///
/// impl<S: Store> Handler<S> for Ledger {
///     async fn handle(&self, message: &Message, tx: &mut Tx<'_, S>) -> Result<(), HandlerError> {
///         let purchase: serde_json::Value = message.json()?;
///         let _connection = tx.connection(); // the store's own: run statements on it
///         if purchase["cents"].as_i64() < Some(0) {
///             return Err(HandlerError::permanent("a purchase cannot be negative"));
///         }
///         Ok(())
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no handler for the store `{S}`",
    note = "implement `Handler<{S}>`, or wrap a plain `async fn(&Message, &mut Tx<'_, {S}>) -> Result<(), HandlerError>` in `handler_fn`"
)]
pub trait Handler<S: Store>: Send + Sync + 'static {
    /// Handles `message`, writing through `tx`.
    fn handle(&self, message: &Message, tx: &mut Tx<'_, S>) -> impl Future<Output = Result<(), HandlerError>> + Send;

    /// Where the type stands by which this handler decides what to do, which then belongs to what is hashed: the same key
    /// and payload of another type is a conflict. `None`, the default, for a handler that goes by the payload alone. A
    /// handler around a [`Router`] answers what the router does.
    fn dispatches_by(&self) -> Option<TypePlace> {
        None
    }
}

/// Where a message's type stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TypePlace {
    /// It is [`Message::message_type`].
    Message,
    /// It is in a header or attribute of this name, which occurs once.
    Header(String),
}

impl TypePlace {
    /// The type of `message`; `None` where it has none there.
    #[must_use]
    pub fn of<'a>(&self, message: &'a Message) -> Option<&'a str> {
        match self {
            Self::Message => message.message_type(),
            Self::Header(name) => message.headers().text(name),
        }
    }
}

/// Handles the fresh messages of a unit at once, with set-based statements.
///
/// The contract of [`Handler`] holds. `messages` is in the order of delivery, never empty, and holds no key twice.
/// When the unit is rolled back, messages that were named as culprits run again, each alone in a slice of one, and the
/// others run again as one batch.
pub trait BatchHandler<S: Store>: Send + Sync + 'static {
    /// Handles `messages`. One answer a message, in order, or an error for them all; [`BatchAnswer::all_handled`]
    /// says that all went well. An answer of another length is a permanent error of the whole batch.
    fn handle_batch(
        &self,
        messages: &[&Message],
        tx: &mut Tx<'_, S>,
    ) -> impl Future<Output = Result<BatchAnswer, HandlerError>> + Send;
}

/// What a [`BatchHandler`] answers.
#[derive(Debug)]
pub struct BatchAnswer(pub(crate) Answer);

#[derive(Debug)]
pub(crate) enum Answer {
    All,
    Each(Vec<Result<(), HandlerError>>),
}

impl BatchAnswer {
    /// Every message was handled.
    #[must_use]
    pub fn all_handled() -> Self {
        Self(Answer::All)
    }

    /// One answer a message, in the order given. Any error rolls the unit back.
    #[must_use]
    pub fn each(answers: Vec<Result<(), HandlerError>>) -> Self {
        Self(Answer::Each(answers))
    }
}

/// The boxed twin of [`Handler`], for where handlers of several types stand side by side.
#[async_trait]
pub(crate) trait DynHandler<S: Store>: Send + Sync + 'static {
    async fn handle_dyn(&self, message: &Message, tx: &mut Tx<'_, S>) -> Result<(), HandlerError>;

    fn type_place(&self) -> Option<TypePlace>;
}

#[async_trait]
impl<S: Store, H: Handler<S>> DynHandler<S> for H {
    async fn handle_dyn(&self, message: &Message, tx: &mut Tx<'_, S>) -> Result<(), HandlerError> {
        self.handle(message, tx).await
    }

    fn type_place(&self) -> Option<TypePlace> {
        self.dispatches_by()
    }
}

/// The boxed twin of [`BatchHandler`].
#[async_trait]
pub(crate) trait DynBatchHandler<S: Store>: Send + Sync + 'static {
    async fn handle_dyn(&self, messages: &[&Message], tx: &mut Tx<'_, S>) -> Result<BatchAnswer, HandlerError>;
}

#[async_trait]
impl<S: Store, H: BatchHandler<S>> DynBatchHandler<S> for H {
    async fn handle_dyn(&self, messages: &[&Message], tx: &mut Tx<'_, S>) -> Result<BatchAnswer, HandlerError> {
        self.handle_batch(messages, tx).await
    }
}

/// How one call of a handler ended.
pub(crate) enum Handled<T> {
    Answered(Result<T, HandlerError>),
    Panicked,
    /// Its future was dropped at the deadline.
    TimedOut,
}

/// What a consumer runs: one of the two kinds of handler.
pub(crate) enum Work<S: Store> {
    Each(Arc<dyn DynHandler<S>>),
    Batch(Arc<dyn DynBatchHandler<S>>),
}

impl<S: Store> Work<S> {
    pub(crate) fn dispatches_by(&self) -> Option<TypePlace> {
        match self {
            Self::Each(handler) => handler.type_place(),
            Self::Batch(_) => None,
        }
    }
}

impl<S: Store, H: Handler<S>> Handler<S> for Arc<H> {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, S>) -> Result<(), HandlerError> {
        (**self).handle(message, tx).await
    }

    fn dispatches_by(&self) -> Option<TypePlace> {
        (**self).dispatches_by()
    }
}

/// A function that can be a handler. Its parameters are the argument types, because a bound on a plain `async fn` is
/// otherwise not general enough over their lifetimes.
pub trait HandlerFn<M, T>: Send + Sync + 'static {
    /// The future of the call.
    type Future: Future<Output = Result<(), HandlerError>> + Send;

    /// Calls the function.
    fn call(&self, message: M, tx: T) -> Self::Future;
}

impl<F, M, T, R> HandlerFn<M, T> for F
where
    F: Fn(M, T) -> R + Send + Sync + 'static,
    R: Future<Output = Result<(), HandlerError>> + Send,
{
    type Future = R;

    fn call(&self, message: M, tx: T) -> R {
        self(message, tx)
    }
}

/// A function with state that can be a handler.
pub trait StatefulHandlerFn<C, M, T>: Send + Sync + 'static {
    /// The future of the call.
    type Future: Future<Output = Result<(), HandlerError>> + Send;

    /// Calls the function.
    fn call(&self, state: C, message: M, tx: T) -> Self::Future;
}

impl<F, C, M, T, R> StatefulHandlerFn<C, M, T> for F
where
    F: Fn(C, M, T) -> R + Send + Sync + 'static,
    R: Future<Output = Result<(), HandlerError>> + Send,
{
    type Future = R;

    fn call(&self, state: C, message: M, tx: T) -> R {
        self(state, message, tx)
    }
}

/// See [`handler_fn`].
#[derive(Clone, Copy)]
pub struct FnHandler<F>(F);

/// See [`handler_fn_with`].
#[derive(Clone, Copy)]
pub struct StatefulFnHandler<C, F>(C, F);

impl<F> fmt::Debug for FnHandler<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FnHandler")
    }
}

impl<C, F> fmt::Debug for StatefulFnHandler<C, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StatefulFnHandler")
    }
}

/// A handler from a plain `async fn(&Message, &mut Tx<'_, S>) -> Result<(), HandlerError>`. Closures that capture
/// cannot be used: put what they capture into [`handler_fn_with`]'s state.
pub fn handler_fn<F>(function: F) -> FnHandler<F> {
    FnHandler(function)
}

/// A handler from a plain `async fn(&State, &Message, &mut Tx<'_, S>) -> Result<(), HandlerError>` and its state.
pub fn handler_fn_with<C, F>(state: C, function: F) -> StatefulFnHandler<C, F> {
    StatefulFnHandler(state, function)
}

impl<S, F> Handler<S> for FnHandler<F>
where
    S: Store,
    F: for<'m, 'a, 't> HandlerFn<&'m Message, &'a mut Tx<'t, S>>,
{
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, S>) -> Result<(), HandlerError> {
        self.0.call(message, tx).await
    }
}

impl<S, C, F> Handler<S> for StatefulFnHandler<C, F>
where
    S: Store,
    C: Send + Sync + 'static,
    F: for<'c, 'm, 'a, 't> StatefulHandlerFn<&'c C, &'m Message, &'a mut Tx<'t, S>>,
{
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, S>) -> Result<(), HandlerError> {
        self.1.call(&self.0, message, tx).await
    }
}

/// A message of a type for which a [`Router`] has no handler. It is permanent: dead-lettered as `unknown-type`, never
/// dropped.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown message type {}: add a handler for it with Router::on", .0.as_deref().map_or("(none)".to_owned(), |t| format!("{t:?}")))]
pub struct UnknownTypeError(pub Option<String>);

/// Picks a handler by the message's type.
///
/// The type is [`Message::message_type`] unless [`Router::by_header`] names a header that carries it.
///
/// # The type and the key
/// The type belongs to what is hashed (rule `raw+type/1`, see [`WithType`](crate::WithType)): a message of another type
/// under a key that was used before is a conflict, set aside and never taken for a duplicate. Where one key names several
/// operations that are all to run, such as an order that is placed and later cancelled, the type belongs to the *key*:
/// [`Join`](crate::key::Join) of [`MessageType`](crate::key::MessageType) and the key, `--key join(type,…)` in a worker.
///
/// A consumer that gets a router later starts as before. What it recorded without the type is compared without it.
pub struct Router<S: Store> {
    place: TypePlace,
    routes: HashMap<String, Arc<dyn DynHandler<S>>>,
}

impl<S: Store> Default for Router<S> {
    fn default() -> Self {
        Self::new()
    }
}

impl<S: Store> Router<S> {
    /// A router without routes.
    #[must_use]
    pub fn new() -> Self {
        Self { place: TypePlace::Message, routes: HashMap::new() }
    }

    /// Takes the type from this header or attribute, such as `EventType`.
    #[must_use]
    pub fn by_header(mut self, name: &str) -> Self {
        self.place = TypePlace::Header(name.to_owned());
        self
    }

    /// Handles messages of `message_type` by `handler`; a second call for the same type replaces the first.
    #[must_use]
    pub fn on(mut self, message_type: &str, handler: impl Handler<S>) -> Self {
        self.routes.insert(message_type.to_owned(), Arc::new(handler));
        self
    }
}

impl<S: Store> fmt::Debug for Router<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Router").field("types", &self.routes.keys()).finish_non_exhaustive()
    }
}

impl<S: Store> Handler<S> for Router<S> {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, S>) -> Result<(), HandlerError> {
        let message_type = self.place.of(message);
        match message_type.and_then(|name| self.routes.get(name)) {
            Some(handler) => handler.handle_dyn(message, tx).await,
            None => Err(UnknownTypeError(message_type.map(str::to_owned)).into()),
        }
    }

    fn dispatches_by(&self) -> Option<TypePlace> {
        Some(self.place.clone())
    }
}
