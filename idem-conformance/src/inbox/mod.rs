//! Shows whether a store's [`Inbox`] keeps its contract: as the broker of an [`InboxSource`](idem_core::inbox::InboxSource) it passes
//! the [source suite](crate::source), and cases of its own.
//!
//! Implement [`InboxUnderTest`] for a fixture with a schema of its own, and let [`inbox_conformance!`](crate::inbox_conformance) make one
//! test of each case.

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::wildcard_enum_match_arm,
    missing_docs,
    reason = "these are tests, which users run too, and in which anything unexpected is a failure"
)]

mod broker;
mod members;
mod receiving;
mod slots;

/// Every case, by the name of its test.
pub mod cases {
    pub use super::{members::*, receiving::*, slots::*};
}

use std::{future::Future, pin::Pin, sync::Arc};

use idem_core::{
    inbox::{Inbox, NewInboxRow},
    store::ScopeId,
};

pub use self::broker::InboxBroker;

/// A commit that is still to come.
pub type Commit = Box<dyn FnOnce() -> Pin<Box<dyn Future<Output = ()> + Send>> + Send>;

/// A change of an inbox's slots behind the backs of their holders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotChange<'h> {
    /// Another member wants every slot, for 700 ms.
    Wanted,
    /// Every slot has another epoch.
    Lost,
    /// The leases of this holder have run out.
    Expired(&'h str),
}

/// A store with empty tables.
pub trait InboxUnderTest: Send + Sync {
    /// The inboxes that are tested.
    fn inbox(&self) -> Arc<dyn Inbox>;

    /// Draws the number of a row in a transaction that stays open. `None` where the store has a single writer, whose numbers are commits.
    fn put_late(&self, inbox: ScopeId, row: NewInboxRow) -> impl Future<Output = Option<Commit>> + Send;

    /// Changes slots.
    fn change_slots(&self, inbox: ScopeId, change: SlotChange<'_>) -> impl Future<Output = ()> + Send;

    /// How many slots each holder has.
    fn holders(&self, inbox: ScopeId) -> impl Future<Output = Vec<(String, usize)>> + Send;
}

/// Makes one test of each case. The argument is the path of an `async fn() -> impl InboxUnderTest` that answers a fixture with empty
/// tables; see [`conformance::inbox`](crate::inbox).
#[macro_export]
macro_rules! inbox_conformance {
    ($fresh:path) => {
        mod as_a_broker {
            use super::*;

            async fn broker() -> impl $crate::source::SourceUnderTest {
                $crate::inbox::InboxBroker::open($fresh().await).await
            }

            $crate::source_conformance!(broker);
        }

        $crate::__source_cases! { inbox, $fresh;
            late_commits_are_not_passed_by
            a_slot_has_one_holder
            a_holder_frozen_past_its_lease_settles_nothing
            a_source_frozen_past_its_lease_hands_over_nothing
            a_number_that_was_drawn_again_is_another_row
            the_number_of_slots_stays
            an_inbox_is_bound_to_one_queue
            a_look_is_bounded_by_rows_and_bytes
            slots_go_one_by_one_to_a_member_that_has_fewer
            members_come_and_go
            slots_taken_while_a_source_closes_are_released
            nothing_is_acknowledged_before_its_row
            a_full_inbox_stops_receiving_and_drops_nothing
            settlements_that_were_lost_leave_copies
            revoked_messages_are_left_to_their_next_receiver
        }
    };
}
