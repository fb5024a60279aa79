//! Signatures of Standard Webhooks, version 1: HMAC-SHA256.

use std::{fmt, str::FromStr};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

/// What a secret begins with where it is written down.
const PREFIX: &str = "whsec_";

/// What a signature by HMAC-SHA256 begins with.
const VERSION: &str = "v1,";

/// How many signatures of a request are looked at.
const SIGNATURES_MAX: usize = 16;

/// How many bytes a secret has, by the specification.
const BYTES: std::ops::RangeInclusive<usize> = 24..=64;

/// A secret that an endpoint shares with us. `Debug` shows nothing of it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Box<[u8]>);

/// A text that is no secret. It does not quote the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a secret is whsec_ and the Base64 of 24 to 64 bytes")]
pub struct ParseSecretError;

impl FromStr for Secret {
    type Err = ParseSecretError;

    fn from_str(text: &str) -> Result<Self, ParseSecretError> {
        let encoded = text.strip_prefix(PREFIX).ok_or(ParseSecretError)?;
        let bytes = STANDARD.decode(encoded).map_err(|_| ParseSecretError)?;
        if BYTES.contains(&bytes.len()) { Ok(Self(bytes.into())) } else { Err(ParseSecretError) }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// The value of `webhook-signature` for a payload that is sent at `timestamp`, in seconds since 1970: a signature for each secret.
#[must_use]
pub fn sign(secrets: &[Secret], id: &str, timestamp: u64, payload: &[u8]) -> String {
    let timestamp = timestamp.to_string();
    let signatures = secrets.iter().map(|secret| {
        let mac = mac(secret, id, &timestamp, payload);
        format!("{VERSION}{}", STANDARD.encode(mac.finalize().into_bytes()))
    });
    signatures.collect::<Vec<_>>().join(" ")
}

/// Whether `signatures`, the value of `webhook-signature`, holds one of the payload by one of the secrets. `id` and `timestamp` are the texts of
/// `webhook-id` and `webhook-timestamp`, and `payload` the bytes of the body as they came. Signatures of other versions are passed over, and those
/// after the first 16.
///
/// How long it takes does not tell how much of a signature is right. The caller looks whether the time is near its own: a signature is for ever.
#[must_use]
pub fn verify(secrets: &[Secret], id: &str, timestamp: &str, payload: &[u8], signatures: &str) -> bool {
    let given: Vec<Vec<u8>> = signatures
        .split(' ')
        .take(SIGNATURES_MAX)
        .filter_map(|signature| STANDARD.decode(signature.strip_prefix(VERSION)?).ok())
        .collect();
    secrets.iter().any(|secret| {
        let mac = mac(secret, id, timestamp, payload);
        given.iter().any(|given| mac.clone().verify_slice(given).is_ok())
    })
}

fn mac(secret: &Secret, id: &str, timestamp: &str, payload: &[u8]) -> Hmac<Sha256> {
    // A key of any length is one for HMAC.
    let mut mac = Hmac::<Sha256>::new_from_slice(&secret.0).unwrap_or_else(|_| Hmac::new(&Default::default()));
    mac.update(format!("{id}.{timestamp}.").as_bytes());
    mac.update(payload);
    mac
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

    /// W40: of several signatures one by one of our secrets is enough, and nothing less is.
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

    #[test]
    fn texts_that_are_no_secrets() {
        let short = format!("whsec_{}", STANDARD.encode([7; 23]));
        for text in ["", "whsec_", "C2FVsBQIhrscChlQIMV+b5sSYspob7oD", "whsec_not base64", &short] {
            assert_eq!(text.parse::<Secret>(), Err(ParseSecretError), "{text}");
        }
    }
}
