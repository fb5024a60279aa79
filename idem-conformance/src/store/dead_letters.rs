//! Which dead letters are one row. Only copies are. A message is acknowledged after this, so it would be lost in the row of
//! another that it merely resembles.

use std::{collections::HashSet, sync::Arc};

use idem_core::{
    Bytes, ConsumerName, DedupConsumer, Effects, ErrorClass, HandlerError, Message, Store as _, Tenant,
    consumer::{Decided, Keep, SetAside},
    dead_letter::{DeadLetter, DeadLetterId, DueEnd, FailureKind, Fingerprint, Reason, StoredDeadLetter},
    hash::PayloadHash,
    message::Origin,
    store::{Bookkeeping, ControlState, Registered},
};

use super::{
    events::announcer,
    failures::{from, letter, listed, store_dead_letter, take},
    fixture::{Fixture, key_from, registration},
    subject::StoreUnderTest,
};

/// Asks for the replay of all of them, and answers with their payloads, in the order of the rows.
async fn payloads<T: StoreUnderTest>(
    fixture: &Fixture<'_, T>,
    registered: &Registered,
    stored: &[DeadLetterId],
) -> Vec<Option<String>> {
    assert_eq!(
        fixture.store.bookkeeping().due_now(stored, "ann").await.unwrap(),
        stored.len() as u64,
        "all can be replayed"
    );
    let mut replays = take(fixture, registered).await;
    replays.sort_by_key(|replay| replay.id);
    let text = |bytes: &Bytes| String::from_utf8(bytes.to_vec()).unwrap();
    replays.iter().map(|replay| replay.message.payload().map(text)).collect()
}

fn some(texts: &[&str]) -> Vec<Option<String>> {
    texts.iter().map(|text| Some((*text).to_owned())).collect()
}

/// A29: a broker uses an origin again, as Kafka does when a topic is created anew. The other message is another dead letter,
/// whole, with a key and without.
pub async fn a29_another_message_at_a_used_origin_is_another_dead_letter<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let registered = fixture.register().await;
    let letters = [
        letter(&registered, from("q/1", "order-1", "paid"), Some("order-1"), Reason::Permanent),
        letter(&registered, from("q/1", "order-2", "shipped"), Some("order-2"), Reason::Permanent),
        letter(&registered, from("q/1", "order-1", "refunded"), Some("order-1"), Reason::Permanent),
        letter(&registered, from("q/2", "", "first"), None, Reason::MissingKey),
        letter(&registered, from("q/2", "", "second"), None, Reason::MissingKey),
    ];
    let mut ids = Vec::new();
    for letter in &letters {
        let stored = store_dead_letter(&fixture, letter).await;
        assert_eq!((stored.copies, stored.key.as_ref()), (1, letter.key.as_ref()));
        ids.push(stored.id);
    }
    assert_eq!(ids.iter().collect::<HashSet<_>>().len(), letters.len());
    let expected = some(&["paid", "shipped", "refunded", "first", "second"]);
    assert_eq!(payloads(&fixture, &registered, &ids).await, expected);
}

/// A29: only a true copy raises the count. Headers may differ from copy to copy; those of the first are kept.
pub async fn a29_a_copy_from_another_origin_is_counted<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let registered = fixture.register().await;
    let copy = |origin: &str, trace: &str| {
        let message = from(origin, "order-1", "p").with_header("trace", trace.to_owned());
        letter(&registered, message, Some("order-1"), Reason::Permanent)
    };
    let first = store_dead_letter(&fixture, &copy("q/1", "one")).await;
    // Another message uses the origin of the first in between.
    store_dead_letter(
        &fixture,
        &letter(&registered, from("q/1", "order-2", "other"), Some("order-2"), Reason::Permanent),
    )
    .await;
    let second = store_dead_letter(&fixture, &copy("q/2", "two")).await;
    assert_eq!((second.id, second.copies, second.origin.as_str()), (first.id, 2, "q/1"));
    assert_eq!(store_dead_letter(&fixture, &copy("q/1", "one")).await.copies, 2, "a crash brings the first one back");
    assert_eq!(fixture.store.bookkeeping().due_now(&[first.id], "ann").await.unwrap(), 1);
    assert_eq!(take(&fixture, &registered).await[0].message.headers().text("trace"), Some("one"));
}

