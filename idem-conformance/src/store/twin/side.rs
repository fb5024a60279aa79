//! One of the two: takes steps, and reports their results in words that both have in common.

use std::{
    fmt::Write as _,
    sync::Arc,
    time::{Duration, SystemTime},
};

use idem_core::{
    Bytes, ConsumerName, ErrorClass, IdempotencyKey, Message, Retention, Store, StoreError, Tenant,
    cleanup::{Removal, Removed},
    dead_letter::{
        DeadLetter, DeadLetterId, Due, DueEnd, DueFailure, DueRoom, FailureKind, Fingerprint, Reason, StoredDeadLetter,
    },
    hash::PayloadHash,
    message::{OrderingKey, Origin},
    outbox::{EventName, Outbox, OutgoingEvent},
    results::KeptResult,
    store::{AuditEntry, Bookkeeping, Claim, HashRuleId, Recorded, Registration, RunId, ScopeId},
};

use super::{
    super::{
        gate::within,
        subject::{Arrangement, StoreUnderTest},
    },
    outbox::{Declared, declare},
    steps::{End, Letter, Payload, ReplayStep, Step, View, Wish},
    units::{kept, options, sorted},
};

pub(super) const MINUTE: Duration = Duration::from_secs(60);

/// How long rows are kept that have no expiry of their own: no sum of what goes by lies near it.
const KEPT: Duration = Duration::from_secs(1450 * 60);

pub(super) struct Side<'s, T: StoreUnderTest> {
    subject: &'s T,
    pub(super) store: Arc<T::Store>,
    pub(super) consumer: ConsumerName,
    /// The ids answered so far, in the order in which they first came.
    pub(super) scopes: Vec<ScopeId>,
    pub(super) rules: Vec<HashRuleId>,
    runs: Vec<RunId>,
    letters: Vec<DeadLetterId>,
    pub(super) events: Vec<EventName>,
    /// Where the store offers events and results.
    pub(super) outbox: Option<Arc<dyn Outbox>>,
    pub(super) destinations: Vec<Declared>,
    /// The events that relays took, with their destinations.
    pub(super) in_hand: Vec<(usize, OutgoingEvent)>,
    /// How long a claim waits for another unit.
    pub(super) patience: Duration,
    /// Lines of the audit trail that were there before.
    audited: usize,
    pub(super) now: SystemTime,
}

/// The number of an id, in the order in which they came.
pub(super) fn number<I: PartialEq>(known: &mut Vec<I>, id: I) -> usize {
    known.iter().position(|other| *other == id).unwrap_or_else(|| {
        known.push(id);
        known.len() - 1
    })
}

/// The id that a step refers to, if there is one of its kind yet.
pub(super) fn nth<I: Copy>(known: &[I], number: usize) -> Option<I> {
    known.get(number % known.len().max(1)).copied()
}

pub(super) fn key(number: usize) -> IdempotencyKey {
    IdempotencyKey::new(["order-1", "order-2", "Order-1"][number % 3]).unwrap()
}

/// The hash by a rule that looks at the first letter.
fn hash(payload: Option<&str>) -> PayloadHash {
    payload.map_or(PayloadHash::NONE, |text| PayloadHash::of(text.get(..1).unwrap_or_default().as_bytes()))
}

fn tenant(number: usize) -> Tenant {
    Tenant::new(["", "north", "south"][number % 3]).unwrap_or_default()
}

