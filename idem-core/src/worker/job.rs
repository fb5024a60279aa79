//! One delivery on its way through the worker.

use std::{
    borrow::Borrow,
    hash::{DefaultHasher, Hash, Hasher},
};

use tokio::time::Instant;

use super::flight::Permit;
use crate::{
    consumer::Item,
    dead_letter::{DeadLetterId, Reason},
    error::ErrorClass,
    hash::PayloadHash,
    key::IdempotencyKey,
    message::{OrderingKey, Origin},
    source::Assignment,
    store::{HashRuleId, ScopeId},
};

/// What is held together: a message's ordering key, else its idempotency key, else itself. Messages with equal hold
/// keys share a lane, so that copies of one message never wait for each other in the database.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum HoldKey {
    Order(OrderingKey),
    Key(ScopeId, IdempotencyKey),
    Itself(Origin),
}

impl HoldKey {
    pub(crate) fn of(item: &Item) -> Self {
        match (item.message.ordering_key(), &item.claim) {
            (Some(order), _) => Self::Order(order.clone()),
            (None, Some(claim)) => Self::Key(claim.scope, claim.key.clone()),
            (None, None) => Self::Itself(item.message.origin().clone()),
        }
    }
}

/// Who waits for the settlement.
#[derive(Debug)]
pub(crate) enum Origination<H> {
    Broker(H),
    Replay(DeadLetterId),
}

/// That a message is to be set aside, and why.
#[derive(Debug)]
pub(crate) struct Dead {
    pub(crate) reason: Reason,
    pub(crate) class: ErrorClass,
    pub(crate) text: String,
    pub(crate) code: Option<String>,
    pub(crate) key: Option<IdempotencyKey>,
    pub(crate) hash: Option<(PayloadHash, HashRuleId)>,
    /// Whether it counts for the breaker: a fresh message, as opposed to a conflict.
    pub(crate) fresh: bool,
    /// It is held because nothing has its payload.
    pub(crate) unkeepable: Option<Unkeepable>,
}

/// Counts a message as held for as long as it is.
#[derive(Debug)]
pub(crate) struct Unkeepable(metrics::Gauge);

impl Unkeepable {
    pub(crate) fn new(held: &metrics::Gauge) -> Self {
        held.increment(1.0);
        Self(held.clone())
    }
}

impl Drop for Unkeepable {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}

#[derive(Debug)]
pub(crate) struct Job<H> {
    pub(crate) item: Item,
    pub(crate) from: Origination<H>,
    pub(crate) assignment: Assignment,
    /// Whether the broker says that it may have delivered this message before.
    pub(crate) redelivered: bool,
    /// Runs alone, each attempt counted before it runs: it failed in a batch, or its source suspects it.
    pub(crate) suspect: bool,
    /// It may be what ended an earlier process, as its source says, and it has not run in this one.
    pub(crate) dangerous: bool,
    /// It is known that no record of its key existed a moment ago.
    pub(crate) looked: bool,
    /// The answer to its commit was lost.
    pub(crate) unresolved: bool,
    /// The number of the attempt that was counted last; 0 before the first.
    pub(crate) attempts: u32,
    /// Whether that attempt has been counted and has not come to a verdict yet.
    pub(crate) counted: bool,
    /// Waits in a row that are nobody's fault and charge nothing.
    pub(crate) waits: u32,
    /// Boxed, because nearly every message is a good one.
    pub(crate) dead: Option<Box<Dead>>,
    pub(crate) received_at: Instant,
    /// `None` for a replay, of which only a few are taken at a time.
    pub(crate) permit: Option<Permit>,
}

impl<H> Job<H> {
    pub(crate) fn new(item: Item, from: Origination<H>, assignment: Assignment, permit: Option<Permit>) -> Self {
        Self {
            item,
            from,
            assignment,
            redelivered: false,
            suspect: false,
            dangerous: false,
            looked: false,
            unresolved: false,
            attempts: 0,
            counted: false,
            waits: 0,
            dead: None,
            received_at: permit.as_ref().map_or_else(Instant::now, Permit::arrived),
            permit,
        }
    }

    /// The lane, out of `lanes`, that serves it.
    pub(crate) fn lane(&self, lanes: usize) -> usize {
        if lanes == 1 {
            return 0;
        }
        let mut hasher = DefaultHasher::new();
        HoldKey::of(&self.item).hash(&mut hasher);
        usize::try_from(hasher.finish() % lanes.max(1) as u64).unwrap_or(0)
    }

    pub(crate) fn is_replay(&self) -> bool {
        matches!(self.from, Origination::Replay(_))
    }
}

impl<H> Borrow<Item> for Job<H> {
    fn borrow(&self) -> &Item {
        &self.item
    }
}
