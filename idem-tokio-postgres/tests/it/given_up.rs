//! A54: what the client has given up ends at the server too.

#[path = "../../../idem-schema/tests/shared/given_up.rs"]
mod shared;

use std::sync::Arc;

use idem_core::Store as _;
use idem_tokio_postgres::{PostgresOptions, Statements};

use crate::{fixture::Fixture, poolers::pooler};

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
    nothing_piles_up(&fixture, fixture.options_of(options).statements(Statements::Unnamed)).await;
    fixture.drop_pooled().await;
}
