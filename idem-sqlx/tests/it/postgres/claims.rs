//! Competing claims, seen from SQL.

use idem_testkit::Decide as _;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::future::join_all;
use idem_core::{
    Decision, HandlerError, Store as _,
    cleanup::{Expiring, Removal, Removed},
    store::{Claimed, UnitOfWork as _},
};

use super::{
    consumers::{Write, builder, claim_of, consumer, is_held, keys, messages, msg, options, process},
    fixture::{Fixture, PATIENCE},
};

#[tokio::test]
async fn b2_fifty_waiters_are_bounded_and_let_others_through() {
    let fixture = Fixture::new().await;
    let store = &fixture.store;
    let (claim, run) = claim_of(store, "held").await;
    let lane = store.open().await.unwrap();
    let mut holder = store.begin(lane, options(run, Duration::from_secs(5))).await.unwrap();
    assert_eq!(holder.claim(std::slice::from_ref(&claim)).await.unwrap(), [Claimed::Inserted]);

    let waiting = (0..50).map(|_| async {
        let lane = store.open().await.unwrap();
        let mut unit = store.begin(lane, options(run, Duration::from_millis(400))).await.unwrap();
        let error = unit.claim(std::slice::from_ref(&claim)).await.unwrap_err();
        assert!(is_held(&error), "{error:?}");
        unit.rollback().await.unwrap();
    });
    let (free, _) = claim_of(store, "free").await;
    let other = async {
        let lane = store.open().await.unwrap();
        let mut unit = store.begin(lane, options(run, Duration::from_secs(5))).await.unwrap();
        assert_eq!(unit.claim(&[free]).await.unwrap(), [Claimed::Inserted]);
        unit.commit().await.1.unwrap();
    };
    // The holder goes on holding until all of them have come back.
    let all = Box::pin(async { tokio::join!(join_all(waiting), other) });
    tokio::time::timeout(PATIENCE, all).await.expect("every wait ends by itself");
    holder.rollback().await.unwrap();
    assert_eq!(fixture.recorded().await, ["free"]);
    fixture.drop().await;
}

