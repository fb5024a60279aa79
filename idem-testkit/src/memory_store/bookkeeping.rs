//! The tables beside the records: consumers, attempts, dead letters, controls and the audit trail.

mod cleanup;
mod dead_letters;
mod due;

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use idem_core::{
    ConsumerName, IdempotencyKey, Retention, StoreError, Tenant,
    dead_letter::{DeadLetter, DeadLetterId, Due, DueEnd, DueRoom, PutAside, StoredDeadLetter},
    hash::PayloadHash,
    standing::{Condition, Fact, Run, Tables, inbox_facts},
    store::{
        AuditEntry, Binding, Bookkeeping, Control, ControlState, HashRuleId, Interned, Registered, Registration, RunId,
        ScopeId, Usage,
    },
};

pub(super) use self::cleanup::MemoryCleaner;
pub use self::dead_letters::KeptDeadLetter;
use self::dead_letters::{DeadLetterRow, Folding, RowState};
use super::{
    Defect, MemoryError, MemoryStore, Operation,
    fault::{Met, store_error},
    state::{RecordKey, State, storable},
};

#[derive(Debug, Clone, Default)]
pub(super) struct Books {
    pub(super) scopes: BTreeMap<(ConsumerName, Tenant), ScopeId>,
    bindings: BTreeMap<ConsumerName, Binding>,
    /// The first names of the consumers that were renamed.
    first_names: BTreeMap<ConsumerName, ConsumerName>,
    rules: BTreeMap<String, HashRuleId>,
    runs: i32,
    /// Those that have reported their state.
    reports: BTreeMap<RunId, (ScopeId, Run)>,
    /// A count belongs to a key and a payload.
    attempts: BTreeMap<(ScopeId, IdempotencyKey, PayloadHash), Attempts>,
    dead_letters: Vec<DeadLetterRow>,
    dead_letters_ever: i64,
    controls: BTreeMap<ScopeId, (ControlState, String, String)>,
    epochs: BTreeMap<ScopeId, i64>,
    pub(super) audit: Vec<AuditEntry>,
    cleaned_at: Option<SystemTime>,
}

#[derive(Debug, Clone, Copy)]
struct Attempts {
    count: u32,
    last_at: SystemTime,
}

impl Books {
    pub(super) fn drop_dead_letters(&mut self, ids: &[DeadLetterId]) {
        let mut sequences = BTreeSet::new();
        let gone = |stored: &DeadLetterRow| ids.contains(&stored.seen.id);
        sequences.extend(self.dead_letters.iter().filter(|row| gone(row)).filter_map(DeadLetterRow::sequence));
        self.dead_letters.retain(|stored| !gone(stored));
        self.lead(&sequences);
    }

    pub(super) fn is_halted(&self) -> bool {
        self.controls.values().any(|(state, ..)| *state == ControlState::Halted)
    }

    pub(super) fn kept(&self) -> Vec<KeptDeadLetter> {
        let kept = |row: &DeadLetterRow| KeptDeadLetter {
            row: row.listed(),
            scope: row.scope,
            message: row.seen.payload_kept.then(|| row.message.clone()),
            replaying: row.state != RowState::Over,
        };
        self.dead_letters.iter().map(kept).collect()
    }

    fn scope(&mut self, consumer: &ConsumerName, tenant: &Tenant, in_order: bool) -> ScopeId {
        let own = (consumer.clone(), tenant.clone());
        if let Some(known) = self.scopes.get(&own) {
            return *known;
        }
        let mut numbers = Interned::Scope.numbers(&[consumer.as_str(), tenant.as_str()]).map(ScopeId);
        let free = numbers.find(|number| !self.scopes.values().any(|used| used == number));
        // Scope 0 stays free, so that a scope that was never interned is found out.
        let next = ScopeId(self.scopes.len() as i32 + 1);
        *self.scopes.entry(own).or_insert(free.filter(|_| !in_order).unwrap_or(next))
    }

    /// The scope without a tenant, by which the inbox of a consumer is known; binds the name to the queue or topic.
    pub(super) fn bind_source(
        &mut self,
        consumer: &ConsumerName,
        bound_to: Option<&str>,
    ) -> Result<ScopeId, StoreError> {
        self.check_first_name(consumer)?;
        let recorded = self.bindings.get(consumer).cloned();
        let hash_rules = recorded.as_ref().map(|recorded| recorded.hash_rules.clone()).into_iter().collect();
        let (tenant, retention) = (Tenant::default(), Retention::Forever);
        let registration = Registration::new(consumer.clone(), tenant.clone(), String::new(), hash_rules, retention)
            .bound_to(bound_to.map(str::to_owned));
        let binding = match recorded {
            Some(recorded) => recorded.meet(&registration)?,
            None => Binding::of(&registration),
        };
        self.bindings.insert(consumer.clone(), binding);
        Ok(self.scope(consumer, &tenant, false))
    }

