//! The scenarios, each on a database of its own.

use std::{sync::Arc, time::Duration};

use idem_core::{
    BoxError, Handler, Message, Store as _,
    failpoint::{self, Fate},
    message::OrderingKey,
    scratch::{Scratch, Tables},
};

use super::{
    NotProven, Promise, Proven,
    broken::told,
    process::{Doom, Making, Met},
    reference::{Reference, in_another_order},
    rigged::{Act, HANDLER_WAITS, Rig},
    tables::{Difference, Volatile},
};
use crate::memory::{Broker, Faults, Order, Queue, QueueOptions, Rate};

/// The deadline where a handler hangs, unless the handler needs longer: the others have to keep it too.
const DEADLINE: Duration = Duration::from_secs(1);

/// How much longer than the longest run without faults a run may take there.
const SLOWER: u32 = 5;

/// After how many waits of a handler its process dies: each early one, and some later ones.
const WAITS: [u32; 8] = [1, 2, 3, 4, 6, 9, 14, 21];

/// Copies of each message in a storm.
const COPIES: usize = 4;

/// The failpoints of a receive loop, at which it can die.
const OF_A_LOOP: [&str; 9] = [
    failpoint::BEGIN,
    failpoint::CLAIMED,
    failpoint::HANDLER_MID,
    failpoint::HANDLER_DONE,
    failpoint::GUARD,
    failpoint::COMMIT_SENT,
    failpoint::COMMIT_OK,
    failpoint::ROLLBACK,
    failpoint::ISOLATE,
];

pub(super) struct Course<D: Scratch, H> {
    pub(super) making: Making<D, H>,
    pub(super) messages: Vec<Message>,
    /// How long the longest run without faults took.
    pub(super) slowest: Duration,
    pub(super) proven: Proven,
}

/// The content of a database that a promise demands.
struct Expected<'r> {
    tables: &'r Tables,
    but: &'r Volatile,
}

impl<D: Scratch, H: Handler<D::Store>> Course<D, H> {
    pub(super) fn databases(&self) -> &Arc<D> {
        &self.making.databases
    }

    pub(super) async fn database(&mut self, when: &str) -> Result<D::Address, NotProven> {
        self.proven.databases += 1;
        self.databases().create().await.map_err(|source| NotProven::Failed { when: when.to_owned(), source })
    }

    pub(super) async fn tables(&self, address: &D::Address) -> Result<Tables, NotProven> {
        let when = "it reads the tables";
        self.databases().tables(address).await.map_err(|source| NotProven::Failed { when: when.to_owned(), source })
    }

    pub(super) async fn remove(&self, address: D::Address) {
        self.databases().remove(address).await;
    }

    /// Everything, and the first promise that is broken.
    pub(super) async fn run(mut self) -> Result<Proven, NotProven> {
        let done = self.everything().await;
        self.databases().finish().await;
        done.map(|()| self.proven)
    }

    async fn everything(&mut self) -> Result<(), NotProven> {
        let reference = Reference::of(self).await?;
        self.proven.not_compared = reference.by_order.names();
        self.rolls_back(&reference).await?;
        self.hands_errors_on(&reference).await?;
        self.dies_inside(&reference).await?;
        self.dies_at_failpoints(&reference).await?;
        self.loses_answers(&reference).await?;
        self.storms(&reference).await?;
        self.conflicts(&reference).await?;
        self.two_at_once(&reference).await?;
        self.neighbours(&reference).await?;
        self.in_order(&reference).await
    }

    /// Compares a database with what it should hold, and removes it.
    async fn compare(
        &self,
        address: &D::Address,
        expected: &Expected<'_>,
        rig: &Rig,
        broken: impl FnOnce(&[Difference]) -> NotProven,
    ) -> Result<(), NotProven> {
        let seen = self.tables(address).await?;
        let differences = expected.but.differences(expected.tables, &seen);
        if differences.is_empty() {
            return Ok(());
        }
        let left =
            self.databases().describe(address).map_or(String::new(), |name| format!(" The {name} is left for a look."));
        Err(match broken(&differences) {
            NotProven::Broken { promise, when, why } => {
                // The deadline explains it, and no other mistake needs to be guessed.
                let why = rig.told_late().map_or(why, |late| format!("{}{late}", told(&differences)));
                NotProven::Broken { promise, when, why: format!("{why}.{left}") }
            }
            other @ (NotProven::Unprovable(_) | NotProven::Failed { .. }) => other,
        })
    }

