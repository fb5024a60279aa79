//! Handlers that misuse their transaction, beyond the cases of every store.

use std::{marker::PhantomData, sync::Arc, time::Duration};

use idem_core::{
    Concurrency, Decision, DedupConsumer, Handler, HandlerError, Message, Store as _, Tx,
    consumer::DedupConsumerBuilder,
    store::{Claimed, UnitOfWork as _},
};
use tokio::sync::Notify;

use super::{
    consumers::{self, claim_of, keys, letters, messages, msg, options, process},
    subject::{PostgresUnderTest, effects, forget, recorded, unique, until},
};
use idem_testkit::Decide as _;

/// A handler's deeds, by its message.
pub(super) trait Act: Send + Sync + 'static {
    fn act<T: PostgresUnderTest>(
        &self,
        message: &Message,
        tx: &mut Tx<'_, T::Store>,
    ) -> impl Future<Output = Result<(), HandlerError>> + Send;
}

/// A handler that does this.
pub(super) struct Acting<T, A>(A, PhantomData<fn() -> T>);

pub(super) fn acting<T: PostgresUnderTest, A: Act>(act: A) -> Acting<T, A> {
    Acting(act, PhantomData)
}

impl<T: PostgresUnderTest, A: Act> Handler<T::Store> for Acting<T, A> {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, T::Store>) -> Result<(), HandlerError> {
        self.0.act::<T>(message, tx).await
    }
}

/// The handler that only writes.
pub(super) struct Writes;

impl Act for Writes {
    async fn act<T: PostgresUnderTest>(
        &self,
        message: &Message,
        tx: &mut Tx<'_, T::Store>,
    ) -> Result<(), HandlerError> {
        Ok(write::<T>(tx, message).await?)
    }
}

pub(super) type Write<T> = Acting<T, Writes>;

impl<T: PostgresUnderTest> Write<T> {
    pub(super) fn new() -> Self {
        acting(Writes)
    }
}

/// Writes the key of a message, as every handler here does.
pub(super) async fn write<T: PostgresUnderTest>(tx: &mut Tx<'_, T::Store>, message: &Message) -> Result<(), T::Error> {
    T::write(tx, key_of(message)).await
}

fn key_of(message: &Message) -> &str {
    message.key().map_or("(none)", |key| key.as_str())
}

pub(super) fn builder<T: PostgresUnderTest>(
    subject: &T,
    handler: impl Handler<T::Store>,
) -> DedupConsumerBuilder<T::Store> {
    let consumer = consumers::builder(subject.store().clone(), handler).handlers(subject.concurrency());
    consumer.busy_timeout(Duration::from_secs(20))
}

pub(super) fn consumer<T: PostgresUnderTest>(subject: &T, handler: impl Handler<T::Store>) -> DedupConsumer<T::Store> {
    builder(subject, handler).build().unwrap()
}

/// Whether handlers may send what controls the transaction.
fn is_in_order(subject: &impl PostgresUnderTest) -> bool {
    subject.concurrency() == Concurrency::InOrder
}