    /// The queue or topic that a consumer is bound to.
    pub(super) fn bound_to(&self, consumer: &ConsumerName) -> &str {
        self.bindings.get(consumer).map_or("", |binding| &binding.bound_to)
    }

    fn rule(&mut self, rule: &str) -> HashRuleId {
        let mut numbers = Interned::HashRule.numbers(&[rule]).map(HashRuleId);
        let free = numbers.find(|number| !self.rules.iter().any(|(other, used)| other != rule && used == number));
        let next = HashRuleId(self.rules.len() as i32 + 1);
        *self.rules.entry(rule.to_owned()).or_insert(free.unwrap_or(next))
    }

    pub(super) fn take_numbers(&mut self, consumer: &ConsumerName, numbers: impl IntoIterator<Item = ScopeId>) {
        let named = |number: ScopeId| Some((Tenant::new(&number.0.to_string()).ok()?, number));
        let taken = numbers.into_iter().filter_map(named);
        self.scopes.extend(taken.map(|(tenant, number)| ((consumer.clone(), tenant), number)));
    }

    /// Gives a consumer another name, as the tool does it: the ids that it derives stay those of its first name.
    pub(super) fn rename(&mut self, from: &ConsumerName, to: &ConsumerName, defect: Option<Defect>) -> bool {
        if self.bindings.contains_key(to) || defect == Some(Defect::RenamesWithoutRecords) {
            return false;
        }
        let Some(binding) = self.bindings.remove(from) else { return false };
        self.bindings.insert(to.clone(), binding);
        let first_name = self.first_names.remove(from).unwrap_or_else(|| from.clone());
        if first_name != *to && defect != Some(Defect::RenamesDerivedIds) {
            self.first_names.insert(to.clone(), first_name);
        }
        let scopes = std::mem::take(&mut self.scopes).into_iter();
        let own = |name: ConsumerName| if name == *from { to.clone() } else { name };
        self.scopes = scopes.map(|((name, tenant), scope)| ((own(name), tenant), scope)).collect();
        self.dead_letters.iter_mut().filter(|row| row.consumer == *from).for_each(|row| row.consumer = to.clone());
        true
    }

    /// A consumer is bound by its next start.
    pub(super) fn rebind(&mut self, consumer: &ConsumerName) {
        if let Some(Binding { bound_to, handler, key_rules, hash_rules, .. }) = self.bindings.get_mut(consumer) {
            [bound_to, handler, key_rules, hash_rules].into_iter().for_each(String::clear);
        }
    }

    pub(super) fn name_of(&self, scope: ScopeId) -> Option<(ConsumerName, Tenant)> {
        self.scopes.iter().find(|(_, id)| **id == scope).map(|(name, _)| name.clone())
    }

    pub(super) fn scopes_of(&self, consumer: &ConsumerName) -> Vec<ScopeId> {
        self.scopes.iter().filter(|((name, _), _)| name == consumer).map(|(_, scope)| *scope).collect()
    }

    /// The name from which the ids of its events are derived.
    pub(super) fn first_name(&self, consumer: &ConsumerName) -> ConsumerName {
        self.first_names.get(consumer).unwrap_or(consumer).clone()
    }

    /// A new consumer under the first name of another one would give the same ids to its events (O37).
    fn check_first_name(&self, name: &ConsumerName) -> Result<(), StoreError> {
        let mut renamed = self.first_names.iter().filter(|(now, first)| *first == name && *now != name);
        match renamed.next().filter(|_| !self.bindings.contains_key(name)) {
            None => Ok(()),
            Some((now, _)) => Err(StoreError::Refused {
                problem: format!("{name} was the first name of consumer {now}"),
                cure: "Give this one another name".to_owned(),
            }),
        }
    }

    /// Ends the count of a payload's attempts, and of no other's.
    fn end_count(&mut self, scope: ScopeId, key: Option<&IdempotencyKey>, hash: PayloadHash) {
        if let Some(counted) = key.and_then(|key| self.attempts.get_mut(&(scope, key.clone(), hash))) {
            counted.count = 0;
        }
    }

    /// The record of a key was forgotten: its attempts begin anew, and no cache may answer for it.
    pub(super) fn forgotten(&mut self, scope: ScopeId, key: &IdempotencyKey) {
        self.attempts.retain(|(of, counted, _), _| (*of, counted) != (scope, key));
        *self.epochs.entry(scope).or_default() += 1;
    }

