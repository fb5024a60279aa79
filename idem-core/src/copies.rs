//! The fast path of a store: copies of records, nearer than the store and never its judge.
//!
//! A copy may say that an operation is done, and with which answer, or that a unit has its key now. It never says that a handler may run: a
//! copy that is missing, late or unreadable says nothing, and the store is asked.

mod bytes;
mod circuit;
#[cfg(test)]
mod tests;

use std::{
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};

use ::bytes::Bytes;
use async_trait::async_trait;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use tokio::{sync::Semaphore, time::timeout};

use self::circuit::Circuit;
use crate::{
    error::BoxError,
    spawn,
    store::claim::{Claim, Found},
};

/// The longest that a copy is kept.
const KEPT_MAX: Duration = Duration::from_secs(600);

/// Writes of copies that are under way at once. Copies beyond that are not made.
const WRITES_MAX: usize = 64;

/// How many bytes of a result are copied. A larger one is read from the store.
const RESULT_BYTES_MAX: usize = 64 << 10;

/// Keeps copies: a cache, whose entries may go at any time.
///
/// It need not be durable, consistent or available. What it loses, brings back or makes up costs time, and decides nothing: an entry that
/// was not written for this store and this claim is ignored.
#[async_trait]
pub trait Copies: Send + Sync + 'static {
    /// Reads an entry.
    async fn get(&self, key: &str) -> Result<Option<Bytes>, BoxError>;

    /// Writes an entry, which goes after `keep`. Without `replace` an entry that is there stays.
    async fn put(&self, key: &str, entry: Bytes, keep: Duration, replace: bool) -> Result<(), BoxError>;

    /// Removes an entry.
    async fn remove(&self, key: &str) -> Result<(), BoxError>;

    /// How long a call may take. A call that takes longer counts as failed.
    fn patience(&self) -> Duration {
        Duration::from_millis(50)
    }
}

/// What all copies of a store are bound to: its identity, and the number of times that an operator has forgotten or erased a record. A store
/// must read it before it reads or writes the record that is copied.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Generation([u8; 32]);

impl Generation {
    /// The generation of these names, at least one of which is a secret of the store's own.
    #[must_use]
    pub fn of(names: &[&str]) -> Self {
        let mut digest = keyed(b"idem:copies:v1");
        for name in names {
            digest.update(&(name.len() as u64).to_be_bytes());
            digest.update(name.as_bytes());
        }
        Self(digest.finalize().into_bytes().into())
    }

    /// The name of a claim's entry. Another generation, scope, key, payload or rule has another name.
    fn name(&self, claim: &Claim) -> String {
        let mut digest = keyed(&self.0);
        digest.update(b"name");
        digest.update(&claim.scope.0.to_be_bytes());
        digest.update(&claim.hash_rule.0.to_be_bytes());
        digest.update(claim.hash.as_bytes());
        digest.update(claim.key.as_str().as_bytes());
        format!("idem:copy:{}", hex::encode(digest.finalize().into_bytes()))
    }

    /// The proof that an entry was written for this name, by a program that knows the generation.
    fn proof(&self, name: &str, body: &[u8]) -> Hmac<Sha256> {
        let mut digest = keyed(&self.0);
        digest.update(b"entry");
        digest.update(name.as_bytes());
        digest.update(body);
        digest
    }
}

impl fmt::Debug for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Who knows it can write entries.
        f.write_str("Generation")
    }
}

#[allow(clippy::expect_used, reason = "HMAC takes keys of any length")]
fn keyed(key: &[u8]) -> Hmac<Sha256> {
    Hmac::new_from_slice(key).expect("a key of any length")
}

/// What a copy says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Copy {
    /// A unit had claimed the key. Wait, or ask the store.
    Running,
    /// The operation is done, under the payload of the claim.
    Done {
        /// The record, and its result if that was copied.
        found: Box<Found>,
        /// Whether the store has no more than this: a result that was not copied is read from the store.
        is_whole: bool,
    },
}

/// A store's copies. Clones share the circuit.
#[derive(Clone)]
pub struct FastPath {
    copies: Arc<dyn Copies>,
    circuit: Arc<Circuit>,
    writes: Arc<Semaphore>,
    is_plain: bool,
}

impl fmt::Debug for FastPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FastPath").field("is_plain", &self.is_plain).finish_non_exhaustive()
    }
}

impl FastPath {
    /// Copies in this cache. Results that are not encrypted are copied only with `is_plain`.
    #[must_use]
    pub fn new(copies: Arc<dyn Copies>, is_plain: bool) -> Self {
        Self { copies, circuit: Arc::default(), writes: Arc::new(Semaphore::new(WRITES_MAX)), is_plain }
    }

