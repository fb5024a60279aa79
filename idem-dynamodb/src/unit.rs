//! A unit of work: the keys that it has claimed, and the writes that its commit sends.

use std::{fmt, sync::Arc, time::SystemTime};

use futures_util::{StreamExt as _, TryStreamExt as _};
use idem_core::{
    ErrorClass, StoreError, Tx,
    copies::Copy,
    outbox::{AppendError, Appended},
    results::KeptResult,
    store::{Claim, ClaimError, Claimed, CommitError, Found, Recorded, UnitOfWork, UnitOptions},
};
use tokio::{runtime::Handle, sync::oneshot, time::Instant};

use crate::{
    claim::{self, Held, acquire, give_all_up},
    client::Requests,
    clock::time,
    commit::Commit,
    error::DynamoError,
    item::At,
    record::{found, result_bytes},
    store::DynamoStore,
    tx::{DynamoTx, Write},
};

/// The most bytes of a result: an item has at most 400 KB.
const RESULT_BYTES_MAX: usize = 360 << 10;

/// Reads that are on their way together.
const READS: usize = 16;

/// A transaction on DynamoDB. Nothing of it is sent before its commit, but its claims and the reads of its handlers.
///
/// Dropping it gives its claims up, in a task of the runtime that it was begun on.
pub struct DynamoUnit {
    requests: Arc<Requests>,
    options: UnitOptions,
    runtime: Handle,
    held: Vec<Held>,
    writes: Vec<Write>,
    appended: Option<Appended>,
    /// The records that claims have found.
    found: Vec<(Claim, Found)>,
}

impl fmt::Debug for DynamoUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (held, writes) = (self.held.len(), self.writes.len());
        f.debug_struct("DynamoUnit").field("held", &held).field("writes", &writes).finish_non_exhaustive()
    }
}

impl DynamoUnit {
    pub(crate) fn new(requests: Arc<Requests>, options: UnitOptions) -> Self {
        Self {
            requests,
            options,
            runtime: Handle::current(),
            held: Vec::new(),
            writes: Vec::new(),
            appended: None,
            found: Vec::new(),
        }
    }

    /// Claims one key, in a task: a request whose caller is gone is waited for, and what it has got is given up.
    async fn claim_one(&mut self, claim: &Claim, until: Instant) -> Result<Claimed, ClaimError> {
        if self.held.iter().any(|held| is_of(claim, &held.claim)) {
            return Ok(Claimed::Inserted);
        }
        let (mut sender, receiver) = oneshot::channel();
        let (requests, run, claim) = (Arc::clone(&self.requests), self.options.run, claim.clone());
        let of = claim.clone();
        self.runtime.spawn(async move {
            let answer = acquire(&requests, &claim, run, until, &mut sender).await;
            if let Err(Ok(claim::Claimed::Held(held)) | Err((_, Some(held)))) = sender.send(answer) {
                let _ = give_all_up(&requests, &[held]).await;
            }
        });
        let gone = || StoreError::unavailable("claiming keys", "the runtime is shutting down");
        match receiver.await.map_err(|_| gone())? {
            Ok(claim::Claimed::Held(held)) => {
                self.held.push(held);
                Ok(Claimed::Inserted)
            }
            Ok(claim::Claimed::Found { found, is_whole }) => {
                let recorded = found.recorded.clone();
                if is_whole {
                    self.found.push((of, *found));
                }
                Ok(Claimed::Found(recorded))
            }
            Err((error, held)) => {
                self.held.extend(held);
                Err(error)
            }
        }
    }

    /// Gives up what is held, in a task that outlives its caller.
    async fn give_up(&mut self) -> Result<(), StoreError> {
        let held = std::mem::take(&mut self.held);
        if held.is_empty() {
            return Ok(());
        }
        let requests = Arc::clone(&self.requests);
        let given_up = self.runtime.spawn(async move { give_all_up(&requests, &held).await });
        match given_up.await {
            Ok(given_up) => given_up.map_err(|error| error.into_store("rolling back")),
            Err(gone) => Err(StoreError::unavailable("rolling back", gone)),
        }
    }
}

impl Drop for DynamoUnit {
    fn drop(&mut self) {
        let held = std::mem::take(&mut self.held);
        if !held.is_empty() {
            let requests = Arc::clone(&self.requests);
            // Where the runtime is gone too, the leases end by themselves.
            self.runtime.spawn(async move { drop(give_all_up(&requests, &held).await) });
        }
    }
}

fn is_of(claim: &Claim, other: &Claim) -> bool {
    claim.scope == other.scope && claim.key == other.key
}

