//! The meaning of PostgreSQL's and tokio-postgres's errors, and reading of rows without a panic.

use std::{error::Error as StdError, io};

use idem_core::{
    ErrorClass, StoreError,
    internal::chain,
    store::{ClaimError, CommitError},
};
use idem_sql::{AppendLimits, DriverError, class_of, describe_report, refused_parameter, unreadable};
use tokio_postgres::{
    Error, Row,
    error::{DbError, SqlState},
    row::RowIndex,
    types::FromSql,
};

use crate::RunStatementError;

/// The class of an error in a handler's chain.
pub(crate) fn classify(error: &(dyn StdError + 'static)) -> Option<ErrorClass> {
    chain(error).find_map(|link| {
        if let Some(error) = link.downcast_ref::<RunStatementError>() {
            return match error {
                RunStatementError::Postgres(error) => Some(class_in_handler(error)),
                // The same text is refused each time.
                RunStatementError::SessionControl { .. }
                | RunStatementError::Copy
                | RunStatementError::NoCopy
                | RunStatementError::NotInOrder { .. } => Some(ErrorClass::Permanent),
            };
        }
        if let Some(error) = link.downcast_ref::<Error>() {
            return Some(class_in_handler(error));
        }
        // An `io::Error` by itself may be of anything that the handler called; whether the connection is broken, the engine
        // finds out by asking it.
        link.downcast_ref::<DbError>().map(report_class_in_handler)
    })
}

fn class_in_handler(error: &Error) -> ErrorClass {
    error.as_db_error().map_or_else(|| class_of_driver(error), report_class_in_handler)
}

fn report_class_in_handler(error: &DbError) -> ErrorClass {
    // On a standby not even BEGIN would have run. So the handler has ended the transaction itself, and later statements are
    // read only (A12); or it wrote elsewhere. As infrastructure, its message would be tried for ever.
    if *error.code() == SqlState::READ_ONLY_SQL_TRANSACTION { ErrorClass::Transient } else { class_of_report(error) }
}

fn class(error: &Error) -> ErrorClass {
    error.as_db_error().map_or_else(|| class_of_driver(error), class_of_report)
}

fn class_of_report(error: &DbError) -> ErrorClass {
    class_of(error.code().code(), error.message(), error.routine())
}

/// The class of an error that the driver made itself. Its kinds are private, so they are recognized by the error that they
/// carry.
fn class_of_driver(error: &Error) -> ErrorClass {
    let is_io = StdError::source(error).is_some_and(|source| source.is::<io::Error>());
    // The one of them that says nothing about the connection: a statement that is too long, a text that holds a NUL.
    let is_encoding = error.to_string().starts_with("error encoding");
    if error.is_closed() || (is_io && !is_encoding) {
        ErrorClass::Infrastructure
    } else {
        // A row that is not there or not as expected, a value that cannot be sent: another message may do better.
        ErrorClass::Transient
    }
}

/// The SQLSTATE that the server gave with an error.
pub(crate) fn sqlstate(error: &(dyn StdError + 'static)) -> Option<String> {
    let report = error.downcast_ref::<DbError>().or_else(|| error.downcast_ref::<Error>()?.as_db_error())?;
    Some(report.code().code().to_owned())
}

/// The text of a driver's error without any value: the server quotes rows in its message and detail (S4).
pub(crate) fn describe(error: &(dyn StdError + 'static)) -> Option<String> {
    if let Some(error) = error.downcast_ref::<DbError>() {
        return Some(describe_database(error));
    }
    let error = error.downcast_ref::<Error>()?;
    // The driver's own texts hold indexes and the names of columns, and leave their sources out.
    Some(error.as_db_error().map_or_else(|| error.to_string(), describe_database))
}

fn describe_database(error: &DbError) -> String {
    describe_report(error.code().code(), error.constraint(), error.table(), error.column())
}

fn code(error: &Error) -> &str {
    error.code().map_or("", SqlState::code)
}

fn of(source: Error) -> DriverError {
    DriverError::new(code(&source).to_owned(), class(&source), source)
}

/// The meaning of a failed statement of idem's own.
pub(crate) fn store(doing: &'static str, source: Error) -> StoreError {
    of(source).doing(doing)
}

pub(crate) fn beginning(source: Error) -> StoreError {
    of(source).beginning()
}

/// An error of the claim.
pub(crate) fn claiming(source: Error) -> ClaimError {
    let context = source.as_db_error().and_then(DbError::where_).unwrap_or_default().to_owned();
    of(source).claiming_with(&context)
}

/// An error of an append.
pub(crate) fn appending(source: Error, limits: AppendLimits<'_>) -> StoreError {
    of(source).appending(limits)
}

/// An error of the seal, behind which a COMMIT was sent.
pub(crate) fn sealing(source: Error) -> CommitError {
    of(source).sealing_with_commit()
}

/// Whether the seal itself has failed, and no answer that it writes.
pub(crate) fn is_of_seal(source: &Error) -> bool {
    idem_sql::is_of_seal(code(source))
}

/// An error while COMMIT was outstanding.
pub(crate) fn committing(source: Error) -> CommitError {
    of(source).committing()
}

/// An error while connecting. Refusals of rights pass as unavailable here, because credentials may be in rotation; start-up
/// looks at them again.
pub(crate) fn connecting(source: Error) -> StoreError {
    if let Some(refused) =
        source.as_db_error().and_then(|report| refused_parameter(report.code().code(), report.message()))
    {
        return refused;
    }
    if source.to_string().starts_with("invalid configuration") {
        return StoreError::refused("the options of the connection cannot be used", "Give at least a host and a user");
    }
    StoreError::Unavailable { doing: "connecting", source: Box::new(source) }
}

/// One value of a row.
pub(crate) fn get<'r, T: FromSql<'r>>(
    row: &'r Row,
    column: impl RowIndex + std::fmt::Display,
) -> Result<T, StoreError> {
    row.try_get(column).map_err(unreadable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_that_are_not_the_drivers() {
        // D25: it may be a file's, or a provider's.
        assert_eq!(classify(&io::Error::other("x")), None);
        assert_eq!(classify(&std::fmt::Error), None);
        assert_eq!(describe(&std::fmt::Error), None);
        let refused = RunStatementError::SessionControl { keyword: "COMMIT".to_owned() };
        assert_eq!(classify(&refused), Some(ErrorClass::Permanent));
    }
}
