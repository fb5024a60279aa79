//! What operators do to dead letters: read one with its message, drop one, and blank those of a key.

use idem_core::{
    ConsumerName, IdempotencyKey, Message, StoreError,
    dead_letter::{DeadLetterId, StoredDeadLetter},
    store::ScopeId,
};

use crate::{bookkeeping::DynamoBookkeeping, store::DynamoStore};

/// A dead letter, with whose it is and its message.
#[derive(Debug)]
#[non_exhaustive]
pub struct HeldLetter {
    /// The consumer.
    pub consumer: ConsumerName,
    /// Its scope.
    pub scope: ScopeId,
    /// The letter.
    pub letter: StoredDeadLetter,
    /// Whether it waits for a replay, or runs.
    pub is_due: bool,
    /// The message of the first copy; without its payload where that is not kept.
    pub message: Message,
}

impl DynamoStore {
    /// A dead letter with its message; `None` where there is none of that number.
    ///
    /// # Errors
    /// Those of DynamoDB, and an item that idem has not written.
    pub async fn dead_letter(&self, id: DeadLetterId) -> Result<Option<HeldLetter>, StoreError> {
        self.books().held_letter(id).await
    }

    /// Deletes a dead letter with its payload, also where it waits for a replay. Answers whether there was one.
    ///
    /// # Errors
    /// Those of DynamoDB. The call may be repeated.
    pub async fn drop_dead_letter(&self, id: DeadLetterId) -> Result<bool, StoreError> {
        self.books().drop_letter(id).await
    }

    /// Blanks the dead letters of a key in a scope, and the key in the audit trail. Answers how many items held it.
    pub(super) async fn erase_traces(&self, scope: ScopeId, key: &IdempotencyKey) -> Result<u64, StoreError> {
        Ok(self.books().blank_letters(scope, key).await? + self.books().blank_trail(scope, key).await?)
    }

    fn books(&self) -> &DynamoBookkeeping {
        idem_core::Store::bookkeeping(self)
    }
}
