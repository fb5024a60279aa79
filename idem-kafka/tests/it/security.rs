//! Brokers that want TLS and a password: the door of the real one at `IDEM_KAFKA_SSL_BROKERS`, where `idem` may do
//! everything and `stranger` nothing.

use idem_core::{Message, SourceError, dead_letter::Publisher};
use idem_kafka::{KafkaOptions, KafkaPublisher, Reset};

use crate::{
    cluster::{Topic, fast},
    member::{attach_when_reachable, join, payloads},
    publisher::dead_letter,
};

fn brokers() -> String {
    std::env::var("IDEM_KAFKA_SSL_BROKERS").unwrap_or_else(|_| "127.0.0.1:29094".to_owned())
}

fn authority() -> String {
    let local = concat!(env!("CARGO_MANIFEST_DIR"), "/../.servers/kafka/ca.pem");
    std::env::var("IDEM_KAFKA_SSL_CA").unwrap_or_else(|_| local.to_owned())
}

fn options(topic: &Topic, user: &str, password: &str) -> KafkaOptions {
    fast(KafkaOptions::new(brokers(), &topic.name, &topic.group))
        .reset(Reset::Earliest)
        .set("security.protocol", "sasl_ssl")
        .set("ssl.ca.location", authority())
        .set("sasl.mechanisms", "PLAIN")
        .set("sasl.username", user)
        .set("sasl.password", password)
}

fn assert_refused<T: std::fmt::Debug>(answer: Result<T, SourceError>, words: &str) {
    match answer {
        Err(SourceError::Refused { problem, .. }) => assert!(problem.contains(words), "{problem}"),
        other => panic!("it is not refused: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_with_a_password_consumes_over_tls() {
    let topic = Topic::new(1).await;
    topic.put(0, "one").await;
    let member = join(options(&topic, "idem", "idem")).await;
    let held = member.take(1).await;
    assert_eq!(payloads(&held), ["one"]);
    member.acknowledge(held).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_password_is_refused_at_once() {
    let topic = Topic::new(1).await;
    assert_refused(attach_when_reachable(options(&topic, "idem", "guessed")).await, "do not let this client in");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_that_nobody_vouches_for_is_refused_at_once() {
    let topic = Topic::new(1).await;
    let trusting_others = options(&topic, "idem", "idem").set("ssl.ca.location", "/etc/ssl/certs/ca-certificates.crt");
    assert_refused(attach_when_reachable(trusting_others).await, "do not let this client in");
}

/// The reason follows everything else that the client library logs, here a warning for each outdated setting. It was read
/// after a second for each of these lines, and therefore mostly not at all.
#[tokio::test(flavor = "multi_thread")]
async fn e29_a_refusal_behind_many_warnings_is_heard_at_the_first_try() {
    let topic = Topic::new(1).await;
    let mut options = options(&topic, "idem", "guessed");
    for (name, value) in [
        ("topic.metadata.refresh.fast.cnt", "7"),
        ("socket.blocking.max.ms", "7"),
        ("reconnect.backoff.jitter.ms", "7"),
        ("api.version.request", "true"),
        ("api.version.fallback.ms", "7"),
        ("broker.version.fallback", "0.11.0"),
        ("offset.store.method", "broker"),
        ("offset.store.path", "/nowhere"),
        ("offset.store.sync.interval.ms", "7"),
        ("consume.callback.max.messages", "7"),
    ] {
        options = options.set(name, value);
    }
    // The broker answers a wrong password after a moment, so one try is enough, unless the machine stands still.
    assert_refused(attach_when_reachable(options).await, "do not let this client in");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_file_that_is_not_there_is_refused_by_the_name_of_its_setting() {
    let topic = Topic::new(1).await;
    let nowhere = options(&topic, "idem", "idem").set("ssl.ca.location", "/no/such/file");
    assert_refused(attach_when_reachable(nowhere).await, "ssl.ca.location");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_principal_without_rights_is_refused_by_the_name_of_the_topic() {
    let topic = Topic::new(1).await;
    assert_refused(attach_when_reachable(options(&topic, "stranger", "stranger")).await, &topic.name);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_topic_without_rights_is_refused_by_its_name() {
    let topic = Topic::new(1).await;
    let publisher = KafkaPublisher::new(&options(&topic, "stranger", "stranger"), &topic.name).unwrap();
    assert_refused(publisher.publish(&dead_letter(Message::new("{}"))).await, &topic.name);
}
