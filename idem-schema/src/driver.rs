//! What a driver of PostgreSQL has to do so that idem keeps its books through it.

use std::{error::Error, future::Future, sync::Arc};

use idem_core::StoreError;
use uuid::Uuid;

use crate::{errors::SeenPids, name::SchemaName, postgres::PostgresStatements, row::Row};

/// How often a statement runs again that another transaction got in the way of.
const CONTENDED_MAX: usize = 3;

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
}

/// On whose rights a statement runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Login {
    /// The worker's own.
    Worker,
    /// That for cleanup, where there is one. Such a statement must not keep its plan: one that is made while the table is
    /// tiny would go on to sort the whole table.
    Cleanup,
}

/// A driver of PostgreSQL, as far as what is done outside of units of work needs it: each statement in a transaction of
/// its own. What is done is written once, in `books`; [`postgres_bookkeeping!`](crate::postgres_bookkeeping) hands it to
/// a store.
pub trait PostgresDriver: Send + Sync {
    /// The statements of the store's schema.
    fn statements(&self) -> &PostgresStatements;

    /// The schema that holds idem's tables.
    fn schema(&self) -> &SchemaName;

    /// Runs a statement once, within the time for it, and answers its rows.
    fn run_once(
        &self,
        login: Login,
        doing: &'static str,
        text: &Arc<str>,
        parameters: &[Parameter<'_>],
    ) -> impl Future<Output = Result<Vec<Row>, StoreError>> + Send;

    /// The SQLSTATE of this driver's own error, where the server has reported one.
    fn sqlstate(error: &(dyn Error + 'static)) -> Option<String>;

    /// Prepares a statement on one connection, holds another in a transaction, and uses the statement again: see
    /// [`is_pooled`](crate::is_pooled).
    fn seen_pids(&self) -> impl Future<Output = Result<SeenPids, StoreError>> + Send;

    /// Refuses a pooler that loses prepared statements, where such are used.
    fn refuse_forgetful_pooler(&self) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Whether somebody between here and the server could read along (S9).
    fn is_plaintext_abroad(&self) -> bool;
}

/// Runs a statement, again where another transaction got in its way.
pub(crate) async fn rows_as<D: PostgresDriver>(
    driver: &D,
    login: Login,
    doing: &'static str,
    text: &Arc<str>,
    parameters: &[Parameter<'_>],
) -> Result<Vec<Row>, StoreError> {
    let mut tried = 1;
    loop {
        match driver.run_once(login, doing, text, parameters).await {
            Err(StoreError::Contended { .. }) if tried < CONTENDED_MAX => tried += 1,
            answer => return answer,
        }
    }
}

/// The same with the worker's rights.
pub(crate) async fn rows<D: PostgresDriver>(
    driver: &D,
    doing: &'static str,
    text: &Arc<str>,
    parameters: &[Parameter<'_>],
) -> Result<Vec<Row>, StoreError> {
    rows_as(driver, Login::Worker, doing, text, parameters).await
}

/// The same of a statement that always answers one row.
pub(crate) async fn row<D: PostgresDriver>(
    driver: &D,
    doing: &'static str,
    text: &Arc<str>,
    parameters: &[Parameter<'_>],
) -> Result<Row, StoreError> {
    let rows = rows(driver, doing, text, parameters).await?;
    rows.into_iter().next().ok_or_else(|| crate::unreadable(format!("no row came of {doing}")))
}

/// What the server refuses of a login, which no waiting cures at a start: user, password or database.
pub fn refused_login<D: PostgresDriver>(error: &StoreError) -> Option<StoreError> {
    let StoreError::Unavailable { source, .. } = error else { return None };
    let code = D::sqlstate(&**source)?;
    matches!(code.as_str(), "28000" | "28P01" | "3D000").then(|| StoreError::Refused {
        problem: format!("the server refuses the login or does not have the database (SQLSTATE {code})"),
        cure: "Check user, password and database of the connection, and pg_hba.conf".to_owned(),
    })
}

/// A worker's role has no DELETE (S8): cleanup is somebody else's, and trying again does not change that.
pub fn no_right_to_delete<D: PostgresDriver>(error: StoreError) -> StoreError {
    let StoreError::Unavailable { source, .. } = &error else { return error };
    if D::sqlstate(&**source).as_deref() != Some("42501") {
        return error;
    }
    StoreError::Refused {
        problem: "this role may not delete expired records".to_owned(),
        cure:
            "Give the worker a login of the role idem_cleanup (PostgresOptions::cleanup_with), or run `idem cleanup` \
               elsewhere and turn the worker's off"
                .to_owned(),
    }
}
