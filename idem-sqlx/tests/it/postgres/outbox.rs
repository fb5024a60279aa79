//! Messages out and answers kept, beyond the suite of every store.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use idem_core::{
    ConsumerName, DedupConsumer, Effects, ErrorClass, Event, Handler, HandlerError, IdempotencyKey, Message,
    ResultBody, Store as _, Tx,
    cleanup::{Expiring, Removal, Removed},
    config::RetryPolicy,
    outbox::{
        AppendError, Destination, Dispatch, EventEnd, EventError, EventPublisher, EventState, LeaseRequest, Leased,
        Outbox, OutgoingEvent,
    },
    relay::{Relay, Route},
};
use idem_sqlx::{PostgresStore, PublishPlainError};
use idem_testkit::message;
use sqlx::{Connection as _, Row as _};

use super::{consumers::write, fixture::Fixture};

/// Writes its effect, publishes and answers.
struct Answers;

impl Handler<PostgresStore> for Answers {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, PostgresStore>) -> Result<(), HandlerError> {
        write(tx.connection(), message).await?;
        tx.publish(message, Event::to("payments").body("1"))?;
        tx.set_result(message, ResultBody::new("an answer").with_status(201))?;
        Ok(())
    }
}

fn consumer(fixture: &Fixture) -> DedupConsumer<PostgresStore> {
    let builder = DedupConsumer::builder(fixture.store.clone(), "orders").handler(Answers);
    builder.effects(Effects::InTransaction).publish_to(["payments"]).keep_results(100).build().unwrap()
}

fn outbox(fixture: &Fixture) -> Arc<dyn Outbox> {
    Arc::new(fixture.store.clone()).outbox().unwrap()
}

/// Publishes inside of a nested transaction that it rolls back.
struct PublishesNested;

impl Handler<PostgresStore> for PublishesNested {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, PostgresStore>) -> Result<(), HandlerError> {
        let (connection, handing_in) = tx.parts();
        let mut nested = connection.begin().await?;
        write(&mut nested, message).await?;
        handing_in.publish(message, Event::to("payments").body("1"))?;
        nested.rollback().await?;
        Ok(())
    }
}

/// An event belongs to its message, not to the nested transaction in which it was handed in.
#[tokio::test]
async fn an_event_outlives_the_nested_transaction_in_which_it_was_handed_in() {
    let fixture = Fixture::new().await;
    let builder = DedupConsumer::builder(fixture.store.clone(), "orders").handler(PublishesNested);
    let consumer = builder.effects(Effects::InTransaction).publish_to(["payments"]).build().unwrap();
    consumer.process_one(message("a", "p")).await.unwrap();
    assert_eq!(fixture.text("SELECT count(*) FROM outbox").await, "1");
    assert!(fixture.effects().await.is_empty());
    drop(consumer);
    fixture.drop().await;
}

/// Takes long over each event, and sends nothing.
struct Refused;

#[async_trait]
impl EventPublisher for Refused {
    async fn publish_events(&self, events: &[&OutgoingEvent]) -> Vec<Result<(), EventError>> {
        tokio::time::sleep(Duration::from_millis(600)).await;
        events.iter().map(|_| Err(EventError::not_sent("refused"))).collect()
    }

    fn dispatch(&self) -> Dispatch {
        Dispatch::Each { at_once: 4 }
    }
}

/// O100: a relay notes an event as sent while it is under way, and takes that back once it knows better.
#[allow(clippy::disallowed_methods, reason = "the relay waits for its next try, with no unit under way")]
#[tokio::test]
async fn o100_a_slow_try_that_sent_nothing_leaves_no_mark() {
    let fixture = Fixture::new().await;
    consumer(&fixture).process_one(message("a", "p")).await.unwrap();
    let minute = Duration::from_secs(60);
    let route = Route::to("payments", Refused).retry(RetryPolicy::new(10, minute, minute));
    let relay = Relay::builder(outbox(&fixture)).route(route).build().unwrap();
    let relay = tokio::spawn(relay.run(std::future::pending()));
    let (mut was_marked, marked) = (false, "SELECT count(*) FROM outbox WHERE first_sent_at IS NOT NULL");
    while fixture.text("SELECT attempts FROM outbox").await == "0" {
        was_marked |= fixture.text(marked).await == "1";
    }
    relay.abort();
    assert!(was_marked, "it may die meanwhile");
    let listed = outbox(&fixture).events(None, None, 1).await.unwrap();
    assert_eq!((listed[0].state, listed[0].event.first_sent_ago), (EventState::Waiting, None), "{listed:?}");
    fixture.drop().await;
}

