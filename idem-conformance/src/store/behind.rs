//! Messages that are kept behind rows of their ordering keys: who is ahead of them, when they run, and that none is forgotten.

use std::{sync::Arc, time::Duration};

use idem_core::{
    ConsumerName, Store as _,
    dead_letter::{DeadLetter, DeadLetterId, Due, DueEnd, DueFailure, DueRoom, Reason},
    message::OrderingKey,
    store::{Ahead, Bookkeeping as _, Registered, RunId, UnitOfWork as _},
};

use super::{
    failures::{from, letter, listed, store_dead_letter},
    fixture::{Fixture, claim, options},
    gate::within,
    subject::{Arrangement, StoreUnderTest},
};

const HOUR: Duration = Duration::from_secs(3_600);
const MINUTE: Duration = Duration::from_secs(60);

/// A message with this number in the order of a key.
fn numbered(registered: &Registered, number: usize, ordering_key: Option<&str>, reason: Reason) -> DeadLetter {
    let key = format!("order-{number}");
    let mut message = from(&format!("q/{number}"), &key, "p");
    if let Some(ordering_key) = ordering_key {
        message = message.with_ordering_key(OrderingKey::new(ordering_key.to_owned()));
    }
    let letter = letter(registered, message, Some(&key), reason);
    if reason == Reason::Behind { DeadLetter { attempts: 0, ..letter } } else { letter }
}

/// Puts the message with this number aside for so long, in the order of a key.
async fn put<T: StoreUnderTest>(
    fixture: &Fixture<'_, T>,
    registered: &Registered,
    number: usize,
    ordering_key: &str,
    after: Duration,
) -> DeadLetterId {
    let reason = if after.is_zero() { Reason::Behind } else { Reason::AttemptsExhausted };
    let letter = numbered(registered, number, Some(ordering_key), reason);
    within("putting a message aside", fixture.store.bookkeeping().put_aside(&letter, after)).await.unwrap().id()
}

async fn rows<T: StoreUnderTest>(fixture: &Fixture<'_, T>, run: RunId, max: u32) -> Vec<Due> {
    let orders = ConsumerName::new("orders").unwrap();
    let taking = fixture.store.bookkeeping().take_due(&orders, run, DueRoom::rows(max));
    within("taking rows", taking).await.unwrap()
}

async fn take<T: StoreUnderTest>(fixture: &Fixture<'_, T>, run: RunId, max: u32) -> Vec<DeadLetterId> {
    rows(fixture, run, max).await.iter().map(|row| row.id).collect()
}

async fn end<T: StoreUnderTest>(fixture: &Fixture<'_, T>, run: RunId, ends: Vec<(DeadLetterId, DueEnd)>) {
    within("ending rows", fixture.store.bookkeeping().end_due(run, &ends)).await.unwrap();
}

fn failure() -> DueFailure {
    DueFailure { attempts: 6, ..DueFailure::new(Reason::AttemptsExhausted, "sold out") }
}

/// What is ahead of messages of these ordering keys, and whether a claim of the same unit says that anything waits.
async fn ahead<T: StoreUnderTest>(
    fixture: &Fixture<'_, T>,
    registered: &Registered,
    ordering_keys: &[&str],
) -> (Vec<Ahead>, bool) {
    let lane = fixture.open().await;
    let mut unit = within("beginning", fixture.store.begin(lane, options(registered.run))).await.unwrap();
    let keys: Vec<_> =
        ordering_keys.iter().map(|key| (registered.scope, OrderingKey::new((*key).to_owned()))).collect();
    let ahead = within("asking what is ahead", unit.ahead(&keys)).await.unwrap();
    within("claiming", unit.claim(&[claim(registered, "a-new-key", "paid")])).await.unwrap();
    let waits = unit.anything_waits();
    within("rolling back", unit.rollback()).await.unwrap();
    (ahead, waits)
}

fn sets_aside<T: StoreUnderTest>(fixture: &Fixture<'_, T>) -> bool {
    fixture.store.capabilities().sets_aside
}

