//! How people see keys: as they are or, where keys are personal data or capabilities, as keyed hashes (S5).

use std::{borrow::Cow, fmt, sync::OnceLock};

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use crate::{config_error::ConfigError, names::IdempotencyKey};

/// The shortest secret that keys are hashed with, in bytes.
pub const KEY_SECRET_BYTES_MIN: usize = 32;

/// The secret with which keys are hashed before people see them. `Debug` does not print it.
#[derive(Clone)]
pub struct KeySecret(Hmac<Sha256>);

impl KeySecret {
    /// # Errors
    /// When it has less than 32 bytes: keys that can be guessed could then be found by trying.
    pub fn new(secret: &[u8]) -> Result<Self, ConfigError> {
        let refused = || {
            let value = format!("{} bytes long", secret.len());
            ConfigError::new(
                "key_secret",
                value,
                "it must have 32 bytes at least, such as `openssl rand -hex 32` makes",
            )
        };
        if secret.len() < KEY_SECRET_BYTES_MIN {
            return Err(refused());
        }
        Hmac::new_from_slice(secret).map(Self).map_err(|_| refused())
    }

    /// The text shown in place of this key: the first 16 hexadecimal digits of its HMAC-SHA-256.
    #[must_use]
    pub fn hash(&self, key: &str) -> String {
        let hash = self.0.clone().chain_update(key).finalize().into_bytes();
        hex::encode(&hash[..8])
    }
}

impl fmt::Debug for KeySecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeySecret").finish_non_exhaustive()
    }
}

static SECRET: OnceLock<KeySecret> = OnceLock::new();

/// From now on, this process shows of a key only its [keyed hash](KeySecret::hash): `Display` and `Debug` of
/// [`IdempotencyKey`], and so every line of a log, span, error and page, those of handlers included. Data, such as rows
/// and headers of dead letters, holds keys as they are: [`IdempotencyKey::as_str`].
///
/// Call it once, before the first message: there is one way to show keys in a process, so that no place can forget it.
///
/// # Errors
/// Where it was called before; the first secret stays.
pub fn hide_keys_with(secret: KeySecret) -> Result<(), ConfigError> {
    let rule = "a process shows keys in one way, from its start on";
    SECRET.set(secret).map_err(|_| ConfigError::new("key_secret", "given twice", rule))
}

/// Writes a key for people.
pub(super) fn write(key: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match SECRET.get() {
        // Escaped, so that it cannot forge a line of a log.
        None => write!(f, "{}", key.escape_debug()),
        Some(secret) => f.write_str(&secret.hash(key)),
    }
}

/// A broker's text for people, which may quote the producer's id of a message: a RabbitMQ origin does. That id may be the
/// key or a part of it, and must not give away what is hidden; `key` is `None` where none was found yet.
pub(crate) fn in_text<'t>(text: &'t str, id: Option<&str>, key: Option<&IdempotencyKey>) -> Cow<'t, str> {
    SECRET.get().map_or(Cow::Borrowed(text), |secret| hidden(secret, text, id, key))
}

fn hidden<'t>(secret: &KeySecret, text: &'t str, id: Option<&str>, key: Option<&IdempotencyKey>) -> Cow<'t, str> {
    let key = key.map(IdempotencyKey::as_str);
    let id = id.filter(|id| !id.is_empty() && key.is_none_or(|key| key.contains(id)));
    match [key, id].into_iter().flatten().find(|part| text.contains(part)) {
        Some(part) => Cow::Owned(text.replace(part, &secret.hash(part))),
        None => Cow::Borrowed(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 4231, test cases 6 and 7; the others have shorter secrets.
    #[test]
    fn s5_a_key_is_shown_as_its_hmac() {
        let secret = KeySecret::new(&[0xaa; 131]).unwrap();
        assert_eq!(secret.hash("Test Using Larger Than Block-Size Key - Hash Key First"), "60e431591ee0b67f");
        let long = "This is a test using a larger than block-size key and a larger than block-size data. The key needs \
                    to be hashed before being used by the HMAC algorithm.";
        assert_eq!(secret.hash(long), "9b09ffa71b942fcb");
    }

    #[test]
    fn s5_a_text_that_quotes_the_key_or_a_part_of_it_hides_it() {
        let secret = KeySecret::new(&[b'x'; 32]).unwrap();
        let (shown, key) = (secret.hash("order-1"), |text| IdempotencyKey::new(text).unwrap());
        let origin = "amq.direct/orders/order-1#1f";
        let hidden = |id, key: Option<&IdempotencyKey>| hidden(&secret, origin, id, key).into_owned();
        let without = format!("amq.direct/orders/{shown}#1f");
        assert_eq!(hidden(None, Some(&key("order-1"))), without, "the key");
        assert_eq!(hidden(Some("order-1"), Some(&key("4:blue:order-1"))), without, "a part of the key");
        assert_eq!(hidden(Some("order-1"), None), without, "it may be the key");
        assert_eq!(hidden(Some("order-1"), Some(&key("4711"))), origin, "an id that is no key stays");
        assert_eq!(hidden(None, None), origin);
    }

    #[test]
    fn s5_a_short_secret_is_refused_and_none_is_printed() {
        assert!(KeySecret::new(&[b'x'; 31]).is_err());
        assert!(!format!("{:?}", KeySecret::new(&[b'x'; 32]).unwrap()).contains('x'));
    }
}
