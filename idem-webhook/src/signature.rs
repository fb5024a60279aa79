//! Signatures of Standard Webhooks: version 1, HMAC-SHA256 with a shared secret, and version 1a, Ed25519 with a private key
//! whose public half the receiver has.

use std::{fmt, str::FromStr, sync::Arc};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use hmac::{Hmac, KeyInit as _, Mac as _};
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey};
use sha2::Sha256;

/// The prefix of a secret in its text form.
const PREFIX: &str = "whsec_";

/// The prefixes of a private key and of its public half.
const PRIVATE: &str = "whsk_";
const PUBLIC: &str = "whpk_";

/// The length of a private key, in bytes; its public half may follow it.
const SEED_BYTES: usize = 32;

/// The prefixes of the two kinds of signatures.
const BY_SECRET: &str = "v1,";
const BY_KEY: &str = "v1a,";

/// The most signatures of a request that are checked.
const SIGNATURES_MAX: usize = 16;

/// The lengths that the specification allows for a secret, in bytes.
const BYTES: std::ops::RangeInclusive<usize> = 24..=64;

/// The secret that signs requests to an endpoint. It is shared with the endpoint (`whsec_…`, signatures `v1`), or it is a
/// private Ed25519 key whose [public half](Self::public_key) the endpoint has (`whsk_…`, signatures `v1a`), so that the
/// endpoint cannot sign in our name. `Debug` shows nothing of it.
#[derive(Clone)]
pub struct Secret(Key);

#[derive(Clone)]
enum Key {
    Shared(Box<[u8]>),
    Private(Arc<Ed25519KeyPair>),
}

/// The error of a text that is not a secret. It does not quote the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "a secret is whsec_ and the Base64 of 24 to 64 bytes, or whsk_ and that of an Ed25519 private key: 32 bytes, or 64 with its public key"
)]
pub struct ParseSecretError;

impl FromStr for Secret {
    type Err = ParseSecretError;

    fn from_str(text: &str) -> Result<Self, ParseSecretError> {
        let decode = |encoded: &str| STANDARD.decode(encoded).map_err(|_| ParseSecretError);
        if let Some(encoded) = text.strip_prefix(PRIVATE) {
            let bytes = decode(encoded)?;
            let pair = match bytes.split_at_checked(SEED_BYTES) {
                Some((seed, [])) => Ed25519KeyPair::from_seed_unchecked(seed),
                Some((seed, public)) => Ed25519KeyPair::from_seed_and_public_key(seed, public),
                None => return Err(ParseSecretError),
            };
            return Ok(Self(Key::Private(Arc::new(pair.map_err(|_| ParseSecretError)?))));
        }
        let bytes = decode(text.strip_prefix(PREFIX).ok_or(ParseSecretError)?)?;
        if BYTES.contains(&bytes.len()) { Ok(Self(Key::Shared(bytes.into()))) } else { Err(ParseSecretError) }
    }
}

impl Secret {
    /// The text form (`whpk_…`) of the key with which the receiver checks signatures; `None` for a shared secret.
    #[must_use]
    pub fn public_key(&self) -> Option<String> {
        match &self.0 {
            Key::Shared(_) => None,
            Key::Private(pair) => Some(format!("{PUBLIC}{}", STANDARD.encode(pair.public_key()))),
        }
    }

    /// The signature of this content, with its version.
    fn sign(&self, content: &[u8]) -> String {
        match &self.0 {
            Key::Shared(secret) => {
                format!("{BY_SECRET}{}", STANDARD.encode(mac(secret, content).finalize().into_bytes()))
            }
            Key::Private(pair) => format!("{BY_KEY}{}", STANDARD.encode(pair.sign(content))),
        }
    }

    /// Whether this is the signature, with its version, of this content.
    fn is_signed(&self, content: &[u8], signature: &str) -> bool {
        let given = |version| signature.strip_prefix(version).and_then(|encoded| STANDARD.decode(encoded).ok());
        match &self.0 {
            Key::Shared(secret) => {
                given(BY_SECRET).is_some_and(|given| mac(secret, content).verify_slice(&given).is_ok())
            }
            Key::Private(pair) => given(BY_KEY).is_some_and(|given| {
                UnparsedPublicKey::new(&ED25519, pair.public_key()).verify(content, &given).is_ok()
            }),
        }
    }
}

fn mac(secret: &[u8], content: &[u8]) -> Hmac<Sha256> {
    // HMAC accepts keys of any length.
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).unwrap_or_else(|_| Hmac::new(&Default::default()));
    mac.update(content);
    mac
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// The value of `webhook-signature` for a payload that is sent at `timestamp`, in seconds since 1970: a signature for each secret.
#[must_use]
pub fn sign(secrets: &[Secret], id: &str, timestamp: u64, payload: &[u8]) -> String {
    let content = content(id, &timestamp.to_string(), payload);
    let signatures = secrets.iter().map(|secret| secret.sign(&content));
    signatures.collect::<Vec<_>>().join(" ")
}