    /// As a store with a single writer does it, whose units forget the attempts of what they claim when they commit.
    pub(super) fn forget_attempts(&mut self, payloads: &[(RecordKey, PayloadHash)]) {
        for ((scope, key), hash) in payloads {
            self.attempts.remove(&(*scope, key.clone(), *hash));
        }
    }

    fn find(&mut self, id: DeadLetterId) -> Option<&mut DeadLetterRow> {
        self.dead_letters.iter_mut().find(|stored| stored.seen.id == id)
    }
}

impl MemoryStore {
    /// One short transaction outside of units of work.
    pub(super) async fn book<T: Send>(
        &self,
        doing: &'static str,
        work: impl FnOnce(&mut State) -> T + Send,
    ) -> Result<T, StoreError> {
        tokio::task::yield_now().await;
        let met = self.shared.meet(Operation::Bookkeeping).await.map_err(|error| store_error(doing, error))?;
        let done = work(&mut self.shared.state());
        self.shared.answer().await;
        match met {
            Met::Nothing => Ok(done),
            Met::AnswerLost => Err(store_error(doing, MemoryError::ConnectionLost)),
        }
    }
}

#[async_trait]
impl Bookkeeping for MemoryStore {
    async fn verify(&self) -> Result<(), StoreError> {
        let hidden = self.book("verifying the schema", |state| state.hides_records).await?;
        if hidden {
            let cure = "Call MemoryStore::hide_records(false)".to_owned();
            return Err(StoreError::Schema { problem: "the table of records is missing".to_owned(), cure });
        }
        Ok(())
    }

    async fn register(&self, registration: &Registration) -> Result<Registered, StoreError> {
        let (lenient, shares) = (self.shared.has(Defect::BindsNothing), self.shared.has(Defect::SharesHashRules));
        let in_order = self.shared.has(Defect::NumbersInOrder);
        let register = |state: &mut State| {
            let now = state.now();
            let books = &mut state.books;
            books.check_first_name(&registration.consumer)?;
            match books.bindings.entry(registration.consumer.clone()) {
                Entry::Occupied(mut binding) if !lenient => {
                    let met = binding.get().meet(registration)?;
                    binding.insert(met);
                }
                Entry::Occupied(_) => {}
                Entry::Vacant(free) => {
                    free.insert(Binding::of(registration));
                }
            }
            books.runs += 1;
            let scope = books.scope(&registration.consumer, &registration.tenant, in_order);
            let rules = &registration.hash_rules;
            let hash_rules = rules.iter().map(|rule| if shares { HashRuleId(1) } else { books.rule(rule) }).collect();
            let warnings = vec!["MemoryStore is for tests: a restart forgets every key".to_owned()];
            let derives_as = books.first_names.get(&registration.consumer).cloned();
            Ok(Registered::new(scope, hash_rules, RunId(books.runs), now).warnings(warnings).derives_as(derives_as))
        };
        self.book("registering the consumer", register).await?
    }

    async fn scope(&self, consumer: &ConsumerName, tenant: &Tenant) -> Result<ScopeId, StoreError> {
        let in_order = self.shared.has(Defect::NumbersInOrder);
        let scope = |state: &mut State| {
            let known = state.books.bindings.contains_key(consumer);
            known.then(|| state.books.scope(consumer, tenant, in_order)).ok_or_else(|| StoreError::Refused {
                problem: format!("consumer {consumer} is not registered, so it has no scope for a tenant"),
                cure: "Start a consumer of that name first".to_owned(),
            })
        };
        self.book("interning a tenant", scope).await?
    }

    async fn count_attempt(&self, scope: ScopeId, key: &IdempotencyKey, hash: PayloadHash) -> Result<u32, StoreError> {
        let by_key = self.shared.has(Defect::CountsAttemptsByKey);
        let count = |state: &mut State| {
            let now = state.now();
            if by_key {
                state.books.attempts.retain(|(of, counted, by), _| (*of, counted) != (scope, key) || *by == hash);
            }
            let new = Attempts { count: 0, last_at: now };
            let attempts = state.books.attempts.entry((scope, key.clone(), hash)).or_insert(new);
            attempts.last_at = now;
            attempts.count += 1;
            attempts.count
        };
        self.book("counting an attempt", count).await
    }

    async fn uncount_attempt(&self, scope: ScopeId, key: &IdempotencyKey, hash: PayloadHash) -> Result<(), StoreError> {
        let keeps = self.shared.has(Defect::UncountsNothing);
        let uncount = |state: &mut State| {
            if let Some(attempts) = state.books.attempts.get_mut(&(scope, key.clone(), hash)).filter(|_| !keeps) {
                attempts.count = attempts.count.saturating_sub(1);
            }
        };
        self.book("taking an attempt back", uncount).await
    }

