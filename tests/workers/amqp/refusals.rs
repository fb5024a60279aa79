//! Wrong settings: one clear line, and at once.

use lapin::types::AMQPValue;

use super::{
    fixture::{Fixture, quorum},
    queue::{Queue, management_url},
    worker::{Ended, Worker},
};

/// Runs a worker with these values instead of its usual ones, and with further arguments.
async fn refused(fixture: &Fixture, instead: &[(&str, &str)], more: &[&str]) -> Ended {
    let mut arguments = fixture.arguments(more);
    for (flag, value) in instead {
        let at = arguments.iter().position(|argument| argument == flag).expect("a usual flag");
        (*value).clone_into(&mut arguments[at + 1]);
    }
    fixture.start_with(&arguments).ended().await
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
    let fixture = Fixture::new("no_queue").await;
    for _ in 0..2 {
        let ended = refused(&fixture, &[("--queue", "idem-no-such-queue")], &[]).await;
        assert_refused(&ended, 2, &["idem-no-such-queue"]);
    }
    fixture.remove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_credentials_are_refused_without_the_password() {
    let fixture = Fixture::new("no_login").await;
    let url = fixture.queue.url.replace("guest:guest", "guest:hunter2");
    let ended = refused(&fixture, &[("--amqp-url", &url)], &[]).await;
    assert_refused(&ended, 2, &["user \"guest\""]);
    fixture.remove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_cannot_be_reached_ends_the_start_with_its_own_code() {
    let fixture = Fixture::new("no_broker").await;
    let nowhere = [("--amqp-url", "amqp://guest:hunter2@127.0.0.1:1/%2f")];
    let ended = refused(&fixture, &nowhere, &["--startup-timeout", "3s"]).await;
    // The address is the first thing to look at.
    assert_refused(&ended, 3, &["the broker could not be reached for 3s", "RabbitMQ at 127.0.0.1:1 does not answer"]);
    fixture.remove().await;
}

/// J83: with the log as it is by default, a refusal is one line of idem's. The client library would print three of its own, as
/// Rust's structs.
#[tokio::test(flavor = "multi_thread")]
async fn j83_a_refusal_is_told_once_and_in_words() {
    let fixture = Fixture::new("words").await;
    let elsewhere = format!("{}-no-such-vhost", fixture.queue.url);
    for instead in [("--queue", "idem-no-such-queue"), ("--amqp-url", &*elsewhere)] {
        let mut arguments = fixture.arguments(&[]);
        let at = arguments.iter().position(|argument| argument == instead.0).expect("a usual flag");
        instead.1.clone_into(&mut arguments[at + 1]);
        let unsaid = [("RUST_LOG", "")];
        let ended =
            Worker::start(env!("CARGO_BIN_EXE_amqp-rig"), &arguments, &unsaid, &fixture.next_log()).ended().await;
        assert_refused(&ended, 2, &["no-such-"]);
        let foreign = ended.log.lines().find(|line| line.contains("lapin") || line.contains("ShortString"));
        assert_eq!(foreign, None, "{}", ended.log);
    }
    fixture.remove().await;
}

/// J84: a check ends as a start would that fails, and otherwise leaves the queue, the ledger and idem's tables as they were.
#[tokio::test(flavor = "multi_thread")]
async fn j84_a_check_tells_what_a_start_would_and_changes_nothing() {
    let fixture = Fixture::new("check").await;
    fixture.send(0..1).await;
    let ended = fixture.start(&["--check"]).ended().await;
    assert!(ended.status.success(), "{}", ended.log);
    assert!(ended.log.contains("the worker could start") && ended.output.is_empty(), "{}{}", ended.log, ended.output);
    for table in ["consumers", "worker_runs", "audit", "processed_messages"] {
        let text = format!("SELECT count(*) FROM {table}");
        let rows: i64 = sqlx::query_scalar(sqlx::AssertSqlSafe(text)).fetch_one(fixture.pool()).await.expect("a count");
        assert_eq!(rows, 0, "{table}");
    }
    for (flag, wrong) in [("--queue", "idem-no-such-queue"), ("--database-url", "postgres://127.0.0.1:1/no-such-base")]
    {
        let ended = refused(&fixture, &[(flag, wrong)], &["--check", "--startup-timeout", "1s"]).await;
        assert_refused(&ended, if flag == "--queue" { 2 } else { 3 }, &[]);
        assert_eq!(ended.output, "");
    }
    let ended = fixture.start(&["--check", "--migrate"]).ended().await;
    assert_refused(&ended, 2, &[]);
    let ended = fixture.drain(&[]).await;
    assert_eq!((ended.count("processed"), fixture.purchases().await), (1, 1), "what was checked with is there still");
    fixture.remove().await;
}

/// Two queues under one consumer's name would see each other's duplicates.
#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_is_bound_elsewhere_is_refused_with_both_names() {
    let fixture = Fixture::new("bound").await;
    fixture.send(0..1).await;
    fixture.drain(&[]).await;
    let other = Queue::create(&format!("{}-other", fixture.name), &[]).await;
    let ended = refused(&fixture, &[("--queue", &other.name)], &[]).await;
    assert_refused(&ended, 2, &[&fixture.name, &other.name]);
    fixture.remove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_that_break_the_guarantee_are_refused_by_name() {
    let fixture = Fixture::new("settings").await;
    for (arguments, word) in [
        (["--prefetch", "0"], "--prefetch is 0"),
        (["--dead-letter-queue", ""], "--dead-letter-queue"),
        (["--dead-letter-queue", "idem-no-such-dead-letters"], "\"idem-no-such-dead-letters\" does not exist"),
        (["--retry-queue", "idem-no-such-retries"], "\"idem-no-such-retries\" does not exist"),
        (["--authorities", "no-such.pem"], "--authorities is no-such.pem"),
        (["--management-url", "guest:hunter2"], "--management-url"),
    ] {
        assert_refused(&refused(&fixture, &[], &arguments).await, 2, &[word]);
    }
    fixture.remove().await;
}

/// G6: a queue that drops a message after fewer attempts than idem makes, or without a place for it.
#[tokio::test(flavor = "multi_thread")]
async fn g6_queues_that_drop_messages_are_refused_where_the_management_api_tells() {
    let management = management_url();
    let limit = ("x-delivery-limit", AMQPValue::LongInt(3));
    let fixture = Fixture::with("drops", &[quorum(), limit.clone()]).await;
    let ended = refused(&fixture, &[], &["--management-url", &management]).await;
    assert_refused(&ended, 2, &[&fixture.name, "3 deliveries"]);
    // Told, it is accepted once it exceeds the attempts.
    let told = ["--delivery-limit", "3", "--management-url", &management, "--attempts"];
    assert_refused(&refused(&fixture, &[], &[&told[..], &["3"]].concat()).await, 2, &["3 deliveries", "3 attempts"]);
    let accepted = fixture.drain(&[&told[..], &["2"]].concat()).await;
    assert!(accepted.status.success(), "{}", accepted.log);
    // So is the limit that the command line names without that API.
    let unmanaged = refused(&fixture, &[], &["--delivery-limit", "3", "--attempts", "3"]).await;
    assert_refused(&unmanaged, 2, &["3 deliveries", "3 attempts"]);
    let warned = fixture.drain(&[]).await;
    assert!(warned.log.contains("--delivery-limit N|none"), "{}", warned.log);
    let wrong = refused(&fixture, &[], &["--delivery-limit", "none", "--management-url", &management]).await;
    assert_refused(&wrong, 2, &["delivery limit 3", "none"]);
    fixture.remove().await;
    let exchange = ("x-dead-letter-exchange", AMQPValue::LongString("amq.fanout".into()));
    let fixture = Fixture::with("limit", &[quorum(), limit, exchange]).await;
    let ended = refused(&fixture, &[], &["--management-url", &management, "--attempts", "5"]).await;
    assert_refused(&ended, 2, &["3", "5"]);
    fixture.remove().await;
}
