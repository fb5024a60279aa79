//! One of the two: takes steps, and reports their results in words that both have in common.

use std::{
    fmt::Write as _,
    sync::Arc,
    time::{Duration, SystemTime},
};

use idem_core::{
    Bytes, ConsumerName, DeadLetter, DeadLetterId, ErrorClass, IdempotencyKey, Message, OrderingKey, Origin,
    PayloadHash, Recorded, Retention, Store, StoreError, StoredDeadLetter, Tenant, Tx,
    dead_letter::{FailureKind, Fingerprint},
    store::{
        AuditEntry, Bookkeeping, Claim, ClaimError, Claimed, CommitError, HashRuleId, Registration, Removal, Removed,
        Replay, ReplayEnd, RunId, ScopeId, UnitOfWork, UnitOptions,
    },
};

use super::{
    super::{
        gate::within,
        subject::{Arrangement, Effect, StoreUnderTest},
    },
    steps::{End, Letter, Payload, Step, Unit, UnitEnd, Wish},
};

const MINUTE: Duration = Duration::from_secs(60);

/// How long rows are kept that have no expiry of their own: no sum of what goes by lies near it.
const KEPT: Duration = Duration::from_secs(1450 * 60);

pub(super) struct Side<'s, T: StoreUnderTest> {
    subject: &'s T,
    store: Arc<T::Store>,
    consumer: ConsumerName,
    /// The ids answered so far, in the order in which they first came.
    scopes: Vec<ScopeId>,
    rules: Vec<HashRuleId>,
    runs: Vec<RunId>,
    letters: Vec<DeadLetterId>,
    /// Lines of the audit trail that were there before.
    audited: usize,
    now: SystemTime,
}

/// The number of an id, in the order in which they came.
fn number<I: PartialEq>(known: &mut Vec<I>, id: I) -> usize {
    known.iter().position(|other| *other == id).unwrap_or_else(|| {
        known.push(id);
        known.len() - 1
    })
}

/// The id that a step refers to, if there is one of its kind yet.
fn nth<I: Copy>(known: &[I], number: usize) -> Option<I> {
    known.get(number % known.len().max(1)).copied()
}

fn key(number: usize) -> IdempotencyKey {
    IdempotencyKey::new(["order-1", "order-2", "Order-1"][number % 3]).unwrap()
}

/// The hash by a rule that looks at the first letter.
fn hash(payload: Option<&str>) -> PayloadHash {
    payload.map_or(PayloadHash::NONE, |text| PayloadHash::of(text.get(..1).unwrap_or_default().as_bytes()))
}

fn tenant(number: usize) -> Tenant {
    Tenant::new(["", "north", "south"][number % 3]).unwrap_or_default()
}

/// An error, without what only one of the two can say.
fn told(error: &StoreError) -> String {
    if let StoreError::Bound { what, recorded, found, .. } = error {
        format!("bound to {what} {recorded:?}, not {found:?}")
    } else if matches!(error, StoreError::Refused { .. }) {
        "refused".to_owned()
    } else {
        format!("failed: {error:?}")
    }
}

impl<'s, T: StoreUnderTest> Side<'s, T> {
    pub(super) async fn new(subject: &'s T, consumer: &str) -> Self {
        Self {
            subject,
            store: subject.store(),
            consumer: ConsumerName::new(consumer).unwrap(),
            scopes: Vec::new(),
            rules: Vec::new(),
            runs: Vec::new(),
            letters: Vec::new(),
            audited: subject.audited().await.len(),
            now: SystemTime::UNIX_EPOCH,
        }
    }

    /// Takes a step. Answers the store's answer, and the visible state of the consumer afterwards.
    pub(super) async fn take(&mut self, step: &Step) -> String {
        let answer = within("a step of a sequence", self.act(step)).await;
        let answer = answer.unwrap_or_else(|error| told(&error));
        if !step.can_be_seen() {
            return answer;
        }
        format!("{answer}\n{}", within("looking at the consumer", self.look()).await)
    }

