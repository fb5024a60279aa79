//! Dead letters to a queue.

use idem_core::{
    Message, SourceError,
    dead_letter::{DeadLetter, DeadLetterId, Publisher},
    hash::PayloadHash,
    key::{KeySource, default_key_source},
};
use idem_sqs::{
    SqsPublisher,
    aws_sdk_sqs::{
        primitives::Blob,
        types::{Message as Raw, MessageAttributeValue as Value},
    },
};
use idem_testkit::sqs::QueueOptions;

use crate::{
    member::{join, within},
    server::{Server, TestQueue, unique},
};

fn dead_letter(message: Message) -> DeadLetter {
    idem_testkit::dead_letter(message, "orders/1")
}

async fn carries_why(server: Server) {
    for ending in ["", ".fifo"] {
        let queue = server.queue(ending).await;
        let publisher = SqsPublisher::new(queue.client(), &queue.url).unwrap();
        let message = Message::new("{}").with_header("trace", "1").with_header("idempotencykey", "forged");
        let letter = dead_letter(message);
        within("publishing", publisher.publish(&letter)).await.unwrap();
        // A copy, as after a crash, is a repetition for a FIFO queue.
        within("publishing", publisher.publish(&letter)).await.unwrap();
        let expected = if ending.is_empty() { 2 } else { 1 };
        queue.until_counts([expected, 0, 0]).await;
        let published = join(&queue.options()).await.take_without_outage(1).await.remove(0).message;
        assert_eq!(published.payload().unwrap(), "{}");
        let text = |name| published.headers().text(name);
        assert_eq!((text("idem-reason"), text("idem-error")), (Some("conflict"), Some("it was used before")));
        assert_eq!((text("idem-attempts"), text("idem-consumer")), (Some("2"), Some("ledger")));
        assert_eq!((text("idem-origin"), text("idempotencykey")), (Some("orders/1"), Some("order-1")));
        assert_eq!(text("trace"), Some("1"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_carries_its_message_and_why_it_was_set_aside_on_elasticmq() {
    carries_why(Server::elastic()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_carries_its_message_and_why_it_was_set_aside_on_the_fake() {
    carries_why(Server::fake().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_largest_message_can_be_a_dead_letter() {
    let queue = Server::fake().await.queue("").await;
    let publisher = SqsPublisher::new(queue.client(), &queue.url).unwrap();
    for size in [(1 << 20) - 40, 1 << 20] {
        within("publishing", publisher.publish(&dead_letter(Message::new("x".repeat(size))))).await.unwrap();
    }
    queue.until_counts([2, 0, 0]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_confirmed_is_not_published() {
    for server in [Server::elastic(), Server::fake().await] {
        let queue = server.queue("").await;
        let nowhere = SqsPublisher::new(queue.client(), format!("{}-dead", queue.url)).unwrap();
        let refused = within("publishing", nowhere.publish(&dead_letter(Message::new("{}")))).await.unwrap_err();
        assert!(matches!(refused, SourceError::Refused { .. }) && refused.to_string().contains("-dead"), "{refused}");
    }
    let queue = Server::fake().await.queue("").await;
    let publisher = SqsPublisher::new(queue.client(), &queue.url).unwrap();
    queue.server.as_fake().fail("SendMessage", 1);
    let failed = within("publishing", publisher.publish(&dead_letter(Message::new("{}")))).await.unwrap_err();
    assert!(matches!(failed, SourceError::Unavailable { .. }), "{failed:?}");
    let refused = within("publishing", publisher.publish(&dead_letter(Message::tombstone()))).await.unwrap_err();
    assert!(refused.to_string().contains("orders/1"), "{refused}");
    assert!(SqsPublisher::new(queue.client(), "orders").is_err());
}

/// B-M4: the limit is the queue's own, with the attributes counted, and a message over it is distinguished from an
/// outage.
#[tokio::test(flavor = "multi_thread")]
async fn f12_a_dead_letter_has_the_room_that_the_queue_says() {
    let old = QueueOptions { message_bytes_max: 256 << 10, ..QueueOptions::default() };
    let queue = Server::fake().await.queue_with("", old).await;
    let attached = join(&queue.options()).await.attached;
    assert_eq!(attached.message_bytes_max, Some(256 << 10));
    let publisher = SqsPublisher::new(queue.client(), &queue.url).unwrap();
    let of = |bytes: usize| dead_letter(Message::new("x".repeat(bytes)).with_header("trace", "1"));
    // Room for its own attribute and for some of why.
    for bytes in [262_000, (256 << 10) - 12] {
        within("publishing", publisher.publish(&of(bytes))).await.unwrap();
    }
    for letter in [of((256 << 10) - 11), of(1 << 20), dead_letter(Message::new("")), dead_letter(Message::tombstone())]
    {
        let refused = within("publishing", publisher.publish(&letter)).await.unwrap_err();
        assert!(matches!(&refused, SourceError::DoesNotFit { .. }), "{refused:?}");
        let message = Message::tombstone().with_headers(letter.message.headers().clone());
        let row = DeadLetter { payload_omitted: Some(DeadLetterId(7)), ..dead_letter(message) };
        within("publishing", publisher.publish(&row)).await.unwrap();
    }
    queue.until_counts([6, 0, 0]).await;
    let held = join(&queue.options()).await.take_without_outage(6).await;
    let omitted = held.iter().filter(|delivery| delivery.message.headers().text("idem-payload-omitted") == Some("7"));
    assert_eq!(omitted.count(), 4);
    assert_eq!(held.iter().filter(|delivery| delivery.message.headers().text("trace") == Some("1")).count(), 4);
}

/// The queue's limit may be unknown, for want of a right; then its refusal says so.
#[tokio::test(flavor = "multi_thread")]
async fn f12_a_queue_that_does_not_tell_its_limit_refuses_by_it() {
    let old = QueueOptions { message_bytes_max: 256 << 10, ..QueueOptions::default() };
    let queue = Server::fake().await.queue_with("", old).await;
    let publisher = SqsPublisher::new(queue.client(), &queue.url).unwrap();
    queue.server.as_fake().fail("GetQueueAttributes", 1);
    let letter = dead_letter(Message::new("x".repeat(300_000)));
    let refused = within("publishing", publisher.publish(&letter)).await.unwrap_err();
    assert!(matches!(&refused, SourceError::DoesNotFit { .. }), "{refused:?}");
    assert!(refused.to_string().contains("262144"), "{refused}");
}

/// The one message of a queue, as the SDK has it; it stays where it is.
async fn raw(queue: &TestQueue) -> Raw {
    let request = queue.client().receive_message().queue_url(&queue.url).message_attribute_names("All");
    let request = request.message_system_attribute_names("All".into()).wait_time_seconds(5).visibility_timeout(60);
    request.send().await.unwrap().messages.unwrap().remove(0)
}

async fn comes_back_the_same(server: Server) {
    for (ending, stripped) in [("", true), ("", false), (".fifo", true), (".fifo", false)] {
        let (queue, dead) = (server.queue(ending).await, server.queue(ending).await);
        let value =
            |data_type: &str, value: &str| Value::builder().data_type(data_type).string_value(value).build().unwrap();
        let blob = |bytes: &[u8]| Value::builder().data_type("Binary").binary_value(Blob::new(bytes)).build().unwrap();
        let mut send = queue.message(r#"{"cents":1}"#);
        for (name, value) in [
            ("idempotencykey", value("String", "order-1")),
            ("ce_type", value("String", "purchase.made")),
            ("number", value("Number", "17")),
            ("raw", blob(b"\xff\x00")),
            ("blob", blob(b"text")),
        ] {
            send = send.message_attributes(name, value);
        }
        if ending == ".fifo" {
            send = send.message_group_id("customer-1");
        }
        send.send().await.unwrap();
        let member = join(&queue.options()).await;
        let first = member.take_without_outage(1).await.remove(0);
        let letter = DeadLetter { message: first.message.clone(), ..dead_letter(first.message.clone()) };
        let publisher = SqsPublisher::new(queue.client(), &dead.url).unwrap();
        within("publishing", publisher.publish(&letter)).await.unwrap();
        let published = raw(&dead).await;
        let attributes = published.message_attributes().unwrap();
        let types = ["number", "raw", "blob", "ce_type"].map(|name| attributes[name].data_type().to_owned());
        assert_eq!(types, ["Number", "Binary", "Binary", "String"]);
        let fresh = server.queue(ending).await;
        let mut copy = fresh.message(published.body().unwrap());
        for (name, value) in attributes {
            if !stripped || !(name == "idem" || name.starts_with("idem-")) {
                copy = copy.message_attributes(name, value.clone());
            }
        }
        if ending == ".fifo" {
            let group = &published.attributes().unwrap()[&"MessageGroupId".into()];
            copy = copy.message_group_id(group).message_deduplication_id(unique("shovel"));
        }
        copy.send().await.unwrap();
        let back = join(&fresh.options()).await.take_without_outage(1).await.remove(0).message;
        let seen = |message: &Message| {
            let own = |(name, _): &(&str, Option<&[u8]>)| *name != "idem" && !name.starts_with("idem-");
            let headers: Vec<_> =
                message.headers().iter().filter(own).map(|(n, v)| (n.to_owned(), v.map(<[u8]>::to_vec))).collect();
            let key = default_key_source().key(message).unwrap().unwrap();
            let hash = PayloadHash::of(message.payload().unwrap());
            (key, hash, message.message_type().map(str::to_owned), message.ordering_key().cloned(), headers)
        };
        assert_eq!(seen(&back), seen(&first.message), "{ending} stripped: {stripped}");
    }
}

/// B-M8: a dead letter that an operator moves back is the message that it was, with idem's attributes or without them.
#[tokio::test(flavor = "multi_thread")]
async fn f13_a_dead_letter_that_is_moved_back_is_the_same_message_on_elasticmq() {
    comes_back_the_same(Server::elastic()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn f13_a_dead_letter_that_is_moved_back_is_the_same_message_on_the_fake() {
    comes_back_the_same(Server::fake().await).await;
}

/// The strict fake refuses the messages that SQS refuses, so that tests against it can show them.
#[tokio::test(flavor = "multi_thread")]
async fn f13_the_strict_sqs_refuses_batches_as_a_whole() {
    use idem_sqs::aws_sdk_sqs::{error::ProvideErrorMetadata, types::SendMessageBatchRequestEntry as Entry};
    let queue = Server::fake().await.queue("").await;
    let send = async |entries: Vec<(String, String)>| {
        let entries = entries.into_iter().map(|(id, body)| Entry::builder().id(id).message_body(body).build().unwrap());
        let request = queue.client().send_message_batch().queue_url(&queue.url).set_entries(Some(entries.collect()));
        request.send().await.map_err(|error| error.code().unwrap_or_default().to_owned())
    };
    let entries = |count: usize, bytes: usize| (0..count).map(|n| (n.to_string(), "x".repeat(bytes))).collect();
    let refused = async |entries| send(entries).await.unwrap_err();
    assert_eq!(refused(entries(11, 1)).await, "TooManyEntriesInBatchRequest");
    assert_eq!(refused(entries(0, 1)).await, "EmptyBatchRequest");
    assert_eq!(refused(entries(2, 600_000)).await, "BatchRequestTooLong");
    assert_eq!(refused(vec![("a".into(), "x".into()), ("a".into(), "y".into())]).await, "BatchEntryIdsNotDistinct");
    assert_eq!(refused(vec![("a b".into(), "x".into())]).await, "InvalidBatchEntryId");
    assert_eq!(send(entries(10, 100_000)).await.unwrap().successful().len(), 10);
}
