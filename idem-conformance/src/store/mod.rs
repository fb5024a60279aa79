//! The suite for stores: every promise of [`Store`](idem_core::Store), [`UnitOfWork`](idem_core::store::UnitOfWork) and
//! [`Bookkeeping`](idem_core::store::Bookkeeping), as a case that a store passes or not.
//!
//! A store implements [`StoreUnderTest`] beside its tests and names a function that makes one:
//!
//! ```
//! use std::sync::Arc;
//! # use idem_core::{HandlerError, Tx};
//! # use idem_conformance::store::{Arrangement, Effect, HandlerAction, NotOffered, StoreUnderTest};
//! # use idem_testkit::MemoryStore;
//!
//! struct Fresh(Arc<MemoryStore>);
//!
//! impl StoreUnderTest for Fresh {
//!     type Store = MemoryStore;
//!
//!     fn store(&self) -> Arc<MemoryStore> {
//!         Arc::clone(&self.0)
//!     }
//!
//!     async fn write(tx: &mut Tx<'_, MemoryStore>, effect: &Effect) -> Result<(), HandlerError> {
//!         Ok(tx.connection().append("effects", &effect.key, effect.payload.clone()).await?)
//!     }
//!     // …
//! #     async fn another(&self) -> Arc<MemoryStore> { Arc::clone(&self.0) }
//! #     async fn effects(&self) -> Vec<Effect> { Vec::new() }
//! #     async fn recorded(&self) -> Vec<String> { Vec::new() }
//! #     async fn audited(&self) -> Vec<(String, Option<String>)> { Vec::new() }
//! #     fn offers(&self, _: HandlerAction) -> bool { false }
//! #     async fn act(_: &mut Tx<'_, MemoryStore>, _: HandlerAction, _: &Effect) -> Result<(), HandlerError> { Err("".into()) }
//! #     fn arranges(&self, _: Arrangement) -> bool { false }
//! #     async fn arrange(&self, _: Arrangement) -> Result<(), NotOffered> { Err(NotOffered) }
//! }
//!
//! async fn fresh() -> Fresh {
//!     Fresh(Arc::new(MemoryStore::new()))
//! }
//!
//! // Makes one test a case, in a module of its own so that their names do not clash with others.
//! mod conformance {
//!     idem_conformance::store_conformance!(super::fresh);
//! }
//! ```
//!
//! Cases run through the engine where the engine stands between a store and a user, and by hand where a
//! contract of a trait can be seen only there. They wait for events, never for time, and read effects back from the
//! database. Ids such as A12 in their documentation are rows of the [failure modes], which say what goes wrong and what idem
//! does about it.
//!
//! [failure modes]: https://github.com/idem-rs/idem/blob/main/docs/internals/failure-modes.md

#![allow(clippy::panic, clippy::unwrap_used, reason = "a case turns red by panicking")]

pub mod batches;
pub mod behind;
pub mod competition;
pub mod consumers;
pub mod dead_letters;
pub mod deliveries;
pub mod dropped;
pub mod due;
pub mod events;
pub mod failures;
mod fixture;
mod gate;
pub mod keys;
pub mod later;
pub mod limits;
pub mod lost_commits;
mod observed;
pub mod operations;
pub mod operators;
pub mod pipelined;
pub mod records;
pub mod relaying;
pub mod relays;
pub mod repeats;
pub mod results;
pub mod shared_units;
mod subject;
pub mod transactions;
pub mod twin;

use std::{future::Future, time::Duration};

pub use self::subject::{Arrangement, Effect, HandlerAction, NotOffered, StoreUnderTest, taken_numbers};

/// How long one case may take. None needs more than seconds; this is for a store that hangs.
const CASE_MAX: Duration = Duration::from_secs(120);

/// Runs one case on a fresh subject, in a runtime of its own. [`store_conformance!`](crate::store_conformance) calls it.
///
/// # Panics
/// Where the case is red. The subject's database is then kept.
pub fn run<T, F, C>(name: &str, factory: impl FnOnce() -> F, case: C)
where
    T: StoreUnderTest,
    F: Future<Output = T>,
    C: AsyncFnOnce(&T),
{
    let whole = async {
        let subject = gate::within("a fresh subject", factory()).await;
        case(&subject).await;
        gate::within("removing the subject", subject.discard()).await;
    };
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(2);
    super::block_on(name, runtime, CASE_MAX, Box::pin(whole));
}

