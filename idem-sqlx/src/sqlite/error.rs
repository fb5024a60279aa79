//! The meaning of errors of SQLite and sqlx, in texts without a value of a statement or row (S4).

#![allow(clippy::wildcard_enum_match_arm, reason = "sqlx's error is open, and has variants behind its features")]

use std::error::Error as StdError;

use idem_core::{ErrorClass, StoreError, store::boxed};
use sqlx::{
    error::{DatabaseError, Error},
    sqlite::SqliteError,
};

use super::codes;

/// The result code of an error, where SQLite gave one.
pub(super) fn code(error: &Error) -> Option<i32> {
    match error {
        Error::Database(error) => code_of(error.try_downcast_ref::<SqliteError>()?),
        _ => None,
    }
}

fn code_of(error: &SqliteError) -> Option<i32> {
    error.code()?.parse().ok()
}

/// Whether another connection holds the write lock.
pub(super) fn is_busy(error: &Error) -> bool {
    code(error).is_some_and(|code| codes::primary(code) == codes::BUSY)
}

/// The class of an error, found in its chain of sources.
pub(super) fn classify(error: &(dyn StdError + 'static)) -> Option<ErrorClass> {
    idem_core::internal::chain(error).find_map(class_of_link)
}

fn class_of_link(error: &(dyn StdError + 'static)) -> Option<ErrorClass> {
    if let Some(error) = error.downcast_ref::<Error>() {
        return class_of(error);
    }
    sqlite_error(error).and_then(class_of_sqlite)
}

/// The error of SQLite in one link of a chain: bare, or boxed as sqlx hands it out.
fn sqlite_error<'e>(error: &'e (dyn StdError + 'static)) -> Option<&'e SqliteError> {
    if let Some(boxed) = error.downcast_ref::<Box<dyn DatabaseError>>() {
        return boxed.try_downcast_ref();
    }
    error.downcast_ref()
}

fn class_of_sqlite(error: &SqliteError) -> Option<ErrorClass> {
    let code = code_of(error)?;
    if code != 1 {
        return codes::class_of(code);
    }
    // SQLite has one code for all of these, and its texts for them have been the same for twenty years. A missing table
    // or column is a deploy in progress (A27): healthy messages would be dead-lettered by the thousand for it.
    let message = error.message();
    let missing = ["no such table: ", "no such column: "].iter().any(|start| message.starts_with(start))
        || (message.starts_with("table ") && message.contains(" has no column named "));
    if missing {
        Some(ErrorClass::Infrastructure)
    } else if message.ends_with(": syntax error") {
        Some(ErrorClass::Permanent)
    } else {
        codes::class_of(code)
    }
}

/// The class of an error of sqlx; `None` where it says nothing about this database.
pub(super) fn class_of(error: &Error) -> Option<ErrorClass> {
    match error {
        Error::Database(error) => error.try_downcast_ref().and_then(class_of_sqlite),
        // The connection's thread or a pool is gone, or the file could not be reached: no message could be served.
        Error::Io(_) | Error::Tls(_) | Error::WorkerCrashed | Error::PoolTimedOut | Error::PoolClosed => {
            Some(ErrorClass::Infrastructure)
        }
        // A value that cannot be bound cannot be bound next time either.
        Error::Encode(_) => Some(ErrorClass::Permanent),
        // The rows read are not those that the program expected: other rows, or a deploy, may cure it. Attempts are bounded.
        _ => Some(ErrorClass::Transient),
    }
}

/// The extended result code that SQLite gave with an error.
pub(super) fn result_code(error: &(dyn StdError + 'static)) -> Option<String> {
    let error = match error.downcast_ref::<Error>() {
        Some(error) => error.as_database_error()?.try_downcast_ref()?,
        None => sqlite_error(error)?,
    };
    code_of(error).map(|code| code.to_string())
}

/// The text of a driver's error without any value; `None` where the error is not this driver's.
pub(super) fn describe(error: &(dyn StdError + 'static)) -> Option<String> {
    if let Some(error) = error.downcast_ref::<Error>() {
        return Some(describe_sqlx(error));
    }
    sqlite_error(error).map(describe_sqlite)
}

fn describe_sqlx(error: &Error) -> String {
    let text = match error {
        Error::Database(error) => match error.try_downcast_ref::<SqliteError>() {
            Some(error) => return describe_sqlite(error),
            None => "another database answered with an error",
        },
        Error::Io(error) => return format!("I/O error of the database: {error}"),
        Error::Tls(_) => "TLS error of a database connection",
        Error::WorkerCrashed => "the thread of the database connection has ended",
        Error::PoolTimedOut => "a pool had no connection to give in time",
        Error::PoolClosed => "a pool of connections is closed",
        Error::RowNotFound => "a query that must return a row returned none",
        Error::ColumnNotFound(_) | Error::ColumnIndexOutOfBounds { .. } => "a row lacks a column that was asked for",
        Error::ColumnDecode { .. } | Error::Decode(_) => "a column holds something else than was asked for",
        Error::Encode(_) => "a value could not be bound",
        Error::TypeNotFound { .. } => "a type of SQL is not known",
        Error::BeginFailed | Error::InvalidSavePointStatement => "a transaction could not be begun",
        Error::Configuration(_) => "the options of a connection are wrong",
        // The enum is open, and the texts of these and of later variants may quote a statement.
        _ => "the database's driver failed",
    };
    text.to_owned()
}

/// Texts of constraints name tables, columns and constraints. All others may quote a piece of the statement, and with it a
/// value from its text, so their code's name must do.
fn describe_sqlite(error: &SqliteError) -> String {
    let code = code_of(error).unwrap_or(0);
    let name = codes::name_of(code);
    match name {
        "SQLITE_CONSTRAINT_COMMITHOOK" => format!("idem refused a COMMIT that it did not send ({name}, code {code})"),
        "SQLITE_CONSTRAINT_UNIQUE"
        | "SQLITE_CONSTRAINT_PRIMARYKEY"
        | "SQLITE_CONSTRAINT_NOTNULL"
        | "SQLITE_CONSTRAINT_CHECK"
        | "SQLITE_CONSTRAINT_DATATYPE" => format!("{} ({name}, code {code})", error.message()),
        _ => match missing_object(error) {
            Some(what) => format!("{what} is missing ({name}, code {code})"),
            None => format!("SQLite answered {name} (code {code})"),
        },
    }
}

fn missing_object(error: &SqliteError) -> Option<&'static str> {
    let is = |start: &str| error.message().starts_with(start);
    if is("no such table: ") {
        return Some("a table");
    }
    (class_of_sqlite(error) == Some(ErrorClass::Infrastructure) && code_of(error) == Some(1)).then_some("a column")
}

/// An error of one of idem's own statements, in a unit of work.
pub(super) fn of_unit(doing: &'static str, error: Error) -> StoreError {
    if code(&error) == Some(codes::COMMIT_HOOK) {
        let problem = "the commit was not idem's own".to_owned();
        return StoreError::Unsealed { problem, source: Some(boxed(error)) };
    }
    match class_of(&error).unwrap_or(ErrorClass::Transient) {
        ErrorClass::Infrastructure => StoreError::Unavailable { doing, source: boxed(error) },
        ErrorClass::RunUnitAgain => StoreError::Contended { doing, source: boxed(error) },
        class @ (ErrorClass::Transient | ErrorClass::Permanent | ErrorClass::Fatal) => {
            StoreError::Failed { doing, class, source: boxed(error) }
        }
    }
}

/// An error of a call of bookkeeping, which has waited for the write lock as long as it may: to come back later is all
/// that is left.
pub(super) fn of_bookkeeping(doing: &'static str, error: Error) -> StoreError {
    if is_busy(&error) {
        return StoreError::Unavailable { doing, source: boxed(error) };
    }
    of_unit(doing, error)
}

#[cfg(test)]
mod tests;
