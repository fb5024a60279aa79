//! A28: PgBouncer in transaction mode, `IDEM_PGBOUNCER_URL`.

use idem_testkit::{
    Decide as _,
    memory::{Broker, QueueOptions},
};
use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use idem_core::{
    CancellationToken, Effects, HandlerError, Message, Store as _, StoreError, Worker, store::Bookkeeping as _,
};
use idem_sqlx::{Pooler, PostgresOptions, PostgresStore};
use sqlx::{ConnectOptions as _, Connection as _, PgConnection, postgres::PgConnectOptions};
use tokio::sync::Notify;

use super::{
    consumers::{Act, Acting, builder, consumer, keys, letters, messages, process},
    fixture::Fixture,
};

pub(super) fn pooler() -> PgConnectOptions {
    let url = std::env::var("IDEM_PGBOUNCER_URL");
    url.unwrap_or_else(|_| "postgres://idem@127.0.0.1:26432/idem".to_owned()).parse().unwrap()
}

fn through(fixture: &Fixture, options: PgConnectOptions) -> PostgresOptions {
    fixture.options_of(options)
}

/// A store behind the pooler, as it is set up there: its role is read only by default.
async fn pooled(fixture: &Fixture) -> PostgresStore {
    let options = pooler().username(&fixture.pooled().await);
    through(fixture, options).pooler(Pooler::Transaction).build().unwrap()
}

/// Behind a pooler, handlers name their schema and prepare nothing under a name.
struct Qualified(String);

impl Act for Qualified {
    async fn act(&self, message: &Message, connection: &mut PgConnection) -> Result<(), HandlerError> {
        let text = format!("INSERT INTO {}.effects VALUES ($1, '', '')", self.0);
        let query = sqlx::query(sqlx::AssertSqlSafe(text)).persistent(false);
        query.bind(message.key().map(|key| key.as_str())).execute(connection).await?;
        Ok(())
    }
}

#[tokio::test]
async fn a28_named_statements_are_refused_at_start() {
    let fixture = Fixture::new().await;
    // As sqlx connects by itself, the pooler refuses a setting; without that one, it loses the statements.
    let cures = ["Have PgBouncer ignore it: add extra_float_digits", "Let the pooler track prepared statements"];
    for (options, begin) in [pooler(), pooler().extra_float_digits(None)].into_iter().zip(cures) {
        let error = through(&fixture, options).build().unwrap().bookkeeping().verify().await.unwrap_err();
        // A worker has no flag for the other cure.
        let is_told =
            |cure: &str| cure.starts_with(begin) && cure.contains("a program of your own") && cure.contains("Unnamed");
        assert!(matches!(&error, StoreError::Refused { cure, .. } if is_told(cure)), "{error:?}");
    }
    // One that an application has added is named by its own name.
    let added = pooler().extra_float_digits(None).options([("work_mem", "4MB")]);
    let error = through(&fixture, added).build().unwrap().bookkeeping().verify().await.unwrap_err().to_string();
    let is_named = ["options", "work_mem"].iter().any(|name| error.contains(&format!("the parameter {name} that")));
    assert!(is_named && !error.contains("extra_float_digits") && !error.contains("4MB"), "{error}");
    fixture.drop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a28_unnamed_statements_work() {
    let fixture = Fixture::new().await;
    let store = pooled(&fixture).await;
    assert!(store.migrate().await.unwrap().is_empty());
    store.bookkeeping().verify().await.unwrap();
    let all = keys(60);
    let consumers = (0..3).map(|_| {
        let handler = Acting(Qualified(fixture.schema.quoted()));
        let consumer = builder(store.clone(), handler).lanes(2).busy_timeout(Duration::from_secs(20)).build().unwrap();
        let all = all.clone();
        async move {
            for batch in all.chunks(7) {
                let seen = process(&consumer, messages(batch)).await;
                assert!(seen.chars().all(|letter| matches!(letter, 'P' | 'D')), "{seen}");
            }
        }
    });
    let (claim, _) = super::consumers::claim_of(&store, "attempts").await;
    let bookkeeping = async {
        for number in 1..=30 {
            assert_eq!(store.bookkeeping().count_attempt(claim.scope, &claim.key, claim.hash).await.unwrap(), number);
        }
    };
    tokio::join!(join_all(consumers), bookkeeping);
    assert_eq!(fixture.effects().await, all);
    store.disconnect().await;
    fixture.drop_pooled().await;
}

/// D50: four lanes run messages alone over a pooler with two connections to the server. Lanes that hold a claim each, and want a
/// connection to count their attempt on, see that none is left; no message is given back, none is charged, and all are handled.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d50_lanes_behind_a_small_pool_do_not_wait_for_each_other() {
    let fixture = Fixture::new().await;
    let options = pooler().database("narrow").username(&fixture.pooled().await);
    let store = through(&fixture, options).pooler(Pooler::Transaction);
    let store = store.answer_timeout(Duration::from_secs(1)).build().unwrap();
    let queue = Broker::new().create("orders", QueueOptions::default()).unwrap();
    let all = keys(200);
    messages(&all).into_iter().for_each(|message| drop(queue.publish(message)));
    let handler = Acting(Qualified(fixture.schema.quoted()));
    let consumer = builder(store.clone(), handler).effects(Effects::Outside).handler_deadline(Duration::from_secs(60));
    let worker = Worker::builder(consumer.lanes(4).build().unwrap(), queue.source()).cleanup(None).build().unwrap();
    let stop = CancellationToken::new();
    let running = tokio::spawn(worker.run(stop.clone().cancelled_owned()));
    queue.drained().await;
    stop.cancel();
    let summary = running.await.unwrap().unwrap();
    assert_eq!((summary.processed, summary.dead_lettered, summary.released), (200, 0, 0), "{summary:?}");
    assert_eq!(fixture.effects().await, all);
    store.disconnect().await;
    fixture.drop_pooled().await;
}