/// Answers go with their records.
#[tokio::test]
async fn answers_are_removed_with_their_records() {
    let fixture = Fixture::new().await;
    for key in ["a", "b"] {
        consumer(&fixture).process_one(message(key, "p")).await.unwrap();
    }
    fixture
        .run("UPDATE processed_messages SET expires_at = now() - interval '1 hour' WHERE idempotency_key = 'a'")
        .await;
    let removal =
        Removal { kind: Expiring::Records, kept: Duration::ZERO, rows_max: 10, timeout: Duration::from_secs(30) };
    let removed = Arc::new(fixture.store.clone()).cleaner().remove(&removal).await.unwrap();
    assert!(matches!(removed, Removed::Rows(1)), "{removed:?}");
    let keys = "SELECT idempotency_key FROM processed_messages JOIN processed_results USING (consumer, key_id)";
    assert_eq!(fixture.texts(keys).await, ["b"]);
    assert_eq!(fixture.text("SELECT count(*) FROM processed_results").await, "1");
    fixture.drop().await;
}

/// O23: a relay that asks again examines a handful of rows, however many wait behind one that failed.
#[tokio::test]
async fn o23_followers_of_one_key_are_met_once() {
    let fixture = Fixture::new().await;
    let outbox = outbox(&fixture);
    let id = outbox.declare(&["payments".into()]).await.unwrap()[0].id;
    fixture.store.plain_outbox("writer", ["payments"]).await.unwrap();
    let rows = "
        INSERT INTO outbox (number, destination, consumer, key_id, event_key, event_hash, ordering_key, payload)
        SELECT nextval('outbox_numbers'), (SELECT id FROM outbox_destinations), (SELECT id FROM consumers), gen_random_uuid(), 'k' || n, '', convert_to(CASE WHEN n <= 100000 THEN 'a' ELSE n::text END, 'UTF8'), 'x'
        FROM generate_series(1, 100010) AS n";
    fixture.run(rows).await;
    let first = outbox.next(id, 10, 1_000_000).await.unwrap();
    let end = EventEnd::Failed { error: "never".to_owned(), may_be_sent: false };
    outbox.settle(id, &[(&first[0], end)]).await.unwrap();
    let others = outbox.next(id, 10, 1_000_000).await.unwrap();
    assert_eq!(others.first().map(|event| event.key.as_str()), Some("k100001"));
    let mut connection = fixture.connect().await;
    let mut looking = connection.begin().await.unwrap();
    sqlx::query("SELECT number FROM next_events((SELECT id FROM outbox_destinations), 10, 1000000)")
        .fetch_all(&mut *looking)
        .await
        .unwrap();
    let examined = "SELECT coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0) FROM pg_stat_xact_user_tables
        WHERE relname = 'outbox' AND schemaname = current_schema()";
    let examined: i64 = sqlx::query(examined).fetch_one(&mut *looking).await.unwrap().get(0);
    assert!((1..100).contains(&examined), "{examined} rows were examined for ten events");
    looking.rollback().await.unwrap();
    fixture.drop().await;
}

/// Puts in and publishes this many events, by as many looks as that takes.
async fn published(fixture: &Fixture, outbox: &Arc<dyn Outbox>, events: usize) {
    published_with(fixture, outbox, events, 0).await;
}

/// The same, with this many that are there already.
async fn published_with(fixture: &Fixture, outbox: &Arc<dyn Outbox>, events: usize, there: usize) {
    let put = format!(
        "INSERT INTO outbox (number, destination, consumer, key_id, event_key, event_hash, payload)
         SELECT nextval('outbox_numbers'), (SELECT id FROM outbox_destinations), (SELECT id FROM consumers), gen_random_uuid(), 'k' || n, '', 'x' FROM generate_series(1, {events}) AS n"
    );
    fixture.run(&put).await;
    let id = outbox.declare(&["payments".into()]).await.unwrap()[0].id;
    let mut gone = 0;
    while gone < events + there {
        let next = outbox.next(id, 2_000, 1_000_000).await.unwrap();
        let ends: Vec<_> = next.iter().map(|event| (event, EventEnd::Published)).collect();
        outbox.settle(id, &ends).await.unwrap();
        gone += ends.len();
    }
}

