//! Wrong settings: one clear line, and at once.

use super::{
    fixture::{Fixture, PIPELINED},
    purchase::Purchase,
    worker::{Ended, Worker},
};

/// Runs a worker with these arguments instead of, or beside, its usual ones. Of a flag given twice the test takes the
/// usual one out.
async fn refused(fixture: &Fixture, instead: &[(&str, &str)], more: &[&str]) -> Ended {
    let mut arguments = fixture.arguments(more);
    for (flag, value) in instead {
        let at = arguments.iter().position(|argument| argument == flag).expect("a usual flag");
        (*value).clone_into(&mut arguments[at + 1]);
    }
    let worker: Worker = fixture.start_with(&arguments);
    worker.ended().await
}

fn assert_refused(ended: &Ended, code: i32, words: &[&str]) {
    assert_eq!(ended.status.code(), Some(code), "{}", ended.log);
    let last = ended.log.lines().last().unwrap_or_default();
    for word in words {
        assert!(last.contains(word), "{word:?} is not in the last line: {last}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_does_not_exist_is_refused_and_not_created() {
    let fixture = Fixture::new("no_topic", 1).await;
    for _ in 0..2 {
        let ended = refused(&fixture, &[("--topic", "idem-no-such-topic")], &["--reset", "earliest"]).await;
        assert_refused(&ended, 2, &["idem-no-such-topic"]);
    }
    fixture.remove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_that_knows_nothing_is_refused_with_the_cure() {
    let fixture = Fixture::new("no_reset", 1).await;
    let ended = refused(&fixture, &[], &[]).await;
    assert_refused(&ended, 2, &["reset"]);
    fixture.remove().await;
}

/// By partition everything has one ordering key, so nothing would run at once.
#[tokio::test(flavor = "multi_thread")]
async fn handlers_at_once_by_partition_are_refused_with_the_cure() {
    let fixture = Fixture::new("by_partition", 1).await.client(PIPELINED);
    let ended = refused(&fixture, &[], &["--reset", "earliest", "--lane-by", "partition"]).await;
    assert_refused(&ended, 2, &["Pipelined", "LaneBy::Key"]);
    fixture.remove().await;
}

/// Two groups or topics under one consumer's name would see each other's duplicates.
#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_is_bound_elsewhere_is_refused_with_both_names() {
    let fixture = Fixture::new("bound", 1).await;
    fixture.send(0..1).await;
    fixture.drain(&[]).await;
    let other = format!("{}-other", fixture.name);
    let ended = refused(&fixture, &[("--group", &other)], &["--reset", "earliest"]).await;
    assert_refused(&ended, 2, &[&fixture.name, &other]);
    let topic = super::topic::Topic::create(&fixture.topic.brokers, &other, 1).await;
    let ended = refused(&fixture, &[("--topic", &topic.name)], &["--reset", "earliest"]).await;
    assert_refused(&ended, 2, &[&fixture.name, &topic.name]);
    fixture.remove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_cannot_be_reached_ends_the_start_with_its_own_code() {
    let fixture = Fixture::new("no_broker", 1).await;
    let more = ["--reset", "earliest", "--startup-timeout", "3s"];
    let ended = refused(&fixture, &[("--brokers", "127.0.0.1:1")], &more).await;
    assert_refused(&ended, 3, &["the broker could not be reached for 3s", "none of the brokers 127.0.0.1:1 answers"]);
    assert!(
        !ended.log.lines().last().unwrap_or_default().contains("refused"),
        "nobody was there to refuse it: {}",
        ended.log
    );
    fixture.remove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_that_break_the_guarantee_are_refused_by_name() {
    let fixture = Fixture::new("settings", 1).await;
    for setting in ["enable.auto.commit=true", "enable.auto.offset.store=true", "auto.offset.reset=earliest"] {
        let ended = refused(&fixture, &[], &["--reset", "earliest", "--kafka", setting]).await;
        assert_refused(&ended, 2, &[setting.split('=').next().expect("a name")]);
    }
    fixture.remove().await;
}

/// C1: a topic with Kafka's own defaults delivers again for two weeks. The shorter presets are warned of, and refused where
/// that is strict; nothing is handled before.
#[tokio::test(flavor = "multi_thread")]
async fn c1_a_retention_that_the_broker_outlasts_is_warned_of_or_refused() {
    let fixture = Fixture::new("retention", 1).await;
    fixture.send(0..3).await;
    for short in ["2h", "24h", "7d"] {
        let more = ["--reset", "earliest", "--until-idle", "1s", "--retention", short, "--strict-retention"];
        let ended = refused(&fixture, &[], &more).await;
        assert_refused(&ended, 2, &["handled twice", "Set the retention to more than"]);
    }
    assert_eq!(fixture.purchases().await, 0);
    let ended = fixture.drain(&["--retention", "2h"]).await;
    assert!(ended.status.success() && ended.log.contains("handled twice"), "{}", ended.log);
    assert_eq!(fixture.purchases().await, 3);
    let ended = fixture.drain(&["--retention", "15d", "--strict-retention"]).await;
    assert!(ended.status.success() && !ended.log.contains("handled twice"), "{}", ended.log);
    let horizon = "SELECT redelivery_horizon BETWEEN interval '14 days' AND interval '15 days' FROM idem.consumers";
    let is_kept: Option<bool> = sqlx::query_scalar(horizon).fetch_one(fixture.pool()).await.expect("an answer");
    assert_eq!(is_kept, Some(true), "for idem doctor");
    fixture.remove().await;
}

/// B10: where keys are to be UUIDs, another one is set aside, whole, and has no effect.
#[tokio::test(flavor = "multi_thread")]
async fn b10_a_key_that_is_no_uuid_is_set_aside_where_keys_are_uuids() {
    let fixture = Fixture::new("uuids", 1).await;
    fixture.send(0..2).await;
    let uuid = "0199a0c4-7d1e-7c3a-8f00-0123456789ab";
    fixture.topic.send([Purchase { key: uuid.to_owned(), ..Purchase::number(2) }]).await;
    let ended = fixture.drain(&["--key-policy", "uuid-strict"]).await;
    assert!(ended.status.success(), "{}", ended.log);
    let recorded = "SELECT string_agg(idempotency_key, ' ') FROM idem.processed_messages";
    let recorded: Option<String> = sqlx::query_scalar(recorded).fetch_one(fixture.pool()).await.expect("an answer");
    assert_eq!((recorded.as_deref(), fixture.purchases().await), (Some(uuid), 1));
    assert_eq!(fixture.dead_letters().await.into_iter().collect::<Vec<_>>(), [("malformed".to_owned(), 2)]);
    fixture.remove().await;
}
