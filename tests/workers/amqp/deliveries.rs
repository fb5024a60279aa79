//! The outcomes of messages: settled, set aside, held.

use lapin::types::AMQPValue;
use sqlx::{Connection, Executor};

use super::{
    fixture::{Fixture, Ledger, count, quorum, until},
    purchase::Purchase,
    queue::Queue,
};

/// X, R-malformed: conflicts and malformed messages are set aside with their reasons, published too where asked for, and
/// harm no neighbour.
#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_handled_is_set_aside_with_its_reason() {
    let fixture = Fixture::new("aside").await;
    let aside = Queue::create(&format!("{}-aside", fixture.name), &[]).await;
    fixture.send(0..50).await;
    fixture.drain(&[]).await;
    fixture.queue.send([Purchase { cents: 999_999, ..Purchase::number(7) }]).await;
    fixture.queue.send_text(r#"{"customer":"1","day":"1997-01-01","cds":1,"cents":1}"#).await;
    fixture.queue.send_text("not json").await;
    fixture.queue.send_text(r#"{"idempotencykey":"","customer":"1","day":"1997-01-01","cds":1,"cents":1}"#).await;
    fixture.send(0..100).await;
    let ended = fixture.drain(&["--dead-letter-queue", &aside.name]).await;
    assert_eq!((ended.count("processed"), ended.count("duplicates")), (50, 50));
    assert_eq!((ended.count("conflicts"), ended.count("dead_lettered")), (1, 4));
    let reasons: Vec<(String, i64)> = fixture.dead_letters().await.into_iter().collect();
    let expected = [("conflict", 1), ("malformed", 2), ("missing-key", 1)];
    assert_eq!(reasons, expected.map(|(reason, count)| (reason.to_owned(), count)));
    until("each letter, once", async || aside.messages().await == 4).await;
    assert_eq!(fixture.ledger().await, Ledger::of(0..100));
    fixture.until_settled().await;
    fixture.remove().await;
}

/// G14: a header of arrays in arrays, 20,000 deep, ended every worker of the queue, at each start again. It is set aside,
/// published too, and the good message behind it is handled.
#[tokio::test(flavor = "multi_thread")]
async fn g14_a_message_that_no_client_can_read_is_set_aside() {
    let fixture = Fixture::new("nested").await;
    let aside = Queue::create(&format!("{}-aside", fixture.name), &[]).await;
    let nested = format!(r#"{{"x":{}{}}}"#, "[".repeat(20_000), "]".repeat(20_000));
    fixture.queue.publish_with_headers(&nested, &Purchase::number(7).json()).await;
    fixture.send(0..1).await;
    let worker = fixture.start(&["--dead-letter-queue", &aside.name]);
    // However slow the machine is: an idle second is no proof that both were delivered.
    fixture.until_purchases(1).await;
    until("the row", async || fixture.dead_letters().await.len() == 1).await;
    fixture.until_settled().await;
    let ended = worker.stop().await;
    assert!(ended.status.success(), "{}", ended.log);
    assert_eq!((ended.count("processed"), ended.count("dead_lettered")), (1, 1));
    assert_eq!(fixture.dead_letters().await, [("malformed".to_owned(), 1)].into());
    until("the letter", async || aside.messages().await == 1).await;
    assert_eq!(fixture.ledger().await, Ledger::of(0..1));
    fixture.until_settled().await;
    fixture.remove().await;
}

/// G8: while a dead letter cannot be published, its message is not acknowledged. Its payload is in no log (S4).
#[tokio::test(flavor = "multi_thread")]
async fn g8_a_dead_letter_that_cannot_be_published_keeps_its_message() {
    let fixture = Fixture::new("nowhere").await;
    let aside = Queue::create(&format!("{}-aside", fixture.name), &[]).await;
    let worker = fixture.start(&["--dead-letter-queue", &aside.name]);
    fixture.send(0..1).await;
    fixture.until_purchases(1).await;
    aside.delete().await;
    fixture.queue.send_text("not json").await;
    let missing = format!("{}\\\" does not exist", aside.name);
    until("the worker to say so", async || worker.logged().contains(&missing)).await;
    let ended = worker.stop().await;
    assert_eq!(ended.count("dead_lettered"), 0);
    // The client library would log what is returned to it.
    assert!(!ended.log.contains("returned"), "{}", ended.log);
    until("the message to be back", async || fixture.queue.described().await["messages_ready"] == 1).await;
    assert_eq!(fixture.drain(&[]).await.count("dead_lettered"), 1);
    fixture.until_settled().await;
    fixture.remove().await;
}

/// D7, G5: a message that fails is held in the process, blocks no other, and is not sent round and round by the broker.
#[tokio::test(flavor = "multi_thread")]
async fn g5_a_poison_message_is_held_here_and_not_requeued() {
    let fixture = Fixture::new("poison").await;
    // For its tables.
    fixture.drain(&[]).await;
    let refusal = "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
                       IF new.customer = 'poison' THEN RAISE EXCEPTION 'not today'; END IF; RETURN new; END $$; \
                   CREATE TRIGGER refuse BEFORE INSERT ON customers FOR EACH ROW EXECUTE FUNCTION refuse()";
    sqlx::raw_sql(refusal).execute(fixture.pool()).await.expect("a table that refuses a customer");
    let mut purchases: Vec<Purchase> = (0..200).map(Purchase::number).collect();
    purchases.insert(0, Purchase { key: "bad".to_owned(), customer: "poison".to_owned(), cents: 1 });
    fixture.queue.send(purchases).await;
    let ended = fixture.drain(&["--attempts", "4"]).await;
    assert_eq!((ended.count("processed"), ended.count("retries"), ended.count("dead_lettered")), (200, 3, 1));
    let redelivered = &fixture.queue.described().await["message_stats"]["redeliver"];
    assert!(redelivered.is_null() || redelivered == 0, "the broker delivered again: {redelivered}");
    assert_eq!(fixture.ledger().await, Ledger::of(0..200));
    fixture.remove().await;
}

/// G4, G5: a message that would be held for longer than the broker allows waits in the retry queue, and is the same
/// message when it comes back: its attempts go on.
#[tokio::test(flavor = "multi_thread")]
async fn g4_a_message_that_may_not_be_held_any_longer_waits_in_the_retry_queue() {
    let fixture = Fixture::new("later").await;
    let text = |text: &str| AMQPValue::LongString(text.into());
    let back = [("x-dead-letter-exchange", text("")), ("x-dead-letter-routing-key", text(&fixture.queue.name))];
    let later = Queue::create(&format!("{}-later", fixture.name), &back).await;
    // For its tables.
    fixture.drain(&[]).await;
    let refusal = "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not today'; END $$; \
                   CREATE TRIGGER refuse BEFORE INSERT ON purchases FOR EACH ROW EXECUTE FUNCTION refuse()";
    sqlx::raw_sql(refusal).execute(fixture.pool()).await.expect("a table that refuses purchases");
    fixture.send(0..1).await;
    // The waits between six attempts are 6.2 s in all, give or take a half.
    let limits = ["--consumer-timeout", "2s", "--handler-deadline", "1s", "--attempts", "6"];
    let worker = fixture.start(&[&limits[..], &["--retry-queue", &later.name]].concat());
    until("the dead letter", async || worker.logged().contains("set aside as a dead letter")).await;
    fixture.until_settled().await;
    let ended = worker.stop().await;
    assert_eq!((ended.count("retries"), ended.count("dead_lettered"), ended.count("duplicates")), (5, 1, 0));
    let put_off = || async { later.described().await["message_stats"]["publish"].as_u64().unwrap_or(0) };
    until("what was put off to be counted", async || put_off().await > 0).await;
    until("the end of the retry queue", async || later.messages().await == 0).await;
    assert_eq!(fixture.ledger().await, Ledger::of(0..0));
    fixture.remove().await;
}

/// G6: a key that another session holds for five rounds is no failed delivery, so a limit of three loses nothing.
#[tokio::test(flavor = "multi_thread")]
async fn g6_five_busy_rounds_on_a_queue_with_a_limit_of_three_lose_nothing() {
    let limit = ("x-delivery-limit", AMQPValue::LongInt(3));
    let fixture = Fixture::with("busy", &[quorum(), limit]).await;
    fixture.send(0..1).await;
    fixture.drain(&[]).await;
    // Another transaction has put the key in, and takes its time.
    let mut connection = fixture.pool().acquire().await.expect("a connection");
    let mut holder = connection.begin().await.expect("a transaction");
    let text = "INSERT INTO idem.processed_messages \
                    (key_id, expires_at, consumer, hash_id, processed_by, idempotency_key, payload_hash) \
                SELECT idem.key_id('purchase-1'), expires_at, consumer, hash_id, processed_by, 'purchase-1', payload_hash \
                FROM idem.processed_messages";
    holder.execute(text).await.expect("a claim");
    fixture.send(1..2).await;
    let port = 30_000 + fastrand::u16(..2_000);
    let admin = format!("127.0.0.1:{port}");
    let worker = fixture.start(&["--busy-timeout", "200ms", "--admin", &admin]);
    until("five busy rounds", async || busy_rounds(&admin).await >= 5).await;
    holder.rollback().await.expect("it lets go");
    drop(connection);
    fixture.until_purchases(2).await;
    fixture.until_settled().await;
    let ended = worker.stop().await;
    assert!(ended.count("busy") >= 5 && ended.count("dead_lettered") == 0, "{}", ended.log);
    assert_eq!(fixture.ledger().await, Ledger::of(0..2));
    fixture.remove().await;
}

async fn busy_rounds(admin: &str) -> u64 {
    let Ok(answer) = Queue::get(&format!("http://{admin}/metrics")).await else { return 0 };
    let text = answer.text().await.unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("idem_busy_total"));
    line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or(0)
}

/// J1: SIGTERM under load, again and again. Each stop is clean, and the ledger is exact.
#[tokio::test(flavor = "multi_thread")]
async fn j1_a_worker_that_is_stopped_under_load_again_and_again_loses_nothing() {
    let (purchases, stops) = (count(100_000, 5_000), count(200, 6));
    let fixture = Fixture::new("stops").await;
    fixture.send(0..purchases).await;
    for _ in 0..stops {
        let before = fixture.purchases().await;
        if before == purchases {
            break;
        }
        let worker = fixture.start(&["--batch", "20", "--prefetch", "100"]);
        fixture.until_purchases(before + 1).await;
        let ended = worker.stop().await;
        assert_eq!(ended.status.code(), Some(0), "{}", ended.log);
        assert_eq!(ended.count("duplicates"), 0, "a clean stop leaves nothing to be delivered again");
    }
    fixture.drain(&[]).await;
    assert_eq!(fixture.ledger().await, Ledger::of(0..purchases));
    fixture.remove().await;
}
