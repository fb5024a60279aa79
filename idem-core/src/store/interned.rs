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

    /// The numbers that these names may get, without an end: a store takes the first that no other names have.
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
    /// 30 bits are few: a client that chooses names can find some that have another name's numbers. Because there is always a
    /// next number, such names cost the other one a longer search and never lock it out (J97).
    ///
    /// ```
    /// use idem_core::store::Interned;
    ///
    /// let numbers: Vec<i32> = Interned::Scope.numbers(&["orders", "ann"]).take(8).collect();
    /// assert!(Interned::Scope.numbers(&["orders", "ann"]).take(8).eq(numbers.iter().copied()));
    /// assert!(numbers.iter().all(|number| *number >= 1 << 30));
    /// ```
    pub fn numbers(self, names: &[&str]) -> impl Iterator<Item = i32> + use<> {
        let mut hasher = Sha256::new_with_prefix(self.domain());
        for name in names {
            // With its length, so that no two lists of names are one text.
            hasher.update((name.len() as u64).to_be_bytes());
            hasher.update(name.as_bytes());
        }
        (0_u64..).map(move |place| {
            let digest = hasher.clone().chain_update(place.to_be_bytes()).finalize();
            let bits = digest.iter().take(4).fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte));
            (1 << 30 | bits & ((1 << 30) - 1)).cast_signed()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// J63: the numbers are those that every release and every store draws; computed with Python's hashlib.
    #[test]
    fn j63_numbers_follow_from_names_alone() {
        let of = |kind: Interned, names: &[&str]| kind.numbers(names).take(2).collect::<Vec<_>>();
        assert_eq!(of(Interned::Scope, &["orders", "ann"]), [1_682_341_743, 1_782_915_568]);
        assert_ne!(of(Interned::Scope, &["orders", "ann"]), of(Interned::Scope, &["ordersa", "nn"]));
        assert_ne!(of(Interned::Scope, &["x"]), of(Interned::HashRule, &["x"]));
        assert_ne!(of(Interned::Destination, &["x"]), of(Interned::HashRule, &["x"]));
    }

    /// J97: there is always a next number, and a name repeats hardly any.
    #[test]
    fn j97_numbers_do_not_end() {
        let some: std::collections::HashSet<i32> = Interned::Scope.numbers(&["orders", "ann"]).take(1_000).collect();
        assert!(some.len() > 990, "{}", some.len());
    }
}
