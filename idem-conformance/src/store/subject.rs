//! The fixture that the suite needs of a store, beyond idem's own traits: a place where effects can be seen, and ways to misbehave.

use std::{future::Future, sync::Arc, time::Duration};

use idem_core::{
    Concurrency, HandlerError, Store, Tx,
    store::{Interned, ScopeId},
};

/// A row that a handler wrote through its transaction.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Effect {
    /// The message's key.
    pub key: String,
    /// The message's payload; empty for a tombstone.
    pub payload: Vec<u8>,
    /// The text by which the case recognises the row.
    pub note: String,
}

/// A handler's action on its transaction beside writing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandlerAction {
    /// Sends a COMMIT of its own, and answers with what the database said (A12).
    Commit,
    /// Sends a ROLLBACK of its own (A12).
    Rollback,
    /// Sends a COMMIT and, even if it fails, a BEGIN, so that a transaction is open again (A12).
    CommitAndBegin,
    /// Runs a statement that the database refuses, such as one that breaks a unique key, and answers with its error
    /// (A9). The effect's payload is among its values, so that one sees whether the error's text quotes it (S4). Where
    /// the database goes on as if nothing had happened, as SQLite does, this is not offered.
    FailingStatement,
    /// Starts a statement whose error comes late, and reads its answer only up to there (A11).
    UnreadFailure,
    /// Writes what a deferred constraint refuses at COMMIT (A10).
    DeferredFailure,
    /// Writes the effect in a nested transaction, and commits that.
    NestedCommitted,
    /// Writes the effect in a nested transaction, and rolls that back.
    NestedRolledBack,
    /// Writes the effect in a nested transaction, and leaves it open (A14): `std::mem::forget` where dropping ends it.
    NestedLeft,
    /// Has the server end this connection, and answers with the error of the next statement (A25).
    KillConnection,
    /// Runs a statement that takes minutes.
    Block,
}

impl HandlerAction {
    /// Every action.
    pub const ALL: [Self; 11] = [
        Self::Commit,
        Self::Rollback,
        Self::CommitAndBegin,
        Self::FailingStatement,
        Self::UnreadFailure,
        Self::DeferredFailure,
        Self::NestedCommitted,
        Self::NestedRolledBack,
        Self::NestedLeft,
        Self::KillConnection,
        Self::Block,
    ];
}

/// An action on the database from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrangement {
    /// Moves every instant that idem has stored this far into the past: expiries, attempts, dead letters, replays.
    Age(Duration),
    /// Has every insert of a record swallowed without an error, as a trigger or a policy does (B6).
    SwallowRecords,
    /// Takes the table of records away, as a deploy does (A27).
    HideRecords,
    /// Undoes [`Arrangement::SwallowRecords`] and [`Arrangement::HideRecords`].
    Restore,
    /// Erases the texts of all keys that idem has recorded, as an operator does for privacy.
    EraseKeys,
    /// Drops the unique key of the records (B21).
    DropUniqueKey,
    /// Drops what refuses a COMMIT that idem did not send (A12).
    DropSeal,
    /// Gives the consumer `orders` the name `purchases`, as `idem consumers rename` does it (O105).
    Rename,
    /// Gives the numbers of [`taken_numbers`] to other names.
    TakeNumbers,
}

/// The first dozen numbers of the tenant `globex` of the consumer `orders`.
#[must_use]
pub fn taken_numbers() -> Vec<ScopeId> {
    Interned::Scope.numbers(&["orders", "globex"]).take(12).map(ScopeId).collect()
}

impl Arrangement {
    /// Every arrangement, one of each kind.
    pub const ALL: [Self; 9] = [
        Self::Age(Duration::ZERO),
        Self::SwallowRecords,
        Self::HideRecords,
        Self::Restore,
        Self::EraseKeys,
        Self::DropUniqueKey,
        Self::DropSeal,
        Self::Rename,
        Self::TakeNumbers,
    ];
}

/// The answer to an action or arrangement that this database does not offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("this database does not offer that")]
pub struct NotOffered;

/// A store with a fresh database of its own, and the means by which the suite looks into it.
///
/// The factory that is given to [`store_conformance!`](crate::store_conformance) makes one for each case: an empty
/// database with idem's schema and a table of the suite's own for [`Effect`]s.
///
/// # Contract
/// 1. [`Self::effects`], [`Self::recorded`] and [`Self::audited`] read what is *committed*, over a connection of their own. A
///    counter in the process would also pass if a commit had been lost.
/// 2. An action that [`Self::offers`] or [`Self::arranges`] denies is refused by [`Self::act`] and [`Self::arrange`]; the suite
///    checks it. The others do what their documentation says.
pub trait StoreUnderTest: Sized + Send + Sync + 'static {
    /// The store.
    type Store: Store;

    /// The store on this subject's database. The same one each time.
    fn store(&self) -> Arc<Self::Store>;

    /// Another store on the same database, as another process has it: nothing is shared but the database.
    fn another(&self) -> impl Future<Output = Arc<Self::Store>> + Send;

    /// Writes one row through the transaction, as a handler does.
    fn write(tx: &mut Tx<'_, Self::Store>, effect: &Effect) -> impl Future<Output = Result<(), HandlerError>> + Send;

    /// Every committed row of [`Self::write`] and [`Self::act`], in any order.
    fn effects(&self) -> impl Future<Output = Vec<Effect>> + Send;

    /// The key of every committed record, in any order, one entry a row.
    fn recorded(&self) -> impl Future<Output = Vec<String>> + Send;

    /// Action and key of every line of the audit trail that the store was asked to write, oldest first: without those that a
    /// database adds about its logins.
    fn audited(&self) -> impl Future<Output = Vec<(String, Option<String>)>> + Send;

    /// Whether [`Self::act`] can do this.
    fn offers(&self, action: HandlerAction) -> bool;

    /// Does this in a handler. `effect` is what the nested transactions write.
    fn act(
        tx: &mut Tx<'_, Self::Store>,
        action: HandlerAction,
        effect: &Effect,
    ) -> impl Future<Output = Result<(), HandlerError>> + Send;

    /// Whether [`Self::arrange`] can do this.
    fn arranges(&self, arrangement: Arrangement) -> bool;

    /// Does this to the database.
    ///
    /// # Errors
    /// [`NotOffered`] where [`Self::arranges`] denies it.
    fn arrange(&self, arrangement: Arrangement) -> impl Future<Output = Result<(), NotOffered>> + Send;

    /// How the handlers of the suite's consumers run, so that a store that shares its transaction goes through every case
    /// either way.
    fn handlers(&self) -> Concurrency {
        Concurrency::InOrder
    }

    /// How many deadlocks the database has met, where it counts them at once.
    fn deadlocks(&self) -> impl Future<Output = Option<u64>> + Send {
        std::future::ready(None)
    }

    /// Removes the database. Called after a case that went well; the database of a red case is kept for a look at it.
    fn discard(self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }
}