async fn pending_from(fixture: &Fixture) -> i64 {
    fixture.text("SELECT pending_from FROM outbox_destinations").await.parse().unwrap()
}

/// O31: looks begin past the published events, so that an old snapshot costs them nothing, and never past an event that an open
/// transaction may commit yet.
#[tokio::test]
async fn o31_looks_pass_what_was_published_and_nothing_that_may_be_committed_yet() {
    let fixture = Fixture::new().await;
    let outbox = outbox(&fixture);
    let id = outbox.declare(&["payments".into()]).await.unwrap()[0].id;
    let plain = fixture.store.plain_outbox("writer", ["payments"]).await.unwrap();
    published(&fixture, &outbox, 12_000).await;
    let before = pending_from(&fixture).await;
    assert!(before > 5_000, "looks begin at {before}");

    let mut connection = fixture.connect().await;
    let mut late = connection.begin().await.unwrap();
    plain.publish(&mut late, "late", Event::to("payments").body("1")).await.unwrap();
    published(&fixture, &outbox, 24_000).await;
    let meanwhile = pending_from(&fixture).await;
    assert!((before..=12_001).contains(&meanwhile), "looks begin at {meanwhile}, and 12001 is not committed");
    late.commit().await.unwrap();
    let next = outbox.next(id, 10, 1_000_000).await.unwrap();
    assert_eq!(next.iter().map(|event| event.key.as_str()).collect::<Vec<_>>(), ["late"]);
    outbox.settle(id, &[(&next[0], EventEnd::Published)]).await.unwrap();

    published(&fixture, &outbox, 24_000).await;
    let afterwards = pending_from(&fixture).await;
    assert!(afterwards > 36_001, "looks begin at {afterwards}");
    // A restore without the sequences: the numbers begin anew, and so do looks.
    fixture.run("SELECT setval('outbox_numbers', 1, false)").await;
    plain.publish(&mut connection, "anew", Event::to("payments").body("1")).await.unwrap();
    for _ in 0..2 {
        fixture.run("SELECT raise_pending((SELECT id FROM outbox_destinations), NULL, NULL)").await;
    }
    let next = outbox.next(id, 10, 1_000_000).await.unwrap();
    assert_eq!(next.iter().map(|event| event.key.as_str()).collect::<Vec<_>>(), ["anew"]);
    fixture.drop().await;
}

/// O42: which numbers were drawn, and by whom, is known of one server: another one, which takes over, may draw them again.
#[tokio::test]
async fn o42_what_is_known_of_another_server_passes_nothing() {
    let fixture = Fixture::new().await;
    fixture.store.plain_outbox("writer", ["payments"]).await.unwrap();
    fixture.run("SELECT nextval('outbox_numbers') FROM generate_series(1, 9)").await;
    let call = |writers: &str| format!("raise_pending((SELECT id FROM outbox_destinations), {writers}, 9)");
    let writers = fixture.text(format!("SELECT writers FROM {}", call("NULL"))).await;
    assert!(writers.starts_with(&fixture.text("SELECT server_identity()").await), "{writers}");
    fixture.run(format!("SELECT {}", call(&format!("'another {writers}'")))).await;
    assert_eq!(pending_from(&fixture).await, 0);
    fixture.run(format!("SELECT {}", call(&format!("'{writers}'")))).await;
    assert_eq!(pending_from(&fixture).await, 10);
    fixture.drop().await;
}

