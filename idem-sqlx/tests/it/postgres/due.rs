//! Rows that are due: what a look reads, whose rows a login may end, and rows that were deleted by hand.

use std::time::Duration;

use idem_core::{
    ConsumerName, Store as _,
    dead_letter::{DueEnd, DueRoom},
    store::{Bookkeeping as _, RunId},
};
use sqlx::{AssertSqlSafe, ConnectOptions as _};

use super::{
    fixture::Fixture,
    inbox::buffers,
    roles::{arrange, give_up, login},
};

/// Dead letters of a consumer, in this state: 0, or 1 with the lease that a run has since now.
fn fill(consumer: i32, from: u32, rows: u32, state: u32, is_taken: bool) -> String {
    let taken = if is_taken { "now(), 1, session_user" } else { "NULL, NULL, NULL" };
    format!(
        "INSERT INTO dead_letters (consumer, origin, last_origin, reason, attempts, error, payload, payload_bytes, has_payload,
            ordering_key, state, due_at, taken_at, taken_by, taken_login)
        SELECT {consumer}, 'q/' || n, 'q/' || n, 'permanent', 1, '', repeat('x', 200)::bytea, 200, true,
            ('o' || n)::bytea, {state}, CASE WHEN {state} > 0 THEN now() END, {taken}
        FROM generate_series({from}, {from} + {rows} - 1) AS n"
    )
}

async fn consumers(fixture: &Fixture) {
    fixture
        .run(
            "INSERT INTO consumers (id, tenant, name, bound_to, handler, key_rules, hash_rules) OVERRIDING SYSTEM VALUE
            VALUES (1, '', 'orders', '', '', '', ''), (2, '', 'other', '', '', '', ''), (3, 'acme', 'orders', '', '', '', '')",
        )
        .await;
}

/// A hundred thousand dead letters, another consumer's backlog and the rows that other workers have change no plan, whatever the statistics
/// say, and nothing is compiled.
#[tokio::test]
async fn a_look_for_what_is_due_reads_by_the_index() {
    let fixture = Fixture::new().await;
    consumers(&fixture).await;
    let mut connection = fixture.connect().await;
    sqlx::raw_sql("SET jit = on; SET jit_above_cost = 0").execute(&mut connection).await.unwrap();
    let any = "SELECT any_due('orders', 60000000)";
    let take = |rows: u32| format!("SELECT * FROM take_due('orders', 7, {rows}, 8000000, 60000000)");
    for statistics in ["SELECT", "ANALYZE dead_letters, consumers, controls"] {
        fixture.run(fill(1, 1, 50_000, 0, false)).await;
        fixture.run(fill(2, 1, 10_000, 1, false)).await;
        fixture.run(statistics).await;
        for look in [any, &take(100)] {
            let nothing = buffers(&mut connection, look).await;
            assert!(nothing <= 60, "{nothing} pages where nothing is due: {look}, after {statistics}");
        }
    }
    let later = fill(1, 50_001, 20_000, 1, false).replace("THEN now() END", "THEN now() + interval '1 day' END");
    fixture.run(later).await;
    for look in [any, &take(100)] {
        let waiting = buffers(&mut connection, look).await;
        assert!(waiting <= 60, "{waiting} pages where twenty thousand rows wait for their time: {look}");
    }
    let put_aside = "SELECT * FROM put_aside(1, 'q', key_id('k'), 'k', sha256('p'), NULL, 'deadline', 5, '', 'p', 1, true, NULL, NULL, NULL,
        NULL, NULL, sha256('i'), 'f1-0123456789abcdef', 1000000)";
    let behind = put_aside.replace("NULL, NULL, sha256('i')", "NULL, 'o50001', sha256('j')").replace("'k'", "'l'");
    for put in [put_aside, put_aside, &behind, &behind] {
        let pages = buffers(&mut connection, put).await;
        assert!(pages <= 120, "{pages} pages to put one aside: {put}");
    }
    assert_eq!(
        fixture.text("SELECT state FROM dead_letters WHERE idempotency_key = 'l'").await,
        "2",
        "it is behind one"
    );
    let ahead = "SELECT rows_ahead(array_agg(1), array_agg(convert_to('o' || n, 'UTF8'))) FROM generate_series(50001, 50100) AS n";
    let asked = buffers(&mut connection, ahead).await;
    assert!(asked <= 400 + 60, "{asked} pages to see what is ahead of a hundred messages");
    let own = "SELECT sum(x) FROM unnest(rows_ahead(ARRAY[1, 1, 3], ARRAY['o50001', 'o1', 'o50001']::bytea[])) AS x";
    assert_eq!(fixture.text(own).await, "2", "it waits, and is ahead in its own consumer alone");
    fixture.run("DELETE FROM dead_letters WHERE idempotency_key IN ('k', 'l')").await;
    fixture.run(fill(1, 1, 2_000, 1, true)).await;
    for look in [any, &take(100)] {
        let in_hand = buffers(&mut connection, look).await;
        assert!(in_hand <= 300, "{in_hand} pages where other workers have two thousand rows: {look}");
    }
    fixture.run(fill(1, 2_001, 1_000, 1, false)).await;
    let pages = buffers(&mut connection, &take(100)).await;
    assert!(pages <= 100 * 45 + 300, "{pages} pages to take a hundred");
    let settings = "SELECT string_agg(proname, ' ' ORDER BY proname) FROM pg_proc WHERE pronamespace = current_schema()::regnamespace
        AND (proname LIKE '%\\_due' OR proname = 'put_aside') AND proconfig @> ARRAY['jit=off', 'enable_seqscan=off', 'plan_cache_mode=force_generic_plan']";
    assert_eq!(fixture.text(settings).await, "any_due end_due lead_due put_aside release_due renew_due take_due");
    drop(connection);
    fixture.drop().await;
}

