//! Dead letters to a queue.

use idem_core::{DeadLetter, Message, Publisher, SourceError};
use idem_sqs::SqsPublisher;

use crate::{
    member::{Member, within},
    server::Server,
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
        let published = Member::join(&queue.options()).await.take(1).await.remove(0).message;
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
