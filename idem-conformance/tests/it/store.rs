//! The store suite on [`MemoryStore`], as a server and as an embedded database; and red cases on broken ones.

use std::{sync::Arc, time::Duration};

use idem_conformance::store::{Arrangement, Effect, HandlerAction, NotOffered, StoreUnderTest, taken_numbers};
use idem_core::{
    Bytes, ConsumerName, DedupConsumer, Effects, Handler, HandlerError, Message, Tx, store::StoreCapabilities,
};
use idem_testkit::MemoryStore;

/// A [`MemoryStore`] with a table for effects.
struct Subject(Arc<MemoryStore>);

const EFFECTS: &str = "effects";

/// Key, note and payload in one value, apart by length.
fn encode(effect: &Effect) -> Bytes {
    let mut value = (effect.note.len() as u64).to_be_bytes().to_vec();
    value.extend(effect.note.as_bytes());
    value.extend(&effect.payload);
    value.into()
}

fn decode(key: String, value: &Bytes) -> Effect {
    let (length, rest) = value.split_first_chunk::<8>().unwrap();
    let (note, payload) = rest.split_at(u64::from_be_bytes(*length) as usize);
    Effect { key, payload: payload.to_vec(), note: String::from_utf8(note.to_vec()).unwrap() }
}

impl StoreUnderTest for Subject {
    type Store = MemoryStore;

    fn store(&self) -> Arc<MemoryStore> {
        Arc::clone(&self.0)
    }

    async fn another(&self) -> Arc<MemoryStore> {
        Arc::new(MemoryStore::clone(&self.0))
    }

    async fn write(tx: &mut Tx<'_, MemoryStore>, effect: &Effect) -> Result<(), HandlerError> {
        Ok(tx.connection().append(EFFECTS, &effect.key, encode(effect)).await?)
    }

    async fn effects(&self) -> Vec<Effect> {
        self.0.rows(EFFECTS).into_iter().map(|(key, value)| decode(key, &value)).collect()
    }

    async fn recorded(&self) -> Vec<String> {
        self.0.recorded_keys()
    }

    async fn audited(&self) -> Vec<(String, Option<String>)> {
        self.0.audited()
    }

    fn offers(&self, action: HandlerAction) -> bool {
        // There is no statement that takes minutes.
        action != HandlerAction::Block
    }

    async fn act(tx: &mut Tx<'_, MemoryStore>, action: HandlerAction, effect: &Effect) -> Result<(), HandlerError> {
        let mut connection = tx.connection();
        match action {
            HandlerAction::Commit => connection.raw_commit().await?,
            HandlerAction::Rollback => connection.raw_rollback().await?,
            HandlerAction::CommitAndBegin => {
                let _ = connection.raw_commit().await;
                connection.raw_begin().await;
            }
            HandlerAction::FailingStatement => {
                connection.insert("unique", &effect.key, effect.payload.clone()).await?;
                connection.insert("unique", &effect.key, effect.payload.clone()).await?;
            }
            HandlerAction::UnreadFailure => connection.fail_unread(),
            HandlerAction::DeferredFailure => connection.break_deferred_constraint(),
            HandlerAction::NestedCommitted => {
                connection.begin_nested().await?;
                connection.append(EFFECTS, &effect.key, encode(effect)).await?;
                connection.commit_nested().await?;
            }
            HandlerAction::NestedRolledBack => {
                connection.begin_nested().await?;
                connection.append(EFFECTS, &effect.key, encode(effect)).await?;
                connection.rollback_nested().await?;
            }
            HandlerAction::NestedLeft => {
                connection.begin_nested().await?;
                connection.append(EFFECTS, &effect.key, encode(effect)).await?;
            }
            HandlerAction::KillConnection => {
                connection.lose_connection();
                connection.rows(EFFECTS).await?;
            }
            HandlerAction::Block => return Err("a MemoryStore answers at once".into()),
        }
        Ok(())
    }

    fn arranges(&self, arrangement: Arrangement) -> bool {
        !matches!(arrangement, Arrangement::EraseKeys | Arrangement::DropUniqueKey | Arrangement::DropSeal)
    }