/// S59: what an operator replays or drops together failed for one cause: an unknown variant, a missing field and a text that is not JSON
/// are three groups. The values do not count, so two unknown variants are one.
pub async fn s59_malformed_payloads_of_several_causes_are_several_groups<T: StoreUnderTest>(subject: &T) {
    #[derive(serde::Deserialize)]
    #[serde(rename_all = "lowercase")]
    #[allow(dead_code, reason = "it is only decoded")]
    enum Kind {
        Sale,
        Refund,
    }
    #[derive(serde::Deserialize)]
    #[allow(dead_code, reason = "it is only decoded")]
    struct Order {
        kind: Kind,
        cents: u64,
    }
    let fixture = Fixture::new(subject);
    fixture.register().await;
    let read = |message: &Message| {
        message.json::<Order>().map_err(|error| HandlerError::from(error).with_class(ErrorClass::Permanent))?;
        Ok(Vec::new())
    };
    let builder = DedupConsumer::builder(Arc::clone(&fixture.store), "orders").effects(Effects::InTransaction);
    let consumer = builder.handler(announcer::<T>(read)).build().unwrap();
    let payloads = [
        r#"{"kind":"gift","cents":1}"#,
        r#"{"kind":"loan","cents":22}"#,
        r#"{"kind":"sale"}"#,
        r#"{"kind":"sale","cents":"1"}"#,
        "<order/>",
        r#"{"kind":"sale""#,
    ];
    for (number, payload) in payloads.into_iter().enumerate() {
        let message = from(&format!("q/{number}"), &format!("order-{number}"), payload);
        let Decided { message, decision, .. } = consumer.process_one(message).await.unwrap();
        assert_eq!(consumer.set_aside(&message, &decision, Keep::Payload).await.unwrap(), SetAside::Whole);
    }
    let mut groups: Vec<_> = listed(&fixture).await.iter().map(|stored| (stored.reason, stored.fingerprint)).collect();
    groups.reverse();
    assert!(groups.iter().all(|(reason, _)| *reason == Reason::Malformed), "{groups:?}");
    assert_eq!(groups[0], groups[1], "two values of one cause");
    assert_eq!(groups.iter().map(|(_, group)| group).collect::<HashSet<_>>().len(), 5, "{groups:?}");
}

/// A letter whose replay has ended, and how it is listed.
async fn replayed<T: StoreUnderTest>(
    fixture: &Fixture<'_, T>,
    registered: &Registered,
    letter: &DeadLetter,
) -> DeadLetterId {
    let id = store_dead_letter(fixture, letter).await.id;
    assert_eq!(fixture.store.bookkeeping().due_now(&[id], "ann").await.unwrap(), 1);
    assert_eq!(take(fixture, registered).await.len(), 1);
    fixture.store.bookkeeping().end_due(registered.run, &[(id, DueEnd::Processed)]).await.unwrap();
    id
}

/// A29: a replayed dead letter is over, and another message that uses its origin is not taken for it: it awaits the
/// operator.
pub async fn a29_a_replayed_dead_letter_is_not_revived_by_another_message<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let registered = fixture.register().await;
    for key in [Some("order-1"), None] {
        let of = |payload: &str| letter(&registered, from(&format!("q/{key:?}"), "", payload), key, Reason::Malformed);
        let over = replayed(&fixture, &registered, &of("old")).await;
        let stored = store_dead_letter(&fixture, &of("new")).await;
        assert!(stored.id != over && stored.replayed.is_none(), "{stored:?}");
        let row = listed(&fixture).await.into_iter().find(|row| row.id == over).unwrap();
        assert!(row.replayed.is_some() && row.copies == 1, "{row:?}");
    }
}

/// A29: a copy that comes after the replay has ended puts the row before the operator again; one that a crash brings back
/// does not.
pub async fn a29_a_copy_puts_a_replayed_dead_letter_before_the_operator_again<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let registered = fixture.register().await;
    let copy = |origin: &str| letter(&registered, from(origin, "order-1", "p"), Some("order-1"), Reason::Permanent);
    let id = replayed(&fixture, &registered, &copy("q/1")).await;
    let again = store_dead_letter(&fixture, &copy("q/1")).await;
    assert!(again.id == id && again.replayed.is_some(), "a crash brings the first one back: {again:?}");
    let copy = store_dead_letter(&fixture, &copy("q/2")).await;
    assert!(copy.id == id && copy.copies == 2 && copy.replayed.is_none(), "{copy:?}");
    assert_eq!(fixture.store.bookkeeping().due_now(&[id], "ann").await.unwrap(), 1);
}

