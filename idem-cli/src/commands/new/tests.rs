use super::*;
use crate::command_line::{BrokerKind, StoreKind};

fn refusal(name: &str) -> String {
    check(name).err().map(|failure| format!("{failure:?}")).unwrap_or_default()
}

#[test]
fn a_name_that_cannot_be_a_packages_is_refused_with_the_rule() {
    for (name, rule) in [
        ("", "begin with a letter"),
        ("1st", "begin with a letter"),
        ("Orders", "a to z"),
        ("a/b", "a to z"),
        ("../up", "begin with a letter"),
        ("a b", "a to z"),
        ("größe", "a to z"),
        ("async", "keyword"),
        ("test", "called so"),
        ("idem-service", "called so"),
        (&"a".repeat(64), "63 characters"),
    ] {
        assert!(refusal(name).contains(rule), "{name:?}: {}", refusal(name));
    }
    for name in ["orders", "order-ledger_2", &"a".repeat(63)] {
        assert_eq!(refusal(name), "");
    }
}

#[test]
fn nothing_of_a_template_is_left_in_any_file() {
    for broker in [BrokerKind::Kafka, BrokerKind::Rabbitmq, BrokerKind::Sqs] {
        for store in [StoreKind::Postgres, StoreKind::Sqlite, StoreKind::Dynamodb] {
            let new = New { name: "purchases".to_owned(), broker, store, crates: None };
            for (path, text) in parts::files(&new, None) {
                let words = text.split('@').skip(1).step_by(2);
                let left: Vec<&str> =
                    words.filter(|word| word.chars().all(|c| c.is_ascii_uppercase() || c == '_')).collect();
                assert!(left.is_empty() && !text.contains("@NAME"), "{path}: {left:?}");
                assert!(text.ends_with('\n') && !text.ends_with("\n\n"), "{path}");
            }
        }
    }
}
