//! A broker that wants TLS, on a server of its own.

use idem_amqp::AmqpOptions;
use idem_core::{Attached, Message, Source, SourceError};

use crate::{
    broker::{Kind, PATIENCE, Queue},
    member::{Member, refusal, within},
    own_server::OwnServer,
};

fn options(queue: &Queue, authority: &str) -> AmqpOptions {
    let [broker, management] = OwnServer::tls();
    AmqpOptions::new(format!("amqps://guest:guest@{broker}/%2f"), &queue.name)
        .management_url(format!("https://{management}"))
        .authorities(authority)
}

async fn attached(options: &AmqpOptions) -> Result<Attached, SourceError> {
    let source = options.build().unwrap();
    let attached = within("attaching", source.attach()).await;
    source.close(PATIENCE).await;
    attached
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_and_management_come_over_tls() {
    let server = OwnServer::up().await;
    let queue = Queue::on(&server.url(), Kind::Classic, &[]).await;
    queue.publish(Message::new("one")).await.unwrap();
    let options = options(&queue, &server.authority("ca"));
    assert_eq!(attached(&options).await.unwrap().warnings, [""; 0]);
    let member = Member::join(&options).await;
    let held = member.take(1).await;
    member.acknowledge(held).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_that_nobody_vouches_for_is_refused_at_once() {
    let server = OwnServer::up().await;
    let queue = Queue::on(&server.url(), Kind::Classic, &[]).await;
    let error = refusal(&options(&queue, &server.authority("stranger"))).await;
    let text = error.to_string();
    assert!(matches!(error, SourceError::Refused { .. }), "{error:?}");
    assert!(text.contains("certificate of 127.0.0.1") && text.contains("`authorities`"), "{text}");
}
