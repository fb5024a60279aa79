//! Builds a [`DedupConsumer`], refusing settings that break a rule.

use std::{fmt, sync::Arc};

use crate::{
    config::Concurrency,
    config_error::ConfigError,
    consumer::{DedupConsumer, coalesce::SharedUnits},
    handler::{BatchHandler, Handler, Work},
    store::Store,
    unit::{setters::setup_setters, setup::Setup},
};

/// Settings of a [`DedupConsumer`]; see [`ConsumerSettings`](crate::config::ConsumerSettings) for defaults and limits.
pub struct DedupConsumerBuilder<S: Store> {
    setup: Setup<S>,
    work: Option<Work<S>>,
}

impl<S: Store> fmt::Debug for DedupConsumerBuilder<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DedupConsumerBuilder")
            .field("name", &self.setup.name)
            .field("effects", &self.setup.effects)
            .field("settings", &self.setup.settings)
            .finish_non_exhaustive()
    }
}

impl<S: Store> DedupConsumerBuilder<S> {
    pub(super) fn new(store: Arc<S>, name: &str) -> Self {
        Self { setup: Setup::new(store, name), work: None }
    }

    setup_setters!();

    /// The handler, called for each fresh message. This or [`batch_handler`](Self::batch_handler) is required.
    #[must_use]
    pub fn handler(mut self, handler: impl Handler<S>) -> Self {
        self.work = Some(Work::Each(handler.boxed()));
        self
    }

    /// The handler, called once for the fresh messages of a unit.
    #[must_use]
    pub fn batch_handler(mut self, handler: impl BatchHandler<S>) -> Self {
        self.work = Some(Work::Batch(Arc::new(handler)));
        self
    }

    /// How the handlers of one unit run. Defaults to one after the other.
    #[must_use]
    pub fn handlers(mut self, handlers: Concurrency) -> Self {
        self.setup.settings.handlers = handlers;
        self
    }

    /// Handles one message a unit, for a handler that sets things for its transaction: a role, a search path, a tenant for row
    /// level security. One handler's settings hold for those after it in the same transaction, see the contract of
    /// [`Handler`]. Each message then costs a transaction of its own.
    #[must_use]
    pub fn one_message_per_transaction(mut self) -> Self {
        self.setup.settings.one_message_per_transaction = true;
        self
    }

    /// Lets calls of [`process_one`](DedupConsumer::process_one) that come together share a unit of at most this many messages,
    /// from 2 to 1,000: many callers at once then have the price of a batch. No call waits for company: it runs at once,
    /// alone, unless some units are running already, and then it joins the next one with the other calls that wait. Messages of
    /// different tenants share no unit, and where anything fails, each message of the unit runs alone.
    ///
    /// Calls that share a unit commit together, so each ends when the slowest handler of the unit has. Refused with
    /// [`Effects::Outside`](crate::Effects::Outside) and [`one_message_per_transaction`](Self::one_message_per_transaction).
    #[must_use]
    pub fn coalesce_calls(mut self, messages_max: usize) -> Self {
        self.setup.settings.shared_unit_max = Some(messages_max);
        self
    }

    /// Handles messages of this type without a record of their key, for operations that are idempotent by nature. They
    /// are counted as unprotected. May be called for several types.
    ///
    /// The type is the producer's word. Anyone who may publish can name this type in the header of any message, whose
    /// handler then runs at every delivery: use it with a [`Router`](crate::Router), whose handler of this type does
    /// nothing else.
    #[must_use]
    pub fn unprotected_type(mut self, message_type: &str) -> Self {
        self.setup.unprotected.insert(message_type.to_owned());
        self
    }

    /// Builds the consumer. It does not connect yet.
    ///
    /// # Errors
    /// [`ConfigError`] with field, value and rule.
    pub fn build(mut self) -> Result<DedupConsumer<S>, ConfigError> {
        let rule = "a consumer needs a handler: call .handler(…) or .batch_handler(…)";
        let work = self.work.take().ok_or_else(|| ConfigError::new("handler", "not set", rule))?;
        let engine = Arc::new(self.setup.build(work)?);
        let (max, lanes) = (engine.settings.shared_unit_max, engine.settings.lanes);
        Ok(DedupConsumer { engine, coalesce: max.map(|max| Arc::new(SharedUnits::new(max, lanes))) })
    }
}
