//! Wrong settings: one clear line, and at once.

use lapin::types::AMQPValue;

use super::{
    queue::{Queue, management_url},
    stage::{Stage, quorum},
    worker::Ended,
};

/// Runs a worker with these values instead of its usual ones, and with further arguments.
async fn refused(stage: &Stage, instead: &[(&str, &str)], more: &[&str]) -> Ended {
    let mut arguments = stage.arguments(more);
    for (flag, value) in instead {
        let at = arguments.iter().position(|argument| argument == flag).expect("a usual flag");
        (*value).clone_into(&mut arguments[at + 1]);
    }
    stage.start_with(&arguments).ended().await
}

fn assert_refused(ended: &Ended, code: i32, words: &[&str]) {
    assert_eq!(ended.status.code(), Some(code), "{}", ended.log);
    let last = ended.log.lines().last().unwrap_or_default();
    for word in words {
        assert!(last.contains(word), "{word:?} is not in the last line: {last}");
    }
    assert!(!ended.log.contains("hunter2"), "{}", ended.log);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_does_not_exist_is_refused_and_not_declared() {
    let stage = Stage::new("no_queue").await;
    for _ in 0..2 {
        let ended = refused(&stage, &[("--queue", "idem-no-such-queue")], &[]).await;
        assert_refused(&ended, 2, &["idem-no-such-queue"]);
    }
    stage.remove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_credentials_are_refused_without_the_password() {
    let stage = Stage::new("no_login").await;
    let url = stage.queue.url.replace("guest:guest", "guest:hunter2");
    let ended = refused(&stage, &[("--amqp-url", &url)], &[]).await;
    assert_refused(&ended, 2, &["user \"guest\""]);
    stage.remove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_cannot_be_reached_ends_the_start_with_its_own_code() {
    let stage = Stage::new("no_broker").await;
    let nowhere = [("--amqp-url", "amqp://guest:hunter2@127.0.0.1:1/%2f")];
    let ended = refused(&stage, &nowhere, &["--startup-timeout", "3s"]).await;
    assert_refused(&ended, 3, &["broker"]);
    stage.remove().await;
}

/// Two queues under one consumer's name would see each other's duplicates.
#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_is_bound_elsewhere_is_refused_with_both_names() {
    let stage = Stage::new("bound").await;
    stage.send(0..1).await;
    stage.drain(&[]).await;
    let other = Queue::create(&format!("{}-other", stage.name), &[]).await;
    let ended = refused(&stage, &[("--queue", &other.name)], &[]).await;
    assert_refused(&ended, 2, &[&stage.name, &other.name]);
    stage.remove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_that_break_the_guarantee_are_refused_by_name() {
    let stage = Stage::new("settings").await;
    for (arguments, word) in [
        (["--prefetch", "0"], "--prefetch is 0"),
        (["--dead-letter-queue", ""], "--dead-letter-queue"),
        (["--dead-letter-queue", "idem-no-such-dead-letters"], "\"idem-no-such-dead-letters\" does not exist"),
        (["--retry-queue", "idem-no-such-retries"], "\"idem-no-such-retries\" does not exist"),
        (["--authorities", "no-such.pem"], "--authorities is no-such.pem"),
        (["--management-url", "guest:hunter2"], "--management-url"),
    ] {
        assert_refused(&refused(&stage, &[], &arguments).await, 2, &[word]);
    }
    stage.remove().await;
}

/// G6: a queue that drops a message after fewer attempts than idem makes, or without a place for it.
#[tokio::test(flavor = "multi_thread")]
async fn g6_queues_that_drop_messages_are_refused_where_the_management_api_tells() {
    let management = management_url();
    let limit = ("x-delivery-limit", AMQPValue::LongInt(3));
    let stage = Stage::with("drops", &[quorum(), limit.clone()]).await;
    let ended = refused(&stage, &[], &["--management-url", &management]).await;
    assert_refused(&ended, 2, &[&stage.name, "3 deliveries"]);
    // Told, it is accepted once it exceeds the attempts.
    let told = ["--delivery-limit", "3", "--management-url", &management, "--attempts"];
    assert_refused(&refused(&stage, &[], &[&told[..], &["3"]].concat()).await, 2, &["3 deliveries", "3 attempts"]);
    let accepted = stage.drain(&[&told[..], &["2"]].concat()).await;
    assert!(accepted.status.success(), "{}", accepted.log);
    // So is the word of whoever starts it without that.
    let unmanaged = refused(&stage, &[], &["--delivery-limit", "3", "--attempts", "3"]).await;
    assert_refused(&unmanaged, 2, &["3 deliveries", "3 attempts"]);
    let warned = stage.drain(&[]).await;
    assert!(warned.log.contains("--delivery-limit N|none"), "{}", warned.log);
    let wrong = refused(&stage, &[], &["--delivery-limit", "none", "--management-url", &management]).await;
    assert_refused(&wrong, 2, &["delivery limit 3", "none"]);
    stage.remove().await;
    let exchange = ("x-dead-letter-exchange", AMQPValue::LongString("amq.fanout".into()));
    let stage = Stage::with("limit", &[quorum(), limit, exchange]).await;
    let ended = refused(&stage, &[], &["--management-url", &management, "--attempts", "5"]).await;
    assert_refused(&ended, 2, &["3", "5"]);
    stage.remove().await;
}