    async fn arrange(&self, arrangement: Arrangement) -> Result<(), NotOffered> {
        match arrangement {
            Arrangement::Age(by) => self.0.advance(by),
            Arrangement::SwallowRecords => self.0.swallow_records(true),
            Arrangement::HideRecords => self.0.hide_records(true),
            Arrangement::Restore => {
                self.0.swallow_records(false);
                self.0.hide_records(false);
            }
            Arrangement::EraseKeys | Arrangement::DropUniqueKey | Arrangement::DropSeal => return Err(NotOffered),
            Arrangement::Rename => {
                let [from, to] = ["orders", "purchases"].map(|name| ConsumerName::new(name).unwrap());
                assert!(self.0.rename(&from, &to));
            }
            Arrangement::TakeNumbers => self.0.take_numbers(&ConsumerName::new("others").unwrap(), taken_numbers()),
        }
        Ok(())
    }

    async fn deadlocks(&self) -> Option<u64> {
        Some(self.0.deadlocks())
    }
}

async fn server() -> Subject {
    Subject(Arc::new(MemoryStore::new()))
}

async fn embedded() -> Subject {
    Subject(Arc::new(MemoryStore::embedded()))
}

/// Each message a unit of its own, whose claim is a lease, as on a database whose transactions are single requests.
async fn of_one_message() -> Subject {
    let capabilities =
        StoreCapabilities::server().outbox(true).results(true).messages_max(Some(1)).leases(true).sets_aside(true);
    Subject(Arc::new(MemoryStore::with_capabilities(capabilities)))
}

/// What a store cannot do is refused where it is asked for.
#[test]
fn effects_that_a_store_cannot_join_or_hold_are_refused() {
    let build = |capabilities: StoreCapabilities, effects| {
        let store = MemoryStore::with_capabilities(capabilities);
        let builder = DedupConsumer::builder(store, "orders").handler(Nothing).effects(effects);
        builder.handler_deadline(Duration::from_secs(1)).build().map(drop).map_err(|error| (error.field, error.value))
    };
    let (server, refused) = (StoreCapabilities::server, |value: &str| Err(("effects", value.to_owned())));
    assert_eq!(build(server(), Effects::InTransaction), Ok(()));
    assert_eq!(build(server(), Effects::Outside), Ok(()));
    assert_eq!(build(server().joins_effects(false), Effects::InTransaction), refused("Effects::InTransaction"));
    assert_eq!(build(server().joins_effects(false), Effects::Outside), Ok(()));
    assert_eq!(build(server().leases(true), Effects::InTransaction), Ok(()));
    assert_eq!(build(server().leases(true), Effects::Outside), refused("Effects::Outside"));
    let build = |messages_max, shared| {
        let store = MemoryStore::with_capabilities(server().messages_max(messages_max));
        let builder = DedupConsumer::builder(store, "orders").handler(Nothing).effects(Effects::InTransaction);
        builder.coalesce_calls(shared).build().map(drop).map_err(|error| error.field)
    };
    assert_eq!((build(None, 10), build(Some(10), 10), build(Some(10), 11)), (Ok(()), Ok(()), Err("coalesce_calls")));
}

struct Nothing;

impl Handler<MemoryStore> for Nothing {
    async fn handle(&self, _: &Message, _: &mut Tx<'_, MemoryStore>) -> Result<(), HandlerError> {
        Ok(())
    }
}

mod with_units_of_one_message {
    idem_conformance::store_conformance!(super::of_one_message);
}

mod as_a_server {
    idem_conformance::store_conformance!(super::server);
}

mod as_an_embedded_database {
    idem_conformance::store_conformance!(super::embedded);
}

/// A suite that cannot turn red proves nothing: each broken store is caught by the cases that are named here.
mod broken {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use idem_conformance::store as suite;
    use idem_testkit::Defect;

    use super::*;

    /// Runs cases on a store with a defect and checks that each is red.
    macro_rules! is_caught_by {
        ($($test:ident: $defect:ident by $($module:ident::$case:ident),+;)+) => {$(
            #[test]
            fn $test() {
                let broken = || async { Subject(Arc::new(MemoryStore::with_defect(Defect::$defect))) };
                $(
                    let run = || suite::run(stringify!($case), broken, suite::$module::$case);
                    let red = catch_unwind(AssertUnwindSafe(run)).is_err();
                    assert!(red, "{} did not notice {:?}", stringify!($case), Defect::$defect);
                )+
            }
        )+};
    }

