//! Attempts and dead letters.

use std::{collections::HashSet, sync::Arc, time::Duration};

use idem_core::{
    Bytes, ConsumerName, ErrorClass, Message, Store as _,
    cleanup::Expiring,
    dead_letter::{
        DUE_LEASE, DeadLetter, DeadLetterId, Due, DueEnd, DueFailure, DueRoom, FailureKind, Fingerprint, Reason,
        StoredDeadLetter,
    },
    hash::PayloadHash,
    message::{Headers, OrderingKey, Origin},
    store::{Bookkeeping, HashRuleId, Registered},
};

use super::{
    fixture::{Fixture, NO_SCOPE, Seen, key_from, msg, registration},
    gate::within,
    records::clean,
    subject::{Arrangement, StoreUnderTest},
};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// D4: attempts are counted from one, for each key of each scope on its own, and the count outlives the process.
pub async fn attempts_are_counted_from_one<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let orders = fixture.register().await.scope;
    let refunds = fixture.register_as(&registration("refunds")).await.unwrap().scope;
    let (key, other) = (key_from("order-1"), key_from("order-2"));
    let hash = PayloadHash::of(b"paid");
    for expected in 1..=3 {
        assert_eq!(fixture.store.bookkeeping().count_attempt(orders, &key, hash).await.unwrap(), expected);
    }
    assert_eq!(fixture.store.bookkeeping().count_attempt(orders, &other, hash).await.unwrap(), 1);
    assert_eq!(fixture.store.bookkeeping().count_attempt(refunds, &key, hash).await.unwrap(), 1);
    let elsewhere = fixture.elsewhere().await;
    assert_eq!(elsewhere.store.bookkeeping().count_attempt(orders, &key, hash).await.unwrap(), 4);
}

/// An attempt that did not run to a verdict is taken back; a count never falls below zero.
pub async fn an_attempt_can_be_taken_back<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let scope = fixture.register().await.scope;
    let (key, hash) = (key_from("order-1"), PayloadHash::of(b"paid"));
    fixture.store.bookkeeping().uncount_attempt(scope, &key, hash).await.unwrap();
    assert_eq!(fixture.store.bookkeeping().count_attempt(scope, &key, hash).await.unwrap(), 1);
    assert_eq!(fixture.store.bookkeeping().count_attempt(scope, &key, hash).await.unwrap(), 2);
    fixture.store.bookkeeping().uncount_attempt(scope, &key, hash).await.unwrap();
    assert_eq!(fixture.store.bookkeeping().count_attempt(scope, &key, hash).await.unwrap(), 2);
    for _ in 0..5 {
        fixture.store.bookkeeping().uncount_attempt(scope, &key, hash).await.unwrap();
    }
    assert_eq!(fixture.store.bookkeeping().count_attempt(scope, &key, hash).await.unwrap(), 1);
}

/// D28: a success ends the count of its payload, and of no other's.
pub async fn d28_a_success_ends_the_count_of_its_payload<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let scope = fixture.register().await.scope;
    let (key, hash) = (key_from("order-1"), PayloadHash::of(b"paid"));
    let books = fixture.store.bookkeeping();
    books.end_attempts(scope, &key, hash).await.unwrap();
    for expected in 1..=3 {
        assert_eq!(books.count_attempt(scope, &key, hash).await.unwrap(), expected);
    }
    books.end_attempts(scope, &key, PayloadHash::of(b"refunded")).await.unwrap();
    assert_eq!(books.count_attempt(scope, &key, hash).await.unwrap(), 4, "another payload's count was ended");
    books.end_attempts(scope, &key, hash).await.unwrap();
    assert_eq!(books.count_attempt(scope, &key, hash).await.unwrap(), 1);
}

/// Another payload under the same key is another message: its attempts start anew.
pub async fn another_payload_starts_its_attempts_anew<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let scope = fixture.register().await.scope;
    let key = key_from("order-1");
    let (paid, refunded) = (PayloadHash::of(b"paid"), PayloadHash::of(b"refunded"));
    fixture.store.bookkeeping().count_attempt(scope, &key, paid).await.unwrap();
    assert_eq!(fixture.store.bookkeeping().count_attempt(scope, &key, paid).await.unwrap(), 2);
    assert_eq!(fixture.store.bookkeeping().count_attempt(scope, &key, refunded).await.unwrap(), 1);
    assert_eq!(fixture.store.bookkeeping().count_attempt(scope, &key, refunded).await.unwrap(), 2);
}

