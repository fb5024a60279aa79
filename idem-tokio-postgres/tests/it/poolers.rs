//! A28: PgBouncer in transaction mode, `IDEM_PGBOUNCER_URL`.

use idem_testkit::Decide as _;
use std::time::Duration;

use futures_util::future::join_all;
use idem_core::{Concurrency, HandlerError, Message, Store as _, StoreError, store::Bookkeeping as _};
use idem_tokio_postgres::{
    Pooler, PostgresConnection, PostgresStore,
    tokio_postgres::{Config, NoTls, types::Type},
};

use crate::{
    consumers::{Act, Acting, BOTH, builder, claim_of, consumer, key_of, keys, letters, messages, process},
    fixture::Fixture,
};

pub(crate) fn pooler() -> Config {
    let url = std::env::var("IDEM_PGBOUNCER_URL");
    url.unwrap_or_else(|_| "postgres://idem@127.0.0.1:26432/idem".to_owned()).parse().unwrap()
}

/// A store behind the pooler, as it is set up there: its role is read only by default.
async fn pooled(fixture: &Fixture) -> PostgresStore {
    let config = fixture.pooled(pooler()).await;
    fixture.options_of(config).pooler(Pooler::Transaction).build().unwrap()
}

/// Behind a pooler, handlers name their schema. One statement names its types, the other lets the server find them.
struct Qualified(String);

impl Act for Qualified {
    async fn act(&self, message: &Message, connection: PostgresConnection<'_>) -> Result<(), HandlerError> {
        let typed = format!("INSERT INTO {}.effects VALUES ($1, '', '')", self.0);
        connection.execute_typed(&typed, &[(&key_of(message), Type::TEXT)]).await?;
        let untyped = format!("UPDATE {}.effects SET note = 'seen' WHERE key = $1", self.0);
        connection.execute(&untyped, &[&key_of(message)]).await?;
        Ok(())
    }
}

