//! [`Engine`]: what units need of their consumer.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU32},
    },
};

use tokio::{
    sync::{Notify, OnceCell, Semaphore},
    time::Instant,
};

use crate::{
    caught::caught,
    clock::DatabaseClock,
    config::{ConsumerSettings, Effects},
    dead_letter::Reason,
    error::{ErrorClass, chain},
    handler::Work,
    handler_error::{HandlerError, UnknownTypeError},
    hash::{HashRules, PayloadHash},
    key::{KeyPolicy, KeySource},
    message::{Message, decode_error::DecodePayloadError},
    names::{ConsumerName, HashRuleId, ScopeId, Tenant},
    outbox::{collect::PublishRules, event::PublishError, limits::DestinationLimits, rows::DestinationId},
    outcome::Failure,
    results::encrypt::Seal,
    source::Attached,
    store::{
        Store, StoreIdentity,
        describe::{code, one_line},
        registration::Registered,
    },
    telemetry::{
        handles::{ConsumedMetrics, UnitMetrics},
        spans::Destination,
    },
    unit::{
        open_units::OpenUnits,
        unused_tx::{TransactionUse, UNUSED_MAX},
    },
};

/// Where a message's tenant comes from.
pub(crate) enum Tenants {
    One(Tenant),
    Of(Arc<TenantFn>),
}

pub(crate) type TenantFn = dyn Fn(&Message) -> Option<Tenant> + Send + Sync;

/// A consumer as its units need it.
pub(crate) struct Engine<S: Store> {
    pub(crate) store: Arc<S>,
    pub(crate) name: ConsumerName,
    pub(crate) handler_name: Option<String>,
    pub(super) version: String,
    pub(super) tenants: Tenants,
    pub(crate) keys: Arc<dyn KeySource>,
    pub(super) key_policy: KeyPolicy,
    pub(super) hashes: HashRules,
    pub(crate) work: Work<S>,
    pub(crate) effects: Effects,
    pub(super) unprotected: HashSet<String>,
    pub(crate) settings: ConsumerSettings,
    pub(crate) metrics: UnitMetrics,
    pub(crate) clock: DatabaseClock,
    pub(crate) open: Arc<OpenUnits>,
    /// The source of a worker's messages, for spans; unset without a worker.
    pub(crate) source: OnceLock<Destination>,
    /// Its metrics by the messaging conventions, once the source is known.
    pub(crate) consumed: OnceLock<ConsumedMetrics>,
    /// The facts about its broker that this source found.
    pub(super) attached: OnceLock<Attached>,
    /// The destinations that handlers may publish to, and the limits of events and results.
    pub(crate) publishing: Arc<PublishRules>,
    /// The seal of results.
    pub(super) seal: Option<Arc<dyn Seal>>,
    pub(super) destinations: Destinations,
    /// Notified after each commit of a unit that handed something in; a relay in this process waits for it.
    pub(crate) published: Arc<Notify>,
    pub(crate) registered: OnceCell<Registered>,
    pub(super) scopes: Mutex<HashMap<Tenant, ScopeId>>,
    /// The server that has all of them, where the consumer publishes.
    pub(super) server: Mutex<Option<StoreIdentity>>,
    /// Sessions of ours that are not in use, and a permit for each that may exist.
    pub(super) idle: Mutex<Vec<S::Session>>,
    pub(super) slots: Arc<Semaphore>,
    /// Whether handlers use their transaction.
    pub(crate) transaction_use: TransactionUse,
    /// Units in a row that found no winner; see [`run`](super::run).
    pub(super) no_winner: AtomicU32,
    /// Whether rows of any ordering key were not over when a key was last claimed. Units then ask what is ahead of their messages.
    pub(crate) anything_waits: AtomicBool,
}