    /// Each message is handled, fails at the end, and is handled again by the same handler.
    async fn rolls_back(&mut self, reference: &Reference) -> Result<(), NotProven> {
        let when = "a message failed after the handler had done all it does";
        let address = self.database(when).await?;
        let rig = Rig::new(|_, run| if run == 1 { Act::FailAfter } else { Act::Pass });
        let failed = |source| NotProven::Failed { when: when.to_owned(), source };
        let consumer = self.making.consumer(&address, &rig, None).await.map_err(failed)?;
        for message in &self.messages {
            consumer.process_one(message.clone()).await.map_err(|error| failed(error.into()))?;
        }
        let nothing = Expected { tables: &reference.empty, but: &Volatile::default() };
        self.compare(&address, &nothing, &rig, |differences| {
            let remained = match differences {
                [first, ..] if first.seen > first.expected => format!("{first} remained after the rollback"),
                _ => format!("after the rollback {}", told(differences)),
            };
            let why = format!("your handler wrote through a connection that is not `tx`: {remained}");
            NotProven::Broken { promise: Promise::RollsBack, when: when.to_owned(), why }
        })
        .await?;
        for message in &self.messages {
            consumer.process_one(message.clone()).await.map_err(|error| failed(error.into()))?;
        }
        drop(consumer);
        self.compare(&address, &reference.all(), &rig, |differences| {
            let why = format!(
                "the next attempt wrote something else: {}. Does your handler keep something in memory between attempts: keys that \
                 it has seen, a sum, a buffer?",
                told(differences)
            );
            NotProven::Broken { promise: Promise::ForgetsAttempts, when: when.to_owned(), why }
        })
        .await?;
        self.remove(address).await;
        Ok(())
    }

    /// Every statement that writes fails, so no handler can have done its work.
    async fn hands_errors_on(&mut self, reference: &Reference) -> Result<(), NotProven> {
        let when = "every statement of the handler failed";
        let (address, rig) = (self.database(when).await?, Rig::new(|_, _| Act::Spoil));
        let failed = |source| NotProven::Failed { when: when.to_owned(), source };
        let consumer = self.making.consumer(&address, &rig, None).await.map_err(failed)?;
        for message in &self.messages {
            consumer.process_one(message.clone()).await.map_err(|error| failed(error.into()))?;
        }
        drop(consumer);
        let swallowed = rig.seen().swallowed.clone();
        if let Some(key) = swallowed.first() {
            let why = format!(
                "your handler answered Ok for message {key} although its statements had failed: it swallows the error of a statement. \
                 Hand each on with `?`"
            );
            return Err(NotProven::Broken { promise: Promise::HandsErrorsOn, when: when.to_owned(), why });
        }
        let nothing = Expected { tables: &reference.empty, but: &Volatile::default() };
        self.compare(&address, &nothing, &rig, |differences| {
            let why = format!("your handler wrote through a connection that is not `tx`: {}", told(differences));
            NotProven::Broken { promise: Promise::RollsBack, when: when.to_owned(), why }
        })
        .await?;
        self.remove(address).await;
        Ok(())
    }

    /// A process dies while the handler waits for something, and another goes on.
    async fn dies_inside(&mut self, reference: &Reference) -> Result<(), NotProven> {
        for waits in WAITS {
            let when = format!("a process died inside of the handler, at its wait number {waits}, and another went on");
            let doom = Doom { point: HANDLER_WAITS, fate: Fate::Die };
            let rig = Rig::new(move |_, run| if run == 1 { Act::WaitAt(waits) } else { Act::Pass });
            let met = self.loop_dies(&when, &rig, doom, &reference.all(), Promise::SurvivesDeath).await?;
            if met == Met::No {
                break;
            }
        }
        Ok(())
    }

    /// A process dies at each failpoint, with a message among the others that fails for good; and another goes on.
    async fn dies_at_failpoints(&mut self, reference: &Reference) -> Result<(), NotProven> {
        let last = reference.keys.last().cloned().unwrap_or_default();
        let refuses = move || {
            let last = last.clone();
            Rig::new(move |key, _| if key == last { Act::Refuse } else { Act::Pass })
        };
        let expected = Expected { tables: &reference.but_last, but: &reference.by_order };
        for point in OF_A_LOOP {
            let when = format!("a receive loop died at the failpoint {point}, and another went on");
            let doom = Doom { point, fate: Fate::Die };
            self.loop_dies(&when, &refuses(), doom, &expected, Promise::SurvivesDeath).await?;
        }
        for point in failpoint::ALL.iter().filter(|point| **point != failpoint::CLEAN_CHUNK) {
            let when = format!("a worker died at the failpoint {point}, and another went on");
            let doom = Doom { point, fate: Fate::Die };
            self.worker_dies(&when, &refuses(), doom, &expected, Promise::SurvivesDeath).await?;
        }
        Ok(())
    }

