//! [`DedupConsumer`]: decides for each message whether it is new, and runs the handler where it is.

pub(crate) mod answers;
mod append;
pub(crate) mod builder;
mod claim;
mod conflicts;
mod controls;
mod dedupe;
mod destinations;
pub(crate) mod guard;
mod handlers;
pub(crate) mod identify;
mod isolate;
pub(crate) mod kept;
pub(crate) mod lookup;
pub(crate) mod open_units;
pub(crate) mod outcomes;
#[cfg(feature = "bugs")]
mod planted;
mod repeats;
pub(crate) mod run_once;
pub(crate) mod set_aside;
mod shared_units;
mod transaction_use;
mod turns;
pub(crate) mod unit;

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    fmt,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, atomic::AtomicU32},
};

use tokio::sync::{Notify, OnceCell, OwnedSemaphorePermit, Semaphore};

use crate::{
    bugs::{self, Bug},
    caught::caught,
    clock::DatabaseClock,
    config::{ConsumerSettings, Effects},
    consumer::{
        answers::{Answers, Decided},
        builder::DedupConsumerBuilder,
        conflicts::Conflicts,
        destinations::Destinations,
        open_units::OpenUnits,
        repeats::Repeats,
        shared_units::SharedUnits,
        transaction_use::TransactionUse,
        turns::Turns,
    },
    dead_letter::Reason,
    error::{ErrorClass, StoreError},
    handler::Work,
    handler_error::{HandlerError, UnknownTypeError},
    hash::{HashRules, PayloadHash},
    key::{KeyPolicy, KeySource},
    message::{Message, decode_error::DecodePayloadError},
    names::{ConsumerName, HashRuleId, ScopeId, Tenant},
    outbox::{collect::PublishRules, event::PublishError},
    outcome::{Decision, Failure},
    results::encrypt::Seal,
    source::Attached,
    spawn,
    store::{
        Bookkeeping as _, Store, StoreIdentity,
        describe::{code, one_line},
        registration::{Registered, Registration},
    },
    telemetry::{handles::UnitMetrics, spans::Destination},
};

/// Where a message's tenant comes from.
pub(crate) enum Tenants {
    One(Tenant),
    Of(Arc<TenantFn>),
}

pub(crate) type TenantFn = dyn Fn(&Message) -> Option<Tenant> + Send + Sync;

/// Decides for each message whether it is new, a duplicate or a conflict, and runs the handler in the transaction that
/// records the key.
///
/// It stands alone for people who keep their own receive loop: it decides, and neither waits, retries nor publishes.
/// A [`Worker`](crate::Worker) adds the broker, lanes, retries, dead letters, settling and shutdown. Cloning is cheap,
/// and clones share everything.
pub struct DedupConsumer<S: Store> {
    pub(crate) inner: Arc<Inner<S>>,
}

impl<S: Store> Clone for DedupConsumer<S> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<S: Store> fmt::Debug for DedupConsumer<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DedupConsumer").field("name", &self.inner.name).finish_non_exhaustive()
    }
}

