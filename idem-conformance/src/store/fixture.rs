//! The beginning of every case: the store under test, a handler that follows a plan, and short words for both.

use std::{
    fmt,
    marker::PhantomData,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use idem_core::{
    Decision, DedupConsumer, Effects, ErrorClass, Event, Handler, HandlerError, IdempotencyKey, Message, ResultBody,
    Retention, Store, Tenant, Tx,
    consumer::DedupConsumerBuilder,
    handler::{BatchAnswer, BatchHandler},
    hash::PayloadHash,
    store::{Bookkeeping as _, Claim, HashRuleId, Registered, Registration, RunId, ScopeId, UnitOptions},
};

use super::{
    gate::{Gate, within},
    observed::{Observed, Spy},
    subject::{Arrangement, Effect, HandlerAction, StoreUnderTest},
};

/// The store that the engine sees in a case.
pub(super) type Seen<T> = Observed<<T as StoreUnderTest>::Store>;

/// The steps of a handler.
#[derive(Debug, Clone)]
pub(super) enum Step {
    /// Writes the message as an effect, with this note.
    Write(&'static str),
    /// Does something to the transaction; its error is the handler's.
    Act(HandlerAction),
    /// Does something to the transaction, and ignores its error.
    Swallow(HandlerAction),
    /// Does something to the transaction, and answers with its error as text only.
    ActAsText(HandlerAction),
    /// Does something to the transaction, and calls its error permanent.
    ActAsPermanent(HandlerAction),
    /// Answers with an error of the handler's own.
    Fail,
    /// Answers with a permanent one.
    FailForGood,
    Panic,
    /// Never answers.
    Hang,
    /// Sets this result.
    SetResult(ResultBody),
    /// Publishes this event.
    Publish(Event),
    /// Waits until the case lets it go on.
    Pass(Gate),
}

type Plan = dyn Fn(&Message, usize) -> Vec<Step> + Send + Sync;

/// A handler that follows a plan, which is asked for each run: the message, and which run of its key this is, from 1.
pub(super) struct Probe<T> {
    plan: Arc<Plan>,
    runs: Arc<Runs>,
    subject: PhantomData<fn() -> T>,
}

/// The keys for which a handler ran, in order. Only for counting runs: effects are read from the store.
#[derive(Debug, Default)]
pub(super) struct Runs(Mutex<Vec<String>>);

impl Runs {
    pub(super) fn note(&self, key: &str) -> usize {
        let mut runs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        runs.push(key.to_owned());
        runs.iter().filter(|run| *run == key).count()
    }

    pub(super) fn all(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn of(&self, key: &str) -> usize {
        self.all().iter().filter(|run| *run == key).count()
    }
}

/// The effect of a message.
pub(super) fn effect(message: &Message, note: &str) -> Effect {
    let payload = message.payload().map(|payload| payload.to_vec()).unwrap_or_default();
    let note = if message.payload().is_none() { "tombstone" } else { note };
    Effect { key: key_of(message), payload, note: note.to_owned() }
}

fn key_of(message: &Message) -> String {
    message.key().map_or("(none)", IdempotencyKey::as_str).to_owned()
}

impl<T: StoreUnderTest> Probe<T> {
    async fn follow(&self, message: &Message, tx: &mut Tx<'_, Seen<T>>) -> Result<(), HandlerError> {
        let run = self.runs.note(&key_of(message));
        let (connection, handing_in) = tx.parts();
        let mut tx: Tx<'_, T::Store> = Tx::new(connection);
        for step in (self.plan)(message, run) {
            match step {
                Step::Write(note) => T::write(&mut tx, &effect(message, note)).await?,
                Step::Act(action) => T::act(&mut tx, action, &effect(message, "")).await?,
                Step::Swallow(action) => drop(T::act(&mut tx, action, &effect(message, "")).await),
                Step::ActAsText(action) => {
                    let done = T::act(&mut tx, action, &effect(message, "")).await;
                    done.map_err(|_| HandlerError::from("it did not work"))?;
                }
                Step::ActAsPermanent(action) => {
                    let done = T::act(&mut tx, action, &effect(message, "")).await;
                    done.map_err(|error| HandlerError::permanent(error.to_string()))?;
                }
                Step::Fail => return Err("the plan says so".into()),
                Step::FailForGood => return Err(HandlerError::permanent("the plan says so")),
                Step::Panic => panic!("the plan says so: this panic is a part of the case"),
                Step::Hang => std::future::pending().await,
                Step::SetResult(result) => handing_in.set_result(message, result)?,
                Step::Publish(event) => drop(handing_in.publish(message, event)?),
                Step::Pass(gate) => gate.pass().await,
            }
        }
        Ok(())
    }
}

impl<T: StoreUnderTest> Handler<Seen<T>> for Probe<T> {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, Seen<T>>) -> Result<(), HandlerError> {
        self.follow(message, tx).await
    }
}

/// As a batch handler, it follows the plan for each message and answers for each.
impl<T: StoreUnderTest> BatchHandler<Seen<T>> for Probe<T> {
    async fn handle_batch(&self, messages: &[&Message], tx: &mut Tx<'_, Seen<T>>) -> Result<BatchAnswer, HandlerError> {
        let mut answers = Vec::with_capacity(messages.len());
        for message in messages {
            answers.push(self.follow(message, tx).await);
        }
        Ok(BatchAnswer::each(answers))
    }
}

/// The plan of most cases.
pub(super) fn write(_: &Message, _: usize) -> Vec<Step> {
    vec![Step::Write("")]
}

/// A decision without its details.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Processed,
    Duplicate,
    Conflict,
    Busy,
    Failed(ErrorClass),
    /// One that this build of the suite does not know.
    Other,
}

impl Kind {
    pub(super) fn of(decision: &Decision) -> Self {
        match decision {
            Decision::Processed(_) => Self::Processed,
            Decision::Duplicate(..) => Self::Duplicate,
            Decision::Conflict(..) => Self::Conflict,
            Decision::Busy => Self::Busy,
            Decision::Failed(failure) => Self::Failed(failure.class),
            _ => Self::Other,
        }
    }

    /// Whether the broker may forget the message.
    pub(super) fn is_settled(self) -> bool {
        matches!(self, Self::Processed | Self::Duplicate)
    }
}

/// One case's view of the store under test.
pub(super) struct Fixture<'s, T: StoreUnderTest> {
    pub(super) subject: &'s T,
    pub(super) store: Arc<Seen<T>>,
    pub(super) spy: Arc<Spy>,
    pub(super) runs: Arc<Runs>,
}

