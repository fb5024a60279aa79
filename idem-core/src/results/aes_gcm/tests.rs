use std::time::{Duration, SystemTime};

use super::*;
use crate::{
    hash::PayloadHash,
    names::{HashRuleId, IdempotencyKey, Retention, RunId, ScopeId},
    store::claim::{Claim, Recorded},
};

const MASTER: [u8; 32] = [7; 32];
const OTHER: [u8; 32] = [8; 32];

fn keys() -> ResultKeys {
    ResultKeys::new(3, [(3, MASTER)]).unwrap()
}

fn result() -> ResultBody {
    let mut headers = Headers::default();
    headers.push("location", Some("/orders/1".into()));
    headers.push("x-none", None);
    headers.push("x-empty", Some(Bytes::new()));
    ResultBody::new("{\"balance\":1177}").with_status(201).with_content_type("application/json").with_headers(headers)
}

fn new(key: &str) -> NewResult {
    NewResult::new(ScopeId(5), IdempotencyKey::new(key).unwrap(), false, result())
}

fn kept(sealed: NewResult) -> KeptResult {
    KeptResult::new(sealed.is_error, sealed.result, sealed.sealed_with)
}

fn claim(key: &str) -> Claim {
    let key = IdempotencyKey::new(key).unwrap();
    Claim::new(ScopeId(5), key, PayloadHash::of(b"paid"), HashRuleId(1), Retention::Forever)
}

const AT: SystemTime = SystemTime::UNIX_EPOCH;

fn seal(keys: &ResultKeys, result: NewResult) -> NewResult {
    keys.seal(OfRecord::inserted(&claim(result.key.as_str()), AT), result).unwrap()
}

