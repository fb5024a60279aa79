use serde_json::json;

use super::*;
use crate::AmqpOptions;

fn facts(answer: &Value, version: &[u32]) -> Facts {
    Facts::read(answer, version)
}

fn quorum(arguments: &Value, policy: &Value) -> Value {
    json!({ "type": "quorum", "durable": true, "arguments": arguments, "effective_policy_definition": policy })
}

fn refusal(answer: &Value, version: &[u32]) -> String {
    facts(answer, version).judge("purchases", None).unwrap_err().to_string()
}

/// Only 4.x has a limit of its own, so this is decided from its documentation, without such a server.
#[test]
fn g6_a_quorum_queue_has_a_delivery_limit_of_20_from_4_0_on() {
    let plain = quorum(&json!({}), &json!({}));
    for (version, limit) in
        [(&[3, 10, 8][..], None), (&[3, 13, 0], None), (&[4, 0, 0], Some(20)), (&[4, 3, 1], Some(20))]
    {
        assert_eq!(facts(&plain, version).delivery_limit, limit, "{version:?}");
    }
    assert_eq!(facts(&json!({ "type": "classic" }), &[4, 0, 0]).delivery_limit, None);
    for unlimited in
        [quorum(&json!({ "x-delivery-limit": -1 }), &json!({})), quorum(&json!({}), &json!({ "delivery-limit": -1 }))]
    {
        assert_eq!(facts(&unlimited, &[4, 0, 0]).delivery_limit, None);
        assert_eq!(facts(&unlimited, &[4, 0, 0]).judge("purchases", None).unwrap(), [""; 0]);
    }
    // The lower one of both counts, as the broker documents it.
    let both = quorum(&json!({ "x-delivery-limit": 7 }), &json!({ "delivery-limit": 5 }));
    assert_eq!(facts(&both, &[4, 0, 0]).delivery_limit, Some(5));
}

#[test]
fn g6_a_delivery_limit_without_a_dead_letter_exchange_is_refused() {
    let text = refusal(&quorum(&json!({ "x-delivery-limit": 3 }), &json!({})), &[3, 10, 8]);
    assert!(text.contains("drops a message after 3 deliveries") && text.contains("delivery-limit=-1"), "{text}");
    assert!(refusal(&quorum(&json!({}), &json!({})), &[4, 0, 0]).contains("after 20 deliveries"));
    let with_exchange = quorum(&json!({ "x-delivery-limit": 3 }), &json!({ "dead-letter-exchange": "dead" }));
    let facts = facts(&with_exchange, &[3, 10, 8]);
    assert_eq!(facts.delivery_limit, Some(3));
    let warnings = facts.judge("purchases", None).unwrap();
    assert!(warnings[0].contains("dead-letter-strategy=at-least-once"), "{warnings:?}");
}

/// G11: the broker's own dead-lettering counts as safe only where it is at-least-once.
#[test]
fn g11_dead_lettering_that_may_lose_messages_is_warned_of() {
    let moved = |strategy: Value| {
        let mut arguments = json!({ "x-delivery-limit": 30, "x-dead-letter-exchange": "dead" });
        arguments["x-dead-letter-strategy"] = strategy;
        facts(&quorum(&arguments, &json!({})), &[3, 10, 8]).judge("purchases", None).unwrap()
    };
    let told = |warnings: &[String]| warnings.iter().any(|warning| warning.contains("at-least-once"));
    assert!(told(&moved(json!("at-most-once"))) && told(&moved(Value::Null)));
    assert!(!told(&moved(json!("at-least-once"))));
}

