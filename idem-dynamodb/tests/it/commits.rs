//! Requests that are lost, late, refused or in each other's way: an effect is there once or not at all, and the store knows which.

use std::{sync::Arc, time::Duration};

use idem_core::{
    Decision, ErrorClass, IdempotencyKey, Retention, Store as _, StoreError,
    hash::PayloadHash,
    store::{
        Bookkeeping as _, Claim, ClaimError, Claimed, CommitError, Registered, Registration, UnitOfWork as _,
        UnitOptions,
    },
};
use idem_dynamodb::{DynamoStore, DynamoUnit};
use idem_testkit::{message, proxy::dynamodb::DynamoFault};

use super::fixture::{Table, buy, string};

const COMMIT: &str = "TransactWriteItems";
const CLAIM: &str = "UpdateItem";
const MS: Duration = Duration::from_millis(1);

async fn registered(table: &Table) -> Registered {
    let (consumer, tenant) = (idem_core::ConsumerName::new("purchases").unwrap(), idem_core::Tenant::default());
    let rules = vec!["raw/1".to_owned()];
    let registration = Registration::new(consumer, tenant, String::new(), rules, Retention::Forever);
    table.store.bookkeeping().register(&registration).await.unwrap()
}

fn claim(registered: &Registered, key: &str) -> Claim {
    let (key, hash) = (IdempotencyKey::new(key).unwrap(), PayloadHash::of(b"ann"));
    Claim::new(registered.scope, key, hash, registered.hash_rules[0], Retention::Forever)
}

/// A unit that has claimed this key, and whose handler has bought something for ann.
async fn claimed(store: &DynamoStore, registered: &Registered, key: &str) -> DynamoUnit {
    let options = UnitOptions::new(registered.run, 0, 300 * MS, Duration::from_secs(30)).alone(true);
    let mut unit = store.begin((), options).await.unwrap();
    assert_eq!(unit.claim(&[claim(registered, key)]).await.unwrap(), [Claimed::Inserted]);
    buy(&mut unit.tx(), "ann").unwrap();
    unit
}

async fn state_of(table: &Table) -> Vec<String> {
    table.items_of("k#").await.iter().map(|item| string(item, "st").to_owned()).collect()
}

/// The messages of the process, each of which is settled.
async fn settled(table: &Table, key: &str) {
    for _ in 0..20 {
        let decision = table.buys().process_one(message(key, "ann")).await.unwrap().decision;
        match decision {
            Decision::Processed(_) | Decision::Duplicate(..) => return,
            other => drop(other),
        }
    }
    panic!("{key} is not settled after twenty deliveries");
}

/// Y1: the answer to the commit was lost, or the commit: it is sent again with the same token, and counts once.
#[tokio::test]
async fn y1_a_commit_without_an_answer_is_repeated() {
    let table = Table::new("commits").await;
    for (number, fault) in [DynamoFault::AnswerLost, DynamoFault::Lost].into_iter().enumerate() {
        table.proxy.inject(COMMIT, fault);
        let decision = table.buys().process_one(message(&format!("order-{number}"), "ann")).await.unwrap().decision;
        assert!(matches!(decision, Decision::Processed(_)), "{decision:?}");
        assert_eq!(table.proxy.left(), 0);
        assert_eq!(table.ledger("ann").await, (number as i64 + 1, number + 1));
    }
    table.drop().await;
}

/// Y5: the first try is still being decided when the second arrives.
#[tokio::test]
async fn y5_a_commit_that_is_in_progress_is_repeated() {
    let table = Table::new("commits").await;
    table.proxy.inject(COMMIT, DynamoFault::AnswerLost);
    table.proxy.inject(COMMIT, DynamoFault::Refused("TransactionInProgressException"));
    table.proxy.inject(COMMIT, DynamoFault::Refused("InternalServerError"));
    let decision = table.buys().process_one(message("order-1", "ann")).await.unwrap().decision;
    assert!(matches!(decision, Decision::Processed(_)), "{decision:?}");
    assert_eq!((table.proxy.left(), table.ledger("ann").await), (0, (1, 1)));
    table.drop().await;
}

