//! For producers: on a FIFO queue SQS also drops repetitions by the idempotency key.

use aws_sdk_sqs::{operation::send_message::builders::SendMessageFluentBuilder, types::MessageAttributeValue as Value};
use idem_core::{IdempotencyKey, key::KEY_FIELD};
use sha2::{Digest, Sha256};

/// The longest deduplication id that SQS takes.
const BYTES_MAX: usize = 128;

/// The prefix of an id for a key that is no valid id itself.
const HASHED: &str = "idem-sha256:";

/// The key as a `MessageDeduplicationId`: itself where SQS takes it, otherwise a digest of it. The same for every send of
/// the key, so SQS drops repetitions within five minutes, and idem those that come later.
///
/// ```
/// use idem_sqs::{idem_core::IdempotencyKey, deduplication_id};
///
/// # fn main() -> Result<(), idem_sqs::idem_core::key::KeyError> {
/// assert_eq!(deduplication_id(&IdempotencyKey::new("order-1")?), "order-1");
/// assert!(deduplication_id(&IdempotencyKey::new("Zürich 1")?).starts_with("idem-sha256:"));
/// # Ok(())
/// # }
/// ```
#[must_use]
pub fn deduplication_id(key: &IdempotencyKey) -> String {
    let key = key.as_str();
    // Letters, digits and punctuation. A text that begins like a digest must not pass for one.
    let fits = key.len() <= BYTES_MAX && key.bytes().all(|byte| byte.is_ascii_graphic()) && !key.starts_with(HASHED);
    if fits { key.to_owned() } else { hashed(key.as_bytes()) }
}

pub(crate) fn hashed(bytes: &[u8]) -> String {
    format!("{HASHED}{}", hex::encode(Sha256::digest(bytes)))
}

/// Makes a send to a FIFO queue repeatable: messages of one `group` are handled in their order, and the key is both the
/// attribute `idempotencykey` and the deduplication id.
///
/// ```
/// # use idem_sqs::{aws_sdk_sqs::Client, idem_core::IdempotencyKey, deduplicated};
/// # fn send(client: &Client, key: &IdempotencyKey) {
/// let send = deduplicated(client.send_message(), "customer-1", key).queue_url("…").message_body("{}");
/// # }
/// ```
#[must_use]
pub fn deduplicated(send: SendMessageFluentBuilder, group: &str, key: &IdempotencyKey) -> SendMessageFluentBuilder {
    let send = send.message_group_id(group).message_deduplication_id(deduplication_id(key));
    match Value::builder().data_type("String").string_value(key.as_str()).build() {
        Ok(value) => send.message_attributes(KEY_FIELD, value),
        // The type is set, so this does not fail.
        Err(_) => send,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(key: &str) -> String {
        deduplication_id(&IdempotencyKey::new(key).unwrap())
    }

    #[test]
    fn the_id_is_the_key_or_a_digest_that_no_key_can_pass_for() {
        assert_eq!(id("!order_1~"), "!order_1~");
        assert_eq!(id(&"x".repeat(128)).len(), 128);
        for key in ["order 1", "zürich", &"x".repeat(129)] {
            let digest = id(key);
            assert!(digest.starts_with(HASHED) && digest.len() == 76, "{digest}");
            assert_ne!(id(&digest), digest, "a key that looks like the digest of another");
            assert_eq!(id(key), digest);
        }
        let expected = "idem-sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
        assert_eq!(hashed(b"test"), expected);
    }
}
