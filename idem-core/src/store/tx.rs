//! [`Tx`]: the transaction as a handler sees it.

use std::fmt;

use crate::{
    handler_error::HandlerError,
    message::Message,
    outbox::{
        collect::Collector,
        event::{Event, EventId, PublishError},
    },
    results::result::ResultBody,
    store::Store,
};

/// The transaction as a handler sees it. Borrowed for one call: it can be neither kept nor cloned.
pub struct Tx<'t, S: Store> {
    connection: S::Connection<'t>,
    /// Where events and results go; core alone gives it.
    collector: Option<&'t Collector<'t>>,
    /// Whether the connection was asked for.
    taken: bool,
}

impl<'t, S: Store> Tx<'t, S> {
    /// For stores: wraps the connection of a unit.
    pub fn new(connection: S::Connection<'t>) -> Self {
        Self { connection, collector: None, taken: false }
    }

    /// The same transaction, with a place for a handler's events and results.
    pub(crate) fn collecting<'a>(&'a mut self, collector: &'a Collector<'a>) -> Tx<'a, S> {
        Tx { connection: S::reborrow(&mut self.connection), collector: Some(collector), taken: false }
    }

    /// The same transaction, with the place for the events and the result of an operation.
    pub(crate) fn of_operation(self, collector: &'t Collector<'t>) -> Self {
        Self { collector: Some(collector), ..self }
    }

    /// The connection to run statements on, of the store's own type.
    pub fn connection(&mut self) -> S::Connection<'_> {
        self.taken = true;
        S::reborrow(&mut self.connection)
    }

    /// Whether [`connection`](Self::connection) was called, or [`parts`](Self::parts).
    pub(crate) fn is_taken(&self) -> bool {
        self.taken
    }

    /// Publishes an event of `message`: it is committed with the handler's effects, or not at all, and a relay brings it to its
    /// destination. Answers the event's id, which its receivers get as its idempotency key. Nothing is sent to the database
    /// before all handlers of the unit have succeeded.
    ///
    /// Events belong to the message, and not to a nested transaction: one that was published inside of a savepoint is sent
    /// although the handler has rolled the savepoint back.
    ///
    /// # Errors
    /// [`PublishError`]. The message is then dead-lettered, also where the handler goes on and answers `Ok`.
    pub fn publish(&mut self, message: &Message, event: Event) -> Result<EventId, PublishError> {
        self.handing_in().publish(message, event)
    }

    /// Sets the answer of `message`'s operation: it is committed with the handler's effects, and every repeat with the same key
    /// and payload gets it. The last one counts.
    ///
    /// # Errors
    /// As for [`publish`](Self::publish).
    pub fn set_result(&mut self, message: &Message, result: ResultBody) -> Result<(), PublishError> {
        self.handing_in().set_result(message, result)
    }

    /// The message of this call, for code that is given only its transaction; `None` where a call has several.
    #[must_use]
    pub fn message(&self) -> Option<&'t Message> {
        self.collector?.message()
    }

    /// The connection, and beside it the place for events and results, for code that publishes while a nested transaction
    /// is open on the connection.
    pub fn parts(&mut self) -> (S::Connection<'_>, HandingIn<'_>) {
        let handing_in = self.handing_in();
        (self.connection(), handing_in)
    }

    /// Notes the error of a statement after which this work goes on, with its class. If the transaction cannot be committed because of
    /// it, and the error is [permanent](crate::HandlerError::permanent), a result with a status from 400 to 499 is final all the same: see
    /// [`allow_final_errors`](crate::once::RunOnceBuilder::allow_final_errors). Otherwise the work fails with this error. An error that may pass is
    /// never final, and is not replaced by another.
    pub fn note_error(&mut self, error: HandlerError) {
        if let Some(collector) = self.collector {
            collector.note_error(error);
        }
    }

    fn handing_in(&self) -> HandingIn<'t> {
        HandingIn { collector: self.collector }
    }

    /// For stores that wrap another one: the connection itself. A handler has only `&mut Tx`, and cannot take it.
    pub fn into_connection(self) -> S::Connection<'t> {
        self.connection
    }
}

/// The place for a handler's events and results: see [`Tx::parts`].
#[derive(Debug, Clone, Copy)]
pub struct HandingIn<'t> {
    collector: Option<&'t Collector<'t>>,
}

impl HandingIn<'_> {
    /// As [`Tx::publish`].
    ///
    /// # Errors
    /// As there.
    pub fn publish(&self, message: &Message, event: Event) -> Result<EventId, PublishError> {
        self.collector.ok_or(PublishError::OtherMessage)?.publish(message, event)
    }

    /// As [`Tx::set_result`].
    ///
    /// # Errors
    /// As there.
    pub fn set_result(&self, message: &Message, result: ResultBody) -> Result<(), PublishError> {
        self.collector.ok_or(PublishError::OtherMessage)?.set_result(message, result)
    }
}

impl<S: Store> fmt::Debug for Tx<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tx")
    }
}
