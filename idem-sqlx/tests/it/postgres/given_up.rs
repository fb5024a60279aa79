//! A54: what the client has given up ends at the server too.

use std::{sync::Arc, time::Duration};

use idem_core::{
    Store as _, StoreError,
    outbox::{EventEnd, EventNumber, Outbox},
};
use idem_sqlx::{PostgresOptions, Statements};
use idem_testkit::conformance::postgres::pooler::dropping_options;
use sqlx::postgres::PgSslMode;

use super::{fixture::Fixture, poolers::pooler};

/// Ten times somebody waits for a row that another session has locked, and gives up: while it is still locked, no session waits
/// for it any more.
async fn nothing_piles_up(fixture: &Fixture, options: PostgresOptions) {
    let store = options.answer_timeout(Duration::from_millis(300)).build().unwrap();
    let outbox: Arc<dyn Outbox> = Arc::new(store.clone()).outbox().unwrap();
    let id = outbox.declare(&["payments".into()]).await.unwrap()[0];
    let mut blocker = fixture.connect().await;
    sqlx::raw_sql("BEGIN; SELECT FROM outbox_destinations FOR UPDATE").execute(&mut blocker).await.unwrap();
    let ends = [(EventNumber(1), EventEnd::Published)];
    for _ in 0..10 {
        let (settled, leased) =
            tokio::join!(outbox.settle(id, &ends), outbox.lease(id, "relay", Duration::from_secs(1)));
        assert!(matches!(settled, Err(StoreError::Unavailable { .. })), "{settled:?}");
        assert!(matches!(leased, Err(StoreError::Unavailable { .. })), "{leased:?}");
    }
    let waiting = "SELECT count(*) = 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
    fixture.until(&format!("{waiting} AND query LIKE '%{}%'", fixture.schema.quoted())).await;
    sqlx::raw_sql("ROLLBACK").execute(&mut blocker).await.unwrap();
    outbox.settle(id, &ends).await.unwrap();
    store.disconnect().await;
}

#[tokio::test]
async fn a54_a_statement_that_was_given_up_ends_at_the_server() {
    let fixture = Fixture::new().await;
    for statements in [Statements::Named, Statements::Unnamed] {
        nothing_piles_up(&fixture, fixture.options().statements(statements)).await;
    }
    fixture.drop().await;
}

#[tokio::test]
async fn a54_a_statement_that_was_given_up_ends_behind_a_pooler() {
    let fixture = Fixture::new().await;
    let options = pooler().username(&fixture.pooled().await);
    nothing_piles_up(&fixture, fixture.options_of(options).statements(Statements::Unnamed)).await;
    fixture.drop_pooled().await;
}

/// Where a pooler refuses a session's own limit, each transaction has one.
#[tokio::test]
async fn a54_a_limit_that_no_session_can_have_is_each_transactions() {
    let fixture = Fixture::new().await;
    // As if there were no pooler, so that the limit is asked for with the connection.
    let options = pooler().extra_float_digits(None).username(&fixture.pooled().await);
    nothing_piles_up(&fixture, fixture.options_of(options)).await;
    fixture.drop_pooled().await;
}

/// A pooler that drops the session's limit without a word is found out, and it is no matter.
#[tokio::test]
async fn a54_a_limit_that_a_pooler_drops_is_each_transactions() {
    let fixture = Fixture::new().await;
    let direct = fixture.connection.clone();
    let pooler = dropping_options(format!("{}:{}", direct.get_host(), direct.get_port())).await;
    let options = direct.host(&pooler.ip().to_string()).port(pooler.port()).ssl_mode(PgSslMode::Disable);
    nothing_piles_up(&fixture, fixture.options_of(options)).await;
    fixture.drop().await;
}
