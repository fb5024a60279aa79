use std::time::SystemTime;

use super::*;
use crate::names::{IdempotencyKey, Retention, RunId, ScopeId};

const RULE: HashRuleId = HashRuleId(1);
const OLDER: HashRuleId = HashRuleId(2);

fn key(text: &str) -> IdempotencyKey {
    IdempotencyKey::new(text).expect("a key")
}

fn claim() -> Claim {
    let hash = PayloadHash::of(b"mine");
    Claim { scope: ScopeId(1), key: key("k"), hash, hash_rule: RULE, retention: Retention::Forever }
}

fn recorded(text: &str, payload: &[u8], hash_rule: HashRuleId) -> Recorded {
    let (processed_at, expires_at) = (SystemTime::UNIX_EPOCH, None);
    Recorded {
        key: key(text),
        hash: PayloadHash::of(payload),
        hash_rule,
        processed_at,
        processed_by: RunId(7),
        expires_at,
    }
}

/// A verdict by name; it must carry the store's record.
fn name(verdict: &Verdict, expected: Option<&Recorded>) -> &'static str {
    match verdict {
        Verdict::Fresh(_) | Verdict::Unanswered => assert!(expected.is_none()),
        Verdict::Duplicate(recorded, _) | Verdict::Conflict(recorded, _) | Verdict::Collision(recorded) => {
            assert_eq!(Some(recorded), expected);
        }
    }
    match verdict {
        Verdict::Fresh(_) => "fresh",
        Verdict::Duplicate(..) => "duplicate",
        Verdict::Conflict(_, ConflictKind::OtherPayload) => "conflict",
        Verdict::Conflict(_, ConflictKind::UnknownRule) => "unknown rule",
        Verdict::Collision(_) => "collision",
        Verdict::Unanswered => "unanswered",
    }
}

/// B7, B13, B15: the whole table. Key equal or not, recorded hash equal or not, recorded by this rule or another,
/// and, for another, the hash by that one.
#[test]
fn the_verdict_table() {
    let again = [None, Some(&b"mine"[..]), Some(b"other")];
    let table = [
        // key, recorded hash, recorded rule, [rehash unknown, rehash "mine", rehash "other"]
        ("k", &b"mine"[..], RULE, ["duplicate"; 3]),
        ("k", b"other", RULE, ["conflict"; 3]),
        ("k", b"mine", OLDER, ["unknown rule", "duplicate", "conflict"]),
        ("k", b"other", OLDER, ["unknown rule", "conflict", "duplicate"]),
        ("K", b"mine", RULE, ["collision"; 3]),
        ("K", b"other", RULE, ["collision"; 3]),
        ("K", b"mine", OLDER, ["collision"; 3]),
        ("K", b"other", OLDER, ["collision"; 3]),
    ];
    for (text, payload, rule, expected) in table {
        for (again, expected) in again.into_iter().zip(expected) {
            let record = recorded(text, payload, rule);
            let rehash = |asked| {
                assert_eq!(asked, rule, "only the record's rule counts");
                if rule == RULE {
                    Some(vec![PayloadHash::of(b"mine")])
                } else {
                    again.map(|hash| vec![PayloadHash::of(hash)])
                }
            };
            assert_eq!(
                name(&compare(&claim(), record.clone(), rehash), Some(&record)),
                expected,
                "{text} {rule} {again:?}"
            );
            let found = verdict(&claim(), Claimed::Found(record.clone()), rehash);
            assert_eq!(name(&found, Some(&record)), expected);
        }
    }
    let never = |_| -> Option<Vec<PayloadHash>> { panic!("nothing was recorded") };
    assert_eq!(name(&verdict(&claim(), Claimed::Inserted, never), None), "fresh");
    // Zero inserted rows are no proof of a duplicate.
    assert_eq!(name(&verdict(&claim(), Claimed::NotInserted, never), None), "unanswered");
}

/// One rule may have several hashes of one payload, and a record with any of them is this payload's.
#[test]
fn a_record_with_another_hash_of_the_same_rule_is_a_duplicate() {
    for rule in [RULE, OLDER] {
        let record = recorded("k", b"formerly", rule);
        let hashes = |all: [&'static [u8]; 2]| move |_| Some(all.map(PayloadHash::of).to_vec());
        let same = compare(&claim(), record.clone(), hashes([b"mine", b"formerly"]));
        assert_eq!(name(&same, Some(&record)), "duplicate");
        let other = compare(&claim(), record.clone(), hashes([b"mine", b"never"]));
        assert_eq!(name(&other, Some(&record)), "conflict");
        // The same payload costs no second hash.
        let mine = recorded("k", b"mine", RULE);
        assert_eq!(name(&compare(&claim(), mine.clone(), |_| panic!("hashed again")), Some(&mine)), "duplicate");
    }
}

/// E11: the hash of a tombstone is one like any other.
#[test]
fn e11_a_tombstone_is_a_duplicate_only_of_a_tombstone() {
    let tombstone = Claim { hash: PayloadHash::NONE, ..claim() };
    let empty = recorded("k", b"", RULE);
    assert_eq!(name(&compare(&tombstone, empty.clone(), |_| None), Some(&empty)), "conflict");
    let none = Recorded { hash: PayloadHash::NONE, ..empty };
    assert_eq!(name(&compare(&tombstone, none.clone(), |_| None), Some(&none)), "duplicate");
}

/// Only a durable outcome may be acknowledged: a commit, or a committed record that was read.
#[test]
fn only_processed_and_duplicate_carry_the_proof() {
    let failure = || Failure::new(ErrorClass::Permanent, Reason::Permanent, "no");
    let record = || recorded("k", b"mine", RULE);
    let table = [
        (Decision::Processed(Durable::committed()), true, false, true),
        (Decision::Duplicate(record(), Durable::read_back()), false, true, true),
        (Decision::Conflict(record(), ConflictKind::OtherPayload), false, false, false),
        (Decision::Conflict(record(), ConflictKind::UnknownRule), false, false, false),
        (Decision::Busy, false, false, false),
        (Decision::Failed(failure()), false, false, false),
    ];
    for (decision, processed, skipped, durable) in table {
        let text = format!("{decision:?}");
        assert_eq!((decision.is_processed(), decision.is_skipped()), (processed, skipped), "{text}");
        assert_eq!(decision.into_durable().is_some(), durable, "{text}");
    }
}

#[test]
fn a_failure_is_told_with_reason_and_class_and_copied_without_its_error() {
    let mut failure = Failure::new(ErrorClass::Transient, Reason::Deadline, "too slow");
    failure.error = Some(HandlerError::transient("late"));
    assert_eq!(failure.to_string(), "too slow (deadline, transient)");
    let copy = failure.clone_text();
    assert_eq!(copy.to_string(), failure.to_string());
    assert!(copy.error.is_none());
}