fn open(keys: &ResultKeys, key: &str, kept: KeptResult) -> Result<StoredResult, NotKept> {
    keys.open(OfRecord::inserted(&claim(key), AT), kept)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn v8_what_was_sealed_is_opened_byte_for_byte_and_shows_nothing_before() {
    for result in
        [result(), result().with_reference("/orders"), ResultBody::default(), ResultBody::new(vec![0; 100_000])]
    {
        let sealed = seal(&keys(), NewResult { result: result.clone(), ..new("order-1") });
        assert_eq!((sealed.sealed_with, sealed.result.headers.len()), (3, 0));
        assert_eq!((sealed.result.status, &sealed.result.reference), (result.status, &result.reference));
        let text = String::from_utf8_lossy(&sealed.result.body).into_owned();
        assert!(!text.contains("balance") && !text.contains("/orders/1"));
        assert_eq!(open(&keys(), "order-1", kept(sealed)), Ok(StoredResult::new(false, result)));
    }
    let (one, other) = (seal(&keys(), new("order-1")), seal(&keys(), new("order-1")));
    assert_ne!(one.result.body, other.result.body, "each row has a salt of its own");
}

/// M17: no row can take another one's place, and no readable part beside the seal can be changed.
#[test]
fn v8_a_row_that_was_changed_or_swapped_is_refused() {
    let sealed = || kept(seal(&keys(), new("order-1")));
    let altered = Err(NotKept::Altered { number: 3 });
    assert_eq!(open(&keys(), "order-2", sealed()), altered, "the row of another key");
    let tenant = Claim { scope: ScopeId(6), ..claim("order-1") };
    assert_eq!(keys().open(OfRecord::inserted(&tenant, AT), sealed()), altered, "the row of another tenant");
    type Change = fn(&mut KeptResult);
    let changes: [Change; 9] = [
        |row| row.result.reference = Some("/orders/2".into()),
        |row| row.is_error = true,
        |row| row.result.status = Some(200),
        |row| row.result.status = None,
        |row| row.result.content_type = Some("text/html".into()),
        |row| row.result.content_type = None,
        |row| row.result.body = row.result.body.slice(..row.result.body.len() - 1),
        |row| row.result.body = Bytes::new(),
        |row| {
            let mut body = row.result.body.to_vec();
            body[0] ^= 1;
            row.result.body = body.into();
        },
    ];
    for change in changes {
        let mut row = sealed();
        change(&mut row);
        assert_eq!(open(&keys(), "order-1", row), altered);
    }
    // Under another number with the same key, or with another key under the same number.
    let both = ResultKeys::new(3, [(3, MASTER), (4, MASTER)]).unwrap();
    let mut row = sealed();
    row.sealed_with = 4;
    assert_eq!(open(&both, "order-1", row), Err(NotKept::Altered { number: 4 }));
    assert_eq!(open(&ResultKeys::new(3, [(3, OTHER)]).unwrap(), "order-1", sealed()), altered);
    assert!(open(&keys(), "order-1", sealed()).is_ok());
}

/// S58: the answer of an earlier record of the key, with another payload or at another time, is not that of the one that there is now.
#[test]
fn s58_the_answer_of_an_earlier_record_of_the_key_is_refused() {
    let sealed = || kept(seal(&keys(), new("order-1")));
    let same = claim("order-1");
    assert!(keys().open(OfRecord::inserted(&same, AT), sealed()).is_ok());
    let altered = Err(NotKept::Altered { number: 3 });
    let later = OfRecord::inserted(&same, AT + Duration::from_micros(1));
    assert_eq!(keys().open(later, sealed()), altered, "another time");
    let other = Claim { hash: PayloadHash::of(b"refunded"), ..same.clone() };
    assert_eq!(keys().open(OfRecord::inserted(&other, AT), sealed()), altered, "another payload");
}

#[test]
fn v8_an_older_key_opens_what_it_has_sealed_and_a_missing_one_is_named() {
    let old = kept(seal(&keys(), new("order-1")));
    let rotated = ResultKeys::new(4, [(3, MASTER), (4, OTHER)]).unwrap();
    assert!(open(&rotated, "order-1", old.clone()).is_ok());
    let new = kept(seal(&rotated, new("order-1")));
    assert_eq!(new.sealed_with, 4);
    assert!(open(&rotated, "order-1", new.clone()).is_ok());
    assert_eq!(open(&keys(), "order-1", new), Err(NotKept::NoKey { number: 4 }));
    let (claim, hash) = (claim("order-1"), PayloadHash::of(b"paid"));
    let recorded = Recorded::new(claim.key.clone(), hash, HashRuleId(1), AT, RunId(1), None);
    let known = |seal, kept| crate::unit::kept::known(seal, &claim, &recorded, kept);
    assert_eq!(known(None, Some(old)), Err(NotKept::NoKey { number: 3 }), "a consumer without keys");
    assert_eq!(known(None, None), Err(NotKept::Absent));
    let erased = Some(KeptResult::erased(true, Some(422)));
    assert_eq!(known(None, erased), Err(NotKept::Erased { is_error: true, status: Some(422) }));
}

#[test]
fn keys_are_refused_that_could_not_seal() {
    for (current, keys) in [(0, vec![(0, MASTER)]), (32_768, vec![(32_768, MASTER)]), (2, vec![(1, MASTER)])] {
        assert_eq!(ResultKeys::new(current, keys).unwrap_err().field, "encrypt_results");
    }
    assert!(!format!("{:?}", keys()).contains('7'));
}

/// Stored results are read for years, and a change of the layout, the derivation or the order of the authenticated parts would
/// make them unreadable. Computed by another program: HKDF-SHA256 and AES-256-GCM of Python's `cryptography`.
#[test]
fn v8_known_answers() {
    let salt: [u8; 32] = std::array::from_fn(|index| u8::try_from(index).unwrap());
    let of = claim("order-1");
    let at = AT + Duration::from_micros(1_792_000_000_123_456);
    let sealed = keys().seal_with(salt, OfRecord::inserted(&of, at), new("order-1")).unwrap();
    assert_eq!(hex(&sealed.result.body), KNOWN_SUCCESS);
    let bare = NewResult::new(ScopeId(-1), IdempotencyKey::new("k").unwrap(), true, ResultBody::default());
    let of = Claim { scope: ScopeId(-1), hash: PayloadHash::NONE, ..claim("k") };
    let sealed = keys().seal_with([255; 32], OfRecord::inserted(&of, AT), bare).unwrap();
    assert_eq!(hex(&sealed.result.body), KNOWN_BARE_ERROR);
}

const KNOWN_SUCCESS: &str = concat!(
    "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f69cb4be2b891f85189081edba1ef9724e4f6",
    "e85f34c4b23cdee15de098368e1e940ad94b20f392e3f22c55b2736367d9d8f2369a0474d0745a02f521e368d0002af4cdec",
    "9a0881498d766095621f2c4236eb6f21a1b250cfbc41bd89ecec5727f9c730923e51fd0af7384517cbdf409b0fe43854a236",
    "a40f99f4445f195576de6be6e93b47b817da4b06aea06af0efc68f",
);

const KNOWN_BARE_ERROR: &str = concat!(
    "ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff45d34f658a1a411ce0a9b838d2cc7e32dd5b",
    "428bb147900c",
);