/// `lock_timeout` counts anew for each lock; the whole claim is bounded all the same.
#[tokio::test]
async fn b2_many_held_keys_cost_one_busy_timeout() {
    let fixture = Fixture::new().await;
    let store = &fixture.store;
    let (_, run) = claim_of(store, "x").await;
    let (mut claims, mut holders) = (Vec::new(), Vec::new());
    for key in keys(5) {
        claims.push(claim_of(store, &key).await.0);
        holders.push(store.open().await.unwrap());
    }
    let mut units = Vec::new();
    for (lane, claim) in holders.into_iter().zip(&claims) {
        let mut unit = store.begin(lane, options(run, Duration::from_secs(5))).await.unwrap();
        unit.claim(std::slice::from_ref(claim)).await.unwrap();
        units.push(unit);
    }
    let lane = store.open().await.unwrap();
    let mut unit = store.begin(lane, options(run, Duration::from_secs(1))).await.unwrap();
    let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(unit.tx().connection()).await.unwrap();
    // By the server's clock each key is held for less than the limit of one lock, and together for much longer.
    let waits = format!(
        "SELECT count(*) > 0 FROM pg_locks WHERE pid = {pid} AND NOT granted
            AND waitstart < clock_timestamp() - interval '500 ms'"
    );
    let one_after_the_other = async {
        for held in units {
            fixture.until(&waits).await;
            held.rollback().await.unwrap();
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        answer = unit.claim(&claims) => assert!(is_held(&answer.unwrap_err())),
        () = one_after_the_other => {}
    }
    unit.rollback().await.unwrap();
    fixture.drop().await;
}

/// The limits of the claim are gone when handlers run, and a second claim has them again.
#[tokio::test]
async fn b2_the_sessions_own_limits_are_put_back() {
    let fixture = Fixture::new().await;
    let store = &fixture.store;
    let mut connection = fixture.connect().await;
    sqlx::raw_sql("SET lock_timeout = '7s'; SET statement_timeout = '9s'").execute(&mut connection).await.unwrap();
    let lane = store.session_from(connection).await.unwrap();
    let (claim, run) = claim_of(store, "a").await;
    let mut unit = store.begin(lane, options(run, Duration::from_secs(3))).await.unwrap();
    let shown = "SELECT current_setting('lock_timeout') || ' ' || current_setting('statement_timeout')";
    for _ in 0..2 {
        unit.claim(std::slice::from_ref(&claim)).await.unwrap();
        let limits: String = sqlx::query_scalar(shown).fetch_one(unit.tx().connection()).await.unwrap();
        assert_eq!(limits, "7s 9s");
    }
    let (lane, committed) = unit.commit().await;
    committed.unwrap();
    let mut connection = lane.unwrap().into_connection().await.unwrap();
    let limits: String = sqlx::query_scalar(shown).fetch_one(&mut connection).await.unwrap();
    assert_eq!(limits, "7s 9s");
    fixture.drop().await;
}

/// B2: a session of the store's own has the limits of the claim from its first unit on, and has them again where a handler has
/// changed them.
#[tokio::test]
async fn b2_a_session_has_the_limits_of_its_claims_once() {
    let fixture = Fixture::new().await;
    let store = &fixture.store;
    let mut lane = store.open().await.unwrap();
    let run = claim_of(store, "a").await.1;
    let mut seen = Vec::new();
    for key in ["a", "b", "c", "d", "e", "f"] {
        let claim = claim_of(store, key).await.0;
        let mut unit = store.begin(lane, options(run, Duration::from_secs(3))).await.unwrap();
        let shown = "SELECT current_setting('statement_timeout') || ' ' || current_setting('idle_in_transaction_session_timeout')";
        let before: String = sqlx::query_scalar(shown).fetch_one(unit.tx().connection()).await.unwrap();
        unit.claim(std::slice::from_ref(&claim)).await.unwrap();
        let of_handlers: String = sqlx::query_scalar(shown).fetch_one(unit.tx().connection()).await.unwrap();
        let changed = match key {
            "b" => "SET statement_timeout = 0",
            "d" => "SET idle_in_transaction_session_timeout = 0",
            _ => "",
        };
        sqlx::raw_sql(changed).execute(unit.tx().connection()).await.unwrap();
        let (session, committed) = unit.commit().await;
        committed.unwrap();
        lane = session.unwrap();
        seen.push((before, of_handlers));
    }
    let idle = seen[0].0.strip_prefix("3s ").unwrap();
    assert!(idle != "0");
    let before = [("3s", idle), ("3s", idle), ("0", idle), ("3s", idle), ("3s", "0"), ("3s", idle)];
    let wanted = before.map(|(limit, idle)| (format!("{limit} {idle}"), format!("0 {idle}")));
    assert_eq!(seen, wanted);
    fixture.drop().await;
}

/// B3, C3: records vanish between claim and read, and no message is lost or handled twice while its record is
/// there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b3_c3_a_cleaner_between_claim_and_read_makes_no_false_duplicate() {
    let fixture = Fixture::new().await;
    let consumer = Arc::new(builder(fixture.store.clone(), Write).lanes(4).build().unwrap());
    let keys = keys(5);
    // Four lanes, five keys: 1,000 claims, or 100,000 under `./test --all`.
    let calls = if std::env::var_os("IDEM_TEST_ALL").is_some() { 5_000 } else { 50 };
    let is_done = AtomicBool::new(false);
    let deliveries = async {
        let rounds = (0..4).map(|_| async {
            let mut processed = 0;
            for _ in 0..calls {
                for decision in consumer.decisions(messages(&keys)).await.unwrap() {
                    match decision {
                        Decision::Processed(_) => processed += 1,
                        Decision::Duplicate(..) | Decision::Busy => {}
                        // The cleaner was faster three times in a row: the message comes back.
                        Decision::Failed(failure) if failure.text.contains("neither inserted nor found") => {}
                        other => panic!("{other:?}"),
                    }
                }
            }
            processed
        });
        let processed = join_all(rounds).await.into_iter().sum::<usize>();
        is_done.store(true, Ordering::SeqCst);
        processed
    };
    let removal =
        Removal { kind: Expiring::Records, kept: Duration::ZERO, rows_max: 3, timeout: Duration::from_secs(30) };
    let mut cleaner = Arc::new(fixture.store.clone()).cleaner();
    let cleaning = async {
        let mut cleaned = 0;
        while !is_done.load(Ordering::SeqCst) {
            fixture.run("UPDATE processed_messages SET expires_at = now() - interval '1 s'").await;
            let Removed::Rows(rows) = cleaner.remove(&removal).await.unwrap() else { panic!("there is one cleaner") };
            cleaned += rows;
        }
        usize::try_from(cleaned).unwrap()
    };
    let (processed, cleaned) = tokio::join!(deliveries, cleaning);
    // Each removal permits one more effect, and nothing else does.
    let effects = fixture.effects().await.len();
    let left = fixture.recorded().await.len();
    assert_eq!(effects, processed);
    assert_eq!(effects, left + cleaned);
    assert!(cleaned > 10, "the cleaner was there: {cleaned}");
    fixture.drop().await;
}

/// Writes under which isolation it runs.
struct Isolation;

impl super::consumers::Act for Isolation {
    async fn act(&self, _: &idem_core::Message, connection: &mut sqlx::PgConnection) -> Result<(), HandlerError> {
        let text = "INSERT INTO effects VALUES (current_setting('transaction_isolation'), '', '')";
        Ok(sqlx::query(text).execute(connection).await.map(|_| ())?)
    }
}