/// A message that is put aside behind a row of its ordering key runs after it, and not before, whatever its own time. Rows of other keys, and
/// of none, run meanwhile. A unit that asks sees what was committed before, and a claim says for nothing whether anything waits.
pub async fn what_is_behind_a_row_runs_after_it<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let registered = fixture.register().await;
    assert_eq!(ahead(&fixture, &registered, &["a"]).await, (vec![Ahead::Nothing], false));
    if !sets_aside(&fixture) {
        return;
    }
    let alone = numbered(&registered, 9, None, Reason::AttemptsExhausted);
    fixture.store.bookkeeping().put_aside(&alone, HOUR * 9).await.unwrap();
    assert!(!ahead(&fixture, &registered, &["a"]).await.1, "a row without an ordering key keeps none waiting");
    let head = put(&fixture, &registered, 1, "a", HOUR).await;
    let next = put(&fixture, &registered, 2, "a", Duration::ZERO).await;
    let other = put(&fixture, &registered, 3, "b", Duration::ZERO).await;
    let last = put(&fixture, &registered, 4, "a", Duration::ZERO).await;
    let all = ["b", "a", "c", "a"];
    let expected = vec![Ahead::Runs, Ahead::Waits, Ahead::Nothing, Ahead::Waits];
    assert_eq!(ahead(&fixture, &registered, &all).await, (expected, true), "in the order asked");
    assert_eq!(take(&fixture, registered.run, 10).await, [other]);
    assert_eq!(ahead(&fixture, &registered, &["b"]).await.0, [Ahead::Runs], "it runs");
    end(&fixture, registered.run, vec![(other, DueEnd::Processed)]).await;
    assert_eq!(ahead(&fixture, &registered, &["b"]).await.0, [Ahead::Nothing]);
    if !fixture.arrange(Arrangement::Age(HOUR * 2)).await {
        return;
    }
    let due = rows(&fixture, registered.run, 10).await;
    assert_eq!(due.iter().map(|row| (row.id, row.attempts)).collect::<Vec<_>>(), [(head, 5), (next, 0), (last, 0)]);
    assert!(due.iter().all(|row| !row.replayed), "{due:?}");
    let ends = [head, next, last].map(|id| (id, DueEnd::Processed)).to_vec();
    end(&fixture, registered.run, ends).await;
    assert_eq!(ahead(&fixture, &registered, &["a"]).await, (vec![Ahead::Nothing], false));
    assert_eq!(listed(&fixture).await.len(), 1, "that without an ordering key");
}

/// A row that waits again keeps those waiting that were taken with it, until its next time, and the run that takes it then has all of them.
pub async fn a_row_that_waits_again_keeps_what_is_behind_it<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let (one, two) = (fixture.register().await, fixture.register().await);
    if !sets_aside(&fixture) {
        return;
    }
    let ids = [
        put(&fixture, &one, 1, "a", HOUR).await,
        put(&fixture, &one, 2, "a", Duration::ZERO).await,
        put(&fixture, &one, 3, "a", Duration::ZERO).await,
    ];
    if !fixture.arrange(Arrangement::Age(HOUR * 2)).await {
        return;
    }
    assert_eq!(take(&fixture, one.run, 10).await, ids);
    end(&fixture, one.run, vec![(ids[0], DueEnd::Again { after: HOUR, failure: failure() })]).await;
    assert!(take(&fixture, two.run, 10).await.is_empty(), "all of them wait");
    assert_eq!(ahead(&fixture, &one, &["a"]).await.0, [Ahead::Waits]);
    // The run that failed gives back what it does not have any more.
    fixture.store.bookkeeping().release_due(one.run, &ids[1..]).await.unwrap();
    assert!(take(&fixture, two.run, 10).await.is_empty(), "all of them wait still");
    fixture.arrange(Arrangement::Age(HOUR + MINUTE)).await;
    assert_eq!(take(&fixture, two.run, 10).await, ids);
}

