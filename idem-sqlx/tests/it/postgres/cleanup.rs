//! Cleanup on its own connection, under the role that may delete.

use std::{sync::Arc, time::Duration};

use idem_core::{
    ErrorClass, Store as _, StoreError,
    cleanup::{Cleaner, Cleanup, CleanupSettings, Expiring, Removal, Removed},
};
use idem_sql::cleanup_script;
use idem_sqlx::PostgresStore;

use super::{
    consumers::{Write, consumer, keys, messages, msg, process},
    fixture::{Fixture, PATIENCE, url},
    roles::{arrange, give_up, login},
};

const GROUP: &[&str] = &["idem_cleanup"];

/// A schema with the roles, and a cleaner that may do what its role may.
async fn fixture() -> (Fixture, Box<dyn Cleaner>) {
    let fixture = Fixture::new().await;
    arrange(&fixture).await;
    let cleaner = Arc::new(store_of(&fixture, "idem_cleanup").await).cleaner();
    (fixture, cleaner)
}

async fn store_of(fixture: &Fixture, group: &str) -> PostgresStore {
    let connection = login(fixture, group).await;
    fixture.options_of(connection).build().unwrap()
}

fn cleanup(cleaner: Box<dyn Cleaner>, rows_max: u32) -> Cleanup {
    let limit = Duration::from_secs(30);
    let settings = CleanupSettings::default().rows_max(rows_max).step_timeout(limit);
    Cleanup::new(cleaner, settings).unwrap()
}

fn records(rows_max: u32, timeout: Duration) -> Removal {
    Removal { kind: Expiring::Records, kept: Duration::ZERO, rows_max, timeout }
}

/// `expired` records, of which a higher number expired later, and one that has not expired.
async fn fill(fixture: &Fixture, expired: u32) {
    let insert = |key: &str, expiry: &str, count: u32| {
        format!(
            "INSERT INTO processed_messages (key_id, expires_at, consumer, hash_id, processed_by, idempotency_key, payload_hash)
             SELECT key_id('{key}-' || n), {expiry}, 1, 1, 1, '{key}-' || n, sha256('') FROM generate_series(1, {count}) AS n;"
        )
    };
    let expiry = format!("now() - ({expired} - n + 1) * interval '1 second'");
    fixture.run(insert("old", &expiry, expired) + &insert("live", "now() + interval '1 hour'", 1)).await;
}

async fn left(fixture: &Fixture) -> String {
    fixture.text("SELECT count(*) FROM processed_messages").await
}

/// C1, C2: a record that has not expired by the server's clock stays, and an expired record counts until it is removed.
#[tokio::test]
async fn c1_c2_only_what_has_expired_by_the_servers_clock_goes() {
    let (fixture, cleaner) = fixture().await;
    let consumer = consumer(fixture.store.clone(), Write);
    assert_eq!(process(&consumer, vec![msg("a"), msg("b"), msg("c"), msg("d")]).await, "PPPP");
    for (key, expiry) in [("a", "now() - interval '1 s'"), ("b", "now() + interval '1 hour'"), ("c", "'infinity'")] {
        let set = format!("UPDATE processed_messages SET expires_at = {expiry} WHERE idempotency_key = '{key}'");
        fixture.run(set).await;
    }
    assert_eq!(process(&consumer, vec![msg("a")]).await, "D", "it is still there");
    let mut cleanup = cleanup(cleaner, 10_000);
    let report = cleanup.cycle().await.unwrap();
    assert_eq!((report.rows(), report.to_string().as_str()), (1, "1 processed_messages"));
    assert_eq!(fixture.recorded().await, ["b", "c", "d"]);
    assert_eq!(process(&consumer, vec![msg("a"), msg("b"), msg("c"), msg("d")]).await, "PDDD");
    assert_eq!(fixture.texts("SELECT details FROM audit WHERE action = 'cleanup'").await, ["1 processed_messages"]);
    give_up(fixture, GROUP).await;
}

