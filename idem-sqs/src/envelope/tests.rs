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
fn an_event_of_eventbridge_is_the_text_of_its_detail() {
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
    let confirmation = NOTIFICATION.replace("\"Notification\"", "\"SubscriptionConfirmation\"");
    let no_base64 = NOTIFICATION.replace("/wD+", "?");
    for (envelope, body) in [
        (Envelope::Sns, "{\"idempotencykey\":\"order-1\"}"),
        (Envelope::Sns, "text"),
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

/// F14, S10: readers disagree about a repeated member, so the body is kept as it is and set aside as malformed, wherever in
/// the envelope it stands. A repetition inside the producer's own message is for its readers.
#[test]
fn f14_an_envelope_with_a_repeated_member_is_malformed() {
    let sns = |from: &str, to: &str| (Envelope::Sns, NOTIFICATION.replacen(from, to, 1));
    let attribute = r#""idempotencykey" : {"Type":"String","Value":"order-1"},"#;
    let twice = format!(r#"{attribute} "idempotencykey":{{"Type":"String","Value":"order-2"}},"#);
    let escaped = twice.replacen("\"idempotencykey\":{", "\"idempotency\\u006bey\":{", 1);
    for (envelope, body) in [
        sns(attribute, &twice),
        sns(attribute, &escaped),
        sns("\"Subject\"", "\"Message\""),
        sns("\"Subject\"", "\"SignatureVersion\""),
        sns("\"Subject\"", "\"Type\""),
        sns("\"Subject\"", "\"MessageAttributes\":{}, \"Subject\""),
        sns("\"Value\":\"order-1\"", "\"Value\":\"order-1\",\"Value\":\"order-2\""),
        (Envelope::EventBridge, EVENT.replacen("\"source\"", "\"detail\":{},\"source\"", 1)),
        (Envelope::EventBridge, EVENT.replacen("\"source\"", "\"region\"", 1)),
    ] {
        let message = open(envelope, &body);
        assert_eq!(message.problem(), Some("its envelope has a repeated member"), "{body}");
        assert_eq!((message.payload().unwrap(), message.headers().text("own")), (&Bytes::from(body), Some("1")));
    }
    let inside = NOTIFICATION.replacen("\\\"cents\\\": 1177", "\\\"cents\\\": 1, \\\"cents\\\": 2", 1);
    assert_ne!(inside, NOTIFICATION);
    for (envelope, body) in [
        (Envelope::Sns, &inside[..]),
        (Envelope::EventBridge, &EVENT.replacen("\"cents\":1.0", "\"cents\":1,\"cents\":2", 1)),
        (Envelope::Sns, r#"{"a":1,"a":2}"#),
        (Envelope::EventBridge, r#"{"id":"1","id":"2"}"#),
    ] {
        assert_eq!(open(envelope, body).problem(), None, "{body}");
    }
}

/// F14: no body makes it panic, and the result is the producer's text or the body. The seed is printed on failure.
#[test]
fn f14_bodies_of_any_shape_are_opened_or_kept() {
    let seed = idem_testkit::seed();
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..5_000 {
        for (envelope, whole) in [(Envelope::Sns, NOTIFICATION), (Envelope::EventBridge, EVENT)] {
            let mut body: Vec<char> = whole.chars().collect();
            for _ in 0..random.usize(0..6) {
                let at = random.usize(..body.len());
                match random.u8(0..3) {
                    0 => drop(body.remove(at)),
                    1 => body.insert(at, ['"', '{', '}', '[', ',', ':', '\\', '\u{0}', 'é'][random.usize(..9)]),
                    _ => {
                        let to = (at + random.usize(0..60)).min(body.len());
                        let copy = body[at..to].to_vec();
                        let _ = body.splice(at..at, copy).count();
                    }
                }
            }
            let body: String = body.into_iter().collect();
            let message = open(envelope, &body);
            let payload = message.payload().map(|payload| payload.to_vec()).unwrap_or_default();
            if message.headers().text("own").is_some() {
                assert_eq!(payload, body.as_bytes(), "seed {seed}: what is no envelope stays as it is");
            } else {
                assert_eq!(message.problem(), None, "seed {seed}");
            }
        }
    }
}