/// B4, B5: units say READ COMMITTED themselves, so no default of the session's makes the verdict rest on a snapshot.
#[tokio::test]
async fn b4_repeatable_read_by_default_gives_an_answer_at_once() {
    let fixture = Fixture::new().await;
    for level in ["repeatable read", "serializable"] {
        let mut lanes = Vec::new();
        for _ in 0..2 {
            let mut connection = fixture.connect().await;
            let text = format!("SET default_transaction_isolation = '{level}'");
            sqlx::raw_sql(sqlx::AssertSqlSafe(text)).execute(&mut connection).await.unwrap();
            lanes.push(fixture.store.session_from(connection).await.unwrap());
        }
        let consumer = consumer(fixture.store.clone(), super::consumers::Acting(Isolation));
        let message = || vec![msg(level)];
        let (second, first) = (lanes.pop().unwrap(), lanes.pop().unwrap());
        let (one, two) =
            tokio::join!(consumer.decisions_on(first, message()), consumer.decisions_on(second, message()));
        let mut seen = [one, two].map(|answer| super::consumers::letters(&answer.unwrap().1)).concat();
        if seen == "DP" {
            seen = "PD".to_owned();
        }
        assert_eq!(seen, "PD", "{level}");
    }
    assert_eq!(fixture.recorded().await, ["repeatable read", "serializable"]);
    assert_eq!(fixture.effects().await, ["read committed"; 2]);
    fixture.drop().await;
}

/// Wants a second connection for each message.
struct SecondConnection(sqlx::PgPool);

impl super::consumers::Act for SecondConnection {
    async fn act(&self, message: &idem_core::Message, connection: &mut sqlx::PgConnection) -> Result<(), HandlerError> {
        let mut second = self.0.acquire().await?;
        sqlx::query("SELECT 1").execute(&mut *second).await?;
        Ok(super::consumers::write(connection, message).await?)
    }
}

/// A19: handlers that each want a second connection from a pool of one, on more lanes than that pool has: lanes own their
/// connections, so no handler waits for one that a waiter holds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a19_a_pool_smaller_than_the_lanes_does_not_deadlock() {
    let fixture = Fixture::new().await;
    let pool = sqlx::postgres::PgPoolOptions::new().max_connections(1).connect_lazy_with(fixture.connection.clone());
    let store = fixture.options().connections(1).build().unwrap();
    let consumer = builder(store, super::consumers::Acting(SecondConnection(pool))).lanes(4).build().unwrap();
    let keys = keys(40);
    let calls: Vec<_> = keys
        .chunks(10)
        .map(|keys| {
            let (consumer, messages) = (consumer.clone(), super::consumers::messages(keys));
            tokio::spawn(async move { process(&consumer, messages).await })
        })
        .collect();
    for call in calls {
        let seen = tokio::time::timeout(Duration::from_secs(30), call).await.unwrap().unwrap();
        assert_eq!(seen, "PPPPPPPPPP");
    }
    assert_eq!(fixture.effects().await, keys);
    fixture.drop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b17_eight_workers_in_opposite_orders_never_deadlock() {
    let fixture = Fixture::new().await;
    // The server would end a deadlock, and the engine would run its unit again. Here the server does not look, so that
    // one hangs until the test's patience is over.
    let blind = fixture.connection.clone().options([("deadlock_timeout", "1h")]);
    let store = fixture.options_of(blind).build().unwrap();
    let all = keys(1000);
    let workers = (0..8).map(|worker| {
        let consumer = builder(store.clone(), Write).lanes(1).busy_timeout(PATIENCE * 5).build().unwrap();
        let all = &all;
        async move {
            for batch in all.chunks(100) {
                let mut messages = messages(batch);
                if worker % 2 == 1 {
                    messages.reverse();
                }
                let answers = process(&consumer, messages).await;
                assert!(answers.chars().all(|answer| matches!(answer, 'P' | 'D')), "{answers}");
            }
        }
    });
    tokio::time::timeout(PATIENCE, join_all(workers)).await.expect("no deadlock");
    assert_eq!(fixture.effects().await, all, "each effect once");
    fixture.drop().await;
}

/// B1: four consumers with connections of their own are given the same messages at once, each in another order: each message
/// takes effect once. 200 keys, or 10,000 under `./test --all`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b1_consumers_that_race_for_many_keys_run_each_once() {
    let fixture = Fixture::new().await;
    let mut all = keys(if std::env::var_os("IDEM_TEST_ALL").is_some() { 10_000 } else { 200 });
    all.sort_unstable();
    let race = (0..4).map(|place| {
        let consumer = builder(fixture.store.clone(), Write).lanes(1).build().unwrap();
        let mut mine = all.clone();
        mine.rotate_left(place * all.len() / 8);
        async move {
            let mut processed = 0;
            for chunk in mine.chunks(50) {
                let mut left = chunk.to_vec();
                while !left.is_empty() {
                    let decisions = consumer.decisions(messages(&left)).await.unwrap();
                    processed += decisions.iter().filter(|decision| decision.is_processed()).count();
                    // A key that another unit holds comes back.
                    let back = left.iter().zip(&decisions).filter(|(_, decision)| matches!(decision, Decision::Busy));
                    left = back.map(|(key, _)| key.clone()).collect();
                }
            }
            processed
        }
    });
    assert_eq!(join_all(race).await.into_iter().sum::<usize>(), all.len());
    assert_eq!(fixture.effects().await, all);
    fixture.drop().await;
}