/// C3: records go while their keys are claimed, and two cleaners are in each other's way: every removal permits one more
/// effect, and nothing else does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c3_cleaners_at_work_among_claims_make_no_false_duplicate() {
    let (fixture, cleaner) = fixture().await;
    let consumer = consumer(fixture.store.clone(), Write);
    let keys = keys(5);
    let removed = async {
        let mut runners = [cleanup(cleaner, 3), cleanup(Arc::new(fixture.store.clone()).cleaner(), 2)];
        let (mut removed, mut rounds) = (0, 0);
        while rounds < 50 {
            fixture.run("UPDATE processed_messages SET expires_at = now() - interval '1 s'").await;
            let [one, other] = &mut runners;
            let (one, other) = tokio::join!(one.cycle(), other.cycle());
            let rows = |report: idem_core::cleanup::CleanupReport| report.removed.first().map_or(0, |(_, rows)| *rows);
            removed += rows(one.unwrap()) + rows(other.unwrap());
            rounds += 1;
        }
        usize::try_from(removed).unwrap()
    };
    let stop = tokio::sync::Notify::new();
    let deliveries = async {
        let stopped = stop.notified();
        tokio::pin!(stopped);
        while futures_util::poll!(&mut stopped).is_pending() {
            process(&consumer, messages(&keys)).await;
        }
    };
    let cleaning = async {
        let removed = removed.await;
        stop.notify_one();
        removed
    };
    let ((), removed) = tokio::join!(deliveries, cleaning);
    assert_eq!(fixture.effects().await.len(), fixture.recorded().await.len() + removed);
    assert!(removed > 10, "the cleaners were there: {removed}");
    give_up(fixture, GROUP).await;
}

/// C4: no step removes more than it may, the longest expired go first, and the steps come to an end.
#[tokio::test]
async fn c4_a_large_backlog_goes_in_bounded_steps() {
    let (fixture, mut cleaner) = fixture().await;
    fill(&fixture, 5_500).await;
    assert!(cleaner.backlog().await.unwrap().lag >= Duration::from_secs(5_499));
    let step = cleaner.remove(&records(1_000, Duration::from_secs(30))).await.unwrap();
    assert_eq!((step, left(&fixture).await.as_str()), (Removed::Rows(1_000), "4501"));
    assert_eq!(fixture.text("SELECT count(*) FROM processed_messages WHERE idempotency_key = 'old-1000'").await, "0");
    let backlog = cleaner.backlog().await.unwrap();
    assert!((4_400..5_400).contains(&backlog.lag.as_secs()), "{backlog:?}");
    let mut cleanup = cleanup(cleaner, 1_000);
    let report = cleanup.cycle().await.unwrap();
    assert_eq!((report.rows(), left(&fixture).await.as_str()), (4_500, "1"));
    assert_eq!(cleanup.view().state().backlog.unwrap().lag, Duration::ZERO);
    give_up(fixture, GROUP).await;
}

/// C4: a step that waits for another transaction ends at its limit, says that a smaller one may go well, and leaves nothing
/// behind.
#[tokio::test]
async fn c4_a_step_ends_at_its_limit() {
    let (fixture, mut cleaner) = fixture().await;
    fill(&fixture, 10).await;
    let mut holder = fixture.connect().await;
    let hold = "BEGIN; SELECT FROM processed_messages WHERE idempotency_key = 'old-5' FOR UPDATE";
    sqlx::raw_sql(hold).execute(&mut holder).await.unwrap();
    let error = cleaner.remove(&records(100, Duration::from_millis(200))).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Transient, "{error:?}");
    assert_eq!(left(&fixture).await, "11");
    assert_eq!(cleaner.remove(&records(4, Duration::from_secs(30))).await.unwrap(), Removed::Rows(4), "a smaller one");
    sqlx::raw_sql("ROLLBACK").execute(&mut holder).await.unwrap();
    assert_eq!(cleaner.remove(&records(100, Duration::from_secs(30))).await.unwrap(), Removed::Rows(6));
    give_up(fixture, GROUP).await;
}

