//! The numbers of interned names, drawn from the names instead of a sequence.

use sha2::{Digest, Sha256};

/// The kinds of names that a store interns, each with numbers of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interned {
    /// A consumer and a tenant: a [`ScopeId`](super::ScopeId).
    Scope,
    /// A rule by which payloads are hashed: a [`HashRuleId`](super::HashRuleId).
    HashRule,
    /// A destination of events: a [`DestinationId`](crate::outbox::DestinationId).
    Destination,
}

impl Interned {
    const fn domain(self) -> &'static [u8] {
        match self {
            Self::Scope => b"idem:scope:v1",
            Self::HashRule => b"idem:hash-rule:v1",
            Self::Destination => b"idem:destination:v1",
        }
    }

    /// The numbers that these names may get: a store takes the first that no other names have.
    ///
    /// They follow from the names alone. A server that takes over without the last commits, or a backup, may lack a row that a
    /// running worker has read its number from: it interns the name anew and finds the same number, and gives it to no other
    /// name, so that the worker's claims go on meaning what they meant. A sequence would draw a lost number again there, for
    /// any name that comes first, and then two workers claim one tenant's key under two numbers, or two tenants' under one.
    ///
    /// All of them lie from 2^30 on, which no sequence that began at 1 has reached. Two names have the same first number with a
    /// probability of one in 2^30; then whichever is interned later has its second, which is the same on every server that has
    /// the row of the other.
    ///
    /// ```
    /// use idem_core::store::Interned;
    ///
    /// let numbers = Interned::Scope.numbers(&["orders", "ann"]);
    /// assert_eq!(numbers, Interned::Scope.numbers(&["orders", "ann"]));
    /// assert!(numbers.iter().all(|number| *number >= 1 << 30));
    /// ```
    #[must_use]
    pub fn numbers(self, names: &[&str]) -> [i32; 8] {
        let mut hasher = Sha256::new_with_prefix(self.domain());
        for name in names {
            // With its length, so that no two lists of names are one text.
            hasher.update((name.len() as u64).to_be_bytes());
            hasher.update(name.as_bytes());
        }
        let digest: [u8; 32] = hasher.finalize().into();
        let mut numbers = [0; 8];
        for (number, bytes) in numbers.iter_mut().zip(digest.chunks_exact(4)) {
            let bits = bytes.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte));
            *number = (1 << 30 | bits & ((1 << 30) - 1)).cast_signed();
        }
        numbers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// J63: the numbers are those that every release and every store draws; computed with Python's hashlib.
    #[test]
    fn j63_numbers_follow_from_names_alone() {
        assert_eq!(Interned::Scope.numbers(&["orders", "ann"])[..2], [1_283_304_353, 1_537_158_824]);
        assert_ne!(Interned::Scope.numbers(&["orders", "ann"]), Interned::Scope.numbers(&["ordersa", "nn"]));
        assert_ne!(Interned::Scope.numbers(&["x"])[0], Interned::HashRule.numbers(&["x"])[0]);
        assert_ne!(Interned::Destination.numbers(&["x"])[0], Interned::HashRule.numbers(&["x"])[0]);
    }
}
