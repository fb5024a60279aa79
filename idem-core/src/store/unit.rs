//! The contract of one transaction.

use std::{future::Future, time::SystemTime};

use crate::{
    error::{ClaimError, CommitError, StoreError},
    names::{OrderingKey, ScopeId},
    outbox::rows::{AppendError, Appended},
    results::rows::KeptResult,
    store::{
        Store,
        claim::{Claim, Claimed, Found, Recorded},
        tx::Tx,
    },
};

/// The rows before a message in its ordering key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "there is nothing between them")]
pub enum Ahead {
    /// None.
    Nothing,
    /// The first is due, or runs.
    Runs,
    /// The first waits for its time.
    Waits,
}

/// One transaction: the claim of its keys and everything that handlers write through it. It owns its session, and gives it back when it
/// has ended.
///
/// # Contract
/// 1. The claim and the handlers' writes commit together or not at all.
/// 2. [`Claimed::Found`] and [`UnitOfWork::read`] answer from a row that was read, committed or inserted by this very
///    unit; zero inserted rows prove nothing. Neither answers a key whose operation is not done: its message would be acknowledged as a
///    duplicate of an effect that may never come.
/// 3. One answer per claim, in the order given. `claims` arrives without repetition, sorted by scope and key, so that
///    two units never wait for each other.
/// 4. The limits that [`UnitOptions`](super::UnitOptions) sets for the claim are no longer in force when `claim` returns.
/// 5. `commit` answers `Ok` only when the server has committed this very transaction. A unit that claimed nothing, or
///    won nothing, has nothing to seal.
/// 6. Core calls `claim` before it gives any handle out, with an empty slice where a unit has nothing to claim.
/// 7. The rows of `append` are committed or rolled back with the claim and the handlers' writes. Core calls it once a unit
///    at most, when all handlers have succeeded, and only where there is something to write.
/// 8. `read_results` answers the results that were committed with the records of these keys, and `look_up` the answers of
///    `read` and `read_results`.
/// 9. A `commit` that answered `Ok`, or [`CommitError::RolledBack`] with [`StoreError::Unsealed`], and a `rollback` give the session back.
///    They answer `None` in its place only where what a handler left makes the connection unfit for another unit.
/// 10. `processed_at` answers the time that the inserted record will have, as [`UnitOfWork::read`] of a later unit answers it.
pub trait UnitOfWork<S: Store>: Send + Sync {
    /// Claims all keys with one statement and waits for uncommitted twins at most [`UnitOptions::busy_timeout`](super::UnitOptions::busy_timeout) in all.
    ///
    /// # Errors
    /// Nothing of a failed call may be used; the unit is rolled back.
    ///
    /// # Cancel safety
    /// Not cancel safe: drop the unit.
    fn claim(&mut self, claims: &[Claim]) -> impl Future<Output = Result<Vec<Claimed>, ClaimError>> + Send;

    /// Reads the committed records of these keys, in a statement of its own, which sees commits made meanwhile.
    ///
    /// Where other roles may influence what a statement does, rows that this unit itself has inserted are not answered: a
    /// claim that denies them would otherwise turn new messages into duplicates of themselves.
    ///
    /// # Errors
    /// As for `claim`.
    ///
    /// # Cancel safety
    /// Not cancel safe: drop the unit.
    fn read(&mut self, claims: &[Claim]) -> impl Future<Output = Result<Vec<Option<Recorded>>, StoreError>> + Send;

    /// Whether rows of any ordering key of the claimed scopes are not over, as the `claim` saw that inserted something. It asks nothing.
    fn anything_waits(&self) -> bool {
        false
    }

    /// The rows that are not over of these ordering keys, in the order given. Core asks before the claim, and only while anything waits.
    ///
    /// # Errors
    /// As for `claim`.
    ///
    /// # Cancel safety
    /// Not cancel safe: drop the unit.
    fn ahead(
        &mut self,
        keys: &[(ScopeId, OrderingKey)],
    ) -> impl Future<Output = Result<Vec<Ahead>, StoreError>> + Send {
        std::future::ready(Ok(vec![Ahead::Nothing; keys.len()]))
    }