/// D30: two payloads that fail in turn under one key are two messages, each with a count of its own: else neither would ever
/// come to an end.
pub async fn d30_two_failing_payloads_of_one_key_do_not_reset_each_other<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let scope = fixture.register().await.scope;
    let (key, books) = (key_from("order-1"), fixture.store.bookkeeping());
    let (paid, refunded) = (PayloadHash::of(b"paid"), PayloadHash::of(b"refunded"));
    for attempt in 1..=5 {
        assert_eq!(books.count_attempt(scope, &key, paid).await.unwrap(), attempt);
        assert_eq!(books.count_attempt(scope, &key, refunded).await.unwrap(), attempt);
    }
    books.uncount_attempt(scope, &key, paid).await.unwrap();
    assert_eq!(
        books.count_attempt(scope, &key, refunded).await.unwrap(),
        6,
        "another payload's attempt was taken back"
    );
    assert_eq!(books.count_attempt(scope, &key, paid).await.unwrap(), 5);
    books.end_attempts(scope, &key, paid).await.unwrap();
    assert_eq!(books.count_attempt(scope, &key, refunded).await.unwrap(), 7, "another payload's count was ended");
    assert_eq!(books.count_attempt(scope, &key, paid).await.unwrap(), 1);
}

/// D4: attempts of one key that are counted by several at once are all counted, and no number is given twice.
pub async fn attempts_counted_at_once_are_all_counted<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let scope = fixture.register().await.scope;
    let calls: Vec<_> = (0..8)
        .map(|_| {
            let store = Arc::clone(&fixture.store);
            tokio::spawn(async move {
                store.bookkeeping().count_attempt(scope, &key_from("order-1"), PayloadHash::of(b"paid")).await.unwrap()
            })
        })
        .collect();
    let mut numbers = Vec::new();
    for call in calls {
        numbers.push(call.await.unwrap());
    }
    numbers.sort_unstable();
    assert_eq!(numbers, (1..=8).collect::<Vec<_>>());
}

/// A dead letter of `orders` as the worker makes one.
pub(super) fn letter(registered: &Registered, message: Message, key: Option<&str>, reason: Reason) -> DeadLetter {
    let hash = message.payload().map_or(PayloadHash::NONE, |payload| PayloadHash::of(payload));
    DeadLetter {
        consumer: ConsumerName::new("orders").unwrap(),
        scope: registered.scope,
        key: key.map(key_from),
        hash: key.map(|_| (hash, registered.hash_rules.first().copied().unwrap_or(HashRuleId(0)))),
        message,
        reason,
        attempts: 5,
        error: "out of stock".to_owned(),
        fingerprint: Fingerprint::of(&FailureKind::new(reason, ErrorClass::Permanent)),
        keep_payload: true,
        payload_omitted: None,
    }
}

pub(super) fn from(origin: &str, key: &str, payload: &str) -> Message {
    msg(key, payload).with_origin(Origin::new(origin))
}

pub(super) async fn store_dead_letter<T: StoreUnderTest>(
    fixture: &Fixture<'_, T>,
    letter: &DeadLetter,
) -> StoredDeadLetter {
    within("parking", fixture.store.bookkeeping().store_dead_letter(letter))
        .await
        .unwrap_or_else(|error| panic!("not stored: {error}"))
}

pub(super) async fn listed<T: StoreUnderTest>(fixture: &Fixture<'_, T>) -> Vec<StoredDeadLetter> {
    let orders = ConsumerName::new("orders").unwrap();
    within("listing dead letters", fixture.store.bookkeeping().dead_letters(&orders, 100)).await.unwrap()
}

pub(super) async fn take<T: StoreUnderTest>(fixture: &Fixture<'_, T>, registered: &Registered) -> Vec<Due> {
    let orders = ConsumerName::new("orders").unwrap();
    within("taking replays", fixture.store.bookkeeping().take_due(&orders, registered.run, DueRoom::rows(10)))
        .await
        .unwrap()
}

