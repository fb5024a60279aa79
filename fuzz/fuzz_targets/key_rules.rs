//! S1, S10: any text is a rule of `--key` that says the same text, or is refused; and a rule that is read panics at no message.
#![no_main]

use idem_core::{IdempotencyKey, Message};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let Ok(source) = idem_service::key_rule(text) else { return };
    assert_eq!(source.rule(), text);
    let message = Message::new(text.to_owned()).with_header("a", text.to_owned()).with_type(text).with_id(text);
    if let Ok(Some(key)) = source.key(&message) {
        assert_eq!(IdempotencyKey::new(key.as_str()).as_ref(), Ok(&key));
    }
});