    is_caught_by! {
        answers_in_another_order: AnswersClaimsInReverse by records::claims_and_reads_answer_in_order,
            batches::fresh_old_fresh, repeats::v14_many_keys_are_looked_up_in_their_order;
        binds_nothing: BindsNothing by consumers::another_source_is_refused_with_both_values,
            consumers::another_handler_is_refused_with_both_values, consumers::another_key_rule_is_refused_with_both_values,
            consumers::another_hash_rule_is_refused_with_both_values;
        cleans_live_records: CleansLiveRecords by records::cleanup_removes_only_what_has_expired;
        commits_an_aborted_transaction: CommitsAbortedWithoutError by
            transactions::swallowed_sql_error_is_not_acknowledged, transactions::unread_error_is_not_acknowledged;
        commits_an_open_nested_one: CommitsDespiteOpenNested by
            transactions::nested_transaction_left_open_is_not_acknowledged,
            transactions::nested_transaction_left_open_in_mid_batch_loses_nothing;
        commits_what_is_not_sealed: CommitsUnsealed by transactions::raw_commit_in_mid_batch_loses_nothing,
            transactions::swallowed_raw_commit_in_mid_batch_loses_nothing,
            transactions::a_handler_that_ends_its_transaction_is_not_acknowledged;
        counts_attempts_by_key: CountsAttemptsByKey by
            failures::d30_two_failing_payloads_of_one_key_do_not_reset_each_other;
        counts_on_when_set_aside: CountsOnWhenSetAside by
            dead_letters::d14_a_message_that_is_set_aside_has_no_attempt_counted;
        cuts_keys: CutsKeysAt64Bytes by keys::the_longest_keys_are_whole;
        keeps_keys_of_dropped_units: DroppedUnitsHoldKeys by dropped::a_dropped_unit_leaves_nothing;
        forgets_what_has_expired: ExpiredCountsAsGone by records::an_expired_record_counts_until_it_is_removed;
        knows_events_by_their_keys_alone: EventsByKeyAlone by
            events::o15_two_scopes_and_two_destinations_with_one_key_are_four_events;
        lets_followers_overtake: EventsOvertake by relays::what_waits_holds_its_ordering_key_back,
            relays::what_failed_waits_for_an_operator;
        forgets_limits: ForgetsLimits by limits::o107_an_event_that_never_fits_fails_its_message;
        leases_to_all: LeasesToAll by relays::one_relay_at_a_time_has_a_destination;
        loses_events: LosesEvents by events::append_is_atomic_with_the_record;
        puts_events_outside: PutsEventsOutside by events::o1_append_of_a_rolled_back_unit_leaves_nothing;
        settles_by_number_alone: SettlesByNumberAlone by relays::o41_an_event_is_settled_by_its_number_and_its_key;
        scans_by_number: ScansByNumber by relays::o5_a_late_commit_of_a_lower_number_is_answered;
        finds_what_is_not_committed: FindsUncommitted by competition::an_uncommitted_twin_is_never_found,
            competition::l29_what_is_not_done_is_held_under_a_former_hash_rule_too,
            repeats::v14_what_is_not_committed_is_not_known;
        folds_keys: FoldsKeys by keys::keys_that_look_alike_are_different;
        forgets_hashes: ForgetsHashes by deliveries::other_payload_is_a_conflict_and_never_handled,
            batches::copies_of_a_recorded_key_are_compared_with_its_record,
            repeats::v14_what_is_looked_up_decides_as_a_claim_does;
        ignores_scopes: IgnoresScopes by deliveries::two_consumers_with_the_same_key_both_run,
            deliveries::two_tenants_with_the_same_key_both_run;
        numbers_in_order: NumbersInOrder by consumers::j63_numbers_follow_from_names;
        loses_effects: LosesEffects by deliveries::processes_exactly_once_on_first_delivery;
        loses_results: LosesResults by results::v1_a_result_is_kept_with_its_record,
            repeats::v14_a_repeat_begins_no_unit;
        finds_results_of_others: ResultsByKeyAlone by results::v5_two_tenants_with_one_key_have_two_results;
        measures_everybodys_dead_letters: MeasuresEverybodysDeadLetters by
            dead_letters::s23_the_bytes_of_a_consumers_dead_letters_are_its_own;
        stores_by_origin: StoresByOrigin by dead_letters::a29_another_message_at_a_used_origin_is_another_dead_letter,
            dead_letters::a29_a_replayed_dead_letter_is_not_revived_by_another_message,
            dead_letters::a30_without_a_key_other_headers_or_another_record_key_are_another_row,
            dead_letters::a32_a_confirmation_is_for_exactly_one_content;
        parks_every_copy: ParksEveryCopy by failures::the_same_origin_is_stored_once,
            failures::equal_dead_letters_are_one_row_with_a_count, dead_letters::a29_a_copy_from_another_origin_is_counted,
            dead_letters::a30_without_a_key_each_origin_is_a_row_and_a_redelivery_is_none;
        puts_effects_outside: PutsEffectsOutside by batches::a_handlers_error_leaves_nothing,
            transactions::nothing_is_visible_before_the_commit;
        records_outside: RecordsOutside by batches::a_handlers_error_leaves_nothing, dropped::a_dropped_unit_leaves_nothing;
        replays_twice: ReplaysTwice by failures::an_abandoned_replay_is_taken_after_a_while, due::two_takers_split_no_key;
        takes_followers_alone: TakesFollowersAlone by due::the_end_of_a_row_lets_the_next_of_its_key_go,
            due::two_takers_split_no_key;
        renews_no_rows: RenewsNoRows by due::a_lease_is_kept_while_it_is_renewed;
        runs_rows_early: RunsRowsEarly by later::what_is_put_aside_runs_at_its_time, later::a_row_waits_again_and_goes_dead;
        parks_beside_its_key: ParksBesideItsKey by behind::what_is_behind_a_row_runs_after_it,
            behind::the_end_of_a_head_lets_the_next_go;
        lets_no_next_go: LetsNoNextGo by behind::the_end_of_a_head_lets_the_next_go, behind::races_leave_no_row_without_a_head;
        keeps_followers_taken: KeepsFollowersTaken by behind::a_row_that_waits_again_keeps_what_is_behind_it;
        denies_that_anything_waits: DeniesThatAnythingWaits by behind::what_is_behind_a_row_runs_after_it;
        puts_aside_twice: PutsAsideTwice by later::a_message_that_waits_is_one_row;
        shares_hash_rules: SharesHashRules by consumers::hash_rule_ids_are_stable_and_distinct,
            consumers::an_unknown_hash_rule_is_a_conflict_of_its_own_kind;
        uncounts_nothing: UncountsNothing by failures::an_attempt_can_be_taken_back;
    }

