//! `idem migrate`, `idem cleanup`, `idem retention`.

use crate::fixture::{Fixture, command};

#[tokio::test]
async fn migrate_goes_up_once_and_says_where_it_stands() {
    let fixture = Fixture::empty().await;
    assert!(fixture.idem("migrate status").ok().contains("to come"));
    fixture.idem("stats").refused("idem migrate up");
    assert!(fixture.idem("migrate up").ok().contains("migration 1 was applied"));
    assert!(fixture.idem("migrate up").ok().contains("up to date"));
    let status = fixture.idem("migrate status --json").json();
    assert_eq!(
        (&status["migrations"][0]["state"], &status["migrations"][0]["version"]),
        (&"applied".into(), &1.into())
    );
    fixture.drop().await;
}

/// J12: records are never dropped by a migration.
#[tokio::test]
async fn migrate_down_asks_and_keeps_records() {
    let fixture = Fixture::new().await;
    fixture.idem("migrate down").refused("Nothing was done: give --yes");
    fixture.deliver(&["order-1"]).await;
    let refused = fixture.idem("migrate down --yes");
    assert!(!format!("{refused:?}").contains(" at line "), "a line of the migration's helps nobody: {refused:?}");
    refused.refused("still holds records");
    fixture.idem("migrate up").ok();
    assert_eq!(fixture.deliver(&["order-1"]).await, "D");
    fixture.run("TRUNCATE processed_messages").await;
    assert!(fixture.idem("migrate down --yes").ok().contains("migration 1 was taken back"));
    fixture.drop().await;
}

#[tokio::test]
async fn migrate_print_is_what_migrate_up_does() {
    let fixture = Fixture::empty().await;
    let script = fixture.idem("migrate print").ok();
    fixture.run(&script).await;
    assert!(fixture.idem("migrate up").ok().contains("up to date"));
    fixture.deliver(&["order-1"]).await;
    fixture.grant_roles().await;
    fixture.drop().await;
}

async fn with_expired(keys: &[&str]) -> Fixture {
    let fixture = Fixture::new().await;
    fixture.deliver(keys).await;
    fixture
        .run("UPDATE processed_messages SET expires_at = now() - interval '1 s' WHERE idempotency_key <> 'order-3'")
        .await;
    fixture
}

#[tokio::test]
async fn cleanup_counts_removes_and_is_written_down() {
    let fixture = with_expired(&["order-1", "order-2", "order-3"]).await;
    let preview = fixture.idem("cleanup --dry-run --json").json();
    assert_eq!(preview["rows"][0]["rows"], 2);
    assert_eq!(fixture.texts("SELECT count(*) FROM processed_messages").await, ["3"]);
    let removed = fixture.idem("cleanup --json").json();
    assert_eq!((&removed["rows"][0]["table"], &removed["rows"][0]["rows"]), (&"processed_messages".into(), &2.into()));
    assert_eq!(fixture.texts("SELECT idempotency_key FROM processed_messages").await, ["order-3"]);
    assert_eq!(fixture.texts("SELECT action FROM audit").await, ["cleanup"]);
    fixture.idem("cleanup --attempts-kept 1h").refused("--attempts-kept is 1h, but it must be at least 1 day");
    fixture.idem("cleanup --rows-max 0").refused("--rows-max is 0");
    fixture.drop().await;
}

#[tokio::test]
async fn cleanup_as_a_script_removes_the_same() {
    let fixture = with_expired(&["order-1", "order-2", "order-3"]).await;
    let script = fixture.idem("cleanup --print-sql").ok();
    fixture.run(&script).await;
    assert_eq!(fixture.texts("SELECT idempotency_key FROM processed_messages").await, ["order-3"]);
    // It connects to nothing.
    assert_eq!(command(&[("IDEM_SCHEMA", &fixture.schema)], &["cleanup", "--print-sql"]).ok(), script);
    fixture.drop().await;
}