/// What is deleted by hand, or erased, keeps nothing waiting that stands behind it.
#[tokio::test]
async fn rows_behind_one_that_was_deleted_are_taken() {
    let fixture = Fixture::new().await;
    consumers(&fixture).await;
    let rows = fill(3, 1, 3, 0, false).replace("('o' || n)", "'o'");
    fixture.run(format!("{rows}; SELECT due_now(ARRAY(SELECT id FROM dead_letters), 'ann')")).await;
    fixture.run("DELETE FROM dead_letters WHERE state = 1").await;
    let orders = ConsumerName::new("orders").unwrap();
    let rows = fixture.store.bookkeeping().take_due(&orders, RunId(1), DueRoom::rows(10)).await.unwrap();
    assert_eq!(rows.iter().map(|row| row.message.origin().as_str()).collect::<Vec<_>>(), ["q/2", "q/3"]);
    fixture.drop().await;
}

/// S57: a login of another service's takes what is due, as any worker may, and neither ends, renews nor gives back what another login has. It
/// writes no state, and makes no row the head of a key.
#[tokio::test]
async fn s57_another_login_ends_no_row() {
    let fixture = Fixture::new().await;
    arrange(&fixture).await;
    consumers(&fixture).await;
    fixture
        .run(format!("{}; SELECT due_now(ARRAY(SELECT id FROM dead_letters), 'ann')", fill(1, 1, 2, 0, false)))
        .await;
    let worker = login(&fixture, "idem_worker").await;
    let store = fixture.options_of(worker.clone()).build().unwrap();
    let orders = ConsumerName::new("orders").unwrap();
    let taken = store.bookkeeping().take_due(&orders, RunId(7), DueRoom::rows(1)).await.unwrap();
    assert_eq!(taken.len(), 1);
    let held = "SELECT concat_ws(' ', state, taken_by, taken_login = '{login}', replay_outcome) FROM dead_letters WHERE taken_by = 7";
    let held = held.replace("{login}", &format!("{}_idem_worker", fixture.schema));
    assert_eq!(fixture.text(&held).await, "1 7 t");
    // The administrator's login, which owns the tables, is another one.
    let other = fixture.store.bookkeeping();
    let ids = [taken[0].id];
    other.end_due(RunId(7), &[(ids[0], DueEnd::Processed)]).await.unwrap();
    other.release_due(RunId(7), &ids).await.unwrap();
    other.renew_due(RunId(7), &ids).await.unwrap();
    assert_eq!(fixture.text(&held).await, "1 7 t");
    let mut thief = worker.connect().await.unwrap();
    for attack in [
        "UPDATE dead_letters SET state = 0, due_at = NULL",
        "UPDATE dead_letters SET taken_at = NULL, taken_by = NULL",
        "UPDATE dead_letters SET due_at = 'infinity'",
        "INSERT INTO dead_letters (consumer, origin, last_origin, reason, attempts, error, payload_bytes, has_payload, state, due_at)
            VALUES (1, 'forged', '', 'permanent', 1, '', 0, false, 1, now())",
        "SELECT lead_due(ARRAY[1], ARRAY['o1'::bytea])",
        "SELECT lock_due(ARRAY[1])",
    ] {
        let refused = sqlx::raw_sql(AssertSqlSafe(attack)).execute(&mut thief).await.unwrap_err();
        let code = refused.as_database_error().and_then(|error| error.code()).unwrap_or_default().into_owned();
        assert_eq!(code, "42501", "{attack}");
    }
    store.bookkeeping().end_due(RunId(7), &[(ids[0], DueEnd::Processed)]).await.unwrap();
    assert_eq!(fixture.text("SELECT count(*) FROM dead_letters WHERE replay_outcome = 'processed'").await, "1");
    drop(thief);
    store.disconnect().await;
    give_up(fixture, &["idem_worker"]).await;
}

