//! The migrations still to run, decided from those that ran.

use crate::text::migrations::Migration;

/// A row of the `migrations` table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AppliedMigration {
    /// Its version.
    pub version: u32,
    /// Its name.
    pub name: String,
    /// The checksum of the text that was run.
    pub checksum: String,
    /// The oldest release whose workers run on the schema after it.
    pub oldest_worker: String,
}

/// Why the runner must not touch the schema.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MigrationError {
    /// Another release has migrated the schema further than this one knows.
    #[error(
        "the schema is at version {found} and this build knows versions up to {known}: run the migrations of the release that wrote version {found}, or a later one"
    )]
    Newer {
        /// The newest version in the database.
        found: u32,
        /// The newest version of this build.
        known: u32,
    },
    /// A migration's text is not the one that was applied.
    #[error(
        "migration {version} ({name}) was applied with checksum {applied} and this build has {known}: a released migration is never edited, so use the release that applied it and put the change into a new migration"
    )]
    Changed {
        /// The migration's version.
        version: u32,
        /// Its name in this build.
        name: &'static str,
        /// The checksum in the database.
        applied: String,
        /// The checksum of this build.
        known: String,
    },
    /// The `migrations` table lacks a row below its newest.
    #[error(
        "migration {missing} is missing in the table of migrations although {found} is there: restore its row, or the schema, from a backup"
    )]
    Gap {
        /// The first version that is missing.
        missing: u32,
        /// The version found in its place.
        found: u32,
    },
}

/// The migrations that are still to be applied, oldest first: none where a newer release has gone further and lets
/// workers of this one go on. `applied` is in the order of versions.
///
/// # Errors
/// [`MigrationError`], in which case nothing may be applied.
pub fn pending_migrations<'m>(
    known: &'m [Migration],
    applied: &[AppliedMigration],
) -> Result<&'m [Migration], MigrationError> {
    match refuse_newer(known, applied) {
        Err(_) if applied.last().is_some_and(|newest| runs_on(Some(&newest.oldest_worker))) => return Ok(&[]),
        refused_or_not => refused_or_not?,
    }
    for (row, migration) in applied.iter().zip(known) {
        if row.version != migration.version {
            return Err(MigrationError::Gap { missing: migration.version, found: row.version });
        }
        let checksum = migration.checksum();
        if row.checksum != checksum {
            return Err(MigrationError::Changed {
                version: row.version,
                name: migration.name,
                applied: row.checksum.clone(),
                known: checksum,
            });
        }
    }
    Ok(known.get(applied.len()..).unwrap_or_default())
}

/// The migration that a step down takes back: the newest that was applied, or `None` where there is none.
///
/// # Errors
/// As [`pending_migrations`]: this build cannot take back a migration that it does not know.
pub fn version_to_revert<'m>(
    known: &'m [Migration],
    applied: &[AppliedMigration],
) -> Result<Option<&'m Migration>, MigrationError> {
    refuse_newer(known, applied)?;
    pending_migrations(known, applied)?;
    Ok(applied.len().checked_sub(1).and_then(|last| known.get(last)))
}

fn refuse_newer(known: &[Migration], applied: &[AppliedMigration]) -> Result<(), MigrationError> {
    let newest_known = known.last().map_or(0, |migration| migration.version);
    match applied.last() {
        Some(newest) if newest.version > newest_known => {
            Err(MigrationError::Newer { found: newest.version, known: newest_known })
        }
        Some(_) | None => Ok(()),
    }
}

/// A newer schema names the oldest release that may work on it, so that a deploy can migrate before it restarts workers.
pub(crate) fn runs_on(oldest_worker: Option<&str>) -> bool {
    match (oldest_worker.and_then(release), release(env!("CARGO_PKG_VERSION"))) {
        (Some(oldest), Some(this)) => oldest <= this,
        _ => false,
    }
}

fn release(version: &str) -> Option<[u32; 3]> {
    // A pre-release counts as its release; its users know which schema it wants.
    let mut parts = version.split(['-', '+']).next()?.split('.').map(str::parse);
    let release = [parts.next()?.ok()?, parts.next()?.ok()?, parts.next()?.ok()?];
    parts.next().is_none().then_some(release)
}
