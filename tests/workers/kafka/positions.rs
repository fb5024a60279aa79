//! Where a group begins, and operators who move it.

use super::{
    fixture::{Client, Fixture, Ledger, count, until, with_each_client},
    purchase::Purchase,
};

with_each_client!(
    e14_a_poison_message_blocks_its_own_key_until_it_is_dead_lettered,
    what_cannot_be_handled_is_set_aside_with_its_reason,
);

/// E6: a rewind to the beginning delivers everything again, and nothing happens twice.
#[tokio::test(flavor = "multi_thread")]
async fn e6_a_rewind_gives_duplicates_and_no_second_effect() {
    let purchases = count(20_000, 3_000);
    let fixture = Fixture::new("rewind", 4).await;
    fixture.send(0..purchases).await;
    let first = fixture.drain(&[]).await;
    assert_eq!(first.count("processed"), u64::try_from(purchases).expect("a count"));
    assert_eq!(fixture.topic.committed(&fixture.name).await, fixture.topic.ends().await);
    let beginning = fixture.topic.ends().await.into_keys().map(|partition| (partition, 0)).collect();
    fixture.topic.move_to(&fixture.name, &beginning).await;
    let second = fixture.drain(&[]).await;
    assert_eq!((second.count("processed"), second.count("duplicates")), (0, first.count("processed")));
    assert_eq!(fixture.ledger().await, Ledger::of(0..purchases));
    fixture.until_settled().await;
    fixture.remove().await;
}

/// A group that an operator moved forwards starts exactly there.
#[tokio::test(flavor = "multi_thread")]
async fn a_group_that_was_moved_starts_exactly_there() {
    let fixture = Fixture::new("moved", 1).await;
    fixture.send(0..100).await;
    fixture.topic.move_to(&fixture.name, &[(0, 37)].into()).await;
    fixture.drain(&[]).await;
    assert_eq!(fixture.ledger().await, Ledger::of(37..100));
    fixture.topic.move_to(&fixture.name, &[(0, 20)].into()).await;
    let ended = fixture.drain(&[]).await;
    assert_eq!((ended.count("processed"), ended.count("duplicates")), (17, 63));
    assert_eq!(fixture.ledger().await, Ledger::of(20..100));
    fixture.remove().await;
}

/// Two groups on one topic and one database both have all effects.
#[tokio::test(flavor = "multi_thread")]
async fn two_groups_both_have_all_effects() {
    let fixture = Fixture::new("groups", 2).await;
    fixture.send(0..500).await;
    for group in ["one", "two"] {
        let name = format!("{}-{group}", fixture.name);
        let arguments = fixture.arguments_of(&name, &["--reset", "earliest", "--until-idle", "1s"]);
        assert_eq!(fixture.start_with(&arguments).ended().await.count("processed"), 500);
    }
    let ledger = fixture.ledger().await;
    assert_eq!((ledger.purchases, ledger.keys), (1_000, 500));
    fixture.remove().await;
}

/// E14, D7: a message that can never be handled blocks its own key until it is set aside, and no other.
async fn e14_a_poison_message_blocks_its_own_key_until_it_is_dead_lettered(client: Client) {
    let fixture = Fixture::new("poison", 1).await.client(client);
    // For its tables.
    fixture.drain(&[]).await;
    // An error of the application's own, which may go away: it is tried again.
    let refusal = "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
                       IF new.customer = 'poison' THEN RAISE EXCEPTION 'not today'; END IF; RETURN new; END $$; \
                   CREATE TRIGGER refuse BEFORE INSERT ON customers FOR EACH ROW EXECUTE FUNCTION refuse()";
    sqlx::raw_sql(refusal).execute(fixture.pool()).await.expect("a table that refuses a customer");
    let mut purchases: Vec<Purchase> = (0..200).map(Purchase::number).collect();
    purchases.insert(0, Purchase { key: "bad".to_owned(), customer: "poison".to_owned(), cents: 1 });
    fixture.topic.send(purchases).await;
    let worker = fixture.start(&["--reset", "earliest", "--attempts", "20"]);
    fixture.until_purchases(200).await;
    assert!(fixture.dead_letters().await.is_empty(), "the others did not wait for it");
    worker.stop().await;
    let ended = fixture.drain(&["--attempts", "1"]).await;
    assert_eq!(ended.count("dead_lettered"), 1);
    assert_eq!(fixture.dead_letters().await.values().sum::<i64>(), 1);
    assert_eq!(fixture.ledger().await, Ledger::of(0..200));
    fixture.until_settled().await;
    fixture.remove().await;
}