    /// Everything that is left at the end: dead letters and controls, records, effects, the audit trail, and counts of
    /// attempts, which this raises.
    pub(super) async fn left(&mut self) -> String {
        let seen = self.look().await;
        let claims = self.scopes.clone().into_iter().flat_map(|scope| {
            (0..3).map(move |number| Claim::new(scope, key(number), hash(None), HashRuleId(1), Retention::Forever))
        });
        let claims: Vec<_> = sorted(claims.collect());
        let mut session = self.store.open().await.unwrap();
        let mut unit = self.store.begin(&mut session, options(RunId(1), MINUTE)).await.unwrap();
        let records = unit.read(&claims).await.unwrap();
        unit.rollback().await.unwrap();
        let mut lines = vec![seen];
        lines.extend(records.into_iter().flatten().map(|record| self.record(&record)));
        let mut effects = self.subject.effects().await;
        effects.retain(|effect| effect.note == self.consumer.as_str());
        effects.sort();
        lines.extend(effects.iter().map(|effect| format!("{effect:?}")));
        lines.extend(self.subject.audited().await.iter().skip(self.audited).map(|line| format!("{line:?}")));
        for (scope, of) in self.scopes.iter().flat_map(|scope| (0..3).map(move |of| (*scope, key(of)))) {
            for text in ["", "a", "b"] {
                let count = self.books().count_attempt(scope, &of, hash(Some(text))).await.unwrap();
                lines.push(format!("the next attempt at {of:?} with {text:?} is {count}"));
            }
        }
        lines.join("\n")
    }

    fn books(&self) -> &<T::Store as Store>::Bookkeeping {
        self.store.bookkeeping()
    }

    async fn act(&mut self, step: &Step) -> Result<String, StoreError> {
        match step {
            Step::Register { .. } => return self.register(step).await,
            Step::Scope { tenant: number_of, registered } => {
                let nobody = ConsumerName::new("nobody-registered-this").unwrap();
                let consumer = if *registered { &self.consumer } else { &nobody };
                let scope = self.books().scope(consumer, &tenant(*number_of)).await?;
                return Ok(format!("scope {}", number(&mut self.scopes, scope)));
            }
            Step::Age(by) => self.subject.arrange(Arrangement::Age(*by)).await.unwrap(),
            _ if self.scopes.is_empty() => {}
            Step::Unit(unit) => return self.unit(unit).await,
            Step::Meet(first, second) => return self.meet(first, second).await,
            Step::Count(of) => {
                let (scope, key, hash) = self.payload(of);
                return Ok(format!("attempt {}", self.books().count_attempt(scope, &key, hash).await?));
            }
            Step::Uncount(of) => {
                let (scope, key, hash) = self.payload(of);
                self.books().uncount_attempt(scope, &key, hash).await?;
            }
            Step::EndAttempts(of) => {
                let (scope, key, hash) = self.payload(of);
                self.books().end_attempts(scope, &key, hash).await?;
            }
            Step::Store(letter) => {
                let stored = self.books().store_dead_letter(&self.letter(letter)).await?;
                return Ok(self.stored(&stored));
            }
            Step::Audit { key: of, details } => {
                let scope = self.scopes[0];
                let mut entry = AuditEntry::new("a\0person".to_owned(), "twin", scope, (*details).to_owned());
                entry.key = of.map(key);
                self.books().audit(&entry).await?;
            }
            Step::SetControl(Wish { scope, state, by, reason }) => {
                let Some(scope) = nth(&self.scopes, *scope) else { return Ok(String::new()) };
                self.books().set_control(scope, *state, by, reason).await?;
            }
            Step::Clean(kind) => {
                let removal = Removal { kind: *kind, kept: KEPT, rows_max: 10_000, timeout: MINUTE };
                let removed = self.store.cleaner().remove(&removal).await?;
                // How many are gone is no answer: other sequences have left theirs.
                assert!(matches!(removed, Removed::Rows(_)), "{removed:?}");
            }
            Step::MarkPublished(_) | Step::RequestReplay(_) | Step::TakeReplays(_) | Step::FinishReplay(..) => {
                return self.replay(step).await;
            }
        }
        Ok(String::new())
    }

