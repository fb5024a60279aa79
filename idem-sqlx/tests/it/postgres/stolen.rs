//! S57, S60, O109: a stolen worker's credential, played against the script of the roles. What it can still do is in `docs/internals/shared-resources.md`.

use std::sync::Arc;

use idem_core::{
    ConsumerName, Store as _,
    dead_letter::DueRoom,
    store::{Bookkeeping as _, RunId},
};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, PgConnection, Row as _, postgres::PgConnectOptions};

use super::{
    fixture::{Fixture, url},
    roles::{arrange, give_up, login},
};

/// The tables of idem's, and a statement that a login with all rights to a worker's tables could run on each.
const TABLES: [&str; 13] = [
    "processed_messages",
    "units",
    "consumers",
    "payload_hashes",
    "worker_runs",
    "message_attempts",
    "dead_letters",
    "audit",
    "controls",
    "forgotten",
    "outbox_destinations",
    "outbox",
    "processed_results",
];

/// One consumer with an operation that is done, dead letters and a pending event, which a worker of another login relays.
const VICTIM: &str = "
    INSERT INTO consumers (tenant, name, bound_to, handler, key_rules, hash_rules) VALUES ('', 'payments', 'kafka:p', '', '', '');
    INSERT INTO payload_hashes (rule) VALUES ('raw/1'), ('json-only/1:[]');
    INSERT INTO processed_messages (key_id, expires_at, consumer, hash_id, processed_by, idempotency_key, payload_hash)
        VALUES (key_id('order-1'), 'infinity', 1, 1, 1, 'order-1', sha256('paid'));
    INSERT INTO processed_results (key_id, consumer, kind, status, body) VALUES (key_id('order-1'), 1, 0, 201, 'paid');
    INSERT INTO dead_letters (consumer, origin, last_origin, key_id, idempotency_key, payload_hash, hash_id, reason, attempts, error,
            payload, payload_bytes, has_payload, loss_accepted_at)
        VALUES (1, 'erased', '', key_id('e'), NULL, sha256('large'), 1, 'too-large', 1, '', NULL, 5, true, now()),
            (1, 'large', '', key_id('l'), 'l', sha256('large'), 1, 'too-large', 1, '', NULL, 5, true, NULL),
            (1, 'owed', '', key_id('o'), 'o', sha256('owed'), 1, 'permanent', 1, '', 'owed', 4, true, NULL);
    INSERT INTO outbox_destinations (name, id_form) VALUES ('mails', 'uuid8');
    INSERT INTO outbox (key_id, number, destination, consumer, event_key, event_hash, payload)
        VALUES (key_id('event-1'), nextval('outbox_numbers'), 1, 1, 'event-1', '', 'pay');";

