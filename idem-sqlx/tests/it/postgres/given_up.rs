//! A54: a statement that the client has given up ends at the server too.

#[path = "../../../../idem-sql/tests/shared/given_up.rs"]
mod shared;

use std::sync::Arc;

use idem_conformance::postgres::pooler::dropping_options;
use idem_core::Store as _;
use idem_sqlx::{Pooler, PostgresOptions};
use sqlx::postgres::PgSslMode;

use super::{fixture::Fixture, poolers::pooler};

async fn nothing_piles_up(fixture: &Fixture, options: PostgresOptions) {
    let store = options.answer_timeout(shared::PATIENCE).build().unwrap();
    let outbox = Arc::new(store.clone()).outbox().unwrap();
    let mut session = fixture.connect().await;
    let blocker = async |text| {
        sqlx::raw_sql(text).execute(&mut session).await.unwrap();
    };
    let until = async |query: String| fixture.until(&query).await;
    shared::nothing_piles_up(&*outbox, &fixture.schema.quoted(), blocker, until).await;
    store.disconnect().await;
}

#[tokio::test]
async fn a54_a_statement_that_was_given_up_ends_at_the_server() {
    let fixture = Fixture::new().await;
    for pooler in [Pooler::None, Pooler::Transaction] {
        nothing_piles_up(&fixture, fixture.options().pooler(pooler)).await;
    }
    fixture.drop().await;
}

#[tokio::test]
async fn a54_a_statement_that_was_given_up_ends_behind_a_pooler() {
    let fixture = Fixture::new().await;
    let options = pooler().username(&fixture.pooled().await);
    nothing_piles_up(&fixture, fixture.options_of(options).pooler(Pooler::Transaction)).await;
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
