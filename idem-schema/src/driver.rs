//! The calls that a driver implements so that idem does its bookkeeping through it.

use std::{error::Error, future::Future, sync::Arc, time::Duration};

use idem_core::{StoreError, chain};
use uuid::Uuid;

use crate::{
    bookkeeping::{BookkeepingStatements, sequences, start},
    errors::{SeenPids, TAKEN},
    name::SchemaName,
    postgres::PostgresStatements,
    row::Row,
    server::RoleDefault,
};

/// How often a statement runs again that conflicted with another transaction.
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
    /// `text[]`.
    Texts(&'p [&'p str]),
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

impl<D: PostgresDriver> BookkeepingDriver for D {
    fn bookkeeping_statements(&self) -> &BookkeepingStatements {
        &self.statements().bookkeeping
    }

    /// Runs it again too where it has to say that it writes.
    async fn rows(
        &self,
        doing: &'static str,
        text: &Arc<str>,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        let (mut tried, mut has_looked) = (1, false);
        loop {
            match self.run_once(doing, text, parameters).await {
                Err(StoreError::Contended { .. }) if tried < CONTENDED_MAX => tried += 1,
                Err(error) if is_taken::<D>(&error) => return Err(sequences::explain(self, error).await),
                Err(error) if !has_looked && is_read_only::<D>(&error) => {
                    has_looked = true;
                    self.role_default().look(self).await?;
                    if !self.role_default().is_read_only() {
                        return Err(error);
                    }
                }
                // The server's clock may be a little before this client's, which says the same.
                Err(StoreError::Failed { doing, source, .. }) if is_late::<D>(&*source) => {
                    return Err(StoreError::Unavailable { doing, source });
                }
                answer => return answer,
            }
        }
    }

    async fn verify(&self) -> Result<(), StoreError> {
        start::verify(self).await
    }

    async fn warnings(&self) -> Result<Vec<String>, StoreError> {
        start::warnings(self).await
    }
}

/// Whether the statement met a row of the same key, each time that it ran.
fn is_taken<D: PostgresDriver>(error: &StoreError) -> bool {
    matches!(error, StoreError::Contended { .. }) && chain(error).find_map(D::sqlstate).as_deref() == Some(TAKEN)
}

/// Whether the server has ended the statement, because of its limit or by an operator's hand.
fn is_late<D: PostgresDriver>(error: &(dyn Error + 'static)) -> bool {
    chain(error).find_map(D::sqlstate).as_deref() == Some("57014")
}

fn is_read_only<D: PostgresDriver>(error: &StoreError) -> bool {
    chain(error).find_map(D::sqlstate).as_deref() == Some("25006")
}

/// The answer of a statement that always has one row.
pub(crate) async fn row(
    driver: &impl BookkeepingDriver,
    doing: &'static str,
    text: &Arc<str>,
    parameters: &[Parameter<'_>],
) -> Result<Row, StoreError> {
    let rows = driver.rows(doing, text, parameters).await?;
    rows.into_iter().next().ok_or_else(|| crate::unreadable(format!("no row came of {doing}")))
}

/// The server's refusal of a login, which no waiting cures at a start: user, password or database.
pub fn refused_login<D: PostgresDriver>(error: &StoreError) -> Option<StoreError> {
    let StoreError::Unavailable { source, .. } = error else { return None };
    let code = D::sqlstate(&**source)?;
    matches!(code.as_str(), "28000" | "28P01" | "3D000").then(|| StoreError::Refused {
        problem: format!("the server does not let this worker in: {}", crate::describe_report(&code, None, None, None)),
        cure: "Check user, password and database of the connection, and pg_hba.conf".to_owned(),
    })
}