/// A lane behind a pooler knows no server process for certain, so a late handler ends by the claim's.
#[tokio::test]
async fn a28_a_late_handler_is_ended_behind_a_pooler() {
    let fixture = Fixture::new().await;
    let store = pooled(&fixture).await;
    let consumer = builder(store.clone(), Acting(Sleeps)).handler_deadline(Duration::from_millis(300)).build().unwrap();
    assert_eq!(process(&consumer, messages(&keys(1))).await, "t");
    fixture.until("SELECT count(*) = 0 FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep(300), 28%'").await;
    store.disconnect().await;
    fixture.drop_pooled().await;
}

struct Sleeps;

impl Act for Sleeps {
    async fn act(&self, _: &Message, connection: &mut PgConnection) -> Result<(), HandlerError> {
        sqlx::raw_sql("SELECT pg_sleep(300), 28").execute(connection).await?;
        Ok(())
    }
}

/// A40: behind a pooler without the role's setting, the start is refused with what to run, because a handler could double
/// its own and its neighbours' effects.
#[tokio::test]
async fn a40_behind_a_pooler_a_role_that_may_write_by_default_is_refused() {
    let fixture = Fixture::new().await;
    let store = through(&fixture, pooler()).pooler(Pooler::Transaction).build().unwrap();
    let error = store.bookkeeping().verify().await.unwrap_err();
    let command = "ALTER ROLE \"idem\" SET default_transaction_read_only = on";
    assert!(matches!(&error, StoreError::Refused { cure, .. } if cure.contains(command)), "{error:?}");
    let consumer = consumer(store.clone(), Acting(Ends(fixture.schema.quoted())));
    consumer.decisions(messages(&keys(3))).await.unwrap_err();
    assert!(fixture.effects().await.is_empty());
    store.disconnect().await;
    fixture.drop().await;
}

/// A40: a role that is read only by default works past the pooler too, with everything that idem runs.
#[tokio::test]
async fn a40_a_role_that_is_read_only_by_default_works_past_the_pooler_too() {
    let fixture = Fixture::new().await;
    let name = fixture.pooled().await;
    let options: PgConnectOptions = super::fixture::url().parse().unwrap();
    let by_role = through(&fixture, options.username(&name)).build().unwrap();
    by_role.bookkeeping().verify().await.unwrap();
    assert!(by_role.migrate().await.unwrap().is_empty());
    assert_eq!(
        process(&consumer(by_role.clone(), Acting(Qualified(fixture.schema.quoted()))), messages(&keys(2))).await,
        "PP"
    );
    by_role.disconnect().await;
    fixture.drop_pooled().await;
}

