//! Databases in the memory of the process.

use std::sync::Arc;

use idem_core::{
    BoxError, Tx,
    scratch::{Row, Scratch, Tables},
};

use crate::MemoryStore;

/// Makes a [`MemoryStore`] for each database. A handler that opens a connection of its own does so on a clone of it.
#[derive(Debug, Clone, Copy, Default)]
pub struct MemoryScratch;

impl Scratch for MemoryScratch {
    type Store = MemoryStore;
    type Address = MemoryStore;

    async fn create(&self) -> Result<MemoryStore, BoxError> {
        Ok(MemoryStore::new())
    }

    fn describe(&self, _: &MemoryStore) -> Option<String> {
        None
    }

    async fn connect(&self, address: &MemoryStore) -> Result<Arc<MemoryStore>, BoxError> {
        Ok(Arc::new(address.clone()))
    }

    async fn tables(&self, address: &MemoryStore) -> Result<Tables, BoxError> {
        let row = |(key, value): (String, idem_core::Bytes)| {
            let value = String::from_utf8_lossy(&value).into_owned();
            Row::from([("key".to_owned(), Some(key)), ("value".to_owned(), Some(value))])
        };
        let rows = |(name, rows): (String, Vec<_>)| (name, rows.into_iter().map(row).collect());
        Ok(address.tables().into_iter().map(rows).collect())
    }

    async fn disturb(&self, _: &MemoryStore) -> Result<(), BoxError> {
        Ok(())
    }

    async fn spoil(&self, tx: &mut Tx<'_, MemoryStore>) {
        tx.connection().fail_unread();
    }

    async fn mend(&self, _: &mut Tx<'_, MemoryStore>) {}

    async fn remove(&self, _: MemoryStore) {}
}
