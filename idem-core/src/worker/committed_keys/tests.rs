use std::time::SystemTime;

use super::*;
use crate::{
    hash::PayloadHash,
    names::{HashRuleId, RunId, ScopeId},
    store::StoreIdentity,
};

const MINUTE: Duration = Duration::from_secs(60);

fn cache(bytes_max: usize) -> CommittedKeys {
    let settings = WorkerSettings { cache_for: Some(5 * MINUTE), cache_bytes_max: bytes_max, ..Default::default() };
    CommittedKeys::new(&settings, Retention::Forever).expect("it is on")
}

/// The server that all of this happens on.
fn here() -> StoreIdentity {
    StoreIdentity::new("here")
}

fn claim(key: &str, payload: &[u8]) -> Claim {
    Claim {
        scope: ScopeId(1),
        key: IdempotencyKey::new(key).expect("a key"),
        hash: PayloadHash::of(payload),
        hash_rule: HashRuleId(1),
        retention: Retention::Forever,
    }
}

fn recorded(claim: &Claim) -> Recorded {
    Recorded {
        key: claim.key.clone(),
        hash: claim.hash,
        hash_rule: claim.hash_rule,
        processed_at: SystemTime::UNIX_EPOCH,
        processed_by: RunId(7),
        expires_at: None,
    }
}

/// A cache that is confirmed and knows `a`, and when that was.
fn knowing_a(bytes_max: usize) -> (CommittedKeys, Instant) {
    let (cache, now) = (cache(bytes_max), Instant::now());
    cache.confirm(1, here(), now);
    cache.note(cache.before(now), recorded(&claim("a", b"1")));
    (cache, now)
}

#[test]
fn it_answers_what_it_knows_and_nothing_else() {
    let (cache, now) = knowing_a(1 << 20);
    assert!(cache.duplicate(&claim("a", b"1"), now).is_some());
    assert!(cache.duplicate(&claim("b", b"1"), now).is_none());
}

/// X: a conflict is never called a plain duplicate, and is the database's to say.
#[test]
fn another_payload_is_no_duplicate() {
    let (cache, now) = knowing_a(1 << 20);
    assert!(cache.duplicate(&claim("a", b"2"), now).is_none());
    let other_rule = Claim { hash_rule: HashRuleId(2), ..claim("a", b"1") };
    assert!(cache.duplicate(&other_rule, now).is_none());
}

#[test]
fn an_entry_lives_as_long_as_it_is_kept_and_never_beyond_the_retention() {
    let settings = WorkerSettings { cache_for: Some(5 * MINUTE), ..Default::default() };
    assert!(CommittedKeys::new(&WorkerSettings::default(), Retention::Forever).is_none(), "it is off by itself");
    for (retention, minutes) in [(Retention::Forever, 5), (Retention::For(2 * MINUTE), 2)] {
        let cache = CommittedKeys::new(&settings, retention).expect("it is on");
        let begun = Instant::now();
        cache.confirm(1, here(), begun);
        cache.note(cache.before(begun), recorded(&claim("a", b"1")));
        let last = begun + minutes * MINUTE - Duration::from_millis(1);
        cache.confirm(1, here(), last);
        assert!(cache.duplicate(&claim("a", b"1"), last).is_some());
        assert!(cache.duplicate(&claim("a", b"1"), begun + minutes * MINUTE).is_none());
    }
}

#[test]
fn another_epoch_or_a_lost_connection_drops_everything() {
    let (cache, now) = knowing_a(1 << 20);
    cache.confirm(1, here(), now);
    assert!(cache.duplicate(&claim("a", b"1"), now).is_some());
    cache.confirm(2, here(), now);
    assert!(cache.duplicate(&claim("a", b"1"), now).is_none());
    cache.note(cache.before(now), recorded(&claim("a", b"1")));
    cache.drop_all();
    assert!(cache.duplicate(&claim("a", b"1"), now).is_none());
}

/// Entries that were noted before any confirmation may be of another epoch or server (A43).
#[test]
fn a43_the_first_confirmation_drops_what_was_noted_before_it() {
    let (cache, now) = (cache(1 << 20), Instant::now());
    cache.note(cache.before(now), recorded(&claim("a", b"1")));
    cache.confirm(1, here(), now);
    assert!(cache.duplicate(&claim("a", b"1"), now).is_none());
}

/// After a failover, commits of the old server may be lost (A43).
#[test]
fn a43_another_server_drops_everything_before_it_is_confirmed() {
    let (cache, now) = knowing_a(1 << 20);
    let before = cache.before(now);
    cache.confirm(1, StoreIdentity::new("there"), now);
    cache.note(before, recorded(&claim("b", b"1")));
    for key in ["a", "b"] {
        assert!(cache.duplicate(&claim(key, b"1"), now).is_none(), "{key}");
    }
}

/// A claim that read a record just before it was removed must not bring it back.
#[test]
fn what_was_claimed_before_a_drop_is_not_noted_after_it() {
    let (cache, now) = knowing_a(1 << 20);
    let before = cache.before(now);
    cache.confirm(2, here(), now);
    cache.note(before, recorded(&claim("b", b"1")));
    assert!(cache.duplicate(&claim("b", b"1"), now).is_none());
}

/// While it is unknown whether records were removed, the database is asked.
#[test]
fn without_a_confirmation_nothing_is_answered() {
    let (cache, now) = knowing_a(1 << 20);
    assert!(cache.duplicate(&claim("a", b"1"), now + CONFIRMED_FOR).is_some());
    let late = now + CONFIRMED_FOR + Duration::from_millis(1);
    assert!(cache.duplicate(&claim("a", b"1"), late).is_none());
    cache.confirm(1, here(), late);
    assert!(cache.duplicate(&claim("a", b"1"), late).is_some());
}

/// A43: while the database cannot be asked, it is unknown which server will answer next.
#[test]
fn a43_a_look_that_failed_ends_the_confirmation() {
    let (cache, now) = knowing_a(1 << 20);
    cache.doubt();
    assert!(cache.duplicate(&claim("a", b"1"), now).is_none());
    cache.confirm(1, here(), now);
    assert!(cache.duplicate(&claim("a", b"1"), now).is_some(), "it is the same server");
}

#[test]
fn the_oldest_make_room_and_a_key_that_was_noted_again_stays() {
    let entry = 1 + ENTRY_BYTES;
    let (cache, now) = knowing_a(3 * entry);
    let knows = |key| cache.duplicate(&claim(key, b"1"), now).is_some();
    let note = |key, after| {
        let at = now + Duration::from_millis(after);
        cache.note(cache.before(at), recorded(&claim(key, b"1")));
    };
    note("b", 1);
    note("a", 2);
    assert!(knows("a") && knows("b"));
    note("c", 3);
    assert!(knows("a"), "its older note went, not its younger");
    note("d", 4);
    note("e", 5);
    assert_eq!(["a", "b", "c", "d", "e"].map(knows), [false, false, true, true, true]);
    assert_eq!(cache.state().bytes, 3 * entry);
}
