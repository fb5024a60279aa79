//! The id under which a key is recorded.

use sha2::{Digest, Sha256};
use uuid::Uuid;

/// Hashed before the key's bytes, so that no digest made for another purpose can be one of ours.
const DOMAIN: &[u8] = b"idem:key:v1:";

/// Keys and their ids, a line each, separated by a tab, as every implementation of [`key_id`] must answer them.
///
/// A store's tests run them through the SQL function `key_id` of its schema.
pub const KEY_ID_VECTORS: &str = include_str!("../../golden/key_ids.tsv");

/// A key as the server sees it: its scope and its id.
pub type ClaimedId = (i32, Uuid);

/// The id of a key, as the primary key of `processed_messages` holds it.
///
/// A canonical lower-case UUID of version 1 to 7 is itself, so that UUIDv7 keys keep their locality in the index. Every
/// other text – another spelling, version 8, the nil and the max UUID, any token – becomes a version-8 UUID of a SHA-256.
/// The two ranges cannot meet, so no sender can block `order-1` by sending the "UUID" that is its digest.
///
/// Two keys with one id (122 bits of digest) are not mixed up either: the record holds the key's text beside its id.
///
/// ```
/// use idem_sql::key_id;
///
/// assert_eq!(key_id("017f22e2-79b0-7cc3-98c4-dc0c0c07398f").to_string(), "017f22e2-79b0-7cc3-98c4-dc0c0c07398f");
/// assert_eq!(key_id("order-1").get_version_num(), 8);
/// ```
#[must_use]
pub fn key_id(key: &str) -> Uuid {
    if is_canonical(key.as_bytes())
        && let Ok(uuid) = Uuid::try_parse(key)
    {
        return uuid;
    }
    let digest = Sha256::new().chain_update(DOMAIN).chain_update(key.as_bytes()).finalize();
    let mut bytes = [0; 16];
    for (byte, digest) in bytes.iter_mut().zip(digest) {
        *byte = digest;
    }
    uuid::Builder::from_custom_bytes(bytes).into_uuid()
}

/// `^[0-9a-f]{8}-[0-9a-f]{4}-[1-7][0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`
fn is_canonical(key: &[u8]) -> bool {
    key.len() == 36
        && key.iter().enumerate().all(|(at, byte)| match at {
            8 | 13 | 18 | 23 => *byte == b'-',
            14 => matches!(byte, b'1'..=b'7'),
            19 => matches!(byte, b'8' | b'9' | b'a' | b'b'),
            _ => matches!(byte, b'0'..=b'9' | b'a'..=b'f'),
        })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn vectors() -> impl Iterator<Item = (&'static str, &'static str)> {
        KEY_ID_VECTORS.lines().map(|line| line.split_once('\t').unwrap())
    }

    #[test]
    fn golden_vectors_hold() {
        assert!(vectors().count() >= 60);
        for (key, id) in vectors() {
            assert_eq!(key_id(key).to_string(), id, "{key:?}");
        }
    }

    #[test]
    fn no_two_keys_of_the_vectors_share_an_id() {
        let ids: HashSet<_> = vectors().map(|(_, id)| id).collect();
        assert_eq!(ids.len(), vectors().count());
    }

    /// The range of digests is closed under spelling: the id of an id is another id.
    #[test]
    fn the_uuid_that_is_another_keys_digest_has_an_id_of_its_own() {
        let digest = key_id("order-1");
        assert_eq!(digest.get_version_num(), 8);
        assert_ne!(key_id(&digest.to_string()), digest);
    }

    #[test]
    fn only_one_spelling_of_a_uuid_is_itself() {
        let canonical = "017f22e2-79b0-7cc3-98c4-dc0c0c07398f";
        let spellings =
            [canonical.to_uppercase(), canonical.replace('-', ""), format!("{{{canonical}}}"), format!("{canonical} ")];
        assert_eq!(key_id(canonical).to_string(), canonical);
        for spelling in spellings {
            assert_eq!(key_id(&spelling).get_version_num(), 8, "{spelling}");
        }
    }
}
