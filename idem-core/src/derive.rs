//! The ids of events. They are derived from the cause, so that every further run gives the same ids.

use std::fmt;

use sha2::{Digest, Sha256};
use uuid::Uuid;

/// The form of a derived id. To receivers another form of the same id is another key, so a destination keeps the form with
/// which it was first declared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum IdForm {
    /// A UUID of version 8: the id itself.
    #[default]
    V8,
    /// A UUID of version 5 that is derived from it, for receivers whose libraries accept only the versions 1 to 5.
    V5,
    /// The UUID of version 8 as 32 hexadecimal digits, for receivers that do not accept hyphens.
    Hex32,
}

/// The namespace of ids in the form of version 5: the version-5 UUID of `https://idem.rs/derived-key` among URLs.
const NAMESPACE: Uuid = Uuid::from_u128(0x3b86_ec94_154a_579b_82c1_9af1_7185_0504);

impl IdForm {
    /// Every form.
    pub const ALL: [Self; 3] = [Self::V8, Self::V5, Self::Hex32];

    /// The name of the form in settings and tables: `uuid8`, `uuid5`, `hex32`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::V8 => "uuid8",
            Self::V5 => "uuid5",
            Self::Hex32 => "hex32",
        }
    }

    /// The form with this name.
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
/// parts give the same id in every process and release. For ids of a new kind, make the first part a name of the kind;
/// names that begin with `idem:` are reserved.
///
/// Knowing the parts is enough to compute the id, so it is not a secret.
pub fn derived_id<'p>(parts: impl IntoIterator<Item = &'p [u8]>) -> Uuid {
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
        let parts = |a: &'static [u8], b: &'static [u8]| derived_id([a, b]);
        assert_ne!(parts(b"ab", b"c"), parts(b"a", b"bc"));
        assert_ne!(parts(b"ab", b""), parts(b"", b"ab"));
    }

    #[test]
    fn every_form_is_read_back_from_its_word() {
        assert!(IdForm::ALL.into_iter().all(|form| IdForm::parse(form.as_str()) == Some(form)));
        assert_eq!(IdForm::parse("uuid4"), None);
    }
}