/// A30: without a key nothing says that two messages are one, however equal they are: each origin has a row of its own. The
/// very same message at its origin, which a crash brings back, is one row.
pub async fn a30_without_a_key_each_origin_is_a_row_and_a_redelivery_is_none<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let registered = fixture.register().await;
    let messages = [from("q/1", "", "p"), from("q/2", "", "p"), Message::tombstone().with_origin(Origin::new("q/3"))];
    let mut ids = Vec::new();
    for message in messages.iter().chain(&messages) {
        let stored = store_dead_letter(&fixture, &letter(&registered, message.clone(), None, Reason::MissingKey)).await;
        assert_eq!((stored.copies, stored.origin.as_str()), (1, message.origin().as_str()));
        ids.push(stored.id);
    }
    assert_eq!(ids[..3], ids[3..]);
    assert_eq!(listed(&fixture).await.len(), 3);
}

/// A30: without a key a message is its headers, record key and type as much as its payload.
pub async fn a30_without_a_key_other_headers_or_another_record_key_are_another_row<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let registered = fixture.register().await;
    let plain = || from("q/1", "", "p");
    let messages = [
        plain(),
        plain().with_header("a", "1"),
        plain().with_header("a", "2"),
        plain().with_record_key("customer-1"),
        plain().with_record_key("customer-2"),
        plain().with_type("paid"),
        Message::tombstone().with_headers(plain().headers().clone()).with_origin(Origin::new("q/1")),
    ];
    let mut ids = HashSet::new();
    for message in messages {
        ids.insert(store_dead_letter(&fixture, &letter(&registered, message, None, Reason::Malformed)).await.id);
    }
    assert_eq!((ids.len(), listed(&fixture).await.len()), (7, 7));
}

/// A31: payloads that the consumer's rule cannot hash are compared byte for byte, under a key too.
pub async fn a31_payloads_that_cannot_be_hashed_do_not_fold<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let registered = fixture.register().await;
    let unhashed = |origin: &str, payload: &str| DeadLetter {
        hash: None,
        ..letter(&registered, from(origin, "order-1", payload), Some("order-1"), Reason::Malformed)
    };
    let first = store_dead_letter(&fixture, &unhashed("q/1", "<order>first</order>")).await.id;
    let second = store_dead_letter(&fixture, &unhashed("q/2", "<order>second, quite different</order>")).await.id;
    let hashed =
        letter(&registered, from("q/3", "order-1", "<order>first</order>"), Some("order-1"), Reason::Malformed);
    let hashed = store_dead_letter(&fixture, &hashed).await.id;
    assert_eq!([first, second, hashed].iter().collect::<HashSet<_>>().len(), 3);
    let copy = store_dead_letter(&fixture, &unhashed("q/4", "<order>first</order>")).await;
    assert_eq!((copy.id, copy.copies), (first, 2), "the same bytes under the same key are a copy");
    let expected = some(&["<order>first</order>", "<order>second, quite different</order>"]);
    assert_eq!(payloads(&fixture, &registered, &[first, second]).await, expected);
}

/// A32: that a dead letter was published is known of its content, wherever a copy of it comes from, and of no other.
pub async fn a32_a_confirmation_is_for_exactly_one_content<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let registered = fixture.register().await;
    let of = |origin: &str, payload: &str| {
        letter(&registered, from(origin, "order-1", payload), Some("order-1"), Reason::Permanent)
    };
    let first = store_dead_letter(&fixture, &of("q/1", "paid")).await;
    fixture.store.bookkeeping().mark_published(first.id).await.unwrap();
    assert!(store_dead_letter(&fixture, &of("q/1", "paid")).await.published_at.is_some());
    assert!(
        store_dead_letter(&fixture, &of("q/2", "paid")).await.published_at.is_some(),
        "a copy of what was confirmed"
    );
    for origin in ["q/1", "q/2"] {
        assert!(
            store_dead_letter(&fixture, &of(origin, "refunded")).await.published_at.is_none(),
            "another payload at {origin}"
        );
    }
    let without_key = |payload: &str| letter(&registered, from("q/1", "", payload), None, Reason::MissingKey);
    let stored = store_dead_letter(&fixture, &without_key("paid")).await;
    assert!(stored.published_at.is_none() && stored.id != first.id);
    fixture.store.bookkeeping().mark_published(stored.id).await.unwrap();
    assert!(store_dead_letter(&fixture, &without_key("refunded")).await.published_at.is_none());
}