/// A dead letter keeps its facts, for every reason; one without key and hash too.
pub async fn a_dead_letter_keeps_its_facts<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let registered = fixture.register().await;
    for (number, reason) in Reason::ALL.into_iter().enumerate() {
        let key = (number % 2 == 0).then_some("order-1");
        let stored = store_dead_letter(
            &fixture,
            &letter(&registered, from(&format!("q/{number}"), "order-1", "p"), key, reason),
        )
        .await;
        assert_eq!((stored.reason, stored.copies, stored.attempts), (reason, 1, 5));
        assert_eq!(stored.key.as_ref().map(|key| key.as_str()), key);
        assert_eq!((stored.origin.as_str(), stored.error.as_str()), (&*format!("q/{number}"), "out of stock"));
        assert!(stored.published_at.is_none() && stored.replayed.is_none());
        let age = stored.first_at.duration_since(registered.now);
        assert!(age.is_ok() || stored.first_at + Duration::from_secs(2) > registered.now, "{stored:?}");
    }
    let listed = listed(&fixture).await;
    assert_eq!(listed.len(), Reason::ALL.len());
    let reasons: Vec<_> = listed.iter().rev().map(|stored| stored.reason).collect();
    assert_eq!(reasons, Reason::ALL, "newest first");
    assert_eq!(listed.iter().map(|stored| stored.id).collect::<HashSet<_>>().len(), listed.len());
}

/// After a crash the same message is dead-lettered again: the same origin changes nothing.
pub async fn the_same_origin_is_stored_once<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let registered = fixture.register().await;
    for key in [Some("order-1"), None] {
        let origin = format!("q/{key:?}");
        let first =
            store_dead_letter(&fixture, &letter(&registered, from(&origin, "order-1", "p"), key, Reason::Permanent))
                .await;
        let again =
            store_dead_letter(&fixture, &letter(&registered, from(&origin, "order-1", "p"), key, Reason::Permanent))
                .await;
        assert_eq!((first.id, again.copies), (again.id, 1));
    }
    assert_eq!(listed(&fixture).await.len(), 2);
}

/// Equal messages with one reason are one row with a count; a copy that comes back is not counted again.
pub async fn equal_dead_letters_are_one_row_with_a_count<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let registered = fixture.register().await;
    let copy = |origin: &str| letter(&registered, from(origin, "order-1", "p"), Some("order-1"), Reason::Permanent);
    let first = store_dead_letter(&fixture, &copy("q/1")).await;
    assert_eq!(store_dead_letter(&fixture, &copy("q/2")).await.copies, 2);
    let again = store_dead_letter(&fixture, &copy("q/2")).await;
    assert_eq!((again.id, again.copies), (first.id, 2));
    assert_eq!(store_dead_letter(&fixture, &copy("q/3")).await.copies, 3);
    let listed = listed(&fixture).await;
    assert_eq!((listed.len(), listed[0].copies, listed[0].origin.as_str()), (1, 3, "q/1"));
}

/// Dead letters that differ in key, payload, reason or consumer are rows of their own, and so are all without a key.
pub async fn different_dead_letters_are_rows_of_their_own<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let registered = fixture.register().await;
    let refunds = fixture.register_as(&registration("refunds")).await.unwrap();
    let of = |origin: &str, key: &str, payload: &str, reason| {
        letter(&registered, from(origin, key, payload), Some(key), reason)
    };
    let mut other_consumer = of("q/1", "order-1", "p", Reason::Permanent);
    (other_consumer.consumer, other_consumer.scope) = (ConsumerName::new("refunds").unwrap(), refunds.scope);
    let without_key = |origin: &str| letter(&registered, from(origin, "order-1", "p"), None, Reason::MissingKey);
    let letters = [
        of("q/1", "order-1", "p", Reason::Permanent),
        of("q/2", "order-2", "p", Reason::Permanent),
        of("q/3", "order-1", "q", Reason::Permanent),
        of("q/4", "order-1", "p", Reason::Conflict),
        other_consumer,
        without_key("q/5"),
        without_key("q/6"),
    ];
    let mut ids = HashSet::new();
    for letter in &letters {
        let stored = store_dead_letter(&fixture, letter).await;
        assert_eq!(stored.copies, 1, "{letter:?}");
        assert!(ids.insert(stored.id), "{letter:?}");
    }
    assert_eq!(listed(&fixture).await.len(), 6);
    let refunds = ConsumerName::new("refunds").unwrap();
    assert_eq!(fixture.store.bookkeeping().dead_letters(&refunds, 100).await.unwrap().len(), 1);
    let newest = fixture.store.bookkeeping().dead_letters(&ConsumerName::new("orders").unwrap(), 2).await.unwrap();
    assert_eq!(newest.iter().map(|stored| stored.origin.as_str()).collect::<Vec<_>>(), ["q/6", "q/5"]);
}

