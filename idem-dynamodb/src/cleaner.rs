//! The cleaner: scans the table for what has expired, where that is switched on. Otherwise DynamoDB removes it.

use std::{collections::HashMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use aws_sdk_dynamodb::types::AttributeValue;
use idem_core::{
    StoreError,
    cleanup::{Backlog, Cleaner, CleanupReport, CleanupSettings, Expiring, LastCleanup, Removal, Removed},
    store::{AuditEntry, Bookkeeping as _, ScopeId},
};
use tokio::time::Instant;

use crate::{
    bookkeeping::DynamoBookkeeping,
    client::{Change, Conditional, Requests, token},
    clock::{Micros, now, span, time},
    error::DynamoError,
    item::{At, Item, Read, number, text},
};

const CLEANING: &str = "cleaning up";

/// Longer than a step takes.
const LEASE: Duration = Duration::from_secs(60);

/// The cleaner of one table.
pub(crate) struct DynamoCleaner {
    requests: Arc<Requests>,
    bookkeeping: DynamoBookkeeping,
}

impl DynamoCleaner {
    pub(crate) fn new(requests: Arc<Requests>, bookkeeping: DynamoBookkeeping) -> Self {
        Self { requests, bookkeeping }
    }

    /// Items of a kind that were over `kept` ago, up to `max` of them.
    async fn expired(&self, kind: Expiring, kept: Duration, max: usize) -> Result<Vec<Item>, DynamoError> {
        let Some(filter) = Filter::of(kind) else { return Ok(Vec::new()) };
        let before = now().saturating_sub(span(kept));
        let (mut found, mut from) = (Vec::new(), None);
        loop {
            let page = || {
                let mut scan = self.requests.client.scan().table_name(&self.requests.table).consistent_read(true);
                scan = scan.filter_expression(filter.expression).set_exclusive_start_key(from.clone());
                for (placeholder, name) in filter.names {
                    scan = scan.expression_attribute_names(*placeholder, *name);
                }
                for (placeholder, value) in filter.values(before) {
                    scan = scan.expression_attribute_values(placeholder, value);
                }
                scan.send()
            };
            let page = self.requests.again("Scan", page).await?;
            found.extend(page.items.unwrap_or_default());
            from = page.last_evaluated_key;
            if found.len() >= max || from.is_none() {
                found.truncate(max);
                return Ok(found);
            }
        }
    }

    /// Removes an item that was found, unless it was changed since. Answers whether it is gone.
    async fn remove_one(&self, kind: Expiring, item: &Item, before: Micros) -> Result<bool, DynamoError> {
        let at = At::new(item.string("pk").unwrap_or_default(), item.string("sk").unwrap_or_default());
        match kind {
            Expiring::Answers => {
                let over = Change::new("SET res.gone = :gone REMOVE res.b, res.hd, res.t")
                    .on("res.u <= :before AND attribute_not_exists(res.gone)")
                    .value(":gone", text("expired"))
                    .value(":before", number(before));
                let changed = self.requests.update(&at, &over).await?;
                Ok(matches!(changed, Conditional::Done(_)))
            }
            Expiring::DeadLetters => self.remove_letter(&at, item).await,
            Expiring::Records
            | Expiring::Units
            | Expiring::Attempts
            | Expiring::Audit
            | Expiring::Runs
            | Expiring::Forgotten => {
                let Some(filter) = Filter::of(kind) else { return Ok(false) };
                let delete = || {
                    let mut delete = self.requests.client.delete_item().table_name(&self.requests.table);
                    delete = delete.set_key(Some(at.attributes())).condition_expression(filter.expression);
                    for (placeholder, name) in filter.names {
                        delete = delete.expression_attribute_names(*placeholder, *name);
                    }
                    for (placeholder, value) in filter.values(before) {
                        delete = delete.expression_attribute_values(placeholder, value);
                    }
                    delete.send()
                };
                match self.requests.again("DeleteItem", delete).await {
                    Ok(_) => Ok(true),
                    Err(error) if error.is("ConditionalCheckFailedException") => Ok(false),
                    Err(error) => Err(error),
                }
            }
        }
    }

    /// A letter goes with its identity, its number and its payload.
    async fn remove_letter(&self, at: &At, item: &Item) -> Result<bool, DynamoError> {
        let id = idem_core::dead_letter::DeadLetterId(item.number("id").unwrap_or_default());
        let scope = ScopeId(item.number("scope").and_then(|scope| i32::try_from(scope).ok()).unwrap_or_default());
        let unchanged = Change::default().on("rev = :rev");
        let unchanged = unchanged.value(":rev", number(item.number("rev").unwrap_or_default()));
        let mut actions = vec![
            self.requests.delete_action_on(at, &unchanged)?,
            self.requests.delete_action(&At::identity(scope, item.blob("identity").unwrap_or_default()))?,
            self.requests.delete_action(&At::dead_number(id))?,
        ];
        for part in 0..usize::try_from(item.number("parts").unwrap_or_default()).unwrap_or_default() {
            actions.push(self.requests.delete_action(&At::payload(id, part))?);
        }
        self.requests.transact(&actions).await
    }

    /// Whether this cleaner removes now, until it says that it has done so.
    async fn begin(&self, own: &str) -> Result<bool, DynamoError> {
        let now = now();
        let lease = Change::new("SET tok = :own, #until = :until")
            .on("attribute_not_exists(pk) OR attribute_not_exists(#until) OR #until <= :now OR tok = :own")
            .name("#until", "until")
            .value(":own", text(own))
            .value(":until", number(now.saturating_add(span(LEASE))))
            .value(":now", number(now));
        Ok(matches!(self.requests.update(&At::cleaner("lease"), &lease).await?, Conditional::Done(_)))
    }

    async fn end(&self, own: &str) -> Result<(), DynamoError> {
        let end = Change::new("REMOVE #until").on("tok = :own").name("#until", "until").value(":own", text(own));
        self.requests.update(&At::cleaner("lease"), &end).await.map(drop)
    }

    async fn step(&self, removal: &Removal) -> Result<u64, DynamoError> {
        let until = Instant::now() + removal.timeout;
        // These have an expiry of their own.
        let own = matches!(removal.kind, Expiring::Records | Expiring::Answers);
        let kept = if own { Duration::ZERO } else { removal.kept };
        let before = now().saturating_sub(span(kept));
        let mut removed = 0;
        for item in self.expired(removal.kind, kept, removal.rows_max as usize).await? {
            if Instant::now() >= until {
                break;
            }
            removed += u64::from(self.remove_one(removal.kind, &item, before).await?);
        }
        Ok(removed)
    }
}

/// Which items of the table are over.
struct Filter {
    expression: &'static str,
    names: &'static [(&'static str, &'static str)],
    /// The partitions of its kind.
    prefix: Option<&'static str>,
    state: Option<&'static str>,
}

impl Filter {
    /// `None` for what a table of DynamoDB does not have, or what it removes by itself.
    fn of(kind: Expiring) -> Option<Self> {
        let of = |expression, names, prefix, state| Some(Self { expression, names, prefix, state });
        match kind {
            Expiring::Records => of("st = :state AND x <= :before", &[], None, Some("C")),
            Expiring::Answers => {
                of("st = :state AND res.u <= :before AND attribute_not_exists(res.gone)", &[], None, Some("C"))
            }
            Expiring::Attempts => of("begins_with(sk, :prefix) AND last_at <= :before", &[], Some("try#"), None),
            Expiring::DeadLetters => of(
                "begins_with(pk, :prefix) AND replay = :state AND last_at <= :before",
                &[],
                Some("dead#"),
                Some("idle"),
            ),
            Expiring::Audit => {
                of("begins_with(pk, :prefix) AND #at <= :before", &[("#at", "at")], Some("audit#"), None)
            }
            Expiring::Runs => of("begins_with(pk, :prefix) AND #at <= :before", &[("#at", "at")], Some("runs#"), None),
            Expiring::Units | Expiring::Forgotten => None,
        }
    }

    fn values(&self, before: Micros) -> HashMap<String, AttributeValue> {
        let mut values = HashMap::from([(":before".to_owned(), number(before))]);
        values.extend(self.prefix.map(|prefix| (":prefix".to_owned(), text(prefix))));
        values.extend(self.state.map(|state| (":state".to_owned(), text(state))));
        values
    }
}

#[async_trait]
impl Cleaner for DynamoCleaner {
    async fn remove(&mut self, removal: &Removal) -> Result<Removed, StoreError> {
        if !self.requests.limits.scans {
            return Ok(Removed::Rows(0));
        }
        let own = token();
        let failed = |error: DynamoError| error.into_store(CLEANING);
        if !self.begin(&own).await.map_err(failed)? {
            return Ok(Removed::Elsewhere);
        }
        let removed = self.step(removal).await;
        self.end(&own).await.map_err(failed)?;
        removed.map(Removed::Rows).map_err(failed)
    }

    async fn preview(&mut self, settings: &CleanupSettings) -> Result<Vec<(Expiring, u64)>, StoreError> {
        if !self.requests.limits.scans {
            return Ok(Vec::new());
        }
        let mut counts = Vec::new();
        for kind in Expiring::ALL.into_iter().filter(|kind| Filter::of(*kind).is_some()) {
            let kept = settings.kept(kind).unwrap_or_default();
            let expired = self.expired(kind, kept, usize::MAX).await.map_err(|error| error.into_store(CLEANING))?;
            counts.push((kind, expired.len() as u64));
        }
        Ok(counts)
    }

    async fn backlog(&mut self) -> Result<Backlog, StoreError> {
        if !self.requests.limits.scans {
            return Ok(Backlog { lag: Duration::ZERO });
        }
        let expired = self.expired(Expiring::Records, Duration::ZERO, usize::MAX).await;
        let expired = expired.map_err(|error| error.into_store(CLEANING))?;
        let oldest = expired.iter().filter_map(|item| item.number("x")).min();
        let lag = oldest.map_or(0, |oldest| now().saturating_sub(oldest));
        Ok(Backlog { lag: Duration::from_micros(u64::try_from(lag).unwrap_or_default()) })
    }

    async fn last(&mut self) -> Result<Option<LastCleanup>, StoreError> {
        let item = self.requests.get(&At::cleaner("last")).await.map_err(|error| error.into_store(CLEANING))?;
        let last = |item: Item| {
            let ago = time(now()).duration_since(time(item.number("at")?)).unwrap_or_default();
            Some(LastCleanup { who: item.string("who")?.to_owned(), ago })
        };
        Ok(item.and_then(last))
    }

    async fn note(&mut self, report: &CleanupReport) -> Result<(), StoreError> {
        let who = format!("process {}", std::process::id());
        if !report.part {
            let item = Item::from([("who".to_owned(), text(&who)), ("at".to_owned(), number(now()))]);
            let put = self.requests.put(&At::cleaner("last"), item, None).await;
            put.map_err(|error| error.into_store(CLEANING))?;
        }
        let line = AuditEntry::new(who, report.action(), ScopeId(0), report.to_string());
        self.bookkeeping.audit(&line).await
    }
}
