//! For authors of stores: the rows of an inbox, its slots, and the calls of a store that has them.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use sha2::{Digest, Sha256};

use crate::{
    error::StoreError,
    message::Message,
    names::{ConsumerName, IdempotencyKey, ScopeId},
    setters::setters,
    store::Store,
};

/// How many slots an inbox gets where nothing else is said.
pub const INBOX_SLOTS: u16 = 16;

/// The most slots that an inbox can have.
pub const INBOX_SLOTS_MAX: u16 = 1_024;

/// The slot of a message, of so many: by its ordering key, else its idempotency key, else its origin. Copies of a message are in one slot.
#[must_use]
pub fn slot_of(message: &Message, key: Option<&IdempotencyKey>, slots: u16) -> u16 {
    let (kind, bytes) = match (message.ordering_key(), key) {
        (Some(ordering), _) => (b'o', ordering.as_bytes()),
        (None, Some(key)) => (b'k', key.as_str().as_bytes()),
        (None, None) => (b'p', message.origin().as_str().as_bytes()),
    };
    let digest = Sha256::new_with_prefix([kind]).chain_update(bytes).finalize();
    let drawn = digest.iter().take(4).fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte));
    u16::try_from(drawn % u32::from(slots.max(1))).unwrap_or(0)
}

/// The inbox of a consumer.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct OpenInbox {
    /// The scope of its consumer without a tenant, by which the store knows it.
    pub id: ScopeId,
    /// How many slots it has, from its first start on.
    pub slots: u16,
    /// The queue or topic that the consumer is bound to; empty where its receiver named none.
    pub bound_to: String,
}

impl OpenInbox {
    /// The values that a store read.
    #[must_use]
    pub fn new(id: ScopeId, slots: u16, bound_to: String) -> Self {
        Self { id, slots, bound_to }
    }
}

/// A message as it is written to an inbox.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct NewInboxRow {
    /// Its slot.
    pub slot: u16,
    /// Its idempotency key as far as the receiver found it, for people. Processing finds the key in the message.
    pub key: Option<IdempotencyKey>,
    /// The message.
    pub message: Message,
}

impl NewInboxRow {
    /// The row of a message in an inbox of so many slots.
    #[must_use]
    pub fn new(message: Message, key: Option<IdempotencyKey>, slots: u16) -> Self {
        Self { slot: slot_of(&message, key.as_ref(), slots), key, message }
    }
}

/// A message as it is read from an inbox.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct InboxRow {
    /// Its slot.
    pub slot: u16,
    /// Its number. A later row has a higher number, but may be committed first.
    pub number: i64,
    /// When its transaction began, by the database's clock. A server that lost its last commits draws their numbers again, so number and
    /// time together name a row.
    pub received_at: SystemTime,
    /// The message. Where a part of the row is damaged, it has a [problem](Message::problem).
    pub message: Message,
}

impl InboxRow {
    /// The row of a message.
    #[must_use]
    pub fn new(slot: u16, number: i64, received_at: SystemTime, message: Message) -> Self {
        Self { slot, number, received_at, message }
    }
}

/// A slot with the epoch of its lease. Each new holder raises the epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HeldSlot {
    /// Its number, from 0.
    pub slot: u16,
    /// The epoch.
    pub epoch: i64,
}

/// A slot that a holder has now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Granted {
    /// The slot.
    pub held: HeldSlot,
    /// Whether another member waits for it. The holder then finishes its messages and releases it.
    pub is_wanted: bool,
}

/// A look at an inbox.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Reading<'r> {
    /// The slots, each with the number behind which its rows begin.
    pub slots: &'r [(HeldSlot, i64)],
    /// Numbers that are left out.
    pub except: &'r [i64],
    /// How many rows of each slot are looked at.
    pub each_max: u32,
    /// How many rows are read.
    pub rows_max: u32,
    /// How many bytes of payloads and headers are read; one row at least.
    pub bytes_max: u64,
}

impl<'r> Reading<'r> {
    /// A look at these slots, at most 500 rows and 4 MiB.
    #[must_use]
    pub const fn new(slots: &'r [(HeldSlot, i64)]) -> Self {
        Self { slots, except: &[], each_max: 500, rows_max: 500, bytes_max: 4 << 20 }
    }

    setters! {
        /// Sets the numbers that are left out.
        except: &'r [i64],
        /// Sets how many rows of each slot are looked at.
        each_max: u32,
        /// Sets how many rows are read.
        rows_max: u32,
        /// Sets how many bytes are read.
        bytes_max: u64,
    }
}

