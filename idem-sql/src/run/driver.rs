//! The calls that a driver implements so that idem does its bookkeeping through it.

use std::{error::Error, future::Future, sync::Arc, time::Duration};

use idem_core::StoreError;
use uuid::Uuid;

use crate::{
    check::{
        errors::{SeenPids, read_only, unreadable},
        sqlstate::describe_report,
    },
    run::{role_default::RoleDefault, row::Row},
    text::{bookkeeping::BookkeepingStatements, name::SchemaName, postgres::PostgresStatements},
};

/// One parameter of a statement, of the type that its text casts it to. `None` is NULL.
#[derive(Debug, Clone, Copy)]
pub enum Parameter<'p> {
    /// `bool`.
    Bool(bool),
    /// `int4`.
    Int4(Option<i32>),
    /// `int8`.
    Int8(Option<i64>),
    /// `text`.
    Text(Option<&'p str>),
    /// `bytea`.
    Bytes(Option<&'p [u8]>),
    /// `uuid`.
    Uuid(Option<Uuid>),
    /// `int8[]`.
    Int8s(&'p [i64]),
    /// `text[]`.
    Texts(&'p [&'p str]),
    /// `text[]` with NULLs.
    OptionalTexts(&'p [Option<&'p str>]),
    /// `bytea[]` with NULLs. SQLite, whose arrays are JSON, has none.
    OptionalBytes(&'p [Option<&'p [u8]>]),
}

macro_rules! from {
    ($($type:ty => $variant:ident;)+) => {$(
        impl<'p> From<$type> for Parameter<'p> {
            fn from(value: $type) -> Self {
                Self::$variant(value.into())
            }
        }
    )+};
}

from! {
    bool => Bool;
    i32 => Int4;
    Option<i32> => Int4;
    i64 => Int8;
    Option<i64> => Int8;
    &'p str => Text;
    Option<&'p str> => Text;
    &'p [u8] => Bytes;
    Option<&'p [u8]> => Bytes;
    Uuid => Uuid;
    Option<Uuid> => Uuid;
    &'p [i64] => Int8s;
    &'p [&'p str] => Texts;
}

/// A text without the one character that PostgreSQL cannot store; SQLite does as it does.
pub(crate) fn storable(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

/// A database as bookkeeping needs it, which is written once: one statement at a time, each in a transaction of its own. Every
/// [`PostgresDriver`] is one. [`SqlBookkeeping`](crate::SqlBookkeeping) makes a store's bookkeeping of it.
pub trait BookkeepingDriver: Send + Sync {
    /// The statements in the database's dialect.
    fn bookkeeping_statements(&self) -> &BookkeepingStatements;

    /// Runs a statement within the time for it, again after a conflict with another transaction, and answers its rows.
    fn rows(
        &self,
        doing: &'static str,
        text: &Arc<str>,
        parameters: &[Parameter<'_>],
    ) -> impl Future<Output = Result<Vec<Row>, StoreError>> + Send;

    /// Checks whether the database and its schema can keep the promise: see [`idem_core::store::Bookkeeping::verify`].
    fn verify(&self) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Warnings for a person: weak settings, each with its cure.
    fn warnings(&self) -> impl Future<Output = Result<Vec<String>, StoreError>> + Send;
}

/// A driver of PostgreSQL, as far as bookkeeping outside of units of work needs it: each statement in a transaction of
/// its own.
pub trait PostgresDriver: Send + Sync {
    /// The statements of the store's schema.
    fn statements(&self) -> &PostgresStatements;

    /// The schema that holds idem's tables.
    fn schema(&self) -> &SchemaName;

    /// Runs a statement once, within the time for it, and answers its rows. The server ends it after that time too, however the
    /// connection comes to it (A54).
    fn run_once(
        &self,
        doing: &'static str,
        text: &Arc<str>,
        parameters: &[Parameter<'_>],
    ) -> impl Future<Output = Result<Vec<Row>, StoreError>> + Send;

    /// The same on the connection for cleanup and its login, in a transaction that `begin` begins and whose statements the
    /// server ends after `limit`. The statement must not keep its plan: one that is made while the table is tiny would go
    /// on to sort the whole table.
    fn clean_once(
        &self,
        begin: &str,
        limit: Duration,
        text: &Arc<str>,
        parameters: &[Parameter<'_>],
    ) -> impl Future<Output = Result<Vec<Row>, StoreError>> + Send;

    /// Closes the connection for cleanup until its next use.
    fn rest(&self) -> impl Future<Output = ()> + Send;

    /// The SQLSTATE of this driver's own error, where the server has reported one.
    fn sqlstate(error: &(dyn Error + 'static)) -> Option<String>;

    /// Prepares a statement on one connection, holds another in a transaction, and uses the statement again, up to
    /// [`SeenPids::ROUNDS`] times over the same two. Answers the first round that shows a pooler, or else the last: see
    /// [`is_pooled`](crate::is_pooled).
    fn seen_pids(&self) -> impl Future<Output = Result<SeenPids, StoreError>> + Send;

    /// Refuses a pooler that loses prepared statements, if the store prepares any.
    fn refuse_forgetful_pooler(&self) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Refuses sessions in which a handler could write on after it has ended its unit; a driver that fences each session
    /// itself has nothing to refuse.
    fn refuse_unfenced(&self) -> impl Future<Output = Result<(), StoreError>> + Send {
        std::future::ready(Ok(()))
    }

    /// Whether its sessions are read only by a default of their role or database.
    fn role_default(&self) -> &RoleDefault;

    /// Whether the traffic to the server could be read on its way.
    fn is_plaintext_abroad(&self) -> bool;
}

/// The answer of a statement that always has one row.
pub(crate) async fn row(
    driver: &impl BookkeepingDriver,
    doing: &'static str,
    text: &Arc<str>,
    parameters: &[Parameter<'_>],
) -> Result<Row, StoreError> {
    let rows = driver.rows(doing, text, parameters).await?;
    rows.into_iter().next().ok_or_else(|| unreadable(format!("no row came of {doing}")))
}

/// The server's refusal of a login, which no waiting cures at a start: user, password or database.
pub fn refused_login<D: PostgresDriver>(error: &StoreError) -> Option<StoreError> {
    let StoreError::Unavailable { source, .. } = error else { return None };
    let code = D::sqlstate(&**source)?;
    matches!(code.as_str(), "28000" | "28P01" | "3D000").then(|| StoreError::Refused {
        problem: format!("the server does not let this worker in: {}", describe_report(&code, None, None, None)),
        cure: "Check user, password and database of the connection, and pg_hba.conf".to_owned(),
    })
}

/// Looks whether sessions are read only by default, as [`RoleDefault::note`].
pub(crate) async fn look(driver: &impl PostgresDriver) -> Result<bool, StoreError> {
    driver
        .role_default()
        .note(&driver.run_once("looking for a fence", &driver.statements().read_only_default, &[]).await?)
}

/// Refuses a fenced server: an old primary may be fenced by `default_transaction_read_only` alone, which a unit's READ WRITE
/// would overrule. The default of a role or a database is no such fence.
///
/// # Errors
/// [`StoreError::Unavailable`] where it is fenced, or cannot be asked.
pub async fn refuse_fenced(driver: &impl PostgresDriver) -> Result<(), StoreError> {
    if look(driver).await? { Err(read_only("opening a session")) } else { Ok(()) }
}
