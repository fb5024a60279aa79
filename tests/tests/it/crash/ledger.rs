//! The published messages, the fate that each must have, and the check of it.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    fmt::Debug,
};

use idem_core::{Message, dead_letter::Reason, key::KEY_FIELD};
use idem_testkit::memory::Queue;
use idem_tests::plan::{Act, Payment};

use crate::support::database::{Database, Effect};

/// A message of a producer.
#[derive(Debug, Clone)]
pub(crate) enum Body {
    Payment(Payment),
    /// JSON with a key, and of another shape than the handler expects.
    Garbled,
    /// A payment without a key.
    Keyless,
    /// A payment with two keys.
    TwoKeys,
}

#[derive(Debug, Clone)]
pub(crate) struct Sent {
    pub(crate) key: String,
    pub(crate) body: Body,
}

/// The messages that were published to one queue, with the origins that the broker gave.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    sent: Vec<(String, Sent)>,
    /// Whether messages of an account are to take effect in the order of publishing.
    pub(crate) ordered: bool,
    /// Whether what [`Act::FailUntilRepaired`] stands for was repaired and replayed.
    pub(crate) replayed: bool,
    /// How many attempts a message of [`Act::Abort`] gets.
    pub(crate) abort_attempts: u32,
}

/// The fate that a message must have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Acknowledged,
    DeadLetter(Reason),
}