/// In steps of twenty minutes, which is coarse enough for two clocks.
pub(super) fn coarse(span: Duration) -> u64 {
    (span + MINUTE * 5).as_secs() / (20 * 60)
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
    pub(super) async fn new(subject: &'s T, consumer: &str, hands_in: bool, patience: Duration) -> Self {
        let store = subject.store();
        let outbox = store.outbox().filter(|_| hands_in);
        let destinations = match &outbox {
            Some(outbox) => within("declaring destinations", declare(&**outbox, consumer)).await,
            None => Vec::new(),
        };
        Self {
            subject,
            store,
            consumer: ConsumerName::new(consumer).unwrap(),
            scopes: Vec::new(),
            rules: Vec::new(),
            runs: Vec::new(),
            letters: Vec::new(),
            events: Vec::new(),
            outbox,
            destinations,
            in_hand: Vec::new(),
            patience,
            audited: subject.audited().await.len(),
            now: SystemTime::UNIX_EPOCH,
        }
    }

    /// Takes a step. Answers the store's answer, and the visible state of the consumer afterwards.
    pub(super) async fn take(&mut self, step: &Step) -> String {
        let answer = within("a step of a sequence", self.act(step)).await;
        let answer = answer.unwrap_or_else(|error| told(&error));
        let seen = match step.changes() {
            Some(View::Books) => within("looking at the consumer", self.look()).await,
            Some(View::Outbox) => within("looking at the outbox", self.look_at_outbox()).await,
            None => return answer,
        };
        format!("{answer}\n{seen}")
    }

    /// Everything that is left at the end: dead letters and controls, events, records with their results, effects, the audit trail, and counts of
    /// attempts, which this raises.
    pub(super) async fn left(&mut self) -> String {
        let seen = self.look().await + &self.left_in_outbox().await;
        let claims = self.scopes.clone().into_iter().flat_map(|scope| {
            (0..3).map(move |number| Claim::new(scope, key(number), hash(None), HashRuleId(1), Retention::Forever))
        });
        let claims: Vec<_> = sorted(claims.collect());
        let session = self.store.open().await.unwrap();
        let (_, found) = self.store.look_up(session, options(RunId(1), MINUTE), &claims).await.unwrap();
        let mut lines = vec![seen];
        lines.extend(found.into_iter().flatten().map(|found| self.record(&found.recorded, found.result.as_ref())));
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

    pub(super) fn books(&self) -> &<T::Store as Store>::Bookkeeping {
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
            Step::Replay(step) => return self.replay(step).await,
            Step::Outbox(step) => return self.relay(step).await,
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

    async fn replay(&mut self, step: &ReplayStep) -> Result<String, StoreError> {
        // One that never was is as good as one that is gone.
        let id = |of: &usize| nth(&self.letters, *of).unwrap_or(DeadLetterId(i64::MAX));
        match step {
            ReplayStep::Renew(of) => self.books().renew_due(self.run(), &[id(of)]).await?,
            ReplayStep::MarkPublished(of) => self.books().mark_published(id(of)).await?,
            ReplayStep::Request(of) => {
                let mut ids: Vec<_> = of.iter().map(id).collect();
                ids.dedup();
                return Ok(format!("{} asked for", self.books().due_now(&ids, "ann").await?));
            }
            ReplayStep::Take(max) => {
                let taken = self.books().take_due(&self.consumer, self.run(), DueRoom::rows(*max)).await?;
                return Ok(taken.iter().map(|replay| self.taken(replay)).collect::<Vec<_>>().join("\n"));
            }
            ReplayStep::Finish(of, end) => {
                let end = match end {
                    End::Processed => DueEnd::Processed,
                    End::Duplicate => DueEnd::Duplicate,
                    End::Failed(error) => DueEnd::Failed(DueFailure::new(Reason::Permanent, *error)),
                    End::Released => {
                        self.books().release_due(self.run(), &[id(of)]).await?;
                        return Ok(String::new());
                    }
                };
                self.books().end_due(self.run(), &[(id(of), end)]).await?;
            }
        }
        Ok(String::new())
    }

    pub(super) fn run(&self) -> RunId {
        self.runs.last().copied().unwrap_or(RunId(1))
    }

    pub(super) fn scope(&self, number: usize) -> ScopeId {
        nth(&self.scopes, number).unwrap_or(ScopeId(1))
    }

    pub(super) fn payload(&self, of: &Payload) -> (ScopeId, IdempotencyKey, PayloadHash) {
        (self.scope(of.scope), key(of.key), hash(Some(of.text)))
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
            scope: self.scope(of.scope),
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

    pub(super) fn age(&self, at: SystemTime) -> u64 {
        coarse(self.now.duration_since(at).unwrap_or_default())
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

    pub(super) fn record(&mut self, record: &Recorded, result: Option<&KeptResult>) -> String {
        let Recorded { key, hash, hash_rule, processed_at, processed_by, expires_at, .. } = record;
        let (rule, run) = (number(&mut self.rules, *hash_rule), number(&mut self.runs, *processed_by));
        let after = |at: SystemTime| coarse(at.duration_since(*processed_at).unwrap_or_default());
        let (until, age) = (expires_at.map(after), self.age(*processed_at));
        let result = result.map(|result| (kept(result), result.until.map(after)));
        format!("{key:?} {hash:?} rule {rule} run {run} kept {until:?} age {age}, with {result:?}")
    }

    fn taken(&mut self, replay: &Due) -> String {
        let (id, scope) = (number(&mut self.letters, replay.id), number(&mut self.scopes, replay.scope));
        let (message, key) = (&replay.message, &replay.key);
        let headers: Vec<_> = message.headers().iter().collect();
        format!(
            "replay of {id} in {scope} under {key:?}, taken before {}: {:?} {headers:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?}",
            replay.was_taken,
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
