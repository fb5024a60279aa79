//! The schema: up, down, and the obstacles to either.

use idem_core::{Store as _, StoreError, store::Bookkeeping};
use idem_schema::{MigrateError, SchemaName};
use idem_sqlx::{SqliteOptions, SqliteStore};
use idem_testkit::Decide as _;

use super::{File, consumer, fresh, message, open, registered};

const TABLES: &str = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY 1";

/// Of all migrations, oldest first.
fn versions() -> Vec<u32> {
    idem_schema::SQLITE_MIGRATIONS.iter().map(|migration| migration.version).collect()
}

/// Takes those after this one back.
async fn down_to(store: &SqliteStore, last: u32) {
    for version in versions().into_iter().filter(|version| *version > last).rev() {
        assert_eq!(store.migrate_down().await.unwrap(), Some(version));
    }
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
    down_to(&store, 1).await;
    let error = store.migrate_down().await.unwrap_err();
    let MigrateError::Failed { version: 1, source, .. } = &error else { panic!("{error}") };
    assert!(source.to_string().contains("still holds records"), "{source}");
    store.migrate().await.unwrap();
    store.bookkeeping().verify().await.unwrap();
    assert_eq!(file.recorded().await, ["a"]);
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

const OLD: &str =
    "INSERT INTO idem_dead_letters (consumer, origin, last_origin, reason, attempts, error, payload, payload_bytes,
    has_payload, first_at, last_at) VALUES ";

/// J12: dead letters of the release before go on, none is taken for a copy, and no id is given twice.
#[tokio::test(flavor = "multi_thread")]
async fn j12_dead_letters_outlive_the_migration_and_its_way_back() {
    let (file, store) = fresh().await;
    let scope = registered(&store).await;
    down_to(&store, 1).await;
    let rows = [
        "'q/1', 'q/1', 'permanent', 1, '', x'6f6c64', 3, 1, 1, 1)",
        "'q/2', 'q/2', 'permanent', 1, '', x'62', 1, 1, 1, 1)",
    ];
    for row in rows {
        file.run(&format!("{OLD} ({}, {row}", scope.0)).await;
    }
    file.run("DELETE FROM idem_dead_letters WHERE id = 2").await;
    assert_eq!(store.migrate().await.unwrap(), versions()[1..]);
    let letter = super::bookkeeping::letter(scope, "q/1", None, idem_core::Reason::Permanent);
    let stored = store.bookkeeping().store_dead_letter(&letter).await.unwrap();
    assert_eq!((stored.id.0, stored.copies), (3, 1), "another message at the origin, and id 2 was given before");
    assert_eq!(file.ask("SELECT CAST(payload AS TEXT) FROM idem_dead_letters WHERE id = 1").await, ["old"]);
    // The release before goes on beside it, and finds its own row.
    file.run(&format!("{OLD} ({}, 'q/9', 'q/9', 'permanent', 1, '', x'78', 1, 1, 1, 1)", scope.0)).await;

    down_to(&store, 2).await;
    let error = store.migrate_down().await.unwrap_err();
    let MigrateError::Failed { source, .. } = &error else { panic!("{error}") };
    assert!(source.to_string().contains("takes for one"), "{source}");
    file.run("DELETE FROM idem_dead_letters WHERE id = 1").await;
    assert_eq!(store.migrate_down().await.unwrap(), Some(2));
    file.run(&format!("{OLD} ({}, 'q/10', 'q/10', 'permanent', 1, '', x'78', 1, 1, 1, 1)", scope.0)).await;
    assert_eq!(file.ask("SELECT CAST(id AS TEXT) FROM idem_dead_letters ORDER BY id").await, ["3", "4", "5"]);
}

const OLD_COUNTS: &str = "SELECT CAST(attempts AS TEXT) FROM idem_attempts ORDER BY key_id";

/// J12: a count from before the migration goes on after it, and on its way back one count a key is left.
#[tokio::test(flavor = "multi_thread")]
async fn j12_counts_of_attempts_outlive_the_migration_and_its_way_back() {
    let (file, store) = fresh().await;
    let scope = registered(&store).await;
    let key = idem_core::IdempotencyKey::new("order-1").unwrap();
    let (paid, refunded) = (idem_core::PayloadHash::of(b"paid"), idem_core::PayloadHash::of(b"refunded"));
    for _ in 0..2 {
        store.bookkeeping().count_attempt(scope, &key, paid).await.unwrap();
    }
    store.bookkeeping().count_attempt(scope, &key, refunded).await.unwrap();
    down_to(&store, 2).await;
    assert_eq!(file.ask(OLD_COUNTS).await, ["2"]);
    file.run("UPDATE idem_attempts SET attempts = 3").await;
    assert_eq!(store.migrate().await.unwrap(), versions()[2..]);
    assert_eq!(store.bookkeeping().count_attempt(scope, &key, paid).await.unwrap(), 4);
    assert_eq!(file.ask(OLD_COUNTS).await, Vec::<String>::new());
}

/// A forgotten key that can still be taken back stays: the down migration refuses to lose it.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_forgotten_is_not_dropped() {
    let (file, store) = fresh().await;
    down_to(&store, 4).await;
    let forgotten = "INSERT INTO idem_forgotten VALUES (1, 1, x'00', 'a', x'00', 1, 1, 1, 1, 1)";
    file.run(forgotten).await;
    let error = store.migrate_down().await.unwrap_err();
    let MigrateError::Failed { version: 4, source, .. } = &error else { panic!("{error}") };
    assert!(source.to_string().contains("idem forgotten restore"), "{source}");
}