/// One cleaner of a schema works at a time, for as long as its transaction lasts; other schemas are not affected.
#[tokio::test]
async fn c4_of_two_cleaners_one_is_elected() {
    let (fixture, mut cleaner) = fixture().await;
    fill(&fixture, 10).await;
    let mut other = fixture.connect().await;
    sqlx::raw_sql("BEGIN; SELECT remove_expired('audit', 1, 0)").execute(&mut other).await.unwrap();
    assert_eq!(cleaner.remove(&records(100, PATIENCE)).await.unwrap(), Removed::Elsewhere);
    sqlx::raw_sql("COMMIT").execute(&mut other).await.unwrap();
    assert_eq!(cleaner.remove(&records(100, PATIENCE)).await.unwrap(), Removed::Rows(10));
    give_up(fixture, GROUP).await;
}

/// C16: a session that holds the lock of cleanup and removes nothing is named, and the cycle is not done.
#[tokio::test]
async fn c16_the_session_that_keeps_cleanup_from_its_lock_is_named() {
    let (fixture, cleaner) = fixture().await;
    fill(&fixture, 10).await;
    let mut other = fixture.connect().await;
    sqlx::raw_sql("BEGIN; SELECT FROM migrations WHERE version = 1 FOR UPDATE").execute(&mut other).await.unwrap();
    let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut other).await.unwrap();
    let settings = CleanupSettings::default().step_timeout(Duration::from_millis(10));
    let mut cleanup = Cleanup::new(cleaner, settings).unwrap();
    let error = cleanup.cycle().await.unwrap_err();
    let text = std::error::Error::source(&error).unwrap().to_string();
    assert!(text.contains(&format!("process {pid} (login ")) && text.contains("holds the lock of cleanup"), "{text}");
    assert_eq!((cleanup.view().state().failed_cycles, left(&fixture).await.as_str()), (1, "11"));
    sqlx::raw_sql("COMMIT").execute(&mut other).await.unwrap();
    assert_eq!(cleanup.cycle().await.unwrap().rows(), 10);
    give_up(fixture, GROUP).await;
}

const AGED: &str = "
    INSERT INTO worker_runs (host, process, version, started_at) SELECT 'host', 1, '1', now() - interval '400 d'
        FROM generate_series(1, 5);
    INSERT INTO units (xid, run, lane, at) VALUES (1, 1, 0, now() - interval '25 h'), (2, 2, 0, now() - interval '23 h');
    INSERT INTO message_attempts (key_id, consumer, attempts, idempotency_key, payload_hash, last_at)
        VALUES (key_id('a'), 1, 1, 'a', '', now() - interval '8 d'), (key_id('b'), 1, 1, 'b', '', now() - interval '6 d');
    INSERT INTO dead_letters (consumer, origin, last_origin, reason, attempts, error, payload_bytes, has_payload, first_at, last_at,
        replayed_at, state, due_at, taken_at, taken_by)
    VALUES (1, 'old', '', 'permanent', 1, '', 0, false, now() - interval '32 d', now() - interval '31 d', NULL, 0, NULL, NULL, NULL),
        (1, 'replayed', '', 'permanent', 1, '', 0, false, now() - interval '32 d', now() - interval '31 d', now(), 0, NULL, NULL, NULL),
        (1, 'awaits', '', 'permanent', 1, '', 0, false, now() - interval '32 d', now() - interval '31 d', NULL, 1, now(), now(), 3),
        (1, 'recent', '', 'permanent', 1, '', 0, false, now() - interval '32 d', now() - interval '29 d', NULL, 0, NULL, NULL, NULL);
    INSERT INTO audit (at, who, action) VALUES (now() - interval '366 d', 'x', 'old'), (now() - interval '364 d', 'x', 'new');
    INSERT INTO processed_messages (key_id, expires_at, consumer, hash_id, processed_by, idempotency_key, payload_hash)
        VALUES (key_id('a'), now() - interval '1 s', 1, 1, 5, 'a', sha256('')),
            (key_id('b'), now() + interval '1 h', 1, 1, 4, 'b', sha256(''));
    INSERT INTO forgotten (key_id, processed_at, expires_at, forgotten_at, batch, consumer, hash_id, processed_by, idempotency_key,
        payload_hash)
    VALUES (key_id('c'), now(), now(), now() - interval '31 d', 1, 1, 1, 1, 'c', ''),
        (key_id('d'), now(), now(), now() - interval '29 d', 2, 1, 1, 1, 'd', '');";

