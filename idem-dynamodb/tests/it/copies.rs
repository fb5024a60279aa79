//! Copies in a Redis before the table: requests are counted, and nothing but the table decides.

use std::{sync::Arc, time::Duration};

use idem_core::{
    Decision, DedupConsumer, Effects, IdempotencyKey, ResultBody, RunOnce, Store as _, Tenant,
    once::{KeyState, Request},
    store::Bookkeeping as _,
};
use idem_dynamodb::{DynamoOptions, DynamoStore};
use idem_redis::RedisCopies;
use idem_testkit::{message, proxy::Proxy};
use tokio::time::Instant;

use super::fixture::{Buy, Table, client, unique};

/// A busy machine is not a Redis that fails.
const PATIENCE: Duration = Duration::from_secs(10);

fn redis() -> String {
    std::env::var("IDEM_REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:26380/".to_owned())
}

fn copies() -> RedisCopies {
    RedisCopies::connect(&redis()).unwrap().patience(PATIENCE)
}

/// A table with copies. No entry of another is one of its own, so that all share the server.
async fn copied(set: impl FnOnce(DynamoOptions) -> DynamoOptions) -> Table {
    Table::with("copies", |options| set(options.copies(copies()))).await
}

/// The same table and its copies from another process.
fn another(table: &Table) -> Arc<DynamoStore> {
    Arc::new(DynamoStore::of(client(table.proxy.endpoint()), &table.name).copies(copies()).build().unwrap())
}

fn buys(store: &Arc<DynamoStore>) -> DedupConsumer<DynamoStore> {
    let builder = DedupConsumer::builder(Arc::clone(store), "purchases");
    builder.handler(Buy).effects(Effects::InTransaction).build().unwrap()
}

/// Claims, commits and reads so far.
fn requests(table: &Table) -> [u64; 3] {
    ["UpdateItem", "TransactWriteItems", "GetItem"].map(|of| table.proxy.requests(of))
}

async fn decided(consumer: &DedupConsumer<DynamoStore>, key: &str) -> Decision {
    consumer.process_one(message(key, "ann")).await.unwrap().decision
}

/// Copies are written beside a commit: waits until this many keys have theirs.
async fn until_copied(consumer: &DedupConsumer<DynamoStore>, table: &Table, keys: u64) {
    for _ in 0..500 {
        let before = table.proxy.requests("UpdateItem");
        for key in 0..keys {
            let decision = decided(consumer, &format!("order-{key}")).await;
            assert!(matches!(decision, Decision::Duplicate(..)), "{decision:?}");
        }
        if table.proxy.requests("UpdateItem") == before {
            return;
        }
    }
    panic!("copies are not made");
}

/// Y21: a fresh message takes two requests and a duplicate with a copy none, but for one read of what copies are bound to in two seconds,
/// whatever the traffic; also in a process that has not seen the message.
#[tokio::test(flavor = "multi_thread")]
async fn y21_a_duplicate_with_a_copy_takes_no_request() {
    let table = copied(|options| options).await;
    let first = buys(&table.store);
    first.start().await.unwrap();
    assert!(matches!(decided(&first, "warm").await, Decision::Processed(_)));
    let (before, begun) = (requests(&table), Instant::now());
    for key in 0..20 {
        assert!(matches!(decided(&first, &format!("order-{key}")).await, Decision::Processed(_)));
    }
    let reads = |begun: Instant| begun.elapsed().as_secs() / 2 + 1;
    let after = requests(&table);
    assert_eq!((after[0] - before[0], after[1] - before[1]), (20, 20));
    assert!(after[2] - before[2] <= reads(begun), "{before:?} {after:?}");
    until_copied(&first, &table, 20).await;
    let other = buys(&another(&table));
    other.start().await.unwrap();
    let (before, begun) = (requests(&table), Instant::now());
    for key in (0..20).cycle().take(200) {
        for consumer in [&first, &other] {
            assert!(matches!(decided(consumer, &format!("order-{key}")).await, Decision::Duplicate(..)));
        }
    }
    let after = requests(&table);
    assert_eq!((after[0] - before[0], after[1] - before[1]), (0, 0));
    assert!(after[2] - before[2] <= 2 * reads(begun), "{before:?} {after:?}");
    assert_eq!(table.ledger("ann").await, (21, 21));
    table.drop().await;
}

