//! S16, S17: the limits of one message, and of all messages in memory.

use idem_core::{Message, dead_letter::Reason, message::Headers};

use super::fixture::{Fixture, Running, drain, message, within};

/// As many headers as wanted, the first of which is the key.
fn with_headers(key: &str, payload: &str, headers: usize, value: &[u8]) -> Message {
    let mut all = Headers::default();
    all.push("idempotencykey", Some(key.as_bytes().to_vec().into()));
    (1..headers).for_each(|_| all.push("x", Some(value.to_vec().into())));
    Message::new(payload.to_owned()).with_headers(all)
}

/// S16: headers have a limit of number and one of bytes, and a message beyond one is set aside before anything of it is
/// parsed: its payload, which is malformed, is not what it is blamed for.
#[tokio::test(flavor = "multi_thread")]
async fn s16_too_many_headers_and_too_large_ones_are_set_aside_before_anything_is_parsed() {
    let fixture = Fixture::new();
    for beyond in [
        with_headers("1", "ok", 1_001, b""),
        with_headers("2", "ok", 2, &[b'v'; 64 << 10]),
        with_headers("", "ok", 99_000, b""),
    ] {
        fixture.queue.publish(beyond).unwrap();
    }
    fixture.queue.publish(with_headers("3", "ok", 1_000, b"")).unwrap();
    fixture.queue.publish(with_headers("4", "ok", 2, &[b'v'; 63 << 10])).unwrap();
    let summary = drain(&fixture, fixture.worker()).await;
    assert_eq!((summary.processed, summary.dead_lettered), (2, 3));
    let letters = fixture.dead_letters().await;
    assert!(letters.iter().all(|letter| letter.reason == Reason::TooLarge), "{letters:?}");
    let texts = ["headers_max", "headers_bytes_max", "headers_max"];
    assert!(letters.iter().zip(texts).all(|(letter, text)| letter.error.contains(text)), "{letters:?}");
}

/// S17: a flood of messages that are small on the wire and large in memory waits at the broker, not here.
#[tokio::test(flavor = "multi_thread")]
async fn s17_headers_take_their_share_of_what_may_be_in_flight() {
    let fixture = Fixture::new();
    fixture.publish("first", "block");
    // A header without name and value takes no byte on the wire and 48 here.
    for n in 0..600 {
        fixture.queue.publish(with_headers(&format!("k{n}"), "ok", 990, b"")).unwrap();
    }
    let running = Running::new(fixture.worker().in_flight_bytes(1 << 20));
    fixture.script.blocked().await;
    running.until("the limit", |running| running.view.load().bytes > (1 << 20) - (200 << 10)).await;
    let in_memory = fixture.queue.stats().in_flight;
    assert!(in_memory * 990 * 48 < 2 << 20, "{in_memory} messages of 47 kB are here, and 1 MiB is allowed");
    fixture.script.unblock();
    within("draining the queue", fixture.queue.drained()).await;
    running.stop().await.unwrap();
    assert_eq!(fixture.counted().len(), 601);
}

/// S17: received messages that wait for their share are bounded by bytes too.
#[tokio::test(flavor = "multi_thread")]
async fn s17_what_waits_for_its_share_is_bounded_by_bytes() {
    let fixture = Fixture::new();
    fixture.publish("first", "block");
    let large = "x".repeat(300 << 10);
    (0..100).for_each(|n| drop(fixture.queue.publish(message(&format!("k{n}"), &large)).unwrap()));
    let running = Running::new(fixture.worker().in_flight_bytes(1 << 20));
    fixture.script.blocked().await;
    running.until("the limit", |running| running.view.load().bytes > 600 << 10).await;
    let in_memory = fixture.queue.stats().in_flight;
    assert!(in_memory <= 6, "{in_memory} messages of 300 KiB are here, and 1 MiB is allowed");
    fixture.script.unblock();
    within("draining the queue", fixture.queue.drained()).await;
    running.stop().await.unwrap();
    assert_eq!(fixture.counted().len(), 101);
}