/// A row says whether it has the whole payload. One that was over the limit is kept once the limit is raised, because the
/// message waits for just that.
pub async fn a_payload_that_was_over_the_limit_is_kept_by_a_later_copy<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let registered = fixture.register().await;
    for key in [Some("order-1"), None] {
        let message = from(&format!("q/{key:?}"), "order-1", "a long one");
        let whole = letter(&registered, message, key, Reason::TooLarge);
        let small = DeadLetter { keep_payload: false, ..whole.clone() };
        let state = |stored: &StoredDeadLetter| (stored.payload_kept, stored.loss_accepted, stored.copies);
        let first = store_dead_letter(&fixture, &small).await;
        assert_eq!(state(&first), (false, false, 1));
        assert_eq!(state(&store_dead_letter(&fixture, &small).await), (false, false, 1));
        let kept = store_dead_letter(&fixture, &whole).await;
        assert_eq!((state(&kept), kept.id), ((true, false, 1), first.id));
        assert_eq!(state(&store_dead_letter(&fixture, &small).await), (true, false, 1), "what is kept stays");
        assert_eq!(payloads(&fixture, &registered, &[first.id]).await, some(&["a long one"]));
        fixture.store.bookkeeping().end_due(registered.run, &[(first.id, DueEnd::Processed)]).await.unwrap();
    }
    let tombstone = Message::tombstone().with_origin(Origin::new("q/t"));
    let nothing = DeadLetter { keep_payload: false, ..letter(&registered, tombstone, None, Reason::MissingKey) };
    assert!(store_dead_letter(&fixture, &nothing).await.payload_kept, "there is nothing to lose");
}

/// D51: under a rule that hashes some members of a payload, its copies may differ in length, and any of them may be the one
/// that the limit lets through.
pub async fn d51_a_copy_of_another_length_is_kept<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    // Under a rule of the bytes, no copy of another length has the same hash, and the store compares it.
    let of_members = registration("orders").hash_rules(vec!["json-only/1:[\"/order\"]".to_owned()]);
    let registered = fixture.register_as(&of_members).await.unwrap();
    let of = |origin: &str, payload: &str| {
        let letter = letter(&registered, from(origin, "order-1", payload), Some("order-1"), Reason::Permanent);
        let hash = letter.hash.map(|(_, rule)| (PayloadHash::of(b"the members that count"), rule));
        DeadLetter { hash, ..letter }
    };
    let long = "sent again, at one".repeat(1_000);
    let first = store_dead_letter(&fixture, &DeadLetter { keep_payload: false, ..of("q/1", "sent at noon") }).await;
    assert!(!first.payload_kept);
    let kept = store_dead_letter(&fixture, &of("q/2", &long)).await;
    assert_eq!((kept.id, kept.payload_kept, kept.copies), (first.id, true, 2));
    let bytes = fixture.store.bookkeeping().dead_letter_bytes(&ConsumerName::new("orders").unwrap(), 0).await.unwrap();
    assert!(bytes > long.len() as u64, "a quota counts what is kept: {bytes}");
    let another = store_dead_letter(&fixture, &of("q/3", "and again")).await;
    assert_eq!((another.id, another.copies), (first.id, 3));
    assert_eq!(payloads(&fixture, &registered, &[first.id]).await, some(&[&long]), "what is kept stays");
}