    async fn register(&mut self, step: &Step) -> Result<String, StoreError> {
        let Step::Register { tenant: of, bound_to, handler, key_rule, hash_rules } = step else { unreachable!() };
        let owned = |text: &&str| (*text).to_owned();
        let hash_rules = hash_rules.iter().map(owned).collect();
        let (consumer, retention) = (self.consumer.clone(), Retention::For(MINUTE));
        let registration = Registration::new(consumer, tenant(*of), owned(key_rule), hash_rules, retention)
            .bound_to(bound_to.as_ref().map(owned))
            .handler(handler.as_ref().map(owned));
        let registered = self.books().register(&registration).await?;
        let scope = number(&mut self.scopes, registered.scope);
        let rules: Vec<_> = registered.hash_rules.iter().map(|rule| number(&mut self.rules, *rule)).collect();
        Ok(format!("scope {scope}, rules {rules:?}, run {}", number(&mut self.runs, registered.run)))
    }

    async fn replay(&mut self, step: &Step) -> Result<String, StoreError> {
        // One that never was is as good as one that is gone.
        let id = |of: &usize| nth(&self.letters, *of).unwrap_or(DeadLetterId(i64::MAX));
        match step {
            Step::MarkPublished(of) => self.books().mark_published(id(of)).await?,
            Step::RequestReplay(of) => {
                let mut ids: Vec<_> = of.iter().map(id).collect();
                ids.dedup();
                return Ok(format!("{} asked for", self.books().request_replay(&ids).await?));
            }
            Step::TakeReplays(max) => {
                let run = self.runs.last().copied().unwrap_or(RunId(1));
                let taken = self.books().take_replays(&self.consumer, run, *max).await?;
                return Ok(taken.iter().map(|replay| self.taken(replay)).collect::<Vec<_>>().join("\n"));
            }
            Step::FinishReplay(of, end) => {
                let end = match end {
                    End::Processed => ReplayEnd::Processed,
                    End::Duplicate => ReplayEnd::Duplicate,
                    End::Failed(error) => {
                        ReplayEnd::Failed { reason: idem_core::Reason::Permanent, error: (*error).to_owned() }
                    }
                    End::Released => ReplayEnd::Released,
                };
                self.books().finish_replay(id(of), end).await?;
            }
            Step::Register { .. }
            | Step::Scope { .. }
            | Step::Unit(_)
            | Step::Meet(..)
            | Step::Count(_)
            | Step::Uncount(_)
            | Step::EndAttempts(_)
            | Step::Store(_)
            | Step::SetControl(_)
            | Step::Audit { .. }
            | Step::Age(_)
            | Step::Clean(_) => {}
        }
        Ok(String::new())
    }

    async fn unit(&mut self, unit: &Unit) -> Result<String, StoreError> {
        let (store, mut session) = (Arc::clone(&self.store), self.store.open().await?);
        let mut open = store.begin(&mut session, options(self.run(), MINUTE)).await?;
        let said = self.claim(&mut open, unit).await?;
        self.end(open, unit.ends).await?;
        Ok(said.unwrap_or_else(|| "held, by nobody".to_owned()))
    }

    async fn meet(&mut self, first: &Unit, second: &Unit) -> Result<String, StoreError> {
        let store = Arc::clone(&self.store);
        let (mut one, mut other) = (self.store.open().await?, self.store.open().await?);
        let mut open = store.begin(&mut one, options(self.run(), MINUTE)).await?;
        let said = self.claim(&mut open, first).await?;
        // Long beside what a claim takes on a machine with much else to do, where a shorter one ends it as if it had been held.
        let patience = Duration::from_millis(300);
        let mut meets = store.begin(&mut other, options(self.run(), patience)).await?;
        let met = self.claim(&mut meets, second).await?;
        self.end(open, first.ends).await?;
        let ends = if met.is_some() { second.ends } else { UnitEnd::Dropped };
        self.end(meets, ends).await?;
        Ok(format!("{said:?}, and meanwhile {met:?}"))
    }

