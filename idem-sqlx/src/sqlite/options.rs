//! Settings of the SQLite store: where the file is, and how sure a commit must be.

use std::{
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

use idem_core::{StoreError, internal::Exactly};
use idem_sql::SchemaName;
use sqlx::{
    ConnectOptions,
    sqlite::{SqliteConnectOptions, SqliteSynchronous},
};

/// The point to which a commit waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Synchronous {
    /// Each commit waits until the disk has it (`PRAGMA synchronous = FULL`): acknowledged messages survive a power
    /// cut. The default.
    #[default]
    Full,
    /// Commits wait for the disk only at checkpoints (`NORMAL`). The file stays consistent and a crash of the process
    /// loses nothing, but **a power cut or a crash of the system loses the last commits, whose messages were
    /// acknowledged to the broker**: their effects are gone. For data that can be made again, such as a demonstration.
    Normal,
}

/// Settings of a [`SqliteStore`](super::SqliteStore).
///
/// ```
/// use idem_sqlx::{SqliteOptions, Synchronous};
///
/// let options = SqliteOptions::new("ledger.db").synchronous(Synchronous::Normal);
/// let from_url: SqliteOptions = "sqlite://ledger.db".parse()?;
/// assert!("sqlite::memory:".parse::<SqliteOptions>().is_err());
/// # let _ = (options, from_url);
/// # Ok::<(), idem_sqlx::idem_core::StoreError>(())
/// ```
#[derive(Debug, Clone)]
pub struct SqliteOptions {
    pub(super) path: PathBuf,
    pub(super) schema: SchemaName,
    pub(super) synchronous: Synchronous,
    pub(super) create_if_missing: bool,
    pub(super) bookkeeping_timeout: Duration,
}

/// The name that asks for a database in memory.
const IN_MEMORY: &str = ":memory:";

impl SqliteOptions {
    /// The longest that a call of bookkeeping waits for the one writer, unless set otherwise: a handler's default
    /// deadline and a margin.
    pub const BOOKKEEPING_TIMEOUT: Duration = Duration::from_secs(35);

    /// A database in this file, which is made if it is missing.
    pub fn new(path: impl AsRef<Path>) -> Self {
        Self {
            path: path.as_ref().to_owned(),
            schema: SchemaName::default(),
            synchronous: Synchronous::default(),
            create_if_missing: true,
            bookkeeping_timeout: Self::BOOKKEEPING_TIMEOUT,
        }
    }

    /// The prefix of idem's tables. Defaults to `idem`; the application's own tables stand beside them.
    #[must_use]
    pub fn schema(mut self, schema: SchemaName) -> Self {
        self.schema = schema;
        self
    }

    /// How far a commit waits for the disk. Defaults to [`Synchronous::Full`]; the other says what it loses.
    #[must_use]
    pub fn synchronous(mut self, synchronous: Synchronous) -> Self {
        self.synchronous = synchronous;
        self
    }

    /// Whether a missing file is made. Defaults to yes; a new file has no schema, so a mistyped path is found at start.
    #[must_use]
    pub fn create_if_missing(mut self, create: bool) -> Self {
        self.create_if_missing = create;
        self
    }

    /// How long a call outside of units (attempts, dead letters, controls, cleanup) waits for the one writer of this
    /// process, and then for other processes. Defaults to 35 s, from 10 ms to 10 minutes.
    #[must_use]
    pub fn bookkeeping_timeout(mut self, timeout: Duration) -> Self {
        self.bookkeeping_timeout = timeout;
        self
    }