/// A row that is settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settling {
    /// The slot, as it was held when the row was read.
    pub held: HeldSlot,
    /// The row's number.
    pub number: i64,
    /// When it was received.
    pub received_at: SystemTime,
}

/// The messages that wait in an inbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct InboxBacklog {
    /// How many rows there are, counted up to the number that was asked for.
    pub rows: u64,
    /// The age of the oldest row; `None` where there are none.
    pub oldest: Option<Duration>,
    /// Slots that no worker holds.
    pub free_slots: u16,
}

impl InboxBacklog {
    /// The values that a store read.
    #[must_use]
    pub const fn new(rows: u64, oldest: Option<Duration>, free_slots: u16) -> Self {
        Self { rows, oldest, free_slots }
    }
}

/// A [`Store`] that has inboxes.
pub trait InboxStore: Store {
    /// The table of the messages that wait. Nothing is connected yet.
    fn inbox(self: &Arc<Self>) -> Arc<dyn Inbox>;
}

/// The inboxes of a store. Each call is one short transaction.
///
/// # Contract
/// 1. [`put`](Self::put) commits all of its rows or none, and numbers them in their order.
/// 2. [`next`](Self::next) returns committed rows only, by number within each slot, and none of a slot whose epoch is over.
/// 3. A slot has one holder at a time, by the database's clock. A new holder gets a higher epoch.
/// 4. A row is gone once [`remove`](Self::remove) returns its slot. Under an epoch that is over nothing is removed, and no row is removed
///    whose number was drawn again for another message.
/// 5. While a member holds at least two slots fewer than another, one slot of the other is marked as wanted each time that the first asks.
///    A wanted slot goes to the member that wants it.
/// 6. A call may be repeated after any error, and dropped at any point.
#[async_trait]
pub trait Inbox: Send + Sync + 'static {
    /// Makes the inbox of a consumer, or finds it. The first call decides how many slots it has. It also binds the consumer's name to the
    /// queue or topic, as a worker's first start does.
    ///
    /// # Errors
    /// [`StoreError::Bound`] where the name is bound to another queue or topic.
    async fn open(&self, consumer: &ConsumerName, bound_to: Option<&str>, slots: u16) -> Result<OpenInbox, StoreError>;

    /// The inbox of a consumer; `None` where no receiver has made it.
    async fn find(&self, consumer: &ConsumerName) -> Result<Option<OpenInbox>, StoreError>;

    /// Writes messages, in this order.
    async fn put(&self, inbox: ScopeId, rows: &[NewInboxRow]) -> Result<(), StoreError>;

    /// Renews the leases of all slots that this holder has, and returns them. Where it `takes`, it also gets all free slots that no other
    /// member waits for, and waits for a slot of the member that has the most.
    async fn hold_slots(
        &self,
        inbox: ScopeId,
        holder: &str,
        lease: Duration,
        takes: bool,
    ) -> Result<Vec<Granted>, StoreError>;

    /// Ends the leases of these slots.
    async fn release_slots(&self, inbox: ScopeId, holder: &str, slots: &[HeldSlot]) -> Result<(), StoreError>;

    /// The next rows, by number.
    async fn next(&self, inbox: ScopeId, reading: Reading<'_>) -> Result<Vec<InboxRow>, StoreError>;

    /// Removes settled rows, and returns those of their slots that this holder still has.
    async fn remove(&self, inbox: ScopeId, holder: &str, rows: &[Settling]) -> Result<Vec<HeldSlot>, StoreError>;

    /// The rows that wait, without these numbers. Counted up to `enough`, because a long inbox is counted often.
    async fn backlog(&self, inbox: ScopeId, except: &[i64], enough: u64) -> Result<InboxBacklog, StoreError>;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::{OrderingKey, Origin};

    /// Every receiver of a consumer must find the same slot; computed with Python's hashlib.
    #[test]
    fn n1_the_slot_follows_from_the_message_alone() {
        let message = Message::new("x").with_origin(Origin::new("orders/0/7"));
        let key = IdempotencyKey::new("order-1").unwrap();
        let ordered = message.clone().with_ordering_key(OrderingKey::new("customer-1"));
        let slots = [slot_of(&message, None, 16), slot_of(&message, Some(&key), 16), slot_of(&ordered, Some(&key), 16)];
        assert_eq!(slots, [4, 10, 9]);
        let copy = Message::new("y").with_origin(Origin::new("orders/1/9"));
        assert_eq!(slot_of(&copy, Some(&key), 16), slots[1], "a copy meets the first in its slot");
        assert_eq!(slot_of(&ordered, None, 1), 0);
    }
}