    /// The answer to a COMMIT is lost, before it was read and after. No handler fails here alone: what it sees of that is another run
    /// or none, as after a rollback and after a death, which come before. So this holds the engine and the store to it.
    async fn loses_answers(&mut self, reference: &Reference) -> Result<(), NotProven> {
        for point in [failpoint::COMMIT_SENT, failpoint::COMMIT_OK] {
            let (doom, rig) = (Doom { point, fate: Fate::Error }, Rig::new(|_, _| Act::Pass));
            let when = format!("the answer to a COMMIT was lost at the failpoint {point}");
            self.loop_dies(&when, &rig, doom, &reference.all(), Promise::SurvivesLostAnswers).await?;
            self.worker_dies(&when, &rig, doom, &reference.all(), Promise::SurvivesLostAnswers).await?;
        }
        Ok(())
    }

    async fn loop_dies(
        &mut self,
        when: &str,
        rig: &Arc<Rig>,
        doom: Doom,
        expected: &Expected<'_>,
        promise: Promise,
    ) -> Result<Met, NotProven> {
        let address = self.database(when).await?;
        let met = self.making.loops(&address, rig, &self.messages, Some(doom)).await;
        let met = met.map_err(|source| NotProven::Failed { when: when.to_owned(), source })?;
        let went_on = self.making.loops(&address, rig, &self.messages, None).await;
        self.ended(when, address, went_on, expected, promise, rig).await?;
        self.note(doom, met);
        Ok(met)
    }

    async fn worker_dies(
        &mut self,
        when: &str,
        rig: &Arc<Rig>,
        doom: Doom,
        expected: &Expected<'_>,
        promise: Promise,
    ) -> Result<(), NotProven> {
        let (address, queue) = (self.database(when).await?, self.queue(1)?);
        let met = self.making.works(&address, rig, &queue, Some(doom), None).await;
        let met = met.map_err(|source| NotProven::Failed { when: when.to_owned(), source })?;
        let went_on = self.making.works(&address, rig, &queue, None, None).await;
        self.ended(when, address, went_on, expected, promise, rig).await?;
        self.note(doom, met);
        Ok(())
    }

    fn note(&mut self, doom: Doom, met: Met) {
        if met == Met::Yes && doom.fate == Fate::Die {
            self.proven.kills += 1;
            self.proven.died_at.insert(doom.point);
        }
    }

    /// The last process of a scenario has ended: is everything there once?
    async fn ended(
        &self,
        when: &str,
        address: D::Address,
        ended: Result<Met, BoxError>,
        expected: &Expected<'_>,
        promise: Promise,
        rig: &Rig,
    ) -> Result<(), NotProven> {
        ended.map_err(|source| NotProven::Failed { when: when.to_owned(), source })?;
        self.compare(&address, expected, rig, |differences| {
            let hint = match differences {
                _ if promise == Promise::WorksBesideItself => {
                    ". Does your handler read a value and write another that it made of it? Another transaction may have written in \
                     between: update relatively (`cents = cents + …`), or lock the row first (`FOR UPDATE`)"
                }
                [first, ..] if first.seen > first.expected => {
                    ". What stood in a transaction that did not commit is gone: was this written through `tx`?"
                }
                _ => ". Does the handler go by something that it keeps in memory, or outside of this database?",
            };
            NotProven::Broken { promise, when: when.to_owned(), why: format!("{}{hint}", told(differences)) }
        })
        .await?;
        self.remove(address).await;
        Ok(())
    }

    /// A queue with so many copies of each message.
    fn queue(&self, copies: usize) -> Result<Queue, NotProven> {
        queue_of(&self.messages, copies)
    }

    /// Copies, and a broker that loses acknowledgements and delivers again.
    async fn storms(&mut self, reference: &Reference) -> Result<(), NotProven> {
        let when = "each message came several times, and acknowledgements were lost";
        let (address, queue) = (self.database(when).await?, self.queue(COPIES)?);
        let faults = Faults {
            acks_lost: Rate::OneIn(3),
            resurrected: Rate::OneIn(3),
            answers_lost: Rate::OneIn(5),
            ..Faults::default()
        };
        queue.misbehave(faults);
        let rig = Rig::new(|_, _| Act::Pass);
        let ended = self.making.works(&address, &rig, &queue, None, None).await;
        self.ended(when, address, ended, &reference.all(), Promise::IgnoresDuplicates, &rig).await
    }

    /// Every key comes again with the payloads of the other messages.
    async fn conflicts(&mut self, reference: &Reference) -> Result<(), NotProven> {
        let when = "each key came again with other payloads";
        let (address, queue) = (self.database(when).await?, self.queue(1)?);
        let rig = Rig::new(|_, _| Act::Pass);
        let failed = |source| NotProven::Failed { when: when.to_owned(), source };
        self.making.works(&address, &rig, &queue, None, None).await.map_err(failed)?;
        for of in &self.messages {
            for other in self.messages.iter().filter(|other| other.payload() != of.payload()) {
                queue.publish(with_payload_of(of, other)).map_err(|error| failed(error.into()))?;
            }
        }
        let ended = self.making.works(&address, &rig, &queue, None, None).await;
        self.ended(when, address, ended, &reference.all(), Promise::RefusesConflicts, &rig).await
    }

