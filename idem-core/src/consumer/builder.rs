//! Builds a [`DedupConsumer`], refusing settings that break a rule.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    sync::{Arc, Mutex, OnceLock, atomic::AtomicU32},
    time::Duration,
};

use tokio::sync::{OnceCell, Semaphore};

use crate::{
    clock::DatabaseClock,
    config::{Concurrency, ConsumerSettings, Effects},
    config_error::ConfigError,
    consumer::{
        DedupConsumer, Inner, Tenants, conflicts::Conflicts, destinations::Destinations, repeats::Repeats,
        run_once::RunOnce, shared_units::SharedUnits, transaction_use::TransactionUse,
    },
    handler::{BatchHandler, Handler, Work},
    hash::HashRules,
    key::{KeyPolicy, KeySource, default_key_source},
    message::Message,
    names::{ConsumerName, Retention, Tenant},
    outbox::{collect::PublishRules, event::Destination},
    pause::IntakeGate,
    results::{encrypt::Seal, result::RESULT_BYTES_MAX},
    store::{Store, StoreCapabilities},
    telemetry::handles::UnitMetrics,
};

/// Settings of a [`DedupConsumer`]; see [`ConsumerSettings`] for defaults and limits.
pub struct DedupConsumerBuilder<S: Store> {
    store: Arc<S>,
    name: String,
    handler_name: Option<String>,
    version: String,
    tenants: Tenants,
    keys: Arc<dyn KeySource>,
    key_policy: KeyPolicy,
    hashes: HashRules,
    work: Option<Work<S>>,
    effects: Option<Effects>,
    deadline_was_set: bool,
    unprotected: HashSet<String>,
    publishing: PublishRules,
    seal: Option<Arc<dyn Seal>>,
    final_errors: bool,
    settings: ConsumerSettings,
}

impl<S: Store> fmt::Debug for DedupConsumerBuilder<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DedupConsumerBuilder")
            .field("name", &self.name)
            .field("effects", &self.effects)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

impl<S: Store> DedupConsumerBuilder<S> {
    pub(super) fn new(store: Arc<S>, name: &str) -> Self {
        let settings = ConsumerSettings::new(store.capabilities().lanes_max);
        Self {
            store,
            name: name.to_owned(),
            handler_name: None,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            tenants: Tenants::One(Tenant::default()),
            keys: default_key_source(),
            key_policy: KeyPolicy::default(),
            hashes: HashRules::default(),
            work: None,
            effects: None,
            deadline_was_set: false,
            unprotected: HashSet::new(),
            publishing: PublishRules::default(),
            seal: None,
            final_errors: false,
            settings,
        }
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
        self.effects = Some(effects);
        self
    }

    /// How the handlers of one unit run. Defaults to one after the other.
    #[must_use]
    pub fn handlers(mut self, handlers: Concurrency) -> Self {
        self.settings.handlers = handlers;
        self
    }

    /// Handles one message a unit, for a handler that sets things for its transaction: a role, a search path, a tenant for row
    /// level security. One handler's settings hold for those after it in the same transaction, see the contract of
    /// [`Handler`]. Each message then costs a transaction of its own.
    #[must_use]
    pub fn units_of_one(mut self) -> Self {
        self.settings.units_of_one = true;
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
        self.settings.shared_unit_max = Some(messages_max);
        self
    }

    /// A name for the handler, to which the consumer is bound at its first start: another handler under the same
    /// consumer's name is then refused, because it would see the first one's messages as duplicates. Not bound unless
    /// set; keep it over versions of one handler.
    #[must_use]
    pub fn handler_name(mut self, name: &str) -> Self {
        self.handler_name = Some(name.to_owned());
        self
    }

    /// The application's version, which is noted with each run and so with each record. Defaults to idem's.
    #[must_use]
    pub fn version(mut self, version: &str) -> Self {
        self.version = version.to_owned();
        self
    }

    /// The one tenant of this consumer. Defaults to the empty one.
    #[must_use]
    pub fn tenant(mut self, tenant: Tenant) -> Self {
        self.tenants = Tenants::One(tenant);
        self
    }

