//! Wrong settings: one clear line, and at once.

use super::{
    stage::{PIPELINED, Stage},
    worker::{Ended, Worker},
};

/// Runs a worker with these arguments instead of, or beside, its usual ones. Of a flag given twice the test takes the
/// usual one out.
async fn refused(stage: &Stage, instead: &[(&str, &str)], more: &[&str]) -> Ended {
    let mut arguments = stage.arguments(more);
    for (flag, value) in instead {
        let at = arguments.iter().position(|argument| argument == flag).expect("a usual flag");
        (*value).clone_into(&mut arguments[at + 1]);
    }
    let worker: Worker = stage.start_with(&arguments);
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
    let stage = Stage::new("no_topic", 1).await;
    for _ in 0..2 {
        let ended = refused(&stage, &[("--topic", "idem-no-such-topic")], &["--reset", "earliest"]).await;
        assert_refused(&ended, 2, &["idem-no-such-topic"]);
    }
    stage.remove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_that_knows_nothing_is_refused_with_the_cure() {
    let stage = Stage::new("no_reset", 1).await;
    let ended = refused(&stage, &[], &[]).await;
    assert_refused(&ended, 2, &["reset"]);
    stage.remove().await;
}

/// By partition everything has one ordering key, so nothing would run at once.
#[tokio::test(flavor = "multi_thread")]
async fn handlers_at_once_by_partition_are_refused_with_the_cure() {
    let stage = Stage::new("by_partition", 1).await.client(PIPELINED);
    let ended = refused(&stage, &[], &["--reset", "earliest", "--lane-by", "partition"]).await;
    assert_refused(&ended, 2, &["Pipelined", "--lane-by key"]);
    stage.remove().await;
}

/// Two groups or topics under one consumer's name would see each other's duplicates.
#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_is_bound_elsewhere_is_refused_with_both_names() {
    let stage = Stage::new("bound", 1).await;
    stage.send(0..1).await;
    stage.drain(&[]).await;
    let other = format!("{}-other", stage.name);
    let ended = refused(&stage, &[("--group", &other)], &["--reset", "earliest"]).await;
    assert_refused(&ended, 2, &[&stage.name, &other]);
    let topic = super::topic::Topic::create(&stage.topic.brokers, &other, 1).await;
    let ended = refused(&stage, &[("--topic", &topic.name)], &["--reset", "earliest"]).await;
    assert_refused(&ended, 2, &[&stage.name, &topic.name]);
    stage.remove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_cannot_be_reached_ends_the_start_with_its_own_code() {
    let stage = Stage::new("no_broker", 1).await;
    let more = ["--reset", "earliest", "--startup-timeout", "3s"];
    let ended = refused(&stage, &[("--brokers", "127.0.0.1:1")], &more).await;
    assert_refused(&ended, 3, &["broker"]);
    stage.remove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_that_break_the_guarantee_are_refused_by_name() {
    let stage = Stage::new("settings", 1).await;
    for setting in ["enable.auto.commit=true", "enable.auto.offset.store=true", "auto.offset.reset=earliest"] {
        let ended = refused(&stage, &[], &["--reset", "earliest", "--kafka", setting]).await;
        assert_refused(&ended, 2, &[setting.split('=').next().expect("a name")]);
    }
    stage.remove().await;
}
