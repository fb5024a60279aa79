//! Tables that start-up refuses, each with its cure.

use idem_core::{Store as _, StoreError, store::Bookkeeping};
use idem_sqlx::{SqliteOptions, SqliteStore};
use idem_testkit::Decide as _;

use super::{File, consumer, fresh, message, open};

#[tokio::test(flavor = "multi_thread")]
async fn a_file_without_schema_names_the_command() {
    let file = File::new();
    let store = open(&file).await;
    let error = store.bookkeeping().verify().await.unwrap_err().to_string();
    assert!(error.contains("no table idem_migrations") && error.contains("idem migrate"), "{error}");
    let error = consumer(&store).decisions(vec![message("a", "1")]).await.unwrap_err();
    assert!(matches!(error, StoreError::Schema { .. }), "{error}");
}

/// B6, B7, B9, B21: every change of the tables that the promise stands on is found and named.
#[tokio::test(flavor = "multi_thread")]
async fn b21_a_changed_schema_is_refused() {
    let remake = |columns: &str| {
        format!(
            "DROP TABLE idem_processed_messages; CREATE TABLE idem_processed_messages ({columns}) STRICT, WITHOUT ROWID"
        )
    };
    let columns = "consumer INTEGER NOT NULL, key_id BLOB NOT NULL, idempotency_key TEXT NOT NULL, payload_hash BLOB NOT \
                   NULL, hash_id INTEGER NOT NULL, processed_at INTEGER NOT NULL, processed_by INTEGER NOT NULL, \
                   expires_at INTEGER NOT NULL, PRIMARY KEY (consumer, key_id";
    for (change, word) in [
        ("DROP INDEX idem_idx_processed_messages_expires".to_owned(), "lacks its index (expires_at)"),
        ("DROP TABLE idem_units".to_owned(), "idem_units lacks its table"),
        ("DROP TABLE idem_processed_messages".to_owned(), "idem_processed_messages lacks its"),
        (remake(&format!("{columns}, hash_id)")), "lacks its unique index (consumer, key_id)"),
        (
            remake(&format!("{})", columns.replace("key_id BLOB", "key_id BLOB COLLATE NOCASE"))),
            "lacks its unique index",
        ),
        (remake(&format!("{})", columns.replace("key_id BLOB", "key_id TEXT"))), "lacks its column key_id BLOB"),
        (
            "CREATE TRIGGER swallow BEFORE INSERT ON idem_processed_messages BEGIN SELECT RAISE(IGNORE); END"
                .to_owned(),
            "foreign trigger swallow",
        ),
        (
            "CREATE UNIQUE INDEX more ON idem_processed_messages (idempotency_key)".to_owned(),
            "foreign unique index (idempotency_key)",
        ),
        ("ALTER TABLE idem_units ADD COLUMN more TEXT".to_owned(), "foreign column more TEXT"),
    ] {
        let (file, store) = fresh().await;
        store.bookkeeping().verify().await.unwrap();
        file.run(&change).await;
        let error = store.bookkeeping().verify().await.unwrap_err();
        assert!(matches!(error, StoreError::Schema { .. }) && error.to_string().contains(word), "{change}: {error}");
        assert!(error.to_string().contains("Stop the workers"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_index_more_does_no_harm() {
    let (file, store) = fresh().await;
    file.run("CREATE INDEX more ON idem_processed_messages (processed_at)").await;
    store.bookkeeping().verify().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_left_wal_mode_is_refused() {
    let file = File::new();
    let store = open(&file).await;
    store.migrate().await.unwrap();
    drop(store);
    let mut connection = file.connect().await;
    // It needs the file for itself, and the store's connections close on threads of their own.
    let mode = super::soon(async {
        loop {
            let mode = sqlx::query_scalar("PRAGMA journal_mode = DELETE").fetch_one(&mut connection).await;
            if let Ok::<String, _>(mode) = mode {
                break mode;
            }
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
    })
    .await;
    assert_eq!(mode, "delete");
    // Opening puts it back, which is what makes a copied file work.
    drop(connection);
    open(&file).await.bookkeeping().verify().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_opened_is_told() {
    let error = SqliteStore::open(":memory:").await.unwrap_err();
    assert!(matches!(error, StoreError::Refused { .. }), "{error}");
    // A folder does not appear by itself, so a start that waited for it would be of no use.
    let error = SqliteStore::open("/proc/nowhere/x.db").await.unwrap_err();
    assert!(matches!(error, StoreError::Refused { .. }), "{error}");
    let absent = File::new();
    let missing = SqliteOptions::new(absent.path()).create_if_missing(false);
    let error = SqliteStore::connect(missing).await.unwrap_err();
    assert!(matches!(error, StoreError::Refused { .. }), "{error}");
    let file = File::new();
    std::fs::write(file.path(), "this is no database, and it is long enough to have a header of its own".repeat(20))
        .unwrap();
    let error = SqliteStore::open(file.path()).await.unwrap_err();
    assert_eq!(error.class(), idem_core::ErrorClass::Fatal, "{error}");
}
