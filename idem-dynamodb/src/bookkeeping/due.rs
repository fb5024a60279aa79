//! Rows that are due: a dead letter that is to run again has an item of its own, which a run takes by a lease.
//!
//! DynamoDB has no lock over several items. Of the rows of one ordering key a run takes the first one first, and none where one of them is
//! taken; then it looks whether another run has taken one meanwhile, and gives its own back in that case.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use idem_core::{
    ConsumerName, StoreError,
    dead_letter::{DUE_LEASE, DeadLetterId, Due, DueEnd, DueFailure, DueRoom, Reason},
    store::{RunId, ScopeId},
};
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use super::{DynamoBookkeeping, letter, register::ROUNDS};
use crate::{
    client::{Change, Conditional},
    clock::{Micros, now, span},
    error::DynamoError,
    item::{At, Item, Read, bytes, number},
};

const TAKING: &str = "taking rows that are due";

/// How many rows are worked on at a time.
const AT_ONCE: usize = 16;

/// How long a look takes rows. To read them takes about twice as long, and then enough of their leases is left to renew them.
const TAKES_FOR: Duration = Duration::from_secs(10);

/// A row that is due.
#[derive(Debug, Clone)]
struct Row {
    at: At,
    id: DeadLetterId,
    scope: ScopeId,
    /// The digest of its ordering key.
    sequence: Option<Vec<u8>>,
    payload_bytes: u64,
    lease: Option<Lease>,
}

/// Who has a row, and until when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Lease {
    until: Micros,
    by: i64,
}

impl Lease {
    fn of(item: &Item) -> Option<Self> {
        Some(Self { until: item.number("until")?, by: item.number("by")? })
    }

    fn is_over(self, now: Micros) -> bool {
        self.until <= now
    }
}

impl Row {
    fn of(item: &Item) -> Option<Self> {
        let (pk, sk) = (item.string("pk")?, item.string("sk")?);
        Some(Self {
            at: At::new(pk, sk),
            id: DeadLetterId(sk.split_once('#')?.1.parse().ok()?),
            scope: letter::scope(item).unwrap_or(ScopeId(0)),
            sequence: item.blob("sequence").map(<[u8]>::to_vec),
            payload_bytes: item.number("payload_bytes").and_then(|size| u64::try_from(size).ok()).unwrap_or_default(),
            lease: Lease::of(item),
        })
    }

    /// The item of a letter that becomes due.
    fn item(letter: &Item, scope: ScopeId) -> Item {
        let mut item = Item::from([("scope".to_owned(), number(scope.0))]);
        let size = letter.number("payload_bytes").unwrap_or_default();
        item.insert("payload_bytes".to_owned(), number(size));
        let sequence = letter.blob("ordering_key").map(|key| bytes(Sha256::digest(key).to_vec()));
        item.extend(sequence.map(|sequence| ("sequence".to_owned(), sequence)));
        item
    }

    fn is_free(&self, now: Micros) -> bool {
        self.lease.is_none_or(|lease| lease.is_over(now))
    }

    /// Changes the lease, unless it is another one by now than `from`.
    fn change(from: Option<Lease>, to: Option<Lease>) -> Change {
        let change = match to {
            Some(to) => {
                let set = Change::new("SET #until = :until, #by = :by");
                set.value(":until", number(to.until)).value(":by", number(to.by))
            }
            None => Change::new("REMOVE #until, #by"),
        };
        let change = match from {
            Some(from) => {
                let seen = change.on("#until = :seen AND #by = :seen_by");
                seen.value(":seen", number(from.until)).value(":seen_by", number(from.by))
            }
            None => change.on("attribute_exists(pk) AND attribute_not_exists(#until)"),
        };
        change.name("#until", "until").name("#by", "by")
    }
}

