//! The traits that users write.

pub(crate) mod around;
pub(crate) mod function;

use std::{fmt, future::Future, sync::Arc};

use async_trait::async_trait;

pub use self::around::{Around, Next};
pub use crate::handler_error::{CannotRepeat, UnknownTypeError};

use crate::{
    caught::caught,
    handler_error::HandlerError,
    message::Message,
    message_type::TypePlace,
    store::{Store, tx::Tx},
};

/// Handles one message inside the transaction that also records its key.
///
/// # Contract
/// 1. Everything that must happen exactly once is written through `tx`. Calls over another connection or to another
///    system happen at least once; see [`Effects::Outside`](crate::Effects) and [`Message::derived_key`].
/// 2. The handler neither commits nor rolls back the transaction; nested ones (savepoints) are allowed, and end before
///    it returns.
/// 3. An error leaves nothing behind: the transaction is rolled back, and the message runs again or is dead-lettered.
/// 4. A transaction is shared by the messages of one unit, so a handler's settings for it (`SET LOCAL`, `set_config(…, true)`)
///    hold for those after it, and its settings for the session (`SET`) for all later units of that session. A handler that
///    sets something sets it for every message before it reads or writes anything, or asks for units of one message
///    ([`one_message_per_transaction`](crate::consumer::DedupConsumerBuilder::one_message_per_transaction)). A `synchronous_commit` that is weaker than before is
///    refused at the seal.
/// 5. Events and results belong to the message, not to savepoints: an event that is published inside a savepoint goes out
///    although the handler rolls the savepoint back.
///
/// # Cancel safety
/// The future is dropped when the handler's deadline passes, when the worker's drain deadline passes, and when
/// [`Worker::run`](crate::Worker::run) itself is dropped. The connection is then closed, so nothing of the attempt remains.
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

    /// The place of the type by which this handler decides what to do. The type is then hashed with the payload: the same
    /// key and payload of another type is a conflict. `None`, the default, for a handler that goes by the payload alone.
    /// A handler around a [`Router`](crate::Router) answers the router's place.
    fn dispatches_by(&self) -> Option<TypePlace> {
        None
    }

    /// Whether it calls other systems for `message`, where its consumer says [`Effects::InTransaction`](crate::Effects); with `None`,
    /// whether it does so for any message. Such a message runs alone, and each attempt is counted before it runs. False by default;
    /// a handler around a [`Router`](crate::Router) answers the router's.
    fn calls_outside(&self, message: Option<&Message>) -> bool {
        let _ = message;
        false
    }

    /// Runs `function` around each call of this handler, as layers do it in tower: an
    /// `async fn(Next<'_, S>, &Message, &mut Tx<'_, S>) -> Result<(), HandlerError>`, or an async closure of that form, which
    /// calls [`Next::run`](crate::handler::Next::run). Its writes through `tx` are part of the same transaction. Several are run outermost last.
    ///
    /// ```
    /// use idem_core::{Handler, HandlerError, Message, Router, Store, Tx, handler_fn, handler::Next};
    /// use tracing::Instrument as _;
    ///
    /// async fn in_a_span<S: Store>(
    ///     next: Next<'_, S>,
    ///     message: &Message,
    ///     tx: &mut Tx<'_, S>,
    /// ) -> Result<(), HandlerError> {
    ///     let span = tracing::info_span!("handle", message_type = message.message_type());
    ///     next.run(message, tx).instrument(span).await
    /// }
    ///
    /// async fn counted<S: Store>(
    ///     next: Next<'_, S>,
    ///     message: &Message,
    ///     tx: &mut Tx<'_, S>,
    /// ) -> Result<(), HandlerError> {
    ///     let answer = next.run(message, tx).await;
    ///     let (kind, ok) = (message.message_type().unwrap_or("none").to_owned(), answer.is_ok().to_string());
    ///     metrics::counter!("orders_attempts_total", "type" => kind, "ok" => ok).increment(1);
    ///     answer
    /// }
    ///
    /// # async fn place<S: Store>(_: &Message, _: &mut Tx<'_, S>) -> Result<(), HandlerError> { Ok(()) }
    /// fn handler<S: Store>() -> impl Handler<S> {
    ///     Router::new().on("order-placed", handler_fn(place)).around(counted).around(in_a_span)
    /// }
    /// ```
    fn around<F>(self, function: F) -> Around<S, Self, F>
    where
        Self: Sized,
    {
        Around::new(self, function)
    }

    /// The same handler in a box, for where handlers of several types stand side by side.
    ///
    /// ```
    /// use std::collections::HashMap;
    ///
    /// use idem_core::{Handler, HandlerError, Message, Store, Tx, handler_fn, handler::BoxHandler};
    ///
    /// # async fn place<S: Store>(_: &Message, _: &mut Tx<'_, S>) -> Result<(), HandlerError> { Ok(()) }
    /// # async fn cancel<S: Store>(_: &Message, _: &mut Tx<'_, S>) -> Result<(), HandlerError> { Ok(()) }
    /// fn handlers<S: Store>() -> HashMap<&'static str, BoxHandler<S>> {
    ///     [("placed", handler_fn(place).boxed()), ("cancelled", handler_fn(cancel).boxed())].into()
    /// }
    /// ```
    fn boxed(self) -> BoxHandler<S>
    where
        Self: Sized,
    {
        BoxHandler(Arc::new(self))
    }
}

