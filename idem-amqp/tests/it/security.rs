//! A broker that wants TLS, on a server of its own.

use idem_amqp::AmqpOptions;
use idem_core::{Message, SourceError};

use crate::{
    broker::{Kind, Queue},
    member::{attached, join, refusal},
    own_server::OwnServer,
};

fn options(queue: &Queue, authority: &str) -> AmqpOptions {
    let [broker, management] = OwnServer::tls();
    AmqpOptions::new(format!("amqps://guest:guest@{broker}/%2f"), &queue.name)
        .management_url(format!("https://{management}"))
        .authorities(authority)
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_and_management_come_over_tls() {
    let server = OwnServer::up().await;
    let queue = Queue::on(&server.url(), Kind::Classic, &[]).await;
    queue.publish(Message::new("one")).await.unwrap();
    let options = options(&queue, &server.authority("ca"))
        .client_certificate(server.authority("client"), server.authority("client-key"));
    assert_eq!(attached(&options).await.unwrap().warnings, [""; 0]);
    let member = join(&options).await;
    let held = member.take_over_revocations(1).await;
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

/// G32: a broker that wants to know its clients by their certificates lets in the one that has a certificate, and the
/// others' error says what is missing.
#[tokio::test(flavor = "multi_thread")]
async fn g32_a_client_without_the_certificate_that_the_broker_wants_is_refused_at_once() {
    let server = OwnServer::up().await;
    let queue = Queue::on(&server.url(), Kind::Classic, &[]).await;
    let options = options(&queue, &server.authority("ca"));
    let stranger = options.clone().client_certificate(server.authority("stranger"), server.authority("stranger-key"));
    for refused in [options.clone(), stranger] {
        // The broker ends the connection behind its refusal, and the system may drop unread bytes.
        let mut error = refusal(&refused).await;
        for _ in 0..20 {
            if let SourceError::Refused { .. } = error {
                break;
            }
            error = refusal(&refused).await;
        }
        let text = error.to_string();
        assert!(matches!(error, SourceError::Refused { .. }), "{error:?}");
        assert!(text.contains("without a certificate") && text.contains("`client_certificate`"), "{text}");
    }
    let known = options.client_certificate(server.authority("client"), server.authority("client-key"));
    attached(&known).await.unwrap();
}
