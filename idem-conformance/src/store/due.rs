//! Rows that are due: the order of each key, leases, and the ends of batches.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use idem_core::{
    ConsumerName, Store as _, Tenant,
    dead_letter::{DUE_LEASE, DeadLetter, DeadLetterId, Due, DueEnd, DueFailure, DueRoom, Reason},
    message::OrderingKey,
    store::{Bookkeeping, Registered, RunId},
};

use super::{
    failures::{from, letter, listed, store_dead_letter},
    fixture::Fixture,
    gate::within,
    subject::{Arrangement, StoreUnderTest},
};

fn orders() -> ConsumerName {
    ConsumerName::new("orders").unwrap()
}

/// A letter with this number, in the order of a key where there is one.
fn numbered(registered: &Registered, number: usize, ordering_key: Option<&str>) -> DeadLetter {
    let key = format!("order-{number}");
    let mut message = from(&format!("q/{number}"), &key, "p");
    if let Some(ordering_key) = ordering_key {
        message = message.with_ordering_key(OrderingKey::new(ordering_key.to_owned()));
    }
    letter(registered, message, Some(&key), Reason::Permanent)
}

/// Stores one letter for each of the ordering keys.
async fn stored<T: StoreUnderTest>(
    fixture: &Fixture<'_, T>,
    registered: &Registered,
    ordering_keys: &[Option<&str>],
) -> Vec<DeadLetterId> {
    let mut ids = Vec::new();
    for (number, ordering_key) in ordering_keys.iter().enumerate() {
        ids.push(store_dead_letter(fixture, &numbered(registered, number, *ordering_key)).await.id);
    }
    ids
}

async fn ask<T: StoreUnderTest>(fixture: &Fixture<'_, T>, ids: &[DeadLetterId]) {
    assert_eq!(fixture.store.bookkeeping().due_now(ids, "ann").await.unwrap(), ids.len() as u64);
}

async fn take<T: StoreUnderTest>(fixture: &Fixture<'_, T>, run: RunId, room: DueRoom) -> Vec<Due> {
    within("taking rows", fixture.store.bookkeeping().take_due(&orders(), run, room)).await.unwrap()
}

/// The ids of up to so many rows that were taken.
async fn taken<T: StoreUnderTest>(fixture: &Fixture<'_, T>, run: RunId, rows: u32) -> Vec<DeadLetterId> {
    take(fixture, run, DueRoom::rows(rows)).await.iter().map(|row| row.id).collect()
}

async fn end<T: StoreUnderTest>(fixture: &Fixture<'_, T>, run: RunId, ids: &[DeadLetterId]) {
    let ends: Vec<_> = ids.iter().map(|id| (*id, DueEnd::Processed)).collect();
    fixture.store.bookkeeping().end_due(run, &ends).await.unwrap();
}

/// The rows of an ordering key are handed out in the order in which they became dead letters, whatever the order of the request.
pub async fn rows_of_an_ordering_key_run_in_their_order<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let registered = fixture.register().await;
    let keys = [Some("a"), Some("b"), None, Some("a"), Some("b"), Some("a"), None];
    let ids = stored(&fixture, &registered, &keys).await;
    ask(&fixture, &ids.iter().rev().copied().collect::<Vec<_>>()).await;
    let rows = take(&fixture, registered.run, DueRoom::rows(30)).await;
    assert_eq!(rows.iter().map(|row| row.id).collect::<BTreeSet<_>>(), ids.iter().copied().collect());
    for key in ["a", "b"] {
        let of_key = |row: &&Due| row.message.ordering_key().is_some_and(|own| own.as_bytes() == key.as_bytes());
        let order: Vec<_> = rows.iter().filter(of_key).map(|row| row.id).collect();
        assert!(order.is_sorted() && order.len() > 1, "{key}: {order:?}");
    }
}

/// A row whose key runs in one worker is not handed out to another, and is once those before it have ended.
pub async fn the_end_of_a_row_lets_the_next_of_its_key_go<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let (one, two) = (fixture.register().await, fixture.register().await);
    let ids = stored(&fixture, &one, &[Some("a"), Some("a"), Some("a"), None]).await;
    ask(&fixture, &ids).await;
    assert_eq!(taken(&fixture, one.run, 1).await, [ids[0]]);
    assert_eq!(taken(&fixture, two.run, 10).await, [ids[3]], "the key runs elsewhere");
    let failed = DueEnd::Failed(DueFailure::new(Reason::Permanent, "still"));
    fixture.store.bookkeeping().end_due(one.run, &[(ids[0], failed)]).await.unwrap();
    assert_eq!(taken(&fixture, two.run, 10).await, [ids[1], ids[2]], "one that fails lets the next go too");
    end(&fixture, two.run, &ids[1..]).await;
    assert!(taken(&fixture, one.run, 10).await.is_empty());
    assert!(listed(&fixture).await.iter().all(|row| row.replayed.is_some()));
}