    async fn end_attempts(&self, scope: ScopeId, key: &IdempotencyKey, hash: PayloadHash) -> Result<(), StoreError> {
        self.book("ending a count of attempts", |state| state.books.end_count(scope, Some(key), hash)).await
    }

    async fn store_dead_letter(&self, dead_letter: &DeadLetter) -> Result<StoredDeadLetter, StoreError> {
        let folding = if self.shared.has(Defect::ParksEveryCopy) {
            Folding::Never
        } else if self.shared.has(Defect::StoresByOrigin) {
            Folding::ByOrigin
        } else {
            Folding::ByIdentity
        };
        let counts_on = self.shared.has(Defect::CountsOnWhenSetAside);
        let store = |state: &mut State| {
            let now = state.now();
            if let Some(row) = state.books.not_over(dead_letter).filter(|row| row.waits) {
                return row.listed();
            }
            if !counts_on {
                state.books.end_count(dead_letter.scope, dead_letter.key.as_ref(), dead_letter.payload_hash().0);
            }
            state.books.store_dead_letter(dead_letter, now, folding)
        };
        self.book("storing a dead letter", store).await
    }

    async fn put_aside(&self, letter: &DeadLetter, after: Duration) -> Result<PutAside, StoreError> {
        let (twice, alone) = (self.shared.has(Defect::PutsAsideTwice), self.shared.has(Defect::ParksBesideItsKey));
        let store = |state: &mut State| {
            let now = state.now();
            state.books.put_aside(letter, now, after, (twice, alone))
        };
        self.book("keeping a message for a later try", store).await
    }

    async fn dead_letter_bytes(&self, consumer: &ConsumerName, enough: u64) -> Result<u64, StoreError> {
        let counts_all = self.shared.has(Defect::MeasuresEverybodysDeadLetters);
        let sum = |state: &mut State| {
            let all: u64 = state.books.dead_letters.iter().map(DeadLetterRow::bytes).sum();
            let own = |stored: &&DeadLetterRow| stored.consumer == *consumer && !stored.is_handled();
            let own = state.books.dead_letters.iter().filter(own).map(DeadLetterRow::bytes).sum();
            if all <= enough || counts_all { all } else { own }
        };
        self.book("measuring dead letters", sum).await
    }

    async fn usage(&self, consumer: &ConsumerName) -> Result<Usage, StoreError> {
        let look = |state: &mut State| {
            let mut by_scope = BTreeMap::<ScopeId, u64>::new();
            state.records.keys().for_each(|(scope, _)| *by_scope.entry(*scope).or_default() += 1);
            let own = state.books.scopes.iter().filter(|((name, _), _)| name == consumer).map(|(_, scope)| scope);
            let largest = own.filter_map(|scope| by_scope.get(scope)).max();
            Usage::default()
                .records(u64::try_from(state.records.len()).ok())
                .dead_letters(u64::try_from(state.books.dead_letters.len()).ok())
                .dead_letter_bytes(Some(state.books.dead_letters.iter().map(DeadLetterRow::bytes).sum()))
                .records_of_largest_tenant(largest.copied())
        };
        self.book("looking at the tables' sizes", look).await
    }

    async fn mark_published(&self, id: DeadLetterId) -> Result<(), StoreError> {
        let mark = |state: &mut State| {
            let now = state.now();
            if let Some(stored) = state.books.find(id) {
                stored.seen.published_at = Some(now);
            }
        };
        self.book("marking a dead letter", mark).await
    }

    async fn dead_letters(&self, consumer: &ConsumerName, max: u32) -> Result<Vec<StoredDeadLetter>, StoreError> {
        let list = |state: &mut State| {
            let of_consumer = state.books.dead_letters.iter().rev().filter(|stored| stored.consumer == *consumer);
            of_consumer.take(max as usize).map(DeadLetterRow::listed).collect()
        };
        self.book("reading dead letters", list).await
    }

    async fn due_now(&self, ids: &[DeadLetterId], _by: &str) -> Result<u64, StoreError> {
        let request = |state: &mut State| {
            let now = state.now();
            state.books.due_now(ids, now)
        };
        self.book("requesting a replay", request).await
    }

    async fn take_due(&self, consumer: &ConsumerName, run: RunId, room: DueRoom) -> Result<Vec<Due>, StoreError> {
        let early = self.shared.has(Defect::RunsRowsEarly);
        let defects = (self.shared.has(Defect::ReplaysTwice), self.shared.has(Defect::TakesFollowersAlone), early);
        let take = |state: &mut State| {
            let now = state.now();
            state.books.take_due(consumer, (run, room), now, defects)
        };
        self.book("taking rows that are due", take).await
    }

