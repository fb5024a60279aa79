//! Copies of records in a cache before the table: what they are bound to, and when they are made.

use std::{
    fmt,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use idem_core::{
    copies::{Copy, FastPath, Generation},
    store::{Claim, Found},
};
use tokio::time::Instant;

use crate::{
    bugs::{self, Bug},
    claim::Held,
    client::{Change, Conditional, Requests, token},
    clock::{now, time},
    error::DynamoError,
    item::{At, Item, Read, bytes, number, text},
    record::{State, found},
    table::describe,
};

/// How long a generation is believed: after that time no copy of before a `forget` is believed in any process.
const GENERATION_FOR: Duration = Duration::from_secs(2);

/// How long the table's identity is believed. DynamoDB describes few tables a second.
const IDENTITY_FOR: Duration = Duration::from_secs(30);

/// The copies of a store, and the generation that was read last.
pub(crate) struct Near {
    path: FastPath,
    known: Mutex<Known>,
    /// Held by the task that reads the generation.
    reading: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Known {
    generation: Option<(Instant, Generation)>,
    table: Option<(Instant, String)>,
}

impl fmt::Debug for Near {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Near").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Near {
    pub(crate) fn new(path: FastPath) -> Self {
        Self { path, known: Mutex::default(), reading: tokio::sync::Mutex::default() }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn current(&self) -> Option<Generation> {
        self.known().generation.filter(|(at, _)| at.elapsed() < GENERATION_FOR).map(|(_, generation)| generation)
    }

    /// What copies are bound to now, which must be asked before the record is read or claimed. `None` where the table does not say, or the
    /// cache rests: then neither is a copy read nor made.
    pub(crate) async fn generation(&self, requests: &Requests) -> Option<Generation> {
        if self.path.rests() {
            return None;
        }
        if let Some(current) = self.current() {
            return Some(current);
        }
        let _reading = self.reading.lock().await;
        if let Some(current) = self.current() {
            return Some(current);
        }
        let at = Instant::now();
        match self.read(requests).await {
            Ok(generation) => {
                self.known().generation = Some((at, generation));
                Some(generation)
            }
            Err(error) => {
                let error = error.without_values();
                tracing::debug!(error, "the store is asked without copies: their generation cannot be read");
                // There may be another table when it answers again.
                *self.known() = Known::default();
                None
            }
        }
    }

    async fn read(&self, requests: &Requests) -> Result<Generation, DynamoError> {
        let known = self.known().table.clone().filter(|(at, _)| at.elapsed() < IDENTITY_FOR);
        let table = match known {
            Some((_, id)) => id,
            None => {
                let at = Instant::now();
                let id = describe(requests).await?.and_then(|table| table.table_id).unwrap_or_default();
                self.known().table = Some((at, id.clone()));
                id
            }
        };
        let item = match requests.get(&At::copies()).await? {
            Some(item) => item,
            None => begin(requests).await?,
        };
        let secret = item.string("secret").unwrap_or_default();
        if bugs::planted(Bug::CopiesOfOtherTables) {
            return Ok(Generation::of(&["all"]));
        }
        // Where a server has no id of its tables, the secret alone is the table's.
        Ok(Generation::of(&[&requests.table, &table, secret]))
    }

    pub(crate) async fn find(&self, generation: Option<Generation>, claim: &Claim) -> Option<Copy> {
        self.path.find(generation?, claim, time(now())).await
    }

    pub(crate) fn put(&self, generation: Option<Generation>, claim: &Claim, found: &Found) {
        if let Some(generation) = generation {
            self.path.put(generation, claim, found, time(now()));
        }
    }

    pub(crate) fn put_running(&self, held: &Held, lease: Duration) {
        if let Some(generation) = held.generation {
            self.path.put_running(generation, &held.claim, lease);
        }
    }

    /// Copies a record that was just committed with this change, as the table has it.
    pub(crate) fn put_committed(&self, held: &Held, change: &Change) {
        let names = [(":at", "at"), (":x", "x"), (":res", "res")];
        let changed = change.values.iter().filter_map(|(placeholder, value)| {
            let (_, name) = names.iter().find(|(of, _)| of == placeholder)?;
            Some(((*name).to_owned(), value.clone()))
        });
        let mut item: Item = changed.collect();
        item.extend([
            ("st".to_owned(), text(State::Done.as_str())),
            ("h".to_owned(), bytes(held.claim.hash.as_bytes().to_vec())),
            ("hr".to_owned(), number(held.claim.hash_rule.0)),
            ("by".to_owned(), number(held.run.0)),
        ]);
        if let Ok(Some(found)) = found(&item, &held.claim) {
            self.put(held.generation, &held.claim, &found);
        }
    }

    pub(crate) fn remove(&self, held: &Held) {
        if let Some(generation) = held.generation {
            self.path.remove(generation, &held.claim);
        }
    }
}

/// Makes the item with the secret, where no other process has.
async fn begin(requests: &Requests) -> Result<Item, DynamoError> {
    let change = Change::new("SET secret = if_not_exists(secret, :new)").value(":new", text(token()));
    match requests.update(&At::copies(), &change).await? {
        Conditional::Done(item) | Conditional::Failed(item) => Ok(item.unwrap_or_default()),
    }
}

/// Ends all copies of before, where there are any.
pub(crate) async fn renew(requests: &Requests) -> Result<(), DynamoError> {
    let change = Change::new("SET secret = :new").on("attribute_exists(pk)").value(":new", text(token()));
    requests.update(&At::copies(), &change).await.map(drop)
}