impl<S: Store> Engine<S> {
    /// Whether messages share a unit: calls to other systems must not be repeated for a neighbour's sake, and one handler's
    /// settings of its transaction hold for the next.
    pub(crate) fn coalesce_calls(&self) -> bool {
        self.effects == Effects::InTransaction && !self.settings.one_message_per_transaction
    }

    /// Whether this message runs alone, because its handler calls other systems for it.
    pub(crate) fn calls_outside(&self, message: &Message) -> bool {
        self.effects == Effects::Outside || self.work.calls_outside(Some(message))
    }

    /// The hashes of a message by the rule that a record carries, where this build knows it.
    pub(super) fn rehash(&self, message: &Message, rule: HashRuleId) -> Option<Vec<PayloadHash>> {
        let known = &self.registered.get()?.hash_rules;
        let index = known.iter().position(|id| *id == rule)?;
        let rule = self.hashes.all().nth(index)?;
        caught(|| {
            let hash = rule.hash(message).ok()?;
            Some(std::iter::once(hash).chain(rule.also(message)).collect())
        })?
    }

    /// Reads a handler's error; its text quotes no payload, statement or row.
    pub(crate) fn failure(&self, error: HandlerError) -> Failure {
        // The error is the user's code too: its texts and sources are asked for outside of the handler's run.
        let judged = caught(|| {
            // A refused event or result is refused each time.
            let is_refused = chain(error.inner()).any(|link| link.is::<PublishError>());
            let class = if is_refused { ErrorClass::Permanent } else { error.class_by(S::classify) };
            let reason = if error.downcast_ref::<DecodePayloadError>().is_some() {
                Reason::Malformed
            } else if error.downcast_ref::<UnknownTypeError>().is_some() {
                Reason::UnknownType
            } else if class == ErrorClass::Permanent {
                Reason::Permanent
            } else {
                Reason::AttemptsExhausted
            };
            (class, reason, code::<S>(error.inner()).or_else(|| own_cause(&error).map(str::to_owned)))
        });
        let (class, reason, code) = judged.unwrap_or((ErrorClass::Transient, Reason::AttemptsExhausted, None));
        let text = caught(|| one_line::<S>(error.inner()))
            .unwrap_or_else(|| "the handler's error could not be printed: it panicked".to_owned());
        Failure { class, reason, text, code, retry_after: error.wanted_after(), error: Some(error) }
    }

    /// Notes whether a call that went well has used its transaction.
    pub(super) fn note_use(&self, is_used: bool) {
        if self.effects == Effects::InTransaction
            && !self.work.calls_outside(None)
            && self.transaction_use.note(is_used)
        {
            tracing::warn!(
                idem.consumer = %self.name,
                "the handler has taken no connection from its transaction for its first {UNUSED_MAX} messages, and published \
                 nothing: what it does elsewhere happens at least once. Write through tx.connection(), or say Effects::Outside; a \
                 handler that is to do nothing is right as it is"
            );
        }
    }
}

/// The destinations of a consumer, in the order of its rules.
#[derive(Debug, Default)]
pub(crate) struct Destinations {
    /// Their ids. Known once the consumer is registered.
    pub(super) ids: OnceLock<Vec<DestinationId>>,
    pub(super) limits: Mutex<Limits>,
}

/// What they take, as far as their relays had said it when their rows were last read, and when that was.
#[derive(Debug, Default)]
pub(super) struct Limits {
    pub(super) all: Vec<Option<DestinationLimits>>,
    pub(super) read_at: Option<Instant>,
}

/// The cause that the handler named, or that an error of core's stands for.
fn own_cause(error: &HandlerError) -> Option<&str> {
    let decoding = || error.downcast_ref::<DecodePayloadError>().map(DecodePayloadError::cause);
    let publishing = || error.downcast_ref::<PublishError>().map(PublishError::cause);
    let typing = || error.downcast_ref::<UnknownTypeError>().filter(|error| error.0.is_none()).map(|_| "no-type");
    error.code().or_else(decoding).or_else(publishing).or_else(typing)
}
