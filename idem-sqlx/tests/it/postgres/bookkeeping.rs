//! Operations outside of units of work.

use std::{future::Future, pin::pin, task::Poll, time::Duration};

use idem_core::{
    ConsumerName, ErrorClass, IdempotencyKey, Message, Store as _, StoreError, Tenant,
    dead_letter::{DeadLetter, FailureKind, Fingerprint, Reason},
    hash::PayloadHash,
    message::Origin,
    store::{AuditEntry, Bookkeeping as _, Control, ControlState, Registration},
};
use idem_sqlx::PostgresStore;

use super::{
    consumers::{Write, builder, claim_of, msg, process},
    fixture::{Fixture, PATIENCE},
};

/// Polls a future this often, each time it asks for it, and drops it, answered or not.
async fn poll_and_drop(polls: usize, future: impl Future) {
    let mut future = pin!(future);
    let mut left = polls;
    std::future::poll_fn(|context| {
        left -= 1;
        let is_over = future.as_mut().poll(context).is_ready() || left == 0;
        if is_over { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// A call that was dropped anywhere leaves no transaction open and no connection in an unknown state.
#[tokio::test]
async fn a15_calls_dropped_at_every_poll_poison_no_connection() {
    let fixture = Fixture::new().await;
    let open = format!(
        "SELECT count(*) = 0 FROM pg_stat_activity WHERE application_name = '{}' AND state LIKE 'idle in transaction%'",
        fixture.schema
    );
    for pooler in [idem_sqlx::Pooler::None, idem_sqlx::Pooler::Transaction] {
        let store =
            fixture.options().pooler(pooler).connections(1).application_name(fixture.schema.as_str()).build().unwrap();
        let (claim, _) = claim_of(&store, "a").await;
        for polls in 1..40 {
            poll_and_drop(polls, store.bookkeeping().count_attempt(claim.scope, &claim.key, claim.hash)).await;
            // Nothing sits in a forgotten transaction, which the next caller's statements would become a part of.
            fixture.until(&open).await;
            let key = IdempotencyKey::new(&format!("{pooler:?}-{polls}")).unwrap();
            assert_eq!(store.bookkeeping().count_attempt(claim.scope, &key, claim.hash).await.unwrap(), 1);
            let control: Control = store.bookkeeping().control(claim.scope).await.unwrap();
            assert_eq!(control.state, ControlState::Running);
        }
        // An answered operation is committed: nothing waits in a forgotten transaction.
        let query = format!("SELECT count(*) FROM message_attempts WHERE idempotency_key LIKE '{pooler:?}-%'");
        assert_eq!(fixture.text(query).await, "39");
        store.disconnect().await;
    }
    fixture.drop().await;
}

/// A server that does not answer holds a call up for as long as was set, not for ever.
#[tokio::test]
async fn every_call_is_bounded_in_time() {
    let fixture = Fixture::new().await;
    let hasty = fixture.options().answer_timeout(Duration::from_millis(300)).build().unwrap();
    let (claim, _) = claim_of(&fixture.store, "a").await;
    let mut blocker = fixture.connect().await;
    sqlx::raw_sql("BEGIN; LOCK TABLE message_attempts").execute(&mut blocker).await.unwrap();
    let count =
        async |store: &PostgresStore| store.bookkeeping().count_attempt(claim.scope, &claim.key, claim.hash).await;
    let answer = tokio::time::timeout(PATIENCE, count(&hasty)).await.expect("an answer in bounded time");
    assert!(matches!(answer, Err(StoreError::Unavailable { .. })), "{answer:?}");
    sqlx::raw_sql("ROLLBACK").execute(&mut blocker).await.unwrap();
    assert!(count(&fixture.store).await.unwrap() >= 1);
    fixture.drop().await;
}

/// PostgreSQL stores no NUL in a text; a dead letter is stored all the same.
#[tokio::test]
async fn b10_texts_with_nul_are_stored() {
    let fixture = Fixture::new().await;
    let (claim, _) = claim_of(&fixture.store, "a").await;
    let message = Message::new("x\0y").with_origin(Origin::new("q/\0/1")).with_id("i\0").with_type("t\0");
    let letter = DeadLetter {
        consumer: idem_core::ConsumerName::new("ledger").unwrap(),
        scope: claim.scope,
        message: message.with_header("h\0", "v\0"),
        key: Some(claim.key.clone()),
        hash: Some((PayloadHash::of(b"x"), claim.hash_rule)),
        reason: Reason::Permanent,
        attempts: 1,
        error: "e\0".to_owned(),
        fingerprint: Fingerprint::of(&FailureKind::new(Reason::Permanent, ErrorClass::Permanent)),
        keep_payload: true,
        payload_omitted: None,
    };
    let stored = fixture.store.bookkeeping().store_dead_letter(&letter).await.unwrap();
    assert_eq!(stored.error, "e\u{fffd}");
    assert_eq!(fixture.store.bookkeeping().store_dead_letter(&letter).await.unwrap().id, stored.id);
    let entry = AuditEntry::new("w\0".to_owned(), "conflict", claim.scope, "d\0".to_owned());
    fixture.store.bookkeeping().audit(&entry).await.unwrap();
    fixture.store.bookkeeping().set_control(claim.scope, ControlState::Paused, "b\0", "r\0").await.unwrap();
    assert_eq!(fixture.store.bookkeeping().control(claim.scope).await.unwrap().by, "b\u{fffd}");
    fixture.drop().await;
}

/// J63: a standby took over that had not received the rows of the consumer and its tenants, and another worker asks for them in
/// another order. The worker that goes on by the numbers that it remembers and the other one keep each tenant's keys as one.
#[tokio::test]
async fn j63_a_failover_that_loses_what_tenants_are_called_mixes_none_up() {
    let fixture = Fixture::new().await;
    let of_header = |message: &Message| message.headers().text("tenant").map(|name| Tenant::new(name).unwrap());
    let build = || builder(fixture.another(), Write).tenant_from(of_header).build().unwrap();
    let of = |tenant: &str, key: &str| msg(key).with_header("tenant", tenant.to_owned());
    let goes_on = build();
    let first = vec![of("acme", "order-1"), of("globex", "order-2")];
    assert_eq!(process(&goes_on, first).await, "PP");
    fixture.run("DELETE FROM consumers; SELECT setval(pg_get_serial_sequence('consumers', 'id'), 1, false)").await;
    let other = build();
    // Its first tenant is the other's second, and a new one.
    let messages = vec![of("globex", "order-2"), of("initech", "order-1"), of("acme", "order-1")];
    assert_eq!(process(&other, messages).await, "DPD");
    let messages = vec![of("acme", "order-1"), of("globex", "order-1"), of("initech", "order-1")];
    assert_eq!(process(&goes_on, messages).await, "DPD");
    assert_eq!(fixture.effects().await.len(), 4);
    fixture.drop().await;
}

/// J63: a worker that goes on after its consumer's row was lost registers it again for the first tenant that is new to it.
#[tokio::test]
async fn j63_a_consumer_whose_row_was_lost_is_registered_again() {
    let fixture = Fixture::new().await;
    let of_header = |message: &Message| message.headers().text("tenant").map(|name| Tenant::new(name).unwrap());
    let consumer = builder(fixture.another(), Write).tenant_from(of_header).build().unwrap();
    let of = |tenant: &str| msg("order-1").with_header("tenant", tenant.to_owned());
    assert_eq!(process(&consumer, vec![of("acme")]).await, "P");
    let before = fixture.texts("SELECT id::text FROM consumers WHERE tenant = ''").await;
    fixture.run("DELETE FROM consumers").await;
    assert_eq!(process(&consumer, vec![of("globex"), of("acme")]).await, "PD");
    assert_eq!(fixture.texts("SELECT id::text FROM consumers WHERE tenant = ''").await, before);
    fixture.drop().await;
}

/// O78: after a restore from before its rename, a consumer begins anew on the source of the one that it was.
#[tokio::test]
async fn o78_a_second_consumer_of_one_source_is_warned_of() {
    let fixture = Fixture::new().await;
    let store = &fixture.store;
    let of = |name: &str, source: &str| {
        let (name, rules) = (ConsumerName::new(name).unwrap(), vec!["raw/1".to_owned()]);
        let registration =
            Registration::new(name, Tenant::default(), "header".to_owned(), rules, idem_core::Retention::Forever);
        registration.bound_to(Some(source.to_owned()))
    };
    let is_told = async |name: &str, source: &str| {
        let registered = store.bookkeeping().register(&of(name, source)).await.unwrap();
        registered.warnings.iter().any(|warning| warning.contains("consumer orders is bound to memory/q1 too"))
    };
    assert!(!is_told("orders", "memory/q1").await);
    assert!(!is_told("orders", "memory/q1").await, "it is the only one");
    assert!(!is_told("mails", "memory/q2").await, "it has another source");
    assert!(is_told("purchases", "memory/q1").await);
    fixture.drop().await;
}
