//! The classes of Diesel's errors.
//!
//! Diesel keeps the SQLSTATE to itself. It distinguishes a few kinds; the rest is recognised by the server's text, which
//! takes a server whose `lc_messages` is English. Any other error is transient, and after COMMIT unknown: the keys are
//! then claimed again, which is right and only slower.

use std::error::Error as StdError;

use diesel::result::{ConnectionError, DatabaseErrorKind, Error};
use idem_core::{ErrorClass, StoreError, internal::chain};
use idem_sql::{DriverError, WEAKER_COMMIT, class_of, describe_report};

/// The SQLSTATE that the server must have reported; empty where it is unknown.
fn sqlstate(error: &Error) -> &'static str {
    let Error::DatabaseError(kind, report) = error else { return "" };
    match kind {
        DatabaseErrorKind::UniqueViolation => "23505",
        DatabaseErrorKind::ForeignKeyViolation => "23503",
        DatabaseErrorKind::RestrictViolation => "23001",
        DatabaseErrorKind::ExclusionViolation => "23P01",
        DatabaseErrorKind::NotNullViolation => "23502",
        DatabaseErrorKind::CheckViolation => "23514",
        DatabaseErrorKind::SerializationFailure => "40001",
        DatabaseErrorKind::ReadOnlyTransaction => "25006",
        DatabaseErrorKind::UnableToSendCommand | DatabaseErrorKind::ClosedConnection => "08006",
        _ => sqlstate_of(report.message()),
    }
}

fn sqlstate_of(message: &str) -> &'static str {
    const TEXTS: [(&str, &str); 10] = [
        ("canceling statement due to lock timeout", "55P03"),
        ("canceling statement due to statement timeout", "57014"),
        ("deadlock detected", "40P01"),
        ("current transaction is aborted", "25P02"),
        ("division by zero", "22012"),
        ("cannot set transaction read-write mode during recovery", "0A000"),
        ("terminating connection due to", "57P01"),
        ("the database system is", "57P03"),
        ("cached plan must not change result type", "0A000"),
        ("invalid input syntax for type integer", WEAKER_COMMIT),
    ];
    if message.starts_with("relation ") && message.ends_with("does not exist") {
        return "42P01";
    }
    TEXTS.iter().find_map(|(text, code)| message.starts_with(text).then_some(*code)).unwrap_or_default()
}

fn class(error: &Error) -> ErrorClass {
    let message = if let Error::DatabaseError(_, report) = error { report.message() } else { "" };
    match sqlstate(error) {
        "" if matches!(error, Error::BrokenTransactionManager) => ErrorClass::Infrastructure,
        "" => ErrorClass::Transient,
        code => class_of(code, message, None),
    }
}

/// The class of an error in a handler's chain.
pub(crate) fn classify(error: &(dyn StdError + 'static)) -> Option<ErrorClass> {
    chain(error).find_map(|link| match link.downcast_ref::<Error>() {
        // The handler has ended the transaction itself (A12), or writes elsewhere.
        Some(error) if sqlstate(error) == "25006" => Some(ErrorClass::Transient),
        Some(error) => Some(class(error)),
        None => link.is::<ConnectionError>().then_some(ErrorClass::Infrastructure),
    })
}

/// The text of an error without any value: Diesel's own quotes the server's (S4).
pub(crate) fn describe(error: &(dyn StdError + 'static)) -> Option<String> {
    let error = error.downcast_ref::<Error>()?;
    let Error::DatabaseError(kind, report) = error else { return Some(error.to_string()) };
    let (constraint, table, column) = (report.constraint_name(), report.table_name(), report.column_name());
    Some(match sqlstate(error) {
        "" => format!("{kind:?}"),
        code => describe_report(code, constraint, table, column),
    })
}

/// The error with its SQLSTATE and class, on which a store's errors depend.
pub(crate) fn of(source: Error) -> DriverError {
    DriverError::new(sqlstate(&source), class(&source), source)
}

/// An error while connecting.
pub(crate) fn connecting(source: ConnectionError) -> StoreError {
    StoreError::Unavailable { doing: "connecting", source: Box::new(source) }
}
