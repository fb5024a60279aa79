//! Keys are untrusted text, compared byte for byte.

use std::collections::HashSet;

use idem_core::{Decision, Message, dead_letter::Reason};

use super::{
    fixture::{Fixture, Kind, decide, msg, process, write},
    subject::StoreUnderTest,
};

/// Handles a message for each key, then again with another payload: each key is its own, and is recorded as it came.
async fn each_is_a_key_of_its_own<T: StoreUnderTest>(subject: &T, keys: &[String]) {
    assert_eq!(keys.iter().collect::<HashSet<_>>().len(), keys.len(), "the case itself repeats a key");
    let fixture = Fixture::new(subject);
    let consumer = fixture.consumer(write);
    // One by one first, then as a batch: the two claim in different ways.
    let (alone, together) = keys.split_at(keys.len() / 2);
    for key in alone {
        assert_eq!(process(&consumer, [msg(key, "p")]).await, [Kind::Processed], "{key:?}");
    }
    let kinds = process(&consumer, together.iter().map(|key| msg(key, "p"))).await;
    assert_eq!(kinds, vec![Kind::Processed; together.len()]);
    for key in keys {
        assert_eq!(
            process(&consumer, [msg(key, "p"), msg(key, "q")]).await,
            [Kind::Duplicate, Kind::Conflict],
            "{key:?}"
        );
    }
    fixture.assert_effects(keys.iter().map(|key| (key.as_str(), "p"))).await;
}

fn texts(keys: &[&str]) -> Vec<String> {
    keys.iter().map(|key| (*key).to_owned()).collect()
}

/// S6: hostile keys are plain text: quotes, comments, placeholders, wildcards, braces, other languages' syntax.
pub async fn hostile_keys_are_plain_text<T: StoreUnderTest>(subject: &T) {
    let keys = [
        "'; DROP TABLE processed_messages; --",
        "\" OR 1=1 --",
        "{}",
        "{\"a\":1}",
        "{1,2}",
        "[\"a\"]",
        "*",
        "%",
        "_",
        "$1",
        "?",
        ":key",
        "@key",
        "\\",
        "\\x00",
        "\\'",
        "NULL",
        "null",
        "''",
        ",",
        "a,b",
        "(a)",
        "/* */",
        "../../etc/passwd",
        "${jndi:ldap://x}",
        "<script>",
        "\u{202e}gnp",
        "🦀",
        "\u{10ffff}",
        "KEYS[1]",
    ];
    each_is_a_key_of_its_own(subject, &texts(&keys)).await;
}

/// S1, B9: nothing is trimmed, folded or normalised: case, spaces, composition, width, zero-width characters.
pub async fn keys_that_look_alike_are_different<T: StoreUnderTest>(subject: &T) {
    let keys = [
        "order",
        "Order",
        "ORDER",
        "order ",
        " order",
        "order\u{a0}",
        "order\u{200b}",
        "\u{feff}order",
        "ｏｒｄｅｒ",
        "\u{e9}",
        "e\u{301}",
        "\u{1e9e}",
        "\u{df}",
        "ss",
        "I",
        "i",
        "\u{131}",
        "\u{130}",
        "\u{3a3}",
        "\u{3c3}",
        "\u{3c2}",
        "\u{212b}",
        "\u{c5}",
        "A\u{30a}",
        "1",
        "01",
        "1.0",
        "1e0",
        "+1",
        "١",
        "order-1",
        "order\u{2010}1",
    ];
    each_is_a_key_of_its_own(subject, &texts(&keys)).await;
}

/// Every spelling of a UUID is a key of its own, and so is the UUID that a store may make of another key.
pub async fn keys_that_look_like_uuids_are_different<T: StoreUnderTest>(subject: &T) {
    let keys = [
        "017f22e2-79b0-7cc3-98c4-dc0c0c07398f",
        "017F22E2-79B0-7CC3-98C4-DC0C0C07398F",
        "017f22e279b07cc398c4dc0c0c07398f",
        "{017f22e2-79b0-7cc3-98c4-dc0c0c07398f}",
        "urn:uuid:017f22e2-79b0-7cc3-98c4-dc0c0c07398f",
        "017f22e2-79b0-7cc3-98c4-dc0c0c07398f ",
        "017f22e2-79b0-8cc3-98c4-dc0c0c07398f",
        "017f22e2-79b0-4cc3-98c4-dc0c0c07398f",
        "017f22e2-79b0-4cc3-18c4-dc0c0c07398f",
        "00000000-0000-0000-0000-000000000000",
        "ffffffff-ffff-ffff-ffff-ffffffffffff",
        "00000000-0000-8000-8000-000000000000",
        "order-1",
        DIGEST_OF_ORDER_1,
    ];
    each_is_a_key_of_its_own(subject, &texts(&keys)).await;
}

/// The id that idem's own stores give to the key `order-1`, spelled as a key.
const DIGEST_OF_ORDER_1: &str = "974bbf67-3143-8790-b56d-a2d167d01ef3";

/// S1, B10: keys of up to 255 bytes are whole: those that differ in their last byte only are different.
pub async fn the_longest_keys_are_whole<T: StoreUnderTest>(subject: &T) {
    let long = |last: char| format!("{}{last}", "k".repeat(254));
    let keys = [
        long('a'),
        long('b'),
        "k".repeat(254),
        "é".repeat(127),
        format!("{}a", "é".repeat(127)),
        "語".repeat(85),
        "🦀".repeat(63),
        "'".repeat(255),
    ];
    each_is_a_key_of_its_own(subject, &keys).await;
}

/// S1, S6, B10, J10: a malformed key is refused whole, never cut or cleaned, and its neighbours are unharmed.
pub async fn malformed_keys_are_refused_and_neighbours_unharmed<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let consumer = fixture.consumer(write);
    let of = |key: Vec<u8>| Message::new("p").with_header("idempotencykey", key);
    let malformed = [
        of(Vec::new()),
        of(b"k\0".to_vec()),
        of(b"k\n".to_vec()),
        of(b"\x1b[31mk".to_vec()),
        of("k\u{85}".into()),
        of(vec![0xff, 0xfe]),
        of(vec![b'k'; 256]),
        of("é".repeat(255).into_bytes()),
        msg("k-1", "p").with_header("idempotencykey", "k-2"),
        Message::new(r#"{"idempotencykey":"k-1"}"#).with_header("idempotencykey", "k-2"),
    ];
    let count = malformed.len();
    let messages = std::iter::once(msg("first", "p")).chain(malformed).chain([msg("last", "p")]);
    let decisions = decide(&consumer, messages).await;
    assert!(decisions[0].is_processed() && decisions[count + 1].is_processed());
    for decision in &decisions[1..=count] {
        assert!(matches!(decision, Decision::Failed(failure) if failure.reason == Reason::Malformed), "{decision:?}");
    }
    fixture.assert_effects([("first", "p"), ("last", "p")]).await;
}

/// J10: a message without a key has its own reason, and is never given a key.
pub async fn a_message_without_a_key_is_never_given_one<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let without = [Message::new("{}"), Message::tombstone(), msg("order-1", "p"), Message::new("no JSON either")];
    let decisions = decide(&fixture.consumer(write), without).await;
    for (index, reason) in [(0, Reason::MissingKey), (1, Reason::MissingKey), (3, Reason::Malformed)] {
        let expected = matches!(&decisions[index], Decision::Failed(failure) if failure.reason == reason);
        assert!(expected, "{index}: {decisions:?}");
    }
    fixture.assert_effects([("order-1", "p")]).await;
}