/// Y14: no answer comes. One write decides that the commit never happens, and it has no effect when it arrives after that.
#[tokio::test]
async fn y14_a_commit_that_arrives_after_its_fence_has_no_effect() {
    let table = Table::with("commits", |options| options.commit_within(300 * MS)).await;
    let registered = registered(&table).await;
    (0..50).for_each(|_| table.proxy.inject(COMMIT, DynamoFault::Late(1_500 * MS)));
    let unit = claimed(&table.store, &registered, "order-1").await;
    let (_, committed) = unit.commit().await;
    assert!(matches!(committed, Err(CommitError::RolledBack(StoreError::Contended { .. }))), "{committed:?}");
    assert!(table.proxy.left() < 50);
    assert_eq!(state_of(&table).await, ["A"]);
    tokio::time::sleep(2_500 * MS).await;
    assert_eq!((table.ledger("ann").await, state_of(&table).await), ((0, 0), vec!["A".to_owned()]));
    while table.proxy.left() > 0 {
        drop(table.buys().process_one(message("order-1", "ann")).await.unwrap());
    }
    settled(&table, "order-1").await;
    tokio::time::sleep(2_000 * MS).await;
    assert_eq!((table.ledger("ann").await, state_of(&table).await), ((1, 1), vec!["C".to_owned()]));
    table.drop().await;
}

/// Y14: the commit had happened, and the same write finds that.
#[tokio::test]
async fn y14_a_fence_finds_a_commit_that_has_happened() {
    let table = Table::with("commits", |options| options.commit_within(300 * MS)).await;
    let registered = registered(&table).await;
    (0..50).for_each(|_| table.proxy.inject(COMMIT, DynamoFault::AnswerLost));
    let (_, committed) = claimed(&table.store, &registered, "order-1").await.commit().await;
    assert!(committed.is_ok(), "{committed:?}");
    assert_eq!((table.ledger("ann").await, state_of(&table).await), ((1, 1), vec!["C".to_owned()]));
    table.drop().await;
}

/// A7: DynamoDB does not answer at all. The outcome is unknown, and the next claim finds it once the lease has ended.
#[tokio::test]
async fn a7_an_outcome_that_nothing_decides_is_unknown() {
    let table = Table::with("commits", |options| options.commit_within(300 * MS).lease(500 * MS)).await;
    let registered = registered(&table).await;
    for (key, at_commit) in [("order-1", DynamoFault::Lost), ("order-2", DynamoFault::AnswerLost)] {
        let unit = claimed(&table.store, &registered, key).await;
        table.proxy.always(Some(at_commit));
        let (session, committed) = unit.commit().await;
        table.proxy.always(None);
        assert!(session.is_none() && matches!(committed, Err(CommitError::Unknown(_))), "{committed:?}");
        settled(&table, key).await;
    }
    assert_eq!((table.ledger("ann").await, state_of(&table).await.concat()), ((2, 2), "CC".to_owned()));
    table.drop().await;
}

/// L25: the answer to a claim was lost: the unit knows it by its own token, and does not wait.
#[tokio::test]
async fn l25_a_claim_whose_answer_was_lost_is_known_by_its_token() {
    let table = Table::new("commits").await;
    let registered = registered(&table).await;
    table.proxy.inject(CLAIM, DynamoFault::AnswerLost);
    let (_, committed) = claimed(&table.store, &registered, "order-1").await.commit().await;
    assert!(committed.is_ok(), "{committed:?}");
    assert_eq!(table.ledger("ann").await, (1, 1));
    table.drop().await;
}

