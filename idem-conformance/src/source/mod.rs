//! Shows whether a [`Source`](idem_core::Source) keeps its contract.
//!
//! Implement [`SourceUnderTest`] for a fixture that creates a queue of its own, and let
//! [`source_conformance!`](crate::source_conformance) make one test of each case:
//!
//! ```
//! mod suite {
//!     use idem_core::{Message, SourceError};
//!     use idem_conformance::source::{Features, SourceUnderTest};
//!     use idem_testkit::memory::{Broker, MemorySource, Queue, QueueOptions};
//!
//!     struct Fixture {
//!         broker: Broker,
//!         queue: Queue,
//!     }
//!
//!     impl SourceUnderTest for Fixture {
//!         type Source = MemorySource;
//!
//!         fn features(&self) -> Features {
//!             Features::default()
//!         }
//!         async fn publish(&self, message: Message) -> Result<(), SourceError> {
//!             self.queue.publish(message).map(|_| ())
//!         }
//!         async fn source(&self) -> MemorySource {
//!             self.queue.source()
//!         }
//!         async fn source_of_another_queue(&self) -> MemorySource {
//!             self.broker.create("another", QueueOptions::default()).unwrap().source()
//!         }
//!         async fn source_of_an_unknown_queue(&self, name: &str) -> MemorySource {
//!             self.broker.source(name)
//!         }
//!         async fn crash(&self, source: MemorySource) {
//!             drop(source);
//!         }
//!         async fn unsettled(&self, _expected: u64) -> u64 {
//!             self.queue.stats().unsettled()
//!         }
//!     }
//!
//!     async fn fresh() -> Fixture {
//!         let broker = Broker::new();
//!         let queue = broker.create("orders", QueueOptions::default()).unwrap();
//!         Fixture { broker, queue }
//!     }
//!
//!     idem_conformance::source_conformance!(fresh);
//! }
//! ```
//!
//! The limits of a source or its broker are declared, in [`SourceCapabilities`](idem_core::source::SourceCapabilities) and in
//! [`Features`]; such a case is not skipped, but shows that a capability that is declared off is refused or does nothing. Ids
//! such as G2 in the documentation of cases are rows of the [failure modes].
//!
//! [failure modes]: https://github.com/idem-rs/idem/blob/main/docs/internals/failure-modes.md

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::wildcard_enum_match_arm,
    missing_docs,
    reason = "these are tests, which users run too, and in which anything unexpected is a failure"
)]

mod content;
mod deliver;
mod lifecycle;
mod order;
mod revoke;
mod settle;
mod steps;
mod subject;

pub use self::subject::{Features, SourceUnderTest, Unsupported};

/// Every case, by the name of its test.
pub mod cases {
    pub use super::{content::*, deliver::*, lifecycle::*, order::*, revoke::*, settle::*};
}

/// How long one case may take.
const CASE_MAX: std::time::Duration = std::time::Duration::from_secs(600);

/// Runs one case to its end on a runtime of its own, or fails after ten minutes.
///
/// # Panics
/// Where the case fails.
pub fn run(name: &str, case: impl Future<Output = ()>) {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(2);
    super::block_on(name, runtime, CASE_MAX, Box::pin(case));
}