    /// J61: the sequences alone see each of these, even without the cases.
    macro_rules! the_twin_sees {
        ($($test:ident: $defect:ident;)+) => {$(
            #[test]
            fn $test() {
                let broken = || async { Subject(Arc::new(MemoryStore::with_defect(Defect::$defect))) };
                let run = || suite::run("sequences", broken, async |subject| suite::twin::sequences(subject, 0..200).await);
                let red = catch_unwind(AssertUnwindSafe(run)).unwrap_err();
                let told = red.downcast_ref::<String>().unwrap();
                assert!(told.contains("differ"), "{told}");
            }
        )+};
    }

    the_twin_sees! {
        the_twin_sees_answers_in_another_order: AnswersClaimsInReverse;
        the_twin_sees_bindings_that_bind_nothing: BindsNothing;
        the_twin_sees_cleanup_of_live_records: CleansLiveRecords;
        the_twin_sees_counts_by_key: CountsAttemptsByKey;
        the_twin_sees_counts_that_go_on: CountsOnWhenSetAside;
        the_twin_sees_expired_records_that_do_not_count: ExpiredCountsAsGone;
        the_twin_sees_what_is_not_committed: FindsUncommitted;
        the_twin_sees_folded_keys: FoldsKeys;
        the_twin_sees_lost_effects: LosesEffects;
        the_twin_sees_shared_scopes: IgnoresScopes;
        the_twin_sees_dead_letters_by_origin: StoresByOrigin;
        the_twin_sees_copies_as_rows: ParksEveryCopy;
        the_twin_sees_effects_outside: PutsEffectsOutside;
        the_twin_sees_records_outside: RecordsOutside;
        the_twin_sees_replays_that_are_taken_twice: ReplaysTwice;
        the_twin_sees_shared_hash_rules: SharesHashRules;
        the_twin_sees_attempts_that_are_not_taken_back: UncountsNothing;
        the_twin_sees_lost_events: LosesEvents;
        the_twin_sees_events_outside: PutsEventsOutside;
        the_twin_sees_events_by_key_alone: EventsByKeyAlone;
        the_twin_sees_events_that_overtake: EventsOvertake;
        the_twin_sees_leases_to_all: LeasesToAll;
        the_twin_sees_events_settled_by_number_alone: SettlesByNumberAlone;
        the_twin_sees_events_read_by_number: ScansByNumber;
        the_twin_sees_lost_results: LosesResults;
        the_twin_sees_results_by_key_alone: ResultsByKeyAlone;
        the_twin_sees_forgotten_hashes: ForgetsHashes;
    }
}