    /// Two processes, each with a queue that has every message.
    async fn two_at_once(&mut self, reference: &Reference) -> Result<(), NotProven> {
        let when = "two workers had the same messages at the same time";
        let address = self.database(when).await?;
        let store = self.databases().connect(&address).await;
        let store = store.map_err(|source| NotProven::Failed { when: when.to_owned(), source })?;
        // Elsewhere no handler begins while another transaction is open.
        let act = if store.capabilities().waits_per_key { Act::Meet } else { Act::Linger };
        drop(store);
        let rig = Rig::new(move |_, _| act);
        // In another order, so that they meet with different messages in hand.
        let (one, other) = (self.queue(2)?, queue_of(&in_another_order(&self.messages), 2)?);
        let (first, second) = tokio::join!(
            self.making.works(&address, &rig, &one, None, None),
            self.making.works(&address, &rig, &other, None, None)
        );
        self.ended(when, address, first.and(second), &reference.all(), Promise::WorksBesideItself, &rig).await
    }

    /// One message fails, one panics, one hangs, in turn; the others of their batch are handled.
    async fn neighbours(&mut self, reference: &Reference) -> Result<(), NotProven> {
        for (act, what) in [(Act::Refuse, "failed"), (Act::Panic, "panicked"), (Act::Hang, "did not answer")] {
            let when = format!("the handler {what} for one message of several");
            let last = reference.keys.last().cloned().unwrap_or_default();
            let rig = Rig::new(move |key, _| if key == last { act } else { Act::Pass });
            let (address, queue) = (self.database(&when).await?, self.queue(1)?);
            let deadline = (act == Act::Hang).then_some(DEADLINE.max(self.slowest * SLOWER));
            let ended = self.making.works(&address, &rig, &queue, None, deadline).await;
            let expected = Expected { tables: &reference.but_last, but: &reference.by_order };
            self.ended(&when, address, ended, &expected, Promise::SparesNeighbours, &rig).await?;
        }
        Ok(())
    }

    /// All messages have one ordering key, and each fails once.
    async fn in_order(&mut self, reference: &Reference) -> Result<(), NotProven> {
        let when = "all messages had one ordering key, and each failed at its first attempt";
        let ordered = |message: &Message| message.clone().with_ordering_key(OrderingKey::new("prove"));
        let messages: Vec<_> = self.messages.iter().map(ordered).collect();
        let (address, queue) = (self.database(when).await?, queue_of(&messages, 1)?);
        let rig = Rig::new(|_, run| if run == 1 { Act::FailAfter } else { Act::Pass });
        let ended = self.making.works(&address, &rig, &queue, None, None).await;
        let done = rig.seen().done.clone();
        if ended.is_ok() && done != reference.keys {
            let why = format!("they were handled as {done:?}, and should have been as {:?}", reference.keys);
            return Err(NotProven::Broken { promise: Promise::KeepsOrder, when: when.to_owned(), why });
        }
        let expected = Expected { tables: &reference.all, but: &reference.by_run };
        self.ended(when, address, ended, &expected, Promise::KeepsOrder, &rig).await
    }
}

impl Reference {
    fn all(&self) -> Expected<'_> {
        Expected { tables: &self.all, but: &self.by_order }
    }
}

/// A queue with so many copies of each of these.
fn queue_of(messages: &[Message], copies: usize) -> Result<Queue, NotProven> {
    let failed = |source: idem_core::SourceError| {
        let when = "it publishes the messages".to_owned();
        NotProven::Failed { when, source: source.into() }
    };
    let queue = Broker::new().create("prove", QueueOptions::default().order(Order::ByKey)).map_err(failed)?;
    for message in std::iter::repeat_n(messages, copies).flatten() {
        queue.publish(message.clone()).map_err(failed)?;
    }
    Ok(queue)
}

/// The message with the payload of another.
fn with_payload_of(of: &Message, other: &Message) -> Message {
    let mut message = other.payload().cloned().map_or_else(Message::tombstone, Message::new);
    message = message.with_headers(of.headers().clone());
    if let Some(id) = of.id() {
        message = message.with_id(id);
    }
    if let Some(key) = of.record_key() {
        message = message.with_record_key(key.clone());
    }
    if let Some(message_type) = of.message_type() {
        message = message.with_type(message_type);
    }
    match of.ordering_key() {
        Some(key) => message.with_ordering_key(key.clone()),
        None => message,
    }
}