/// Makes one `#[test]` of each case of the [store suite](crate::store), on what an async function without
/// arguments makes: a fresh [`StoreUnderTest`](crate::store::StoreUnderTest).
///
/// With `, handlers` behind the function only those in which handlers run, and with `, bookkeeping` the others: a store that runs
/// handlers in several ways needs those once.
#[macro_export]
macro_rules! store_conformance {
    ($factory:path) => {
        $crate::store_conformance!($factory, handlers);
        $crate::store_conformance!($factory, bookkeeping);
    };
    ($factory:path, handlers) => {
        $crate::__store_cases! {
            $factory =>
            deliveries {
                processes_exactly_once_on_first_delivery,
                skips_duplicate_silently,
                same_message_2_times,
                same_message_10_times,
                concurrent_duplicates,
                with_several_parallel_consumers,
                a_duplicate_is_known_after_a_restart,
                other_payload_is_a_conflict_and_never_handled,
                a_conflict_leaves_the_record_untouched,
                duplicates_and_conflicts_carry_the_winners_record,
                two_consumers_with_the_same_key_both_run,
                two_tenants_with_the_same_key_both_run,
                a_tombstone_and_an_empty_payload_differ,
                a_payload_of_one_mebibyte_is_handled_and_a_larger_one_refused,
                a_payload_of_any_bytes_is_handled_as_it_is,
                a_redelivery_with_other_headers_is_a_duplicate,
                an_unprotected_type_runs_each_time_without_a_record,
                a_handler_that_changes_its_copy_changes_nothing,
                process_on_gives_the_lane_back_after_a_normal_end,
                process_on_keeps_the_lane_after_an_abnormal_end,
            }
            batches {
                batch_of_1,
                batch_of_100,
                batch_of_500,
                an_empty_batch_is_no_unit,
                equal_messages_in_one_batch_run_once,
                other_payload_in_one_batch_is_a_conflict,
                copies_of_a_recorded_key_are_compared_with_its_record,
                fresh_old_fresh,
                handlers_run_and_decisions_stand_in_the_order_of_delivery,
                claims_arrive_folded_and_sorted,
                a_handlers_error_leaves_nothing,
                a_handlers_panic_leaves_nothing,
                a_handler_past_its_deadline_leaves_nothing,
                a_late_handler_in_a_batch_spares_its_neighbours,
                one_poison_message_spares_its_neighbours,
                a_duplicate_of_a_failed_leader_is_not_settled,
                an_equal_copy_follows_a_leader_that_failed_for_good,
                another_payload_runs_after_its_leader_failed_for_good,
                ids_1_2_1_2_1_3_with_2_failing,
                what_follows_a_failure_in_its_ordering_key_waits,
                overlapping_batches_run_each_key_once,
                outside_effects_run_one_message_a_unit,
                a47_units_of_one_hold_one_message,
                a_batch_handler_gets_what_is_fresh,
                a_batch_handlers_culprit_is_the_only_one_that_fails,
            }
            shared_units {
                calls_that_come_together_share_a_unit,
                a_failure_in_a_shared_unit_is_its_own,
                tenants_share_no_unit,
                a16_a_call_that_is_dropped_takes_nobody_with_it,
            }
            competition {
                one_waiter_runs_when_the_winner_rolls_back,
                every_waiter_is_a_duplicate_when_the_winner_commits,
                every_waiter_with_another_payload_is_a_conflict_when_the_winner_commits,
                a_held_key_is_busy_within_the_busy_timeout,
                a_busy_key_spares_its_neighbours,
                a_claim_waits_for_twins_only,
                w138_a_question_leaves_nothing_behind,
                an_uncommitted_twin_is_never_found,
                l29_what_is_not_done_is_held_under_a_former_hash_rule_too,
                batches_in_opposite_orders_never_deadlock,
                many_consumers_race_for_one_key,
                two_payloads_race_for_one_key,
                more_lanes_than_the_store_has_are_refused,
                a_shared_transaction_is_offered_only_where_declared,
            }
            pipelined {
                handlers_at_once_are_refused_where_they_cannot_be,
                handlers_run_at_once_and_commit_together,
                no_more_handlers_run_at_once_than_allowed,
                handlers_of_one_ordering_key_run_in_turn,
                nobody_begins_after_a_failure_and_all_end_before_the_rollback,
                a_failed_statement_among_handlers_at_once_charges_its_own_message,
                a_swallowed_error_among_handlers_at_once_charges_its_own_message,
                a_panic_among_handlers_at_once_charges_its_own_message,
                a_late_handler_among_handlers_at_once_charges_its_own_message,
                what_belongs_to_all_is_out_of_one_handlers_reach,
                a_lost_answer_to_a_commit_of_handlers_at_once,
            }
            transactions {
                swallowed_sql_error_is_not_acknowledged,
                swallowed_sql_error_in_mid_batch_loses_nothing,
                unread_error_is_not_acknowledged,
                deferred_error_at_commit_is_a_failure,
                raw_commit_in_mid_batch_loses_nothing,
                swallowed_raw_commit_in_mid_batch_loses_nothing,
                raw_rollback_in_mid_batch_loses_nothing,
                raw_commit_and_begin_in_mid_batch_loses_nothing,
                nested_transaction_left_open_in_mid_batch_loses_nothing,
                a_handler_that_ends_its_transaction_is_not_acknowledged,
                nested_transaction_left_open_is_not_acknowledged,
                a_nested_transaction_commits_with_its_unit,
                a_nested_transaction_is_rolled_back_with_its_unit,
                a_nested_rollback_keeps_what_is_around_it,
                a_killed_connection_is_infrastructure_whatever_the_handler_says,
                a_blocked_statement_ends_with_the_deadline,
                nothing_is_visible_before_the_commit,
                an_errors_text_quotes_no_payload,
                errors_of_others_are_not_classified,
            }
            lost_commits {
                a_lost_answer_to_a_commit_that_happened,
                a_lost_answer_to_a_commit_that_did_not_happen,
                a_lost_answer_to_a_batch_that_committed,
                a_lost_answer_to_a_batch_that_did_not_commit,
                followers_of_a_lost_commit_are_decided_by_the_record,
                a_commit_that_hangs_is_resolved_in_bounded_time,
                answers_lost_over_and_over_are_never_guessed,
            }
            dropped {
                process_dropped_at_every_poll,
                process_on_dropped_at_every_poll,
                begin_dropped_at_every_poll,
                claim_dropped_at_every_poll,
                statement_dropped_at_every_poll,
                commit_dropped_at_every_poll,
                rollback_dropped_at_every_poll,
                a_dropped_unit_leaves_nothing,
            }
            keys {
                hostile_keys_are_plain_text,
                keys_that_look_alike_are_different,
                keys_that_look_like_uuids_are_different,
                the_longest_keys_are_whole,
                malformed_keys_are_refused_and_neighbours_unharmed,
                a_message_without_a_key_is_never_given_one,
            }
            records {
                a_record_is_kept_at_least_for_its_retention,
                a_record_may_be_kept_for_ever,
                a_record_may_be_kept_for_ten_years,
                an_expired_record_counts_until_it_is_removed,
                cleanup_removes_only_what_has_expired,
                cleanup_goes_in_bounded_steps,
                cleanup_tells_how_far_it_is_and_who_came_last,
                a_stopped_cleanup_writes_down_what_it_removed,
                an_erased_key_is_still_recorded,
                a_winner_that_vanishes_before_it_is_read_is_claimed_again,
                swallowed_records_are_no_duplicates,
                a_table_that_is_gone_for_a_while_is_infrastructure,
                a_damaged_schema_is_refused_with_its_cure,
                claims_and_reads_answer_in_order,
                s58_a_unit_knows_the_time_of_its_records,
                units_and_rounds_follow_one_another_on_a_lane,
                a_failure_leaves_no_record_in_the_way_of_its_replay,
                the_databases_clock_goes_forward,
            }
            events {
                append_is_atomic_with_the_record,
                o1_append_of_a_rolled_back_unit_leaves_nothing,
                append_is_refused_when_off,
                o12_a_failed_handler_of_a_batch_appends_nothing,
                every_kind_of_handler_appends_the_same_rows,
                events_stay_where_a_nested_transaction_goes,
                o15_two_scopes_and_two_destinations_with_one_key_are_four_events,
                o108_two_tenants_with_one_key_have_two_events,
                o6_o7_the_same_event_again_is_no_news_and_another_one_is_a_conflict,
                a_handler_that_publishes_nothing_appends_nothing,
                o6_a_batch_that_runs_again_publishes_what_is_new,
                o7_another_event_of_a_message_that_runs_again_is_a_conflict,
                o6_o7_steps_meet_their_event_in_the_outbox,
                appended_keys_in_opposite_orders_never_deadlock,
            }
            results {
                v1_a_result_is_kept_with_its_record,
                v1_a_result_of_a_unit_that_was_rolled_back_is_gone,
                v1_a_lost_answer_to_a_commit_gives_the_value_that_is_kept,
                v2_whoever_waits_for_the_owner_gets_the_owners_result,
                v3_a_record_without_a_result_is_not_an_empty_one,
                v4_a_result_over_the_bound_leaves_nothing,
                v4_a_result_that_no_column_holds_is_refused_by_its_field,
                v5_two_tenants_with_one_key_have_two_results,
                v6_another_payload_is_told_nothing,
                v7_two_processes_that_refuse_one_key_agree,
                v9_a_result_goes_with_its_record,
                v12_an_answer_may_go_before_its_record_and_never_runs_again,
                v10_a_worker_that_keeps_no_results_leaves_none,
                v11_a_refusal_is_kept_without_its_effects,
                v18_a_refusal_after_a_failed_statement_is_final,
                v19_an_error_that_may_pass_is_never_final,
                v11_a_refused_operation_runs_once,
                v11_a_refusal_whose_transaction_was_ended_has_no_effect,
                results_cost_nothing_where_nobody_asks,
                results_that_are_not_offered_are_refused,
            }
            operations {
                a16_a_dropped_operation_leaves_nothing,
                a16_an_operation_dropped_in_a_statement_frees_its_key,
                a16_an_operation_dropped_without_a_runtime_leaves_nothing,
                a18_an_operation_ends_at_its_deadline,
                a18_a_lent_transaction_that_is_late_is_not_committed,
                v18_v19_an_operation_declines_after_a_failed_statement,
            }
            repeats {
                v14_a_repeat_begins_no_unit,
                v14_a_first_run_is_not_looked_up,
                v14_what_is_looked_up_decides_as_a_claim_does,
                v14_what_is_not_committed_is_not_known,
                v14_many_keys_are_looked_up_in_their_order,
                v15_conflicts_are_noted_once_a_key_and_of_few_keys,
            }
        }
    };
    ($factory:path, bookkeeping) => {
        $crate::__store_cases! {
            $factory =>
            failures {
                attempts_are_counted_from_one,
                an_attempt_can_be_taken_back,
                d28_a_success_ends_the_count_of_its_payload,
                another_payload_starts_its_attempts_anew,
                d30_two_failing_payloads_of_one_key_do_not_reset_each_other,
                attempts_counted_at_once_are_all_counted,
                a_dead_letter_keeps_its_facts,
                the_same_origin_is_stored_once,
                equal_dead_letters_are_one_row_with_a_count,
                different_dead_letters_are_rows_of_their_own,
                a_dead_letter_stored_at_once_is_one_row,
                a_dead_letter_may_hold_anything,
                a_published_dead_letter_is_marked,
                a_replay_brings_the_message_as_it_was_delivered,
                a_replay_goes_to_one_worker,
                a_finished_replay_is_over,
                a_released_replay_is_taken_by_another,
                an_abandoned_replay_is_taken_after_a_while,
                a_dead_letter_without_its_payload_is_not_replayed,
                only_known_and_idle_dead_letters_can_be_replayed,
                cleanup_keeps_what_awaits_a_replay,
            }
            due {
                rows_of_an_ordering_key_run_in_their_order,
                the_end_of_a_row_lets_the_next_of_its_key_go,
                two_takers_split_no_key,
                an_earlier_row_that_is_asked_for_later_waits_for_its_key,
                a_lease_is_kept_while_it_is_renewed,
                rows_that_are_given_back_keep_their_order,
                an_end_is_noted_once,
                a_tenants_backlog_hides_no_others_rows,
                a_look_is_bounded_in_bytes,
            }
            later {
                what_is_put_aside_runs_at_its_time,
                a_message_that_waits_is_one_row,
                a_row_waits_again_and_goes_dead,
                an_operator_need_not_wait,
                a_replay_that_fails_may_wait,
            }
            behind {
                what_is_behind_a_row_runs_after_it,
                a_row_that_waits_again_keeps_what_is_behind_it,
                the_end_of_a_head_lets_the_next_go,
                what_waits_behind_a_row_is_one_row,
                races_leave_no_row_without_a_head,
            }
            dead_letters {
                a29_another_message_at_a_used_origin_is_another_dead_letter,
                a29_a_copy_from_another_origin_is_counted,
                s59_malformed_payloads_of_several_causes_are_several_groups,
                a29_a_replayed_dead_letter_is_not_revived_by_another_message,
                a29_a_copy_puts_a_replayed_dead_letter_before_the_operator_again,
                a30_without_a_key_each_origin_is_a_row_and_a_redelivery_is_none,
                a30_without_a_key_other_headers_or_another_record_key_are_another_row,
                a31_payloads_that_cannot_be_hashed_do_not_fold,
                a32_a_confirmation_is_for_exactly_one_content,
                a_payload_that_was_over_the_limit_is_kept_by_a_later_copy,
                d51_a_copy_of_another_length_is_kept,
                a_dead_letter_has_the_fingerprint_of_its_last_failure,
                equal_dead_letters_of_two_scopes_are_two_rows,
                d14_a_message_that_is_set_aside_has_no_attempt_counted,
                d15_a_dead_letter_ends_no_count_of_another_payload,
                c14_a_replay_has_all_its_attempts_and_empties_caches,
                s23_the_bytes_of_a_consumers_dead_letters_are_its_own,
                s24_the_tables_sizes_are_told,
            }
            relays {
                o5_a_late_commit_of_a_lower_number_is_answered,
                events_of_one_unit_keep_their_order,
                what_waits_holds_its_ordering_key_back,
                what_failed_waits_for_an_operator,
                settling_what_is_gone_does_no_harm,
                o41_an_event_is_settled_by_its_number_and_its_key,
                what_is_answered_is_bounded,
                o23_followers_of_one_key_hide_no_other_key,
                o82_the_longest_ordering_key_fails_and_waits,
                one_relay_at_a_time_has_a_destination,
                a_destination_is_declared_once,
                what_waits_is_told_by_writer,
                o106_what_may_go_is_told_apart_from_what_waits,
                o25_what_a_relay_that_died_had_in_hand_may_have_been_sent,
                o25_what_waited_behind_others_was_in_nobodys_hands,
                o100_a_note_of_a_try_that_sent_nothing_is_taken_back,
            }
            limits {
                o107_an_event_that_never_fits_fails_its_message,
                o116_what_a_relay_says_ends_with_its_lease,
            }
            relaying {
                o100_a_slow_refusal_leaves_no_mark,
            }
            operators {
                o101_a_stale_event_that_is_let_go_stays_known,
                o105_an_event_is_the_same_after_its_consumer_was_renamed,
            }
            consumers {
                registering_twice_gives_the_same_scope,
                workers_that_start_at_once_are_one_consumer,
                every_consumer_and_tenant_has_a_scope_of_its_own,
                j63_numbers_follow_from_names,
                j97_a_tenant_whose_numbers_are_taken_gets_a_later_one,
                another_source_is_refused_with_both_values,
                another_handler_is_refused_with_both_values,
                another_key_rule_is_refused_with_both_values,
                another_hash_rule_is_refused_with_both_values,
                a_hash_rule_is_left_behind_by_way_of_a_former_one,
                another_tenant_is_bound_like_the_first,
                what_a_start_does_not_say_binds_nothing,
                hash_rule_ids_are_stable_and_distinct,
                a_former_hash_rule_is_hashed_again,
                an_unknown_hash_rule_is_a_conflict_of_its_own_kind,
                a_new_consumer_is_running,
                controls_are_read_by_every_process,
                the_epoch_never_goes_back,
                j110_what_a_run_reports_is_known_elsewhere,
                one_server_is_one_identity,
                the_audit_trail_keeps_every_line,
                bookkeeping_goes_on_while_a_unit_is_open,
                hooks_that_are_not_offered_are_refused,
            }
            twin {
                j61_random_sequences_have_the_answers_of_the_twin,
            }
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __store_cases {
    ($factory:path => $($module:ident { $($case:ident,)* })*) => { $($(
        #[test]
        fn $case() {
            $crate::store::run(stringify!($case), $factory, $crate::store::$module::$case);
        }
    )*)* };
}

#[cfg(test)]
mod tests;
