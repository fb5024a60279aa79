use idem_sql::{Migration, SQLITE_MIGRATIONS};

use super::*;
use crate::SqliteOptions;

/// A migration that fails in its second statement leaves nothing of itself, and everything of those before it.
#[tokio::test]
async fn a_migration_that_fails_midway_leaves_nothing() {
    let folder = std::env::temp_dir().join(format!("idem-sqlite-migrate-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let store = SqliteStore::connect(SqliteOptions::new(folder.join("test.db"))).await.unwrap();
    let first = &SQLITE_MIGRATIONS[0];
    let mut broken = *first;
    broken.version = 2;
    broken.name = "broken";
    broken.up_template = "CREATE TABLE \"{schema}_half\" (a); INSERT INTO \"{schema}_missing\" VALUES (1);";
    migrate(&store, &[*first, broken]).await.unwrap_err();
    let mut connection = store.driver().connections.read("looking").await.unwrap();
    let count = "SELECT count(*) FROM sqlite_schema WHERE name = 'idem_half'";
    assert_eq!(sqlx::query_scalar::<_, i64>(count).fetch_one(connection.get().unwrap()).await.unwrap(), 0);
    let mut connection = Migrating(connection);
    let applied = Migrator::new(Dialect::Sqlite, &store.options().schema).applied(&mut connection).await.unwrap();
    assert_eq!(applied.iter().map(|row| row.version).collect::<Vec<_>>(), [1]);
    connection.0.done();
    // Once it is repaired it goes on from there, and an older build, which may still run on it, leaves it alone.
    broken.up_template = "CREATE TABLE \"{schema}_half\" (a);";
    assert_eq!(migrate(&store, &[*first, broken]).await.unwrap(), [2]);
    assert!(migrate(&store, &[*first]).await.unwrap().is_empty());
    std::fs::remove_dir_all(folder).unwrap();
}

async fn migrate(store: &SqliteStore, known: &[Migration]) -> Result<Vec<u32>, MigrateError> {
    let mut connection = Migrating(store.driver().connections.write("migrating the schema").await?);
    let versions = Migrator::with(Dialect::Sqlite, &store.options().schema, known).up(&mut connection).await?;
    connection.0.done();
    Ok(versions)
}