/// What the login may try: each is refused for want of the right, whatever rows there are.
const REFUSED: &[&str] = &[
    // Answers.
    "UPDATE processed_results SET body = 'forged'",
    "UPDATE processed_results SET status = 402, answer_until = now()",
    "UPDATE processed_results SET key_id = key_id('order-2')",
    "INSERT INTO processed_results (key_id, consumer, kind, body) VALUES (key_id('order-1'), 1, 0, 'forged')
        ON CONFLICT (consumer, key_id) DO UPDATE SET body = excluded.body",
    "DELETE FROM processed_results",
    // Events and their destinations.
    "SELECT skip_events('{1}', '{event-1}')",
    "SELECT retry_events('{1}', '{event-1}', true)",
    "SELECT let_followers_go(1, '{}')",
    "DELETE FROM outbox",
    "UPDATE outbox SET payload = 'forged'",
    "UPDATE outbox_destinations SET pending_from = 9000000000000000000",
    "UPDATE outbox_destinations SET paused_at = now()",
    "UPDATE outbox_destinations SET relayed_by = 'thief', relayed_until = 'infinity'",
    "UPDATE outbox_destinations SET relayed_login = session_user",
    "UPDATE outbox_destinations SET message_bytes_max = 1",
    "INSERT INTO outbox_destinations (name, id_form, paused_at) VALUES ('later', 'uuid8', now())",
    "SELECT FROM outbox_destinations FOR UPDATE",
    "SELECT setval('outbox_numbers', 9000000000000000000)",
    // Records, dead letters and the trail.
    "DELETE FROM processed_messages",
    "INSERT INTO processed_messages (key_id, processed_at, expires_at, consumer, hash_id, processed_by, idempotency_key, payload_hash)
        VALUES (key_id('order-2'), 'infinity', 'infinity', 1, 1, 1, 'order-2', sha256(''))",
    "UPDATE processed_messages SET payload_hash = ''",
    "UPDATE dead_letters SET payload = 'forged'",
    "UPDATE dead_letters SET first_at = '-infinity'",
    "DELETE FROM dead_letters",
    "DELETE FROM audit",
    "INSERT INTO audit (who, action, login) VALUES ('ada', 'forget', 'ada')",
    // Ids that a sequence will draw.
    "INSERT INTO dead_letters (id, consumer, origin, last_origin, reason, attempts, error, payload_bytes, has_payload)
        OVERRIDING SYSTEM VALUE VALUES (4, 1, '', '', 'permanent', 1, '', 0, false)",
    "INSERT INTO worker_runs (id, host, process, version) OVERRIDING SYSTEM VALUE VALUES (1, '', 1, '')",
    "INSERT INTO audit (id, who, action) OVERRIDING SYSTEM VALUE VALUES (1, '', '')",
    // An event that no look finds, or that no look can read; and another name to derive ids from.
    "INSERT INTO outbox (key_id, number, destination, consumer, event_key, event_hash, payload, state)
        VALUES (key_id('x'), 7, 1, 1, 'x', '', '', 3)",
    "INSERT INTO outbox (key_id, number, destination, consumer, event_key, event_hash, payload, created_at)
        VALUES (key_id('x'), 7, 1, 1, 'x', '', '', 'infinity')",
    "INSERT INTO consumers (id, tenant, name, bound_to, handler, key_rules, hash_rules, derives_as)
        OVERRIDING SYSTEM VALUE VALUES (7, 'thief', 'payments', 'kafka:p', '', '', '', 'other')",
    // What no worker needs.
    "SELECT * FROM forgotten",
    "SELECT remove_expired('dead_letters', 100, 0)",
    "ALTER TABLE processed_results DISABLE TRIGGER refuse_other_answer",
    "CREATE TABLE own ()",
];

/// What the login has the right to write, and no value of it is taken.
const OUT_OF_BOUNDS: &[&str] = &[
    "INSERT INTO outbox (key_id, number, destination, consumer, event_key, event_hash, payload)
        VALUES (key_id('x'), 9223372036854775807, 1, 1, 'x', '', '')",
    "INSERT INTO outbox (key_id, number, destination, consumer, event_key, event_hash, payload) VALUES (key_id('x'), 0, 1, 1, 'x', '', '')",
    "INSERT INTO processed_messages (key_id, expires_at, consumer, hash_id, processed_by, idempotency_key, payload_hash)
        VALUES (key_id('order-2'), '-infinity', 1, 1, 1, 'order-2', sha256(''))",
    "INSERT INTO processed_messages (key_id, expires_at, consumer, hash_id, processed_by, idempotency_key, payload_hash)
        VALUES (key_id('order-2'), '294276-12-31', 1, 1, 1, 'order-2', sha256(''))",
    "INSERT INTO processed_messages (key_id, expires_at, consumer, hash_id, processed_by, idempotency_key, payload_hash)
        VALUES (key_id('order-2'), 'infinity', 1, 1, 1, 'order-2', '')",
    "INSERT INTO processed_results (key_id, consumer, kind, body, answer_until) VALUES (key_id('order-2'), 1, 0, '', 'infinity')",
    "INSERT INTO controls (consumer, epoch) VALUES (7, 9223372036854775807)",
    "UPDATE consumers SET retention = '170000 years'",
    "UPDATE consumers SET retention = '-178000000 years'",
    "UPDATE consumers SET retention = '5000000 years -1826250000 days'",
    "UPDATE consumers SET retention = '5000000 years -1799999999 days'",
    "INSERT INTO consumers (id, tenant, name, bound_to, handler, key_rules, hash_rules)
        OVERRIDING SYSTEM VALUE VALUES (-7, 'thief', 'payments', 'kafka:p', '', '', '')",
    "INSERT INTO outbox_destinations (name, id_form) VALUES ('free', 'uuid8');
        SELECT lease_destination((SELECT id FROM outbox_destinations WHERE name = 'free'), 'thief', NULL, NULL, NULL, 1, false)",
];

