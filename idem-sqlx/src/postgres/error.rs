//! The meaning of PostgreSQL's and sqlx's errors, and reading of rows without a panic.

use std::error::Error;

use idem_core::{
    ErrorClass, StoreError,
    internal::chain,
    store::{ClaimError, CommitError},
};
use idem_sql::{AppendLimits, DriverError, class_of, describe_report, refused_parameter, unreadable};
use sqlx::{
    Row as _,
    error::DatabaseError,
    postgres::{PgDatabaseError, PgRow},
};

/// The class of an error in a handler's chain.
pub(super) fn classify(error: &(dyn Error + 'static)) -> Option<ErrorClass> {
    chain(error).find_map(|link| {
        if let Some(error) = link.downcast_ref::<sqlx::Error>() {
            return Some(class_in_handler(error));
        }
        // An `io::Error` by itself may be of anything that the handler called; whether the connection is broken, the engine
        // finds out by asking it.
        database(link).map(database_class_in_handler)
    })
}

/// The server's report in one link: sqlx has it boxed as the source of its own error, which `#[error(transparent)]` and
/// anyhow leave out of the chain.
fn database<'e>(link: &'e (dyn Error + 'static)) -> Option<&'e (dyn DatabaseError + 'static)> {
    if let Some(error) = link.downcast_ref::<sqlx::Error>() {
        return error.as_database_error();
    }
    if let Some(error) = link.downcast_ref::<Box<dyn DatabaseError>>() {
        return Some(&**error);
    }
    link.downcast_ref::<PgDatabaseError>().map(|error| error as &dyn DatabaseError)
}

fn class_in_handler(error: &sqlx::Error) -> ErrorClass {
    match error.as_database_error() {
        Some(error) => database_class_in_handler(error),
        None => class_of_driver(error),
    }
}

fn database_class_in_handler(error: &(dyn DatabaseError + 'static)) -> ErrorClass {
    // On a standby not even BEGIN would have run. So the handler has ended the transaction itself, and later statements are
    // read only (A12); or it wrote elsewhere. As infrastructure, its message would be tried for ever.
    if code_of(error) == "25006" { ErrorClass::Transient } else { class_of_database(error) }
}

fn class(error: &sqlx::Error) -> ErrorClass {
    error.as_database_error().map_or_else(|| class_of_driver(error), class_of_database)
}

fn class_of_database(error: &(dyn DatabaseError + 'static)) -> ErrorClass {
    let routine = error.try_downcast_ref::<PgDatabaseError>().and_then(PgDatabaseError::routine);
    class_of(&code_of(error), error.message(), routine)
}

fn code_of(error: &(dyn DatabaseError + 'static)) -> String {
    error.code().unwrap_or_default().into_owned()
}

#[allow(clippy::wildcard_enum_match_arm, reason = "the enum is sqlx's, and may grow")]
fn class_of_driver(error: &sqlx::Error) -> ErrorClass {
    match error {
        // The one error of this variant that says nothing about the connection: a statement of a handler's.
        sqlx::Error::Protocol(text) if text.contains("too many arguments") => ErrorClass::Transient,
        sqlx::Error::Io(_)
        | sqlx::Error::Tls(_)
        | sqlx::Error::Protocol(_)
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::PoolClosed
        | sqlx::Error::WorkerCrashed => ErrorClass::Infrastructure,
        // A row that is not there or not as expected, a value that cannot be sent: another message may do better. sqlx
        // may add variants, and bounded attempts are safe for any of them.
        _ => ErrorClass::Transient,
    }
}

/// The SQLSTATE that the server gave with an error.
pub(super) fn sqlstate(error: &(dyn Error + 'static)) -> Option<String> {
    database(error).map(code_of).filter(|code| !code.is_empty())
}

/// The text of a driver's error without any value: the server quotes rows in its message and detail (S4).
#[allow(clippy::wildcard_enum_match_arm, reason = "the enum is sqlx's, and may grow")]
pub(super) fn describe(error: &(dyn Error + 'static)) -> Option<String> {
    if let Some(error) = database(error) {
        return Some(describe_database(error));
    }
    let error = error.downcast_ref::<sqlx::Error>()?;
    Some(match error {
        sqlx::Error::Io(error) => format!("the connection to the database failed: {error}"),
        sqlx::Error::Tls(_) => "TLS to the database failed".to_owned(),
        sqlx::Error::Protocol(_) => "the database answered something unexpected".to_owned(),
        sqlx::Error::RowNotFound => "no row was found".to_owned(),
        sqlx::Error::TypeNotFound { type_name } => format!("the type {type_name} does not exist"),
        sqlx::Error::ColumnIndexOutOfBounds { .. } => "a column's index is out of bounds".to_owned(),
        sqlx::Error::ColumnNotFound(name) => format!("the column {name} does not exist"),
        sqlx::Error::ColumnDecode { index, .. } => format!("the column {index} cannot be decoded"),
        sqlx::Error::Encode(_) => "a value cannot be encoded".to_owned(),
        sqlx::Error::Decode(_) => "a value cannot be decoded".to_owned(),
        sqlx::Error::PoolTimedOut => "no connection was free in time".to_owned(),
        sqlx::Error::PoolClosed => "the pool is closed".to_owned(),
        _ => "the database's driver failed".to_owned(),
    })
}

fn describe_database(error: &(dyn DatabaseError + 'static)) -> String {
    let report = error.try_downcast_ref::<PgDatabaseError>();
    let [constraint, table, column] = report.map_or([None; 3], |e| [e.constraint(), e.table(), e.column()]);
    let code = code_of(error);
    // A pool connects while a statement is meant to run, and a pooler's refusal of that has a code of its own.
    let refused = if code == "08P01" { refused_parameter(&code, error.message()) } else { None };
    refused.map_or_else(|| describe_report(&code, constraint, table, column), |refused| refused.to_string())
}

pub(super) fn code(error: &sqlx::Error) -> String {
    error.as_database_error().map(code_of).unwrap_or_default()
}

fn of(source: sqlx::Error) -> DriverError {
    DriverError::new(code(&source), class(&source), source)
}

/// The meaning of a failed statement of idem's own.
pub(super) fn store(doing: &'static str, source: sqlx::Error) -> StoreError {
    of(source).doing(doing)
}

pub(super) fn beginning(source: sqlx::Error) -> StoreError {
    of(source).beginning()
}

/// An error of the claim.
pub(super) fn claiming(source: sqlx::Error) -> ClaimError {
    let report = source.as_database_error().and_then(|error| error.try_downcast_ref::<PgDatabaseError>());
    let context = report.and_then(PgDatabaseError::r#where).unwrap_or_default().to_owned();
    of(source).claiming_with(&context)
}

/// An error of an append.
pub(super) fn appending(source: sqlx::Error, limits: AppendLimits<'_>) -> StoreError {
    of(source).appending(limits)
}

/// An error of the seal, behind which a COMMIT was sent.
pub(super) fn sealing(source: sqlx::Error) -> CommitError {
    of(source).sealing_with_commit()
}

/// Of a seal that writes answers, which failed as a seal before a COMMIT was sent; otherwise the error is that of a write.
pub(super) fn sealing_results(source: sqlx::Error) -> Result<StoreError, sqlx::Error> {
    if idem_sql::is_of_seal(&code(&source)) { Ok(of(source).sealing()) } else { Err(source) }
}

/// An error while COMMIT was outstanding.
pub(super) fn committing(source: sqlx::Error) -> CommitError {
    of(source).committing()
}

/// An error while connecting. Refusals of rights pass as unavailable here, because credentials may be in rotation; start-up
/// looks at them again.
pub(super) fn connecting(source: sqlx::Error) -> StoreError {
    if let Some(refused) = refused_setting(&source) {
        return refused;
    }
    if let sqlx::Error::Configuration(_) = source {
        let problem = "the options of the connection cannot be used".to_owned();
        return StoreError::Refused { problem, cure: "Look at its certificates and TLS settings".to_owned() };
    }
    StoreError::Unavailable { doing: "connecting", source: Box::new(source) }
}

/// The refusal of a connection for a setting that came with it.
pub(super) fn refused_setting(error: &sqlx::Error) -> Option<StoreError> {
    let reported = error.as_database_error()?;
    refused_parameter(&code_of(reported), reported.message())
}

/// One value of a row.
pub(super) fn get<'r, T>(row: &'r PgRow, column: impl sqlx::ColumnIndex<PgRow>) -> Result<T, StoreError>
where
    T: sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres>,
{
    row.try_get(column).map_err(unreadable)
}

/// A value that came in the simple protocol, whose answers are texts of any type.
pub(super) fn text(row: &PgRow, column: &str) -> Result<String, StoreError> {
    row.try_get_unchecked(column).map_err(unreadable)
}

#[cfg(test)]
mod tests;
