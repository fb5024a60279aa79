//! [`IdempotentTx`]: the extractor with which a handler gets its transaction.

use std::{
    fmt,
    ops::{Deref, DerefMut},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use axum::{
    extract::FromRequestParts,
    response::{IntoResponse, Response},
};
use http::{StatusCode, request::Parts};
use idem_core::{
    Event, HandlerError, Store, Tx,
    internal::{Lender, Whereabouts},
    once::{Operation, OperationTx},
    outbox::{EventId, PublishError},
    store::PlainConnection,
};

use super::{
    key::KEY_HEADER,
    request_key::RequestKey,
    tx_error::{self, TxError},
};

/// The transaction of a request, which a handler takes as an argument. `S` is the store's type. It is committed together with the key's record
/// and the response, once the handler has responded.
///
/// On a store of sqlx's it dereferences to the connection, and [`connection`](Self::connection) gives that of every store:
///
/// ```
/// use idem_http::{IdempotentTx, TxError};
/// use idem_sqlx::PostgresStore;
///
/// async fn pay(mut tx: IdempotentTx<PostgresStore>, cents: String) -> Result<String, TxError> {
///     sqlx::query("INSERT INTO payments (cents) VALUES ($1::bigint)").bind(&cents).execute(&mut *tx).await?;
///     Ok(format!("paid {cents}"))
/// }
/// ```
///
/// # What a handler must not do
/// 1. **Return early and expect a rollback.** A transaction of sqlx's rolls back when it is dropped. This one commits with each response of
///    less than 500. So call [`refuse`](Self::refuse) or [`discard`](Self::discard) before a 4xx that follows a write.
/// 2. **Let it outlive the response**, as by moving it into a task: the response is then a 500 that says so, and nothing is committed. In the
///    response's body it may be: that is read to its end before the commit.
/// 3. **Commit or roll back.** The server refuses both. Savepoints are fine.
/// 4. **Take it twice.** A second extractor of the same handler is refused with 500.
///
/// # Cancellation
/// The handler is dropped at its deadline, and the transaction is ended on the server. Where the client is gone, the handler runs to its end.
pub struct IdempotentTx<S: Store> {
    tx: OperationTx<'static, S>,
    lending: Arc<Lending<S>>,
}

/// The transaction of a request before and after its handler has it.
pub(super) struct Lending<S: Store> {
    lender: Lender<S>,
    key: RequestKey,
    is_taken: AtomicBool,
    is_refused: AtomicBool,
    is_discarded: AtomicBool,
}

/// Puts it into the extensions of a request.
pub(super) struct Lent<S: Store>(pub(super) Arc<Lending<S>>);

impl<S: Store> Clone for Lent<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S: Store> Lending<S> {
    pub(super) fn of(operation: &Operation<S>, key: RequestKey) -> Self {
        let no = || AtomicBool::new(false);
        Self { lender: operation.lender(), key, is_taken: no(), is_refused: no(), is_discarded: no() }
    }

    pub(super) fn whereabouts(&self) -> Whereabouts {
        self.lender.whereabouts()
    }

    /// Whether the handler has had it as an argument.
    pub(super) fn is_taken(&self) -> bool {
        self.is_taken.load(Ordering::Relaxed)
    }

    /// Whether the handler has asked for its writes to be rolled back, and its response to be kept.
    pub(super) fn is_refused(&self) -> bool {
        self.is_refused.load(Ordering::Relaxed)
    }

    /// Whether the handler has asked for nothing to be kept.
    pub(super) fn is_discarded(&self) -> bool {
        self.is_discarded.load(Ordering::Relaxed)
    }
}

impl<S: Store> fmt::Debug for IdempotentTx<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotentTx").finish_non_exhaustive()
    }
}

impl<S: Store> IdempotentTx<S> {
    /// The request's key and its scope, and the keys for others that follow from it.
    #[must_use]
    pub fn key(&self) -> &RequestKey {
        &self.lending.key
    }