/// S57: a login puts a dead letter off that it could have replayed, and no longer than 36 hours. It neither replaces a payload nor fills one in
/// that the row's hash is not of, and a row that runs or waits stays as it is.
#[tokio::test]
async fn s57_what_is_put_aside_replaces_no_payload() {
    let fixture = Fixture::new().await;
    arrange(&fixture).await;
    consumers(&fixture).await;
    let row = |key: &str, payload: &str| {
        format!(
            "INSERT INTO dead_letters (consumer, origin, last_origin, key_id, idempotency_key, payload_hash, reason, attempts, error, payload,
                payload_bytes, has_payload, identity)
            VALUES (1, 'q/1', 'q/1', key_id('{key}'), '{key}', sha256('real'), 'permanent', 1, '', {payload}, 4, true, sha256('{key}'))"
        )
    };
    fixture.run(format!("{}; {}", row("kept", "'real'"), row("large", "NULL"))).await;
    let worker = login(&fixture, "idem_worker").await;
    let mut thief = worker.connect().await.unwrap();
    let put = |key: &str, payload: &str| {
        format!(
            "SELECT count(id) FROM put_aside(1, 'forged', key_id('{key}'), '{key}', sha256('real'), NULL, 'deadline', 2, '', '{payload}', 6,
                true, NULL, NULL, NULL, NULL, NULL, sha256('{key}'), 'f1-0000000000000000', 9000000000000000)"
        )
    };
    for (key, payload, rows) in
        [("kept", "forged", 1), ("kept", "again", 1), ("large", "forged", 0), ("large", "real", 1)]
    {
        let found: i64 = sqlx::query_scalar(AssertSqlSafe(put(key, payload))).fetch_one(&mut thief).await.unwrap();
        assert_eq!(found, rows, "{key}: {payload}");
    }
    let rows = "SELECT string_agg(concat_ws(' ', idempotency_key, convert_from(payload, 'UTF8'), state, attempts, due_at < now() + '37 hours'),
        ', ' ORDER BY id) FROM dead_letters";
    assert_eq!(fixture.text(rows).await, "kept real 1 2 t, large real 1 2 t");
    drop(thief);
    give_up(fixture, &["idem_worker"]).await;
}

/// A follower is put behind a head that ends before the follower is committed. Answers the follower's state then: 1 where it may run.
async fn state_after_a_race(fixture: &Fixture) -> String {
    consumers(fixture).await;
    // Another key has a head, so that nothing looks for rows without one.
    let elsewhere = fill(1, 2, 1, 1, false).replace("now() END", "now() + interval '1 day' END");
    fixture.run(format!("{}; {elsewhere}", fill(1, 1, 1, 1, true).replace("now(), 1,", "now(), 7,"))).await;
    let mut putting = fixture.connect().await;
    sqlx::raw_sql(
        "BEGIN; SELECT FROM put_aside(1, 'q', key_id('k'), 'k', sha256('p'), NULL, 'behind', 0, '', 'p', 1, true, NULL, NULL, NULL, NULL,
            'o1', sha256('i'), 'f1-0123456789abcdef', 0)",
    )
    .execute(&mut putting)
    .await
    .unwrap();
    let mut ending = fixture.connect().await;
    let ended = tokio::spawn(async move {
        let end = "SELECT end_due(ARRAY(SELECT id FROM dead_letters WHERE taken_by = 7), ARRAY['processed'], 7, ARRAY[-1], ARRAY[''],
            ARRAY[0], ARRAY[''], ARRAY[''])";
        sqlx::raw_sql(end).execute(&mut ending).await.unwrap();
    });
    tokio::time::sleep(Duration::from_millis(300)).await;
    sqlx::raw_sql("COMMIT").execute(&mut putting).await.unwrap();
    ended.await.unwrap();
    fixture.text("SELECT state FROM dead_letters WHERE idempotency_key = 'k'").await
}

/// C28: who is ahead is found, and let go, under one lock: without it a follower waits behind nothing, forever.
#[tokio::test]
async fn c28_a_follower_and_the_end_of_its_head_take_turns() {
    let fixture = Fixture::new().await;
    assert_eq!(state_after_a_race(&fixture).await, "1");
    fixture.drop().await;
    let fixture = Fixture::new().await;
    fixture.run("CREATE OR REPLACE FUNCTION lock_due(scopes int[]) RETURNS void LANGUAGE sql AS 'SELECT'").await;
    assert_eq!(state_after_a_race(&fixture).await, "2", "this test sees a missing lock");
    fixture.drop().await;
}