/// Y14: a claim whose caller has given up arrives late. It holds its key until its lease ends, and has no effect.
#[tokio::test]
async fn y14_a_claim_that_arrives_late_has_no_effect() {
    let table = Table::with("commits", |options| options.lease(500 * MS)).await;
    let registered = registered(&table).await;
    (0..4).for_each(|_| table.proxy.inject(CLAIM, DynamoFault::Late(300 * MS)));
    let options = UnitOptions::new(registered.run, 0, 300 * MS, Duration::from_secs(30));
    let mut unit = table.store.begin((), options).await.unwrap();
    let answer = unit.claim(&[claim(&registered, "order-1")]).await;
    assert!(matches!(answer, Err(ClaimError::Store(StoreError::Unavailable { .. }))), "{answer:?}");
    drop(unit.rollback().await);
    settled(&table, "order-1").await;
    tokio::time::sleep(600 * MS).await;
    assert_eq!((table.ledger("ann").await, state_of(&table).await), ((1, 1), vec!["C".to_owned()]));
    table.drop().await;
}

/// Y4: a handler that takes longer than its lease has a twin beside it. Whichever commits first, the other one's transaction is refused.
#[tokio::test]
async fn y4_of_two_units_with_one_key_one_commits() {
    let table = Table::with("commits", |options| options.lease(100 * MS)).await;
    let registered = registered(&table).await;
    for (number, holder_first) in [true, false].into_iter().enumerate() {
        let key = format!("order-{number}");
        let first = claimed(&table.store, &registered, &key).await;
        tokio::time::sleep(200 * MS).await;
        let second = claimed(&table.another(), &registered, &key).await;
        let (late, holder) = if holder_first {
            let held = second.commit().await.1;
            (first.commit().await.1, held)
        } else {
            (first.commit().await.1, second.commit().await.1)
        };
        assert!(holder.is_ok(), "the one that has the key commits: {holder:?}");
        assert!(matches!(late, Err(CommitError::RolledBack(StoreError::Contended { .. }))), "{late:?}");
        assert_eq!(table.ledger("ann").await, (number as i64 + 1, number + 1));
    }
    table.drop().await;
}

/// Y16: a commit that does not ask whether its claim is still its own turns that case red. A process has its bug from the beginning.
#[cfg(idem_bugs)]
#[test]
fn y16_a_commit_without_its_token_is_seen() {
    let case = || {
        let mut case = std::process::Command::new(std::env::current_exe().unwrap());
        case.args(["--exact", "commits::y4_of_two_units_with_one_key_one_commits"]);
        case
    };
    let ended = case().env("IDEM_BUG", "NoToken").output().unwrap();
    let said = String::from_utf8_lossy(&ended.stdout).into_owned();
    assert!(!ended.status.success() && said.contains("1 failed"), "{said}");
    assert!(case().output().unwrap().status.success(), "without the bug it is green");
}

/// Y3: transactions on one item that overlap cancel each other. The same writes are sent again, and every message counts once.
#[tokio::test(flavor = "multi_thread")]
async fn y3_transactions_on_one_item_all_commit() {
    let table = Table::new("commits").await;
    table.proxy.conflicts(true);
    table.proxy.always(Some(DynamoFault::Slow(10 * MS)));
    let consumer = Arc::new(table.buys());
    let calls: Vec<_> = (0..24)
        .map(|number| {
            let consumer = Arc::clone(&consumer);
            tokio::spawn(async move {
                consumer.process_one(message(&format!("order-{number}"), "ann")).await.unwrap().decision
            })
        })
        .collect();
    for call in calls {
        let decision = call.await.unwrap();
        assert!(matches!(decision, Decision::Processed(_)), "{decision:?}");
    }
    table.proxy.always(None);
    assert!(table.proxy.conflicts_met() > 0, "nothing has overlapped");
    assert_eq!(table.ledger("ann").await, (24, 24));
    table.drop().await;
}