/// The rows that may be taken: of each ordering key none where one of them runs, else the first ones in their order. Each scope has its
/// turns, and rows behind the first one of a key take the room that is left.
fn chosen(rows: Vec<Row>, now: Micros, room: DueRoom) -> Vec<Vec<Row>> {
    let mut keys: BTreeMap<_, Vec<Row>> = BTreeMap::new();
    for row in rows {
        let alone = row.sequence.is_none().then_some(row.id);
        keys.entry((row.scope, row.sequence.clone(), alone)).or_default().push(row);
    }
    let mut free: Vec<_> = keys.into_values().filter(|rows| rows.iter().all(|row| row.is_free(now))).collect();
    // What was taken before may have had its effect: it goes first.
    free.iter_mut().for_each(|rows| rows.sort_by_key(|row| (row.lease.is_none(), row.id)));
    let since = |rows: &Vec<Row>| rows.first().map(|row| row.at.sk.clone());
    free.sort_by_key(since);
    let mut turns: HashMap<ScopeId, usize> = HashMap::new();
    let mut free: Vec<_> = free
        .into_iter()
        .filter_map(|rows| {
            let turn = turns.entry(rows.first()?.scope).or_default();
            *turn += 1;
            Some((*turn, rows))
        })
        .collect();
    free.sort_by_key(|(turn, rows)| (*turn, since(rows)));
    free.truncate(room.rows as usize);
    let behind_max = (room.rows as usize - free.len()) / free.len().max(1);
    let (mut fit, mut sum) = (vec![0; free.len()], 0);
    let longest = free.iter().map(|(_, rows)| rows.len()).max().unwrap_or_default();
    'full: for step in 0..=behind_max.min(longest) {
        for ((_, rows), fit) in free.iter().zip(&mut fit) {
            let Some(row) = rows.get(step) else { continue };
            if sum >= room.bytes {
                break 'full;
            }
            sum += row.payload_bytes;
            *fit = step + 1;
        }
    }
    free.into_iter()
        .zip(fit)
        .map(|((_, mut rows), fit)| {
            rows.truncate(fit);
            rows
        })
        .collect()
}

impl DynamoBookkeeping {
    pub(super) async fn make_due(&self, ids: &[DeadLetterId], by: &str) -> Result<u64, StoreError> {
        let doing = "making dead letters due";
        let at = now();
        let marked: Vec<_> =
            stream::iter(ids.to_vec()).map(|id| self.make_one_due(id, by, at)).buffered(AT_ONCE).collect().await;
        // Once a request, however many it marks, and also where one of them failed.
        let scopes: BTreeSet<_> = marked.iter().filter_map(|scope| scope.as_ref().ok().copied().flatten()).collect();
        for scope in scopes {
            self.raise_epoch(scope).await?;
        }
        let mut count = 0;
        for scope in marked {
            count += u64::from(scope.map_err(|error| error.into_store(doing))?.is_some());
        }
        Ok(count)
    }

    /// The scope of the letter; `None` where it cannot be replayed now.
    async fn make_one_due(&self, id: DeadLetterId, by: &str, since: Micros) -> Result<Option<ScopeId>, DynamoError> {
        for _ in 0..ROUNDS {
            let Some((at, mut item)) = self.letter(id).await? else { return Ok(None) };
            if item.string("replay") != Some(letter::IDLE) || !item.is_set("kept") {
                return Ok(None);
            }
            let Ok(scope) = letter::scope(&item) else { return Ok(None) };
            let due = At::due(item.string("consumer").unwrap_or_default(), since, id);
            let mut also = vec![self.requests.put_action(&due, Row::item(&item, scope), None)?];
            also.extend(self.ends_count(scope, letter::key(&item).as_ref(), letter::hash(&item))?);
            letter::make_due(&mut item, due.sk, by);
            if self.replace(&at, item, also).await? {
                return Ok(Some(scope));
            }
        }
        Ok(None)
    }

