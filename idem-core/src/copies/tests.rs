//! Copies in a map: what they are bound to, what is copied, and when the cache rests.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use super::*;
use crate::{
    hash::PayloadHash,
    message::headers::Headers,
    names::{HashRuleId, IdempotencyKey, Retention, RunId, ScopeId},
    results::{result::ResultBody, rows::KeptResult},
    store::claim::Recorded,
};

/// A cache that can fail, or not answer.
#[derive(Default)]
struct Map {
    entries: Mutex<BTreeMap<String, Bytes>>,
    asked: AtomicUsize,
    fails: AtomicBool,
    hangs: AtomicBool,
}

impl Map {
    async fn answers(&self) -> Result<(), BoxError> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        if self.hangs.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        if self.fails.load(Ordering::Relaxed) { Err("the cache is gone".into()) } else { Ok(()) }
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }

    fn change(&self, change: impl Fn(&mut Vec<u8>)) {
        for entry in self.entries.lock().unwrap().values_mut() {
            let mut bytes = entry.to_vec();
            change(&mut bytes);
            *entry = bytes.into();
        }
    }
}

#[async_trait]
impl Copies for Map {
    async fn get(&self, key: &str) -> Result<Option<Bytes>, BoxError> {
        self.answers().await?;
        Ok(self.entries.lock().unwrap().get(key).cloned())
    }

    async fn put(&self, key: &str, entry: Bytes, _: Duration, replace: bool) -> Result<(), BoxError> {
        self.answers().await?;
        let mut entries = self.entries.lock().unwrap();
        if replace || !entries.contains_key(key) {
            entries.insert(key.to_owned(), entry);
        }
        Ok(())
    }

    async fn remove(&self, key: &str) -> Result<(), BoxError> {
        self.answers().await?;
        self.entries.lock().unwrap().remove(key);
        Ok(())
    }
}

const NOW: SystemTime = SystemTime::UNIX_EPOCH;
const SECOND: Duration = Duration::from_secs(1);

fn claim(scope: i32, key: &str, payload: &[u8]) -> Claim {
    let key = IdempotencyKey::new(key).unwrap();
    Claim::new(ScopeId(scope), key, PayloadHash::of(payload), HashRuleId(1), Retention::Forever)
}

fn found(claim: &Claim, result: Option<KeptResult>) -> Found {
    let recorded =
        Recorded::new(claim.key.clone(), claim.hash, claim.hash_rule, NOW, RunId(7), Some(NOW + 60 * SECOND));
    Found::new(recorded, result)
}

fn result(sealed_with: u16) -> KeptResult {
    let mut body = ResultBody::new("paid\nin full").with_status(201).with_content_type("text/plain");
    body.headers = Headers::default();
    body.headers.push("x-a", Some("1".into()));
    body.headers.push("x-b", None);
    KeptResult::new(false, body, sealed_with)
}

fn of(cache: &Arc<Map>, is_plain: bool) -> FastPath {
    FastPath::new(Arc::<Map>::clone(cache), is_plain)
}

/// Lets what runs beside a caller end.
async fn settle() {
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}

/// Y17: a copy answers for the generation, scope, key, payload and rule that it was made for, and no other.
#[tokio::test]
async fn y17_a_copy_answers_for_its_own_claim_alone() {
    let cache = Arc::new(Map::default());
    let (path, generation) = (of(&cache, true), Generation::of(&["table", "secret"]));
    let own = claim(1, "order-1", b"ann");
    let copied = found(&own, Some(result(0)));
    path.put(generation, &own, &copied, NOW);
    settle().await;
    let whole = Some(Copy::Done { found: Box::new(copied), is_whole: true });
    assert_eq!(path.find(generation, &own, NOW).await, whole, "as it is in the store");
    for other in [
        claim(2, "order-1", b"ann"),
        claim(1, "order-2", b"ann"),
        claim(1, "order-1", b"bob"),
        own.clone().hash_rule(HashRuleId(2)),
    ] {
        assert_eq!(path.find(generation, &other, NOW).await, None, "{other:?}");
    }
    for names in [["table", "another"], ["tables", "ecret"], ["another", "secret"]] {
        assert_eq!(path.find(Generation::of(&names), &own, NOW).await, None, "{names:?}");
    }
    assert_eq!(path.find(generation, &own, NOW + 60 * SECOND).await, None, "the record is over");
    path.remove(generation, &own);
    settle().await;
    assert_eq!(path.find(generation, &own, NOW).await, None);
}