/// However many workers take at once, rows of one key are in one hand, and end in their order.
pub async fn two_takers_split_no_key<T: StoreUnderTest>(subject: &T) {
    const KEYS: [Option<&str>; 5] = [Some("a"), Some("b"), Some("c"), Some("d"), None];
    let fixture = Fixture::new(subject);
    let registered = fixture.register().await;
    let keys: Vec<_> = (0..60).map(|number| KEYS[number % KEYS.len()]).collect();
    let ids = stored(&fixture, &registered, &keys).await;
    ask(&fixture, &ids).await;
    let key_of: BTreeMap<_, _> = ids.iter().copied().zip(keys).collect();
    let mut ended = Vec::new();
    while ended.len() < ids.len() {
        let mut calls = Vec::new();
        for rows in [3, 1, 7] {
            let (store, run) = (Arc::clone(&fixture.store), fixture.register().await.run);
            let take = async move {
                let rows = store.bookkeeping().take_due(&orders(), run, DueRoom::rows(rows)).await.unwrap();
                (run, rows.into_iter().map(|row| row.id).collect::<Vec<_>>())
            };
            calls.push(tokio::spawn(take));
        }
        let mut holders = BTreeMap::new();
        let mut turns = Vec::new();
        for call in calls {
            let (run, rows) = within("taking rows at once", call).await.unwrap();
            for key in rows.iter().filter_map(|id| key_of[id]) {
                assert_eq!(*holders.entry(key).or_insert(run), run, "two workers have rows of {key}");
            }
            turns.push((run, rows));
        }
        assert!(turns.iter().any(|(_, rows)| !rows.is_empty()), "{} of {} rows ran", ended.len(), ids.len());
        for (run, rows) in turns {
            end(&fixture, run, &rows).await;
            ended.extend(rows);
        }
    }
    for key in KEYS.into_iter().flatten() {
        let order: Vec<_> = ended.iter().filter(|id| key_of[id] == Some(key)).collect();
        assert!(order.is_sorted(), "{key}: {order:?}");
    }
    assert_eq!(ended.into_iter().collect::<BTreeSet<_>>(), ids.into_iter().collect());
}

/// An earlier row that is asked for later runs next, unless rows of its key run: then it runs after them, in no second hand.
pub async fn an_earlier_row_that_is_asked_for_later_waits_for_its_key<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let (one, two) = (fixture.register().await, fixture.register().await);
    let ids = stored(&fixture, &one, &[Some("a"); 5]).await;
    ask(&fixture, &ids[2..]).await;
    assert_eq!(taken(&fixture, one.run, 2).await, ids[2..4]);
    ask(&fixture, &ids[..1]).await;
    assert!(taken(&fixture, two.run, 10).await.is_empty(), "its key runs");
    end(&fixture, one.run, &ids[2..3]).await;
    assert!(taken(&fixture, two.run, 10).await.is_empty(), "its key still runs");
    end(&fixture, one.run, &ids[3..4]).await;
    ask(&fixture, &ids[1..2]).await;
    assert_eq!(taken(&fixture, two.run, 10).await, [ids[0], ids[1], ids[4]]);
}

/// A lease that is renewed is kept; one that is over is another worker's, who learns that the row was taken before. What the first one
/// says of it then counts only if the message was handled.
pub async fn a_lease_is_kept_while_it_is_renewed<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let (one, two) = (fixture.register().await, fixture.register().await);
    let books = fixture.store.bookkeeping();
    let ids = stored(&fixture, &one, &[Some("a"), Some("a"), None]).await;
    ask(&fixture, &ids).await;
    assert_eq!(taken(&fixture, one.run, 10).await.len(), 3);
    books.renew_due(two.run, &ids).await.unwrap();
    let most = DUE_LEASE - Duration::from_secs(20);
    if !fixture.arrange(Arrangement::Age(most)).await {
        return;
    }
    books.renew_due(one.run, &ids).await.unwrap();
    fixture.arrange(Arrangement::Age(most)).await;
    assert!(taken(&fixture, two.run, 10).await.is_empty(), "the lease was renewed");
    fixture.arrange(Arrangement::Age(most)).await;
    let rows = take(&fixture, two.run, DueRoom::rows(10)).await;
    assert_eq!(rows.len(), 3);
    assert!(rows.iter().all(|row| row.was_taken), "{rows:?}");
    books.renew_due(one.run, &ids).await.unwrap();
    books.release_due(one.run, &ids).await.unwrap();
    let failed = DueEnd::Failed(DueFailure::new(Reason::Permanent, "late"));
    books.end_due(one.run, &[(ids[0], failed), (ids[2], DueEnd::Processed)]).await.unwrap();
    let ended: Vec<_> = listed(&fixture).await.into_iter().filter(|row| row.replayed.is_some()).collect();
    assert_eq!(ended.iter().map(|row| row.id).collect::<Vec<_>>(), [ids[2]], "{ended:?}");
    assert!(taken(&fixture, one.run, 10).await.is_empty(), "the others still run elsewhere");
}