/// A row shows how its last copy failed.
pub async fn a_dead_letter_has_the_fingerprint_of_its_last_failure<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let registered = fixture.register().await;
    let failed = |origin: &str, code: &'static str| {
        let letter = letter(&registered, from(origin, "order-1", "p"), Some("order-1"), Reason::Permanent);
        let failure = FailureKind::new(Reason::Permanent, ErrorClass::Permanent);
        DeadLetter {
            fingerprint: Fingerprint::of(&FailureKind { code: Some(code), ..failure }),
            error: format!("SQLSTATE {code}"),
            ..letter
        }
    };
    for (origin, code) in [("q/1", "23514"), ("q/2", "22003")] {
        let letter = failed(origin, code);
        let stored = store_dead_letter(&fixture, &letter).await;
        assert_eq!((stored.fingerprint, stored.error), (Some(letter.fingerprint), letter.error));
    }
    assert_eq!(listed(&fixture).await[0].fingerprint, Some(failed("q/2", "22003").fingerprint));
}

/// Equal letters of two consumers are two.
pub async fn equal_dead_letters_of_two_scopes_are_two_rows<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let registered = fixture.register().await;
    let refunds = fixture.register_as(&registration("refunds")).await.unwrap();
    for key in [Some("order-1"), None] {
        let ours = letter(&registered, from("q/1", "order-1", "p"), key, Reason::Permanent);
        let mut theirs = ours.clone();
        (theirs.consumer, theirs.scope) = (ConsumerName::new("refunds").unwrap(), refunds.scope);
        let (ours, theirs) = (store_dead_letter(&fixture, &ours).await, store_dead_letter(&fixture, &theirs).await);
        assert!(ours.id != theirs.id && theirs.copies == 1, "{theirs:?}");
    }
}

/// The number of the next attempt of a payload of `order-1`, which is counted by this.
async fn next_attempt<T: StoreUnderTest>(fixture: &Fixture<'_, T>, registered: &Registered, payload: &str) -> u32 {
    let hash = PayloadHash::of(payload.as_bytes());
    fixture.store.bookkeeping().count_attempt(registered.scope, &key_from("order-1"), hash).await.unwrap()
}

/// D14: a message that is set aside has no attempt counted any more. A copy that comes later has all its attempts, fails as
/// the first did, and is counted there: with none left it would be a second dead letter, for its attempts.
pub async fn d14_a_message_that_is_set_aside_has_no_attempt_counted<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let registered = fixture.register().await;
    let copy = |origin| letter(&registered, from(origin, "order-1", "paid"), Some("order-1"), Reason::Permanent);
    for (origin, copies) in [("q/1", 1), ("q/2", 2), ("q/3", 3)] {
        for attempt in 1..=5 {
            assert_eq!(next_attempt(&fixture, &registered, "paid").await, attempt, "{origin}");
        }
        assert_eq!(store_dead_letter(&fixture, &copy(origin)).await.copies, copies);
    }
    assert_eq!(listed(&fixture).await.len(), 1);
}

/// D15: a dead letter ends the count of its own payload alone. A conflict that comes again and again would else let the
/// message whose key it uses begin anew each time, and one that kills its process would do so for ever.
pub async fn d15_a_dead_letter_ends_no_count_of_another_payload<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let registered = fixture.register().await;
    assert_eq!(next_attempt(&fixture, &registered, "paid").await, 1);
    let conflict = |origin| letter(&registered, from(origin, "order-1", "refunded"), Some("order-1"), Reason::Conflict);
    for (origin, attempt) in [("q/1", 2), ("q/2", 3), ("q/3", 4)] {
        store_dead_letter(&fixture, &conflict(origin)).await;
        assert_eq!(next_attempt(&fixture, &registered, "paid").await, attempt, "{origin}");
    }
}

