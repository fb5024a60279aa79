//! The ids of events: derived from what caused them, so that a second run by any cause gives the same.

use std::fmt;

use sha2::{Digest, Sha256};
use uuid::Uuid;

/// How a derived id is written. Another form of the same id is another key to whoever receives it, so a destination keeps
/// the form that it was first declared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum IdForm {
    /// A UUID of version 8, which is what the id is.
    #[default]
    V8,
    /// A UUID of version 5 made of that one, for receivers that check for the versions 1 to 5 which older libraries know.
    V5,
    /// The first one as 32 hexadecimal digits, for receivers that take no hyphens.
    Hex32,
}

/// The namespace of ids in the form of version 5: the version-5 UUID of `https://idem.rs/derived-key` among URLs.
const NAMESPACE: Uuid = Uuid::from_u128(0x3b86_ec94_154a_579b_82c1_9af1_7185_0504);

impl IdForm {
    /// Every form.
    pub const ALL: [Self; 3] = [Self::V8, Self::V5, Self::Hex32];

    /// The word for it in settings and tables: `uuid8`, `uuid5`, `hex32`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::V8 => "uuid8",
            Self::V5 => "uuid5",
            Self::Hex32 => "hex32",
        }
    }

    /// The form of this word.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|form| form.as_str() == word)
    }

    /// The text of a derived id in this form.
    #[must_use]
    pub fn text(self, id: Uuid) -> String {
        match self {
            Self::V8 => id.hyphenated().to_string(),
            Self::V5 => Uuid::new_v5(&NAMESPACE, id.as_bytes()).hyphenated().to_string(),
            Self::Hex32 => id.simple().to_string(),
        }
    }
}

impl fmt::Display for IdForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A version-8 UUID from the SHA-256 of these parts, each with its length before it, so that no two lists of parts meet: the same
/// parts give the same id in every process and release. Whoever derives ids of a new kind begins with a part that names the kind;
/// those that begin with `idem:` are idem's own.
///
/// Whoever knows the parts knows the id, so it is no secret.
pub fn derived_id<'p>(parts: impl IntoIterator<Item = &'p [u8]>) -> Uuid {
    derived(parts)
}

pub(crate) fn derived<'p>(parts: impl IntoIterator<Item = &'p [u8]>) -> Uuid {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update((part.len() as u64).to_be_bytes());
        hasher.update(part);
    }
    let digest: [u8; 32] = hasher.finalize().into();
    let mut id = [0; 16];
    id.copy_from_slice(&digest[..16]);
    uuid::Builder::from_custom_bytes(id).into_uuid()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_namespace_is_a_version_5_uuid_itself() {
        assert_eq!(NAMESPACE, Uuid::new_v5(&Uuid::NAMESPACE_URL, b"https://idem.rs/derived-key"));
    }

    #[test]
    fn parts_that_run_into_each_other_are_other_ids() {
        let parts = |a: &'static [u8], b: &'static [u8]| derived([a, b]);
        assert_ne!(parts(b"ab", b"c"), parts(b"a", b"bc"));
        assert_ne!(parts(b"ab", b""), parts(b"", b"ab"));
    }

    #[test]
    fn every_form_is_read_back_from_its_word() {
        assert!(IdForm::ALL.into_iter().all(|form| IdForm::parse(form.as_str()) == Some(form)));
        assert_eq!(IdForm::parse("uuid4"), None);
    }
}
