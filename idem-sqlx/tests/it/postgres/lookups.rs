//! The functions of the outbox read no more of its indexes than they need, with any statistics.

use std::sync::Arc;

use idem_core::{
    Store as _,
    outbox::{EventEnd, EventState, Outbox},
};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, Row as _};

use super::fixture::Fixture;

/// How many events there are, and how many there were.
const EVENTS: i64 = 400;
const GONE: i64 = 20_000;

/// The statistics that a server may have of the outbox before the events come.
const STATES: [(&str, &[&str]); 6] = [
    ("never analysed", &["{gone}", "DELETE FROM outbox"]),
    ("analysed when nothing was alive", &["{gone}", "DELETE FROM outbox", "ANALYZE outbox"]),
    ("analysed when it was tiny", &["{three}", "ANALYZE outbox", "{gone}", "DELETE FROM outbox"]),
    ("analysed when it was full", &["{gone}", "ANALYZE outbox", "DELETE FROM outbox"]),
    // The values are known, and the table to have no row: nothing is alive, and an old snapshot keeps what is dead.
    ("analysed full, then empty", &["{gone}", "ANALYZE outbox", "DELETE FROM outbox", "ANALYZE outbox"]),
    ("analysed full, vacuumed empty", &["{gone}", "ANALYZE outbox", "DELETE FROM outbox", "VACUUM outbox"]),
];

/// Of the events, pending ones have a number of their own, and others, where the look is to pass by a destination's pending ones.
const PENDING: &str = "ARRAY(SELECT number FROM known WHERE state = 0)";
const HELD: &str = "ARRAY(SELECT number FROM known WHERE state <> 0)";

fn put(events: i64) -> String {
    format!(
        "INSERT INTO outbox (number, destination, consumer, key_id, event_key, event_hash, ordering_key, state, payload)
         SELECT nextval('outbox_numbers'), (SELECT id FROM outbox_destinations), (SELECT id FROM consumers), gen_random_uuid(),
             'k' || n, '', CASE WHEN {events} <= {EVENTS} THEN convert_to((n % 97)::text, 'UTF8') END,
             CASE n % 10 WHEN 0 THEN 2 WHEN 1 THEN 3 ELSE 0 END, repeat('x', 300)::bytea
         FROM generate_series(1, {events}) AS n"
    )
}

/// How many entries of the outbox's indexes a call reads, and how many of its rows one after the other. It is undone.
async fn entries_read(connection: &mut PgConnection, call: &str) -> i64 {
    let read = "SELECT sum(pg_stat_get_xact_tuples_returned(read.id))::int8 FROM (
            SELECT indexrelid FROM pg_index WHERE indrelid = 'outbox'::regclass
            UNION ALL SELECT 'outbox'::regclass) AS read (id)";
    let mut calling = connection.begin().await.unwrap();
    let before: i64 = sqlx::query(read).fetch_one(&mut *calling).await.unwrap().get(0);
    sqlx::raw_sql(AssertSqlSafe(call)).execute(&mut *calling).await.unwrap();
    let after: i64 = sqlx::query(read).fetch_one(&mut *calling).await.unwrap().get(0);
    calling.rollback().await.unwrap();
    after - before
}

/// O39: after an outbox was emptied, every index costs the planner the same. Each event is found by a handful of entries
/// all the same, and not by all that are there.
#[tokio::test]
async fn o39_events_are_found_by_their_own_index_whatever_the_statistics_say() {
    for (state, steps) in STATES {
        let fixture = Fixture::new().await;
        fixture.store.plain_outbox("writer", ["payments"]).await.unwrap();
        // The planner gets its statistics from this test alone.
        fixture.run("ALTER TABLE outbox SET (autovacuum_enabled = off)").await;
        let mut reader = fixture.connect().await;
        let mut snapshot = reader.begin().await.unwrap();
        sqlx::raw_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT 1")
            .execute(&mut *snapshot)
            .await
            .unwrap();
        for step in steps {
            fixture.run(step.replace("{gone}", &put(GONE)).replace("{three}", &put(3))).await;
        }
        let first = "UPDATE outbox_destinations SET pending_from = (SELECT last_value FROM outbox_numbers)";
        fixture.run(format!("{first}; {}", put(EVENTS))).await;
        fixture.run("CREATE TABLE known AS SELECT number, state, event_key FROM outbox").await;

        let id = fixture.text("SELECT id FROM outbox_destinations").await;
        let others = format!(
            "(SELECT json_agg(json_build_object('number', number, 'key', event_key, 'state', 1, 'after', 5, 'counted', true)) FROM known \
             WHERE number IN (SELECT unnest({PENDING}) UNION SELECT unnest({HELD})))"
        );
        let mut connection = fixture.connect().await;
        let [pending_keys, held_keys] = [PENDING, HELD].map(|numbers| numbers.replace("number", "event_key"));
        for call in [
            format!("SELECT next_events({id}, {EVENTS}, 1000000)"),
            format!("SELECT mark_behind({id}, {PENDING})"),
            format!("SELECT settle_events({id}, {PENDING}, {pending_keys}, '[]')"),
            format!("SELECT settle_events({id}, {HELD}, {held_keys}, '[]')"),
            format!("SELECT settle_events({id}, '{{}}', '{{}}', {others})"),
            format!("SELECT retry_events({HELD}, {held_keys}, true)"),
            format!("SELECT skip_events({PENDING} || {HELD}, {pending_keys} || {held_keys})"),
        ] {
            let read = entries_read(&mut connection, &call).await;
            assert!((1..10 * EVENTS).contains(&read), "{state}: {call} read {read} entries for {EVENTS} events");
        }
        snapshot.rollback().await.unwrap();
        fixture.drop().await;
    }
}

