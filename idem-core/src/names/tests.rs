//! What names may be, and how they are printed.

use super::*;

fn key(text: &str) -> IdempotencyKey {
    IdempotencyKey::new(text).expect("a valid key")
}

/// S1: the bounds of a key are exact, and nothing is trimmed or folded.
#[test]
fn s1_a_key_has_1_to_255_bytes_and_is_kept_as_it_is() {
    assert_eq!(IdempotencyKey::new(""), Err(KeyError::Empty));
    let longest = "k".repeat(255);
    assert_eq!(key(&longest).as_str(), longest);
    assert_eq!(IdempotencyKey::new(&"k".repeat(256)), Err(KeyError::TooLong { bytes: 256 }));
    // The limit counts bytes: 127 letters of two bytes fit, 128 do not.
    assert!(IdempotencyKey::new(&"é".repeat(127)).is_ok());
    assert_eq!(IdempotencyKey::new(&"é".repeat(128)), Err(KeyError::TooLong { bytes: 256 }));
    assert_eq!(key(" Order-1 ").as_str(), " Order-1 ");
    assert_ne!(key("order"), key("ORDER"));
    // Composed and decomposed forms are two keys (B9).
    assert_ne!(key("\u{e9}"), key("e\u{301}"));
}

/// S1, B10: PostgreSQL refuses NUL in text (22021), and a control character could forge a line of a log.
#[test]
fn s1_b10_nul_and_control_characters_are_refused() {
    for text in ["\0", "a\0b", "\n", "a\r\nb", "\u{1b}[31m", "\t", "\u{7f}", "\u{85}", "\u{9f}"] {
        assert_eq!(IdempotencyKey::new(text), Err(KeyError::ControlCharacter), "{text:?}");
    }
}

/// S5: characters other than control characters that break or turn a line on a terminal are printed escaped.
#[test]
fn s5_a_key_is_printed_escaped() {
    assert_eq!(key("a\"b\\").to_string(), r#"a\"b\\"#);
    assert_eq!(key("a\u{2028}b").to_string(), r"a\u{2028}b");
    assert_eq!(key("a\u{202e}b").to_string(), r"a\u{202e}b");
    assert_eq!(format!("{:?}", key("a b")), "\"a b\"");
    // Not even a key that was made around the check reaches a log with line breaks or terminal escapes.
    let forged = IdempotencyKey("a\r\n\u{1b}[31mb".into());
    assert_eq!(forged.to_string(), r"a\r\n\u{1b}[31mb");
    assert!(!format!("{forged:?}").chars().any(char::is_control));
}

#[test]
fn s2_names_have_1_to_100_bytes_without_control_characters() {
    for text in ["", "a\nb", "a\0", &"n".repeat(101), &"é".repeat(51)] {
        assert!(ConsumerName::new(text).is_err() && Tenant::new(text).is_err(), "{text:?}");
    }
    let longest = "n".repeat(100);
    assert_eq!(ConsumerName::new(&longest).expect("a name").as_str(), longest);
    assert_eq!(
        (Tenant::default().as_str(), Tenant::new("acme").expect("a tenant").to_string()),
        ("", "acme".to_owned())
    );
    let error = ConsumerName::new("a\r\n\u{1b}[31m").expect_err("control characters").to_string();
    assert!(!error.chars().any(char::is_control), "S5: {error:?}");
    let endless = ConsumerName::new(&"n".repeat(10_000)).expect_err("too long").to_string();
    assert!(endless.len() < 300, "a refused name is not repeated at its full length");
}

/// S5: the producer's id of its message is a part of a RabbitMQ origin, and forges no line of a log.
#[test]
fn s5_an_origin_is_shown_in_one_line() {
    assert_eq!(Origin::new("orders/a\nWARN forged\u{202e}").to_string(), "orders/a\\nWARN forged\\u{202e}");
}