impl<T: StoreUnderTest> fmt::Debug for Fixture<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fixture").field("runs", &self.runs).finish_non_exhaustive()
    }
}

impl<'s, T: StoreUnderTest> Fixture<'s, T> {
    pub(super) fn new(subject: &'s T) -> Self {
        Self::on(subject, subject.store(), false)
    }

    /// The same store as one that has no outbox and keeps no results.
    pub(super) fn bare(subject: &'s T) -> Self {
        Self::on(subject, subject.store(), true)
    }

    /// The same database seen from another process.
    pub(super) async fn elsewhere(&self) -> Self {
        let store = within("another store on the same database", self.subject.another()).await;
        Self { runs: Arc::clone(&self.runs), ..Self::on(self.subject, store, false) }
    }

    fn on(subject: &'s T, inner: Arc<T::Store>, is_bare: bool) -> Self {
        let spy = Arc::<Spy>::default();
        let store = Arc::new(Observed { inner, spy: Arc::clone(&spy), is_bare });
        Self { subject, store, spy, runs: Arc::default() }
    }

    /// Whether a claim waits for twins of its keys only. Otherwise any unit that writes holds up all others.
    pub(super) fn waits_per_key(&self) -> bool {
        self.store.capabilities().waits_per_key
    }

    /// Whether each message is a unit of its own, whatever a consumer asks for.
    pub(super) fn units_hold_one(&self) -> bool {
        self.store.capabilities().messages_max == Some(1)
    }

    pub(super) fn probe(&self, plan: impl Fn(&Message, usize) -> Vec<Step> + Send + Sync + 'static) -> Probe<T> {
        Probe { plan: Arc::new(plan), runs: Arc::clone(&self.runs), subject: PhantomData }
    }

    /// A consumer to be built, with a handler that follows `plan`.
    pub(super) fn builder(
        &self,
        name: &str,
        plan: impl Fn(&Message, usize) -> Vec<Step> + Send + Sync + 'static,
    ) -> DedupConsumerBuilder<Seen<T>> {
        let builder = DedupConsumer::builder(Arc::clone(&self.store), name);
        builder.handler(self.probe(plan)).effects(Effects::InTransaction).handlers(self.subject.handlers())
    }

    /// The consumer `orders` with a handler that follows `plan`.
    pub(super) fn consumer(
        &self,
        plan: impl Fn(&Message, usize) -> Vec<Step> + Send + Sync + 'static,
    ) -> DedupConsumer<Seen<T>> {
        self.builder("orders", plan).build().unwrap()
    }

    /// Every committed effect as key and payload, sorted.
    pub(super) async fn effects(&self) -> Vec<(String, String)> {
        let mut effects: Vec<_> = within("reading effects", self.subject.effects())
            .await
            .into_iter()
            .map(|effect| (effect.key, String::from_utf8_lossy(&effect.payload).into_owned()))
            .collect();
        effects.sort();
        effects
    }

