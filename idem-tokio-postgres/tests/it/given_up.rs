//! A54: a statement that the client has given up ends at the server too.

#[path = "../../../idem-sql/tests/shared/given_up.rs"]
mod shared;

use std::sync::Arc;

use idem_conformance::postgres::pooler::dropping_options;
use idem_core::Store as _;
use idem_tokio_postgres::{Pooler, PostgresOptions};

use crate::{
    fixture::{Fixture, url},
    poolers::pooler,
};

async fn nothing_piles_up(fixture: &Fixture, options: PostgresOptions) {
    let store = options.answer_timeout(shared::PATIENCE).build().unwrap();
    let outbox = Arc::new(store.clone()).outbox().unwrap();
    let session = fixture.connect().await;
    let blocker = async |text| session.batch_execute(text).await.unwrap();
    let until = async |query: String| fixture.until(&query).await;
    shared::nothing_piles_up(&*outbox, &fixture.schema.quoted(), blocker, until).await;
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
    nothing_piles_up(&fixture, fixture.options_of(options).pooler(Pooler::Transaction)).await;
    fixture.drop_pooled().await;
}

/// A pooler that drops the session's limit without a word is found out, and it is no matter.
#[tokio::test]
async fn a54_a_limit_that_a_pooler_drops_is_each_transactions() {
    let fixture = Fixture::new().await;
    let pooler = dropping_options(fixture.authority()).await;
    let config = url().replace(&fixture.authority(), &pooler.to_string()).parse().unwrap();
    nothing_piles_up(&fixture, fixture.options_of(config)).await;
    fixture.drop().await;
}
