use idem_core::key::default_key_source;

use super::*;

fn open(envelope: Envelope, body: &str) -> Message {
    let mut headers = Headers::default();
    headers.push("own", Some(Bytes::from_static(b"1")));
    envelope.open(body.to_owned(), headers, "sqs-id")
}

/// As SNS sends it.
const NOTIFICATION: &str = r#"{
  "Type" : "Notification",
  "MessageId" : "22b80b92-fdea-4c2c-8f9d-bdfb0c7bf324",
  "TopicArn" : "arn:aws:sns:us-west-2:123456789012:orders",
  "Subject" : "a subject",
  "Message" : "{\"idempotencykey\": \"order-1\",\n \"cents\": 1177}",
  "Timestamp" : "2012-05-02T00:54:06.655Z",
  "SignatureVersion" : "1",
  "Signature" : "EXAMPLEw6JRN…",
  "MessageAttributes" : {
    "idempotencykey" : {"Type":"String","Value":"order-1"},
    "raw" : {"Type":"Binary","Value":"/wD+"}
  }
}"#;

#[test]
fn a_notification_of_sns_is_its_message_with_its_attributes() {
    let message = open(Envelope::Sns, NOTIFICATION);
    assert_eq!(message.payload().unwrap(), "{\"idempotencykey\": \"order-1\",\n \"cents\": 1177}");
    assert_eq!(message.id(), Some("22b80b92-fdea-4c2c-8f9d-bdfb0c7bf324"));
    let headers: Vec<_> = message.headers().iter().collect();
    assert_eq!(headers, [("idempotencykey", Some(&b"order-1"[..])), ("raw", Some(&b"\xff\x00\xfe"[..]))]);
    assert_eq!(default_key_source().key(&message).unwrap().unwrap().as_str(), "order-1");
    let second = NOTIFICATION.replace("22b80b92", "33b80b92").replace("2012", "2013");
    assert_eq!(open(Envelope::Sns, &second).payload(), message.payload(), "the hash is of what the producer sent");
}

/// As EventBridge sends it.
const EVENT: &str = r#"{"version":"0","id":"6a7e8feb-b491-4cf7-a9f1-bf3703467718","detail-type":"order placed","source":"shop",
"account":"111122223333","time":"2017-12-22T18:43:48Z","region":"us-west-1","resources":[],
"detail":{"idempotencykey":"order-1",  "cents":1.0}}"#;

#[test]
fn r50_an_event_of_eventbridge_is_the_text_of_its_detail() {
    let message = open(Envelope::EventBridge, EVENT);
    assert_eq!(message.payload().unwrap(), r#"{"idempotencykey":"order-1",  "cents":1.0}"#, "not written anew");
    assert_eq!(
        (message.id(), message.message_type()),
        (Some("6a7e8feb-b491-4cf7-a9f1-bf3703467718"), Some("order placed"))
    );
    assert!(message.headers().is_empty());
}

#[test]
fn what_is_no_such_envelope_is_handed_over_as_it_is() {
    let repeated = NOTIFICATION.replace("\"Subject\"", "\"Message\"");
    let confirmation = NOTIFICATION.replace("\"Notification\"", "\"SubscriptionConfirmation\"");
    let no_base64 = NOTIFICATION.replace("/wD+", "?");
    for (envelope, body) in [
        (Envelope::Sns, "{\"idempotencykey\":\"order-1\"}"),
        (Envelope::Sns, "text"),
        (Envelope::Sns, &repeated),
        (Envelope::Sns, &confirmation),
        (Envelope::Sns, &no_base64),
        (Envelope::EventBridge, NOTIFICATION),
        (Envelope::EventBridge, "[]"),
    ] {
        let message = open(envelope, body);
        assert_eq!(message.payload().unwrap(), body);
        assert_eq!((message.id(), message.headers().text("own")), (Some("sqs-id"), Some("1")));
    }
}