    /// The connection to run statements on, of the store's own type.
    pub fn connection(&mut self) -> S::Connection<'_> {
        self.tx.connection()
    }

    /// The transaction as the handlers of workers have it, for code that serves both.
    pub fn tx(&mut self) -> Tx<'_, S> {
        self.tx.tx()
    }

    /// Publishes an event, which is committed with the request's effects or not at all; see [`Tx::publish`].
    ///
    /// ```
    /// # use idem_http::{IdempotentTx, TxError, idem_core::{Event, Store}};
    /// # #[derive(serde::Serialize)]
    /// # struct Paid { cents: u64 }
    /// async fn pay<S: Store>(mut tx: IdempotentTx<S>) -> Result<&'static str, TxError> {
    ///     tx.publish(Event::to("payments").event_type("Paid").json(&Paid { cents: 1_177 })?)?;
    ///     Ok("paid")
    /// }
    /// ```
    ///
    /// # Errors
    /// [`PublishError`]. The request then fails, also where its handler responds with success.
    pub fn publish(&mut self, event: Event) -> Result<EventId, PublishError> {
        self.tx.publish(event)
    }

    /// Notes that a statement has failed with this error, before a response of 4xx: if the error may pass, such as a deadlock, the response
    /// is not kept, and the client is asked to send the request again. Without a note such a response is kept, whatever the error was.
    ///
    /// ```
    /// # use idem_http::{IdempotentTx, TxError, idem_core::{BoxError, Store}};
    /// # async fn insert<S: Store>(_: S::Connection<'_>) -> Result<(), BoxError> { Ok(()) }
    /// use axum::http::StatusCode;
    ///
    /// async fn pay<S: Store>(mut tx: IdempotentTx<S>) -> Result<StatusCode, TxError> {
    ///     match insert::<S>(tx.connection()).await {
    ///         Ok(()) => Ok(StatusCode::CREATED),
    ///         Err(error) => {
    ///             tx.note(error);
    ///             Ok(StatusCode::CONFLICT)
    ///         }
    ///     }
    /// }
    /// ```
    pub fn note(&mut self, error: impl Into<HandlerError>) -> TxError {
        let error = error.into();
        if let Some(noted) = tx_error::noted::<S>(&error) {
            self.tx().note_error(noted);
        }
        error.into()
    }

    /// Marks the handler's response as a permanent refusal: its writes are rolled back, and the response is kept.
    ///
    /// ```
    /// # use axum::http::StatusCode;
    /// # use idem_http::{IdempotentTx, TxError};
    /// # use idem_sqlx::PostgresStore;
    /// async fn order(mut tx: IdempotentTx<PostgresStore>) -> Result<StatusCode, TxError> {
    ///     sqlx::query("INSERT INTO orders (shop) VALUES ('a')").execute(&mut *tx).await?;
    ///     let charge = sqlx::query("UPDATE shops SET credit = credit - 1 WHERE name = 'a' AND credit > 0");
    ///     if charge.execute(&mut *tx).await?.rows_affected() == 0 {
    ///         tx.refuse(); // else the order is committed with the 402
    ///         return Ok(StatusCode::PAYMENT_REQUIRED);
    ///     }
    ///     Ok(StatusCode::CREATED)
    /// }
    /// ```
    pub fn refuse(&self) {
        self.lending.is_refused.store(true, Ordering::Relaxed);
    }

    /// Marks the handler's response as one that is not kept: its writes are rolled back, and a repeat runs. Use it before a response that
    /// concerns the request and not the operation, such as 429.
    pub fn discard(&self) {
        self.lending.is_discarded.store(true, Ordering::Relaxed);
    }
}

impl<S: PlainConnection> Deref for IdempotentTx<S> {
    type Target = S::Plain;

    fn deref(&self) -> &S::Plain {
        &self.tx
    }
}

impl<S: PlainConnection> DerefMut for IdempotentTx<S> {
    fn deref_mut(&mut self) -> &mut S::Plain {
        &mut self.tx
    }
}

impl<S: Store, A: Send + Sync> FromRequestParts<A> for IdempotentTx<S> {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, _: &A) -> Result<Self, Response> {
        let own = std::any::type_name::<S>();
        let Some(Lent(lending)) = parts.extensions.get::<Lent<S>>() else {
            tracing::error!(
                "a handler takes IdempotentTx<{own}>, and its route has no idempotency layer on that store, or its method none without a key"
            );
            // A PUT without a key also comes here.
            let is_keyless = !parts.headers.contains_key(KEY_HEADER);
            let status = if is_keyless { StatusCode::BAD_REQUEST } else { StatusCode::INTERNAL_SERVER_ERROR };
            return Err((status, "this operation needs the header Idempotency-Key").into_response());
        };
        lending.is_taken.store(true, Ordering::Relaxed);
        match lending.lender.lend() {
            Ok(tx) => Ok(Self { tx, lending: Arc::clone(lending) }),
            Err(whereabouts) => {
                let why = match whereabouts {
                    Whereabouts::Lent => "is taken already: take it once, or drop the first one before",
                    Whereabouts::Ended | Whereabouts::Here { .. } => "has ended",
                };
                tracing::error!("a handler takes IdempotentTx<{own}>, and the transaction of its request {why}");
                Err((StatusCode::INTERNAL_SERVER_ERROR, "the transaction of this request cannot be had")
                    .into_response())
            }
        }
    }
}