pub(crate) struct Inner<S: Store> {
    pub(crate) store: Arc<S>,
    pub(crate) name: ConsumerName,
    pub(crate) handler_name: Option<String>,
    version: String,
    tenants: Tenants,
    keys: Arc<dyn KeySource>,
    key_policy: KeyPolicy,
    hashes: HashRules,
    pub(crate) work: Work<S>,
    pub(crate) effects: Effects,
    unprotected: HashSet<String>,
    pub(crate) settings: ConsumerSettings,
    pub(crate) metrics: UnitMetrics,
    pub(crate) clock: DatabaseClock,
    pub(crate) open: Arc<OpenUnits>,
    /// The source of a worker's messages, for spans; unset without a worker.
    pub(crate) source: OnceLock<Destination>,
    /// The facts about its broker that this source found.
    attached: OnceLock<Attached>,
    /// The destinations that handlers may publish to, and the limits of events and results.
    pub(crate) publishing: PublishRules,
    /// The seal of results.
    seal: Option<Arc<dyn Seal>>,
    destinations: Destinations,
    /// Notified after each commit of a unit that handed something in; a relay in this process waits for it.
    pub(crate) published: Arc<Notify>,
    registered: OnceCell<Registered>,
    scopes: Mutex<HashMap<Tenant, ScopeId>>,
    /// The server that has all of them, where the consumer publishes.
    server: Mutex<Option<StoreIdentity>>,
    /// Sessions of ours that are not in use, and a permit for each that may exist.
    idle: Mutex<Vec<S::Session>>,
    slots: Arc<Semaphore>,
    shared_units: Option<SharedUnits>,
    /// Whether handlers use their transaction.
    transaction_use: TransactionUse,
    /// Units in a row that found no winner; see [`unit`].
    no_winner: AtomicU32,
    /// Whose turn it is with the key of a call.
    turns: Arc<Turns>,
    /// Which calls are expected to be repeats.
    repeats: Repeats,
    /// Which conflicts of calls are noted.
    conflicts: Conflicts,
}

impl<S: Store> Inner<S> {
    /// Whether messages share a unit: calls to other systems must not be repeated for a neighbour's sake, and one handler's
    /// settings of its transaction hold for the next.
    pub(crate) fn shares_units(&self) -> bool {
        self.effects == Effects::InTransaction && !self.settings.units_of_one
    }
}

impl<S: Store> DedupConsumer<S> {
    /// A consumer of this name on this store. The name scopes its keys: two consumers each handle every message.
    pub fn builder(store: S, name: &str) -> DedupConsumerBuilder<S> {
        Self::builder_shared(Arc::new(store), name)
    }

    /// The same on a store that others use too.
    pub fn builder_shared(store: Arc<S>, name: &str) -> DedupConsumerBuilder<S> {
        DedupConsumerBuilder::new(store, name)
    }

    /// How long a handler may take for one message.
    #[must_use]
    pub fn handler_deadline(&self) -> std::time::Duration {
        self.inner.settings.handler_deadline
    }

    /// The consumer's name.
    #[must_use]
    pub fn name(&self) -> &ConsumerName {
        &self.inner.name
    }