/// X, R-malformed: conflicts and malformed messages are set aside with their reasons, published too where asked for, and
/// harm no neighbour.
async fn what_cannot_be_handled_is_set_aside_with_its_reason(client: Client) {
    let fixture = Fixture::new("aside", 2).await.client(client);
    let aside = super::topic::Topic::create(&fixture.topic.brokers, &format!("{}-aside", fixture.name), 1).await;
    fixture.send(0..50).await;
    fixture.topic.send([Purchase { cents: 999_999, ..Purchase::number(7) }]).await;
    fixture.topic.send_text("1", r#"{"customer":"1","day":"1997-01-01","cds":1,"cents":1}"#);
    fixture.topic.send_text("1", "not json");
    fixture.topic.send_text("1", r#"{"idempotencykey":"","customer":"1","day":"1997-01-01","cds":1,"cents":1}"#);
    fixture.topic.flush().await;
    fixture.send(50..100).await;
    let ended = fixture.drain(&["--dead-letter-topic", &aside.name]).await;
    assert_eq!((ended.count("processed"), ended.count("conflicts"), ended.count("dead_lettered")), (100, 1, 4));
    let reasons: Vec<(String, i64)> = fixture.dead_letters().await.into_iter().collect();
    let expected = [("conflict", 1), ("malformed", 2), ("missing-key", 1)];
    assert_eq!(reasons, expected.map(|(reason, count)| (reason.to_owned(), count)));
    assert_eq!(aside.ends().await, [(0, 4)].into(), "each is published once");
    assert_eq!(fixture.ledger().await, Ledger::of(0..100));
    fixture.remove().await;
}

/// A29: a topic that is created again uses its offsets again. Messages that failed there before and those that fail
/// there now are dead letters of their own, whole in the table and published, whether they have a key or not.
#[tokio::test(flavor = "multi_thread")]
async fn a29_a_topic_that_is_created_again_loses_no_dead_letter() {
    let mut fixture = Fixture::new("again", 1).await;
    let aside = super::topic::Topic::create(&fixture.topic.brokers, &format!("{}-aside", fixture.name), 1).await;
    let lives = [
        [r#"{"FIRST": "no key in this one"}"#, r#"{"idempotencykey": "pay-1", "FIRST": "no purchase"}"#],
        [r#"{"SECOND": "no key in this one"}"#, r#"{"idempotencykey": "pay-2", "SECOND": "no purchase"}"#],
        [r#"{"THIRD": "no key in this one"}"#, r#"{"idempotencykey": "pay-1", "THIRD": "no purchase"}"#],
    ];
    for (life, texts) in lives.iter().enumerate() {
        if life > 0 {
            fixture.topic = fixture.topic.create_again().await;
        }
        for text in texts {
            fixture.topic.send_text("1", text);
        }
        fixture.topic.flush().await;
        let ended = fixture.drain(&["--dead-letter-topic", &aside.name]).await;
        assert_eq!(ended.count("dead_lettered"), 2, "life {life}");
    }
    let expected: Vec<String> = lives.iter().flatten().map(|text| (*text).to_owned()).collect();
    let rows = "SELECT convert_from(payload, 'UTF8') FROM idem.dead_letters WHERE copies = 1 ORDER BY id";
    let kept: Vec<String> = sqlx::query_scalar(rows).fetch_all(fixture.pool()).await.expect("the dead letters");
    assert_eq!(kept, expected);
    assert_eq!(aside.payloads().await, expected);
    let origins = "SELECT DISTINCT substring(origin FROM '[0-9]+/[0-9]+$') FROM idem.dead_letters ORDER BY 1";
    let origins: Vec<String> = sqlx::query_scalar(origins).fetch_all(fixture.pool()).await.expect("the origins");
    assert_eq!(origins, ["0/0", "0/1"], "the offsets were used again");
    fixture.remove().await;
}

/// A partition that is added later loses none of its first messages, although `--reset` said latest.
#[tokio::test(flavor = "multi_thread")]
async fn a_partition_that_is_added_later_loses_nothing() {
    let fixture = Fixture::new("added", 1).await;
    fixture.send(0..10).await;
    let worker = fixture.start(&["--reset", "latest", "--kafka", "topic.metadata.refresh.interval.ms=500"]);
    until("the worker to join", async || worker.joined()).await;
    fixture.topic.add_partitions(3).await;
    fixture.send(10..110).await;
    fixture.until_purchases(100).await;
    assert!(worker.stop().await.status.success());
    assert_eq!(fixture.ledger().await, Ledger::of(10..110));
    fixture.remove().await;
}
