//! Data that must never leak, and data that must never be mixed up.

use std::io;

use idem_core::{Handler, HandlerError, Message, Tenant, Tx};
use idem_testkit::MemoryStore;

use super::{
    captured::Captured,
    fixture::{Fixture, Running, drain, message, within},
};

/// S2: two tenants with the same key are two messages, and neither sees the other's record.
#[tokio::test(flavor = "multi_thread")]
async fn s2_two_tenants_with_one_key_are_two_messages() {
    let fixture = Fixture::new();
    for tenant in ["blue", "green", "blue"] {
        fixture.queue.publish(message("order-1", tenant).with_header("authenticated-tenant", tenant)).unwrap();
    }
    fixture.queue.publish(message("order-1", "nobody")).unwrap();
    let tenant = |message: &Message| Tenant::new(message.headers().text("authenticated-tenant")?).ok();
    let consumer = fixture.consumer().tenant_from(tenant).build().unwrap();
    let summary = drain(&fixture, fixture.worker_of(consumer)).await;
    assert_eq!((summary.processed, summary.duplicates, summary.conflicts), (2, 1, 0));
    assert_eq!(summary.dead_lettered, 1, "a message without a tenant is malformed");
    let mut effects: Vec<String> = fixture.effects().into_iter().map(|(_, payload)| payload).collect();
    effects.sort();
    assert_eq!(effects, ["blue", "green"]);
}

const CANARY: &str = "canary-4111-1111-1111-1111";

/// Fails in every way in which an error could carry the payload along.
struct Leaky;

#[derive(Debug, serde::Deserialize)]
#[allow(dead_code, reason = "only its decoding matters")]
struct Card {
    number: u64,
    kind: Kind,
}

#[derive(Debug, serde::Deserialize)]
enum Kind {
    Debit,
}

impl Handler<MemoryStore> for Leaky {
    async fn handle(&self, message: &Message, _: &mut Tx<'_, MemoryStore>) -> Result<(), HandlerError> {
        let way = message.headers().text("way").unwrap_or_default();
        match way {
            "json" => {
                message.json::<Card>()?;
            }
            "wrapped" => {
                let wrap = |error| io::Error::other(Box::<dyn std::error::Error + Send + Sync>::from(error));
                message.json::<Card>().map_err(wrap)?;
            }
            "panic" => panic!("it panics, as it should in this test"),
            _ => {}
        }
        Ok(())
    }
}

/// S4: a canary in payloads and headers is in no log line at TRACE, no error, no `Debug`, no dead letter's text.
#[tokio::test]
async fn s4_nothing_of_a_payload_is_logged_or_stored_as_text() {
    let (captured, _guard) = Captured::log(tracing::Level::TRACE);
    let fixture = Fixture::new();
    let publish = |key: &str, payload: String, way: &str| {
        let message = message(key, &payload).with_header("way", way.to_owned()).with_header("secret", CANARY);
        fixture.queue.publish(message).unwrap();
    };
    for (n, way) in ["json", "wrapped"].into_iter().enumerate() {
        publish(&format!("a{n}"), format!(r#"{{"number":"{CANARY}","kind":"Debit"}}"#), way);
        publish(&format!("b{n}"), format!(r#"{{"number":1,"kind":"{CANARY}"}}"#), way);
        publish(&format!("c{n}"), format!(r#"{{"number":1,"{CANARY}":1}}"#), way);
        publish(&format!("d{n}"), format!("{CANARY} is no JSON"), way);
    }
    publish("panic", CANARY.to_owned(), "panic");
    publish("conflict", CANARY.to_owned(), "none");
    publish("conflict", format!("{CANARY} again"), "none");
    fixture.queue.publish(Message::new(format!(r#"{{"idempotencykey":{{"{CANARY}":1}}}}"#))).unwrap();
    let consumer = fixture.consumer().handler(Leaky).build().unwrap();
    let running = Running::new(fixture.worker_of(consumer).breaker(false));
    within("draining the queue", fixture.queue.drained()).await;
    let summary = running.stop().await.unwrap();
    assert_eq!((summary.processed, summary.dead_lettered), (1, 11));
    let logged = captured.lines().join("\n");
    assert!(logged.contains("set aside as a dead letter"), "nothing was captured:\n{logged}");
    let mut texts = vec![("the log", logged)];
    texts.extend(fixture.dead_letters().await.into_iter().map(|letter| ("a dead letter", format!("{letter:?}"))));
    texts.push(("Debug", format!("{:?}", message("1", CANARY).with_header("secret", CANARY))));
    for (place, text) in texts {
        assert!(!text.contains(CANARY), "{place} leaks the payload: {text}");
    }
}

/// J8: a flood of failures is no flood of log lines.
#[tokio::test]
async fn j8_many_failures_make_few_log_lines() {
    let (captured, _guard) = Captured::log(tracing::Level::INFO);
    let fixture = Fixture::new();
    (0..2_000).for_each(|n| drop(fixture.publish(&format!("k{n}"), "permanent")));
    let begun = tokio::time::Instant::now();
    let summary = drain(&fixture, fixture.worker().breaker(false)).await;
    let seconds = begun.elapsed().as_secs() + 1;
    assert_eq!(summary.dead_lettered, 2_000);
    let lines = captured.lines().len() as u64;
    assert!((1..=10 * seconds + 20).contains(&lines), "{lines} lines in {seconds} s");
}

/// S5: a key is printed escaped, so that it cannot forge a line.
#[tokio::test]
async fn s5_a_key_cannot_forge_a_line_of_a_log() {
    let key = idem_core::IdempotencyKey::new("a\u{2028}b\u{202e}c").unwrap();
    let printed = format!("{key} {key:?}");
    assert!(!printed.contains(['\u{2028}', '\u{202e}']), "{printed}");
}

/// S5: lines of the log are for people: no form of Rust's own stands in them.
#[tokio::test]
async fn s5_no_line_of_the_log_has_a_debug_form() {
    let (captured, _guard) = Captured::log(tracing::Level::WARN);
    let fixture = Fixture::new();
    let origin = fixture.publish("order-1", "permanent");
    for payload in ["paid", "refunded"] {
        fixture.publish("order-2", payload);
    }
    drain(&fixture, fixture.worker()).await;
    let lines = captured.lines();
    let has = |what: &str| lines.iter().any(|line| line.contains(what));
    assert!(has(&format!("origin={origin} ")) && has("another payload"), "{lines:?}");
    for form in ["Origin(", "PayloadHash(", "Some(", "Err(", "Ok("] {
        assert!(!has(form), "{form} in {lines:?}");
    }
}