    /// Checks the schema and registers the consumer. [`process`](Self::process) does it at its first call; calling it
    /// before finds a wrong set-up at start-up.
    ///
    /// # Errors
    /// [`StoreError`] with the cure in its text.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn start(&self) -> Result<(), StoreError> {
        self.inner.register(None).await.map(|_| ())
    }

    /// Decides for each of `messages`, in order, and handles those that are new, on a connection of the consumer's
    /// own. Gives each message back with its decision, in the order given, so that a message without a proof can be handed
    /// back to the broker or kept.
    ///
    /// Equal keys within one call are folded: the first leads, and the others are decided by its outcome. A message
    /// whose leader failed for now is [`Decision::Busy`].
    ///
    /// New messages of one call share one transaction where the handler allows that, so their number is the caller's batch size. At most
    /// `lanes` calls run at once; the others wait their turn, for as long as it takes.
    ///
    /// # Errors
    /// Only where the consumer could not be registered, which [`start`](Self::start) does before; the fate of single
    /// messages is in their decisions. A database that is down is the [failure](crate::Failure) of every message that it
    /// could not serve, of class [`Infrastructure`](ErrorClass::Infrastructure). On an error the messages are not given
    /// back: they come again from the broker.
    ///
    /// # Cancel safety
    /// A task finishes the work that a dropped call has begun. The messages may then have been handled; hand them in again
    /// to learn it.
    pub async fn process(
        &self,
        messages: impl IntoIterator<Item = Message>,
    ) -> Result<Vec<(Message, Decision)>, StoreError> {
        let messages = messages.into_iter().collect();
        self.inner.register(None).await?;
        let mut own = OwnSession::of(&self.inner).await;
        Ok(spawn::finished(async move { isolate::process(&own.inner, &mut own.session, messages).await }).await)
    }

    /// The same with the result of each message that was handled now or before, as its handler has
    /// [set](crate::Tx::set_result) it. That of a duplicate is read with its record.
    ///
    /// # Errors
    /// As for [`process`](Self::process), and where the consumer does not [keep](DedupConsumerBuilder::keeps_results) results.
    ///
    /// # Cancel safety
    /// As for [`process`](Self::process).
    pub async fn process_with_results(
        &self,
        messages: impl IntoIterator<Item = Message>,
    ) -> Result<Vec<Decided>, StoreError> {
        if self.inner.publishing.result_bytes_max.is_none() {
            let problem = format!("consumer {} keeps no results", self.inner.name);
            return Err(StoreError::refused(problem, "Build it with .keeps_results(RESULT_BYTES_MAX)"));
        }
        let messages = messages.into_iter().collect();
        self.inner.register(None).await?;
        let mut own = OwnSession::of(&self.inner).await;
        Ok(spawn::finished(async move {
            let mut answers = Answers::new(None, false);
            let decided = isolate::process_with(&own.inner, &mut own.session, messages, Some(&mut answers)).await;
            let all = decided.into_iter().map(|(message, decision, result)| Decided { message, decision, result });
            all.collect()
        })
        .await)
    }

    /// The same for one message, which may [share its unit](DedupConsumerBuilder::shares_units).
    ///
    /// # Errors
    /// As for [`process`](Self::process).
    ///
    /// # Cancel safety
    /// As for [`process`](Self::process).
    pub async fn process_one(&self, message: Message) -> Result<(Message, Decision), StoreError> {
        self.inner.register(None).await?;
        let item = match self.inner.identify(message, None).await {
            Ok(item) => item,
            Err(rejected) => return Ok((rejected.message, Decision::Failed(rejected.failure))),
        };
        let item = match &self.inner.shared_units {
            Some(shared) => match shared_units::process(&self.inner, shared, item).await? {
                Ok(decided) => return Ok(decided),
                Err(item) => item,
            },
            None => item,
        };
        let mut own = OwnSession::of(&self.inner).await;
        Ok(spawn::finished(async move {
            let decision = isolate::decide_one(&own.inner, &mut own.session, &item, None).await;
            (item.message, decision)
        })
        .await)
    }

    /// The same as [`process`](Self::process) on a connection that the caller hands over. A session comes back with the
    /// messages: the caller's, or one that was opened in its place because the caller's broke on the way; `None` where the
    /// last one broke too.
    ///
    /// # Errors
    /// As for [`process`](Self::process); the session is then closed.
    ///
    /// # Cancel safety
    /// As for [`process`](Self::process); the session is closed when the work is done.
    pub async fn process_on(
        &self,
        session: S::Session,
        messages: impl IntoIterator<Item = Message>,
    ) -> Result<(Option<S::Session>, Vec<(Message, Decision)>), StoreError> {
        let messages = messages.into_iter().collect();
        self.inner.register(None).await?;
        let inner = Arc::clone(&self.inner);
        Ok(spawn::finished(async move {
            let mut session = Some(session);
            let decided = isolate::process(&inner, &mut session, messages).await;
            (session, decided)
        })
        .await)
    }
}

/// A session of the consumer's own, or the right to open one. If it is still sound afterwards, it is kept for the next call.
struct OwnSession<S: Store> {
    inner: Arc<Inner<S>>,
    session: Option<S::Session>,
    _slot: Option<OwnedSemaphorePermit>,
}

impl<S: Store> OwnSession<S> {
    async fn of(inner: &Arc<Inner<S>>) -> Self {
        // The semaphore is never closed.
        let slot = Arc::clone(&inner.slots).acquire_owned().await.ok();
        let session = inner.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        Self { inner: Arc::clone(inner), session, _slot: slot }
    }
}

impl<S: Store> Drop for OwnSession<S> {
    fn drop(&mut self) {
        self.inner.idle.lock().unwrap_or_else(PoisonError::into_inner).extend(self.session.take());
    }
}

