//! Rows that are due, on a table that has no lock: what they cost, and what lost answers and another run's look make of them.

use std::{sync::Arc, time::Duration};

use idem_core::{
    Store as _,
    dead_letter::{DeadLetterId, DueEnd, DueRoom},
    message::OrderingKey,
    store::{Bookkeeping as _, Registered, RunId},
};
use idem_dynamodb::aws_sdk_dynamodb::types::AttributeValue;
use idem_testkit::proxy::dynamodb::DynamoFault;

use super::{
    fixture::{Table, number, string},
    letters::{letter, orders, registered},
};

/// Stores so many letters, in the order of this key.
async fn stored(table: &Table, registered: &Registered, letters: usize, key: Option<&str>) -> Vec<DeadLetterId> {
    let mut ids = Vec::new();
    for place in 0..letters {
        let mut letter = letter(registered, b"p", &format!("{key:?}/{place}"));
        if let Some(key) = key {
            letter.message = letter.message.with_ordering_key(OrderingKey::new(key.to_owned()));
        }
        ids.push(table.store.bookkeeping().store_dead_letter(&letter).await.unwrap().id);
    }
    ids
}

async fn ask(table: &Table, ids: &[DeadLetterId]) {
    assert_eq!(table.store.bookkeeping().due_now(ids, "ann").await.unwrap(), ids.len() as u64);
}

/// The rows that were taken, and whether another run had them.
async fn taken(table: &Table, run: RunId, rows: u32) -> Vec<(DeadLetterId, bool)> {
    let rows = table.store.bookkeeping().take_due(&orders(), run, DueRoom::rows(rows)).await.unwrap();
    rows.iter().map(|row| (row.id, row.was_taken)).collect()
}

async fn end(table: &Table, run: RunId, ids: &[DeadLetterId]) {
    let ends: Vec<_> = ids.iter().map(|id| (*id, DueEnd::Processed)).collect();
    table.store.bookkeeping().end_due(run, &ends).await.unwrap();
}

fn requests(table: &Table) -> [u64; 4] {
    ["Query", "GetItem", "UpdateItem", "TransactWriteItems"].map(|of| table.proxy.requests(of))
}

/// The requests since these were counted.
fn since(table: &Table, before: [u64; 4]) -> [u64; 4] {
    let now = requests(table);
    [0, 1, 2, 3].map(|at| now[at] - before[at])
}

/// A look with nothing due is one query. A row is one write and two reads to take, and one transaction and three reads to end; one with
/// an ordering key makes the look one query dearer.
#[tokio::test]
async fn a_look_with_nothing_due_is_one_query() {
    let table = Table::new("due").await;
    let registered = registered(&table).await;
    let before = requests(&table);
    assert_eq!(taken(&table, registered.run, 500).await, []);
    assert_eq!(since(&table, before), [1, 0, 0, 0]);
    for (key, queries) in [(None, 1), (Some("a"), 2)] {
        let ids = stored(&table, &registered, 20, key).await;
        ask(&table, &ids).await;
        let before = requests(&table);
        assert_eq!(taken(&table, registered.run, 500).await, ids.iter().map(|id| (*id, false)).collect::<Vec<_>>());
        assert_eq!(since(&table, before), [queries, 40, 20, 0]);
        let before = requests(&table);
        end(&table, registered.run, &ids).await;
        assert_eq!(since(&table, before), [0, 60, 0, 20]);
    }
    table.drop().await;
}

/// An earlier row of a key is asked for between the look of one run and its lease, and another run takes it: the first run gives its row
/// back as it was.
#[tokio::test]
async fn c19_a_run_gives_way_to_one_that_has_an_earlier_row() {
    let table = Arc::new(Table::new("due").await);
    let registered_at = registered(&table).await;
    let (one, two) = (registered_at.run, registered(&table).await.run);
    let ids = stored(&table, &registered_at, 2, Some("a")).await;
    ask(&table, &ids[1..]).await;
    table.proxy.inject("UpdateItem", DynamoFault::Slow(Duration::from_millis(800)));
    let (first, of) = (Arc::clone(&table), one);
    let first = tokio::spawn(async move { taken(&first, of, 10).await });
    while table.proxy.left() > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    ask(&table, &ids[..1]).await;
    assert_eq!(taken(&table, two, 1).await, [(ids[0], false)]);
    assert_eq!(first.await.unwrap(), [], "the key runs elsewhere");
    assert_eq!(taken(&table, one, 10).await, [], "it still does");
    end(&table, two, &ids[..1]).await;
    assert_eq!(taken(&table, one, 10).await, [(ids[1], false)]);
    Arc::into_inner(table).unwrap().drop().await;
}

/// Requests and answers that are lost leave no row in no hand, and no end unnoted.
#[tokio::test]
async fn lost_answers_lose_no_row() {
    let table = Table::new("due").await;
    let registered = registered(&table).await;
    for fault in [DynamoFault::Lost, DynamoFault::AnswerLost] {
        let ids = stored(&table, &registered, 3, Some("a")).await;
        let meets = |operation| table.proxy.inject(operation, fault.clone());
        meets("TransactWriteItems");
        ask(&table, &ids).await;
        meets("UpdateItem");
        assert_eq!(taken(&table, registered.run, 10).await, ids.iter().map(|id| (*id, false)).collect::<Vec<_>>());
        meets("TransactWriteItems");
        end(&table, registered.run, &ids).await;
        assert_eq!((table.proxy.left(), table.items_of("due#").await.len()), (0, 0), "{fault:?}");
        for letter in table.items_of("dead#").await {
            assert_eq!((string(&letter, "replayed"), string(&letter, "due_by")), ("processed", "ann"), "{fault:?}");
            assert!(number(&letter, "replayed_at") > number(&letter, "first_at"));
        }
    }
    table.drop().await;
}

/// Where each request takes long, a look takes fewer rows, so that their leases are not over before they run.
#[tokio::test]
async fn a_slow_table_hands_out_fewer_rows() {
    let table = Table::new("due").await;
    let registered = registered(&table).await;
    let ids = stored(&table, &registered, 16, Some("a")).await;
    ask(&table, &ids).await;
    table.proxy.always(Some(DynamoFault::Slow(Duration::from_millis(1_500))));
    let rows: Vec<_> = taken(&table, registered.run, 100).await.into_iter().map(|(id, _)| id).collect();
    assert!((1..=7).contains(&rows.len()) && ids.starts_with(&rows), "{rows:?}");
    table.proxy.always(None);
    table.drop().await;
}

/// A row whose letter cannot be read ends as malformed, one whose letter is gone goes with it, and the others run.
#[tokio::test]
async fn a_damaged_letter_stops_no_other() {
    let table = Table::new("due").await;
    let registered = registered(&table).await;
    let ids = stored(&table, &registered, 3, None).await;
    ask(&table, &ids).await;
    let letters = table.items_of("dead#").await;
    let (mut damaged, deleted) = (letters[0].clone(), letters[1].clone());
    damaged.insert("scope".to_owned(), AttributeValue::S("none".to_owned()));
    table.client.put_item().table_name(&table.name).set_item(Some(damaged)).send().await.unwrap();
    let delete = table.client.delete_item().table_name(&table.name).key("pk", deleted["pk"].clone());
    delete.key("sk", deleted["sk"].clone()).send().await.unwrap();
    assert_eq!(taken(&table, registered.run, 10).await, [(ids[2], false)]);
    let left = table.items_of("dead#").await;
    assert!(string(&left[0], "replayed").starts_with("failed: malformed:"), "{left:?}");
    assert_eq!(table.items_of("due#").await.len(), 1);
    table.drop().await;
}