    /// Whether the cache is not asked now, because it has just failed.
    #[must_use]
    pub fn rests(&self) -> bool {
        self.circuit.rests()
    }

    /// What the copy of this claim says, at this time of the store's clock; `None` where there is none, or the cache does not answer in time.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn find(&self, generation: Generation, claim: &Claim, now: SystemTime) -> Option<Copy> {
        let name = generation.name(claim);
        let entry = self.asked("reading a copy", self.copies.get(&name)).await??;
        let (proof, body) = entry.split_first_chunk::<32>()?;
        generation.proof(&name, body).verify_slice(proof).ok()?;
        let copy = bytes::read(body, claim)?;
        let is_over = |until: Option<SystemTime>| until.is_some_and(|until| until <= now);
        match &copy {
            Copy::Done { found, .. } if is_over(found.recorded.expires_at) => None,
            Copy::Running | Copy::Done { .. } => Some(copy),
        }
    }

    /// Copies a committed record, without waiting for it, at this time of the store's clock. A record of another payload is not copied.
    pub fn put(&self, generation: Generation, claim: &Claim, found: &Found, now: SystemTime) {
        let Some(keep) = keeps(claim, found, now) else { return };
        let result = found.result.as_ref();
        let is_copied = result.is_none_or(|kept| {
            (self.is_plain || kept.sealed_with != 0) && kept.gone.is_none() && kept.result.bytes() <= RESULT_BYTES_MAX
        });
        let copied = result.filter(|_| is_copied);
        self.write(generation, claim, bytes::done(&found.recorded, copied, is_copied), keep, true);
    }

    /// Copies that a unit has the key now, for as long as its lease.
    pub fn put_running(&self, generation: Generation, claim: &Claim, lease: Duration) {
        // A commit may have been faster, whose copy stays.
        self.write(generation, claim, bytes::running(), lease.min(KEPT_MAX), false);
    }

    /// Removes the copy of a claim that was given up, without waiting for it.
    pub fn remove(&self, generation: Generation, claim: &Claim) {
        let name = generation.name(claim);
        self.beside(async move |path| {
            path.asked("removing a copy", path.copies.remove(&name)).await;
        });
    }

    fn write(&self, generation: Generation, claim: &Claim, body: Vec<u8>, keep: Duration, replace: bool) {
        let name = generation.name(claim);
        let proof = generation.proof(&name, &body).finalize().into_bytes();
        let entry = [&proof[..], &body].concat().into();
        self.beside(async move |path| {
            path.asked("writing a copy", path.copies.put(&name, entry, keep, replace)).await;
        });
    }

    /// Runs a call beside the caller's work, unless too many run already.
    fn beside<F: Future<Output = ()> + Send>(&self, call: impl FnOnce(Self) -> F + Send + 'static) {
        if self.circuit.rests() {
            return;
        }
        if let Ok(permit) = Arc::clone(&self.writes).try_acquire_owned() {
            let path = self.clone();
            spawn::detached(async move {
                call(path).await;
                drop(permit);
            });
        }
    }

    /// The answer of the cache; `None` where it fails, is late, or rests.
    async fn asked<T>(&self, doing: &'static str, call: impl Future<Output = Result<T, BoxError>> + Send) -> Option<T> {
        if !self.circuit.lets_pass() {
            return None;
        }
        let patience = self.copies.patience();
        let error = match timeout(patience, call).await {
            Ok(Ok(answer)) => {
                self.circuit.succeeded();
                return Some(answer);
            }
            Ok(Err(error)) => error.to_string(),
            Err(_late) => format!("no answer within {patience:?}"),
        };
        if self.circuit.failed() {
            let rest = circuit::REST;
            tracing::warn!(error, "{doing} failed: the store is asked without copies for {rest:?}");
        }
        None
    }
}

/// How long a record's copy is kept; `None` where it is not copied.
fn keeps(claim: &Claim, found: &Found, now: SystemTime) -> Option<Duration> {
    let recorded = &found.recorded;
    if recorded.key != claim.key || recorded.hash != claim.hash || recorded.hash_rule != claim.hash_rule {
        return None;
    }
    let until = [recorded.expires_at, found.result.as_ref().and_then(|kept| kept.until)];
    let left = until.into_iter().flatten().map(|until| until.duration_since(now).unwrap_or_default());
    left.min().map_or(Some(KEPT_MAX), |left| (!left.is_zero()).then_some(left.min(KEPT_MAX)))
}