    async fn renew_due(&self, run: RunId, ids: &[DeadLetterId]) -> Result<(), StoreError> {
        let keeps = self.shared.has(Defect::RenewsNoRows);
        let renew = |state: &mut State| {
            let now = state.now();
            if !keeps {
                state.books.renew_due(run, ids, now);
            }
        };
        self.book("renewing leases", renew).await
    }

    async fn release_due(&self, run: RunId, ids: &[DeadLetterId]) -> Result<(), StoreError> {
        self.book("giving rows back", |state| state.books.release_due(run, ids)).await
    }

    async fn end_due(&self, run: RunId, ends: &[(DeadLetterId, DueEnd)]) -> Result<(), StoreError> {
        let defects = (self.shared.has(Defect::LetsNoNextGo), self.shared.has(Defect::KeepsFollowersTaken));
        let end = |state: &mut State| {
            let now = state.now();
            state.books.end_due(run, ends, now, defects);
        };
        self.book("ending replays", end).await
    }

    async fn control(&self, scope: ScopeId) -> Result<Control, StoreError> {
        let read = |state: &mut State| {
            let running = (ControlState::Running, String::new(), String::new());
            let (control, by, reason) = state.books.controls.get(&scope).cloned().unwrap_or(running);
            let epoch = state.books.epochs.get(&scope).copied().unwrap_or_default();
            Control::new(control, by, reason, epoch, state.identity(), state.now())
        };
        self.book("reading the controls", read).await
    }

    async fn report(&self, scope: ScopeId, run: RunId, facts: &[Fact], has_ended: bool) -> Result<Control, StoreError> {
        let report = |state: &mut State| {
            let now = state.now();
            let begun = || (scope, Run::new(run, "memory:0".to_owned(), now));
            let (_, known) = state.books.reports.entry(run).or_insert_with(begun);
            *known = known.clone().report(now, has_ended.then_some(now), facts.to_vec());
        };
        let control = self.control(scope).await?;
        report(&mut self.shared.state());
        Ok(control)
    }

    async fn standing(&self, consumer: &ConsumerName) -> Result<Option<Tables>, StoreError> {
        let state = self.shared.state();
        let (now, books) = (state.now(), &state.books);
        let scopes: BTreeSet<ScopeId> =
            books.scopes.iter().filter(|((name, _), _)| name == consumer).map(|(_, scope)| *scope).collect();
        let control = books.controls.iter().filter(|(scope, _)| scopes.contains(scope)).find_map(|(_, control)| {
            let (state, by, reason) = control;
            let condition = match state {
                ControlState::Running => return None,
                ControlState::Paused => Condition::Paused,
                ControlState::Halted => Condition::Halted,
            };
            Some(Fact::of(condition).detail(format!("{by}: {reason}")))
        });
        let is_open = |row: &&DeadLetterRow| {
            scopes.contains(&row.scope) && row.seen.replayed.as_ref().is_none_or(|end| end.starts_with("failed"))
        };
        let open = books.dead_letters.iter().filter(is_open).count();
        let letters = (open > 0).then(|| Fact::of(Condition::DeadLetters).count(open));
        let inbox = books.scopes.get(&(consumer.clone(), Tenant::default())).map(|inbox| {
            let backlog = state.inboxes.backlog(*inbox, &[], 1, now);
            inbox_facts(backlog.free_slots.into(), backlog.oldest.and_then(|age| now.checked_sub(age)))
        });
        let facts = control.into_iter().chain(letters).chain(inbox.into_iter().flatten()).collect();
        let runs = books.reports.values().rev().filter(|(scope, _)| scopes.contains(scope));
        Ok(Some(Tables::new(now, facts, runs.map(|(_, run)| run.clone()).collect())))
    }

    async fn set_control(&self, scope: ScopeId, state: ControlState, by: &str, reason: &str) -> Result<(), StoreError> {
        let control = match state {
            ControlState::Running => (state, String::new(), String::new()),
            ControlState::Paused | ControlState::Halted => (state, storable(by), storable(reason)),
        };
        self.book("setting the controls", |state| state.books.controls.insert(scope, control)).await.map(|_| ())
    }

    async fn audit(&self, entry: &AuditEntry) -> Result<(), StoreError> {
        let mut entry = entry.clone();
        (entry.who, entry.details) = (storable(&entry.who), storable(&entry.details));
        self.book("writing the audit trail", |state| state.books.audit.push(entry)).await
    }
}