/// Rows of idem's that would refuse a COMMIT that idem did not send, as an administrator writes them.
async fn age(fixture: &Fixture) {
    fixture.run(format!("BEGIN; SET LOCAL session_replication_role = replica; {AGED}; COMMIT")).await;
}

async fn assert_cleaned(fixture: &Fixture) {
    for (query, left) in [
        ("SELECT idempotency_key FROM processed_messages", &["b"][..]),
        ("SELECT xid::text FROM units", &["2"]),
        ("SELECT idempotency_key FROM message_attempts", &["b"]),
        ("SELECT origin FROM dead_letters ORDER BY id", &["awaits", "recent"]),
        ("SELECT action FROM audit ORDER BY at", &["new", "cleanup"]),
        ("SELECT idempotency_key FROM forgotten", &["d"]),
    ] {
        assert_eq!(fixture.texts(query).await, left, "{query}");
    }
}

/// S7: every table has an end of its own. A dead letter that awaits a replay stays, and so does a run while anything names
/// it.
#[tokio::test]
async fn s7_every_table_has_an_end_and_what_is_still_needed_stays() {
    let (fixture, mut cleaner) = fixture().await;
    age(&fixture).await;
    let expected = [1, 1, 1, 2, 1];
    let preview = cleaner.preview(&CleanupSettings::default()).await.unwrap();
    let preview: Vec<u64> = preview.iter().map(|(_, rows)| *rows).collect();
    assert_eq!(preview, [1, 1, 1, 2, 1, 0, 1, 0], "every run is named by something that is still there");
    let report = cleanup(cleaner, 100).cycle().await.unwrap();
    let mut removed: Vec<u64> = report.removed.iter().map(|(_, rows)| *rows).collect();
    assert_eq!(removed.pop(), Some(0), "no answer is over");
    assert_eq!(removed.pop(), Some(1), "what was forgotten long ago");
    assert_eq!(removed.pop(), Some(2), "runs 1 and 5, whose units and records are gone");
    assert_eq!(removed, expected);
    assert_cleaned(&fixture).await;
    assert_eq!(fixture.texts("SELECT id::text FROM worker_runs ORDER BY id").await, ["2", "3", "4"]);
    give_up(fixture, GROUP).await;
}

/// The same as a script for the database's own scheduler, under the same role.
#[tokio::test]
async fn s7_the_script_removes_the_same() {
    let (fixture, _) = fixture().await;
    age(&fixture).await;
    let settings = CleanupSettings::default().rows_max(2);
    let role = format!("SET ROLE {}_idem_cleanup", fixture.schema);
    let mut connection = fixture.connect().await;
    sqlx::raw_sql(sqlx::AssertSqlSafe(role)).execute(&mut connection).await.unwrap();
    let script = cleanup_script(&settings, &fixture.schema);
    sqlx::raw_sql(sqlx::AssertSqlSafe(script)).execute(&mut connection).await.unwrap();
    assert_cleaned(&fixture).await;
    drop(connection);
    give_up(fixture, GROUP).await;
}

/// C15: the script writes down what it has removed when a minute is over, here at once.
#[tokio::test]
async fn c15_the_script_writes_down_what_it_removed() {
    let (fixture, _) = fixture().await;
    fill(&fixture, 5).await;
    let script = cleanup_script(&CleanupSettings::default().rows_max(2), &fixture.schema);
    let script = script.replace("interval '1 minute'", "interval '0'");
    let role = format!("SET ROLE {}_idem_cleanup", fixture.schema);
    let mut connection = fixture.connect().await;
    for text in [role, script] {
        sqlx::raw_sql(sqlx::AssertSqlSafe(text)).execute(&mut connection).await.unwrap();
    }
    let lines =
        fixture.texts("SELECT action || ': ' || details FROM audit WHERE action LIKE 'cleanup%' ORDER BY id").await;
    let part = "cleanup-part: 2 rows";
    assert_eq!(lines, [part, part, "cleanup-part: 1 rows", "cleanup: 0 rows"]);
    drop(connection);
    give_up(fixture, GROUP).await;
}