/// Y7: a transaction that is cancelled for a conflict alone is sent again, without another run of the handler.
#[tokio::test]
async fn y7_a_conflict_is_repeated_without_the_handler() {
    let table = Table::new("commits").await;
    let registered = registered(&table).await;
    let before = table.proxy.requests(COMMIT);
    (0..3).for_each(|_| table.proxy.inject(COMMIT, DynamoFault::Cancelled(1, "TransactionConflict")));
    let (_, committed) = claimed(&table.store, &registered, "order-1").await.commit().await;
    assert!(committed.is_ok(), "{committed:?}");
    assert_eq!((table.proxy.requests(COMMIT) - before, table.ledger("ann").await), (4, (1, 1)));
    table.drop().await;
}

/// Y8: throttling charges no attempt, and a wrong write fails its message for good. Either leaves the key free at once.
#[tokio::test]
async fn y8_the_reason_of_an_action_is_the_class_of_the_failure() {
    let table = Table::new("commits").await;
    let consumer = table.buys();
    // A new name is a transaction too.
    consumer.start().await.unwrap();
    for (fault, class) in [
        (DynamoFault::Cancelled(1, "ThrottlingError"), ErrorClass::Infrastructure),
        (DynamoFault::Cancelled(0, "ProvisionedThroughputExceeded"), ErrorClass::Infrastructure),
        (DynamoFault::Refused("ThrottlingException"), ErrorClass::Infrastructure),
        (DynamoFault::Refused("ResourceNotFoundException"), ErrorClass::Infrastructure),
        (DynamoFault::Cancelled(2, "ValidationError"), ErrorClass::Permanent),
        (DynamoFault::Cancelled(2, "ItemCollectionSizeLimitExceeded"), ErrorClass::Permanent),
        (DynamoFault::Refused("ValidationException"), ErrorClass::Permanent),
        (DynamoFault::Refused("AccessDeniedException"), ErrorClass::Fatal),
    ] {
        table.proxy.inject(COMMIT, fault.clone());
        let decision = consumer.process_one(message("order-1", "ann")).await.unwrap().decision;
        let Decision::Failed(failure) = &decision else { panic!("{fault:?}: {decision:?}") };
        assert_eq!(failure.class, class, "{fault:?}: {failure:?}");
        assert_eq!((table.ledger("ann").await, state_of(&table).await), ((0, 0), vec!["A".to_owned()]), "{fault:?}");
    }
    let decision = consumer.process_one(message("order-1", "ann")).await.unwrap().decision;
    assert!(matches!(decision, Decision::Processed(_)), "{decision:?}");
    assert_eq!(table.ledger("ann").await, (1, 1));
    table.drop().await;
}

/// Two requests for a fresh message, and one for a duplicate.
#[tokio::test]
async fn a_message_costs_two_requests_and_a_duplicate_one() {
    let table = Table::new("commits").await;
    let consumer = table.buys();
    consumer.start().await.unwrap();
    let all = || ["UpdateItem", "TransactWriteItems", "GetItem", "Query"].map(|of| table.proxy.requests(of));
    let before = all();
    let since = || {
        let now = all();
        [0, 1, 2, 3].map(|at| now[at] - before[at])
    };
    assert!(matches!(consumer.process_one(message("order-1", "ann")).await.unwrap().decision, Decision::Processed(_)));
    assert_eq!(since(), [1, 1, 0, 0]);
    assert!(matches!(consumer.process_one(message("order-1", "ann")).await.unwrap().decision, Decision::Duplicate(..)));
    assert_eq!(since().iter().sum::<u64>(), 3);
    table.drop().await;
}

/// A fresh message costs a write unit for its claim, and two for the end of the claim and for each of its writes.
#[tokio::test]
async fn a_message_costs_a_unit_and_two_for_each_write() {
    let table = Table::new("commits").await;
    let consumer = table.buys();
    consumer.start().await.unwrap();
    let _ = table.proxy.units();
    assert!(matches!(consumer.process_one(message("order-1", "ann")).await.unwrap().decision, Decision::Processed(_)));
    // Of its two writes.
    assert_eq!(table.proxy.units().to_bits(), f64::from(1 + 2 * (1 + 2)).to_bits());
    table.drop().await;
}
