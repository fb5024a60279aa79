//! Short words for a consumer with a handler that writes the message's key as an effect.

use std::time::Duration;

use idem_core::{
    Bookkeeping as _, Claim, ConsumerName, Decision, DedupConsumer, DedupConsumerBuilder, Effects, Handler,
    HandlerError, Handlers, IdempotencyKey, Message, PayloadHash, Registration, Retention, RunId, Tenant, Tx,
    UnitOptions,
};
use idem_tokio_postgres::{Postgres, PostgresConnection, RunStatementError};

/// Writes the key of a message, as every handler here does.
pub(crate) async fn write(connection: &PostgresConnection<'_>, message: &Message) -> Result<(), RunStatementError> {
    let payload = message.payload().map(|payload| payload.to_vec());
    let text = "INSERT INTO effects (key, payload, note) VALUES ($1, $2, '')";
    connection.execute(text, &[&key_of(message), &payload]).await.map(|_| ())
}

pub(crate) fn key_of(message: &Message) -> &str {
    message.key().map_or("(none)", |key| key.as_str())
}

/// The handler that only writes.
pub(crate) struct Write;

impl Handler<Postgres> for Write {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, Postgres>) -> Result<(), HandlerError> {
        Ok(write(&tx.connection(), message).await?)
    }
}

/// What a handler does, by its message.
pub(crate) trait Act: Send + Sync + 'static {
    fn act(
        &self,
        message: &Message,
        connection: PostgresConnection<'_>,
    ) -> impl Future<Output = Result<(), HandlerError>> + Send;
}

/// A handler that does this.
pub(crate) struct Acting<A>(pub(crate) A);

impl<A: Act> Handler<Postgres> for Acting<A> {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, Postgres>) -> Result<(), HandlerError> {
        self.0.act(message, tx.connection()).await
    }
}

/// A consumer with limits that suit tests.
pub(crate) fn builder(store: Postgres, handler: impl Handler<Postgres>) -> DedupConsumerBuilder<Postgres> {
    DedupConsumer::builder(store, "ledger").handler(handler).effects(Effects::InTransaction)
}

pub(crate) fn consumer(store: Postgres, handler: impl Handler<Postgres>) -> DedupConsumer<Postgres> {
    builder(store, handler).busy_timeout(Duration::from_secs(20)).build().unwrap()
}

/// A message of this key, whose payload follows from it.
pub(crate) fn msg(key: &str) -> Message {
    Message::new(format!("paid {key}")).with_header("idempotencykey", key.to_owned())
}

pub(crate) fn keys(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("order-{number:03}")).collect()
}

pub(crate) fn messages(keys: &[String]) -> Vec<Message> {
    keys.iter().map(|key| msg(key)).collect()
}

/// The decisions in one letter each: Processed, Duplicate, Conflict, Busy, and the first of a failure's class.
pub(crate) fn letters(decisions: &[Decision]) -> String {
    decisions
        .iter()
        .map(|decision| match decision {
            Decision::Processed(_) => 'P',
            Decision::Duplicate(..) => 'D',
            Decision::Conflict(..) => 'C',
            Decision::Busy => 'B',
            Decision::Failed(failure) => failure.class.to_string().chars().next().unwrap_or('?'),
            other => panic!("{other:?}"),
        })
        .collect()
}

pub(crate) async fn process(consumer: &DedupConsumer<Postgres>, messages: Vec<Message>) -> String {
    letters(&consumer.process(messages).await.unwrap())
}

/// Both ways to run handlers.
pub(crate) const BOTH: [Handlers; 2] = [Handlers::InOrder, Handlers::pipelined()];

/// The start of the consumer whose keys are claimed by hand.
pub(crate) fn registration() -> Registration {
    Registration {
        consumer: ConsumerName::new("by-hand").unwrap(),
        tenant: Tenant::default(),
        bound_to: None,
        handler: None,
        key_rule: "k".to_owned(),
        hash_rules: vec!["h".to_owned()],
        retention: Retention::For(Duration::from_secs(3600)),
        version: "1".to_owned(),
    }
}

/// A claim of this key in the scope of a consumer that is registered for it.
pub(crate) async fn claim_of(store: &Postgres, key: &str) -> (Claim, RunId) {
    let registered = store.register(&registration()).await.unwrap();
    let claim = Claim {
        scope: registered.scope,
        key: IdempotencyKey::new(key).unwrap(),
        hash: PayloadHash::of(key.as_bytes()),
        hash_rule: registered.hash_rules[0],
        retention: Retention::For(Duration::from_secs(3600)),
    };
    (claim, registered.run)
}

/// Limits of a unit by hand.
pub(crate) fn options(run: RunId, busy: Duration) -> UnitOptions {
    UnitOptions { run, lane: 0, busy_timeout: busy, idle_timeout: Duration::from_secs(30) }
}