/// Y22: once an operator has forgotten a key, no copy of before says that it is done, in any process, after two seconds. Another payload is
/// a conflict, which the table says.
#[tokio::test(flavor = "multi_thread")]
async fn y22_copies_end_with_a_forget() {
    let table = copied(|options| options).await;
    let (first, other) = (buys(&table.store), buys(&another(&table)));
    first.start().await.unwrap();
    other.start().await.unwrap();
    for key in 0..2 {
        assert!(matches!(decided(&first, &format!("order-{key}")).await, Decision::Processed(_)));
    }
    until_copied(&other, &table, 2).await;
    let conflict = other.process_one(message("order-0", "bob")).await.unwrap().decision;
    assert!(matches!(conflict, Decision::Conflict(..)), "{conflict:?}");
    let (name, key) = (idem_core::ConsumerName::new("purchases").unwrap(), IdempotencyKey::new("order-0").unwrap());
    let scope = table.store.bookkeeping().scope(&name, &Tenant::default()).await.unwrap();
    // The tool of an operator knows no Redis.
    assert!(table.another().forget(scope, &key, "ann", "a test").await.unwrap());
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(matches!(decided(&other, "order-0").await, Decision::Processed(_)));
    assert!(matches!(decided(&first, "order-0").await, Decision::Duplicate(..)));
    assert!(matches!(decided(&first, "order-1").await, Decision::Duplicate(..)));
    assert_eq!(table.ledger("ann").await, (3, 3));
    table.drop().await;
}

fn pays(store: &Arc<DynamoStore>) -> RunOnce<DynamoStore> {
    RunOnce::builder(Arc::clone(store), "payments").effects(Effects::InTransaction).build().unwrap()
}

async fn paid(pays: &RunOnce<DynamoStore>, key: &str) -> ResultBody {
    let request = || Request::new(key, &b"ann"[..]);
    let run = pays.run(request(), |tx| {
        Box::pin(async move {
            super::fixture::buy(tx, "ann").map_err(|error| error.to_string())?;
            Ok(ResultBody::new(unique("answer")).with_status(201))
        })
    });
    run.await.unwrap().into_result()
}

/// Y18: an answer is in Redis only as the table has it. A plain one is read from the table, unless the author allows copies of it, and all
/// callers get the first one's.
#[tokio::test(flavor = "multi_thread")]
async fn y18_an_answer_is_copied_as_the_table_has_it() {
    for is_plain in [false, true] {
        let table = copied(|options| options.copies_plain(is_plain)).await;
        let pays = pays(&table.store);
        let first = paid(&pays, "order-1").await;
        let mut least = u64::MAX;
        for _ in 0..500 {
            let before: u64 = requests(&table).iter().sum();
            assert_eq!(paid(&pays, "order-1").await, first);
            least = least.min(requests(&table).iter().sum::<u64>() - before);
            if least <= u64::from(!is_plain) {
                break;
            }
        }
        assert_eq!(least, u64::from(!is_plain), "requests of a repeat");
        let state = pays.key_state(Request::new("order-1", &b""[..])).await.unwrap();
        assert!(matches!(state, KeyState::Done { .. }), "{state:?}");
        assert_eq!(table.ledger("ann").await, (1, 1));
        table.drop().await;
    }
}

/// Y20: a Redis that freezes, or breaks its connections, costs a moment, and the table decides meanwhile. Once it answers again it is
/// asked again.
#[tokio::test(flavor = "multi_thread")]
async fn y20_a_redis_that_fails_costs_a_moment() {
    let server = redis().trim_start_matches("redis://").trim_end_matches('/').to_owned();
    let proxy = Proxy::to(&server).await.unwrap();
    let copies = RedisCopies::connect(&format!("redis://{}/", proxy.address())).unwrap();
    let patience = copies.clone().patience(Duration::from_millis(200));
    assert_eq!(idem_core::copies::Copies::patience(&copies), Duration::from_millis(50));
    let table = Table::with("copies", |options| options.copies(patience)).await;
    let consumer = buys(&table.store);
    consumer.start().await.unwrap();
    assert!(matches!(decided(&consumer, "order-0").await, Decision::Processed(_)));
    proxy.freeze();
    let before = requests(&table);
    for key in 0..10 {
        let decision = decided(&consumer, &format!("order-{key}")).await;
        assert_eq!(matches!(decision, Decision::Processed(_)), key > 0, "{decision:?}");
    }
    assert!(requests(&table)[0] - before[0] >= 10, "the table is asked");
    proxy.thaw();
    proxy.cut().await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    until_copied(&consumer, &table, 10).await;
    assert_eq!(table.ledger("ann").await, (10, 10));
    table.drop().await;
}
