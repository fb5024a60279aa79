//! Where a group begins, and operators who move it.

use super::{
    purchase::Purchase,
    stage::{Client, Ledger, Stage, count, until, with_each_client},
};

with_each_client!(
    e14_a_poison_message_blocks_its_own_key_until_it_is_dead_lettered,
    what_cannot_be_handled_is_set_aside_with_its_reason,
);

/// E6: a rewind to the beginning delivers everything again, and nothing happens twice.
#[tokio::test(flavor = "multi_thread")]
async fn e6_a_rewind_gives_duplicates_and_no_second_effect() {
    let purchases = count(20_000, 3_000);
    let stage = Stage::new("rewind", 4).await;
    stage.send(0..purchases).await;
    let first = stage.drain(&[]).await;
    assert_eq!(first.count("processed"), u64::try_from(purchases).expect("a count"));
    assert_eq!(stage.topic.committed(&stage.name).await, stage.topic.ends().await);
    let beginning = stage.topic.ends().await.into_keys().map(|partition| (partition, 0)).collect();
    stage.topic.move_to(&stage.name, &beginning).await;
    let second = stage.drain(&[]).await;
    assert_eq!((second.count("processed"), second.count("duplicates")), (0, first.count("processed")));
    assert_eq!(stage.ledger().await, Ledger::of(0..purchases));
    stage.until_settled().await;
    stage.remove().await;
}

/// A group that an operator moved forwards starts exactly there.
#[tokio::test(flavor = "multi_thread")]
async fn a_group_that_was_moved_starts_exactly_there() {
    let stage = Stage::new("moved", 1).await;
    stage.send(0..100).await;
    stage.topic.move_to(&stage.name, &[(0, 37)].into()).await;
    stage.drain(&[]).await;
    assert_eq!(stage.ledger().await, Ledger::of(37..100));
    stage.topic.move_to(&stage.name, &[(0, 20)].into()).await;
    let ended = stage.drain(&[]).await;
    assert_eq!((ended.count("processed"), ended.count("duplicates")), (17, 63));
    assert_eq!(stage.ledger().await, Ledger::of(20..100));
    stage.remove().await;
}

/// Two groups on one topic and one database both have all effects.
#[tokio::test(flavor = "multi_thread")]
async fn two_groups_both_have_all_effects() {
    let stage = Stage::new("groups", 2).await;
    stage.send(0..500).await;
    for group in ["one", "two"] {
        let name = format!("{}-{group}", stage.name);
        let arguments = stage.arguments_of(&name, &["--reset", "earliest", "--until-idle", "1s"]);
        assert_eq!(stage.start_with(&arguments).ended().await.count("processed"), 500);
    }
    let ledger = stage.ledger().await;
    assert_eq!((ledger.purchases, ledger.keys), (1_000, 500));
    stage.remove().await;
}

/// E14, D7: a message that can never be handled blocks its own key until it is set aside, and no other.
async fn e14_a_poison_message_blocks_its_own_key_until_it_is_dead_lettered(client: Client) {
    let stage = Stage::new("poison", 1).await.client(client);
    // For its tables.
    stage.drain(&[]).await;
    // An error of the application's own, which may go away: it is tried again.
    let refusal = "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
                       IF new.customer = 'poison' THEN RAISE EXCEPTION 'not today'; END IF; RETURN new; END $$; \
                   CREATE TRIGGER refuse BEFORE INSERT ON customers FOR EACH ROW EXECUTE FUNCTION refuse()";
    sqlx::raw_sql(refusal).execute(stage.pool()).await.expect("a table that refuses a customer");
    let mut purchases: Vec<Purchase> = (0..200).map(Purchase::number).collect();
    purchases.insert(0, Purchase { key: "bad".to_owned(), customer: "poison".to_owned(), cents: 1 });
    stage.topic.send(purchases).await;
    let worker = stage.start(&["--reset", "earliest", "--attempts", "20"]);
    stage.until_purchases(200).await;
    assert!(stage.dead_letters().await.is_empty(), "the others did not wait for it");
    worker.stop().await;
    let ended = stage.drain(&["--attempts", "1"]).await;
    assert_eq!(ended.count("dead_lettered"), 1);
    assert_eq!(stage.dead_letters().await.values().sum::<i64>(), 1);
    assert_eq!(stage.ledger().await, Ledger::of(0..200));
    stage.until_settled().await;
    stage.remove().await;
}

