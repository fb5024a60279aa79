//! What a handler has: a list of writes that are sent with the commit, and reads.

use std::fmt;

use aws_sdk_dynamodb::{
    operation::query::{QueryOutput, builders::QueryFluentBuilder},
    types::{ConditionCheck, Delete, Put, TransactWriteItem, Update},
};

pub use crate::item::Item;
use crate::{client::Requests, error::DynamoError};

/// The connection of a handler, from [`Tx::connection`](idem_core::Tx::connection).
///
/// Its [writes](Self::write) are sent together, in one transaction with the record of the message's key, once the handler has succeeded.
/// Nothing is sent before that but reads, which do not see the handler's own writes.
pub struct DynamoTx<'t> {
    pub(crate) requests: &'t Requests,
    pub(crate) writes: &'t mut Vec<Write>,
}

impl fmt::Debug for DynamoTx<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DynamoTx").field("writes", &self.writes.len()).finish_non_exhaustive()
    }
}

impl DynamoTx<'_> {
    /// Adds a write of the SDK's own type: a [`Put`], an [`Update`], a [`Delete`] or a [`ConditionCheck`].
    ///
    /// A message has at most 99 of them, each on another item, of 4 MB in all. A write whose condition fails when they are sent fails the
    /// message for good, unless it [guards a read](Write::as_read).
    pub fn write(&mut self, write: impl Into<Write>) -> &mut Write {
        self.writes.push(write.into());
        let last = self.writes.len() - 1;
        &mut self.writes[last]
    }

    /// Reads an item, with all that was committed before. For a write that depends on it, add a condition with [`Write::as_read`].
    ///
    /// # Errors
    /// [`DynamoError`]. Hand it on: it says whether the message may succeed later.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn get(&mut self, table: &str, key: Item) -> Result<Option<Item>, DynamoError> {
        let get = || self.requests.client.get_item().table_name(table).set_key(Some(key.clone())).consistent_read(true);
        Ok(self.requests.again("GetItem", || get().send()).await?.item)
    }

    /// Reads one page of a query, with all that was committed before. The query is one of [`client`](Self::client).
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn query(&mut self, query: QueryFluentBuilder) -> Result<QueryOutput, DynamoError> {
        let query = query.consistent_read(true);
        self.requests.again("Query", || query.clone().send()).await
    }

    /// The client, to build a [`query`](Self::query) with. A write that is sent over it is no part of the transaction: it happens at least
    /// once.
    #[must_use]
    pub fn client(&self) -> &aws_sdk_dynamodb::Client {
        &self.requests.client
    }

    /// The name of idem's own table, in which a handler may have items too.
    #[must_use]
    pub fn table(&self) -> &str {
        &self.requests.table
    }
}

/// A write of a handler.
pub struct Write {
    action: TransactWriteItem,
    guards_a_read: bool,
}

impl fmt::Debug for Write {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Neither keys nor values (S4).
        f.debug_struct("Write").field("guards_a_read", &self.guards_a_read).finish_non_exhaustive()
    }
}

impl Write {
    fn new(action: TransactWriteItem) -> Self {
        Self { action, guards_a_read: false }
    }

    /// Says that the condition of this write guards what the handler has read: if it fails, another message has changed the item since,
    /// and the handler runs again and reads again. Without it a failed condition fails the message for good.
    pub fn as_read(&mut self) -> &mut Self {
        self.guards_a_read = true;
        self
    }

    pub(crate) fn guards_a_read(&self) -> bool {
        self.guards_a_read
    }

    pub(crate) fn action(&self) -> &TransactWriteItem {
        &self.action
    }
}

macro_rules! writes {
    ($($type:ident $set:ident),*) => {$(
        impl From<$type> for Write {
            fn from(write: $type) -> Self {
                Self::new(TransactWriteItem::builder().$set(write).build())
            }
        }
    )*};
}

writes!(Put put, Update update, Delete delete, ConditionCheck condition_check);