/// The committed records of these keys.
pub(crate) async fn read_all(requests: &Requests, claims: &[Claim]) -> Result<Vec<Option<Found>>, StoreError> {
    let read = |claim: &Claim| {
        let (at, claim) = (At::record(claim.scope, &claim.key), claim.clone());
        async move {
            let near = match &requests.near {
                Some(near) => Some((near, near.generation(requests).await)),
                None => None,
            };
            if let Some((near, generation)) = near
                && let Some(Copy::Done { found, is_whole: true }) = near.find(generation, &claim).await
            {
                return Ok(Some(*found));
            }
            let item = requests.get(&at).await.map_err(|error| error.into_store("reading records"))?;
            let found = item.map_or(Ok(None), |item| found(&item, &claim))?;
            if let (Some((near, generation)), Some(found)) = (near, &found) {
                near.put(generation, &claim, found);
            }
            Ok(found)
        }
    };
    // One by one they would take a round trip each.
    futures_util::stream::iter(claims.iter().map(read).collect::<Vec<_>>()).buffered(READS).try_collect().await
}

impl UnitOfWork<DynamoStore> for DynamoUnit {
    async fn claim(&mut self, claims: &[Claim]) -> Result<Vec<Claimed>, ClaimError> {
        let until = Instant::now() + self.options.busy_timeout;
        let mut answers = Vec::with_capacity(claims.len());
        for claim in claims {
            answers.push(self.claim_one(claim, until).await?);
        }
        Ok(answers)
    }

    async fn read(&mut self, claims: &[Claim]) -> Result<Vec<Option<Recorded>>, StoreError> {
        let found = read_all(&self.requests, claims).await?;
        Ok(found.into_iter().map(|found| Some(found?.recorded)).collect())
    }

    fn tx(&mut self) -> Tx<'_, DynamoStore> {
        Tx::new(DynamoTx { requests: &self.requests, writes: &mut self.writes })
    }

    fn check(&self) -> Result<(), StoreError> {
        // A handler has nothing by which it could end the transaction.
        Ok(())
    }

    async fn append(&mut self, appended: &Appended) -> Result<(), AppendError> {
        if !appended.events.is_empty() {
            return Err(StoreError::Unsupported { what: "write events" }.into());
        }
        if let Some(bytes) =
            appended.results.iter().map(|new| result_bytes(&new.result)).find(|bytes| *bytes > RESULT_BYTES_MAX)
        {
            let problem =
                format!("a result has {bytes} bytes, and an item of DynamoDB holds {RESULT_BYTES_MAX} of them");
            let error = DynamoError::own("TransactWriteItems", "ResultTooLarge", problem);
            return Err(StoreError::failed("keeping a result", ErrorClass::Permanent, error).into());
        }
        self.appended = Some(appended.clone());
        Ok(())
    }

    fn processed_at(&self, claim: &Claim) -> Option<SystemTime> {
        self.held.iter().find(|held| is_of(claim, &held.claim)).map(|held| time(held.at))
    }

    async fn read_results(&mut self, claims: &[Claim]) -> Result<Vec<Option<KeptResult>>, StoreError> {
        let known = |claim: &Claim| self.found.iter().find(|(of, _)| is_of(claim, of)).map(|(_, found)| found.clone());
        let known: Option<Vec<Found>> = claims.iter().map(known).collect();
        let all = match known {
            Some(known) => known.into_iter().map(Some).collect(),
            None => read_all(&self.requests, claims).await?,
        };
        Ok(all.into_iter().map(|found| found?.result).collect())
    }

    async fn look_up(&mut self, claims: &[Claim]) -> Result<Vec<Option<Found>>, StoreError> {
        read_all(&self.requests, claims).await
    }

    async fn commit(mut self) -> (Option<()>, Result<(), CommitError>) {
        let commit = Commit {
            held: std::mem::take(&mut self.held),
            writes: std::mem::take(&mut self.writes),
            results: self.appended.take().map(|appended| appended.results).unwrap_or_default(),
        };
        let requests = Arc::clone(&self.requests);
        // In a task: a commit whose caller is gone still comes to an end, and leaves no key behind.
        let committed = match self.runtime.spawn(async move { commit.run(&requests).await }).await {
            Ok(committed) => committed,
            Err(gone) => Err(CommitError::Unknown(gone.into())),
        };
        (committed.is_ok().then_some(()), committed)
    }

    async fn rollback(mut self) -> Result<Option<()>, StoreError> {
        self.give_up().await.map(|()| Some(()))
    }

    async fn abandon(mut self) {
        let _ = self.give_up().await;
    }
}
