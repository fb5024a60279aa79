//! Migrations, the SQL function that maps keys, and the schemas that start-up refuses.

use idem_core::{Store as _, StoreError, store::Bookkeeping as _};
use idem_sql::{KEY_ID_VECTORS, MigrationError, POSTGRES_MIGRATIONS, PostgresStatements, SchemaName};
use idem_sqlx::{MigrateError, PostgresStore};

use super::{
    consumers::{Write, consumer, msg, process},
    fixture::{Fixture, url},
};

#[tokio::test]
async fn golden_vectors_hold_in_sql() {
    let fixture = Fixture::new().await;
    let (keys, ids): (Vec<&str>, Vec<&str>) = KEY_ID_VECTORS.lines().map(|line| line.split_once('\t').unwrap()).unzip();
    let query = sqlx::query_scalar::<_, String>(
        "SELECT key_id(key)::text FROM unnest($1::text[]) WITH ORDINALITY AS a (key, place) ORDER BY place",
    );
    let answered = query.bind(&keys).fetch_all(&fixture.admin).await.unwrap();
    assert!(answered.len() >= 60);
    for ((key, id), answered) in keys.iter().zip(ids).zip(answered) {
        assert_eq!(answered, id, "{key:?}");
    }
    fixture.drop().await;
}

#[tokio::test]
async fn every_statement_is_understood_by_the_server() {
    let fixture = Fixture::new().await;
    let mut connection = fixture.connect().await;
    for (name, text) in PostgresStatements::new(&fixture.schema).all() {
        let prepare = format!("PREPARE {name} AS {text}");
        let prepared = sqlx::raw_sql(sqlx::AssertSqlSafe(prepare)).execute(&mut connection).await;
        prepared.unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    fixture.drop().await;
}

#[tokio::test]
async fn migrations_go_up_and_down_and_are_applied_once() {
    let fixture = Fixture::empty_on(&url()).await;
    let store = &fixture.store;
    let (first, second, third) = tokio::join!(store.migrate(), store.migrate(), store.migrate());
    let mut applied = [first.unwrap(), second.unwrap(), third.unwrap()].concat();
    applied.sort_unstable();
    let all: Vec<u32> = POSTGRES_MIGRATIONS.iter().map(|migration| migration.version).collect();
    assert_eq!(applied, all, "three at once apply each migration once");
    assert!(store.migrate().await.unwrap().is_empty());
    store.bookkeeping().verify().await.unwrap();
    for version in all.iter().rev() {
        assert_eq!(store.migrate_down().await.unwrap(), Some(*version));
    }
    assert_eq!(store.migrate_down().await.unwrap(), None);
    assert!(
        matches!(store.bookkeeping().verify().await, Err(StoreError::Schema { cure, .. }) if cure.contains("idem migrate up"))
    );
    assert_eq!(store.migrate().await.unwrap(), all);
    fixture.drop().await;
}

/// J12, O74: the schema is not dropped while it holds what a redelivery, a receiver or an operator needs.
#[tokio::test]
async fn j12_o74_the_schema_is_not_dropped_while_it_holds_something() {
    let fixture = Fixture::new().await;
    let consumer = consumer(fixture.store.clone(), Write);
    assert_eq!(process(&consumer, vec![msg("a")]).await, "P");
    let event = "INSERT INTO outbox (key_id, number, destination, consumer, event_key, event_hash, payload) VALUES (key_id('a'), 1, 1, 1, 'a', '', '')";
    let letter = "INSERT INTO dead_letters (consumer, origin, last_origin, reason, attempts, error, payload, payload_bytes, has_payload)
        VALUES (1, 'q/1', 'q/1', 'permanent', 1, '', 'x', 1, true)";
    for (holds, words, ends) in [
        ("SELECT", "still holds records", "TRUNCATE processed_messages"),
        (
            "INSERT INTO forgotten VALUES (key_id('a'), now(), now(), now(), 1, 1, 1, 1, 'b', '')",
            "idem forgotten restore",
            "TRUNCATE forgotten",
        ),
        (event, "idem outbox skip", "DELETE FROM outbox"),
        (letter, "idem dead-letters", "UPDATE dead_letters SET replayed_at = now()"),
    ] {
        fixture.run(holds).await;
        let Err(MigrateError::Failed { version: 1, source, .. }) = fixture.store.migrate_down().await else {
            panic!("{holds} was lost");
        };
        let source = source.downcast_ref::<sqlx::Error>().and_then(sqlx::Error::as_database_error).unwrap();
        let report = source.downcast_ref::<sqlx::postgres::PgDatabaseError>();
        let text = format!("{} {}", report.message(), report.hint().unwrap_or_default());
        assert!(text.contains(words), "{text}");
        fixture.run(ends).await;
    }
    assert_eq!(fixture.store.migrate_down().await.unwrap(), Some(1));
    fixture.store.migrate().await.unwrap();
    fixture.drop().await;
}

#[tokio::test]
async fn a_changed_or_newer_schema_is_left_alone() {
    let fixture = Fixture::new().await;
    fixture.run("UPDATE migrations SET checksum = 'x'").await;
    let changed = fixture.store.migrate().await;
    assert!(matches!(changed, Err(MigrateError::Plan(MigrationError::Changed { version: 1, .. }))), "{changed:?}");
    fixture
        .run("INSERT INTO migrations (version, name, checksum, oldest_worker) VALUES (1000, 'n', 'x', '999.0.0')")
        .await;
    let newer = fixture.store.migrate().await;
    assert!(matches!(newer, Err(MigrateError::Plan(MigrationError::Newer { found: 1000, .. }))), "{newer:?}");
    let error = fixture.store.bookkeeping().verify().await.unwrap_err().to_string();
    assert!(error.contains("version 1000") && error.contains("later release"), "{error}");
    fixture.drop().await;
}

/// A setting of the login's that only changes how the server writes definitions keeps no worker from starting.
#[tokio::test]
async fn names_that_the_server_quotes_are_the_same_names() {
    let fixture = Fixture::new().await;
    let quoting = fixture.connection.clone().options([("quote_all_identifiers", "on")]);
    let store = fixture.options_of(quoting).build().unwrap();
    store.bookkeeping().verify().await.unwrap();
    fixture.drop().await;
}

/// Breaks the schema and expects a refusal whose text holds all of `words`.
async fn refused(breaks: &str, words: &[&str]) {
    let fixture = Fixture::new().await;
    fixture.store.bookkeeping().verify().await.unwrap();
    fixture.run(breaks).await;
    let error = fixture.store.bookkeeping().verify().await.unwrap_err();
    assert!(matches!(error, StoreError::Schema { .. }), "{error:?}");
    let text = error.to_string();
    for word in words {
        assert!(text.contains(word), "{word:?} in {text}");
    }
    fixture.drop().await;
}

#[tokio::test]
async fn b6_what_swallows_rows_is_refused() {
    refused(
        "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
         CREATE TRIGGER t BEFORE INSERT ON processed_messages FOR EACH ROW EXECUTE FUNCTION f()",
        &["trigger t on processed_messages", "Drop or disable"],
    )
    .await;
    refused("CREATE RULE r AS ON INSERT TO processed_messages DO INSTEAD NOTHING", &["rule r", "Drop or disable"])
        .await;
    refused("ALTER TABLE processed_messages ENABLE ROW LEVEL SECURITY", &["row level security"]).await;
}

#[tokio::test]
async fn b7_another_unique_index_is_refused() {
    refused("CREATE UNIQUE INDEX u ON processed_messages (idempotency_key)", &["(idempotency_key)", "Drop it"]).await;
}

#[tokio::test]
async fn b9_another_collation_or_type_is_refused() {
    refused(
        "ALTER TABLE processed_messages ALTER idempotency_key TYPE text COLLATE \"default\"",
        &["idempotency_key", "collate C", "ALTER TABLE"],
    )
    .await;
    refused("ALTER TABLE processed_messages ALTER payload_hash DROP NOT NULL", &["payload_hash bytea not null"]).await;
}

#[tokio::test]
async fn b21_a_missing_or_deferrable_key_is_refused() {
    refused("ALTER TABLE processed_messages DROP CONSTRAINT processed_messages_pkey", &["missing", "PRIMARY KEY"])
        .await;
    refused("DROP INDEX idx_processed_messages_expires", &["expires_at", "CREATE INDEX CONCURRENTLY"]).await;
    refused(
        "ALTER TABLE processed_messages DROP CONSTRAINT processed_messages_pkey;
         ALTER TABLE processed_messages ADD PRIMARY KEY (consumer, key_id) DEFERRABLE",
        &["deferrable", "PRIMARY KEY"],
    )
    .await;
}

#[tokio::test]
async fn a12_a_seal_that_does_not_guard_is_refused() {
    refused("DROP TRIGGER refuse_unsealed_commit ON units", &["missing", "CREATE CONSTRAINT TRIGGER"]).await;
    refused("ALTER TABLE units DISABLE TRIGGER refuse_unsealed_commit", &["disabled", "ENABLE TRIGGER"]).await;
    let drop = "DROP TRIGGER refuse_unsealed_commit ON processed_messages";
    refused(drop, &["processed_messages is missing", "WHEN (NEW.alone)"]).await;
    let other = "CREATE CONSTRAINT TRIGGER refuse_unsealed_commit AFTER INSERT ON processed_messages DEFERRABLE \
                 INITIALLY DEFERRED FOR EACH ROW WHEN (NOT NEW.alone) EXECUTE FUNCTION refuse_unsealed_commit()";
    refused(&format!("{drop}; {other}"), &["processed_messages is altered", "WHEN (NEW.alone)"]).await;
}

#[tokio::test]
async fn s6_a_schema_name_that_is_a_keyword_works_and_a_hostile_one_is_refused() {
    for hostile in ["x\"; DROP SCHEMA public; --", "a.b", "Idem", "pg_x", ""] {
        assert!(SchemaName::new(hostile).is_err(), "{hostile}");
    }
    let fixture = Fixture::new().await;
    let keyword = SchemaName::new("select").unwrap();
    let store: PostgresStore = fixture.options().schema(keyword).build().unwrap();
    store.migrate().await.unwrap();
    let consumer = consumer(store, Write);
    assert_eq!(process(&consumer, vec![msg("a'; DROP TABLE effects; --")]).await, "P");
    assert_eq!(process(&consumer, vec![msg("a'; DROP TABLE effects; --")]).await, "D");
    fixture.run("DROP SCHEMA \"select\" CASCADE").await;
    fixture.drop().await;
}

/// C5, C6: a table that is partitioned by time takes the same key once in each partition: refused, on the server itself.
#[tokio::test]
async fn c5_c6_a_table_that_an_operator_has_partitioned_is_refused() {
    let fixture = Fixture::new().await;
    let partition = "
        ALTER TABLE processed_messages RENAME TO before;
        CREATE TABLE processed_messages (LIKE before INCLUDING DEFAULTS) PARTITION BY RANGE (processed_at);
        CREATE TABLE of_today PARTITION OF processed_messages FOR VALUES FROM (MINVALUE) TO (MAXVALUE);
        CREATE UNIQUE INDEX ON of_today (consumer, key_id);";
    fixture.run(partition).await;
    let refused = fixture.store.bookkeeping().verify().await.unwrap_err().to_string();
    assert!(refused.contains("partitioned table") && refused.contains("ordinary logged table"), "{refused}");
    fixture.run("DROP TABLE processed_messages; ALTER TABLE before RENAME TO processed_messages").await;
    fixture.store.bookkeeping().verify().await.unwrap();
    fixture.drop().await;
}