/// A second login of the workers' group, which relays nothing.
async fn thief(fixture: &Fixture) -> PgConnectOptions {
    let name = format!("{}_thief", fixture.schema);
    fixture.run(format!("CREATE ROLE {name} LOGIN IN ROLE idem_worker")).await;
    let options: PgConnectOptions = url().parse().unwrap();
    options.username(&name).options([("search_path", fixture.schema.as_str())])
}

/// The SQLSTATE of a statement, or `-` where it went well.
async fn code(connection: &mut PgConnection, statement: &str) -> String {
    match sqlx::raw_sql(AssertSqlSafe(statement)).execute(connection).await {
        Ok(_) => "-".to_owned(),
        Err(error) => error.as_database_error().and_then(|error| error.code()).unwrap_or_default().into_owned(),
    }
}

/// The first column of a query, as text.
async fn answer(connection: &mut PgConnection, query: &str) -> Option<String> {
    let row = sqlx::raw_sql(AssertSqlSafe(query))
        .fetch_one(connection)
        .await
        .unwrap_or_else(|error| panic!("{query}: {error}"));
    row.try_get_unchecked(0).unwrap()
}

/// The rows of the victim, which no attack may change.
const STATE: &str = "SELECT concat_ws(' ', (SELECT string_agg(concat(status, convert_from(body, 'UTF8')), ',') FROM processed_results),
    (SELECT string_agg(concat(state, convert_from(payload, 'UTF8')), ',') FROM outbox),
    (SELECT concat(paused_at IS NULL, relayed_by, pending_from, message_bytes_max) FROM outbox_destinations),
    (SELECT string_agg(concat(origin, coalesce(convert_from(payload, 'UTF8'), '-')), ',' ORDER BY id) FROM dead_letters))";

const LEASE: &str = "SELECT mine FROM lease_destination(1, 'relay-1', 30000000, 1000000, 'kafka', 1000, false)";

#[tokio::test]
async fn s57_a_stolen_workers_credential_changes_nothing_of_others() {
    let fixture = Fixture::new().await;
    arrange(&fixture).await;
    fixture.run(VICTIM).await;
    let mut relay = login(&fixture, "idem_worker").await.connect().await.unwrap();
    assert_eq!(answer(&mut relay, LEASE).await.as_deref(), Some("t"));
    let mut thief = thief(&fixture).await.connect().await.unwrap();
    let before = fixture.text(STATE).await;
    let mut went_well = Vec::new();
    for attack in REFUSED {
        let code = code(&mut thief, attack).await;
        if code != "42501" {
            went_well.push(format!("{code}: {attack}"));
        }
    }
    // With a right to update a whole table, a login may lock it against everybody.
    for table in TABLES {
        for mode in ["SHARE UPDATE EXCLUSIVE", "SHARE", "SHARE ROW EXCLUSIVE", "EXCLUSIVE", "ACCESS EXCLUSIVE"] {
            let attack = format!("BEGIN; LOCK TABLE {table} IN {mode} MODE NOWAIT");
            let code = code(&mut thief, &attack).await;
            sqlx::raw_sql("ROLLBACK").execute(&mut thief).await.unwrap();
            if code != "42501" {
                went_well.push(format!("{code}: {attack}"));
            }
        }
    }
    // Values with which the arithmetic of others would fail, or a lease would never end.
    for attack in OUT_OF_BOUNDS {
        let code = code(&mut thief, attack).await;
        if code != "23514" {
            went_well.push(format!("{code}: {attack}"));
        }
    }
    assert!(went_well.is_empty(), "{}", went_well.join("\n"));
    assert_eq!(fixture.text(STATE).await, before);
    drop((relay, thief));
    fixture.run(format!("DROP OWNED BY {0}_thief; DROP ROLE {0}_thief", fixture.schema)).await;
    give_up(fixture, &["idem_worker"]).await;
}