/// O56: a backup is restored without the place of the sequence, and numbers are drawn up to behind the place where looks began, before
/// the relay asks again. What the backup holds may all have been sent since, although no relay had it then.
#[tokio::test]
async fn o56_where_looks_begin_is_not_restored_with_the_outbox() {
    let fixture = Fixture::new().await;
    let outbox = outbox(&fixture);
    let id = outbox.declare(&["payments".into()]).await.unwrap()[0].id;
    let lease = async || {
        outbox.lease(id, LeaseRequest::new("one", Duration::from_secs(60))).await.map(|leased| leased == Leased::Mine)
    };
    assert!(lease().await.unwrap());
    outbox.release(id, "one").await.unwrap();
    fixture.run("UPDATE outbox_destinations SET pending_from = 1000").await;
    assert!(lease().await.unwrap());
    assert_eq!(pending_from(&fixture).await, 1_000, "the same server and sequence");
    outbox.release(id, "one").await.unwrap();

    fixture.run("DROP SEQUENCE outbox_numbers").await;
    fixture.run("CREATE SEQUENCE outbox_numbers AS bigint OWNED BY outbox.number").await;
    let plain = fixture.store.plain_outbox("writer", ["payments"]).await.unwrap();
    let mut connection = fixture.connect().await;
    plain.publish(&mut connection, "anew", Event::to("payments").body("1")).await.unwrap();
    fixture.run("SELECT setval('outbox_numbers', 2000)").await;
    assert!(outbox.next(id, 10, 1_000_000).await.unwrap().is_empty(), "it is passed by");
    assert!(lease().await.unwrap());
    let next = outbox.next(id, 10, 1_000_000).await.unwrap();
    assert_eq!(next.iter().map(|event| event.key.as_str()).collect::<Vec<_>>(), ["anew"]);
    assert!(next[0].first_sent_ago.is_some(), "it may have been sent before the restore");
    fixture.drop().await;
}

/// O32: an event that is let go again, and those behind it, are found however far on looks begin.
#[tokio::test]
async fn o32_events_that_become_pending_again_are_found_where_looks_have_passed() {
    let fixture = Fixture::new().await;
    let outbox = outbox(&fixture);
    let id = outbox.declare(&["payments".into()]).await.unwrap()[0].id;
    let plain = fixture.store.plain_outbox("writer", ["payments"]).await.unwrap();
    let mut connection = fixture.connect().await;
    for (key, of) in [("a1", "a"), ("a2", "a"), ("b1", "b"), ("b2", "b")] {
        plain.publish(&mut connection, key, Event::to("payments").ordering_key(of).body("1")).await.unwrap();
    }
    let fails = outbox.next(id, 10, 1_000_000).await.unwrap();
    let (retried, skipped) = (fails[0].name(), fails[2].name());
    let end = EventEnd::Failed { error: "never".to_owned(), may_be_sent: false };
    outbox.settle(id, &[(&fails[0], end.clone()), (&fails[2], end)]).await.unwrap();
    let next = async || {
        let next = outbox.next(id, 10, 1_000_000).await.unwrap();
        next.iter().map(|event| event.key.as_str().to_owned()).collect::<Vec<_>>()
    };
    published(&fixture, &outbox, 24_000).await;
    assert!(pending_from(&fixture).await > 4, "looks have not passed them by");
    assert_eq!(outbox.skip(&[skipped]).await.unwrap(), 1);
    assert_eq!(next().await, ["b2"], "it waited behind the one that was removed");
    // With the one that waits.
    published_with(&fixture, &outbox, 24_000, 1).await;
    assert!(pending_from(&fixture).await > 4, "looks have not passed them by");
    assert_eq!(outbox.retry(&[retried]).await.unwrap(), 1);
    assert_eq!(next().await, ["a1"]);
    outbox.settle(id, &[(&fails[0], EventEnd::Published)]).await.unwrap();
    assert_eq!(next().await, ["a2"]);
    fixture.drop().await;
}