/// A [`Handler`] of any type, behind a pointer: [`Handler::boxed`] makes it. Cloning is cheap, and clones are one handler.
pub struct BoxHandler<S: Store>(pub(crate) Arc<dyn DynHandler<S>>);

impl<S: Store> Clone for BoxHandler<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S: Store> fmt::Debug for BoxHandler<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BoxHandler")
    }
}

impl<S: Store> Handler<S> for BoxHandler<S> {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, S>) -> Result<(), HandlerError> {
        self.0.handle_dyn(message, tx).await
    }

    fn dispatches_by(&self) -> Option<TypePlace> {
        self.0.type_place()
    }

    fn calls_outside(&self, message: Option<&Message>) -> bool {
        self.0.is_outside(message)
    }

    // Not a box in a box: each costs an allocation a message.
    fn boxed(self) -> BoxHandler<S> {
        self
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

/// The answer of a [`BatchHandler`].
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

    fn is_outside(&self, message: Option<&Message>) -> bool;
}

#[async_trait]
impl<S: Store, H: Handler<S>> DynHandler<S> for H {
    async fn handle_dyn(&self, message: &Message, tx: &mut Tx<'_, S>) -> Result<(), HandlerError> {
        self.handle(message, tx).await
    }

    fn type_place(&self) -> Option<TypePlace> {
        self.dispatches_by()
    }

    fn is_outside(&self, message: Option<&Message>) -> bool {
        self.calls_outside(message)
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

/// The work of a consumer: one of the two kinds of handler, or the work that each call brings along.
pub(crate) enum Work<S: Store> {
    Each(BoxHandler<S>),
    Batch(Arc<dyn DynBatchHandler<S>>),
    OfCall,
}

impl<S: Store> Work<S> {
    pub(crate) fn dispatches_by(&self) -> Option<TypePlace> {
        match self {
            Self::Each(handler) => handler.dispatches_by(),
            Self::Batch(_) | Self::OfCall => None,
        }
    }

    /// As [`Handler::calls_outside`]. A handler that panics here runs alone.
    pub(crate) fn calls_outside(&self, message: Option<&Message>) -> bool {
        match self {
            Self::Each(handler) => caught(|| handler.calls_outside(message)).unwrap_or(true),
            Self::Batch(_) | Self::OfCall => false,
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

    fn calls_outside(&self, message: Option<&Message>) -> bool {
        (**self).calls_outside(message)
    }
}