/// Ends the transaction in the second message of a batch, hides it, and goes on writing.
struct EndsIt(&'static str);

impl Act for EndsIt {
    async fn act<T: PostgresUnderTest>(
        &self,
        message: &Message,
        tx: &mut Tx<'_, T::Store>,
    ) -> Result<(), HandlerError> {
        if key_of(message) == "order-001" {
            let _ = T::send(tx, self.0).await;
        }
        // Swallowed, so that the engine sees it at the commit only.
        let _ = write::<T>(tx, message).await;
        Ok(())
    }
}

/// A12: after any statement of a handler, nothing is committed behind the engine's back, and a later run of a
/// mended handler makes all effects once. Where handlers run at once it is not sent, and spoils nothing.
pub async fn a12_raw_commit_in_mid_batch_with_every_error_swallowed<T: PostgresUnderTest>(subject: &T) {
    let (first, second) = if is_in_order(subject) { ("PtP", "DPD") } else { ("PPP", "DDD") };
    for text in [
        "COMMIT",
        "ROLLBACK",
        "COMMIT AND CHAIN",
        "ROLLBACK AND CHAIN",
        "END",
        "ABORT",
        "ROLLBACK; BEGIN",
        "SET CONSTRAINTS ALL IMMEDIATE",
    ] {
        let keys = keys(3);
        let broken = consumer(subject, acting::<T, _>(EndsIt(text)));
        let seen = process(&broken, messages(&keys)).await;
        assert_eq!(seen, first, "{text}: the innocent are handled alone");
        let kept: Vec<_> =
            keys.iter().zip(first.chars()).filter_map(|(key, seen)| (seen == 'P').then_some(key)).collect();
        assert_eq!(effects(subject).await.iter().collect::<Vec<_>>(), kept, "{text}");
        drop(broken);
        let mended = consumer(subject, Write::<T>::new());
        assert_eq!(process(&mended, messages(&keys)).await, second, "{text}");
        assert_eq!(effects(subject).await, keys, "{text}");
        forget(subject).await;
    }
}

/// Lets the server end its transaction for sitting idle.
struct Sits(Arc<Idle>);

/// A transaction that sits idle: the server lists its session by `name`.
struct Idle {
    name: String,
    begun: Notify,
    over: Notify,
}

impl Act for Sits {
    async fn act<T: PostgresUnderTest>(
        &self,
        message: &Message,
        tx: &mut Tx<'_, T::Store>,
    ) -> Result<(), HandlerError> {
        T::execute(tx, &format!("SELECT set_config('application_name', '{}', true)", self.0.name)).await?;
        T::execute(tx, "SELECT set_config('idle_in_transaction_session_timeout', '50', true)").await?;
        // As during a call to another system, the connection idles until the server has had enough.
        self.0.begun.notify_one();
        self.0.over.notified().await;
        Ok(write::<T>(tx, message).await?)
    }
}

/// A20: the server ends a transaction that sat idle for too long.
pub async fn a20_an_idle_timeout_is_infrastructure<T: PostgresUnderTest>(subject: &T) {
    let idle = Arc::new(Idle { name: unique("a20"), begun: Notify::new(), over: Notify::new() });
    let consumer = consumer(subject, acting::<T, _>(Sits(Arc::clone(&idle))));
    let looking_on = async {
        idle.begun.notified().await;
        let gone = format!("SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = '{}')", idle.name);
        until(subject, &gone).await;
        idle.over.notify_one();
    };
    let (seen, ()) = tokio::join!(process(&consumer, vec![msg("a")]), looking_on);
    assert_eq!(seen, "i");
    assert!(effects(subject).await.is_empty() && recorded(subject).await.is_empty());
}

/// J5: a client that dies in the middle of a long statement holds its keys for seconds, not for the statement's time.
pub async fn j5_a_dropped_lane_with_a_running_statement_frees_its_keys<T: PostgresUnderTest>(subject: &T) {
    let store = subject.store();
    let (claim, run) = claim_of(store, "a").await;
    let claims = [claim];
    let options = options(run, Duration::from_secs(20));
    let sleep = format!("SELECT pg_sleep(300), {}", fastrand::u32(..));
    {
        let lane = store.open().await.unwrap();
        let mut unit = store.begin(lane, options).await.unwrap();
        unit.claim(&claims).await.unwrap();
        let mut tx = unit.tx();
        let asleep =
            format!("SELECT count(*) > 0 FROM pg_stat_activity WHERE query = '{sleep}' AND wait_event = 'PgSleep'");
        tokio::select! {
            slept = T::execute(&mut tx, &sleep) => panic!("{slept:?}"),
            () = until(subject, &asleep) => {}
        }
    }
    let lane = store.open().await.unwrap();
    let mut unit = store.begin(lane, options).await.unwrap();
    assert_eq!(unit.claim(&claims).await.unwrap(), [Claimed::Inserted]);
    unit.rollback().await.unwrap();
}

/// A21: a lock or a statement that takes too long is the message's bad luck, and swallowing it changes nothing.
struct Waits {
    setting: &'static str,
    swallows: bool,
}

impl Act for Waits {
    async fn act<T: PostgresUnderTest>(
        &self,
        message: &Message,
        tx: &mut Tx<'_, T::Store>,
    ) -> Result<(), HandlerError> {
        write::<T>(tx, message).await?;
        T::execute(tx, &format!("SELECT set_config('{}', '50', true)", self.setting)).await?;
        let locked = T::execute(tx, "UPDATE taken SET name = name").await;
        if self.swallows { Ok(()) } else { Ok(locked?) }
    }
}

/// A21.
pub async fn a21_timeouts_in_a_handler_are_transient_even_when_swallowed<T: PostgresUnderTest>(subject: &T) {
    let store = subject.store();
    let lane = store.open().await.unwrap();
    let mut blocker = store.begin(lane, options(claim_of(store, "a").await.1, Duration::from_secs(20))).await.unwrap();
    blocker.claim(&[]).await.unwrap();
    T::execute(&mut blocker.tx(), "UPDATE taken SET name = name").await.unwrap();
    for setting in ["lock_timeout", "statement_timeout"] {
        for swallows in [false, true] {
            let consumer = consumer(subject, acting::<T, _>(Waits { setting, swallows }));
            assert_eq!(process(&consumer, vec![msg("a")]).await, "t", "{setting} {swallows}");
        }
    }
    assert!(effects(subject).await.is_empty() && recorded(subject).await.is_empty());
    blocker.rollback().await.unwrap();
    let consumer = consumer(subject, acting::<T, _>(Waits { setting: "lock_timeout", swallows: false }));
    assert_eq!(process(&consumer, vec![msg("a")]).await, "P");
}

/// B22: the handler's own unique key.
struct Naturally;

impl Act for Naturally {
    async fn act<T: PostgresUnderTest>(
        &self,
        message: &Message,
        tx: &mut Tx<'_, T::Store>,
    ) -> Result<(), HandlerError> {
        write::<T>(tx, message).await?;
        let name = if key_of(message) == "order-001" { "taken" } else { key_of(message) };
        Ok(T::execute(tx, &format!("INSERT INTO taken VALUES ('{name}')")).await?)
    }
}

/// B22: the text says which rule was broken.
pub async fn b22_a_unique_violation_of_the_handlers_own_is_permanent<T: PostgresUnderTest>(subject: &T) {
    let consumer = consumer(subject, acting::<T, _>(Naturally));
    let decisions = consumer.decisions(messages(&keys(3))).await.unwrap();
    assert_eq!(letters(&decisions), "PpP");
    let Decision::Failed(failure) = &decisions[1] else { panic!("{decisions:?}") };
    assert!(failure.text.contains("SQLSTATE 23505") && failure.text.contains("taken_pkey"), "{}", failure.text);
    assert_eq!(effects(subject).await, ["order-000", "order-002"]);
}

/// The ways in which handlers commonly pass a driver's error on.
#[derive(Debug, thiserror::Error)]
enum Wrapped<E: std::error::Error + 'static> {
    #[error(transparent)]
    Transparent(E),
    #[error("the ledger failed")]
    WithContext(#[source] E),
    #[error("the ledger failed, without a cause")]
    OwnText,
    #[error("the ledger failed: {0}")]
    Stringified(String),
}

struct Killed(usize);

const WAYS: usize = 7;

impl Act for Killed {
    async fn act<T: PostgresUnderTest>(
        &self,
        message: &Message,
        tx: &mut Tx<'_, T::Store>,
    ) -> Result<(), HandlerError> {
        write::<T>(tx, message).await?;
        let _ = T::execute(tx, "SELECT pg_terminate_backend(pg_backend_pid())").await;
        let Err(error) = T::execute(tx, "SELECT 1").await else { return Ok(()) };
        Err(match self.0 {
            0 => error.into(),
            1 => Wrapped::Transparent(error).into(),
            2 => Wrapped::WithContext(error).into(),
            3 => Wrapped::<T::Error>::OwnText.into(),
            4 => Wrapped::<T::Error>::Stringified(error.to_string()).into(),
            5 => HandlerError::permanent(error),
            _ => HandlerError::permanent("nothing to do with the database"),
        })
    }
}

/// A25.
pub async fn a25_a_killed_backend_is_infrastructure_however_the_handler_wraps_it<T: PostgresUnderTest>(subject: &T) {
    for way in 0..WAYS {
        let consumer = consumer(subject, acting::<T, _>(Killed(way)));
        assert_eq!(process(&consumer, messages(&keys(2))).await, "ii", "way {way}");
    }
    assert!(effects(subject).await.is_empty() && recorded(subject).await.is_empty());
}

/// Fails or ends the transaction, and says that all is well.
enum Swallows {
    Failure,
    Rollback,
}

impl Act for Swallows {
    async fn act<T: PostgresUnderTest>(
        &self,
        message: &Message,
        tx: &mut Tx<'_, T::Store>,
    ) -> Result<(), HandlerError> {
        write::<T>(tx, message).await?;
        let _ = match self {
            Self::Failure => T::execute(tx, "INSERT INTO taken VALUES ('taken')").await,
            Self::Rollback => T::send(tx, "ROLLBACK").await,
        };
        Ok(())
    }
}

/// A9: handlers of unprotected types claim nothing, and their commit is guarded all the same.
pub async fn a9_a_swallowed_error_of_an_unprotected_message_is_not_acknowledged<T: PostgresUnderTest>(subject: &T) {
    // Where handlers run at once, no ROLLBACK is sent.
    let ends = is_in_order(subject).then_some(("ended", Swallows::Rollback));
    for (name, swallows) in [("failed", Swallows::Failure)].into_iter().chain(ends) {
        let consumer = builder(subject, acting::<T, _>(swallows)).unprotected_type("note").build().unwrap();
        let message = Message::new(name).with_type("note");
        assert_eq!(process(&consumer, vec![message]).await, "t", "{name}");
    }
    assert!(effects(subject).await.is_empty());
    let consumer = builder(subject, Write::<T>::new()).unprotected_type("note").build().unwrap();
    assert_eq!(process(&consumer, vec![Message::new("x").with_type("note")]).await, "P");
    assert_eq!(effects(subject).await, ["(none)"]);
}

/// Runs a statement in the second message of a batch.
struct Sets(&'static str);

impl Act for Sets {
    async fn act<T: PostgresUnderTest>(
        &self,
        message: &Message,
        tx: &mut Tx<'_, T::Store>,
    ) -> Result<(), HandlerError> {
        if message.key().is_none_or(|key| key.as_str() == "order-001") {
            T::execute(tx, self.0).await?;
        }
        Ok(write::<T>(tx, message).await?)
    }
}

/// A46: a handler's setting holds for its whole unit, so a COMMIT that it has weakened is refused, and its neighbours are
/// committed as they should be; a setting that is no weaker is allowed.
pub async fn a46_a_commit_that_a_handler_has_weakened_is_refused<T: PostgresUnderTest>(subject: &T) {
    let as_values = [
        ("SELECT set_config('synchronous_commit', 'off', true)", "PtP"),
        ("SELECT set_config('synchronous_commit', 'remote_write', true)", "PtP"),
        ("SELECT set_config('synchronous_commit', 'remote_apply', true)", "PPP"),
    ];
    let as_statements = [
        ("SET LOCAL synchronous_commit = off", "PtP"),
        ("SET synchronous_commit = local", "PtP"),
        ("SET LOCAL synchronous_commit = remote_apply", "PPP"),
    ];
    let as_statements = as_statements.into_iter().filter(|_| is_in_order(subject));
    for (text, seen) in as_values.into_iter().chain(as_statements) {
        let sets = consumer(subject, acting::<T, _>(Sets(text)));
        assert_eq!(process(&sets, messages(&keys(3))).await, seen, "{text}");
        assert_eq!(effects(subject).await.len(), seen.matches('P').count(), "{text}");
        let refused = sets.decisions(messages(&keys(2)[1..])).await.unwrap();
        if let Decision::Failed(failure) = &refused[0] {
            assert!(failure.text.contains("synchronous_commit"), "{failure}");
        }
        // A unit that claims nothing is guarded alike.
        let unprotected = builder(subject, acting::<T, _>(Sets(text))).unprotected_type("note").build().unwrap();
        let note = vec![Message::new("x").with_type("note")];
        assert_eq!(process(&unprotected, note).await, if seen == "PPP" { "P" } else { "t" }, "{text}");
        forget(subject).await;
    }
}

/// A48: a database that was restarted while a connection idled costs the next call nothing: it begins again on a new one.
pub async fn a48_an_idle_connection_that_was_lost_costs_no_call<T: PostgresUnderTest>(subject: &T) {
    let name = unique("a48");
    let store = subject.another(None, &[("application_name", &name)]);
    let consumer = consumers::builder(store, Write::<T>::new()).handlers(subject.concurrency()).build().unwrap();
    assert_eq!(process(&consumer, vec![msg("a")]).await, "P");
    let of_the_store = format!("FROM pg_stat_activity WHERE application_name = '{name}'");
    subject.run(&format!("SELECT count(pg_terminate_backend(pid)) {of_the_store}")).await;
    until(subject, &format!("SELECT NOT EXISTS (SELECT {of_the_store})")).await;
    assert_eq!(process(&consumer, messages(&keys(3))).await, "PPP");
}