/// A row of `dead_letters`, as far as it is expected exactly.
type DeadLetterCount = (Option<String>, &'static str, u64);

impl Sent {
    /// The message. The account is the record key, by which a queue may keep the order.
    pub(crate) fn message(&self) -> Message {
        let payment = |payment: &Payment| {
            Message::new(serde_json::to_vec(payment).unwrap()).with_record_key(payment.account.to_string())
        };
        let plain = Payment { sequence: 0, account: 0, cents: 1, act: Act::Succeed };
        match &self.body {
            Body::Payment(body) => payment(body).with_header(KEY_FIELD, self.key.clone()),
            Body::Garbled => Message::new(r#"{"sequence":"one"}"#).with_header(KEY_FIELD, self.key.clone()),
            Body::Keyless => payment(&plain),
            Body::TwoKeys => payment(&plain).with_header(KEY_FIELD, self.key.clone()).with_header(KEY_FIELD, "other"),
        }
    }

    fn payment(&self) -> Option<&Payment> {
        match &self.body {
            Body::Payment(payment) => Some(payment),
            Body::Garbled | Body::Keyless | Body::TwoKeys => None,
        }
    }
}

impl Ledger {
    /// Nothing was published yet.
    pub(crate) fn new(ordered: bool) -> Self {
        Self { ordered, ..Self::default() }
    }

    /// Publishes a message and remembers it.
    pub(crate) fn publish(&mut self, queue: &Queue, sent: Sent) {
        let origin = queue.publish(sent.message()).expect("the queue has room");
        self.sent.push((origin.as_str().to_owned(), sent));
    }

    /// The messages so far.
    pub(crate) fn sent(&self) -> impl Iterator<Item = &Sent> {
        self.sent.iter().map(|(_, sent)| sent)
    }

    fn takes_effect(&self, act: Act) -> bool {
        match act {
            Act::Succeed | Act::FailOnce => true,
            Act::FailUntilRepaired => self.replayed,
            Act::FailAlways | Act::Abort => false,
        }
    }

    /// Reads everything back, and compares it with what must be there: every effect exactly once, every dead letter
    /// exactly once, every message settled exactly once.
    ///
    /// # Errors
    /// With everything that differs.
    pub(crate) async fn check(&self, database: &Database, queue: &Queue, dead: &Queue) -> Result<(), String> {
        let mut wrong = Vec::new();
        let effects = database.effects().await;
        let winners = self.check_effects(&effects, &mut wrong);
        check_balances(&effects, database.balances().await, &mut wrong);
        same("recorded keys", &(winners.len() as i64), &database.records().await, &mut wrong);
        check_events(&winners, database.events().await, &mut wrong);
        if self.ordered {
            check_order(&effects, &mut wrong);
        }
        let fates: Vec<(&str, &Sent, Fate)> =
            self.sent.iter().map(|(origin, sent)| (&**origin, sent, self.fate(sent, &winners))).collect();
        self.check_dead_letters(&fates, database, &mut wrong).await;
        check_settled(&fates, queue, &mut wrong);
        check_published(&fates, dead, &mut wrong);
        if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
    }

    /// One effect for each key that must have one, of a payload that was published under it; none for any other.
    /// Answers the payload that won each key.
    fn check_effects(&self, effects: &[Effect], wrong: &mut Vec<String>) -> HashMap<String, Payment> {
        let mut candidates: HashMap<&str, Vec<&Payment>> = HashMap::new();
        for sent in self.sent() {
            if let Some(payment) = sent.payment().filter(|payment| self.takes_effect(payment.act)) {
                candidates.entry(&sent.key).or_default().push(payment);
            }
        }
        let mut winners: HashMap<String, Payment> = HashMap::new();
        for effect in effects {
            let of_effect = |payment: &&&Payment| {
                (payment.sequence, payment.account, payment.cents) == (effect.sequence, effect.account, effect.cents)
            };
            let found = candidates.get(&*effect.message_key).and_then(|all| all.iter().find(of_effect));
            let Some(payment) = found else {
                wrong.push(format!("an effect that should not be there: {effect:?}"));
                continue;
            };
            if winners.insert(effect.message_key.clone(), (*payment).clone()).is_some() {
                wrong.push(format!("DOUBLED: the key has another effect: {effect:?}"));
            }
        }
        for (key, payments) in &candidates {
            if !winners.contains_key(*key) {
                wrong.push(format!("LOST: no effect of key {key}, published as {payments:?}"));
            }
        }
        winners
    }

    fn fate(&self, sent: &Sent, winners: &HashMap<String, Payment>) -> Fate {
        let payment = match &sent.body {
            Body::Garbled | Body::TwoKeys => return Fate::DeadLetter(Reason::Malformed),
            Body::Keyless => return Fate::DeadLetter(Reason::MissingKey),
            Body::Payment(payment) => payment,
        };
        match payment.act {
            Act::FailAlways | Act::FailUntilRepaired => Fate::DeadLetter(Reason::Permanent),
            Act::Abort => Fate::DeadLetter(Reason::AttemptsExhausted),
            Act::Succeed | Act::FailOnce if winners.get(&sent.key).is_none_or(|winner| winner == payment) => {
                Fate::Acknowledged
            }
            Act::Succeed | Act::FailOnce => Fate::DeadLetter(Reason::Conflict),
        }
    }

    /// One row for each (key, payload, reason), which counts its copies; one for each message without a key. Each was
    /// published, and says so.
    async fn check_dead_letters(&self, fates: &[(&str, &Sent, Fate)], database: &Database, wrong: &mut Vec<String>) {
        let mut copies: BTreeMap<(Option<&str>, &str, String), u64> = BTreeMap::new();
        for (origin, sent, fate) in fates {
            if let Fate::DeadLetter(reason) = fate {
                *copies.entry(content(origin, sent, *reason)).or_default() += 1;
            }
        }
        let mut expected: Vec<DeadLetterCount> =
            copies.into_iter().map(|((key, reason, _), count)| (key.map(str::to_owned), reason, count)).collect();
        let rows = database.dead_letters().await;
        let key = |key: &idem_core::IdempotencyKey| key.as_str().to_owned();
        let mut found: Vec<DeadLetterCount> =
            rows.iter().map(|row| (row.key.as_ref().map(key), row.reason.as_str(), row.copies)).collect();
        expected.sort();
        found.sort();
        // A row knows the first and the last of its origins. Of three copies or more, one that a crash brings back may be
        // counted again.
        for (expected, found) in expected.iter().zip(&mut found) {
            let same = (&expected.0, expected.1) == (&found.0, found.1);
            if same && expected.2 >= 3 {
                found.2 = found.2.min(expected.2);
            }
        }
        same_list("dead letters (key, reason, copies)", &expected, &found, wrong);
        for row in &rows {
            if row.published_at.is_none() {
                wrong.push(format!("a dead letter was settled and is not marked as published: {row:?}"));
            }
            if row.reason == Reason::AttemptsExhausted && row.attempts != self.abort_attempts {
                wrong.push(format!("it should have had {} attempts: {row:?}", self.abort_attempts));
            }
        }
    }
}

/// One event for each effect, and none for anything else (O1, O12).
fn check_events(winners: &HashMap<String, Payment>, mut events: Vec<String>, wrong: &mut Vec<String>) {
    let mut expected: Vec<String> = winners.keys().cloned().collect();
    expected.sort();
    events.sort();
    same_list("keys with an event", &expected, &events, wrong);
}

/// The balance is a relative update, so an effect that ran twice or half shows here too.
fn check_balances(effects: &[Effect], balances: Vec<(i64, i64)>, wrong: &mut Vec<String>) {
    let mut expected: BTreeMap<i64, i64> = BTreeMap::new();
    for effect in effects {
        *expected.entry(effect.account).or_default() += effect.cents;
    }
    same_list("balances (account, cents)", &expected.into_iter().collect::<Vec<_>>(), &balances, wrong);
}

/// Within an account, what was published first took effect first (D7).
fn check_order(effects: &[Effect], wrong: &mut Vec<String>) {
    let mut last: HashMap<i64, i64> = HashMap::new();
    for effect in effects {
        if let Some(before) = last.insert(effect.account, effect.sequence).filter(|before| *before > effect.sequence) {
            wrong.push(format!("OUT OF ORDER: {before} took effect before {effect:?}"));
        }
    }
}

/// The broker has nothing left, and took one final answer a message: the right one.
fn check_settled(fates: &[(&str, &Sent, Fate)], queue: &Queue, wrong: &mut Vec<String>) {
    same("unsettled messages", &0, &queue.stats().unsettled(), wrong);
    let histories: HashMap<String, _> =
        queue.histories().into_iter().map(|(origin, history)| (origin.as_str().to_owned(), history)).collect();
    for (origin, sent, fate) in fates {
        let history = histories.get(*origin).copied().unwrap_or_default();
        let expected = if *fate == Fate::Acknowledged { (1, 0) } else { (0, 1) };
        if (history.acknowledged, history.dead_lettered) != expected {
            wrong.push(format!("{origin} should have been {fate:?} once: {history:?} of {sent:?}"));
        }
    }
}

/// The parts that copies of a dead letter have in common: key, reason and payload; without a key, where they come from.
fn content<'a>(origin: &str, sent: &'a Sent, reason: Reason) -> (Option<&'a str>, &'static str, String) {
    let (key, payload) = match &sent.body {
        Body::Payment(payment) => (Some(&*sent.key), format!("{payment:?}")),
        Body::Garbled => (Some(&*sent.key), String::new()),
        Body::Keyless | Body::TwoKeys => (None, origin.to_owned()),
    };
    (key, reason.as_str(), payload)
}

/// A copy of each dead letter is in the dead-letter queue at least once, and nothing else is: a copy of what was confirmed
/// is not published again.
fn check_published(fates: &[(&str, &Sent, Fate)], dead: &Queue, wrong: &mut Vec<String>) {
    let contents: HashMap<&str, _> = fates
        .iter()
        .filter_map(|(origin, sent, fate)| match fate {
            Fate::DeadLetter(reason) => Some((*origin, content(origin, sent, *reason))),
            Fate::Acknowledged => None,
        })
        .collect();
    let origin = |message: &Message| message.headers().text("idem-origin").unwrap_or("none").to_owned();
    let found: BTreeSet<String> = dead.unsettled().iter().map(origin).collect();
    let surplus: Vec<&String> = found.iter().filter(|origin| !contents.contains_key(&***origin)).collect();
    same("published that is no dead letter", &Vec::new(), &surplus, wrong);
    let expected: BTreeSet<_> = contents.values().collect();
    let found: BTreeSet<_> = found.iter().filter_map(|origin| contents.get(&**origin)).collect();
    same_list("published dead letters", &Vec::from_iter(expected), &Vec::from_iter(found), wrong);
}

fn same<T: PartialEq + Debug>(what: &str, expected: &T, found: &T, wrong: &mut Vec<String>) {
    if expected != found {
        wrong.push(format!("{what}: expected {expected:?}, found {found:?}"));
    }
}

/// As `same`, naming only what differs.
fn same_list<T: PartialEq + Debug + Eq + std::hash::Hash>(
    what: &str,
    expected: &[T],
    found: &[T],
    wrong: &mut Vec<String>,
) {
    if expected != found {
        let (there, wanted): (HashSet<&T>, HashSet<&T>) = (found.iter().collect(), expected.iter().collect());
        let missing: Vec<&T> = expected.iter().filter(|one| !there.contains(one)).collect();
        let surplus: Vec<&T> = found.iter().filter(|one| !wanted.contains(one)).collect();
        let counts = format!("{} expected, {} found", expected.len(), found.len());
        wrong.push(format!("{what}: {counts}; missing {missing:?}, surplus {surplus:?}"));
    }
}
