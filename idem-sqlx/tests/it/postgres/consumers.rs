//! Short words for a consumer with a handler that writes the message's key as an effect.

use std::time::Duration;

use idem_core::{
    ClaimError, ConsumerName, Decision, DedupConsumer, DedupConsumerBuilder, Effects, Handler, HandlerError, Message,
    Tx,
};
use idem_sqlx::Postgres;
use sqlx::PgConnection;

use super::fixture::PATIENCE;

/// Writes the key of a message, as every handler here does.
pub(super) async fn write(connection: &mut PgConnection, message: &Message) -> Result<(), sqlx::Error> {
    let key = message.key().map_or("(none)", |key| key.as_str());
    let query = sqlx::query("INSERT INTO effects (key, payload, note) VALUES ($1, $2, '')");
    query.bind(key).bind(message.payload().map(|payload| payload.to_vec())).execute(connection).await.map(|_| ())
}

/// The handler that only writes.
pub(super) struct Write;

impl Handler<Postgres> for Write {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, Postgres>) -> Result<(), HandlerError> {
        Ok(write(tx.connection(), message).await?)
    }
}

/// What a handler does, by its message.
pub(super) trait Act: Send + Sync + 'static {
    fn act(
        &self,
        message: &Message,
        connection: &mut PgConnection,
    ) -> impl Future<Output = Result<(), HandlerError>> + Send;
}

/// A handler that does this.
pub(super) struct Acting<A>(pub(super) A);

impl<A: Act> Handler<Postgres> for Acting<A> {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, Postgres>) -> Result<(), HandlerError> {
        self.0.act(message, tx.connection()).await
    }
}

/// A consumer with limits that suit tests.
pub(super) fn builder(store: Postgres, handler: impl Handler<Postgres>) -> DedupConsumerBuilder<Postgres> {
    DedupConsumer::builder(store, "ledger").handler(handler).effects(Effects::InTransaction)
}

pub(super) fn consumer(store: Postgres, handler: impl Handler<Postgres>) -> DedupConsumer<Postgres> {
    builder(store, handler).busy_timeout(Duration::from_secs(20)).build().unwrap()
}

/// A message of this key, whose payload follows from it.
pub(super) fn msg(key: &str) -> Message {
    Message::new(format!("paid {key}")).with_header("idempotencykey", key.to_owned())
}

pub(super) fn keys(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("order-{number:03}")).collect()
}

pub(super) fn messages(keys: &[String]) -> Vec<Message> {
    keys.iter().map(|key| msg(key)).collect()
}

/// The decisions in one letter each: Processed, Duplicate, Conflict, Busy, and the first of a failure's class.
pub(super) fn letters(decisions: &[Decision]) -> String {
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

pub(super) async fn process(consumer: &DedupConsumer<Postgres>, messages: Vec<Message>) -> String {
    letters(&consumer.process(messages).await.unwrap())
}

/// The start of the consumer whose keys are claimed by hand.
pub(super) fn registration() -> idem_core::Registration {
    idem_core::Registration {
        consumer: ConsumerName::new("by-hand").unwrap(),
        tenant: idem_core::Tenant::default(),
        bound_to: None,
        handler: None,
        key_rule: "k".to_owned(),
        hash_rules: vec!["h".to_owned()],
        retention: idem_core::Retention::For(Duration::from_secs(3600)),
        version: "1".to_owned(),
    }
}

/// A claim of this key in the scope of a consumer that is registered for it.
pub(super) async fn claim_of(store: &Postgres, key: &str) -> (idem_core::Claim, idem_core::RunId) {
    use idem_core::Bookkeeping as _;
    let registered = store.register(&registration()).await.unwrap();
    let claim = idem_core::Claim {
        scope: registered.scope,
        key: idem_core::IdempotencyKey::new(key).unwrap(),
        hash: idem_core::PayloadHash::of(key.as_bytes()),
        hash_rule: registered.hash_rules[0],
        retention: idem_core::Retention::For(Duration::from_secs(3600)),
    };
    (claim, registered.run)
}

/// Limits of a unit by hand.
pub(super) fn options(run: idem_core::RunId, busy: Duration) -> idem_core::UnitOptions {
    idem_core::UnitOptions { run, lane: 0, busy_timeout: busy, idle_timeout: 2 * PATIENCE }
}

pub(super) fn is_held(error: &ClaimError) -> bool {
    matches!(error, ClaimError::Held)
}
