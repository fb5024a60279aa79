//! Builds a [`RunOnce`], refusing settings that break a rule.

use std::{fmt, sync::Arc, time::Duration};

use crate::{
    config::Effects,
    config_error::ConfigError,
    handler::Work,
    hash::HashRules,
    key::{KeyPolicy, KeySource},
    message::Message,
    names::{Retention, Tenant},
    once::{Calls, RunOnce},
    outbox::event::Destination,
    results::result::RESULT_BYTES_MAX,
    store::Store,
    unit::{engine::Tenants, setup::Setup},
};

/// Settings of a [`RunOnce`]; see [`ConsumerSettings`](crate::config::ConsumerSettings) for defaults and limits.
pub struct RunOnceBuilder<S: Store> {
    setup: Setup<S>,
    final_errors: bool,
}

impl<S: Store> fmt::Debug for RunOnceBuilder<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunOnceBuilder")
            .field("name", &self.setup.name)
            .field("effects", &self.setup.effects)
            .field("settings", &self.setup.settings)
            .finish_non_exhaustive()
    }
}

impl<S: Store> RunOnceBuilder<S> {
    pub(super) fn new(store: Arc<S>, name: &str) -> Self {
        Self { setup: Setup::new(store, name), final_errors: false }
    }

    /// The effects of the work beside its writes through the transaction. Required.
    #[must_use]
    pub fn effects(mut self, effects: Effects) -> Self {
        self.setup.effects = Some(effects);
        self
    }

    /// A name for the work, to which the name is bound at its first start: see [`handler_name`](crate::consumer::DedupConsumerBuilder::handler_name).
    #[must_use]
    pub fn handler_name(mut self, name: &str) -> Self {
        self.setup.handler_name = Some(name.to_owned());
        self
    }

    /// The application's version, which is noted with each run. Defaults to idem's.
    #[must_use]
    pub fn version(mut self, version: &str) -> Self {
        self.setup.version = version.to_owned();
        self
    }

    /// The one tenant. Defaults to the empty one.
    #[must_use]
    pub fn tenant(mut self, tenant: Tenant) -> Self {
        self.setup.tenants = Tenants::One(tenant);
        self
    }

    /// Takes each operation's tenant from something that was authenticated: see [`tenant_of`](crate::consumer::DedupConsumerBuilder::tenant_of).
    #[must_use]
    pub fn tenant_of(mut self, function: impl Fn(&Message) -> Option<Tenant> + Send + Sync + 'static) -> Self {
        self.setup.tenants = Tenants::Of(Arc::new(function));
        self
    }

    /// Where keys come from. Defaults to the header and the JSON member `idempotencykey`.
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

    /// How payloads are hashed. Defaults to their raw bytes.
    #[must_use]
    pub fn hash_rules(mut self, rules: HashRules) -> Self {
        self.setup.hashes = rules;
        self
    }

    /// Where the work [publishes](crate::Tx::publish) to: see [`publishes_to`](crate::consumer::DedupConsumerBuilder::publishes_to).
    #[must_use]
    pub fn publishes_to(mut self, destinations: impl IntoIterator<Item = impl Into<Destination>>) -> Self {
        self.setup.publishing.destinations.extend(destinations.into_iter().map(Into::into));
        self
    }

    /// How many events one operation may publish. Defaults to 64.
    #[must_use]
    pub fn events_max(mut self, events: usize) -> Self {
        self.setup.publishing.events_max = events;
        self
    }

    /// How many bytes the payloads, headers and ordering keys of one operation's events may have. Defaults to 4 MiB.
    #[must_use]
    pub fn events_bytes_max(mut self, bytes: usize) -> Self {
        self.setup.publishing.events_bytes_max = bytes;
        self
    }

    /// How large a result may be, in bytes. Defaults to [`RESULT_BYTES_MAX`].
    #[must_use]
    pub fn keeps_results(mut self, bytes_max: usize) -> Self {
        self.setup.publishing.result_bytes_max = Some(bytes_max);
        self
    }

    /// How long results are kept: see [`answers_for`](crate::consumer::DedupConsumerBuilder::answers_for).
    #[must_use]
    pub fn answers_for(mut self, time: Retention) -> Self {
        self.setup.settings.answers_for = Some(time);
        self
    }

    /// Seals results with AES-256-GCM before they are written: see
    /// [`seals_results`](crate::consumer::DedupConsumerBuilder::seals_results).
    #[cfg(feature = "seal")]
    #[must_use]
    pub fn seals_results(mut self, keys: crate::results::aes_gcm::ResultKeys) -> Self {
        self.setup.seal = Some(Arc::new(keys));
        self
    }

    /// Lets work be [refused for good](crate::once::WorkError::final_result).
    ///
    /// A refusal is rolled back. One more short transaction claims the key again and keeps the outcome. If another process has recorded
    /// an outcome in between, the caller gets that one. So a refused operation may run once in each process that holds a caller of it at
    /// that moment, and it has one outcome for all.
    ///
    /// A result with a status from 400 to 499 is kept in the same way if a statement of the work has failed and the transaction cannot be
    /// committed, unless the work has [noted](crate::Tx::note_error) an error that may pass.
    #[must_use]
    pub fn final_errors(mut self) -> Self {
        self.final_errors = true;
        self
    }

    /// How long records are kept.
    #[must_use]
    pub fn retention(mut self, retention: Retention) -> Self {
        self.setup.settings.retention = retention;
        self
    }

    /// How long the work of one call may take. Required with [`Effects::Outside`].
    #[must_use]
    pub fn handler_deadline(mut self, deadline: Duration) -> Self {
        self.setup.settings.handler_deadline = deadline;
        self.setup.deadline_was_set = true;
        self
    }

    /// How long a call waits for another that has its key.
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

    /// The most headers of one operation.
    #[must_use]
    pub fn headers_max(mut self, headers: usize) -> Self {
        self.setup.settings.headers_max = headers;
        self
    }

    /// The most bytes of all names and values of one operation's headers.
    #[must_use]
    pub fn headers_bytes_max(mut self, bytes: usize) -> Self {
        self.setup.settings.headers_bytes_max = bytes;
        self
    }

    /// How many calls run at once, each on a connection of its own.
    #[must_use]
    pub fn lanes(mut self, lanes: usize) -> Self {
        self.setup.settings.lanes = lanes;
        self
    }

    /// Builds the [`RunOnce`], which keeps its results. It does not connect yet.
    ///
    /// # Errors
    /// [`ConfigError`] with field, value and rule.
    pub fn build(mut self) -> Result<RunOnce<S>, ConfigError> {
        self.setup.publishing.result_bytes_max.get_or_insert(RESULT_BYTES_MAX);
        let engine = Arc::new(self.setup.build(Work::OfCall)?);
        let calls = Arc::new(Calls::new(&engine.name, self.final_errors));
        Ok(RunOnce { engine, calls })
    }
}