/// O109: only the login whose relay has a destination notes what became of its events. Another one takes it over when its lease has run
/// out, as always, and the trail says so.
#[tokio::test]
async fn o109_a_login_that_does_not_relay_settles_nothing() {
    let fixture = Fixture::new().await;
    arrange(&fixture).await;
    fixture.run(VICTIM).await;
    let mut relay = login(&fixture, "idem_worker").await.connect().await.unwrap();
    assert_eq!(answer(&mut relay, LEASE).await.as_deref(), Some("t"));
    let mut thief = thief(&fixture).await.connect().await.unwrap();
    let before = fixture.text(STATE).await;
    let settle = "SELECT settle_events(1, '{1}', '{event-1}', '[]')";
    for (attack, wanted) in [
        (settle, Some("0")),
        (
            r#"SELECT settle_events(1, '{}', '{}', '[{"number":1,"key":"event-1","state":2,"error":"x","counted":true}]')"#,
            Some("0"),
        ),
        ("SELECT mark_behind(1, '{1}')", Some("0")),
        ("SELECT last FROM raise_pending(1, NULL, NULL)", None),
        // The relay's name is in the table for all to read.
        (LEASE, Some("f")),
        ("SELECT release_destination(1, 'relay-1')", None),
    ] {
        assert_eq!(answer(&mut thief, attack).await.as_deref(), wanted, "{attack}");
    }
    assert_eq!(fixture.text(STATE).await, before);
    // Nor is the destination's row locked by a call that does nothing.
    let mut held = thief.begin().await.unwrap();
    assert_eq!(answer(&mut held, settle).await.as_deref(), Some("0"));
    assert_eq!(
        code(
            &mut relay,
            "SET lock_timeout = 100; SELECT mine FROM lease_destination(1, 'relay-1', 1, 1, 'kafka', 1, false)"
        )
        .await,
        "-"
    );
    held.rollback().await.unwrap();
    // That lease has run out. To whoever takes it now, the events belong.
    assert_eq!(answer(&mut thief, LEASE).await.as_deref(), Some("t"));
    let relays = "SELECT login || ' ' || action || ' ' || details FROM audit";
    let name = format!("{}_thief", fixture.schema);
    let line = format!("{name} relay mails is relayed by the login {name}, before by {}_idem_worker", fixture.schema);
    assert_eq!(fixture.texts(relays).await, [line]);
    assert_eq!(answer(&mut relay, settle).await.as_deref(), Some("0"));
    assert_eq!(answer(&mut thief, settle).await.as_deref(), Some("1"));
    drop((relay, thief));
    fixture.run(format!("DROP OWNED BY {0}_thief; DROP ROLE {0}_thief", fixture.schema)).await;
    give_up(fixture, &["idem_worker"]).await;
}