/// The same dead letter stored by several at once is one row.
pub async fn a_dead_letter_stored_at_once_is_one_row<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let registered = fixture.register().await;
    let calls: Vec<_> = (0..8)
        .map(|number| {
            let store: Arc<Seen<T>> = Arc::clone(&fixture.store);
            // Two copies, each stored by four.
            let message = from(&format!("q/{}", number % 2), "order-1", "p");
            let letter = letter(&registered, message, Some("order-1"), Reason::Permanent);
            tokio::spawn(async move { store.bookkeeping().store_dead_letter(&letter).await.map(|stored| stored.id) })
        })
        .collect();
    let mut ids = HashSet::new();
    for call in calls {
        ids.insert(within("parking at once", call).await.unwrap().unwrap());
    }
    assert_eq!(ids.len(), 1);
    let listed = listed(&fixture).await;
    assert_eq!((listed.len(), listed[0].copies), (1, 2));
}

/// S4, S6: a dead letter is never refused for what is in it: quotes, control characters, NUL, invalid UTF-8, no value.
pub async fn a_dead_letter_may_hold_anything<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let registered = fixture.register().await;
    let mut headers = Headers::default();
    headers.push("bytes", Some(Bytes::from_static(b"\0\xff'\";--")));
    headers.push("none", None);
    headers.push("twice", Some(Bytes::from_static(b"1")));
    headers.push("twice", Some(Bytes::from_static(b"2")));
    headers.push("na\"me\u{1}", Some(Bytes::new()));
    let message = Message::new(b"\0\xff\xfe'; DROP TABLE dead_letters; --".to_vec())
        .with_headers(headers.clone())
        .with_origin(Origin::new("queue 'one'/\"1\""))
        .with_id("'id'")
        .with_record_key(b"\0\xff".to_vec())
        .with_ordering_key(OrderingKey::new(b"\0\xff'".to_vec()))
        .with_type("ty\"pe");
    let mut letter = letter(&registered, message.clone(), Some("'; --"), Reason::Malformed);
    letter.error = "it's \"broken\" {} %s \\".to_owned();
    let stored = store_dead_letter(&fixture, &letter).await;
    assert_eq!((stored.error.as_str(), stored.origin.as_str()), (letter.error.as_str(), "queue 'one'/\"1\""));
    assert_eq!(fixture.store.bookkeeping().due_now(&[stored.id], "ann").await.unwrap(), 1);
    let replays = take(&fixture, &registered).await;
    assert_eq!(replays.len(), 1);
    assert_same(&replays[0].message, &message);
    assert_eq!(replays[0].message.headers(), &headers);
}

/// A replayed message is the delivered one in all that a handler may look at.
fn assert_same(replayed: &Message, delivered: &Message) {
    assert_eq!(replayed.payload(), delivered.payload());
    assert_eq!(replayed.headers(), delivered.headers());
    assert_eq!((replayed.id(), replayed.message_type()), (delivered.id(), delivered.message_type()));
    assert_eq!(replayed.record_key(), delivered.record_key());
    assert_eq!(replayed.ordering_key(), delivered.ordering_key());
    assert_eq!(replayed.origin(), delivered.origin());
}

/// A dead letter is marked once its broker has confirmed it.
pub async fn a_published_dead_letter_is_marked<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let registered = fixture.register().await;
    let of = |origin: &str, key: &str| letter(&registered, from(origin, key, "p"), Some(key), Reason::Permanent);
    let (first, second) = (
        store_dead_letter(&fixture, &of("q/1", "order-1")).await,
        store_dead_letter(&fixture, &of("q/2", "order-2")).await,
    );
    fixture.store.bookkeeping().mark_published(first.id).await.unwrap();
    fixture.store.bookkeeping().mark_published(first.id).await.unwrap();
    let listed = listed(&fixture).await;
    assert_eq!(
        listed.iter().map(|stored| (stored.id, stored.published_at.is_some())).collect::<Vec<_>>(),
        [(second.id, false), (first.id, true)]
    );
    assert!(
        store_dead_letter(&fixture, &of("q/1", "order-1")).await.published_at.is_some(),
        "stored again, it is still published"
    );
}

