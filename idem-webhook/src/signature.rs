//! Signatures of Standard Webhooks, version 1: HMAC-SHA256.

use std::{fmt, str::FromStr};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

/// What a secret begins with where it is written down.
const PREFIX: &str = "whsec_";

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

/// The value of `webhook-signature`: a signature for each secret.
pub(crate) fn sign(secrets: &[Secret], id: &str, timestamp: u64, payload: &[u8]) -> String {
    let signatures = secrets.iter().map(|secret| {
        // A key of any length is one for HMAC.
        let mut mac = Hmac::<Sha256>::new_from_slice(&secret.0).unwrap_or_else(|_| Hmac::new(&Default::default()));
        mac.update(format!("{id}.{timestamp}.").as_bytes());
        mac.update(payload);
        format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
    });
    signatures.collect::<Vec<_>>().join(" ")
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

    #[test]
    fn texts_that_are_no_secrets() {
        let short = format!("whsec_{}", STANDARD.encode([7; 23]));
        for text in ["", "whsec_", "C2FVsBQIhrscChlQIMV+b5sSYspob7oD", "whsec_not base64", &short] {
            assert_eq!(text.parse::<Secret>(), Err(ParseSecretError), "{text}");
        }
    }
}