    /// The handle that a handler writes through, when handlers run one after the other.
    fn tx(&mut self) -> Tx<'_, S>;

    /// A handle that several handlers may hold at once; `None` where the store cannot.
    fn shared_tx(&self) -> Option<Tx<'_, S>> {
        None
    }

    /// Looks, without asking the server, whether a handler left the transaction as it found it.
    ///
    /// # Errors
    /// [`StoreError::Unsealed`] when a nested transaction was left open or the transaction was ended.
    fn check(&self) -> Result<(), StoreError>;

    /// Writes the handlers' events and results, with one statement a table; or keeps them for [`commit`](Self::commit), which writes them
    /// before the seal takes effect. Then the errors are those of the commit: [`CommitError::RolledBack`], with
    /// [`StoreError::Contended`] where an event is in the outbox already. The unit runs again, and its `append` looks which it is.
    ///
    /// # Errors
    /// The unit cannot commit, and is rolled back.
    ///
    /// # Cancel safety
    /// Not cancel safe: drop the unit.
    fn append(&mut self, appended: &Appended) -> impl Future<Output = Result<(), AppendError>> + Send {
        let _ = appended;
        std::future::ready(Err(StoreError::Unsupported { what: "write events or results" }.into()))
    }

    /// When the record that this unit has inserted for `claim` was processed, as [`Recorded::processed_at`] says it to later readers. `None`
    /// where the store does not know it before the commit: answers cannot be encrypted there, because each is bound to its record by this
    /// time.
    fn processed_at(&self, claim: &Claim) -> Option<SystemTime> {
        let _ = claim;
        None
    }

    /// Reads the results of records that this unit has found, in the order of `claims`; `None` where there is none.
    ///
    /// # Errors
    /// As for `read`.
    ///
    /// # Cancel safety
    /// Not cancel safe: drop the unit.
    fn read_results(
        &mut self,
        claims: &[Claim],
    ) -> impl Future<Output = Result<Vec<Option<KeptResult>>, StoreError>> + Send {
        let _ = claims;
        std::future::ready(Err(StoreError::Unsupported { what: "read results" }))
    }

    /// Reads the committed records of these keys and their results: both halves of the answer to a repeat. A store should take
    /// one statement for it.
    ///
    /// # Errors
    /// As for `read`.
    ///
    /// # Cancel safety
    /// Not cancel safe: drop the unit.
    fn look_up(&mut self, claims: &[Claim]) -> impl Future<Output = Result<Vec<Option<Found>>, StoreError>> + Send {
        async move {
            let recorded = self.read(claims).await?;
            let results = self.read_results(claims).await?;
            let found = recorded.into_iter().zip(results);
            Ok(found.map(|(recorded, result)| Some(Found::new(recorded?, result))).collect())
        }
    }

    /// Seals the transaction and commits it. Answers the session beside the result, because a transaction that a handler has spoilt leaves a
    /// sound connection; `None` where it must not be used again, and is closed.
    ///
    /// # Errors
    /// [`CommitError::RolledBack`] only where that is certain.
    ///
    /// # Cancel safety
    /// Not cancel safe: a dropped call has an unknown outcome. Its session is closed.
    fn commit(self) -> impl Future<Output = (Option<S::Session>, Result<(), CommitError>)> + Send;

    /// Rolls the transaction back. Answers the session; `None` where it must not be used again, and is closed.
    ///
    /// # Errors
    /// The connection is broken, and the session is closed.
    ///
    /// # Cancel safety
    /// The session of a dropped call is closed.
    fn rollback(self) -> impl Future<Output = Result<Option<S::Session>, StoreError>> + Send;

    /// Ends the transaction on the server after a handler's future was dropped while a statement may be running, over
    /// another connection where that is needed. The session is closed.
    fn abandon(self) -> impl Future<Output = ()> + Send;
}