    /// Checks that exactly these effects are committed, and exactly their keys recorded.
    pub(super) async fn assert_effects<'a>(&self, expected: impl IntoIterator<Item = (&'a str, &'a str)>) {
        let mut expected: Vec<_> =
            expected.into_iter().map(|(key, payload)| (key.to_owned(), payload.to_owned())).collect();
        expected.sort();
        assert_eq!(self.effects().await, expected, "the committed effects");
        let mut keys: Vec<_> = expected.into_iter().map(|(key, _)| key).collect();
        keys.dedup();
        assert_eq!(self.recorded().await, keys, "the committed records");
    }

    /// The keys of the committed records, sorted.
    pub(super) async fn recorded(&self) -> Vec<String> {
        let mut keys = within("reading records", self.subject.recorded()).await;
        keys.sort();
        keys
    }

    /// Registers the consumer `orders` without an engine.
    pub(super) async fn register(&self) -> Registered {
        let registered = within("registering", self.register_as(&registration("orders"))).await;
        registered.unwrap_or_else(|error| panic!("a first start was refused: {error}"))
    }

    pub(super) async fn register_as(&self, registration: &Registration) -> Result<Registered, idem_core::StoreError> {
        within("registering", self.store.bookkeeping().register(registration)).await
    }

    pub(super) async fn open(&self) -> <T::Store as Store>::Session {
        within("opening a lane", self.store.open()).await.unwrap_or_else(|error| panic!("no lane: {error}"))
    }

    /// Does `arrangement`; answers whether the database offers it. Where it does not, that is checked.
    pub(super) async fn arrange(&self, arrangement: Arrangement) -> bool {
        let offered = self.subject.arranges(arrangement);
        let done = within("arranging the database", self.subject.arrange(arrangement)).await;
        assert_eq!(done.is_ok(), offered, "{arrangement:?} is {}", if offered { "offered" } else { "not offered" });
        offered
    }

    /// Whether the database offers `action`. Where it does not, it must refuse it: the message fails, and nothing of
    /// it is written.
    pub(super) async fn offers(&self, action: HandlerAction) -> bool {
        if self.subject.offers(action) {
            return true;
        }
        let consumer = self.consumer(move |_, _| vec![Step::Write(""), Step::Act(action)]);
        let decisions = process(&consumer, [msg("refused", "p")]).await;
        assert!(matches!(decisions[..], [Kind::Failed(_)]), "{action:?} is not offered, yet: {decisions:?}");
        self.assert_effects([]).await;
        false
    }
}

/// A message with this key and payload.
pub(super) fn msg(key: &str, payload: &str) -> Message {
    idem_testkit::message(key, payload.to_owned())
}

/// Hands messages in once, and answers with the kinds of the decisions.
pub(super) async fn process<S: Store>(
    consumer: &DedupConsumer<S>,
    messages: impl IntoIterator<Item = Message>,
) -> Vec<Kind> {
    decide(consumer, messages).await.iter().map(Kind::of).collect()
}

/// Hands messages in once, and answers with the decisions.
pub(super) async fn decide<S: Store>(
    consumer: &DedupConsumer<S>,
    messages: impl IntoIterator<Item = Message>,
) -> Vec<Decision> {
    let messages: Vec<_> = messages.into_iter().collect();
    let sent: Vec<_> = messages.iter().map(|message| message.payload().cloned()).collect();
    let decided = within("processing messages", consumer.process(messages)).await;
    let decided = decided.unwrap_or_else(|error| panic!("the consumer could not start: {error}"));
    let back: Vec<_> = decided.iter().map(|decided| decided.message.payload().cloned()).collect();
    assert_eq!(back, sent, "each message comes back with its decision, in the order given");
    decided.into_iter().map(|decided| decided.decision).collect()
}

/// Redelivers unsettled messages, as a broker does, until all are settled; at most ten times.
pub(super) async fn redeliver<S: Store>(consumer: &DedupConsumer<S>, mut messages: Vec<Message>) {
    for _ in 0..10 {
        let kinds = process(consumer, messages.clone()).await;
        let open = messages.into_iter().zip(kinds).filter(|(_, kind)| !kind.is_settled());
        messages = open.map(|(message, _)| message).collect();
        if messages.is_empty() {
            return;
        }
    }
    panic!("after ten deliveries there is no verdict on {messages:?}");
}

/// The limits of units that the suite runs by hand.
pub(super) fn options(run: RunId) -> UnitOptions {
    UnitOptions::new(run, 0, Duration::from_secs(5), Duration::from_secs(60))
}

/// The claim of a message with this payload, as the engine makes it.
pub(super) fn claim(registered: &Registered, key: &str, payload: &str) -> Claim {
    Claim::new(
        registered.scope,
        key_from(key),
        PayloadHash::of(payload.as_bytes()),
        registered.hash_rules.first().copied().unwrap_or(HashRuleId(0)),
        Retention::For(Duration::from_secs(3600)),
    )
}

pub(super) fn key_from(text: &str) -> IdempotencyKey {
    IdempotencyKey::new(text).unwrap_or_else(|error| panic!("{text:?} is no key: {error}"))
}

/// The registration of the engine's consumer of this name, where nothing is configured.
pub(super) fn registration(name: &str) -> Registration {
    Registration::new(
        idem_core::ConsumerName::new(name).unwrap(),
        Tenant::default(),
        format!("{};token", idem_core::key::default_key_source().rule()),
        vec!["raw/1".to_owned()],
        Retention::For(Duration::from_secs(3600)),
    )
    .version("1".to_owned())
}

/// An unused scope.
pub(super) const NO_SCOPE: ScopeId = ScopeId(i32::MAX);
