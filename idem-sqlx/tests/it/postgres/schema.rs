//! Migrations, the SQL function that maps keys, and the schemas that start-up refuses.

use idem_core::{Store as _, StoreError, store::Bookkeeping as _};
use idem_schema::{KEY_ID_VECTORS, MigrationError, POSTGRES_MIGRATIONS, PostgresStatements, SchemaName};
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

#[tokio::test]
async fn records_are_never_dropped_by_a_migration() {
    let fixture = Fixture::new().await;
    let consumer = consumer(fixture.store.clone(), Write);
    assert_eq!(process(&consumer, vec![msg("a")]).await, "P");
    fixture
        .run("INSERT INTO forgotten SELECT key_id, now(), now(), now(), 1, 1, 1, 1, 'b', '' FROM processed_messages")
        .await;
    fixture.down_to(2).await;
    assert!(matches!(fixture.store.migrate_down().await, Err(MigrateError::Failed { version: 2, .. })));
    fixture.run("TRUNCATE forgotten").await;
    assert_eq!(fixture.store.migrate_down().await.unwrap(), Some(2));
    assert!(matches!(fixture.store.migrate_down().await, Err(MigrateError::Failed { version: 1, .. })));
    assert_eq!(fixture.recorded().await, ["a"]);
    fixture.drop().await;
}

/// O74: the migrations are not taken back where that loses an event, the name or form of its ids, a pause or an answer.
#[tokio::test]
async fn o74_the_migrations_are_not_taken_back_while_they_hold_something() {
    let fixture = Fixture::new().await;
    let event = "INSERT INTO outbox (key_id, number, destination, consumer, event_key, event_hash, payload) VALUES (key_id('a'), 1, 1, 1, 'a', '', '')";
    let answer = "INSERT INTO processed_results (consumer, key_id, kind, body) VALUES (1, key_id('a'), 0, '')";
    let destination = "INSERT INTO outbox_destinations (name, id_form, paused_at) VALUES ('payments', 'uuid8', NULL)";
    let scope = "INSERT INTO consumers (name, tenant, bound_to, handler, key_rules, hash_rules, derives_as) VALUES ('purchases', '', '', '', '', '', 'orders')";
    let with_end = format!("{answer}; UPDATE processed_results SET answer_until = now()");
    let with_reference = format!("{answer}; UPDATE processed_results SET reference = 'r'");
    let paused = format!("{destination}; UPDATE outbox_destinations SET paused_at = now()");
    let hex32 = format!("{destination}; UPDATE outbox_destinations SET id_form = 'hex32'");
    for (version, holds, words, ends) in [
        (10, &*with_end, "answers with an end", "DELETE FROM processed_results"),
        (10, &with_reference, "or a reference", "DELETE FROM processed_results"),
        (9, event, "idem outbox skip", "DELETE FROM outbox"),
        (9, scope, "idem consumers rename", "UPDATE consumers SET derives_as = name"),
        (9, &paused, "idem outbox resume", "DELETE FROM outbox_destinations"),
        (9, &hex32, "forms of ids", "DELETE FROM outbox_destinations"),
        (9, answer, "answers that repeats get", "DELETE FROM processed_results"),
    ] {
        fixture.down_to(version).await;
        fixture.run(holds).await;
        let Err(MigrateError::Failed { version: failed, source, .. }) = fixture.store.migrate_down().await else {
            panic!("{holds} was lost");
        };
        let source = source.downcast_ref::<sqlx::Error>().and_then(sqlx::Error::as_database_error).unwrap();
        let report = source.downcast_ref::<sqlx::postgres::PgDatabaseError>();
        let text = format!("{} {}", report.message(), report.hint().unwrap_or_default());
        assert!(failed == version && text.contains(words) && text.contains("eave the schema as it is"), "{text}");
        fixture.run(ends).await;
    }
    fixture.down_to(8).await;
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