/// Whether `signatures`, the value of `webhook-signature`, holds one of the payload by one of the secrets. `id` and `timestamp` are the texts of
/// `webhook-id` and `webhook-timestamp`, and `payload` the bytes of the body as they came. Signatures of other versions, and those after
/// the first 16, are ignored.
///
/// The time that it takes does not show how much of a signature is right. The caller must check that the timestamp is near its own time, because a
/// signature never expires.
#[must_use]
pub fn verify(secrets: &[Secret], id: &str, timestamp: &str, payload: &[u8], signatures: &str) -> bool {
    let content = content(id, timestamp, payload);
    let mut given = signatures.split(' ').take(SIGNATURES_MAX);
    given.any(|signature| secrets.iter().any(|secret| secret.is_signed(&content, signature)))
}

/// The signed content.
fn content(id: &str, timestamp: &str, payload: &[u8]) -> Vec<u8> {
    [id.as_bytes(), b".", timestamp.as_bytes(), b".", payload].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The vector of the specification's own libraries.
    #[test]
    fn the_specifications_vector() {
        let secret: Secret = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD".parse().expect("a secret");
        let payload = br#"{"email":"test@example.com","username":"test_user"}"#;
        let signed = sign(&[secret], "msg_27UH4WbU6Z5A5EzD8u03UvzRbpk", 1_649_367_553, payload);
        assert_eq!(signed, "v1,tZ1I4/hDygAJgO5TYxiSd6Sd0kDW6hPenDe+bTa3Kkw=");
    }

    /// W40: one signature by one of our secrets is necessary and sufficient.
    #[test]
    fn w40_a_signature_covers_id_time_and_payload() {
        let secret =
            |byte: u8| -> Secret { format!("whsec_{}", STANDARD.encode([byte; 32])).parse().expect("a secret") };
        let (old, new, stranger) = (secret(1), secret(2), secret(3));
        let signed = sign(&[stranger.clone(), old.clone()], "msg_1", 1_649_367_553, b"{}");
        let ours = [new.clone(), old];
        assert!(verify(&ours, "msg_1", "1649367553", b"{}", &signed));
        assert!(verify(&ours, "msg_1", "1649367553", b"{}", &format!("v1a,AAAA v1,!!! {signed}")));
        for (id, timestamp, payload) in
            [("msg_2", "1649367553", "{}"), ("msg_1", "1649367554", "{}"), ("msg_1", "1649367553", "{} ")]
        {
            assert!(!verify(&ours, id, timestamp, payload.as_bytes(), &signed), "{id} {timestamp} {payload}");
        }
        let cut = signed.trim_end_matches('=');
        for signatures in
            ["", "v1,", cut, &sign(&[stranger], "msg_1", 1_649_367_553, b"{}"), &signed.replace("v1,", "v2,")]
        {
            assert!(!verify(&ours, "msg_1", "1649367553", b"{}", signatures), "{signatures}");
        }
        assert!(!verify(&[], "msg_1", "1649367553", b"{}", &signed));
    }

    /// The first key of RFC 8032, and the content of the vector above. Signed by OpenSSL 3.0, with the key as DER:
    /// `openssl pkeyutl -sign -rawin -keyform DER -inkey key.der -in content | base64`.
    #[test]
    fn an_ed25519_signature_of_another_implementation() {
        let seed = "whsk_nWGxne/9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A=";
        let with_public =
            "whsk_nWGxne/9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2DXWpgBgrEKt9VL/tPJZAc6DuFy89qmIyWvAhpo9wdRGg==";
        let payload = br#"{"email":"test@example.com","username":"test_user"}"#;
        let expected = "v1a,jfp5j4J3Buv9EPOcc9Bqo8rJqAO1H6lrRl0WZQdzVZI6IttNPT8HSLyPvUvY54dJJt2BQGA01di1ePvigCwlCw==";
        for text in [seed, with_public] {
            let secret: Secret = text.parse().expect("a private key");
            assert_eq!(secret.public_key().as_deref(), Some("whpk_11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo="));
            assert_eq!(format!("{secret:?}"), "Secret");
            let shared: Secret = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD".parse().expect("a secret");
            assert_eq!(shared.public_key(), None);
            let id = "msg_27UH4WbU6Z5A5EzD8u03UvzRbpk";
            assert_eq!(sign(std::slice::from_ref(&secret), id, 1_649_367_553, payload), expected);
            let ours = std::slice::from_ref(&secret);
            assert!(verify(ours, id, "1649367553", payload, expected));
            assert!(!verify(ours, id, "1649367553", b"{}", expected));
            let both = sign(&[shared, secret], id, 1_649_367_553, payload);
            assert_eq!(both, format!("v1,tZ1I4/hDygAJgO5TYxiSd6Sd0kDW6hPenDe+bTa3Kkw= {expected}"));
        }
    }

    #[test]
    fn texts_that_are_no_secrets() {
        let other_public = format!("whsk_{}", STANDARD.encode([7; 64]));
        let public = "whpk_11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=";
        for text in [&other_public, public, "whsk_", "whsk_nWGxne8="] {
            assert!(text.parse::<Secret>().is_err(), "{text}");
        }
        let short = format!("whsec_{}", STANDARD.encode([7; 23]));
        for text in ["", "whsec_", "C2FVsBQIhrscChlQIMV+b5sSYspob7oD", "whsec_not base64", &short] {
            assert_eq!(text.parse::<Secret>().err(), Some(ParseSecretError), "{text}");
        }
    }
}