/// O71: an event whose consumer's or writer's row was lost waits for a person, and the others go.
#[tokio::test]
async fn o71_an_event_without_its_writers_row_stops_no_other() {
    let fixture = Fixture::new().await;
    let outbox = outbox(&fixture);
    let id = outbox.declare(&["payments".into()]).await.unwrap()[0].id;
    let mut connection = fixture.connect().await;
    for (writer, key, order) in [("lost", "lost", "a"), ("known", "behind", "a"), ("known", "known", "b")] {
        let plain = fixture.store.plain_outbox(writer, ["payments"]).await.unwrap();
        plain.publish(&mut connection, key, Event::to("payments").ordering_key(order).body("1")).await.unwrap();
    }
    fixture.run("DELETE FROM consumers WHERE name = 'lost'").await;
    let next = async || {
        let next = outbox.next(id, 10, 1_000_000).await.unwrap();
        next.into_iter().map(|event| event.key.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(next().await, ["known"], "what is behind it in its ordering key waits with it");
    let told = fixture.texts("SELECT concat_ws(' ', event_key, state, error) FROM outbox WHERE state = 2").await;
    assert!(told.len() == 1 && told[0].starts_with("lost 2 ") && told[0].contains("idem outbox retry"), "{told:?}");
    // The writer's next start puts its row back.
    fixture.store.plain_outbox("lost", ["payments"]).await.unwrap();
    fixture.run("UPDATE outbox SET state = 0").await;
    assert_eq!(next().await, ["lost", "behind", "known"]);
    fixture.drop().await;
}

/// O44: a lock on one destination's row holds back no other destination, and one connection at most.
#[tokio::test]
async fn o44_a_locked_destination_holds_no_other_back() {
    let fixture = Fixture::new().await;
    let outbox = outbox(&fixture);
    let ids = outbox.declare(&["locked".into(), "free".into()]).await.unwrap();
    let ids = [ids[0].id, ids[1].id];
    let plain = fixture.store.plain_outbox("writer", ["locked", "free"]).await.unwrap();
    let mut connection = fixture.connect().await;
    for to in ["locked", "free"] {
        plain.publish(&mut connection, "a", Event::to(to).body("1")).await.unwrap();
    }
    let taken = outbox.next(ids[0], 10, 1_000_000).await.unwrap();
    sqlx::raw_sql("BEGIN; SELECT FROM outbox_destinations WHERE name = 'locked' FOR UPDATE")
        .execute(&mut connection)
        .await
        .unwrap();
    let minute = Duration::from_secs(60);
    let ends = [(&taken[0], EventEnd::Published)];
    let held = async {
        // The calls that a relay makes for a destination at once.
        let calls = (outbox.settle(ids[0], &ends), outbox.lease(ids[0], LeaseRequest::new("relay", minute)));
        let (settled, leased) = tokio::join!(calls.0, calls.1);
        (settled.is_ok(), leased)
    };
    let free = async {
        let waits = format!(
            "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%{}%')",
            fixture.schema.quoted()
        );
        fixture.until(&waits).await;
        assert_eq!(outbox.lease(ids[1], LeaseRequest::new("relay", minute)).await.unwrap(), Leased::Mine);
        let taken = outbox.next(ids[1], 10, 1_000_000).await.unwrap();
        outbox.settle(ids[1], &[(&taken[0], EventEnd::Published)]).await.unwrap();
        sqlx::raw_sql("COMMIT").execute(&mut connection).await.unwrap();
    };
    // They are given up where the other destination's are not done first.
    let ((settled, leased), ()) = tokio::join!(held, free);
    assert!(settled && leased.unwrap() == Leased::Mine);
    assert!(outbox.events(None, None, 10).await.unwrap().is_empty());
    fixture.drop().await;
}

/// A plain outbox: an event is committed with its caller's writes, and known by the caller's key.
#[tokio::test]
async fn a_plain_outbox_commits_with_its_callers_transaction() {
    let fixture = Fixture::new().await;
    let small = Destination::new("small").payload_bytes_max(2);
    let plain = fixture.store.plain_outbox("billing", [Destination::new("payments"), small]).await.unwrap();
    let mut connection = fixture.connect().await;
    let event = |body: &'static str| Event::to("payments").ordering_key("acct-7").body(body);
    let mut transaction = connection.begin().await.unwrap();
    plain.publish(&mut transaction, "invoice-1", event("rolled back")).await.unwrap();
    transaction.rollback().await.unwrap();
    let mut transaction = connection.begin().await.unwrap();
    let key = plain.publish(&mut transaction, "invoice-1", event("1")).await.unwrap();
    plain.publish(&mut transaction, "invoice-1", event("1")).await.unwrap();
    for (key, refused) in
        [("", Event::to("payments")), ("k", Event::to("nowhere")), ("k", Event::to("small").body("123"))]
    {
        let refused = plain.publish(&mut transaction, key, refused).await.unwrap_err();
        assert!(matches!(refused, PublishPlainError::Refused(_)), "{refused:?}");
    }
    transaction.commit().await.unwrap();
    assert_eq!(key, IdempotencyKey::new("invoice-1").unwrap());
    let mut transaction = connection.begin().await.unwrap();
    let other = plain.publish(&mut transaction, "invoice-1", event("2")).await.unwrap_err();
    assert!(matches!(other, PublishPlainError::Append(AppendError::Conflict { event: 0 })), "{other:?}");
    transaction.rollback().await.unwrap();
    let events = outbox(&fixture).events(None, Some(EventState::Pending), 10).await.unwrap();
    let seen: Vec<_> =
        events.iter().map(|it| (it.event.consumer.as_str(), it.event.key.as_str(), it.payload_bytes)).collect();
    assert_eq!(seen, [("billing", "invoice-1", 1)]);
    fixture.drop().await;
}

/// A writer's name is its own, because a shared name would share its keys.
#[tokio::test]
async fn a_plain_outbox_and_a_consumer_share_no_name() {
    let fixture = Fixture::new().await;
    consumer(&fixture).process_one(message("a", "p")).await.unwrap();
    let refused = fixture.store.plain_outbox("orders", ["payments"]).await.unwrap_err().to_string();
    assert!(refused.contains("orders") && refused.contains("consumer"), "{refused}");
    fixture.store.plain_outbox("billing", ["payments"]).await.unwrap();
    fixture.store.plain_outbox("billing", ["payments"]).await.unwrap();
    let builder = DedupConsumer::builder(fixture.store.clone(), "billing").handler(Answers);
    let named = builder.handler_name("billing").effects(Effects::InTransaction).publish_to(["payments"]);
    let refused =
        named.keep_results(100).build().unwrap().process_one(message("a", "p")).await.unwrap_err().to_string();
    assert!(refused.contains("billing"), "{refused}");
    fixture.drop().await;
}

/// O38: waiting events are counted every few seconds, and not to the end; how old the oldest is stays right.
#[tokio::test]
async fn o38_an_outbox_that_is_far_behind_is_not_counted_to_its_end() {
    let fixture = Fixture::new().await;
    consumer(&fixture).process_one(message("a", "p")).await.unwrap();
    fixture
        .run("INSERT INTO outbox (key_id, number, destination, consumer, state, event_key, event_hash, payload) SELECT gen_random_uuid(), nextval('outbox_numbers'), destination, consumer, CASE WHEN n <= 100001 THEN 0 ELSE 2 END, n::text, '', '' FROM generate_series(1, 100003) AS n, outbox; UPDATE outbox SET created_at = now() - interval '1 hour' WHERE number = (SELECT min(number) FROM outbox)")
        .await;
    for asked in [None, Some(ConsumerName::new("orders").unwrap())] {
        let backlog = outbox(&fixture).backlog(asked.as_ref()).await.unwrap().remove(0);
        assert_eq!((backlog.pending, backlog.failed), (100_000, 2));
        assert!(backlog.oldest.is_some_and(|age| age >= Duration::from_secs(3_600)), "{backlog:?}");
    }
    let other = ConsumerName::new("other").unwrap();
    assert_eq!(outbox(&fixture).backlog(Some(&other)).await.unwrap().remove(0).pending, 0);
    fixture.drop().await;
}

/// A consumer that was renamed derives the ids of its events as before.
#[tokio::test]
async fn o37_a_renamed_consumer_derives_the_same_ids_and_no_other_one_does() {
    let fixture = Fixture::new().await;
    consumer(&fixture).process_one(message("a", "p")).await.unwrap();
    let first = fixture.text("SELECT event_key FROM outbox").await;
    fixture.run("UPDATE consumers SET name = 'purchases', derives_as = coalesce(derives_as, name); DELETE FROM outbox; DELETE FROM processed_messages").await;
    let builder = DedupConsumer::builder(fixture.another(), "purchases").handler(Answers);
    let renamed = builder.effects(Effects::InTransaction).publish_to(["payments"]).keep_results(100).build().unwrap();
    let decision = renamed.process_one(message("a", "p")).await.unwrap().decision;
    assert!(decision.is_processed(), "{decision:?}");
    assert_eq!(fixture.text("SELECT event_key FROM outbox").await, first);
    // O37: a new consumer under the old name would derive the same ids.
    let builder = DedupConsumer::builder(fixture.another(), "orders").handler(Answers);
    let new = builder.effects(Effects::InTransaction).publish_to(["payments"]).keep_results(100).build().unwrap();
    let refused = new.process_one(message("a", "p")).await.unwrap_err();
    assert_eq!(refused.class(), ErrorClass::Fatal);
    assert!(refused.to_string().contains("idem consumers rename purchases orders"), "{refused}");
    fixture.run("UPDATE consumers SET name = 'orders'").await;
    assert!(new.process_one(message("a", "p")).await.unwrap().decision.is_skipped(), "its name is its own again");
    fixture.drop().await;
}