/// C14: a replay has all its attempts, even if some were counted since its message was set aside, and empties the caches of
/// committed keys: an operator may have forgotten the key for it.
pub async fn c14_a_replay_has_all_its_attempts_and_empties_caches<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let registered = fixture.register().await;
    let paid = letter(&registered, from("q/1", "order-1", "paid"), Some("order-1"), Reason::Permanent);
    let id = store_dead_letter(&fixture, &paid).await.id;
    for attempt in 1..=5 {
        assert_eq!(next_attempt(&fixture, &registered, "paid").await, attempt);
    }
    let epoch = fixture.store.bookkeeping().control(registered.scope).await.unwrap().epoch;
    assert_eq!(fixture.store.bookkeeping().due_now(&[id], "ann").await.unwrap(), 1);
    assert_eq!(next_attempt(&fixture, &registered, "paid").await, 1);
    assert!(fixture.store.bookkeeping().control(registered.scope).await.unwrap().epoch > epoch);
    // The state that an operator has set is not touched.
    fixture.store.bookkeeping().set_control(registered.scope, ControlState::Paused, "ann", "a look").await.unwrap();
    assert_eq!(take(&fixture, &registered).await.len(), 1);
    fixture.store.bookkeeping().end_due(registered.run, &[(id, DueEnd::Processed)]).await.unwrap();
    assert_eq!(fixture.store.bookkeeping().due_now(&[id], "ann").await.unwrap(), 1);
    assert_eq!(fixture.store.bookkeeping().control(registered.scope).await.unwrap().state, ControlState::Paused);
}

/// S23: the bytes that a quota counts: the dead letters of one consumer, over all its tenants, payloads that are kept above
/// all, and without those that a replay has handled.
pub async fn s23_the_bytes_of_a_consumers_dead_letters_are_its_own<T: StoreUnderTest>(subject: &T) {
    const PAYLOAD: u64 = 100_000;
    let fixture = Fixture::new(subject);
    let registered = fixture.register().await;
    let (orders, other) =
        (ConsumerName::new("orders").unwrap(), fixture.register_as(&registration("other")).await.unwrap());
    let bytes = async |name: &ConsumerName| fixture.store.bookkeeping().dead_letter_bytes(name, 0).await.unwrap();
    let of = |scope: &Registered, consumer: &str, origin: &str| DeadLetter {
        consumer: ConsumerName::new(consumer).unwrap(),
        ..letter(scope, from(origin, "", &"x".repeat(PAYLOAD as usize)), None, Reason::Malformed)
    };
    assert_eq!(bytes(&orders).await, 0);
    let first = store_dead_letter(&fixture, &of(&registered, "orders", "q/1")).await;
    store_dead_letter(&fixture, &of(&other, "other", "q/1")).await;
    let one = bytes(&orders).await;
    assert!((PAYLOAD..PAYLOAD + 2_000).contains(&one), "{one}");
    let tenant = Tenant::new("acme").unwrap();
    let scope = fixture.store.bookkeeping().scope(&orders, &tenant).await.unwrap();
    store_dead_letter(&fixture, &DeadLetter { scope, ..of(&registered, "orders", "q/2") }).await;
    store_dead_letter(&fixture, &DeadLetter { keep_payload: false, ..of(&registered, "orders", "q/3") }).await;
    let three = bytes(&orders).await;
    assert!(
        (2 * PAYLOAD..2 * PAYLOAD + 6_000).contains(&three) && three > 2 * one,
        "a row without a payload counts too: {three}"
    );
    // A dead letter that a replay has handled waits for cleanup alone.
    assert_eq!(fixture.store.bookkeeping().due_now(&[first.id], "ann").await.unwrap(), 1);
    assert_eq!(bytes(&orders).await, three);
    assert_eq!(take(&fixture, &registered).await.len(), 1);
    fixture.store.bookkeeping().end_due(registered.run, &[(first.id, DueEnd::Processed)]).await.unwrap();
    assert_eq!(bytes(&orders).await, three - one);
    // A total below the limit is answered in full.
    let all = fixture.store.bookkeeping().dead_letter_bytes(&orders, u64::MAX).await.unwrap();
    assert!(all > 0, "{all}");
}

/// S24: the tables' sizes are reported, so that their growth can be watched.
pub async fn s24_the_tables_sizes_are_told<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let registered = fixture.register().await;
    // Nothing that a database could compress away.
    let payload: String = (0..300_000).map(|_| fastrand::alphanumeric()).collect();
    let orders = ConsumerName::new("orders").unwrap();
    let before = fixture.store.bookkeeping().usage(&orders).await.unwrap().dead_letter_bytes.unwrap();
    store_dead_letter(&fixture, &letter(&registered, from("q/1", "", &payload), None, Reason::Malformed)).await;
    let after = fixture.store.bookkeeping().usage(&orders).await.unwrap();
    assert!(after.dead_letter_bytes.unwrap() >= before + 200_000, "{before}, then {after:?}");
}