/// C16: a cleanup that could not remove anything for another session's lock does not end well.
#[tokio::test]
async fn c16_cleanup_that_is_kept_from_its_lock_does_not_end_with_0() {
    let fixture = with_expired(&["order-1"]).await;
    let mut holder = fixture.admin.acquire().await.unwrap().detach();
    sqlx::raw_sql("BEGIN; SELECT FROM migrations WHERE version = 1 FOR UPDATE").execute(&mut holder).await.unwrap();
    fixture.idem("cleanup").refused("holds the lock of cleanup for more than 15s and removes nothing: end it");
    sqlx::raw_sql("ROLLBACK").execute(&mut holder).await.unwrap();
    fixture.idem("cleanup").ok();
    assert_eq!(fixture.texts("SELECT count(*) FROM processed_messages").await, ["0"]);
    drop(holder);
    fixture.drop().await;
}

/// S52: a migration that waits for another session's lock ends, and says whose it is.
#[tokio::test]
async fn s52_migrate_up_names_the_session_that_holds_its_lock() {
    let fixture = Fixture::new().await;
    let mut holder = fixture.admin.acquire().await.unwrap().detach();
    sqlx::raw_sql("BEGIN; LOCK TABLE migrations IN SHARE MODE").execute(&mut holder).await.unwrap();
    let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut holder).await.unwrap();
    let ended = fixture.idem("migrate up");
    assert!(ended.status == 3 && ended.err.contains(&format!("process {pid} (login ")), "{ended:?}");
    drop(holder);
    fixture.drop().await;
}

/// A55, A56: the doctor names an index that is not valid, and a migration the sequences that it sets forward. A command that met such a
/// sequence names the cure.
#[tokio::test]
async fn a55_a56_the_doctor_names_indexes_and_sequences_with_their_cures() {
    let fixture = Fixture::new().await;
    fixture.deliver(&["order-1"]).await;
    fixture
        .run(
            "CREATE UNIQUE INDEX processed_messages_pkey_ccnew ON processed_messages (consumer, key_id);
            UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'processed_messages_pkey_ccnew'::regclass",
        )
        .await;
    let found = format!("{:?}", fixture.idem("doctor"));
    assert!(found.contains("processed_messages_pkey_ccnew on processed_messages is not valid"), "{found}");
    assert!(found.contains("DROP INDEX CONCURRENTLY"), "{found}");
    fixture.run("DROP INDEX processed_messages_pkey_ccnew").await;
    fixture
        .run(
            "INSERT INTO audit (who, action) SELECT 'x', 'x' FROM generate_series(1, 20);
            ALTER SEQUENCE audit_id_seq RESTART WITH 1",
        )
        .await;
    let cure = "audit_id_seq', 2";
    fixture.idem("consumers pause orders --reason x").refused(cure);
    let found = format!("{:?}", fixture.idem("doctor"));
    assert!(found.contains(cure) && found.contains("idem migrate up"), "{found}");
    assert!(fixture.idem("migrate up").ok().contains("audit_id_seq gave 4 next"), "the pause has tried three times");
    fixture.idem("consumers pause orders --reason x").ok();
    fixture.drop().await;
}

#[tokio::test]
async fn retention_of_existing_records_is_rewritten_as_a_claim_would() {
    let fixture = Fixture::new().await;
    fixture.deliver(&["order-1", "order-2"]).await;
    let kept = "SELECT DISTINCT (expires_at - date_trunc('minute', processed_at))::text FROM processed_messages";
    fixture.idem("retention set orders 24h").refused("2 records of orders");
    fixture.idem("retention set orders 24h --existing").refused("2 records of orders");
    fixture.idem("retention set orders 5s --existing --yes").refused("from 1 minute to 10 years");
    fixture.idem("retention set ordres 24h --existing --yes").refused("no consumer \"ordres\"");
    assert!(fixture.idem("retention set orders 24h --existing --yes").ok().contains("2 rewritten"));
    let minutes = fixture.texts(kept).await;
    assert!(minutes.iter().all(|kept| kept.as_str() == "1 day 00:01:00"), "{minutes:?}");
    assert_eq!(fixture.trail().await, ["ada retention 86400 s for records that are there"]);
    fixture.drop().await;
}
