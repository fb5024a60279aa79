//! A message of SQS as the worker gets it.

use std::time::Duration;

use idem_core::{Message, Source as _};
use idem_sqs::{
    Envelope, SqsOptions,
    aws_sdk_sqs::{primitives::Blob, types::MessageAttributeValue as Value},
};

use crate::{
    member::join,
    server::{Server, TestQueue, client},
};

async fn one(queue: &TestQueue) -> Message {
    join(&queue.options()).await.take_without_outage(1).await.remove(0).message
}

async fn everything_arrives(server: Server) {
    let queue = server.queue("").await;
    let text = |value: &str| Value::builder().data_type("String").string_value(value).build().unwrap();
    let send = queue.message("Zürich\t1\n").message_attributes("idempotencykey", text("order-1"));
    let send = send.message_attributes("EventType", text("paid"));
    let number = Value::builder().data_type("Number").string_value("17").build().unwrap();
    let raw = Value::builder().data_type("Binary").binary_value(Blob::new(b"\xff\x00")).build().unwrap();
    let sent = send.message_attributes("number", number).message_attributes("raw", raw).send().await.unwrap();
    let message = one(&queue).await;
    assert_eq!(message.payload().unwrap(), "Zürich\t1\n");
    assert_eq!(message.id(), sent.message_id());
    assert_eq!(message.origin().as_str(), format!("{}/{}", queue.name, sent.message_id().unwrap()));
    let headers: Vec<_> = message.headers().iter().map(|(name, value)| (name, value.unwrap())).collect();
    let expected: [(&str, &[u8]); 4] =
        [("EventType", b"paid"), ("idempotencykey", b"order-1"), ("number", b"17"), ("raw", b"\xff\x00")];
    assert_eq!(headers, expected, "in the order of their names");
    let age = message.sent_at().unwrap().elapsed().unwrap_or_default();
    assert!(age < Duration::from_secs(60), "{age:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn body_attributes_and_facts_arrive_on_elasticmq() {
    everything_arrives(Server::elastic()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn body_attributes_and_facts_arrive_on_the_fake() {
    everything_arrives(Server::fake().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_envelope_is_opened_where_it_is_asked_for() {
    let queue = Server::fake().await.queue("").await;
    let event = r#"{"id":"e-1","detail-type":"order placed","detail":{"idempotencykey":"order-1"}}"#;
    queue.send([event]).await;
    let member = join(&queue.options().envelope(Envelope::EventBridge)).await;
    let opened = member.take_without_outage(1).await.remove(0).message;
    assert_eq!(opened.payload().unwrap(), r#"{"idempotencykey":"order-1"}"#);
    assert_eq!(opened.id(), Some("e-1"));
    assert!(opened.origin().as_str().starts_with(&queue.name), "the origin is the queue's");
    member.close().await;
    assert_eq!(one(&queue).await.payload().unwrap(), event, "raw by default");
}

/// S9: requests go to the endpoint of the client, so its scheme counts, and not that of the queue's URL. `0.0.0.0` is no
/// address of this machine alone, and reaches it all the same.
#[tokio::test(flavor = "multi_thread")]
async fn s9_an_endpoint_without_tls_is_warned_of_whatever_the_queues_url_says() {
    let queue = Server::fake().await.queue("").await;
    let here = queue.server.as_fake().endpoint().to_owned();
    for (endpoint, told) in [(here.replace("127.0.0.1", "0.0.0.0"), true), (here, false)] {
        for url in [queue.url.clone(), queue.url.replace("http://", "https://")] {
            let source = SqsOptions::new(client(&endpoint), &url).build().unwrap();
            let warnings = source.attach().await.unwrap().warnings;
            let host = endpoint.trim_start_matches("http://");
            let plaintext = format!(
                "the connection to the broker at {host} is in plaintext: use an endpoint with https:// (AWS_ENDPOINT_URL)"
            );
            assert_eq!(warnings.contains(&plaintext), told, "{endpoint} {url}: {warnings:?}");
            source.close(Duration::from_secs(1)).await;
        }
    }
}