/// C7: a replay is handed out once it is asked for, as the message that was delivered, under its key and scope.
pub async fn a_replay_brings_the_message_as_it_was_delivered<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let registered = fixture.register().await;
    let tombstone = Message::tombstone().with_header("idempotencykey", "order-2").with_origin(Origin::new("q/2"));
    let messages = [from("q/1", "order-1", "paid").with_id("7").with_type("t"), tombstone, from("q/3", "order-3", "")];
    let mut ids = Vec::new();
    for (number, message) in messages.iter().enumerate() {
        let key = format!("order-{}", number + 1);
        ids.push(
            store_dead_letter(&fixture, &letter(&registered, message.clone(), Some(&key), Reason::Permanent)).await.id,
        );
    }
    assert!(take(&fixture, &registered).await.is_empty(), "no replay was asked for yet");
    assert_eq!(fixture.store.bookkeeping().due_now(&ids, "ann").await.unwrap(), 3);
    let mut replays = take(&fixture, &registered).await;
    replays.sort_by_key(|replay| replay.id);
    assert_eq!(
        replays.iter().map(|row| (row.id, row.was_taken)).collect::<Vec<_>>(),
        [(ids[0], false), (ids[1], false), (ids[2], false)]
    );
    for (number, (replay, message)) in replays.iter().zip(&messages).enumerate() {
        assert_same(&replay.message, message);
        assert_eq!(replay.scope, registered.scope);
        assert_eq!(replay.key, Some(key_from(&format!("order-{}", number + 1))));
    }
}

async fn one_requested<T: StoreUnderTest>(fixture: &Fixture<'_, T>, registered: &Registered) -> DeadLetterId {
    let letter = letter(registered, from("q/1", "order-1", "p"), Some("order-1"), Reason::Permanent);
    let id = store_dead_letter(fixture, &letter).await.id;
    assert_eq!(fixture.store.bookkeeping().due_now(&[id], "ann").await.unwrap(), 1);
    id
}

/// Of several workers that take replays at once, each replay goes to one.
pub async fn a_replay_goes_to_one_worker<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let registered = fixture.register().await;
    let mut ids = Vec::new();
    for number in 0..10 {
        let key = format!("order-{number}");
        let letter = letter(&registered, from(&format!("q/{number}"), &key, "p"), Some(&key), Reason::Permanent);
        ids.push(store_dead_letter(&fixture, &letter).await.id);
    }
    assert_eq!(fixture.store.bookkeeping().due_now(&ids, "ann").await.unwrap(), 10);
    let orders = ConsumerName::new("orders").unwrap();
    let mut calls = Vec::new();
    for _ in 0..4 {
        let (store, run, orders) = (Arc::clone(&fixture.store), fixture.register().await.run, orders.clone());
        calls.push(tokio::spawn(
            async move { store.bookkeeping().take_due(&orders, run, DueRoom::rows(4)).await.unwrap() },
        ));
    }
    let mut taken = Vec::new();
    for call in calls {
        let replays = within("taking replays at once", call).await.unwrap();
        assert!(replays.len() <= 4);
        taken.extend(replays.into_iter().map(|replay| replay.id));
    }
    while let more @ [_, ..] = &take(&fixture, &registered).await[..] {
        taken.extend(more.iter().map(|replay| replay.id));
    }
    taken.sort_unstable();
    assert_eq!(taken, ids);
}

/// A replay that has ended is not taken again, says how it ended, and can be asked for anew.
pub async fn a_finished_replay_is_over<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let registered = fixture.register().await;
    let id = one_requested(&fixture, &registered).await;
    let failed = DueEnd::Failed(DueFailure::new(Reason::Permanent, "still out of stock"));
    for end in [failed, DueEnd::Processed, DueEnd::Duplicate] {
        assert_eq!(take(&fixture, &registered).await.len(), 1, "before {end:?}");
        fixture.store.bookkeeping().end_due(registered.run, &[(id, end.clone())]).await.unwrap();
        assert!(take(&fixture, &registered).await.is_empty(), "after {end:?}");
        assert_eq!(listed(&fixture).await[0].replayed, Some(end.outcome()), "after {end:?}");
        assert_eq!(fixture.store.bookkeeping().due_now(&[id], "ann").await.unwrap(), 1, "after {end:?}");
    }
}

/// A replay that did not run, because its worker stopped, goes to another worker.
pub async fn a_released_replay_is_taken_by_another<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let registered = fixture.register().await;
    let id = one_requested(&fixture, &registered).await;
    assert_eq!(take(&fixture, &registered).await.len(), 1);
    fixture.store.bookkeeping().release_due(registered.run, &[id]).await.unwrap();
    let other = fixture.elsewhere().await;
    let taken = take(&other, &other.register().await).await;
    assert_eq!(taken.iter().map(|row| (row.id, row.was_taken)).collect::<Vec<_>>(), [(id, false)]);
}

