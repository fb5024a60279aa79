//! The suite for stores on PostgreSQL, beside [that of every store](super::store): the behaviour that only a PostgreSQL server
//! has, checked with each driver alike.
//!
//! A store implements [`PostgresUnderTest`] beside its tests and names a function that makes one:
//!
//! ```ignore
//! async fn fresh() -> Subject { /* a schema of its own on the server that the tests share */ }
//!
//! // Makes one test a case, in a module of its own so that their names do not clash with others.
//! mod conformance {
//!     idem_conformance::postgres_conformance!(super::fresh);
//! }
//! ```
//!
//! `tests/it/conformance.rs` of idem-tokio-postgres and of `examples/diesel` are whole ones.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    reason = "a case turns red by panicking"
)]

pub mod claims;
pub mod commits;
pub mod consumers;
pub mod handlers;
pub mod others;
pub mod pooler;
pub mod servers;
mod subject;
pub mod taken;
pub mod usurpers;

use std::{future::Future, time::Duration};

pub use self::subject::{EFFECTS, PostgresUnderTest, RoundTrips, arrangement_sql};

/// How long one case may take. None needs more than seconds; this is for a store that hangs.
const CASE_MAX: Duration = Duration::from_secs(240);

/// Runs one case on a fresh subject, in a runtime of its own. [`postgres_conformance!`](crate::postgres_conformance) calls it.
///
/// # Panics
/// Where the case is red. The subject's schema is then kept.
pub fn run<T, F, C>(name: &str, factory: impl FnOnce() -> F, case: C)
where
    T: PostgresUnderTest,
    F: Future<Output = T>,
    C: AsyncFnOnce(&T),
{
    let whole = async {
        let subject = factory().await;
        case(&subject).await;
        subject.discard().await;
    };
    super::block_on(name, tokio::runtime::Builder::new_current_thread(), CASE_MAX, Box::pin(whole));
}

/// Makes one `#[test]` of each case of the [PostgreSQL suite](crate::postgres), on what an async function without
/// arguments makes: a fresh [`PostgresUnderTest`](crate::postgres::PostgresUnderTest).
///
/// `postgres_conformance!(fresh, own_server)` makes those that change what a whole server does, or watch it: `fresh` starts an empty
/// server for each.
#[macro_export]
macro_rules! postgres_conformance {
    ($factory:path, own_server) => {
        $crate::__postgres_cases! {
            $factory =>
            claims {
                w138_a_question_holds_no_key,
            }
            commits {
                a_unit_costs_the_round_trips_that_the_store_says,
                a7_a_commit_that_hangs_is_unknown_in_bounded_time,
                a8_a_cancelled_wait_for_a_standby_counts_as_committed,
                a10_d6_a_backend_terminated_during_commit_is_unknown_and_resolved,
                v14_v15_repeats_and_conflicts_cost_one_round_trip_and_write_nothing,
            }
        }
    };
    ($factory:path) => {
        $crate::__postgres_cases! {
            $factory =>
            claims {
                b2_a_second_claim_is_bounded_too,
                a_key_that_is_claimed_alone_leaves_the_same_record,
                w139_a_locked_table_says_nothing_about_a_key,
            }
            commits {
                a5_d6_cut_after_the_server_committed,
                a6_d6_cut_before_the_server_got_the_commit,
                o22_a_right_that_is_missing_is_infrastructure,
                o22_events_are_written_in_whatever_a_handler_has_set,
                o43_a_unit_whose_event_is_suppressed_commits_nothing,
                o73_texts_that_mean_something_to_sql_are_kept_as_they_are,
            }
            handlers {
                a9_a_swallowed_error_of_an_unprotected_message_is_not_acknowledged,
                a12_raw_commit_in_mid_batch_with_every_error_swallowed,
                a20_an_idle_timeout_is_infrastructure,
                a21_timeouts_in_a_handler_are_transient_even_when_swallowed,
                a25_a_killed_backend_is_infrastructure_however_the_handler_wraps_it,
                a46_a_commit_that_a_handler_has_weakened_is_refused,
                a48_an_idle_connection_that_was_lost_costs_no_call,
                b22_a_unique_violation_of_the_handlers_own_is_permanent,
                j5_a_dropped_lane_with_a_running_statement_frees_its_keys,
            }
            others {
                a57_a_session_that_a_pooler_gives_to_others_is_refused,
                c17_expired_rows_that_are_locked_hold_up_no_others,
                s61_a_damaged_record_fails_its_own_message,
                s61_a_record_that_cannot_be_read_stops_no_lane,
            }
            servers {
                a23_a_fenced_primary_is_refused,
                a27_a_table_altered_under_prepared_statements,
                a27_a_table_that_is_gone_and_back,
                a44_a_setting_that_the_server_refuses_leaves_the_others,
                o70_what_was_skipped_holds_nothing_back_at_any_isolation,
                weak_settings_are_warned_about,
            }
            taken {
                a55_next_to_an_invalid_index_a_call_has_the_first_answer,
                a55_next_to_an_invalid_index_a_lost_claim_is_a_duplicate,
                a55_next_to_an_invalid_index_bookkeeping_is_done,
                a56_a_sequence_behind_its_rows_is_named_with_its_cure,
            }
            usurpers {
                s11_new_messages_are_no_duplicates_where_an_aggregate_fits_better,
            }
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __postgres_cases {
    ($factory:path => $($module:ident { $($case:ident,)* })*) => { $($(
        #[test]
        fn $case() {
            $crate::postgres::run(stringify!($case), $factory, $crate::postgres::$module::$case);
        }
    )*)* };
}

/// A case that is written and not listed would never run.
#[cfg(test)]
#[test]
fn every_case_is_listed_in_the_macro() {
    let list = include_str!("mod.rs");
    let modules = [
        include_str!("claims.rs"),
        include_str!("commits.rs"),
        include_str!("handlers.rs"),
        include_str!("others.rs"),
        include_str!("servers.rs"),
        include_str!("taken.rs"),
        include_str!("usurpers.rs"),
    ];
    let public = modules.iter().flat_map(|text| text.lines()).filter_map(|line| line.strip_prefix("pub async fn "));
    let cases: Vec<&str> = public.filter_map(|line| line.split('<').next()).collect();
    assert_eq!(cases.len(), 39);
    for case in cases {
        assert!(list.contains(&format!("                {case},\n")), "{case} is not listed");
    }
}