    /// Refuses what cannot work, before any file is touched.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        let text = self.path.to_string_lossy();
        if text.is_empty() || text == IN_MEMORY || text.starts_with("file:") {
            return Err(StoreError::Refused {
                problem: format!("{text:?} is no file that several connections can open"),
                cure: "Give the path of a file, for a test one in a temporary directory: a database in memory belongs \
                       to a single connection and ends with it"
                    .to_owned(),
            });
        }
        let limits = Duration::from_millis(10)..=Duration::from_secs(600);
        if !limits.contains(&self.bookkeeping_timeout) {
            return Err(StoreError::Refused {
                problem: format!("bookkeeping_timeout is {}", Exactly(self.bookkeeping_timeout)),
                cure: "Set it from 10 ms to 10 minutes".to_owned(),
            });
        }
        Ok(())
    }

    /// Refuses a place where no file can be: it would be waited for as for a disk that comes back.
    pub(super) fn check_place(&self) -> Result<(), StoreError> {
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        // A file that cannot be looked at may exist.
        let is_missing = |path: &Path| matches!(path.try_exists(), Ok(false));
        if let Some(folder) = folder.filter(|folder| is_missing(folder)) {
            return Err(StoreError::Refused {
                problem: format!("the database's folder {} does not exist", folder.display()),
                cure: "Make it, or correct the path".to_owned(),
            });
        }
        if !self.create_if_missing && is_missing(&self.path) {
            return Err(StoreError::Refused {
                problem: format!("the database {} does not exist", self.path.display()),
                cure: "Correct the path, or have it made".to_owned(),
            });
        }
        Ok(())
    }

    /// sqlx's options for a connection of this store.
    pub(super) fn connect_options(&self) -> SqliteConnectOptions {
        SqliteConnectOptions::new()
            .filename(&self.path)
            .create_if_missing(self.create_if_missing)
            .synchronous(match self.synchronous {
                Synchronous::Full => SqliteSynchronous::Full,
                Synchronous::Normal => SqliteSynchronous::Normal,
            })
            .foreign_keys(true)
            .busy_timeout(self.bookkeeping_timeout)
            // A claim answers with a row a key: a batch must not wait for its reader.
            .row_buffer_size(256)
            // Logged statements may hold values that a handler wrote into their text (S4).
            .disable_statement_logging()
    }
}

/// `sqlite://path` or `sqlite:path`, as in `DATABASE_URL`; `?mode=rw` refuses to make a missing file, `?mode=rwc` makes
/// it, which is the default.
impl FromStr for SqliteOptions {
    type Err = StoreError;

    fn from_str(url: &str) -> Result<Self, Self::Err> {
        let refused = |problem: String| StoreError::Refused {
            problem,
            cure: "Write sqlite://path/to/file, with ?mode=rw or ?mode=rwc at most".to_owned(),
        };
        let rest =
            url.strip_prefix("sqlite:").ok_or_else(|| refused("the URL does not begin with sqlite:".to_owned()))?;
        let (path, query) = rest.split_once('?').unwrap_or((rest, "mode=rwc"));
        if path.strip_prefix("//").unwrap_or(path) == IN_MEMORY {
            Self::new(IN_MEMORY).check()?;
        }
        let create = match query {
            "mode=rwc" => true,
            "mode=rw" => false,
            _ => return Err(refused(format!("{query:?} is not supported"))),
        };
        // sqlx decodes what is percent-encoded in the path.
        let parsed = SqliteConnectOptions::from_str(&format!("sqlite:{path}"))
            .map_err(|_| refused("the path cannot be read".to_owned()))?;
        let options = Self::new(parsed.get_filename()).create_if_missing(create);
        options.check()?;
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_name_a_file_and_nothing_else() {
        for (url, path, create) in [
            ("sqlite://a/b.db", "a/b.db", true),
            ("sqlite:///tmp/x y.db", "/tmp/x y.db", true),
            ("sqlite:/tmp/a%20b.db?mode=rw", "/tmp/a b.db", false),
            ("sqlite:rel.db?mode=rwc", "rel.db", true),
        ] {
            let options: SqliteOptions = url.parse().unwrap();
            assert_eq!((options.path.to_str().unwrap(), options.create_if_missing), (path, create), "{url}");
        }
        for url in [
            "postgres://x",
            "sqlite::memory:",
            "sqlite://:memory:",
            "sqlite:",
            "sqlite://",
            "sqlite://x?mode=memory",
            "sqlite://x?cache=shared",
            "sqlite://x?mode=ro",
            "sqlite:file:x",
        ] {
            assert!(matches!(url.parse::<SqliteOptions>(), Err(StoreError::Refused { .. })), "{url}");
        }
    }

    #[test]
    fn a_database_in_memory_is_refused_with_the_cure() {
        let error = SqliteOptions::new(":memory:").check().unwrap_err().to_string();
        assert!(error.contains("\":memory:\"") && error.contains("temporary directory"), "{error}");
        for (path, wanted) in [
            ("/no/such/place/a.db", "folder /no/such/place does not exist"),
            ("no-such.db", "no-such.db does not exist"),
        ] {
            let error = SqliteOptions::new(path).create_if_missing(false).check_place().unwrap_err().to_string();
            assert!(error.contains(wanted), "{error}");
        }
        assert!(SqliteOptions::new("no-such.db").check_place().is_ok(), "it is made");
        let error = SqliteOptions::new("a").bookkeeping_timeout(Duration::ZERO).check().unwrap_err().to_string();
        assert!(error.contains("bookkeeping_timeout is 0s"), "{error}");
    }
}
