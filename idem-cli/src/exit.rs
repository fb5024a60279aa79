//! How a command ends: its exit status, which is that of a worker in the same case, and the line that says why.

use std::{
    error::Error,
    io::{self, Write as _},
    process::ExitCode,
};

use idem_core::{ErrorClass, Store as _, StoreError, internal::chain, store};
use idem_sqlx::{MigrateError, PostgresStore, SqliteStore};
use sqlx::{error::DatabaseError as _, sqlite::SqliteError};

use crate::report::printable;

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    Done,
    /// `doctor` found something that a person should change.
    Found,
    /// Wrong arguments, not confirmed, or refused by the server.
    Refused,
    /// The database could not be reached.
    Unreachable,
    /// A bug of idem's.
    Bug,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(match exit {
            Exit::Done => 0,
            Exit::Found => 1,
            Exit::Refused => 2,
            Exit::Unreachable => 3,
            // EX_SOFTWARE of sysexits.h.
            Exit::Bug => 70,
        })
    }
}

/// Why a command failed.
#[derive(Debug)]
pub(crate) struct Failure {
    exit: Exit,
    text: String,
}

impl Failure {
    pub(crate) fn new(exit: Exit, text: impl Into<String>) -> Self {
        Self { exit, text: text.into() }
    }

    pub(crate) fn refused(text: impl Into<String>) -> Self {
        Self::new(Exit::Refused, text)
    }

    /// The same after its consequence.
    pub(crate) fn so(mut self, consequence: &str) -> Self {
        self.text = format!("{consequence}: {}", self.text);
        self
    }

    /// Writes the reason to standard error. A mistyped password is not in it.
    pub(crate) fn tell(self) -> Exit {
        say(&without_passwords(self.text.trim_end()));
        self.exit
    }
}

/// Writes a line to standard error. If that is closed, the exit status has to do.
pub(crate) fn say(line: &str) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        // A command neither waits nor tries again, and the database's answer has words of its own.
        if let StoreError::Unavailable { doing, source } = error {
            return match source.downcast::<sqlx::Error>() {
                Ok(error) => (*error).into(),
                Err(source) => Self::new(Exit::Unreachable, format!("{doing} failed: {}", describe(&*source))),
            };
        }
        let exit = match error.class() {
            ErrorClass::Infrastructure | ErrorClass::RunUnitAgain => Exit::Unreachable,
            ErrorClass::Transient | ErrorClass::Permanent | ErrorClass::Fatal => Exit::Refused,
        };
        Self::new(exit, describe(&error))
    }
}

impl From<MigrateError> for Failure {
    fn from(error: MigrateError) -> Self {
        match error {
            MigrateError::Store(error) => error.into(),
            MigrateError::Plan(_) | MigrateError::Failed { .. } => Self::refused(migration_error(&error)),
            // The enum is open; whatever it is, a person must look at it.
            _ => Self::refused(migration_error(&error)),
        }
    }
}

/// The server's words are part of it: the down migration says why it refuses and what to do, and a migration holds no
/// user's value.
fn migration_error(error: &MigrateError) -> String {
    let words = chain(error).filter_map(|link| link.downcast_ref::<sqlx::Error>()).find_map(|error| {
        let error = error.as_database_error()?;
        let hint = error.try_downcast_ref::<sqlx::postgres::PgDatabaseError>().and_then(|error| error.hint());
        // The error as a whole ends with a line of the server's function.
        Some(format!("{}. {}", error.message(), hint.unwrap_or_default()))
    });
    let text = words.map_or_else(|| error.to_string(), |words| format!("{error}: {words}"));
    // A line break stays one; anything else that steers a terminal is escaped.
    text.lines().map(printable).collect::<Vec<_>>().join("\n")
}

impl From<sqlx::Error> for Failure {
    fn from(error: sqlx::Error) -> Self {
        if let Some(failure) = of_a_file(&error) {
            return failure;
        }
        let text = match error.as_database_error().and_then(|error| error.code()).as_deref() {
            Some("42501") => {
                "this login lacks a right on idem's tables: use one in idem_migrator, which owns them".to_owned()
            }
            Some("42P01" | "3F000") => {
                "idem's tables are not there: check --schema, or run `idem migrate up`".to_owned()
            }
            _ => describe(&error),
        };
        let exit = match PostgresStore::classify(&error) {
            Some(ErrorClass::Infrastructure) if error.as_database_error().is_none() => Exit::Unreachable,
            _ => Exit::Refused,
        };
        Self::new(exit, text)
    }
}

/// Whether another connection writes to the file.
pub(crate) fn is_busy(error: &sqlx::Error) -> bool {
    kind_of_a_file(error) == Some(5)
}

/// The kind of an error of SQLite's: the low byte of its code, of which the rest says more.
fn kind_of_a_file(error: &sqlx::Error) -> Option<i32> {
    let code = error.as_database_error()?.try_downcast_ref::<SqliteError>()?.code()?;
    code.parse::<i32>().ok().map(|code| code & 0xff)
}

/// SQLite's error. Its codes are not SQLSTATEs.
fn of_a_file(error: &sqlx::Error) -> Option<Failure> {
    let text = match kind_of_a_file(error) {
        None => return None,
        Some(1) => {
            "idem's tables are not in this file: check the file and --schema, or run `idem migrate up`".to_owned()
        }
        Some(8) => "this login may not write to the file".to_owned(),
        Some(14) => "the file of --database-url does not exist, or this login may not open it".to_owned(),
        Some(26) => "the file of --database-url is not a SQLite database".to_owned(),
        Some(_) => SqliteStore::describe(error).unwrap_or_else(|| describe(error)),
    };
    Some(Failure::refused(text))
}

/// An error and its sources in one line, without values of statements or rows (S4).
pub(crate) fn describe(error: &(dyn Error + 'static)) -> String {
    store::describe::<PostgresStore>(error)
}

/// Blanks the text between `://` and `@`: a URL that was given in a wrong place is quoted in its refusal.
fn without_passwords(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("://") {
        kept.push_str(before);
        kept.push_str("://");
        let end = after.find(|c: char| c.is_whitespace() || matches!(c, '\'' | '"')).unwrap_or(after.len());
        let (url, behind) = after.split_at(end);
        kept.push_str(url.rsplit_once('@').map_or(url, |(_, host)| host));
        rest = behind;
    }
    kept + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s9_no_password_of_a_mistyped_url_is_told() {
        let text = "unexpected argument 'postgres://u:hunter2@h/d' found, 'a://b' and \"x://u:hunter2@y\" too";
        let told = "unexpected argument 'postgres://h/d' found, 'a://b' and \"x://y\" too";
        assert_eq!(without_passwords(text), told);
        assert_eq!(without_passwords("postgres://u:p@ss@h"), "postgres://h");
    }
}
