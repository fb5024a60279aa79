//! Another SDK of CloudEvents reads what is posted.

#[path = "../../../../tests/cloudevents/peer.rs"]
mod peer;

use idem_core::{
    Message,
    outbox::{CloudEvents, EventPublisher as _, OutgoingEvent},
};
use idem_webhook::{
    Secret,
    send::{Endpoint, WebhookPublisher},
};

use super::receiver::{Post, Receiver};

/// O26: in both modes, also with characters in its key that HTTP's binding encodes; and what is signed is what is sent.
#[tokio::test]
async fn o26_another_sdk_reads_what_is_posted() {
    let receiver = Receiver::new([]).await;
    let secret: Secret = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD".parse().unwrap();
    let events = peer::events();
    let given: Vec<&OutgoingEvent> = events.iter().collect();
    for mode in [CloudEvents::binary(), CloudEvents::structured()] {
        let endpoint = Endpoint::new(receiver.url("/hooks"), [secret.clone()]);
        let publisher = WebhookPublisher::new(move |_: &OutgoingEvent| {
            let endpoint = endpoint.clone();
            async move { Ok(Some(endpoint)) }
        });
        let publisher =
            publisher.unwrap().allow_private_networks().unwrap().allow_plaintext().send_origin().cloud_events(mode);
        let answers = publisher.publish_events(&given).await;
        assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    }
    let verifier = standardwebhooks::Webhook::new("whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD").unwrap();
    let message = |post: &Post| {
        // The reference reads text alone.
        assert!(std::str::from_utf8(&post.body).is_err() || verifier.verify(&post.body, &post.headers).is_ok());
        let headers = post.headers.iter();
        headers.fold(Message::new(post.body.clone()), |message, (name, value)| {
            message.with_header(name.as_str(), value.to_str().unwrap().to_owned())
        })
    };
    let posted: Vec<Message> = receiver.posts().iter().map(message).collect();
    assert_eq!(posted.len(), 2 * events.len());
    peer::reads("http", &posted.iter().zip(given.iter().copied().cycle()).collect::<Vec<_>>());
}

/// O26: requests over HTTP, as a handler behind one may get them.
#[test]
fn o26_requests_that_another_sdk_writes_are_read() {
    peer::are_read(&peer::written("http"));
}