/// Makes one test of each case of the source suite. The argument is the path of an `async fn() -> impl
/// SourceUnderTest` that creates a fresh queue; see [`conformance::source`](crate::source).
#[macro_export]
macro_rules! source_conformance {
    ($fresh:path) => {
        $crate::__source_cases! { source, $fresh;
            every_published_message_is_delivered_once_when_acknowledged
            acknowledged_messages_are_gone_for_the_next_consumer
            unsettled_messages_come_back_after_a_crash
            acknowledged_messages_do_not_come_back_after_a_crash
            a_thousand_messages_arrive_whole
            receive_hands_over_at_most_max
            receive_waits_for_a_message_that_is_published_later
            a_dropped_receive_loses_nothing
            messages_published_before_attach_are_delivered
            two_sources_share_the_messages
            crash_of_one_source_returns_its_messages_to_the_other
            an_origin_is_stable_over_redelivery
            a_second_send_has_an_origin_of_its_own
            equal_messages_are_not_merged
            a_message_that_is_handled_while_others_arrive_stays_unsettled

            headers_are_kept_in_order
            a_repeated_header_is_kept_or_refused
            a_header_without_a_value_is_kept_or_refused
            a_header_value_that_is_not_utf8_is_kept_or_refused
            a_tombstone_is_kept_apart_from_an_empty_payload_or_refused
            an_empty_payload_is_kept_or_refused
            a_payload_of_one_byte_is_kept
            a_payload_that_is_not_utf8_is_kept_or_refused
            a_payload_of_one_mebibyte_is_kept_or_refused
            a_record_key_is_kept_or_refused
            a_message_id_is_kept_or_refused
            the_idempotency_key_is_found_where_the_producer_put_it
            nothing_is_invented_for_a_plain_message
            content_is_the_same_on_redelivery

            messages_of_one_key_arrive_in_order
            messages_of_several_keys_are_each_in_order
            ordering_keys_are_equal_within_a_key_and_differ_between_keys
            without_order_no_message_has_an_ordering_key
            the_order_of_a_key_survives_a_crash
            the_order_of_a_key_survives_releasing_all_of_it

            acknowledging_one_leaves_the_others
            acknowledging_out_of_order_loses_nothing
            what_is_flushed_does_not_come_back_after_a_crash
            only_what_stands_before_a_settled_message_holds_it_back
            settle_answers_one_per_entry
            settling_nothing_answers_nothing
            a_mixed_batch_settles_each_entry_as_it_says
            a_released_message_comes_back
            a_release_without_delay_comes_back_at_once
            a_delayed_release_waits_or_counts_as_zero
            a_dead_letter_is_taken_off_the_queue
            a_first_delivery_is_not_marked_as_redelivered
            a_redelivery_is_marked_where_the_broker_marks
            attempts_count_up_or_stay_at_one
            five_releases_lose_nothing
            a_batch_of_only_duplicates_advances
            a_delivery_whose_lease_passed_is_not_lost
            settling_while_receiving_is_answered

            a_drained_revocation_waits_for_what_is_in_hand
            a_receive_of_none_hands_over_a_revocation_and_no_message
            a_drained_revocation_returns_what_was_not_settled
            a_drained_revocation_that_is_dropped_counts_as_answered
            nothing_arrives_under_an_assignment_that_is_being_drained
            a_handle_from_before_a_revocation_is_stale_and_acknowledges_nothing
            a_lost_assignment_is_announced_and_not_waited_for
            messages_of_a_lost_assignment_come_back_under_another
            a_disconnected_source_connects_again
            a_disconnect_returns_what_was_held
            a_handle_from_before_a_disconnect_is_stale_and_acknowledges_nothing
            a_batch_of_old_and_new_handles_is_answered_in_order
            an_undisturbed_source_revokes_nothing

            attaching_twice_is_attaching_once
            attaching_to_an_unknown_queue_is_refused_by_name
            bound_to_is_stable_over_restarts
            bound_to_differs_between_queues
            a_source_that_is_not_attached_takes_nothing
            stop_ends_a_receive_that_waits
            stop_ends_a_receive_of_none
            stop_leaves_the_rest_in_the_queue
            deliveries_in_hand_can_be_settled_after_stop
            end_is_answered_again
            close_returns_what_is_unsettled
            close_keeps_what_was_acknowledged
            close_keeps_its_deadline_when_the_broker_hangs
            stop_ends_receiving_when_the_broker_hangs
            closing_twice_is_closing_once
            closing_what_was_never_attached_is_harmless
            a_handle_of_a_closed_source_is_stale
            a_source_that_is_not_attached_is_not_idle
            a_source_at_the_end_of_its_queue_is_idle
            a_source_with_messages_to_receive_is_not_idle
            a_source_is_not_idle_while_another_holds_messages
            another_source_continues_where_the_first_closed
            a_paused_source_gives_back_what_it_has_not_handed_over
            a_paused_source_ends_when_it_is_stopped
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __source_cases {
    ($suite:ident, $fresh:path; $($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                $crate::source::run(stringify!($name), async {
                    $crate::$suite::cases::$name(&$fresh().await).await;
                });
            }
        )*
        /// The names of all cases, by which the test kit checks that none is forgotten here.
        #[allow(dead_code, reason = "only the test kit's own tests ask")]
        const CASES: &[&str] = &[$(stringify!($name)),*];
    };
}