    /// Claims and writes. `None` where another unit was in the way for too long.
    async fn claim(&mut self, open: &mut impl UnitOfWork<T::Store>, unit: &Unit) -> Result<Option<String>, StoreError> {
        let claim = |(of, retention): &(Payload, Retention)| {
            let (scope, key, hash) = self.payload(of);
            Claim::new(scope, key, hash, nth(&self.rules, of.rule).unwrap_or(HashRuleId(1)), *retention)
        };
        let claims = sorted(unit.claims.iter().map(claim).collect());
        let answers = match open.claim(&claims).await {
            Ok(answers) => answers,
            Err(ClaimError::Held) => return Ok(None),
            Err(ClaimError::Store(error)) => return Err(error),
            Err(other) => panic!("no claim: {other:?}"),
        };
        let (mut said, mut tx) = (String::new(), open.tx());
        let effect = |key: &str| Effect {
            key: key.to_owned(),
            payload: b"effect".to_vec(),
            note: self.consumer.as_str().to_owned(),
        };
        let won = claims.iter().zip(&answers).filter(|(_, answer)| **answer == Claimed::Inserted);
        let keys: Vec<_> = won.map(|(claim, _)| claim.key.as_str()).chain(unit.writes.then_some("no key")).collect();
        for key in keys {
            write::<T>(&mut tx, &effect(key)).await;
        }
        drop(tx);
        let lost: Vec<_> = claims.iter().zip(&answers).filter(|(_, answer)| **answer != Claimed::Inserted).collect();
        let lost: Vec<_> = lost.into_iter().map(|(claim, _)| claim.clone()).collect();
        let records = if lost.is_empty() { Vec::new() } else { open.read(&lost).await? };
        for record in records {
            let _ = write!(said, "{}; ", record.map_or("nobody".to_owned(), |record| self.record(&record)));
        }
        Ok(Some(format!("won {} of {}; {said}", claims.len() - lost.len(), claims.len())))
    }

