//! Builds a [`DedupConsumer`], refusing settings that break a rule.

use std::{fmt, sync::Arc, time::Duration};

use crate::{
    config::{Concurrency, Effects},
    config_error::ConfigError,
    consumer::{DedupConsumer, coalesce::SharedUnits},
    handler::{BatchHandler, Handler, Work},
    hash::HashRules,
    key::{KeyPolicy, KeySource},
    message::Message,
    names::{Retention, Tenant},
    outbox::event::Destination,
    store::Store,
    unit::{engine::Tenants, setup::Setup},
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

    /// The handler's effects beside its writes through the transaction. Required.
    #[must_use]
    pub fn effects(mut self, effects: Effects) -> Self {
        self.setup.effects = Some(effects);
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
    pub fn units_of_one(mut self) -> Self {
        self.setup.settings.units_of_one = true;
        self
    }

    /// Lets calls of [`process_one`](DedupConsumer::process_one) that come together share a unit of at most this many messages,
    /// from 2 to 1,000: many callers at once then have the price of a batch. No call waits for company: it runs at once,
    /// alone, unless some units are running already, and then it joins the next one with the other calls that wait. Messages of
    /// different tenants share no unit, and where anything fails, each message of the unit runs alone.
    ///
    /// Calls that share a unit commit together, so each ends when the slowest handler of the unit has. Refused with
    /// [`Effects::Outside`] and [`units_of_one`](Self::units_of_one).
    #[must_use]
    pub fn shares_units(mut self, messages_max: usize) -> Self {
        self.setup.settings.shared_unit_max = Some(messages_max);
        self
    }

    /// A name for the handler, to which the consumer is bound at its first start: another handler under the same
    /// consumer's name is then refused, because it would see the first one's messages as duplicates. Not bound unless
    /// set; keep it over versions of one handler.
    #[must_use]
    pub fn handler_name(mut self, name: &str) -> Self {
        self.setup.handler_name = Some(name.to_owned());
        self
    }

    /// The application's version, which is noted with each run and so with each record. Defaults to idem's.
    #[must_use]
    pub fn version(mut self, version: &str) -> Self {
        self.setup.version = version.to_owned();
        self
    }

    /// The one tenant of this consumer. Defaults to the empty one.
    #[must_use]
    pub fn tenant(mut self, tenant: Tenant) -> Self {
        self.setup.tenants = Tenants::One(tenant);
        self
    }

    /// Takes each message's tenant from something that was authenticated, such as a header that only the broker's
    /// gateway can set; `None` makes the message malformed. Never take it from the payload alone.
    #[must_use]
    pub fn tenant_of(mut self, function: impl Fn(&Message) -> Option<Tenant> + Send + Sync + 'static) -> Self {
        self.setup.tenants = Tenants::Of(Arc::new(function));
        self
    }

    /// Where keys come from. Defaults to [`default_key_source`](crate::key::default_key_source).
    #[must_use]
    pub fn key_source(mut self, source: impl KeySource) -> Self {
        self.setup.keys = Arc::new(source);
        self
    }

    /// The form that keys must have. Defaults to any token.
    #[must_use]
    pub fn key_policy(mut self, policy: KeyPolicy) -> Self {
        self.setup.key_policy = policy;
        self
    }

    /// How payloads are hashed. Defaults to their raw bytes. Under a [`Router`](crate::Router) the type is hashed with
    /// them, as [`WithType`](crate::hash::WithType) does it.
    #[must_use]
    pub fn hash_rules(mut self, rules: HashRules) -> Self {
        self.setup.hashes = rules;
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

    /// Where the handler [publishes](crate::Tx::publish) to: it can publish to nothing else, so an unknown name is found as the
    /// handler runs, and not when the event should leave. Adds to earlier declarations.
    #[must_use]
    pub fn publishes_to(mut self, destinations: impl IntoIterator<Item = impl Into<Destination>>) -> Self {
        self.setup.publishing.destinations.extend(destinations.into_iter().map(Into::into));
        self
    }

    /// How many events one message may publish. Defaults to 64.
    #[must_use]
    pub fn events_max(mut self, events: usize) -> Self {
        self.setup.publishing.events_max = events;
        self
    }

    /// How many bytes the payloads, headers and ordering keys of one message's events may have. Defaults to 4 MiB.
    #[must_use]
    pub fn events_bytes_max(mut self, bytes: usize) -> Self {
        self.setup.publishing.events_bytes_max = bytes;
        self
    }

    /// Keeps the results that handlers set with [`Tx::set_result`](crate::Tx::set_result) beside the records, of at most this
    /// many bytes each ([`RESULT_BYTES_MAX`](crate::results::RESULT_BYTES_MAX) is a good choice). A larger one is a permanent
    /// error, before anything is committed.
    #[must_use]
    pub fn keeps_results(mut self, bytes_max: usize) -> Self {
        self.setup.publishing.result_bytes_max = Some(bytes_max);
        self
    }

    /// How long results are kept; their records stay for the [`retention`](Self::retention). Defaults to 24 hours, or to the retention
    /// where that is shorter; from 1 minute to the retention. Cleanup removes older ones, all but kind, status and
    /// [reference](crate::ResultBody::reference): a later call then answers [`NotKept::Expired`](crate::results::NotKept::Expired), and
    /// nothing runs again.
    #[must_use]
    pub fn answers_for(mut self, time: Retention) -> Self {
        self.setup.settings.answers_for = Some(time);
        self
    }

    /// Seals results with AES-256-GCM before they are written, so that they cannot be read in the database, in a replica or in
    /// a backup. Results that were kept before stay readable.
    #[cfg(feature = "seal")]
    #[must_use]
    pub fn seals_results(mut self, keys: crate::results::aes_gcm::ResultKeys) -> Self {
        self.setup.seal = Some(Arc::new(keys));
        self
    }

    /// How long records are kept.
    #[must_use]
    pub fn retention(mut self, retention: Retention) -> Self {
        self.setup.settings.retention = retention;
        self
    }

    /// How long one call of the handler may take. Required with [`Effects::Outside`].
    #[must_use]
    pub fn handler_deadline(mut self, deadline: Duration) -> Self {
        self.setup.settings.handler_deadline = deadline;
        self.setup.deadline_was_set = true;
        self
    }

    /// How long a claim waits for others that hold its keys.
    #[must_use]
    pub fn busy_timeout(mut self, timeout: Duration) -> Self {
        self.setup.settings.busy_timeout = timeout;
        self
    }

    /// How long a commit may take before its outcome counts as unknown.
    #[must_use]
    pub fn commit_timeout(mut self, timeout: Duration) -> Self {
        self.setup.settings.commit_timeout = timeout;
        self
    }

    /// How long the database may take to answer beyond the limits it was given.
    #[must_use]
    pub fn answer_timeout(mut self, timeout: Duration) -> Self {
        self.setup.settings.answer_timeout = timeout;
        self
    }

    /// The largest payload, in bytes.
    #[must_use]
    pub fn payload_bytes_max(mut self, bytes: usize) -> Self {
        self.setup.settings.payload_bytes_max = bytes;
        self
    }

    /// The most headers of one message. A message with more is dead-lettered as `too-large`.
    #[must_use]
    pub fn headers_max(mut self, headers: usize) -> Self {
        self.setup.settings.headers_max = headers;
        self
    }

    /// The most bytes of all names and values of one message's headers.
    #[must_use]
    pub fn headers_bytes_max(mut self, bytes: usize) -> Self {
        self.setup.settings.headers_bytes_max = bytes;
        self
    }

    /// How many units run side by side, each on a connection of its own.
    #[must_use]
    pub fn lanes(mut self, lanes: usize) -> Self {
        self.setup.settings.lanes = lanes;
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