/// X, R-malformed: conflicts and malformed messages are set aside with their reasons, published too where asked for, and
/// harm no neighbour.
async fn what_cannot_be_handled_is_set_aside_with_its_reason(client: Client) {
    let stage = Stage::new("aside", 2).await.client(client);
    let aside = super::topic::Topic::create(&stage.topic.brokers, &format!("{}-aside", stage.name), 1).await;
    stage.send(0..50).await;
    stage.topic.send([Purchase { cents: 999_999, ..Purchase::number(7) }]).await;
    stage.topic.send_text("1", r#"{"customer":"1","day":"1997-01-01","cds":1,"cents":1}"#);
    stage.topic.send_text("1", "not json");
    stage.topic.send_text("1", r#"{"idempotencykey":"","customer":"1","day":"1997-01-01","cds":1,"cents":1}"#);
    stage.topic.flush().await;
    stage.send(50..100).await;
    let ended = stage.drain(&["--dead-letter-topic", &aside.name]).await;
    assert_eq!((ended.count("processed"), ended.count("conflicts"), ended.count("dead_lettered")), (100, 1, 4));
    let reasons: Vec<(String, i64)> = stage.dead_letters().await.into_iter().collect();
    let expected = [("conflict", 1), ("malformed", 2), ("missing-key", 1)];
    assert_eq!(reasons, expected.map(|(reason, count)| (reason.to_owned(), count)));
    assert_eq!(aside.ends().await, [(0, 4)].into(), "each is published once");
    assert_eq!(stage.ledger().await, Ledger::of(0..100));
    stage.remove().await;
}

/// A29: a topic that is created again uses its offsets again. What failed there before and what fails there now are dead
/// letters of their own, whole in the table and published, whether they have a key or not.
#[tokio::test(flavor = "multi_thread")]
async fn a29_a_topic_that_is_created_again_loses_no_dead_letter() {
    let mut stage = Stage::new("again", 1).await;
    let aside = super::topic::Topic::create(&stage.topic.brokers, &format!("{}-aside", stage.name), 1).await;
    let lives = [
        [r#"{"FIRST": "no key in this one"}"#, r#"{"idempotencykey": "pay-1", "FIRST": "no purchase"}"#],
        [r#"{"SECOND": "no key in this one"}"#, r#"{"idempotencykey": "pay-2", "SECOND": "no purchase"}"#],
        [r#"{"THIRD": "no key in this one"}"#, r#"{"idempotencykey": "pay-1", "THIRD": "no purchase"}"#],
    ];
    for (life, texts) in lives.iter().enumerate() {
        if life > 0 {
            stage.topic = stage.topic.create_again().await;
        }
        for text in texts {
            stage.topic.send_text("1", text);
        }
        stage.topic.flush().await;
        let ended = stage.drain(&["--dead-letter-topic", &aside.name]).await;
        assert_eq!(ended.count("dead_lettered"), 2, "life {life}");
    }
    let expected: Vec<String> = lives.iter().flatten().map(|text| (*text).to_owned()).collect();
    let rows = "SELECT convert_from(payload, 'UTF8') FROM idem.dead_letters WHERE copies = 1 ORDER BY id";
    let kept: Vec<String> = sqlx::query_scalar(rows).fetch_all(stage.pool()).await.expect("the dead letters");
    assert_eq!(kept, expected);
    assert_eq!(aside.payloads().await, expected);
    let origins = "SELECT DISTINCT substring(origin FROM '[0-9]+/[0-9]+$') FROM idem.dead_letters ORDER BY 1";
    let origins: Vec<String> = sqlx::query_scalar(origins).fetch_all(stage.pool()).await.expect("the origins");
    assert_eq!(origins, ["0/0", "0/1"], "the offsets were used again");
    stage.remove().await;
}

/// A partition that is added later loses none of its first messages, although `--reset` said latest.
#[tokio::test(flavor = "multi_thread")]
async fn a_partition_that_is_added_later_loses_nothing() {
    let stage = Stage::new("added", 1).await;
    stage.send(0..10).await;
    let worker = stage.start(&["--reset", "latest", "--kafka", "topic.metadata.refresh.interval.ms=500"]);
    until("the worker to join", async || worker.joined()).await;
    stage.topic.add_partitions(3).await;
    stage.send(10..110).await;
    stage.until_purchases(100).await;
    assert!(worker.stop().await.status.success());
    assert_eq!(stage.ledger().await, Ledger::of(10..110));
    stage.remove().await;
}
