//! What PostgreSQL's and tokio-postgres's errors mean, and reading of rows without a panic.

use std::{
    error::Error as StdError,
    fmt::Write as _,
    io,
    time::{Duration, SystemTime},
};

use idem_core::{BoxError, ClaimError, CommitError, ErrorClass, StoreError, chain};
use idem_schema::{CommitOutcome, UNSEALED_COMMIT, class_of, commit_outcome};
use tokio_postgres::{
    Error, Row,
    error::{DbError, SqlState},
    row::RowIndex,
    types::FromSql,
};

use crate::RunStatementError;

/// What to do where a pooler loses prepared statements.
pub(crate) const POOLER_CURE: &str = "Set `statements` to `Unnamed`, or let the pooler track prepared statements \
                                      (PgBouncer 1.21 and later, `max_prepared_statements`)";

/// An error of prepared statements, which only a pooler causes.
#[derive(Debug, thiserror::Error)]
#[error("a prepared statement is not on the server connection that a pooler handed out. {POOLER_CURE}")]
struct PoolerError(#[source] Error);

/// Whether this is such an error.
pub(crate) fn is_pooler(error: &(dyn StdError + 'static)) -> bool {
    error.is::<PoolerError>()
}

/// The server takes no writes.
#[derive(Debug, thiserror::Error)]
#[error("the server is a standby, or was fenced by default_transaction_read_only: connect to the primary")]
struct ReadOnlyError;

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
        if let Some(error) = link.downcast_ref::<DbError>() {
            return Some(report_class_in_handler(error));
        }
        link.is::<io::Error>().then_some(ErrorClass::Infrastructure)
    })
}

fn class_in_handler(error: &Error) -> ErrorClass {
    error.as_db_error().map_or_else(|| class_of_driver(error), report_class_in_handler)
}

fn report_class_in_handler(error: &DbError) -> ErrorClass {
    // On a standby not even BEGIN would have run. So the handler has ended the transaction itself, and what runs after it
    // is read only (A12); or it wrote elsewhere. As infrastructure, its message would be tried for ever.
    if *error.code() == SqlState::READ_ONLY_SQL_TRANSACTION { ErrorClass::Transient } else { class_of_report(error) }
}

fn class(error: &Error) -> ErrorClass {
    error.as_db_error().map_or_else(|| class_of_driver(error), class_of_report)
}

fn class_of_report(error: &DbError) -> ErrorClass {
    class_of(error.code().code(), error.message(), error.routine())
}

/// The class of an error that the driver made itself. Its kinds are private, so they are told by what they carry.
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