    /// Takes each message's tenant from something that was authenticated, such as a header that only the broker's
    /// gateway can set; `None` makes the message malformed. Never take it from the payload alone.
    #[must_use]
    pub fn tenant_of(mut self, function: impl Fn(&Message) -> Option<Tenant> + Send + Sync + 'static) -> Self {
        self.tenants = Tenants::Of(Arc::new(function));
        self
    }

    /// Where keys come from. Defaults to [`default_key_source`].
    #[must_use]
    pub fn key_source(mut self, source: impl KeySource) -> Self {
        self.keys = Arc::new(source);
        self
    }

    /// The form that keys must have. Defaults to any token.
    #[must_use]
    pub fn key_policy(mut self, policy: KeyPolicy) -> Self {
        self.key_policy = policy;
        self
    }

    /// How payloads are hashed. Defaults to their raw bytes. Under a [`Router`](crate::Router) the type is hashed with
    /// them, as [`WithType`](crate::WithType) does it.
    #[must_use]
    pub fn hash_rules(mut self, rules: HashRules) -> Self {
        self.hashes = rules;
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
        self.unprotected.insert(message_type.to_owned());
        self
    }

    /// Where the handler [publishes](crate::Tx::publish) to: it can publish to nothing else, so an unknown name is found as the
    /// handler runs, and not when the event should leave. Adds to earlier declarations.
    #[must_use]
    pub fn publishes_to(mut self, destinations: impl IntoIterator<Item = impl Into<Destination>>) -> Self {
        self.publishing.destinations.extend(destinations.into_iter().map(Into::into));
        self
    }

    /// How many events one message may publish. Defaults to 64.
    #[must_use]
    pub fn events_max(mut self, events: usize) -> Self {
        self.publishing.events_max = events;
        self
    }

    /// How many bytes the payloads, headers and ordering keys of one message's events may have. Defaults to 4 MiB.
    #[must_use]
    pub fn events_bytes_max(mut self, bytes: usize) -> Self {
        self.publishing.events_bytes_max = bytes;
        self
    }

    /// Keeps the results that handlers set with [`Tx::set_result`](crate::Tx::set_result) beside the records, of at most this
    /// many bytes each ([`RESULT_BYTES_MAX`](crate::results::RESULT_BYTES_MAX) is a good choice). A larger one is a permanent
    /// error, before anything is committed.
    #[must_use]
    pub fn keeps_results(mut self, bytes_max: usize) -> Self {
        self.publishing.result_bytes_max = Some(bytes_max);
        self
    }

    /// How long results are kept; their records stay for the [`retention`](Self::retention). Defaults to 24 hours, or to the retention
    /// where that is shorter; from 1 minute to the retention. Cleanup removes older ones, all but kind, status and
    /// [reference](crate::ResultBody::reference): a later call then answers [`NotKept::Expired`](crate::NotKept::Expired), and
    /// nothing runs again.
    #[must_use]
    pub fn answers_for(mut self, time: Retention) -> Self {
        self.settings.answers_for = Some(time);
        self
    }

    /// Seals results with AES-256-GCM before they are written, so that they cannot be read in the database, in a replica or in
    /// a backup. Results that were kept before stay readable.
    #[cfg(feature = "seal")]
    #[must_use]
    pub fn seals_results(mut self, keys: crate::results::aes_gcm::ResultKeys) -> Self {
        self.seal = Some(Arc::new(keys));
        self
    }