/// Rows that are given back may be taken at once, in their order, and nothing was charged. Those of the key that still run keep it.
pub async fn rows_that_are_given_back_keep_their_order<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let (one, two) = (fixture.register().await, fixture.register().await);
    let books = fixture.store.bookkeeping();
    let ids = stored(&fixture, &one, &[Some("a"), Some("a"), Some("a")]).await;
    ask(&fixture, &ids).await;
    assert_eq!(taken(&fixture, one.run, 10).await, ids);
    books.release_due(one.run, &ids[..1]).await.unwrap();
    assert!(taken(&fixture, two.run, 10).await.is_empty(), "two of its key still run");
    books.release_due(one.run, &ids[1..]).await.unwrap();
    let rows = take(&fixture, two.run, DueRoom::rows(10)).await;
    assert_eq!(
        rows.iter().map(|row| (row.id, row.was_taken)).collect::<Vec<_>>(),
        ids.iter().map(|id| (*id, false)).collect::<Vec<_>>()
    );
    let again = listed(&fixture).await;
    assert!(again.iter().all(|row| row.attempts == 5 && row.replayed.is_none()), "{again:?}");
}

/// An end that is noted twice, or late, is noted once: it neither ends a second replay nor changes the outcome of the first.
pub async fn an_end_is_noted_once<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let registered = fixture.register().await;
    let books = fixture.store.bookkeeping();
    let ids = stored(&fixture, &registered, &[Some("a"), Some("a")]).await;
    ask(&fixture, &ids).await;
    assert_eq!(taken(&fixture, registered.run, 1).await, [ids[0]]);
    end(&fixture, registered.run, &ids[..1]).await;
    let failed = DueEnd::Failed(DueFailure::new(Reason::Permanent, "late"));
    books.end_due(registered.run, &[(ids[0], failed.clone()), (ids[1], failed)]).await.unwrap();
    end(&fixture, registered.run, &ids[1..]).await;
    let outcomes: Vec<_> = listed(&fixture).await.into_iter().rev().map(|row| row.replayed).collect();
    assert_eq!(outcomes, [Some("processed".to_owned()), None], "the second was not taken");
    books.end_due(registered.run, &[]).await.unwrap();
    assert_eq!(taken(&fixture, registered.run, 10).await, ids[1..]);
}

/// A tenant with many rows keeps none of another tenant's waiting.
pub async fn a_tenants_backlog_hides_no_others_rows<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let registered = fixture.register().await;
    let many = stored(&fixture, &registered, &[None; 30]).await;
    let acme = fixture.store.bookkeeping().scope(&orders(), &Tenant::new("acme").unwrap()).await.unwrap();
    let letter = DeadLetter { scope: acme, ..numbered(&registered, 99, None) };
    let one = store_dead_letter(&fixture, &letter).await.id;
    ask(&fixture, &many).await;
    ask(&fixture, &[one]).await;
    let rows = taken(&fixture, registered.run, 4).await;
    assert!(rows.contains(&one) && rows.len() <= 4, "{rows:?}");
}

/// A look takes no more bytes than there is room for, and one row at least.
pub async fn a_look_is_bounded_in_bytes<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let registered = fixture.register().await;
    let mut ids = Vec::new();
    for number in 0..5 {
        let message = from(&format!("q/{number}"), &format!("k{number}"), &"x".repeat(1000));
        let letter = letter(&registered, message, Some(&format!("k{number}")), Reason::Permanent);
        ids.push(store_dead_letter(&fixture, &letter).await.id);
    }
    ask(&fixture, &ids).await;
    let room = |bytes| DueRoom { rows: 10, bytes };
    assert_eq!(take(&fixture, registered.run, room(1)).await.len(), 1);
    assert_eq!(take(&fixture, registered.run, room(1500)).await.len(), 2);
    assert_eq!(take(&fixture, registered.run, room(u64::MAX)).await.len(), 2);
}
