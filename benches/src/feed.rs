//! The messages of a measurement: message number `n` is always the same, so that it can come again.

use idem_core::Message;
use uuid::{Builder, Uuid};

use crate::work::{CUSTOMERS, Work};

/// A version-4 UUID that is the same for the same number.
fn random(n: usize) -> Uuid {
    // SplitMix64: neighbours have nothing in common.
    let mix = |salt: u64| {
        let mut z = (n as u64).wrapping_add(salt).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    };
    let bits = (u128::from(mix(1)) << 64) | u128::from(mix(0xA5A5_A5A5));
    Builder::from_random_bytes(bits.to_be_bytes()).into_uuid()
}

/// Which messages touch one customer's balance, and on which lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spread {
    /// Messages of one customer share a lane.
    ByCustomer,
    /// The same, but for one message in a hundred: those are all of one customer, and on any lane.
    OneHotRow,
    /// Any message on any lane.
    ByKey,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Feed {
    pub(crate) work: Work,
    pub(crate) spread: Spread,
    /// The number of the first message: a table that is measured again needs new keys.
    pub(crate) first: usize,
}

impl Feed {
    /// Fresh messages with UUIDv4 keys, those of one customer on one lane.
    pub(crate) fn fresh(work: Work) -> Self {
        Self { work, spread: Spread::ByCustomer, first: 0 }
    }

    pub(crate) fn message(&self, n: usize) -> Message {
        let n = self.first + n;
        let hot = self.spread == Spread::OneHotRow && n % 100 == 50;
        // A step without a factor in common with their number, so that all have their turn.
        let customer = if hot { 0 } else { n * 7_919 % CUSTOMERS };
        let message = self.work.message(customer, random(n).to_string());
        match self.spread {
            Spread::ByCustomer | Spread::OneHotRow if !hot => message.with_ordering_key(Work::lane_of(customer)),
            Spread::ByCustomer | Spread::OneHotRow | Spread::ByKey => message,
        }
    }
}