/// S57: an event that a thief forges under the number and key of another one has no event removed that was not sent, and stops no look.
#[tokio::test]
async fn s57_a_forged_number_removes_no_event_and_stops_no_relay() {
    let fixture = Fixture::new().await;
    arrange(&fixture).await;
    fixture.run(VICTIM).await;
    let mut relay = login(&fixture, "idem_worker").await.connect().await.unwrap();
    assert_eq!(answer(&mut relay, LEASE).await.as_deref(), Some("t"));
    let mut thief = thief(&fixture).await.connect().await.unwrap();
    // The genuine event waits. Its twins are pending, and a relay sends both of them.
    fixture.run("UPDATE outbox SET state = 1, not_before = now() + interval '1 h'").await;
    let twins = "INSERT INTO outbox (key_id, number, destination, consumer, event_key, event_hash, payload)
        SELECT gen_random_uuid(), 1, 1, 7, 'event-1', '', 'forged' FROM generate_series(1, 2)";
    assert_eq!(code(&mut thief, twins).await, "-");
    let settle = "SELECT settle_events(1, '{1,1}', '{event-1,event-1}', '[]')";
    assert_eq!(answer(&mut relay, settle).await.as_deref(), Some("1"));
    let genuine = "SELECT count(*) FROM outbox WHERE convert_from(payload, 'UTF8') = 'pay'";
    assert_eq!(fixture.text(genuine).await, "1");
    // Where more events have one number than one look takes, the look takes as many as were asked for.
    assert_eq!(code(&mut thief, &twins.replace("(1, 2)", "(1, 1200)")).await, "-");
    let looked = "SELECT count(*)::text FROM next_events(1, 10, 1000000)";
    assert_eq!(answer(&mut relay, looked).await.as_deref(), Some("10"));
    drop((relay, thief));
    fixture.run(format!("DROP OWNED BY {0}_thief; DROP ROLE {0}_thief", fixture.schema)).await;
    give_up(fixture, &["idem_worker"]).await;
}

/// S60: an erased dead letter gets no payload, one that was too large only that whose hash it has, with a line in the trail; and a worker that
/// dates a dead letter back does not have cleanup remove it.
#[tokio::test]
async fn s60_a_dead_letter_gets_no_other_payload_and_stays() {
    let fixture = Fixture::new().await;
    arrange(&fixture).await;
    fixture.run(VICTIM).await;
    let mut thief = login(&fixture, "idem_worker").await.connect().await.unwrap();
    for (attack, wanted) in [
        ("SELECT keep_payload(1, 'large')", None),
        ("SELECT keep_payload(1, 'forge')", None),
        ("SELECT keep_payload(2, 'forge')", None),
        ("SELECT keep_payload(3, 'owed')", None),
        ("SELECT keep_payload(2, 'large')", Some("2")),
    ] {
        assert_eq!(answer(&mut thief, attack).await.as_deref(), wanted, "{attack}");
    }
    let kept = "SELECT string_agg(coalesce(convert_from(payload, 'UTF8'), '-'), ' ' ORDER BY id) FROM dead_letters";
    assert_eq!(fixture.text(kept).await, "- large owed");
    let line = format!("{}_idem_worker keep-payload l dead letter 2: 5 bytes", fixture.schema);
    assert_eq!(
        fixture.texts("SELECT concat_ws(' ', login, action, idempotency_key, details) FROM audit").await,
        [line]
    );
    let closed = "UPDATE dead_letters SET last_at = '-infinity', replayed_at = now(), replay_outcome = 'processed'";
    assert_eq!(code(&mut thief, closed).await, "-");
    assert_eq!(fixture.text("SELECT (remove_expired('dead_letters', 100, 0)).removed").await, "0");
    assert_eq!(fixture.text("SELECT count(*) FROM dead_letters").await, "3");
    drop(thief);
    give_up(fixture, &["idem_worker"]).await;
}