/// The text of a driver's error without any value: the server quotes rows in its message and detail (S4).
pub(crate) fn describe(error: &(dyn StdError + 'static)) -> Option<String> {
    if let Some(error) = error.downcast_ref::<DbError>() {
        return Some(describe_report(error));
    }
    let error = error.downcast_ref::<Error>()?;
    // The driver's own texts hold indexes and the names of columns, and leave their sources out.
    Some(error.as_db_error().map_or_else(|| error.to_string(), describe_report))
}

fn describe_report(error: &DbError) -> String {
    let mut text = format!("SQLSTATE {}", error.code().code());
    let parts = [("constraint", error.constraint()), ("table", error.table()), ("column", error.column())];
    for (name, value) in parts {
        if let Some(value) = value {
            // Writing to a String cannot fail.
            let _ = write!(text, " {name} {value}");
        }
    }
    text
}

fn code(error: &Error) -> &str {
    error.code().map_or("", SqlState::code)
}

/// What a failed statement of idem's own means.
pub(crate) fn store(doing: &'static str, source: Error) -> StoreError {
    if matches!(code(&source), "26000" | "42P05") {
        return StoreError::Unavailable { doing, source: Box::new(PoolerError(source)) };
    }
    match class(&source) {
        ErrorClass::Infrastructure => StoreError::Unavailable { doing, source: Box::new(source) },
        ErrorClass::RunUnitAgain => StoreError::Contended { doing, source: Box::new(source) },
        class @ (ErrorClass::Transient | ErrorClass::Permanent | ErrorClass::Fatal) => {
            StoreError::Failed { doing, class, source: Box::new(source) }
        }
    }
}

/// An error while connecting. Refusals of rights pass as unavailable here, because credentials may be in rotation; start-up
/// looks at them again.
pub(crate) fn connecting(source: Error) -> StoreError {
    let refused =
        |problem: &str, cure: &str| StoreError::Refused { problem: problem.to_owned(), cure: cure.to_owned() };
    let is_refused_setting = source.as_db_error().is_some_and(|report| match report.code().code() {
        "08P01" => report.message().contains("startup parameter"),
        // The server itself, about a setting that it does not know or cannot take.
        "22023" | "42704" => true,
        _ => false,
    });
    if is_refused_setting {
        return refused(
            "the server, or a pooler before it, refuses a setting that comes with the connection",
            "Remove `options` from the connection",
        );
    }
    if source.to_string().starts_with("invalid configuration") {
        return refused("the options of the connection cannot be used", "Give at least a host and a user");
    }
    StoreError::Unavailable { doing: "connecting", source: Box::new(source) }
}

/// Whether the server refuses this user, password or database, which no waiting cures at a start.
pub(crate) fn refused_login(error: &StoreError) -> Option<StoreError> {
    let StoreError::Unavailable { source, .. } = error else { return None };
    let code = code(source.downcast_ref::<Error>()?);
    matches!(code, "28000" | "28P01" | "3D000").then(|| StoreError::Refused {
        problem: format!("the server refuses the login or does not have the database (SQLSTATE {code})"),
        cure: "Check user, password and database of the connection, and pg_hba.conf".to_owned(),
    })
}

pub(crate) fn beginning(source: Error) -> StoreError {
    let doing = "beginning a transaction";
    match code(&source) {
        // "Cannot set transaction read-write mode during recovery" (A23).
        "0A000" | "25006" => read_only(doing),
        // Whatever else goes wrong here says something about the server or the connection, not about a message.
        _ => {
            let error = store(doing, source);
            if let StoreError::Failed { source, .. } = error {
                StoreError::Unavailable { doing, source }
            } else {
                error
            }
        }
    }
}

pub(crate) fn read_only(doing: &'static str) -> StoreError {
    StoreError::Unavailable { doing, source: Box::new(ReadOnlyError) }
}

/// An error of the claim.
pub(crate) fn claiming(source: Error) -> ClaimError {
    match code(&source) {
        // lock_timeout, statement_timeout: somebody held a key for as long as one waits (B2).
        "55P03" | "57014" => ClaimError::Held,
        "25006" => read_only("claiming keys").into(),
        _ => store("claiming keys", source).into(),
    }
}

/// An error of the seal, behind which a COMMIT was sent. Where the server refused the seal, it took the COMMIT for a
/// ROLLBACK; otherwise nobody knows.
pub(crate) fn sealing(source: Error) -> CommitError {
    let code = code(&source);
    if commit_outcome(code) == CommitOutcome::Unknown {
        return CommitError::Unknown(Box::new(source));
    }
    let problem = match code {
        "22012" => "a handler has ended the transaction that claimed the keys",
        "25P02" => "a handler has swallowed the error of a statement",
        _ => "a statement of a handler failed after the handler had stopped reading its answer",
    };
    let error = store("sealing the transaction", source);
    CommitError::RolledBack(if let StoreError::Failed { source, .. } = error {
        StoreError::Unsealed { problem: problem.to_owned(), source: Some(source) }
    } else {
        error
    })
}

/// An error while COMMIT was outstanding.
pub(crate) fn committing(source: Error) -> CommitError {
    let code = code(&source);
    match commit_outcome(code) {
        CommitOutcome::Unknown => CommitError::Unknown(Box::new(source)),
        CommitOutcome::RolledBack if code == UNSEALED_COMMIT => CommitError::RolledBack(StoreError::Unsealed {
            problem: "the server holds another transaction than the one that was sealed".to_owned(),
            source: Some(Box::new(source)),
        }),
        CommitOutcome::RolledBack => CommitError::RolledBack(store("committing", source)),
    }
}

/// A row that is missing, or holds something else than idem's statements answer.
pub(crate) fn unreadable(source: impl Into<BoxError>) -> StoreError {
    let (doing, source) = ("reading the database's answer", source.into());
    StoreError::Failed { doing, class: ErrorClass::Transient, source }
}

/// One value of a row.
pub(crate) fn get<'r, T: FromSql<'r>>(
    row: &'r Row,
    column: impl RowIndex + std::fmt::Display,
) -> Result<T, StoreError> {
    row.try_get(column).map_err(unreadable)
}

/// An instant that came as microseconds since the Unix epoch.
pub(crate) fn instant(row: &Row, column: &str) -> Result<SystemTime, StoreError> {
    Ok(from_microseconds(get(row, column)?))
}

/// An instant that may be NULL.
pub(crate) fn optional_instant(row: &Row, column: &str) -> Result<Option<SystemTime>, StoreError> {
    Ok(get::<Option<i64>>(row, column)?.map(from_microseconds))
}

fn from_microseconds(time: i64) -> SystemTime {
    let span = Duration::from_micros(time.unsigned_abs());
    let instant =
        if time < 0 { SystemTime::UNIX_EPOCH.checked_sub(span) } else { SystemTime::UNIX_EPOCH.checked_add(span) };
    instant.unwrap_or(SystemTime::UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_that_are_not_the_drivers() {
        assert_eq!(classify(&io::Error::other("x")), Some(ErrorClass::Infrastructure));
        assert_eq!(classify(&std::fmt::Error), None);
        assert_eq!(describe(&std::fmt::Error), None);
        let refused = RunStatementError::SessionControl { keyword: "COMMIT".to_owned() };
        assert_eq!(classify(&refused), Some(ErrorClass::Permanent));
    }

    #[test]
    fn instants_before_and_after_1970() {
        let day = Duration::from_secs(86_400);
        assert_eq!(from_microseconds(86_400_000_000), SystemTime::UNIX_EPOCH + day);
        assert_eq!(from_microseconds(-86_400_000_000), SystemTime::UNIX_EPOCH - day);
    }
}
