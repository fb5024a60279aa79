//! A28: PgBouncer in transaction mode, `IDEM_PGBOUNCER_URL`.

use std::time::Duration;

use futures_util::future::join_all;
use idem_core::{Bookkeeping as _, HandlerError, Handlers, Message, StoreError};
use idem_tokio_postgres::{PostgresConnection, Statements, tokio_postgres::Config, tokio_postgres::types::Type};

use crate::{
    consumers::{Act, Acting, BOTH, builder, claim_of, key_of, keys, messages, process},
    fixture::Fixture,
};

fn pooler() -> Config {
    let url = std::env::var("IDEM_PGBOUNCER_URL");
    url.unwrap_or_else(|_| "postgres://idem@127.0.0.1:26432/idem".to_owned()).parse().unwrap()
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
    let error = fixture.options_of(pooler()).build().unwrap().verify().await.unwrap_err();
    assert!(matches!(&error, StoreError::Refused { cure, .. } if cure.contains("Unnamed")), "{error:?}");
    fixture.drop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a28_unnamed_statements_work() {
    for handlers in BOTH {
        let fixture = Fixture::new().await;
        let store = fixture.options_of(pooler()).statements(Statements::Unnamed).build().unwrap();
        assert!(store.migrate().await.unwrap().is_empty());
        store.verify().await.unwrap();
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
                assert_eq!(store.count_attempt(claim.scope, &claim.key, claim.hash).await.unwrap(), number);
            }
        };
        tokio::join!(join_all(consumers), bookkeeping);
        assert_eq!(fixture.effects().await, all, "{handlers:?}");
        assert_eq!(fixture.text("SELECT count(*) FROM effects WHERE note = 'seen'").await, "60");
        store.disconnect().await;
        fixture.drop().await;
    }
}

/// A lane behind a pooler knows no server process for certain, so a late handler ends by the claim's.
#[tokio::test]
async fn a28_a_late_handler_is_ended_behind_a_pooler() {
    let fixture = Fixture::new().await;
    let store = fixture.options_of(pooler()).statements(Statements::Unnamed).build().unwrap();
    let consumer = builder(store.clone(), Acting(Sleeps)).handlers(Handlers::pipelined());
    let consumer = consumer.handler_deadline(Duration::from_millis(300)).build().unwrap();
    assert_eq!(process(&consumer, messages(&keys(1))).await, "t");
    fixture.until("SELECT count(*) = 0 FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep(300), 29%'").await;
    store.disconnect().await;
    fixture.drop().await;
}

struct Sleeps;

impl Act for Sleeps {
    async fn act(&self, _: &Message, connection: PostgresConnection<'_>) -> Result<(), HandlerError> {
        connection.query_typed("SELECT pg_sleep(300), 29", &[]).await?;
        Ok(())
    }
}