/// Y17: an entry that another program has written, changed, cut short or put under another name says nothing.
#[tokio::test]
async fn y17_an_entry_without_its_proof_says_nothing() {
    let (own, other) = (claim(1, "order-1", b"ann"), claim(1, "order-2", b"ann"));
    let generation = Generation::of(&["table", "secret"]);
    let changes: [fn(&mut Vec<u8>); 5] = [
        |bytes| bytes.clear(),
        |bytes| bytes.truncate(40),
        |bytes| bytes[0] ^= 1,
        |bytes| *bytes.last_mut().unwrap() ^= 1,
        |bytes| *bytes = b"{\"Done\":{}}\n".to_vec(),
    ];
    for change in changes {
        let cache = Arc::new(Map::default());
        let path = of(&cache, true);
        path.put(generation, &own, &found(&own, Some(result(0))), NOW);
        settle().await;
        cache.change(change);
        assert_eq!(path.find(generation, &own, NOW).await, None);
    }
    let cache = Arc::new(Map::default());
    let path = of(&cache, true);
    path.put(generation, &own, &found(&own, None), NOW);
    settle().await;
    let entry = cache.entries.lock().unwrap().values().next().unwrap().clone();
    cache.entries.lock().unwrap().insert(generation.name(&other), entry);
    assert_eq!(path.find(generation, &other, NOW).await, None, "it is another key's");
}

/// Y18: a result that is not encrypted is copied only where the author says so, and one that was erased or is of another payload never.
#[tokio::test]
async fn y18_a_plain_result_is_not_copied_unasked() {
    let (own, generation) = (claim(1, "order-1", b"ann"), Generation::of(&["table", "secret"]));
    let large = KeptResult::new(false, ResultBody::new(vec![0; RESULT_BYTES_MAX + 1]), 3);
    for (result, is_plain, is_whole) in [
        (None, false, true),
        (Some(result(0)), false, false),
        (Some(result(0)), true, true),
        (Some(result(3)), false, true),
        (Some(KeptResult::erased(false, Some(201))), true, false),
        (Some(large), true, false),
    ] {
        let cache = Arc::new(Map::default());
        let path = of(&cache, is_plain);
        path.put(generation, &own, &found(&own, result.clone()), NOW);
        settle().await;
        let copied = if is_whole { result.clone() } else { None };
        let expected = Copy::Done { found: Box::new(found(&own, copied)), is_whole };
        assert_eq!(path.find(generation, &own, NOW).await, Some(expected), "{result:?} {is_plain}");
        let holds =
            |part: &[u8]| cache.entries.lock().unwrap().values().any(|all| all.windows(4).any(|four| four == part));
        assert_eq!(holds(b"paid"), is_whole && result.is_some());
    }
    let cache = Arc::new(Map::default());
    let path = of(&cache, true);
    path.put(generation, &own, &found(&claim(1, "order-1", b"bob"), None), NOW);
    path.put(generation, &own, &found(&own, None), NOW + 60 * SECOND);
    settle().await;
    assert!(cache.entries.lock().unwrap().is_empty(), "of another payload, and over");
}

/// Y19: a copy that says that a unit has the key never takes the place of one that says that it is done.
#[tokio::test]
async fn y19_done_is_not_undone() {
    let cache = Arc::new(Map::default());
    let (path, generation, own) = (of(&cache, true), Generation::of(&["secret"]), claim(1, "order-1", b"ann"));
    path.put_running(generation, &own, SECOND);
    settle().await;
    assert_eq!(path.find(generation, &own, NOW).await, Some(Copy::Running));
    path.put(generation, &own, &found(&own, None), NOW);
    settle().await;
    path.put_running(generation, &own, SECOND);
    settle().await;
    let done = Copy::Done { found: Box::new(found(&own, None)), is_whole: true };
    assert_eq!(path.find(generation, &own, NOW).await, Some(done));
}

/// Y20: a cache that fails or does not answer is not asked for ten seconds; then one call tries it.
#[tokio::test(start_paused = true)]
async fn y20_a_cache_that_fails_rests() {
    for hangs in [false, true] {
        let cache = Arc::new(Map::default());
        let (path, generation, own) = (of(&cache, true), Generation::of(&["secret"]), claim(1, "order-1", b"ann"));
        let ill = if hangs { &cache.hangs } else { &cache.fails };
        ill.store(true, Ordering::Relaxed);
        let begun = tokio::time::Instant::now();
        assert_eq!(path.find(generation, &own, NOW).await, None);
        assert!(begun.elapsed() <= 2 * cache.patience(), "{:?}", begun.elapsed());
        for _ in 0..100 {
            assert_eq!(path.find(generation, &own, NOW).await, None);
            path.put(generation, &own, &found(&own, None), NOW);
        }
        settle().await;
        assert_eq!((cache.asked(), path.rests()), (1, true));
        tokio::time::advance(10 * SECOND).await;
        assert_eq!(path.find(generation, &own, NOW).await, None);
        assert_eq!(path.find(generation, &own, NOW).await, None);
        assert_eq!(cache.asked(), 2, "one call has tried it");
        ill.store(false, Ordering::Relaxed);
        tokio::time::advance(10 * SECOND).await;
        assert_eq!((path.find(generation, &own, NOW).await, path.rests()), (None, false));
        path.put(generation, &own, &found(&own, None), NOW);
        settle().await;
        assert!(path.find(generation, &own, NOW).await.is_some());
    }
}
