//! The texts of settings.

use idem_core::{IdempotencyKey, Message};

/// S1, S10: any text is a rule of `--key` that says the same text, or is refused; and a rule that is read panics at no message.
pub fn key_rules(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let Ok(source) = idem_service::key_rule(text) else { return };
    assert_eq!(source.rule(), text);
    let message = Message::new(text.to_owned()).with_header("a", text.to_owned()).with_type(text).with_id(text);
    if let Ok(Some(key)) = source.key(&message) {
        assert_eq!(IdempotencyKey::new(key.as_str()).as_ref(), Ok(&key));
    }
}

/// S4: any text is a file of settings, each of which becomes its flag with the same value, or is refused; and the refusal shows
/// no value, because each may be a password.
pub fn settings(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    const SECRET: &str = "hunter2-4711";
    let file = format!("{text}\ndatabase-url = \"{SECRET}\"\n");
    match idem_service::fuzzing::settings(&file) {
        Ok(flags) => {
            let own = |flag: &&String| flag.starts_with("--database-url=");
            assert_eq!(flags.iter().filter(own).count(), 1, "the file's own setting is there once: {flags:?}");
            assert!(flags.iter().all(|flag| flag.starts_with("--")), "a value cannot be a flag of its own: {flags:?}");
        }
        Err(why) => assert!(!why.contains(SECRET), "{why:?} shows a value"),
    }
}
