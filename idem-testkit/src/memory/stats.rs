//! Counts of a queue, for assertions.

use serde::{Deserialize, Serialize};

/// Counts of one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct History {
    /// How often it was delivered.
    pub deliveries: u32,
    /// How often it was acknowledged; more than once only where it was resurrected.
    pub acknowledged: u32,
    /// How often it was settled as a dead letter.
    pub dead_lettered: u32,
    /// How often its consumer released it.
    pub released: u32,
    /// How often it returned in another way: a lease that passed, a consumer or an assignment that went, a fault.
    pub returned: u32,
    /// Whether the broker took it off the queue at its delivery limit.
    pub expelled: bool,
}

/// Counts of a queue since it was created, and of its messages now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Stats {
    /// Messages that were published.
    pub published: u64,
    /// Deliveries.
    pub delivered: u64,
    /// Those of them that were not a message's first.
    pub redelivered: u64,
    /// Acknowledgements that were done.
    pub acknowledged: u64,
    /// Settlements as a dead letter that were done.
    pub dead_lettered: u64,
    /// Releases that were done.
    pub released: u64,
    /// Deliveries that returned in another way.
    pub returned: u64,
    /// Messages that were delivered again after they had been acknowledged.
    pub resurrected: u64,
    /// Messages that the broker took off at their delivery limit.
    pub expelled: u64,
    /// Settlements that came with a handle that was over, and did nothing.
    pub stale: u64,
    /// Assignments that were revoked and are over.
    pub revoked: u64,
    /// Messages that wait for a consumer.
    pub ready: u64,
    /// Messages that wait for their delay.
    pub delayed: u64,
    /// Deliveries that are not settled.
    pub in_flight: u64,
    /// Consumers that are attached.
    pub consumers: u64,
}

impl Stats {
    /// Messages that are not settled for good: ready, delayed or in flight.
    #[must_use]
    pub fn unsettled(&self) -> u64 {
        self.ready + self.delayed + self.in_flight
    }

    /// Whether every message is settled for good.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.unsettled() == 0
    }
}
