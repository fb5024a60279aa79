//! Each statement of `repeats`, `outcomes`, `layer` and `ask` on each store.

macro_rules! on {
    ($store:ident, $ground:ident, $($module:ident :: $test:ident),* $(,)?) => {
        mod $store {
            $(
                #[tokio::test]
                async fn $test() {
                    crate::server::$module::$test::<crate::server::grounds::$ground>().await;
                }
            )*
        }
    };
}

macro_rules! on_every_store {
    ($($module:ident :: $test:ident),* $(,)?) => {
        on!(memory, Memory, $($module::$test),*);
        on!(sqlite, Sqlite, $($module::$test),*);
        on!(postgres, Postgres, $($module::$test),*);
        on!(tokio_postgres, TokioPostgres, $($module::$test),*);
    };
}

on_every_store!(
    repeats::w1_a_lost_answer_is_given_again,
    repeats::w2_three_at_once_have_one_effect_and_one_answer,
    repeats::w2_who_does_not_wait_is_told_that_it_runs,
    repeats::w3_what_was_begun_ends_without_its_client,
    repeats::w135_requests_without_a_client_can_be_waited_for,
    repeats::w4_another_request_is_no_repeat,
    repeats::w5_malformed_keys_have_no_effect,
    repeats::w6_a_repeat_gets_no_cookie,
    repeats::w7_another_instance_gives_the_same_answer,
    repeats::w11_a_repeat_gets_the_answer_of_the_old_handler,
    outcomes::w15_what_becomes_of_each_answer,
    outcomes::w12_a_response_that_cannot_be_kept_has_no_effect,
    outcomes::w23_a_refusal_is_repeated_and_its_effect_is_not_there,
    layer::w24_a_handler_of_axum_has_its_effect_once,
    layer::w24_a_handler_without_its_transaction_is_told,
    layer::w24_an_extractor_refuses_and_nothing_is_kept,
    layer::w15_a_failed_step_says_whether_to_come_again,
    layer::w30_a_handler_is_told_its_key_and_derives_others,
    layer::w3_a_handler_of_axum_ends_without_its_client,
    layer::w88_events_with_their_requests_keys_stay_apart,
    layer::w9_a_response_that_does_not_end_has_no_effect,
    held::w190_a_transaction_in_a_task_is_not_committed,
    held::w191_a_transaction_in_the_body_is_committed,
    held::w192_two_extractors_are_refused,
    held::w194_a_client_that_is_gone_takes_no_transaction_with_it,
    ask::w21_a_key_can_be_asked_about,
    ask::w156_what_is_told_is_of_the_operation_that_is_asked_about,
    both::w100_a_first_use_on_two_servers_at_once,
    both::w101_a_client_goes_away_in_each_phase,
);

mod searched {
    use super::super::{both::w25_a_request_stands_nowhere_but_in_its_answer, grounds::*};

    #[tokio::test]
    async fn w25_on_postgres() {
        w25_a_request_stands_nowhere_but_in_its_answer::<Postgres>().await;
    }

    #[tokio::test]
    async fn w25_on_tokio_postgres() {
        w25_a_request_stands_nowhere_but_in_its_answer::<TokioPostgres>().await;
    }

    #[tokio::test]
    async fn w25_on_sqlite() {
        w25_a_request_stands_nowhere_but_in_its_answer::<Sqlite>().await;
    }
}

on!(known_event_postgres, Postgres, layer::o6_o7_a_request_meets_its_event_in_the_outbox);
on!(known_event_tokio_postgres, TokioPostgres, layer::o6_o7_a_request_meets_its_event_in_the_outbox);
on!(locked_postgres, Postgres, outcomes::w139_a_locked_table_says_nothing_about_a_key);
on!(locked_tokio_postgres, TokioPostgres, outcomes::w139_a_locked_table_says_nothing_about_a_key);

mod in_a_statement {
    use super::super::{grounds::*, held::w193_a_handler_dropped_in_a_statement_frees_its_key};

    #[tokio::test]
    async fn w193_on_postgres() {
        w193_a_handler_dropped_in_a_statement_frees_its_key::<Postgres>("SELECT pg_sleep(300)").await;
    }

    #[tokio::test]
    async fn w193_on_tokio_postgres() {
        w193_a_handler_dropped_in_a_statement_frees_its_key::<TokioPostgres>("SELECT pg_sleep(300)").await;
    }

    #[tokio::test]
    async fn w193_on_sqlite() {
        let endless = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n";
        w193_a_handler_dropped_in_a_statement_frees_its_key::<Sqlite>(endless).await;
    }
}

mod with_foreign_keys {
    use super::super::{grounds::*, outcomes::w90_a_broken_reference_ends};

    #[tokio::test]
    async fn w90_on_sqlite() {
        w90_a_broken_reference_ends::<Sqlite>().await;
    }

    #[tokio::test]
    async fn w90_on_postgres() {
        w90_a_broken_reference_ends::<Postgres>().await;
    }

    #[tokio::test]
    async fn w90_on_tokio_postgres() {
        w90_a_broken_reference_ends::<TokioPostgres>().await;
    }
}