/// Ends its unit with every second message, as no handler may, and goes on writing.
struct Ends(String);

impl Act for Ends {
    async fn act(&self, message: &Message, connection: &mut PgConnection) -> Result<(), HandlerError> {
        if message.key().is_some_and(|key| key.as_str() == "order-001") {
            sqlx::raw_sql("ROLLBACK").execute(&mut *connection).await?;
        }
        Qualified(self.0.clone()).act(message, connection).await
    }
}

/// Swallows an error, asks for a savepoint, which sqlx answers with a ROLLBACK of the whole unit, and falls back to a plain
/// write.
struct FallsBack(String);

impl Act for FallsBack {
    async fn act(&self, message: &Message, connection: &mut PgConnection) -> Result<(), HandlerError> {
        let _ = sqlx::raw_sql("SELECT 1 / 0").execute(&mut *connection).await;
        assert!(connection.begin().await.is_err());
        Qualified(self.0.clone()).act(message, connection).await
    }
}

/// A40: behind a pooler, with the role's setting, no handler doubles anything: its own effects are refused, and its
/// neighbours' are there once.
#[tokio::test]
async fn a40_behind_a_pooler_a_handler_that_ends_its_unit_doubles_nothing() {
    let fixture = Fixture::new().await;
    let store = pooled(&fixture).await;
    let ending = consumer(store.clone(), Acting(Ends(fixture.schema.quoted())));
    assert_eq!(process(&ending, messages(&keys(3))).await, "PtP");
    assert_eq!(process(&ending, messages(&keys(3))).await, "DtD");
    assert_eq!(fixture.effects().await, ["order-000", "order-002"]);
    assert_eq!(fixture.recorded().await, ["order-000", "order-002"]);
    let falling = consumer(store.clone(), Acting(FallsBack(fixture.schema.quoted())));
    let one = vec![super::consumers::msg("order-009")];
    for _ in 0..2 {
        assert_eq!(process(&falling, one.clone()).await, "t");
    }
    assert_eq!(fixture.effects().await, ["order-000", "order-002"]);
    store.disconnect().await;
    fixture.drop_pooled().await;
}

/// A41: a connection of one's own is fenced as the store's are, and given back as it came.
#[tokio::test]
async fn a41_a_connection_that_is_handed_over_is_fenced() {
    let fixture = Fixture::new().await;
    let consumer = consumer(fixture.store.clone(), Acting(Ends(fixture.schema.quoted())));
    let mut lane = fixture.store.session_from(fixture.connect().await).await.unwrap();
    for expected in ["PtP", "DtD"] {
        let (back, decisions) = consumer.decisions_on(lane, messages(&keys(3))).await.unwrap();
        assert_eq!(letters(&decisions), expected);
        lane = back.unwrap();
    }
    assert_eq!(fixture.effects().await, ["order-000", "order-002"]);
    let lane = fixture.store.session_from(fixture.connect().await).await.unwrap();
    let mut connection = lane.into_connection().await.unwrap();
    sqlx::raw_sql("INSERT INTO effects VALUES ('own', '', '')").execute(&mut connection).await.unwrap();
    // Through a pooler, a session's setting would be the next client's.
    let foreign = pooler().extra_float_digits(None).connect().await.unwrap();
    let behind = through(&fixture, pooler()).pooler(Pooler::Transaction).build().unwrap();
    assert!(matches!(behind.session_from(foreign).await, Err(StoreError::Refused { .. })));
    behind.disconnect().await;
    fixture.drop().await;
}

/// Ends its unit, passes the test the server process that ran it, and never comes back.
struct LetsGo {
    seen: Arc<std::sync::Mutex<i32>>,
    gone: Arc<Notify>,
}

impl Act for LetsGo {
    async fn act(&self, _: &Message, connection: &mut PgConnection) -> Result<(), HandlerError> {
        let pid = sqlx::query_scalar("SELECT pg_backend_pid()").persistent(false).fetch_one(&mut *connection).await?;
        sqlx::raw_sql("ROLLBACK").execute(&mut *connection).await?;
        *self.seen.lock().unwrap() = pid;
        self.gone.notify_one();
        std::future::pending().await
    }
}