    /// Lets work be [refused for good](crate::WorkError::final_result), for [`build_once`](Self::build_once).
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
        self.settings.retention = retention;
        self
    }

    /// How long one call of the handler may take. Required with [`Effects::Outside`].
    #[must_use]
    pub fn handler_deadline(mut self, deadline: Duration) -> Self {
        self.settings.handler_deadline = deadline;
        self.deadline_was_set = true;
        self
    }

    /// How long a claim waits for others that hold its keys.
    #[must_use]
    pub fn busy_timeout(mut self, timeout: Duration) -> Self {
        self.settings.busy_timeout = timeout;
        self
    }

    /// How long a commit may take before its outcome counts as unknown.
    #[must_use]
    pub fn commit_timeout(mut self, timeout: Duration) -> Self {
        self.settings.commit_timeout = timeout;
        self
    }

    /// How long the database may take to answer beyond the limits it was given.
    #[must_use]
    pub fn answer_timeout(mut self, timeout: Duration) -> Self {
        self.settings.answer_timeout = timeout;
        self
    }

    /// The largest payload, in bytes.
    #[must_use]
    pub fn payload_bytes_max(mut self, bytes: usize) -> Self {
        self.settings.payload_bytes_max = bytes;
        self
    }

    /// The most headers of one message. A message with more is dead-lettered as `too-large`.
    #[must_use]
    pub fn headers_max(mut self, headers: usize) -> Self {
        self.settings.headers_max = headers;
        self
    }

    /// The most bytes of all names and values of one message's headers.
    #[must_use]
    pub fn headers_bytes_max(mut self, bytes: usize) -> Self {
        self.settings.headers_bytes_max = bytes;
        self
    }

    /// How many units run side by side, each on a connection of its own.
    #[must_use]
    pub fn lanes(mut self, lanes: usize) -> Self {
        self.settings.lanes = lanes;
        self
    }

    /// Builds the consumer. It does not connect yet.
    ///
    /// # Errors
    /// [`ConfigError`] with field, value and rule.
    pub fn build(mut self) -> Result<DedupConsumer<S>, ConfigError> {
        let rule = "a consumer needs a handler: call .handler(…) or .batch_handler(…)";
        let work = self.work.take().ok_or_else(|| ConfigError::new("handler", "not set", rule))?;
        if self.final_errors {
            let rule = "a handler's message would be acknowledged without its effect: only .build_once() takes it";
            return Err(ConfigError::new("final_errors", "set", rule));
        }
        self.with_work(work)
    }

    /// Builds a [`RunOnce`] for work that each call brings along, and keeps its results: of at most [`RESULT_BYTES_MAX`]
    /// each, unless [`keeps_results`](Self::keeps_results) says otherwise. It does not connect yet.
    ///
    /// # Errors
    /// [`ConfigError`] with field, value and rule.
    pub fn build_once(mut self) -> Result<RunOnce<S>, ConfigError> {
        let rule = ".build_once() runs the work of each call, one message a unit: leave it out";
        for (field, is_set) in [
            ("handler", self.work.is_some()),
            ("handlers", self.settings.handlers != Concurrency::InOrder),
            ("shares_units", self.settings.shared_unit_max.is_some()),
            ("unprotected_type", !self.unprotected.is_empty()),
        ] {
            if is_set {
                return Err(ConfigError::new(field, "set", rule));
            }
        }
        self.publishing.result_bytes_max.get_or_insert(RESULT_BYTES_MAX);
        let final_errors = self.final_errors;
        let gate = Arc::new(IntakeGate::new());
        Ok(RunOnce { inner: self.with_work(Work::OfCall)?.inner, final_errors, gate })
    }

    fn with_work(self, work: Work<S>) -> Result<DedupConsumer<S>, ConfigError> {
        let name = ConsumerName::new(&self.name).map_err(|_| {
            ConfigError::new(
                "name",
                format!("{:?}", self.name),
                "it must have 1 to 100 bytes without control characters",
            )
        })?;
        let rule = "there is no safe default: say Effects::InTransaction if the handler only writes through its \
                    transaction, Effects::Outside if it calls other systems";
        let effects = self.effects.ok_or_else(|| ConfigError::new("effects", "not set", rule))?;
        if effects == Effects::Outside && !self.deadline_was_set {
            let rule = "a handler with Effects::Outside needs one, because nothing else bounds its calls";
            return Err(ConfigError::new("handler_deadline", "not set", rule));
        }
        if effects == Effects::Outside && matches!(work, Work::Batch(_)) {
            let rule = "Effects::Outside handles one message a unit: use .handler(…)";
            return Err(ConfigError::new("batch_handler", "set", rule));
        }
        if self.settings.shared_unit_max.is_some() && (effects == Effects::Outside || self.settings.units_of_one) {
            return Err(shares_no_units());
        }
        let capabilities = self.store.capabilities();
        if self.settings.handlers != Concurrency::InOrder {
            check_pipelined(effects, &work, capabilities.concurrent_handlers)?;
        }
        check_publishing(&self.publishing, self.settings.answers_for.is_some(), capabilities)?;
        self.settings.check(capabilities.lanes_max)?;
        let hashes = match work.dispatches_by() {
            Some(place) => self.hashes.with_type(&place),
            None => self.hashes,
        };
        let inner = Inner {
            store: self.store,
            metrics: UnitMetrics::of(&name),
            conflicts: Conflicts::of(&name),
            turns: Arc::default(),
            repeats: Repeats::default(),
            source: OnceLock::new(),
            name,
            handler_name: self.handler_name,
            version: self.version,
            tenants: self.tenants,
            keys: self.keys,
            key_policy: self.key_policy,
            hashes,
            work,
            effects,
            unprotected: self.unprotected,
            publishing: self.publishing,
            seal: self.seal,
            destinations: Destinations::default(),
            published: Arc::default(),
            settings: self.settings,
            clock: DatabaseClock::new(),
            open: Arc::default(),
            registered: OnceCell::new(),
            attached: OnceLock::new(),
            scopes: Mutex::new(HashMap::new()),
            server: Mutex::new(None),
            idle: Mutex::new(Vec::new()),
            slots: Arc::new(Semaphore::new(self.settings.lanes)),
            shared_units: self.settings.shared_unit_max.map(|max| SharedUnits::new(max, self.settings.lanes)),
            transaction_use: TransactionUse::default(),
            no_winner: AtomicU32::new(0),
        };
        Ok(DedupConsumer { inner: Arc::new(inner) })
    }
}

