use super::*;

use crate::text::plan::{AppliedMigration, MigrationError, pending_migrations, version_to_revert};

fn applied(migration: &Migration) -> AppliedMigration {
    AppliedMigration {
        version: migration.version,
        name: migration.name.to_owned(),
        checksum: migration.checksum(),
        oldest_worker: migration.oldest_worker.to_owned(),
    }
}

fn three() -> [Migration; 3] {
    let first = POSTGRES_MIGRATIONS[0];
    [
        first,
        Migration { version: 2, up_template: "ALTER TABLE {schema}.units ADD x int", ..first },
        Migration { version: 3, up_template: "ALTER TABLE {schema}.units ADD y int", ..first },
    ]
}

#[test]
fn versions_begin_at_one_and_have_no_gaps() {
    for migrations in [POSTGRES_MIGRATIONS, SQLITE_MIGRATIONS] {
        for (index, migration) in migrations.iter().enumerate() {
            assert_eq!(migration.version as usize, index + 1);
        }
    }
}

/// A released migration is never edited. Where this is red, undo the change and write a new one.
#[test]
fn texts_leave_no_placeholder_and_no_bare_name() {
    let schema = SchemaName::new("select").unwrap();
    for migration in POSTGRES_MIGRATIONS {
        for text in [migration.up(&schema), migration.down(&schema), postgres_roles(&schema)] {
            assert!(!text.contains("{schema}.") && text.contains("\"select\"."));
        }
    }
    for migration in SQLITE_MIGRATIONS {
        for text in [migration.up(&schema), migration.down(&schema)] {
            assert!(!text.contains("\"{schema}_") && text.contains("\"select_"));
        }
    }
}

#[test]
fn checksum_ignores_the_schema_and_carriage_returns() {
    let plain = Migration { up_template: "a\nb\n", ..POSTGRES_MIGRATIONS[0] };
    let windows = Migration { up_template: "a\r\nb\r\n", ..plain };
    assert_eq!(plain.checksum(), windows.checksum());
    assert_eq!(plain.checksum(), "911169ddaaf146aff539f58c26c489af3b892dff0fe283c1c264c65ae5aa59a2");
}

#[test]
fn only_what_is_missing_is_pending() {
    let known = three();
    assert_eq!(pending_migrations(&known, &[]).unwrap(), &known);
    assert_eq!(pending_migrations(&known, &[applied(&known[0])]).unwrap(), &known[1..]);
    assert_eq!(pending_migrations(&known, &known.each_ref().map(applied)).unwrap(), &[]);
    assert_eq!(version_to_revert(&known, &[]).unwrap(), None);
    assert_eq!(version_to_revert(&known, &[applied(&known[0]), applied(&known[1])]).unwrap(), Some(&known[1]));
}

#[test]
fn j12_a_newer_schema_is_refused_naming_both_versions() {
    let known = three();
    let mut rows = known.each_ref().map(applied);
    rows[2].oldest_worker = "1000.0.0".to_owned();
    let error = pending_migrations(&known[..1], &rows).unwrap_err();
    assert_eq!(error, MigrationError::Newer { found: 3, known: 1 });
    assert!(error.to_string().contains("version 3") && error.to_string().contains("up to 1"), "{error}");
}

/// In a rolling deploy an older worker may be started with `--migrate` on the newer schema.
#[test]
fn j12_on_a_newer_schema_that_allows_this_release_nothing_is_pending_and_nothing_goes_back() {
    let known = three();
    let rows = known.each_ref().map(applied);
    assert_eq!(pending_migrations(&known[..1], &rows).unwrap(), &[]);
    let error = version_to_revert(&known[..1], &rows).unwrap_err();
    assert_eq!(error, MigrationError::Newer { found: 3, known: 1 });
}

#[test]
fn a_changed_checksum_is_refused() {
    let known = three();
    let mut rows = known.each_ref().map(applied);
    rows[1].checksum = "0".repeat(64);
    let error = pending_migrations(&known, &rows).unwrap_err();
    assert!(matches!(error, MigrationError::Changed { version: 2, .. }), "{error}");
}

#[test]
fn a_gap_is_refused() {
    let known = three();
    let error = pending_migrations(&known, &[applied(&known[0]), applied(&known[2])]).unwrap_err();
    assert_eq!(error, MigrationError::Gap { missing: 2, found: 3 });
}

#[test]
fn the_lock_is_scoped_to_the_transaction() {
    let schema = SchemaName::default();
    let lock = MigrationStatements::new(Dialect::Postgres, &schema).lock.unwrap();
    assert!(lock.contains("LOCK TABLE \"idem\".migrations"), "{lock}");
    assert_eq!(MigrationStatements::new(Dialect::Sqlite, &schema).lock, None);
}