    pub(super) async fn take(
        &self,
        consumer: &ConsumerName,
        run: RunId,
        room: DueRoom,
    ) -> Result<Vec<Due>, StoreError> {
        let keys = chosen(self.due_of(consumer).await?, now(), room);
        let lease = Lease { until: now().saturating_add(span(DUE_LEASE)), by: i64::from(run.0) };
        let until = Instant::now() + TAKES_FOR;
        let leases = stream::iter(keys).map(|rows| self.lease_all(rows, lease, until)).buffered(AT_ONCE);
        let mut keys: Vec<Vec<Row>> = leases.try_collect().await?;
        if keys.iter().flatten().any(|row| row.sequence.is_some()) {
            self.give_way(consumer, &mut keys, lease).await?;
        }
        // The first of each ordering key, then the second.
        let steps = keys.iter().map(Vec::len).max().unwrap_or_default();
        let rows: Vec<Row> =
            (0..steps).flat_map(|step| keys.iter().filter_map(move |rows| rows.get(step)).cloned()).collect();
        let read = stream::iter(rows).map(|row| self.read_due(consumer, row)).buffered(AT_ONCE);
        let read: Vec<_> = read.try_collect().await?;
        let (mut taken, mut damaged) = (Vec::with_capacity(read.len()), Vec::new());
        for row in read.into_iter().flatten() {
            match row {
                (_, Ok(due)) => taken.push(due),
                (id, Err(error)) => {
                    damaged.push((id, DueEnd::Failed(DueFailure::new(Reason::Malformed, error.to_string()))))
                }
            }
        }
        self.end(run, &damaged).await?;
        Ok(taken)
    }

    /// Every row that is due, from the beginning: one that was taken and has not ended is due again.
    async fn due_of(&self, consumer: &ConsumerName) -> Result<Vec<Row>, StoreError> {
        let due = self.requests.query(&format!("due#{consumer}"));
        let due = self.requests.all(due, usize::MAX).await.map_err(|error| error.into_store(TAKING))?;
        Ok(due.iter().filter_map(Row::of).collect())
    }

    /// Takes rows in their order, up to the first one that another run was faster with, or for which there is no time.
    async fn lease_all(&self, rows: Vec<Row>, lease: Lease, until: Instant) -> Result<Vec<Row>, StoreError> {
        let mut taken = Vec::with_capacity(rows.len());
        for row in rows {
            if Instant::now() >= until {
                break;
            }
            let answer = self.requests.update(&row.at, &Row::change(row.lease, Some(lease))).await;
            match answer.map_err(|error| error.into_store(TAKING))? {
                Conditional::Done(_) => taken.push(row),
                // The answer was lost.
                Conditional::Failed(Some(item)) if Lease::of(&item) == Some(lease) => taken.push(row),
                Conditional::Failed(_) => break,
            }
        }
        Ok(taken)
    }

    /// Gives the rows of an ordering key back where another run has one of them: it was asked for, or given back, after this run's look.
    async fn give_way(
        &self,
        consumer: &ConsumerName,
        keys: &mut Vec<Vec<Row>>,
        lease: Lease,
    ) -> Result<(), StoreError> {
        let (all, now) = (self.due_of(consumer).await?, now());
        let running = all.into_iter().filter(|row| !row.is_free(now) && row.lease.is_some_and(|of| of.by != lease.by));
        let running: BTreeSet<_> = running.map(|row| (row.scope, row.sequence)).collect();
        let runs = |row: &Row| row.sequence.is_some() && running.contains(&(row.scope, row.sequence.clone()));
        let (given, kept): (Vec<_>, Vec<_>) = std::mem::take(keys).into_iter().partition(|rows| rows.iter().any(runs));
        *keys = kept;
        for row in given.into_iter().flatten() {
            // As it was: a row whose holder died still runs alone.
            let back = self.requests.update(&row.at, &Row::change(Some(lease), row.lease)).await;
            back.map_err(|error| error.into_store(TAKING))?;
        }
        Ok(())
    }