#[tokio::test]
async fn a28_named_statements_are_refused_at_start() {
    let fixture = Fixture::new().await;
    let error = fixture.options_of(pooler()).build().unwrap().bookkeeping().verify().await.unwrap_err();
    assert!(matches!(&error, StoreError::Refused { cure, .. } if cure.contains("Unnamed")), "{error:?}");
    fixture.drop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a28_unnamed_statements_work() {
    for handlers in BOTH {
        let fixture = Fixture::new().await;
        let store = pooled(&fixture).await;
        assert!(store.migrate().await.unwrap().is_empty());
        store.bookkeeping().verify().await.unwrap();
        let all = keys(60);
        let consumers = (0..3).map(|_| {
            let handler = Acting(Qualified(fixture.schema.quoted()));
            let consumer = builder(store.clone(), handler).lanes(2).handlers(handlers);
            let consumer = consumer.busy_timeout(Duration::from_secs(20)).build().unwrap();
            let all = all.clone();
            async move {
                for batch in all.chunks(7) {
                    let seen = process(&consumer, messages(batch)).await;
                    assert!(seen.chars().all(|letter| matches!(letter, 'P' | 'D')), "{seen}");
                }
            }
        });
        let (claim, _) = claim_of(&store, "attempts").await;
        let bookkeeping = async {
            for number in 1..=30 {
                assert_eq!(
                    store.bookkeeping().count_attempt(claim.scope, &claim.key, claim.hash).await.unwrap(),
                    number
                );
            }
        };
        tokio::join!(join_all(consumers), bookkeeping);
        assert_eq!(fixture.effects().await, all, "{handlers:?}");
        assert_eq!(fixture.text("SELECT count(*) FROM effects WHERE note = 'seen'").await, "60");
        store.disconnect().await;
        fixture.drop_pooled().await;
    }
}

/// A lane behind a pooler knows no server process for certain, so a late handler ends by the claim's.
#[tokio::test]
async fn a28_a_late_handler_is_ended_behind_a_pooler() {
    let fixture = Fixture::new().await;
    let store = pooled(&fixture).await;
    let consumer = builder(store.clone(), Acting(Sleeps)).handlers(Concurrency::pipelined());
    let consumer = consumer.handler_deadline(Duration::from_millis(300)).build().unwrap();
    assert_eq!(process(&consumer, messages(&keys(1))).await, "t");
    fixture.until("SELECT count(*) = 0 FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep(300), 29%'").await;
    store.disconnect().await;
    fixture.drop_pooled().await;
}

struct Sleeps;

impl Act for Sleeps {
    async fn act(&self, _: &Message, connection: PostgresConnection<'_>) -> Result<(), HandlerError> {
        connection.query_typed("SELECT pg_sleep(300), 29", &[]).await?;
        Ok(())
    }
}

/// A40: behind a pooler without the role's setting, the start is refused with what to run.
#[tokio::test]
async fn a40_behind_a_pooler_a_role_that_may_write_by_default_is_refused() {
    let fixture = Fixture::new().await;
    let store = fixture.options_of(pooler()).pooler(Pooler::Transaction).build().unwrap();
    let error = store.bookkeeping().verify().await.unwrap_err();
    let command = "ALTER ROLE \"idem\" SET default_transaction_read_only = on";
    assert!(matches!(&error, StoreError::Refused { cure, .. } if cure.contains(command)), "{error:?}");
    consumer(store.clone(), Acting(Ends(fixture.schema.quoted()))).decisions(messages(&keys(3))).await.unwrap_err();
    assert!(fixture.effects().await.is_empty());
    store.disconnect().await;
    fixture.drop().await;
}

/// Ends its unit with the second message, as no handler may, and goes on writing.
struct Ends(String);

impl Act for Ends {
    async fn act(&self, message: &Message, connection: PostgresConnection<'_>) -> Result<(), HandlerError> {
        if key_of(message) == "order-001" {
            connection.client()?.batch_execute("ROLLBACK").await?;
        }
        let text = format!("INSERT INTO {}.effects VALUES ($1, '', '')", self.0);
        connection.execute_typed(&text, &[(&key_of(message), Type::TEXT)]).await?;
        Ok(())
    }
}

/// A40: behind a pooler, with the role's setting, a handler that ends its unit doubles nothing.
#[tokio::test]
async fn a40_behind_a_pooler_a_handler_that_ends_its_unit_doubles_nothing() {
    let fixture = Fixture::new().await;
    let store = pooled(&fixture).await;
    let ending = consumer(store.clone(), Acting(Ends(fixture.schema.quoted())));
    assert_eq!(process(&ending, messages(&keys(3))).await, "PtP");
    assert_eq!(process(&ending, messages(&keys(3))).await, "DtD");
    assert_eq!(fixture.effects().await, ["order-000", "order-002"]);
    assert_eq!(fixture.recorded().await, ["order-000", "order-002"]);
    store.disconnect().await;
    fixture.drop_pooled().await;
}

/// A41: a connection of one's own is fenced as the store's are, unless it comes through a pooler.
#[tokio::test]
async fn a41_a_connection_that_is_handed_over_is_fenced() {
    let fixture = Fixture::new().await;
    let ending = consumer(fixture.store.clone(), Acting(Ends(fixture.schema.quoted())));
    let (client, connection) = fixture.config.connect(NoTls).await.unwrap();
    let lane = fixture.store.session_from(client, connection).await.unwrap();
    let (_, decisions) = ending.decisions_on(lane, messages(&keys(3))).await.unwrap();
    assert_eq!(letters(&decisions), "PtP");
    assert_eq!(fixture.effects().await, ["order-000", "order-002"]);
    let behind = fixture.options_of(pooler()).pooler(Pooler::Transaction).build().unwrap();
    let (client, connection) = pooler().connect(NoTls).await.unwrap();
    assert!(matches!(behind.session_from(client, connection).await, Err(StoreError::Refused { .. })));
    behind.disconnect().await;
    fixture.drop().await;
}