/// The end of a head, handled or dead, lets the next of its key go, also where others of the key came to be behind it since it was taken.
pub async fn the_end_of_a_head_lets_the_next_go<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let (one, two) = (fixture.register().await, fixture.register().await);
    if !sets_aside(&fixture) {
        return;
    }
    // A scope without any head is seen, and put in order.
    let elsewhere = put(&fixture, &one, 9, "z", HOUR * 20).await;
    let first = put(&fixture, &one, 1, "a", MINUTE).await;
    let second = put(&fixture, &one, 2, "a", Duration::ZERO).await;
    if !fixture.arrange(Arrangement::Age(HOUR)).await {
        return;
    }
    assert_eq!(take(&fixture, one.run, 1).await, [first]);
    let third = put(&fixture, &one, 3, "a", Duration::ZERO).await;
    assert!(take(&fixture, two.run, 10).await.is_empty(), "the head runs");
    end(&fixture, one.run, vec![(first, DueEnd::Failed(failure()))]).await;
    assert_eq!(take(&fixture, two.run, 1).await, [second]);
    end(&fixture, two.run, vec![(second, DueEnd::Processed)]).await;
    assert_eq!(take(&fixture, one.run, 10).await, [third]);
    end(&fixture, one.run, vec![(third, DueEnd::Duplicate)]).await;
    assert_eq!(ahead(&fixture, &one, &["a"]).await, (vec![Ahead::Nothing], true));
    assert_eq!(
        listed(&fixture).await.iter().map(|row| row.id).collect::<Vec<_>>(),
        [first, elsewhere],
        "the dead letter"
    );
}

/// A message whose row is not over is that row, behind others too. A dead letter of it that waits again is before those that came after it.
pub async fn what_waits_behind_a_row_is_one_row<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let registered = fixture.register().await;
    if !sets_aside(&fixture) {
        return;
    }
    let dead = store_dead_letter(&fixture, &numbered(&registered, 1, Some("a"), Reason::AttemptsExhausted)).await.id;
    let second = put(&fixture, &registered, 2, "a", HOUR).await;
    for after in [Duration::ZERO, HOUR] {
        assert_eq!(put(&fixture, &registered, 2, "a", after).await, second, "it is its own row, and not behind itself");
    }
    assert_eq!(put(&fixture, &registered, 1, "a", MINUTE).await, dead, "it waits in its row");
    if !fixture.arrange(Arrangement::Age(HOUR * 2)).await {
        return;
    }
    assert_eq!(take(&fixture, registered.run, 10).await, [dead, second]);
}

/// However the end of a head and new messages of its key meet, each row has a head before it: nothing waits forever, or runs twice.
pub async fn races_leave_no_row_without_a_head<T: StoreUnderTest>(subject: &T) {
    const ROUNDS: usize = 15;
    let fixture = Fixture::new(subject);
    let registered = fixture.register().await;
    if !sets_aside(&fixture) {
        return;
    }
    let keys = ["a", "b", "c"];
    put(&fixture, &registered, 99_999, "z", HOUR * 20).await;
    for round in 0..ROUNDS {
        let first = round * 100;
        for (place, key) in keys.iter().enumerate() {
            put(&fixture, &registered, first + place, key, Duration::ZERO).await;
        }
        let heads = take(&fixture, registered.run, 100).await;
        assert_eq!(heads.len(), keys.len(), "round {round}: {heads:?}");
        let ends = heads.into_iter().map(|id| (id, DueEnd::Processed)).collect();
        let puts: Vec<_> = (10..22)
            .map(|place| {
                let (store, key) = (Arc::clone(&fixture.store), keys[place % keys.len()]);
                let letter = numbered(&registered, first + place, Some(key), Reason::Behind);
                tokio::spawn(async move { store.bookkeeping().put_aside(&letter, Duration::ZERO).await.map(|_| ()) })
            })
            .collect();
        end(&fixture, registered.run, ends).await;
        let mut taken = rows(&fixture, registered.run, 2).await;
        for put in puts {
            within("putting messages aside", put).await.unwrap().unwrap();
        }
        let mut left = 12;
        if taken.is_empty() {
            taken = rows(&fixture, registered.run, 100).await;
        }
        while left > 0 {
            assert!(!taken.is_empty(), "round {round}: {left} rows have no head");
            left -= taken.len();
            let ends = taken.iter().map(|row| (row.id, DueEnd::Processed)).collect();
            end(&fixture, registered.run, ends).await;
            taken = rows(&fixture, registered.run, 100).await;
        }
        assert_eq!(ahead(&fixture, &registered, &keys).await, (vec![Ahead::Nothing; 3], true), "round {round}");
    }
    assert_eq!(listed(&fixture).await.len(), 1, "that of the other key");
}
