//! Builds a [`Worker`], refusing settings that break a rule.

use std::{fmt, sync::Arc, time::Duration};

use crate::{
    cleanup::CleanupSettings,
    config::{OlderThanRetention, OnConflict, OnUnkeepable, WorkerSettings},
    config_error::ConfigError,
    consumer::DedupConsumer,
    dead_letter::Publisher,
    relay::{Relay, settings::RelayBuilder},
    retry::RetryPolicy,
    source::Source,
    store::Store,
    worker::Worker,
};

/// Settings of a [`Worker`]; see [`WorkerSettings`] for defaults and limits.
pub struct WorkerBuilder<S: Store, B: Source> {
    consumer: DedupConsumer<S>,
    source: Arc<B>,
    publisher: Option<Arc<dyn Publisher>>,
    relay: Option<Result<RelayBuilder, ConfigError>>,
    settings: WorkerSettings,
}

impl<S: Store, B: Source> fmt::Debug for WorkerBuilder<S, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerBuilder").field("settings", &self.settings).finish_non_exhaustive()
    }
}

macro_rules! worker_settings {
    ($($(#[$doc:meta])* $name:ident: $type:ty),* $(,)?) => {$(
        $(#[$doc])*
        #[must_use]
        pub fn $name(mut self, value: $type) -> Self {
            self.settings.$name = value;
            self
        }
    )*};
}

impl<S: Store, B: Source> WorkerBuilder<S, B> {
    pub(super) fn new(consumer: DedupConsumer<S>, source: Arc<B>) -> Self {
        Self { consumer, source, publisher: None, relay: None, settings: WorkerSettings::default() }
    }

    worker_settings! {
        /// How many messages one unit holds at most.
        batch: usize,
        /// How many messages are received and not yet settled at most.
        in_flight: usize,
        /// How many bytes they take at most.
        in_flight_bytes: usize,
        /// Attempts and back-off.
        retry: RetryPolicy,
        /// How long a message waits for a statement that the database cannot serve, before its attempts count.
        database_wait_max: Duration,
        /// The policy for a message whose key was used before for another payload.
        on_conflict: OnConflict,
        /// The policy for a message that is older than its record would be kept.
        older_than_retention: OlderThanRetention,
        /// How long a stop waits for running units.
        drain: Duration,
        /// How long the start waits for a database or broker that cannot be reached.
        startup_timeout: Duration,
        /// Cleanup inside this worker; `None` turns it off.
        cleanup: Option<CleanupSettings>,
        /// Whether many dead letters in a row pause intake.
        breaker: bool,
        /// How often the controls that operators set are read.
        control_every: Duration,
        /// After how long with intake closed messages that were not begun go back to a broker that counts held messages.
        give_back_after: Duration,
        /// Whether to refuse a retention below the broker's redelivery horizon.
        strict_retention: bool,
        /// The largest payload that a row of `dead_letters` keeps, in bytes.
        dead_letter_payload_bytes_max: usize,
        /// How many bytes the dead letters of the consumer take at most; `None` for no limit.
        dead_letters_bytes_max: Option<u64>,
        /// The policy for a message whose payload neither a row nor a publisher has.
        on_unkeepable: OnUnkeepable,
        /// How many bytes the keys take that [`cache_for`](Self::cache_for) remembers, at most.
        cache_bytes_max: usize,
    }

    /// Sets any of the settings at once, for code that passes a closure through.
    #[must_use]
    pub fn settings(mut self, set: impl FnOnce(&mut WorkerSettings)) -> Self {
        set(&mut self.settings);
        self
    }

    /// Ends the run once the source is at its end and nothing is unsettled for this long.
    #[must_use]
    pub fn until_idle(mut self, idle_for: Duration) -> Self {
        self.settings.until_idle = Some(idle_for);
        self
    }

    /// Remembers committed keys for this long, so that their duplicates are acknowledged without asking the database.
    #[must_use]
    pub fn cache_for(mut self, time: Duration) -> Self {
        self.settings.cache_for = Some(time);
        self
    }

    /// Publishes dead letters there too, after they are stored.
    #[must_use]
    pub fn publisher(mut self, publisher: impl Publisher) -> Self {
        self.publisher = Some(Arc::new(publisher));
        self
    }

    /// Relays events too: `routes` says which destinations' events it brings where. It is woken by the worker's own commits,
    /// goes on while the consumer is paused or halted, and in a drain sends the events that the worker has committed, as far
    /// as the drain deadline allows. [`until_idle`](Self::until_idle) waits for it.
    ///
    /// Its events may also be those of other consumers of the same store: a destination has one relay at a time,
    /// whichever consumers publish to it.
    #[must_use]
    pub fn relay(mut self, routes: impl FnOnce(RelayBuilder) -> RelayBuilder) -> Self {
        let rule = "a relay needs a store with an outbox";
        let outbox = self.consumer.engine.store.outbox();
        let outbox = outbox.ok_or_else(|| ConfigError::new("relay", "this store", rule));
        self.relay = Some(outbox.map(|outbox| routes(Relay::builder(outbox).of_store::<S>())));
        self
    }

    /// Builds the worker. It does not connect yet.
    ///
    /// # Errors
    /// [`ConfigError`] with field, value and rule.
    pub fn build(self) -> Result<Worker<S, B>, ConfigError> {
        self.settings.check(&self.consumer.engine.settings)?;
        let later = self.settings.retry.later.delays();
        if !later.is_empty() && !self.consumer.engine.store.capabilities().sets_aside {
            let rule =
                "the consumer's store keeps no message until a later try: leave it empty, or use a store that does";
            return Err(ConfigError::new("retry.later", format!("{later:?}"), rule));
        }
        let engine = &self.consumer.engine;
        let build = |relay: RelayBuilder| relay.build_for(Some(engine.name.clone()));
        let relay = self.relay.transpose()?.map(build).transpose()?;
        let relay = relay.map(|relay| relay.woken_by(Arc::clone(&engine.published)));
        Ok(Worker::new(self.consumer, self.source, self.publisher, relay, self.settings))
    }
}
