//! A54: what the client has given up ends at the server too.

use std::{sync::Arc, time::Duration};

use idem_core::{
    Store as _, StoreError,
    outbox::{EventEnd, EventNumber, Outbox},
};
use idem_testkit::conformance::postgres::pooler::dropping_options;
use idem_tokio_postgres::{PostgresOptions, Statements};

use crate::{
    fixture::{Fixture, authority, url},
    poolers::pooler,
};

/// Ten times somebody waits for a row that another session has locked, and gives up: while it is still locked, no session waits
/// for it any more.
async fn nothing_piles_up(fixture: &Fixture, options: PostgresOptions) {
    let store = options.answer_timeout(Duration::from_millis(300)).build().unwrap();
    let outbox: Arc<dyn Outbox> = Arc::new(store.clone()).outbox().unwrap();
    let id = outbox.declare(&["payments".into()]).await.unwrap()[0];
    let blocker = fixture.connect().await;
    blocker.batch_execute("BEGIN; SELECT FROM outbox_destinations FOR UPDATE").await.unwrap();
    let ends = [(EventNumber(1), EventEnd::Published)];
    for _ in 0..10 {
        let (settled, leased) =
            tokio::join!(outbox.settle(id, &ends), outbox.lease(id, "relay", Duration::from_secs(1)));
        assert!(matches!(settled, Err(StoreError::Unavailable { .. })), "{settled:?}");
        assert!(matches!(leased, Err(StoreError::Unavailable { .. })), "{leased:?}");
    }
    let waiting = "SELECT count(*) = 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
    fixture.until(&format!("{waiting} AND query LIKE '%{}%'", fixture.schema.quoted())).await;
    blocker.batch_execute("ROLLBACK").await.unwrap();
    outbox.settle(id, &ends).await.unwrap();
    store.disconnect().await;
}

#[tokio::test]
async fn a54_a_statement_that_was_given_up_ends_at_the_server() {
    let fixture = Fixture::new().await;
    nothing_piles_up(&fixture, fixture.options()).await;
    fixture.drop().await;
}

#[tokio::test]
async fn a54_a_statement_that_was_given_up_ends_behind_a_pooler() {
    let fixture = Fixture::new().await;
    let options = fixture.pooled(pooler()).await;
    nothing_piles_up(&fixture, fixture.options_of(options).statements(Statements::Unnamed)).await;
    fixture.drop_pooled().await;
}

/// A pooler that drops the session's limit without a word is found out, and it is no matter.
#[tokio::test]
async fn a54_a_limit_that_a_pooler_drops_is_each_transactions() {
    let fixture = Fixture::new().await;
    let pooler = dropping_options(authority()).await;
    let config = url().replace(&authority(), &pooler.to_string()).parse().unwrap();
    nothing_piles_up(&fixture, fixture.options_of(config)).await;
    fixture.drop().await;
}
