//! The operations of a database for payments.

use std::future::Future;

use idem_service::{
    Opened,
    idem_core::{BoxError, Store, Tx},
};
use serde::Serialize;

/// A client's order, with its tenant and key.
#[derive(Debug, Clone)]
pub(crate) struct Order {
    pub(crate) tenant: String,
    pub(crate) key: String,
    pub(crate) customer: String,
    pub(crate) cents: i64,
}

/// A transaction that has been recorded.
#[derive(Debug)]
pub(crate) struct Recorded {
    pub(crate) id: String,
    /// The day, in UTC.
    pub(crate) day: String,
    /// The customer's balance after it, where the database says it.
    pub(crate) balance: Option<i64>,
}

/// A transaction that was read.
#[derive(Debug, Serialize)]
pub(crate) struct Transaction {
    id: String,
    customer: String,
    cents: i64,
    at: String,
}

impl From<(String, String, i64, String)> for Transaction {
    fn from((id, customer, cents, at): (String, String, i64, String)) -> Self {
        Self { id, customer, cents, at }
    }
}

/// A store with the tables of payments.
pub(crate) trait Books: Store {
    /// The error of statements in a transaction.
    type Error: std::error::Error + Send + Sync + 'static;

    /// Connections for reads outside of transactions.
    type Readers: Clone + Send + Sync + 'static;

    /// They connect when they are used.
    fn readers(opened: &Opened<Self>) -> Result<Self::Readers, BoxError>;

    /// Writes a transaction, and changes the balance by it. `None` where that would be more than a balance can be; what was written
    /// is to be taken back then.
    fn record(
        tx: &mut Tx<'_, Self>,
        order: &Order,
    ) -> impl Future<Output = Result<Option<Recorded>, Self::Error>> + Send;

    /// Writes that an order was declined.
    fn decline(tx: &mut Tx<'_, Self>, order: &Order) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// The tenant's transaction of this id.
    fn transaction(
        readers: &Self::Readers,
        tenant: &str,
        id: &str,
    ) -> impl Future<Output = Result<Option<Transaction>, BoxError>> + Send;
}