/// S57: a dead letter that cannot be read fails its own replay, and not those that are taken with it.
#[tokio::test]
async fn s57_a_forged_dead_letter_stops_no_replay() {
    let fixture = Fixture::new().await;
    arrange(&fixture).await;
    fixture
        .run(format!("{VICTIM} SELECT due_now(ARRAY(SELECT id FROM dead_letters WHERE origin = 'owed'), 'ann')"))
        .await;
    let mut thief = thief(&fixture).await.connect().await.unwrap();
    let forged = "INSERT INTO dead_letters (consumer, origin, last_origin, key_id, idempotency_key, payload_hash, hash_id, reason, attempts,
            error, payload, payload_bytes, has_payload, headers)
        VALUES (1, 'forged', '', key_id('f'), 'f', sha256('f'), 1, 'permanent', 1, '', 'f', 1, true, '5')";
    assert_eq!(code(&mut thief, forged).await, "-");
    let asked = "SELECT due_now(ARRAY(SELECT id FROM dead_letters WHERE origin = 'forged'), 'ann')";
    assert_eq!(code(&mut thief, asked).await, "-");
    let payments = ConsumerName::new("payments").unwrap();
    let taken = fixture.store.bookkeeping().take_due(&payments, RunId(1), DueRoom::rows(10)).await.unwrap();
    assert_eq!(taken.iter().map(|replay| replay.message.origin().as_str()).collect::<Vec<_>>(), ["owed"]);
    let outcome = fixture.text("SELECT replay_outcome FROM dead_letters WHERE origin = 'forged'").await;
    assert!(outcome.starts_with("failed: malformed"), "{outcome}");
    drop(thief);
    fixture.run(format!("DROP OWNED BY {0}_thief; DROP ROLE {0}_thief", fixture.schema)).await;
    give_up(fixture, &[]).await;
}

/// O116: a login that relays for a moment and says that nothing fits keeps others from publishing for no longer than that.
#[tokio::test]
async fn o116_a_planted_limit_ends_with_its_lease() {
    let fixture = Fixture::new().await;
    arrange(&fixture).await;
    fixture.run(VICTIM).await;
    let mut thief = thief(&fixture).await.connect().await.unwrap();
    let outbox = Arc::new(fixture.store.clone()).outbox().unwrap();
    for (lease, limits) in [(30_000_000, true), (1, false)] {
        let planted = format!("SELECT mine FROM lease_destination(1, 'thief', {lease}, 1000000, 'kafka', 1, false)");
        assert_eq!(answer(&mut thief, &planted).await.as_deref(), Some("t"));
        let declared = outbox.declare(&["mails".into()]).await.unwrap();
        assert_eq!(declared[0].limits.is_some(), limits, "{lease} µs");
    }
    drop(thief);
    fixture.run(format!("DROP OWNED BY {0}_thief; DROP ROLE {0}_thief", fixture.schema)).await;
    give_up(fixture, &[]).await;
}

/// S57: the engine replaces an answer that has outlived its record, with a worker's rights.
#[tokio::test]
async fn s57_an_answer_that_outlived_its_record_is_replaced() {
    let fixture = Fixture::new().await;
    arrange(&fixture).await;
    fixture.run(format!("{VICTIM} DELETE FROM processed_messages")).await;
    let mut worker = login(&fixture, "idem_worker").await.connect().await.unwrap();
    let mut unit = worker.begin().await.unwrap();
    let claim = "INSERT INTO processed_messages (key_id, expires_at, consumer, hash_id, processed_by, idempotency_key, payload_hash)
        VALUES (key_id('order-1'), 'infinity', 1, 1, 1, 'order-1', sha256('paid'))";
    let answered =
        "INSERT INTO processed_results (key_id, consumer, kind, body) VALUES (key_id('order-1'), 1, 0, 'again')
        ON CONFLICT (consumer, key_id) DO UPDATE SET body = excluded.body, status = excluded.status";
    for statement in [claim, answered] {
        assert_eq!(code(&mut unit, statement).await, "-");
    }
    unit.commit().await.unwrap();
    assert_eq!(fixture.text("SELECT convert_from(body, 'UTF8') FROM processed_results").await, "again");
    drop(worker);
    give_up(fixture, &["idem_worker"]).await;
}