#[test]
fn g7_what_drops_messages_by_itself_is_refused_or_warned_of() {
    let drops = json!({ "type": "classic", "arguments": { "x-max-length": 10 } });
    assert!(refusal(&drops, &[3, 10, 8]).contains("overflow=reject-publish"));
    let bytes = json!({ "type": "classic", "effective_policy_definition": { "max-length-bytes": 10 } });
    assert!(refusal(&bytes, &[3, 10, 8]).contains("drops its oldest messages"));
    let rejects = json!({ "type": "classic", "arguments": { "x-max-length": 10, "x-overflow": "reject-publish" } });
    assert_eq!(facts(&rejects, &[3, 10, 8]).judge("purchases", None).unwrap(), [""; 0]);
    assert!(refusal(&json!({ "type": "stream" }), &[3, 10, 8]).contains("is a stream"));
    let risky = json!({
        "type": "classic", "durable": false, "auto_delete": true, "effective_policy_definition": { "message-ttl": 60_000 }
    });
    let facts = facts(&risky, &[3, 10, 8]);
    assert_eq!(facts.message_ttl, Some(Duration::from_secs(60)));
    let warnings = facts.judge("purchases", None).unwrap();
    for word in ["message-ttl", "not durable", "auto-delete"] {
        assert!(warnings.iter().any(|warning| warning.contains(word)), "{word}: {warnings:?}");
    }
}

#[test]
fn a_retry_queue_must_lead_back_and_stay() {
    let judge = |arguments: Value| {
        facts(&json!({ "type": "quorum", "durable": true, "arguments": arguments }), &[])
            .judge_retry("later", "purchases")
    };
    let back = json!({ "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "purchases" });
    let warnings = judge(back.clone()).unwrap();
    assert!(warnings.len() == 1 && warnings[0].contains("dead-letter-strategy=at-least-once"), "{warnings:?}");
    let with = |name: &str, value: Value| {
        let mut arguments = back.clone();
        arguments[name] = value;
        judge(arguments)
    };
    assert_eq!(with("x-dead-letter-strategy", json!("at-least-once")).unwrap(), [""; 0]);
    for (refused, word) in [
        (judge(json!({})), "does not come back"),
        (judge(json!({ "x-dead-letter-exchange": "" })), "does not come back"),
        (with("x-dead-letter-exchange", json!("amq.fanout")), "does not come back"),
        (with("x-dead-letter-routing-key", json!("later")), "does not come back"),
        (with("x-expires", json!(60_000)), "x-expires"),
    ] {
        let text = refused.unwrap_err().to_string();
        assert!(text.contains(word) && text.contains("\"later\""), "{text}");
    }
}

#[test]
fn g4_a_consumer_timeout_of_the_queue_counts() {
    let answer = json!({ "type": "quorum", "arguments": { "x-consumer-timeout": 60_000 } });
    assert_eq!(facts(&answer, &[4, 3, 0]).consumer_timeout, Some(Duration::from_secs(60)));
}

/// S9: user and password go to each host of the broker, and to the management API as well.
#[test]
fn s9_plaintext_to_another_machine_is_warned_of() {
    let broker = "is in plaintext: write amqps:// in its URL";
    let management = "is in plaintext: write https:// in the management URL";
    for (url, host, api, told) in [
        ("amqp://localhost", "127.0.0.1:5673", "http://localhost:15672", &[][..]),
        ("amqp://localhost", "mq-2:5673", "http://[::1]:15672", &[("mq-2", broker)]),
        ("amqp://mq-1:5672", "mq-2", "https://mq-1:15672", &[("mq-1", broker)]),
        ("amqps://mq-1", "mq-2", "http://mq-1:15672", &[("mq-1", management)]),
        ("amqps://mq-1", "mq-2", "https://mq-1:15672", &[]),
    ] {
        let options = AmqpOptions::new(url, "purchases").host(host).management_url(api);
        let mut attached = Attached::new("q");
        warn_of_plaintext(&mut attached, &options.check().unwrap());
        let told: Vec<_> =
            told.iter().map(|(host, what)| format!("the connection to the broker at {host} {what}")).collect();
        assert_eq!(attached.warnings, told, "{url} {host} {api}");
    }
}