/// S8: a worker's role may not delete, knows it beforehand, and gets the cure in the error; it can read who cleaned last.
#[tokio::test]
async fn s8_a_worker_may_not_clean_and_can_tell_who_does() {
    let (fixture, mut cleaner) = fixture().await;
    let mut worker = Arc::new(store_of(&fixture, "idem_worker").await).cleaner();
    assert!(cleaner.may_delete().await.unwrap() && !worker.may_delete().await.unwrap());
    assert!(worker.last().await.unwrap().is_none());
    let refused = worker.remove(&records(10, Duration::from_secs(30))).await;
    assert!(matches!(refused, Err(StoreError::Refused { cure, .. }) if cure.contains("idem_cleanup")));
    cleanup(cleaner, 100).cycle().await.unwrap();
    let last = worker.last().await.unwrap().unwrap();
    assert!(last.who.contains(&std::process::id().to_string()) && last.ago < Duration::from_secs(60), "{last:?}");
    worker.rest().await;
    give_up(fixture, &["idem_cleanup", "idem_worker"]).await;
}

/// C9: after six turnovers the table takes hardly more room than after the first: removed rows' space is used again.
///
/// In a database of its own, because a snapshot that is held anywhere in a database keeps VACUUM from making room there.
#[tokio::test]
async fn c9_turnovers_leave_no_bloat() {
    let shared = Fixture::new().await;
    let database = shared.schema.to_string();
    shared.run(format!("CREATE DATABASE {database}")).await;
    let server = url();
    let fixture = Fixture::on(&format!("{}/{database}", server.rsplit_once('/').unwrap().0)).await;
    let mut cleanup = cleanup(Arc::new(fixture.store.clone()).cleaner(), 1_000);
    let mut sizes = Vec::new();
    for _ in 0..6 {
        fill(&fixture, 5_000).await;
        assert_eq!(cleanup.cycle().await.unwrap().rows(), 5_000);
        fixture.run("DELETE FROM processed_messages").await;
        // Autovacuum would do this at a time of its own.
        fixture.run("VACUUM processed_messages").await;
        let size = "SELECT pg_relation_size('processed_messages')::text";
        sizes.push(fixture.text(size).await.parse::<u64>().unwrap());
    }
    // Without its indexes, whose emptied pages wait for transactions of other databases too.
    assert!(sizes[5] <= 2 * sizes[0], "{sizes:?}");
    let settings = "SELECT array_to_string(reloptions, ' ') FROM pg_class WHERE oid = 'processed_messages'::regclass";
    assert!(fixture.text(settings).await.contains("autovacuum_vacuum_scale_factor=0.02"));
    fixture.drop().await;
    shared.run(format!("DROP DATABASE {database}")).await;
    shared.drop().await;
}

/// C1: the record is what keeps a redelivery away, and no more than that: once it has expired and is gone, the same message
/// takes effect a second time. So a retention is longer than the broker may deliver again.
#[tokio::test]
async fn c1_a_redelivery_after_its_record_is_gone_takes_effect_again() {
    let (fixture, cleaner) = fixture().await;
    let consumer = super::consumers::consumer(fixture.store.clone(), super::consumers::Write);
    assert_eq!(super::consumers::process(&consumer, vec![super::consumers::msg("c1")]).await, "P");
    fixture.run("UPDATE processed_messages SET expires_at = now() WHERE idempotency_key = 'c1'").await;
    assert_eq!(
        super::consumers::process(&consumer, vec![super::consumers::msg("c1")]).await,
        "D",
        "until it is removed"
    );
    cleanup(cleaner, 100).cycle().await.unwrap();
    assert_eq!(super::consumers::process(&consumer, vec![super::consumers::msg("c1")]).await, "P");
    assert_eq!(fixture.effects().await.iter().filter(|key| *key == "c1").count(), 2);
    drop(consumer);
    give_up(fixture, GROUP).await;
}
