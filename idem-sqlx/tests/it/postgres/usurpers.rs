//! S11, S15: nothing that another role puts into a schema of the search_path takes a statement of idem's over.

#[path = "../../../../idem-schema/tests/shared/usurpers.rs"]
mod shared;

use std::{sync::Arc, time::Duration};

use idem_core::{
    Cleanup, CleanupSettings, ControlState, DeadLetterId, Store as _,
    store::{AuditEntry, Bookkeeping as _, Claimed, Expiring, Removal, UnitOfWork as _},
};
use idem_schema::PostgresStatements;
use sqlx::AssertSqlSafe;

use super::{
    consumers::{Write, claim_of, consumer, keys, messages, msg, options, process},
    fixture::Fixture,
};

/// S11: an operator that fits better had the claim write an expiry of yesterday, so that cleanup took fresh records.
#[tokio::test]
async fn s11_an_expiry_is_not_another_roles_to_say() {
    let fixture = Fixture::new().await;
    let operator =
        "CREATE FUNCTION yesterday(bigint, interval) RETURNS interval LANGUAGE sql AS $$ SELECT interval '-1 day' $$;
        CREATE OPERATOR * (LEFTARG = bigint, RIGHTARG = interval, FUNCTION = yesterday)";
    fixture.run(operator).await;
    let consumer = consumer(fixture.store.clone(), Write);
    assert_eq!(process(&consumer, vec![msg("a")]).await + &process(&consumer, vec![msg("b"), msg("c")]).await, "PPP");
    let expired = "SELECT count(*) FROM processed_messages WHERE expires_at < now() + interval '1 day'";
    assert_eq!(fixture.text(expired).await, "0");
    fixture.drop().await;
}

/// S11: whatever name a statement uses, and whatever types it is given, the server's own is taken.
#[tokio::test]
async fn s11_no_statement_can_be_taken_over() {
    let fixture = Fixture::new().await;
    let statements = PostgresStatements::new(&fixture.schema);
    fixture.run(shared::usurpers(fixture.schema.as_str(), statements.all().map(|(_, text)| text))).await;
    let mut connection = fixture.connect().await;
    let planted: i64 =
        sqlx::query_scalar("SELECT count(*) FROM pg_operator WHERE oprnamespace = current_schema()::regnamespace::oid")
            .fetch_one(&mut connection)
            .await
            .unwrap();
    assert!(planted > 500, "{planted}");
    for (name, text) in statements.all() {
        let prepared = sqlx::raw_sql(AssertSqlSafe(format!("PREPARE {name} AS {text}"))).execute(&mut connection).await;
        prepared.unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    live(&fixture).await;
    fixture.drop().await;
}

/// S11: what idem's own functions call is not the caller's search_path to say.
#[tokio::test]
async fn s11_every_function_has_a_search_path_of_its_own() {
    let fixture = Fixture::new().await;
    let without = "SELECT proname FROM pg_proc WHERE pronamespace = current_schema()::regnamespace
        AND coalesce(array_to_string(proconfig, ' '), '') NOT LIKE '%search_path=pg_catalog, pg_temp'";
    assert!(fixture.texts(without).await.is_empty(), "{:?}", fixture.texts(without).await);
    fixture.drop().await;
}

/// A worker's life: everything that a store is asked to do.
async fn live(fixture: &Fixture) {
    let store = &fixture.store;
    store.bookkeeping().verify().await.unwrap();
    let working = consumer(store.clone(), Write);
    assert_eq!(process(&working, messages(&keys(3))).await, "PPP");
    assert_eq!(process(&working, messages(&keys(4))).await, "DDDP");
    let (claim, run) = claim_of(store, "other").await;
    assert_eq!(store.bookkeeping().count_attempt(claim.scope, &claim.key, claim.hash).await.unwrap(), 1);
    store.bookkeeping().uncount_attempt(claim.scope, &claim.key, claim.hash).await.unwrap();
    store.bookkeeping().end_attempts(claim.scope, &claim.key, claim.hash).await.unwrap();
    let name = idem_core::ConsumerName::new("by-hand").unwrap();
    assert!(store.bookkeeping().dead_letters(&name, 10).await.unwrap().is_empty());
    assert_eq!(store.bookkeeping().request_replay(&[DeadLetterId(1)]).await.unwrap(), 0);
    assert!(store.bookkeeping().take_replays(&name, run, 5).await.unwrap().is_empty());
    store.bookkeeping().set_control(claim.scope, ControlState::Paused, "ada", "a look").await.unwrap();
    assert_eq!(store.bookkeeping().control(claim.scope).await.unwrap().state, ControlState::Paused);
    let entry = AuditEntry::new("ada".to_owned(), "start", claim.scope, String::new());
    store.bookkeeping().audit(&entry).await.unwrap();
    let mut cleaner = Arc::new(store.clone()).cleaner();
    assert!(cleaner.may_delete().await.unwrap());
    cleaner.preview(&CleanupSettings::default()).await.unwrap();
    cleaner.backlog().await.unwrap();
    cleaner.last().await.unwrap();
    for kind in Expiring::ALL {
        let removal = Removal { kind, kept: Duration::from_secs(60), rows_max: 10, timeout: Duration::from_secs(30) };
        cleaner.remove(&removal).await.unwrap();
    }
    let mut cycle = Cleanup::new(cleaner, CleanupSettings::default()).unwrap();
    cycle.cycle().await.unwrap();
}

/// S15: where a claim is made to deny what it inserted, its own rows are no duplicates.
#[tokio::test]
async fn s15_what_a_unit_has_inserted_itself_is_no_duplicate() {
    let fixture = Fixture::new().await;
    let store = &fixture.store;
    let (claim, run) = claim_of(store, "a").await;
    let mut lane = store.open().await.unwrap();
    let mut unit = store.begin(&mut lane, options(run, Duration::from_secs(5))).await.unwrap();
    let claims = [claim];
    assert_eq!(unit.claim(&claims).await.unwrap(), [Claimed::Inserted]);
    assert_eq!(unit.read(&claims).await.unwrap(), [None]);
    unit.commit().await.unwrap();
    let mut unit = store.begin(&mut lane, options(run, Duration::from_secs(5))).await.unwrap();
    assert_eq!(unit.claim(&claims).await.unwrap(), [Claimed::NotInserted]);
    assert!(unit.read(&claims).await.unwrap()[0].is_some(), "once it is committed, it is one");
    unit.rollback().await.unwrap();
    fixture.drop().await;
}