impl<S: Store> Inner<S> {
    /// Verifies and registers once. `attached` holds the facts about its broker that the worker's source found.
    pub(crate) async fn register(&self, attached: Option<&Attached>) -> Result<&Registered, StoreError> {
        let bound_to_nothing = attached.is_none() && self.handler_name.is_none();
        let register = || async {
            self.store.bookkeeping().verify().await?;
            let registered = self.store.bookkeeping().register(&self.registration(attached)).await?;
            self.clock.set(registered.now);
            self.declare().await?;
            if bound_to_nothing {
                tracing::warn!(
                    idem.consumer = %self.name,
                    "this name is bound to no handler: another program that uses it in this schema would take these records for \
                     its own, and skip its messages; give .handler_name(…)"
                );
            }
            for warning in &registered.warnings {
                tracing::warn!(idem.consumer = %self.name, "{warning}");
            }
            Ok(registered)
        };
        self.registered.get_or_try_init(register).await
    }

    /// Interns the destinations that the handler publishes to.
    async fn declare(&self) -> Result<(), StoreError> {
        if self.publishing.destinations.is_empty() {
            return Ok(());
        }
        // Building has refused a store without one.
        let outbox = self.store.outbox().ok_or(StoreError::Unsupported { what: "publish events" })?;
        let declared = outbox.declare(&self.publishing.destinations).await?;
        if declared.len() != self.publishing.destinations.len() {
            let what =
                "intern destinations: it answered with another number, which breaks the contract of Outbox::declare";
            return Err(StoreError::Unsupported { what });
        }
        self.destinations.were_declared(declared);
        Ok(())
    }

    /// The same for a worker, which binds the name to its source also where the consumer was started before.
    pub(crate) async fn register_bound(&self, attached: &Attached) -> Result<&Registered, StoreError> {
        // Set once, as the consumer is bound once.
        let _ = self.source.set(Destination::of(&attached.bound_to));
        let _ = self.attached.set(attached.clone());
        if self.registered.initialized() {
            self.store.bookkeeping().register(&self.registration(Some(attached))).await?;
        }
        self.register(Some(attached)).await
    }

    fn registration(&self, attached: Option<&Attached>) -> Registration {
        Registration {
            consumer: self.name.clone(),
            tenant: match &self.tenants {
                Tenants::One(tenant) => tenant.clone(),
                Tenants::Of(_) => Tenant::default(),
            },
            bound_to: attached.map(|attached| attached.bound_to.clone()),
            handler: self.handler_name.clone(),
            key_rule: format!("{};{}", self.keys.rule(), self.key_policy.rule()),
            hash_rules: self.hashes.all().map(|rule| rule.rule()).collect(),
            retention: self.settings.retention,
            redelivery_horizon: attached.and_then(|attached| attached.redelivery_horizon),
            version: self.version.clone(),
        }
    }

    /// The scope of a tenant, interned at its first message.
    async fn scope(&self, tenant: &Tenant) -> Result<ScopeId, StoreError> {
        let known = self.known_scopes().get(tenant).copied();
        if let Some(scope) = known {
            return Ok(scope);
        }
        let scope = self.intern_scope(tenant).await?;
        self.known_scopes().insert(tenant.clone(), scope);
        Ok(scope)
    }

    async fn intern_scope(&self, tenant: &Tenant) -> Result<ScopeId, StoreError> {
        match self.store.bookkeeping().scope(&self.name, tenant).await {
            // The consumer's own row is not there: a server answers that has lost it.
            Err(StoreError::Refused { .. }) if !bugs::planted(Bug::RefusesLostTenants) => {
                self.register_again().await?;
                self.store.bookkeeping().scope(&self.name, tenant).await
            }
            answer => answer,
        }
    }