    /// A row with its message, or why that cannot be read; `None` where its letter is gone.
    async fn read_due(
        &self,
        consumer: &ConsumerName,
        row: Row,
    ) -> Result<Option<(DeadLetterId, Result<Due, StoreError>)>, StoreError> {
        let unread = |error: DynamoError| error.into_store(TAKING);
        let Some(item) = self.requests.get(&At::dead_letter(consumer.as_str(), row.id)).await.map_err(unread)? else {
            self.requests.delete(&row.at).await.map_err(unread)?;
            return Ok(None);
        };
        let mut payload = Vec::new();
        for part in 0..usize::try_from(item.number("parts").unwrap_or_default()).unwrap_or_default() {
            let part = self.requests.get(&At::payload(row.id, part)).await.map_err(unread)?.unwrap_or_default();
            match part.needed(part.blob("b"), "b") {
                Ok(part) => payload.extend_from_slice(part),
                Err(damaged) => return Ok(Some((row.id, Err(damaged)))),
            }
        }
        Ok(Some((row.id, letter::due(&item, payload, row.lease.is_some()))))
    }

    pub(super) async fn renew(&self, run: RunId, ids: &[DeadLetterId]) -> Result<(), StoreError> {
        let until = number(now().saturating_add(span(DUE_LEASE)));
        let renewed = Change::new("SET #until = :until").name("#until", "until").value(":until", until);
        self.change_own(run, ids, &renewed).await.map_err(|error| error.into_store("renewing leases"))
    }

    pub(super) async fn give_back(&self, run: RunId, ids: &[DeadLetterId]) -> Result<(), StoreError> {
        let free = Change::new("REMOVE #until, #by").name("#until", "until");
        self.change_own(run, ids, &free).await.map_err(|error| error.into_store("giving rows back"))
    }

    /// Changes the rows that the run has.
    async fn change_own(&self, run: RunId, ids: &[DeadLetterId], change: &Change) -> Result<(), DynamoError> {
        let change = change.clone().on("#by = :run").name("#by", "by").value(":run", number(run.0));
        let change = &change;
        let one = |id| async move {
            if let Some((_, letter)) = self.letter(id).await?
                && let Some(at) = letter::due_at(&letter)
            {
                self.requests.update(&at, change).await?;
            }
            Ok(())
        };
        stream::iter(ids.to_vec()).map(Ok).try_for_each_concurrent(AT_ONCE, one).await
    }

    pub(super) async fn end(&self, run: RunId, ends: &[(DeadLetterId, DueEnd)]) -> Result<(), StoreError> {
        let one = |(id, end)| self.end_one(run, id, end);
        stream::iter(ends.to_vec()).map(Ok).try_for_each_concurrent(AT_ONCE, one).await
    }

    async fn end_one(&self, run: RunId, id: DeadLetterId, end: DueEnd) -> Result<(), StoreError> {
        let doing = "ending a replay";
        let failed = |error: DynamoError| error.into_store(doing);
        for _ in 0..ROUNDS {
            let Some((at, mut item)) = self.letter(id).await.map_err(failed)? else { return Ok(()) };
            // An ended replay stays as it ended: a worker that was thought dead may come late.
            let Some(due) = letter::due_at(&item) else { return Ok(()) };
            let row = self.requests.get(&due).await.map_err(failed)?.unwrap_or_default();
            let Some(by) = row.number("by") else { return Ok(()) };
            if matches!(end, DueEnd::Failed(_) | DueEnd::Again { .. }) && by != i64::from(run.0) {
                return Ok(());
            }
            let held = Change::default().on("#by = :by").name("#by", "by").value(":by", number(by));
            let delete = self.requests.delete_action_on(&due, &held).map_err(failed)?;
            letter::end(&mut item, &end.outcome(), now());
            if self.replace(&at, item, vec![delete]).await.map_err(failed)? {
                return Ok(());
            }
        }
        Err(StoreError::contended(doing, "other processes change the dead letter all the time"))
    }
}
