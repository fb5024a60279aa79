//! For tests: databases that a test makes for itself, spoils, looks into and throws away. `idem_testkit::prove` runs a handler on
//! them; a store of your own implements [`Scratch`] to be proved on. With the feature `failpoints`.

use std::{collections::BTreeMap, future::Future, sync::Arc};

use crate::{
    error::BoxError,
    store::{Store, tx::Tx},
};

/// A row: its columns by name, each as text; `None` for NULL.
pub type Row = BTreeMap<String, Option<String>>;

/// The content of the application's own tables, those of idem left out: the rows of each table, in any order.
pub type Tables = BTreeMap<String, Vec<Row>>;

/// Makes databases of a kind.
///
/// # Contract
/// 1. Each [`create`](Self::create) makes another database, which nothing else uses: idem's tables and the application's,
///    as they are before the first message.
/// 2. [`tables`](Self::tables) reads committed rows, and leaves out nothing but idem's tables.
pub trait Scratch: Send + Sync + 'static {
    /// The store that handlers run on.
    type Store: Store;
    /// The address of one of the databases.
    type Address: Clone + Send + Sync + 'static;

    /// Makes a database.
    ///
    /// # Errors
    /// The server's error, with the cure where there is one.
    fn create(&self) -> impl Future<Output = Result<Self::Address, BoxError>> + Send;

    /// Its name for a person who wants to look at it; `None` where nothing is left to look at.
    fn describe(&self, address: &Self::Address) -> Option<String>;

    /// A store on it, as another process has it.
    ///
    /// # Errors
    /// The server's error.
    fn connect(&self, address: &Self::Address) -> impl Future<Output = Result<Arc<Self::Store>, BoxError>> + Send;

    /// The content of the application's tables.
    ///
    /// # Errors
    /// The server's error.
    fn tables(&self, address: &Self::Address) -> impl Future<Output = Result<Tables, BoxError>> + Send;

    /// Changes values on which no handler may rely and which a rollback leaves changed: the next values of sequences.
    ///
    /// # Errors
    /// The server's error.
    fn disturb(&self, address: &Self::Address) -> impl Future<Output = Result<(), BoxError>> + Send;

    /// Has every statement that writes through `tx` fail from now on.
    fn spoil(&self, tx: &mut Tx<'_, Self::Store>) -> impl Future<Output = ()> + Send;

    /// Undoes [`spoil`](Self::spoil), as far as it outlasts a rollback.
    fn mend(&self, tx: &mut Tx<'_, Self::Store>) -> impl Future<Output = ()> + Send;

    /// Removes a database.
    fn remove(&self, address: Self::Address) -> impl Future<Output = ()> + Send;

    /// Removes everything that the databases share. None is made after it.
    fn finish(&self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }
}