    /// Interns the rows that are missing on another server that answers now: a standby that had not received them, or a
    /// backup. They are needed to read records by names; [`Interned`](store::Interned) says why numbers keep their meaning
    /// without them.
    pub(crate) async fn intern_again(&self) -> Result<(), StoreError> {
        if !self.publishes() {
            // The next message of each tenant interns it.
            self.known_scopes().clear();
        }
        let own = self.registration(None);
        match self.store.bookkeeping().scope(&own.consumer, &own.tenant).await {
            Ok(scope) => check_number(&self.name, self.number(), scope)?,
            Err(StoreError::Refused { .. }) => self.register_again().await?,
            Err(error) => return Err(error),
        }
        if !self.publishes() {
            return Ok(());
        }
        // Events are found by the rows of their destination and tenant, and were perhaps committed before it was seen that
        // these are missing.
        self.declare().await?;
        let tenants: BTreeSet<Tenant> = self.known_scopes().keys().cloned().collect();
        for tenant in tenants {
            let scope = self.intern_scope(&tenant).await?;
            self.known_scopes().insert(tenant, scope);
        }
        Ok(())
    }

    /// On a connection that was just opened: interns missing rows where another server answers than before. Events that were
    /// committed without the rows of their destination and tenant would be found by no relay. A consumer that publishes
    /// nothing asks nothing.
    pub(crate) async fn interned_there(&self) -> Result<(), StoreError> {
        let Some(registered) = self.registered.get().filter(|_| self.publishes()) else { return Ok(()) };
        let now = self.store.bookkeeping().control(registered.scope).await?.identity;
        if self.server().as_ref() == Some(&now) {
            return Ok(());
        }
        self.intern_again().await?;
        *self.server() = Some(now);
        Ok(())
    }

    fn publishes(&self) -> bool {
        !self.publishing.destinations.is_empty() && !bugs::planted(Bug::DeclaresOnce)
    }

    fn server(&self) -> MutexGuard<'_, Option<StoreIdentity>> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn known_scopes(&self) -> MutexGuard<'_, HashMap<Tenant, ScopeId>> {
        self.scopes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers the consumer once more, where its row was lost.
    async fn register_again(&self) -> Result<(), StoreError> {
        let registered = self.store.bookkeeping().register(&self.registration(self.attached.get())).await?;
        tracing::warn!(
            idem.consumer = %self.name,
            "the database had lost this consumer's row: another server answers, or a backup was restored; it was registered again"
        );
        check_number(&self.name, self.number(), registered.scope)
    }

    fn number(&self) -> Option<ScopeId> {
        self.registered.get().map(|registered| registered.scope)
    }

    /// The hashes of a message by the rule that a record carries, where this build knows it.
    fn rehash(&self, message: &Message, rule: HashRuleId) -> Option<Vec<PayloadHash>> {
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
            let is_refused = crate::error::chain(error.inner()).any(|link| link.is::<PublishError>());
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
}

/// Two names may share their first number, so a name that comes back after the other one may have another number (J63).
fn check_number(consumer: &ConsumerName, known: Option<ScopeId>, now: ScopeId) -> Result<(), StoreError> {
    match known {
        Some(known) if known != now => Err(StoreError::refused(
            format!("consumer {consumer} had number {known} in the database, and has {now} now"),
            "Restart its workers, so that they claim under the number that the database knows",
        )),
        Some(_) | None => Ok(()),
    }
}

/// The cause that the handler named, or that an error of core's stands for.
fn own_cause(error: &HandlerError) -> Option<&str> {
    let decoding = || error.downcast_ref::<DecodePayloadError>().map(DecodePayloadError::cause);
    let publishing = || error.downcast_ref::<PublishError>().map(PublishError::cause);
    let typing = || error.downcast_ref::<UnknownTypeError>().filter(|error| error.0.is_none()).map(|_| "no-type");
    error.code().or_else(decoding).or_else(publishing).or_else(typing)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// J63: under another number every key would be new.
    #[test]
    fn j63_a_consumer_that_comes_back_under_another_number_is_refused() {
        let check =
            |known: Option<i32>| check_number(&ConsumerName::new("orders").unwrap(), known.map(ScopeId), ScopeId(7));
        assert!(check(None).is_ok() && check(Some(7)).is_ok());
        let refused = check(Some(6)).unwrap_err().to_string();
        assert!(refused.contains("orders had number 6 in the database, and has 7 now"), "{refused}");
    }
}