    async fn end<'u>(&self, open: <T::Store as Store>::Unit<'u>, ends: UnitEnd) -> Result<(), StoreError> {
        match ends {
            UnitEnd::Commit => match open.commit().await {
                Ok(()) => Ok(()),
                Err(CommitError::RolledBack(error)) => Err(error),
                Err(other) => panic!("no commit: {other:?}"),
            },
            UnitEnd::Rollback => open.rollback().await,
            UnitEnd::Dropped => {
                drop(open);
                Ok(())
            }
        }
    }

    fn run(&self) -> RunId {
        self.runs.last().copied().unwrap_or(RunId(1))
    }

    fn payload(&self, of: &Payload) -> (ScopeId, IdempotencyKey, PayloadHash) {
        (nth(&self.scopes, of.scope).unwrap_or(ScopeId(1)), key(of.key), hash(Some(of.text)))
    }

    fn letter(&self, of: &Letter) -> DeadLetter {
        let mut message = of.payload.map_or_else(Message::tombstone, Message::new).with_origin(Origin::new(of.origin));
        if let Some(value) = of.header {
            message = message.with_header("trace", value);
        }
        if let Some(id) = of.id {
            message = message.with_id(id);
        }
        if let Some(message_type) = of.message_type {
            message = message.with_type(message_type);
        }
        if let Some(key) = of.record_key {
            message = message.with_record_key(key);
        }
        if let Some(key) = of.ordering_key {
            message = message.with_ordering_key(OrderingKey::new(key));
        }
        if of.is_dated {
            message = message.with_sent_at(SystemTime::UNIX_EPOCH + KEPT).with_broker_properties(*b"properties");
        }
        let rule = nth(&self.rules, 0).unwrap_or(HashRuleId(1));
        DeadLetter {
            consumer: self.consumer.clone(),
            scope: nth(&self.scopes, of.scope).unwrap_or(ScopeId(1)),
            message,
            key: of.key.map(key),
            hash: of.hashed.then(|| (hash(of.payload), rule)),
            reason: of.reason,
            attempts: of.attempts,
            error: of.error.to_owned(),
            fingerprint: Fingerprint::of(&FailureKind::new(of.reason, ErrorClass::Permanent)),
            keep_payload: of.keep_payload,
            payload_omitted: None,
        }
    }

    /// Dead letters and controls, as operators and workers see them.
    async fn look(&mut self) -> String {
        let mut seen = String::new();
        for (number, scope) in self.scopes.clone().into_iter().enumerate() {
            let control = self.books().control(scope).await.unwrap();
            self.now = control.now;
            let (state, by, reason, epoch) = (control.state, &control.by, &control.reason, control.epoch);
            let _ = writeln!(seen, "scope {number}: {state:?} by {by:?}, {reason:?}, epoch {epoch}");
        }
        for row in self.books().dead_letters(&self.consumer, 100).await.unwrap() {
            let _ = writeln!(seen, "{}", self.stored(&row));
        }
        seen
    }

    /// In steps of twenty minutes, which is coarse enough for two clocks.
    fn age(&self, at: SystemTime) -> u64 {
        let age = self.now.duration_since(at).unwrap_or_default() + MINUTE * 5;
        age.as_secs() / (20 * 60)
    }

    fn stored(&mut self, row: &StoredDeadLetter) -> String {
        let id = number(&mut self.letters, row.id);
        let StoredDeadLetter { key, origin, reason, attempts, error, fingerprint, copies, payload_kept, .. } = row;
        let (published, replayed) = (row.published_at.is_some(), &row.replayed);
        // The clock was read before the row was stored.
        let age = if self.age(row.first_at) == 0 { "new" } else { "old" };
        format!(
            "dead letter {id}: {key:?} {origin:?} {reason} {attempts} {error:?} {fingerprint:?} copies {copies} kept \
             {payload_kept} published {published} accepted {} replayed {replayed:?} {age}",
            row.loss_accepted
        )
    }

    fn record(&mut self, record: &Recorded) -> String {
        let Recorded { key, hash, hash_rule, processed_at, processed_by, expires_at, .. } = record;
        let (rule, run) = (number(&mut self.rules, *hash_rule), number(&mut self.runs, *processed_by));
        let kept = expires_at.map(|at| (at.duration_since(*processed_at).unwrap_or_default().as_secs() + 600) / 3600);
        format!("{key:?} {hash:?} rule {rule} run {run} kept {kept:?} age {}", self.age(*processed_at))
    }

    fn taken(&mut self, replay: &Replay) -> String {
        let (id, scope) = (number(&mut self.letters, replay.id), number(&mut self.scopes, replay.scope));
        let (message, key) = (&replay.message, &replay.key);
        let headers: Vec<_> = message.headers().iter().collect();
        format!(
            "replay of {id} in {scope} under {key:?}: {:?} {headers:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?}",
            message.payload().map(Bytes::as_ref).map(<[u8]>::to_vec),
            message.origin().as_str(),
            message.id(),
            message.message_type(),
            message.record_key(),
            message.ordering_key().map(OrderingKey::as_bytes),
            message.sent_at(),
            message.broker_properties(),
        )
    }
}

async fn write<T: StoreUnderTest>(tx: &mut Tx<'_, T::Store>, effect: &Effect) {
    T::write(tx, effect).await.unwrap();
}

fn options(run: RunId, patience: Duration) -> UnitOptions {
    UnitOptions::new(run, 0, patience, MINUTE)
}

/// As the engine hands them over: sorted by scope and key, one of each.
fn sorted(mut claims: Vec<Claim>) -> Vec<Claim> {
    let of = |claim: &Claim| (claim.scope, claim.key.clone());
    claims.sort_by_key(of);
    claims.dedup_by_key(|claim| of(claim));
    claims
}