/// A42: a handler past its deadline costs the server process that runs its unit, and never one that the pooler has given to
/// another client.
#[tokio::test]
async fn a42_another_client_of_the_pooler_is_not_terminated() {
    let fixture = Fixture::new().await;
    let store = pooled(&fixture).await;
    let (seen, gone) = (Arc::default(), Arc::new(Notify::new()));
    let handler = Acting(LetsGo { seen: Arc::clone(&seen), gone: Arc::clone(&gone) });
    let late = builder(store.clone(), handler).handler_deadline(Duration::from_secs(5)).build().unwrap();
    let others = async {
        gone.notified().await;
        let (mut others, pid) = (Vec::new(), *seen.lock().unwrap());
        // The pooler hands out the connection that was used last; a few clients together have it for certain.
        while others.len() < 8 {
            let mut other = pooler()
                .username(&format!("{}_pooled", fixture.schema))
                .extra_float_digits(None)
                .connect()
                .await
                .unwrap();
            sqlx::raw_sql("BEGIN").execute(&mut other).await.unwrap();
            let query = sqlx::query_scalar("SELECT pg_backend_pid()").persistent(false);
            let own: i32 = query.fetch_one(&mut other).await.unwrap();
            others.push(other);
            if own == pid {
                return others;
            }
        }
        panic!("nobody was given the server process {pid}");
    };
    let (decided, mut others) = tokio::join!(process(&late, messages(&keys(1))), others);
    assert_eq!(decided, "t");
    for other in &mut others {
        sqlx::raw_sql("SELECT 1").execute(other).await.unwrap();
    }
    drop(others);
    store.disconnect().await;
    fixture.drop_pooled().await;
}

/// Notes how durable its commit would be.
struct TellsDurability(String);

impl Act for TellsDurability {
    async fn act(&self, message: &Message, connection: &mut PgConnection) -> Result<(), HandlerError> {
        let text = format!("INSERT INTO {}.effects SELECT $1, '', current_setting('synchronous_commit')", self.0);
        let query = sqlx::query(sqlx::AssertSqlSafe(text)).persistent(false);
        query.bind(message.key().map(|key| key.as_str())).execute(connection).await?;
        Ok(())
    }
}

/// A53: another client of the pooler weakens the commits of the server process that a unit is given next. The unit is no less
/// durable, and no message is charged for it.
#[tokio::test]
async fn a53_what_another_client_of_the_pooler_has_set_weakens_no_commit() {
    let fixture = Fixture::new().await;
    let role = fixture.pooled().await;
    let options = pooler().username(&role);
    let store = through(&fixture, options.clone()).pooler(Pooler::Transaction).build().unwrap();
    let consumer = builder(store.clone(), Acting(TellsDurability(fixture.schema.quoted()))).lanes(1).build().unwrap();
    assert_eq!(process(&consumer, messages(&keys(2))).await, "PP");
    let mut other = options.extra_float_digits(None).connect().await.unwrap();
    sqlx::raw_sql("SET synchronous_commit = off").execute(&mut other).await.unwrap();
    let seen = sqlx::raw_sql("SHOW synchronous_commit").fetch_one(&mut other).await.unwrap();
    assert_eq!(
        sqlx::Row::get_unchecked::<String, _>(&seen, 0),
        "off",
        "the server process is given to the next client"
    );
    assert_eq!(process(&consumer, messages(&keys(4))).await, "DDPP");
    assert_eq!(process(&consumer, messages(&keys(5)[4..])).await, "P");
    // Also for a session that begins on such a process.
    let later = builder(store.clone(), Acting(TellsDurability(fixture.schema.quoted()))).lanes(1).build().unwrap();
    assert_eq!(process(&later, messages(&keys(6)[5..])).await, "P");
    assert_eq!(fixture.texts("SELECT DISTINCT note FROM effects").await, ["on"]);
    drop((consumer, later));
    other.close().await.unwrap();
    store.disconnect().await;
    fixture.drop_pooled().await;
}