/// O38: a destination that is far behind costs nothing where another one is counted.
#[tokio::test]
async fn o38_counting_one_destination_reads_nothing_of_another() {
    let fixture = Fixture::new().await;
    fixture.store.plain_outbox("writer", ["payments"]).await.unwrap();
    fixture.run(format!("{}; ANALYZE outbox", put(GONE))).await;
    fixture.store.plain_outbox("writer", ["mails"]).await.unwrap();
    let mails = fixture.text("SELECT id FROM outbox_destinations WHERE name = 'mails'").await;
    fixture
        .run(format!("UPDATE outbox SET destination = {mails} WHERE number IN (SELECT number FROM outbox LIMIT 10)"))
        .await;
    let mut connection = fixture.connect().await;
    for (destination, read_max) in [(mails.as_str(), 20), ("0", 0)] {
        let read = entries_read(&mut connection, &format!("SELECT count_events({destination}, NULL)")).await;
        assert!(read <= read_max, "{read} entries read");
    }
    fixture.drop().await;
}

/// O39: events that wait behind published ones are freed a part at a time, so that no statement takes as long as all of them
/// would; all of them go.
#[tokio::test]
async fn o39_a_crowd_behind_many_ordering_keys_is_let_go_a_part_at_a_time() {
    let fixture = Fixture::new().await;
    let outbox: Arc<dyn Outbox> = Arc::new(fixture.store.clone()).outbox().unwrap();
    fixture.store.plain_outbox("writer", ["payments"]).await.unwrap();
    let id = outbox.declare(&["payments".into()]).await.unwrap()[0].id;
    // Of each of forty keys one failed, and five hundred wait behind it.
    fixture
        .run("INSERT INTO outbox (number, destination, consumer, key_id, event_key, event_hash, ordering_key, state, payload)
              SELECT nextval('outbox_numbers'), (SELECT id FROM outbox_destinations), (SELECT id FROM consumers), gen_random_uuid(),
                  'k' || n, '', convert_to((n % 40)::text, 'UTF8'), CASE WHEN n < 40 THEN 2 ELSE 3 END, 'x'
              FROM generate_series(0, 40 * 501 - 1) AS n")
        .await;
    let failed = outbox.events(None, Some(EventState::Failed), 40).await.unwrap();
    let ends: Vec<_> = failed.iter().map(|failed| (&failed.event, EventEnd::Published)).collect();
    outbox.settle(id, &ends).await.unwrap();
    let pending = "SELECT count(*), count(DISTINCT ordering_key) FROM outbox WHERE state = 0";
    let pending = fixture.text(format!("SELECT format('%s of %s', a, b) FROM ({pending}) AS p (a, b)")).await;
    assert_eq!(pending, "10040 of 40", "251 of each");
    let mut gone = 0;
    while gone < 40 * 500 {
        let next = outbox.next(id, 4_000, 1_000_000).await.unwrap();
        assert!(!next.is_empty(), "nothing may go after {gone}");
        let ends: Vec<_> = next.iter().map(|event| (event, EventEnd::Published)).collect();
        outbox.settle(id, &ends).await.unwrap();
        gone += ends.len();
    }
    assert_eq!(fixture.text("SELECT count(*) FROM outbox").await, "0");
    fixture.drop().await;
}
