//! The schema: up, down, and the obstacles to either.

use idem_core::{Event, Store as _, StoreError, store::Bookkeeping as _};
use idem_sql::{MigrateError, SchemaName};
use idem_sqlx::{SqliteOptions, SqliteStore};
use idem_testkit::Decide as _;

use super::{File, consumer, fresh, message, open};

const TABLES: &str = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY 1";

/// Of all migrations, oldest first.
fn versions() -> Vec<u32> {
    idem_sql::SQLITE_MIGRATIONS.iter().map(|migration| migration.version).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn up_twice_and_down_beside_the_applications_tables() {
    let file = File::new();
    let store = open(&file).await;
    file.run("CREATE TABLE processed_messages (theirs TEXT); CREATE TABLE migrations (theirs TEXT)").await;
    assert_eq!(store.migrate().await.unwrap(), versions());
    assert_eq!(store.migrate().await.unwrap(), Vec::<u32>::new());
    store.bookkeeping().verify().await.unwrap();
    assert!(file.ask(TABLES).await.contains(&"idem_processed_messages".to_owned()));
    for version in versions().into_iter().rev().map(Some).chain([None]) {
        assert_eq!(store.migrate_down().await.unwrap(), version);
    }
    assert_eq!(file.ask(TABLES).await, ["idem_migrations", "migrations", "processed_messages"]);
    assert_eq!(store.migrate().await.unwrap(), versions());
}

#[tokio::test(flavor = "multi_thread")]
async fn down_is_refused_while_there_are_records_and_leaves_everything() {
    let (file, store) = fresh().await;
    consumer(&store).decisions(vec![message("a", "1")]).await.unwrap();
    let error = store.migrate_down().await.unwrap_err();
    let MigrateError::Failed { version: 1, source, .. } = &error else { panic!("{error}") };
    assert!(source.to_string().contains("still holds records"), "{source}");
    store.bookkeeping().verify().await.unwrap();
    assert_eq!(file.recorded().await, ["a"]);
}

/// J12, O74: the schema is not dropped while it holds what a receiver or an operator needs.
#[tokio::test(flavor = "multi_thread")]
async fn j12_o74_the_schema_is_not_dropped_while_it_holds_something() {
    let (file, store) = fresh().await;
    let plain = store.plain_outbox("billing", ["payments"]).await.unwrap();
    plain.publish(&mut file.connect().await, "invoice-1", Event::to("payments")).await.unwrap();
    let letter = "INSERT INTO idem_dead_letters (consumer, origin, last_origin, reason, attempts, error, payload, payload_bytes, has_payload,
        first_at, last_at) VALUES (1, 'q/1', 'q/1', 'permanent', 1, '', x'78', 1, 1, 1, 1)";
    for (holds, words, ends) in [
        ("SELECT 1", "idem outbox skip", "DELETE FROM idem_outbox"),
        (
            "INSERT INTO idem_forgotten VALUES (1, 1, x'00', 'a', x'00', 1, 1, 1, 1, 1)",
            "idem forgotten restore",
            "DELETE FROM idem_forgotten",
        ),
        (letter, "idem dead-letters", "UPDATE idem_dead_letters SET replayed_at = 1"),
    ] {
        file.run(holds).await;
        let error = store.migrate_down().await.unwrap_err();
        let MigrateError::Failed { version: 1, source, .. } = &error else { panic!("{error}") };
        assert!(source.to_string().contains(words), "{source}");
        file.run(ends).await;
    }
    assert_eq!(store.migrate_down().await.unwrap(), Some(1));
    assert_eq!(store.migrate().await.unwrap(), [1]);
}

/// B21: an edited migration and a newer schema are both refused, by the runner and at start-up.
#[tokio::test(flavor = "multi_thread")]
async fn an_edited_and_a_newer_schema_are_refused() {
    for (change, words) in [
        ("UPDATE idem_migrations SET checksum = 'x'", "applied with checksum x"),
        ("INSERT INTO idem_migrations VALUES (99, 'later', 'x', 0, '9.9.9')", "version 99"),
    ] {
        let (file, store) = fresh().await;
        file.run(change).await;
        let error = store.migrate().await.unwrap_err();
        assert!(matches!(error, MigrateError::Plan(_)) && error.to_string().contains(words), "{error}");
        let error = store.bookkeeping().verify().await.unwrap_err();
        assert!(matches!(error, StoreError::Schema { .. }) && error.to_string().contains(words), "{error}");
        store.migrate_down().await.unwrap_err();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_runners_at_once_apply_each_migration_once() {
    let file = File::new();
    let (first, second) = (open(&file).await, open(&file).await);
    let (first, second) = tokio::join!(first.migrate(), second.migrate());
    let mut applied = first.unwrap();
    applied.extend(second.unwrap());
    applied.sort_unstable();
    assert_eq!(applied, versions());
}

/// S6: another prefix gives another schema in the same file.
#[tokio::test(flavor = "multi_thread")]
async fn s6_two_prefixes_share_a_file() {
    let file = File::new();
    for name in ["idem", "idem_two", "select"] {
        let schema = SchemaName::new(name).unwrap();
        let store = SqliteStore::connect(SqliteOptions::new(file.path()).schema(schema)).await.unwrap();
        store.migrate().await.unwrap();
        store.bookkeeping().verify().await.unwrap();
    }
    assert!(file.ask(TABLES).await.contains(&"select_processed_messages".to_owned()));
}
