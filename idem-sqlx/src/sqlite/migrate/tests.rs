use super::*;
use crate::SqliteOptions;

/// A migration that fails in its second statement leaves nothing of itself, and everything of those before it.
#[tokio::test]
async fn a_migration_that_fails_midway_leaves_nothing() {
    let folder = std::env::temp_dir().join(format!("idem-sqlite-migrate-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let store = Sqlite::connect(SqliteOptions::new(folder.join("test.db"))).await.unwrap();
    let [first] = SQLITE_MIGRATIONS else { panic!("this test makes up the second one") };
    let mut broken = *first;
    broken.version = 2;
    broken.name = "broken";
    broken.up_template = "CREATE TABLE \"{schema}_half\" (a); INSERT INTO \"{schema}_missing\" VALUES (1);";
    store.migrate_to_newest(&[*first, broken]).await.unwrap_err();
    let mut connection = store.connections.read("looking").await.unwrap();
    let count = "SELECT count(*) FROM sqlite_schema WHERE name = 'idem_half'";
    assert_eq!(sqlx::query_scalar::<_, i64>(count).fetch_one(connection.get().unwrap()).await.unwrap(), 0);
    let statements = MigrationStatements::new(Dialect::Sqlite, &store.options.schema);
    let versions: Vec<u32> =
        applied(&mut connection, &statements).await.unwrap().iter().map(|row| row.version).collect();
    assert_eq!(versions, [1]);
    connection.done();
    // Once it is repaired it goes on from there, and an older build, which may still run on it, leaves it alone.
    broken.up_template = "CREATE TABLE \"{schema}_half\" (a);";
    assert_eq!(store.migrate_to_newest(&[*first, broken]).await.unwrap(), [2]);
    assert!(store.migrate().await.unwrap().is_empty());
    std::fs::remove_dir_all(folder).unwrap();
}