/// A replay whose worker died goes to another one after a while, and not before.
pub async fn an_abandoned_replay_is_taken_after_a_while<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let registered = fixture.register().await;
    let id = one_requested(&fixture, &registered).await;
    assert_eq!(take(&fixture, &registered).await.len(), 1);
    let other = fixture.elsewhere().await;
    let run = other.register().await;
    let margin = Duration::from_secs(20);
    if !fixture.arrange(Arrangement::Age(DUE_LEASE - margin)).await {
        return assert!(take(&other, &run).await.is_empty());
    }
    assert!(take(&other, &run).await.is_empty());
    fixture.arrange(Arrangement::Age(margin)).await;
    let taken = take(&other, &run).await;
    assert_eq!(taken.iter().map(|row| (row.id, row.was_taken)).collect::<Vec<_>>(), [(id, true)]);
}

/// A dead letter whose payload was not kept is never handed out, because without its payload it would be another message.
pub async fn a_dead_letter_without_its_payload_is_not_replayed<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let registered = fixture.register().await;
    let mut letter = letter(&registered, from("q/1", "order-1", "p"), Some("order-1"), Reason::TooLarge);
    letter.keep_payload = false;
    let id = store_dead_letter(&fixture, &letter).await.id;
    assert_eq!(fixture.store.bookkeeping().due_now(&[id], "ann").await.unwrap(), 0);
    assert!(take(&fixture, &registered).await.is_empty());
    assert_eq!(listed(&fixture).await.len(), 1);
}

/// A replay of what does not exist marks nothing, and one that is under way is not asked for again.
pub async fn only_known_and_idle_dead_letters_can_be_replayed<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let registered = fixture.register().await;
    let id = one_requested(&fixture, &registered).await;
    assert_eq!(fixture.store.bookkeeping().due_now(&[], "ann").await.unwrap(), 0);
    assert_eq!(fixture.store.bookkeeping().due_now(&[DeadLetterId(id.0 + 1000), id], "ann").await.unwrap(), 0);
    assert_eq!(take(&fixture, &registered).await.len(), 1);
    assert_eq!(fixture.store.bookkeeping().due_now(&[id], "ann").await.unwrap(), 0, "it was taken and not finished");
    let unknown = ConsumerName::new("nobody").unwrap();
    assert!(
        fixture.store.bookkeeping().take_due(&unknown, registered.run, DueRoom::rows(10)).await.unwrap().is_empty()
    );
    let park_elsewhere =
        DeadLetter { scope: NO_SCOPE, ..letter(&registered, from("q/9", "k", "p"), Some("k"), Reason::Permanent) };
    // A scope that the store does not know may be refused, but never mixed up with another.
    drop(fixture.store.bookkeeping().store_dead_letter(&park_elsewhere).await);
    assert!(listed(&fixture).await.iter().filter(|stored| stored.id == id).all(|stored| stored.copies == 1));
}

/// Old dead letters go with cleanup, those that await a replay stay.
pub async fn cleanup_keeps_what_awaits_a_replay<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let registered = fixture.register().await;
    let waiting = one_requested(&fixture, &registered).await;
    store_dead_letter(&fixture, &letter(&registered, from("q/2", "order-2", "p"), Some("order-2"), Reason::Permanent))
        .await;
    fixture
        .store
        .bookkeeping()
        .count_attempt(registered.scope, &key_from("order-3"), PayloadHash::of(b"p"))
        .await
        .unwrap();
    if !fixture.arrange(Arrangement::Age(40 * DAY)).await {
        return;
    }
    let new = store_dead_letter(
        &fixture,
        &letter(&registered, from("q/4", "order-4", "p"), Some("order-4"), Reason::Permanent),
    )
    .await;
    for kind in [Expiring::DeadLetters, Expiring::Attempts] {
        assert_eq!(clean(&fixture, kind, 30 * DAY, 1000).await, 1, "{kind}");
    }
    let left: Vec<_> = listed(&fixture).await.into_iter().map(|stored| stored.id).collect();
    assert_eq!(left, [new.id, waiting]);
    let hash = PayloadHash::of(b"p");
    assert_eq!(
        fixture.store.bookkeeping().count_attempt(registered.scope, &key_from("order-3"), hash).await.unwrap(),
        1
    );
}