/// The error where messages or calls are to share units but each needs its own.
pub(super) fn shares_no_units() -> ConfigError {
    let rule = "Effects::Outside and .units_of_one() handle one message a unit: leave .shares_units(…) out";
    ConfigError::new("shares_units", "set", rule)
}

/// Refuses settings for which the store has no table, and those under which nothing could be published.
fn check_publishing(
    rules: &PublishRules,
    answers_end: bool,
    capabilities: StoreCapabilities,
) -> Result<(), ConfigError> {
    if !rules.destinations.is_empty() && !capabilities.outbox {
        let rule = "this store has no outbox: leave .publishes_to(…) out, or use a store that has one";
        return Err(ConfigError::new("publishes_to", "set", rule));
    }
    if rules.result_bytes_max.is_some() && !capabilities.results {
        let rule = "this store keeps no results: leave .keeps_results(…) out, or use a store that does";
        return Err(ConfigError::new("keeps_results", "set", rule));
    }
    if answers_end && rules.result_bytes_max.is_none() {
        let rule = "this consumer keeps no results: call .keeps_results(…), or leave .answers_for(…) out";
        return Err(ConfigError::new("answers_for", "set", rule));
    }
    let mut names = HashSet::new();
    for destination in &rules.destinations {
        destination.check()?;
        if !names.insert(&destination.name) {
            let rule = "each destination is declared once";
            return Err(ConfigError::new("publishes_to", format!("{:?} twice", destination.name), rule));
        }
    }
    for (name, value) in [("events_max", rules.events_max), ("events_bytes_max", rules.events_bytes_max)] {
        if value == 0 {
            return Err(ConfigError::new(name, value, "at least 1"));
        }
    }
    Ok(())
}

/// Refuses handlers at once where effects, work or store do not allow it.
fn check_pipelined<S: Store>(effects: Effects, work: &Work<S>, is_offered: bool) -> Result<(), ConfigError> {
    let rule = if effects == Effects::Outside {
        "Effects::Outside handles one message a unit: use Concurrency::InOrder"
    } else if matches!(work, Work::Batch(_)) {
        "a batch handler is called once a unit: use Concurrency::InOrder, or .handler(…)"
    } else if !is_offered {
        "this store does not share its transaction: use Concurrency::InOrder, or a store that does (idem-tokio-postgres)"
    } else {
        return Ok(());
    };
    Err(ConfigError::new("handlers", "Concurrency::Pipelined", rule))
}
