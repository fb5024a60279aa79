//! [`Setup`]: the settings that all builders of an [`Engine`] have, and the rules that they must keep.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU32},
    },
};

use tokio::sync::{OnceCell, Semaphore};

use crate::{
    clock::DatabaseClock,
    config::{Concurrency, ConsumerSettings, Effects, LANES_OF_ONE_MESSAGE},
    config_error::ConfigError,
    handler::Work,
    hash::HashRules,
    key::{KeyPolicy, KeySource, default_key_source},
    names::{ConsumerName, Tenant},
    outbox::collect::PublishRules,
    results::encrypt::Seal,
    store::{Store, StoreCapabilities},
    telemetry::handles::UnitMetrics,
    unit::{
        engine::{Destinations, Engine, Tenants},
        unused_tx::TransactionUse,
    },
};

/// Settings of an [`Engine`]; see [`ConsumerSettings`] for defaults and limits.
pub(crate) struct Setup<S: Store> {
    store: Arc<S>,
    pub(crate) name: String,
    pub(crate) handler_name: Option<String>,
    pub(crate) version: String,
    pub(crate) tenants: Tenants,
    pub(crate) keys: Arc<dyn KeySource>,
    pub(crate) key_policy: KeyPolicy,
    pub(crate) hashes: HashRules,
    pub(crate) effects: Option<Effects>,
    pub(crate) deadline_was_set: bool,
    pub(crate) unprotected: HashSet<String>,
    pub(crate) publishing: PublishRules,
    pub(crate) seal: Option<Arc<dyn Seal>>,
    pub(crate) settings: ConsumerSettings,
}

impl<S: Store> Setup<S> {
    pub(crate) fn new(store: Arc<S>, name: &str) -> Self {
        let capabilities = store.capabilities();
        let mut settings = ConsumerSettings::new(capabilities.lanes_max);
        if capabilities.messages_max == Some(1) {
            settings.lanes = LANES_OF_ONE_MESSAGE.min(capabilities.lanes_max.unwrap_or(usize::MAX));
        }
        Self {
            store,
            name: name.to_owned(),
            handler_name: None,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            tenants: Tenants::One(Tenant::default()),
            keys: default_key_source(),
            key_policy: KeyPolicy::default(),
            hashes: HashRules::default(),
            effects: None,
            deadline_was_set: false,
            unprotected: HashSet::new(),
            publishing: PublishRules::default(),
            seal: None,
            settings,
        }
    }

    /// The engine of these settings, which runs this work.
    pub(crate) fn build(mut self, work: Work<S>) -> Result<Engine<S>, ConfigError> {
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
        let calls_outside = effects == Effects::Outside || work.calls_outside(None);
        if calls_outside && !self.deadline_was_set {
            let rule = "a handler with Effects::Outside needs one, because nothing else bounds its calls";
            return Err(ConfigError::new("handler_deadline", "not set", rule));
        }
        if effects == Effects::Outside && matches!(work, Work::Batch(_)) {
            let rule = "Effects::Outside handles one message a unit: use .handler(…)";
            return Err(ConfigError::new("batch_handler", "set", rule));
        }
        if self.settings.shared_unit_max.is_some() && (calls_outside || self.settings.one_message_per_transaction) {
            return Err(shares_no_units());
        }
        let capabilities = self.store.capabilities();
        self.settings.one_message_per_transaction |= capabilities.messages_max == Some(1);
        if self.settings.handlers != Concurrency::InOrder {
            check_pipelined(effects, &work, capabilities.concurrent_handlers)?;
        }
        check_messages_max(&work, self.settings.shared_unit_max, capabilities.messages_max)?;
        check_effects(effects, calls_outside, capabilities)?;
        check_publishing(&self.publishing, self.settings.result_retention.is_some(), capabilities)?;
        self.settings.check(capabilities.lanes_max)?;
        let hashes = match work.dispatches_by() {
            Some(place) => self.hashes.with_type(&place),
            None => self.hashes,
        };
        Ok(Engine {
            store: self.store,
            metrics: UnitMetrics::of(&name),
            source: OnceLock::new(),
            consumed: OnceLock::new(),
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
            publishing: Arc::new(self.publishing),
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
            transaction_use: TransactionUse::default(),
            no_winner: AtomicU32::new(0),
            anything_waits: AtomicBool::new(false),
        })
    }
}

/// Refuses settings for which the store has no table, and those under which nothing could be published.
fn check_publishing(
    rules: &PublishRules,
    answers_end: bool,
    capabilities: StoreCapabilities,
) -> Result<(), ConfigError> {
    if !rules.destinations.is_empty() && !capabilities.outbox {
        let rule = "this store has no outbox: leave .publish_to(…) out, or use a store that has one";
        return Err(ConfigError::new("publish_to", "set", rule));
    }
    if rules.result_bytes_max.is_some() && !capabilities.results {
        let rule = "this store keeps no results: leave .keep_results(…) out, or use a store that does";
        return Err(ConfigError::new("keep_results", "set", rule));
    }
    if answers_end && rules.result_bytes_max.is_none() {
        let rule = "this consumer keeps no results: call .keep_results(…), or leave .result_retention(…) out";
        return Err(ConfigError::new("result_retention", "set", rule));
    }
    let mut names = HashSet::new();
    for destination in &rules.destinations {
        destination.check()?;
        if !names.insert(&destination.name) {
            let rule = "each destination is declared once";
            return Err(ConfigError::new("publish_to", format!("{:?} twice", destination.name), rule));
        }
    }
    for (name, value) in [("events_max", rules.events_max), ("events_bytes_max", rules.events_bytes_max)] {
        if value == 0 {
            return Err(ConfigError::new(name, value, "at least 1"));
        }
    }
    Ok(())
}

/// Refuses effects that the store can neither commit with the record nor keep to one handler at a time.
fn check_effects(effects: Effects, calls_outside: bool, capabilities: StoreCapabilities) -> Result<(), ConfigError> {
    if effects == Effects::InTransaction && !capabilities.joins_effects {
        let rule = "this store commits no writes of a handler together with the record: use Effects::Outside, or a store that does";
        return Err(ConfigError::new("effects", "Effects::InTransaction", rule));
    }
    if calls_outside && capabilities.leases {
        let rule = "a claim of this store is a lease, which may end while a handler still calls another system: use \
                    Effects::InTransaction, or a store that holds a key until its transaction has ended";
        return Err(ConfigError::new("effects", "Effects::Outside", rule));
    }
    Ok(())
}

/// Refuses what needs units of more messages than the store takes.
fn check_messages_max<S: Store>(work: &Work<S>, shared: Option<usize>, max: Option<usize>) -> Result<(), ConfigError> {
    let Some(max) = max else { return Ok(()) };
    if max == 1 && matches!(work, Work::Batch(_)) {
        let rule = "this store handles one message a unit: use .handler(…)";
        return Err(ConfigError::new("batch_handler", "set", rule));
    }
    match shared {
        Some(shared) if shared > max => {
            let rule =
                "a unit of this store holds fewer messages: use a smaller number, or leave .coalesce_calls(…) out";
            Err(ConfigError::new("coalesce_calls", shared, rule))
        }
        Some(_) | None => Ok(()),
    }
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

/// The error where messages or calls are to share units but each needs its own.
fn shares_no_units() -> ConfigError {
    let rule =
        "Effects::Outside and .one_message_per_transaction() handle one message a unit: leave .coalesce_calls(…) out";
    ConfigError::new("coalesce_calls", "set", rule)
}
