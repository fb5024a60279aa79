//! The parts outside of the processes of a life, which outlive them: the store, the broker, and the observations of
//! both.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, SystemTime},
};

use idem_core::{Bytes, Message, config::OnConflict, failpoint::Life};
use idem_testkit::{
    Checkpoint, MemoryStore, Operation,
    memory::{Broker, Faults, Queue, QueueOptions},
};
use tokio::sync::Notify;

use crate::{
    calls::Asked,
    disaster::Disasters,
    group::{self, Group},
    journal::{Happened, Journal, Rule},
    life::Way,
    receivers::Received,
    scenario::{Behaviour, Event, Scenario},
    teeth::Slip,
};

/// The name of the queue, and of the one for dead letters.
const QUEUE: &str = "orders";
const DEAD_LETTERS: &str = "orders.dead";
/// The table of effects: the row's key is the content's, its value the number of the run.
pub(crate) const EFFECTS: &str = "effects";
/// The table of second rows, which are there where those of effects are.
pub(crate) const SECONDS: &str = "seconds";
/// The table of what handlers add up.
pub(crate) const ACCOUNTS: &str = "accounts";
/// The names of the consumer, which it has in turn where it is renamed.
const NAMES: [&str; 3] = ["ledger", "purchases", "payments"];
/// The header with the tenant.
pub(crate) const TENANT: &str = "tenant";

/// A message that was published.
#[derive(Debug, Clone)]
pub(crate) struct Publication {
    pub(crate) content: usize,
    pub(crate) at: Duration,
    /// Which topic it is on, of those that were created in its place.
    pub(crate) generation: usize,
    pub(crate) message: Message,
    /// Where there are several.
    pub(crate) partition: Option<i32>,
}

/// One run of a handler.
#[derive(Debug, Clone)]
pub(crate) struct Run {
    pub(crate) content: usize,
    pub(crate) began: Duration,
    pub(crate) returned: Option<Duration>,
    /// By the store's clock: when it was claimed at the earliest, and the latest time that the clock had shown by then.
    pub(crate) claimed: SystemTime,
    pub(crate) clock_max: SystemTime,
    /// How many effects were committed when it began, where there are events or calls.
    pub(crate) effects_before: usize,
}

/// The counts of one content.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Seen {
    pub(crate) deliveries: u32,
    /// How often a function was asked that cannot identify it.
    pub(crate) asked: u32,
    pub(crate) runs: u32,
    /// Runs whose failure was the handler's own doing.
    pub(crate) failures: u32,
}

#[derive(Debug, Default)]
pub(crate) struct Known {
    pub(crate) publications: Vec<Publication>,
    by_origin: BTreeMap<(usize, String), usize>,
    pub(crate) runs: Vec<Run>,
    pub(crate) contents: Vec<Seen>,
    /// The runs under way, with their processes.
    pub(crate) running: BTreeMap<usize, usize>,
    /// The messages that were settled for good, by which process last, and the number of that settlement.
    pub(crate) settled: BTreeMap<usize, (usize, u64)>,
    /// How many settlements there were. Instants would not do: a partition is lost and had again within one.
    pub(crate) settlements: u64,
    derived_keys: BTreeMap<String, String>,
    /// The contents that were published as dead letters on topics that are gone.
    published_dead: BTreeSet<usize>,
    /// The contents that an operator had replayed.
    pub(crate) replayed: BTreeSet<usize>,
    /// Since when handlers must not begin any more.
    pub(crate) paused_since: Option<Duration>,
    /// The disasters of the store.
    pub(crate) disasters: Disasters,
}

/// A process that runs.
#[derive(Debug, Clone)]
pub(crate) struct Running {
    pub(crate) life: Life,
    pub(crate) stop: idem_core::CancellationToken,
}

#[derive(Debug, Default)]
pub(crate) struct Place {
    pub(crate) running: Mutex<Option<Running>>,
    pub(crate) died: Notify,
    /// At how many polls it dies, and how long it is then down, in milliseconds.
    pub(crate) dies_at: AtomicU64,
    pub(crate) down: AtomicU64,
}

#[derive(Debug)]
pub(crate) struct World {
    pub(crate) scenario: Scenario,
    pub(crate) journal: Journal,
    pub(crate) store: Arc<MemoryStore>,
    /// The queue, and the one for dead letters.
    queues: Mutex<(Queue, Queue)>,
    pub(crate) generation: AtomicUsize,
    /// In the queue's place, where there are several partitions.
    pub(crate) group: Option<Arc<Group>>,
    /// The mistake of its members, where one is planted.
    pub(crate) slip: Option<Slip>,
    known: Mutex<Known>,
    /// The events that receivers have got.
    received: Mutex<Received>,
    /// The answers to callers.
    asked: Mutex<Asked>,
    pub(crate) places: Vec<Place>,
    pub(crate) deaths: AtomicU64,
    /// How often a process gave up on what it had in hand: its drain deadline had passed, or it was out of its group.
    pub(crate) cut_off: AtomicU64,
    pub(crate) closing: AtomicBool,
    /// Notified when the life must not go on, because a task spins.
    pub(crate) cut: Notify,
    pub(crate) is_cut: AtomicBool,
    pub(crate) halts: AtomicUsize,
    /// How often the consumer was given another name, how often it was bound anew, and whether an operator is about to do either.
    pub(crate) renamed: AtomicUsize,
    pub(crate) rebound: AtomicU32,
    pub(crate) is_kept_down: AtomicBool,
    /// The checkpoint that the store goes back to.
    pub(crate) checkpoint: Mutex<Option<Checkpoint>>,
    /// How many polls the first process had when it first ended.
    pub(crate) first_polls: AtomicU64,
}

impl World {
    pub(crate) fn new(scenario: Scenario, way: Way) -> Self {
        let known = Known { contents: vec![Seen::default(); scenario.contents.len()], ..Known::default() };
        let mut places = Vec::new();
        places.resize_with(scenario.processes, Place::default);
        places.iter().for_each(|place| place.dies_at.store(u64::MAX, Ordering::SeqCst));
        Self {
            journal: Journal::new(way.trace),
            store: Arc::new(match way.defect {
                Some(defect) => MemoryStore::with_defect(defect),
                None if scenario.one_writer => MemoryStore::embedded(),
                None => MemoryStore::new(),
            }),
            queues: Mutex::new(topic(&scenario, 0)),
            generation: AtomicUsize::new(0),
            group: scenario.partitions.map(|partitions| Arc::new(Group::new(partitions))),
            slip: way.slip,
            known: Mutex::new(known),
            received: Mutex::default(),
            asked: Mutex::new(Asked::new(&scenario)),
            places,
            deaths: AtomicU64::new(0),
            cut_off: AtomicU64::new(0),
            closing: AtomicBool::new(false),
            cut: Notify::new(),
            is_cut: AtomicBool::new(false),
            halts: AtomicUsize::new(0),
            renamed: AtomicUsize::new(0),
            rebound: AtomicU32::new(0),
            is_kept_down: AtomicBool::new(false),
            checkpoint: Mutex::new(None),
            first_polls: AtomicU64::new(0),
            scenario,
        }
    }

    pub(crate) fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn received(&self) -> MutexGuard<'_, Received> {
        self.received.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn asked(&self) -> MutexGuard<'_, Asked> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn queue(&self) -> Queue {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner).0.clone()
    }

    /// The broker misbehaves like this from now on.
    pub(crate) fn misbehave(&self, faults: Faults) {
        self.queue().misbehave(faults);
        self.group.iter().for_each(|group| group.misbehave(faults));
    }

    /// Whether every message is settled for good.
    pub(crate) fn is_drained(&self) -> bool {
        self.queue().is_drained() && self.group.as_ref().is_none_or(|group| group.is_drained())
    }

    /// Waits until every message is settled for good.
    pub(crate) async fn drained(&self) {
        self.queue().drained().await;
        let Some(group) = &self.group else { return };
        loop {
            let changed = group.changed.notified();
            if group.is_drained() {
                return;
            }
            // A commit notifies nobody.
            let _ = tokio::time::timeout(Duration::from_secs(1), changed).await;
        }
    }

    /// Where dead letters are published.
    pub(crate) fn dead_letters(&self) -> Queue {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner).1.clone()
    }

    /// The contents that were published as dead letters.
    pub(crate) fn published_dead(&self) -> BTreeSet<usize> {
        let mut contents: BTreeSet<usize> =
            self.dead_letters().unsettled().iter().map(|message| self.content(message)).collect();
        contents.extend(&self.known().published_dead);
        contents
    }

    /// Deletes the topic and creates it again: every process loses it with all that it held.
    pub(crate) fn recreate(&self) {
        let generation = self.generation.fetch_add(1, Ordering::SeqCst) + 1;
        let published = self.published_dead();
        self.known().published_dead = published;
        let queues = topic(&self.scenario, generation);
        queues.0.misbehave(self.scenario.faults);
        queues.1.misbehave(self.scenario.dead_letter_faults);
        *self.queues.lock().unwrap_or_else(PoisonError::into_inner) = queues;
        (0..self.places.len()).for_each(|process| self.kill(process, 0));
    }

    pub(crate) fn publish(&self, content: usize) {
        let about = &self.scenario.contents[content];
        let mut message = Message::new(about.payload.clone());
        if let Some(key) = &about.key {
            message = message.with_header(idem_core::key::KEY_FIELD, key.clone());
        }
        if let Some(tenant) = &about.tenant {
            message = message.with_header(TENANT, tenant.clone());
        }
        if let Some(order) = &about.order {
            message = message.with_record_key(order.clone());
        }
        let generation = self.generation.load(Ordering::SeqCst);
        let origin = match &self.group {
            Some(group) => Ok(group.publish(message.clone())),
            None => self.queue().publish(message.clone()),
        };
        // The queue has room for a million, and refuses nothing from here.
        let Ok(origin) = origin else { return };
        let mut known = self.known();
        let number = known.publications.len();
        known.by_origin.insert((generation, origin.as_str().to_owned()), number);
        let at = self.journal.now();
        let partition = self.group.as_ref().and_then(|_| origin.as_str().split('/').nth(1)?.parse().ok());
        known.publications.push(Publication { content, at, generation, message, partition });
        drop(known);
        self.journal.note(&Happened::Published { message: number, content });
    }

    /// The number of the message of this origin.
    pub(crate) fn message(&self, generation: usize, origin: &str) -> usize {
        self.known().by_origin.get(&(generation, origin.to_owned())).copied().unwrap_or(usize::MAX)
    }

    /// Which content this is; `usize::MAX` where no message had it.
    pub(crate) fn content(&self, message: &Message) -> usize {
        let (key, tenant) = (message.headers().text(idem_core::key::KEY_FIELD), message.headers().text(TENANT));
        let payload = message.payload().map_or(&[][..], AsRef::as_ref);
        let same = |about: &crate::scenario::Content| {
            about.key.as_deref() == key && about.tenant.as_deref() == tenant && about.payload.as_bytes() == payload
        };
        self.scenario.contents.iter().position(same).unwrap_or(usize::MAX)
    }

    pub(crate) fn delivered(&self, process: usize, message: usize, attempt: u32) {
        let mut known = self.known();
        if let Some(content) = known.publications.get(message).map(|publication| publication.content) {
            // Contents can be equal, and the handler sees the first of them.
            let content = self.first_equal(content);
            known.contents[content].deliveries += 1;
        }
        drop(known);
        self.journal.note(&Happened::Delivered { process, message, attempt });
    }

    pub(crate) fn first_equal(&self, content: usize) -> usize {
        let contents = &self.scenario.contents;
        let about = &contents[content];
        let same = |other: &crate::scenario::Content| {
            other.key == about.key && other.tenant == about.tenant && other.payload == about.payload
        };
        contents.iter().position(same).unwrap_or(content)
    }

    /// A function is asked that cannot identify this content. Answers how often that was, with this time.
    pub(crate) fn asked_about(&self, content: usize) -> u32 {
        let asked = &mut self.known().contents[content].asked;
        *asked += 1;
        *asked
    }

    /// A handler begins. Answers the number of the run, and how often this content ran before.
    pub(crate) fn begin(&self, process: usize, content: usize) -> (usize, u32) {
        let now = self.journal.now();
        let effects_before = if self.scenario.telling.is_some() { self.effects().len() } else { 0 };
        let mut known = self.known();
        let (number, before) = (known.runs.len(), known.contents[content].runs);
        known.contents[content].runs += 1;
        let (claimed, clock_max) = known.disasters.clock(self.store.now(), now);
        known.runs.push(Run { content, began: now, returned: None, claimed, clock_max, effects_before });
        known.running.insert(number, process);
        let (seen, paused, anew) = (known.contents[content], known.paused_since, known.disasters.counted_anew());
        drop(known);
        // Attempts are those of a payload's hash, and so of its rule.
        let anew = anew + self.rebound.load(Ordering::SeqCst);
        self.journal.note(&Happened::Began { process, run: number, content });
        self.check_begin(content, seen, paused, now, anew);
        (number, before)
    }

    fn check_begin(&self, content: usize, seen: Seen, paused: Option<Duration>, now: Duration, anew: u32) {
        let scenario = &self.scenario;
        let about = &scenario.contents[content];
        let fails = about.unidentified.is_some_and(|of| of.calls.is_none_or(|calls| seen.asked <= calls));
        if fails || about.key.is_none() {
            self.journal.breach(Rule::Unidentified, format!("c{content} ({about:?}) runs"));
        }
        let attempts = scenario.retry.attempts;
        // Each delivery may run once in a batch, which charges no attempt, before its attempts are counted.
        let batches = u64::from(seen.deliveries.max(1) + anew) * u64::from(attempts + 1);
        // A handler that failed on a connection that broke then is not charged: the connection is taken for the cause.
        let failures_max = batches + self.store.faults_met(Operation::Rollback);
        if u64::from(seen.failures) > failures_max {
            let text = format!(
                "c{content} has failed {} times, of {} deliveries with {attempts} attempts",
                seen.failures, seen.deliveries
            );
            self.journal.breach(Rule::RanTooOften, text);
        }
        if let Some(since) = paused.filter(|since| scenario.calm && now > *since + crate::bounds::pause(scenario)) {
            self.journal
                .breach(Rule::RanWhilePaused, format!("c{content} runs, and the consumer is paused since {since:?}"));
        }
    }

    /// A handler returned.
    pub(crate) fn returned(&self, run: usize, how: &'static str, own_failure: bool) {
        let now = self.journal.now();
        let mut known = self.known();
        known.runs[run].returned = Some(now);
        let content = known.runs[run].content;
        known.contents[content].failures += u32::from(own_failure);
        drop(known);
        self.journal.note(&Happened::Returned { run, how });
    }

    /// A position passes these records: each must be safe by then, and only the holder of the partition sends it.
    pub(crate) fn check_passed(&self, process: usize, partition: i32, passed: Range<i64>, holds_it: bool) {
        self.journal.note(&Happened::Passed { process, partition, to: passed.end });
        if passed.end < passed.start || !holds_it {
            let text =
                format!("process {process} commits {passed:?} of partition {partition}, and holds it: {holds_it}");
            self.journal.breach(Rule::OtherHolder, text);
        }
        let generation = self.generation.load(Ordering::SeqCst);
        for offset in passed {
            let number = self.message(generation, &group::origin_of(partition, offset));
            let Some(publication) = self.known().publications.get(number).cloned() else { continue };
            if !self.is_handled(&publication)
                && !self.is_set_aside(&publication)
                && !self.is_undone(publication.content)
                && !self.was_settled_before_loss(process, number, publication.content)
            {
                let about = &self.scenario.contents[publication.content];
                let text =
                    format!("a position passes m{number} ({about:?}), which has neither an effect nor a dead letter");
                self.journal.breach(Rule::SettledTooEarly, text);
            }
        }
    }

    /// Whether this process settled a message while it was safe, and the store lost it since. Its position may be sent later, also
    /// after everything was published again.
    fn was_settled_before_loss(&self, process: usize, message: usize, content: usize) -> bool {
        let known = self.known();
        let settled = known.settled.get(&message);
        settled.is_some_and(|(by, number)| *by == process && known.disasters.was_undone_by(content, *number))
    }

    /// The worker says that it has finished with these partitions: no handler of this process runs a message of them.
    pub(crate) fn check_finished(&self, process: usize, partitions: &[i32]) {
        let known = self.known();
        let is_of = |run: &Run| {
            let mut published =
                known.publications.iter().filter(|of| self.first_equal(of.content) == run.content).peekable();
            // Copies without an order may be in several partitions.
            published.peek().is_some()
                && published.all(|of| of.partition.is_some_and(|number| partitions.contains(&number)))
        };
        // A replay has no partition.
        let replays = self.scenario.events.iter().any(|(_, event)| *event == Event::Replay);
        let own = known.running.iter().filter(|(_, at)| **at == process).map(|(run, _)| *run);
        let running = own.filter(|run| known.runs.get(*run).is_some_and(is_of)).find(|_| !replays);
        drop(known);
        if let Some(run) = running {
            let text =
                format!("process {process} has finished with {partitions:?} while run {run} handles one of them");
            self.journal.breach(Rule::OtherHolder, text);
        }
    }

    /// A partition is given back in good order, and this is the group's position: no message from there on was settled for good by
    /// this process while it held the partition. Behind one that had to wait for another attempt there may be some, and behind
    /// one that waits until the broker has the settlements of dead letters.
    pub(crate) fn check_committed(&self, process: usize, partition: i32, position: i64, since: u64) {
        let generation = self.generation.load(Ordering::SeqCst);
        let is_good = self.scenario.contents.iter().all(|content| content.behaviour.is_good());
        let Scenario { calm, breaker, .. } = self.scenario;
        let nothing_waits = calm
            && is_good
            && !breaker
            && self.halts.load(Ordering::SeqCst) == 0
            && self.store.kept_dead_letters().is_empty();
        for offset in position.. {
            let number = self.message(generation, &group::origin_of(partition, offset));
            let settled = self.known().settled.get(&number).copied();
            if settled.is_some_and(|(by, number)| by == process && number >= since) {
                let text =
                    format!("partition {partition} is given back at {position}, and m{number} behind it was settled");
                self.journal.breach(Rule::OtherHolder, text);
            }
            if !nothing_waits || number == usize::MAX {
                break;
            }
        }
    }

    /// Whether an effect of this message is committed, or one of another that stands for it.
    pub(crate) fn is_handled(&self, publication: &Publication) -> bool {
        let about = &self.scenario.contents[publication.content];
        let (key, effects) = (about.scoped_key(), self.effects());
        let known = self.known();
        let same = |run: usize| {
            known.runs.get(run).is_some_and(|run| self.scenario.contents[run.content].payload == about.payload)
        };
        let acknowledges_conflicts = self.scenario.on_conflict == OnConflict::Acknowledge;
        let mut effects = effects.iter().filter(|(effect, _)| Some(effect) == key.as_ref());
        effects.any(|(_, run)| acknowledges_conflicts || same(*run))
    }

    /// Whether a dead letter has this message whole.
    pub(crate) fn is_set_aside(&self, publication: &Publication) -> bool {
        let same = |kept: &Message| {
            kept.payload() == publication.message.payload() && kept.headers() == publication.message.headers()
        };
        self.store.kept_dead_letters().iter().any(|row| row.message.as_ref().is_some_and(same))
    }

    /// A call to another service carries this key.
    pub(crate) fn called(&self, content: usize, derived_key: String) {
        let Some(key) = self.scenario.contents[content].scoped_key() else { return };
        let before = self.known().derived_keys.insert(key.clone(), derived_key.clone());
        if before.is_some_and(|before| before != derived_key) {
            self.journal.breach(Rule::OtherDerivedKey, format!("{key} is called with two keys"));
        }
    }

    /// The consumer's name, as it is now.
    pub(crate) fn consumer(&self) -> &'static str {
        NAMES[self.renamed.load(Ordering::SeqCst) % NAMES.len()]
    }

    pub(crate) fn behaviour(&self, content: usize) -> Behaviour {
        self.scenario.contents[content].behaviour
    }

    /// A process dies now.
    pub(crate) fn kill(&self, process: usize, down: u64) {
        let place = &self.places[process];
        let running = place.running.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(running) = running else { return };
        place.dies_at.store(u64::MAX, Ordering::SeqCst);
        place.down.store(down, Ordering::SeqCst);
        self.deaths.fetch_add(1, Ordering::SeqCst);
        self.journal.note(&Happened::Died { process, polls: running.life.polls() });
        running.life.kill();
        place.died.notify_one();
    }

    /// Whether a row of effects says that this content was handled. The rows are those of all runs that committed.
    pub(crate) fn effects(&self) -> Vec<(String, usize)> {
        self.runs_of(EFFECTS)
    }

    /// Key and run of each row.
    pub(crate) fn runs_of(&self, table: &str) -> Vec<(String, usize)> {
        let run = |value: &Bytes| std::str::from_utf8(value).ok()?.parse().ok();
        self.store.rows(table).into_iter().map(|(key, value)| (key, run(&value).unwrap_or(usize::MAX))).collect()
    }
}

#[allow(clippy::expect_used, reason = "what is drawn goes together, or the simulation itself is wrong")]
fn topic(scenario: &Scenario, generation: usize) -> (Queue, Queue) {
    let broker = Broker::new();
    let mut options = QueueOptions::default()
        .order(scenario.order)
        .positions(scenario.positions)
        .marks_redelivery(scenario.marks_redelivery)
        .revoke_within(Duration::from_secs(3))
        .seed(scenario.seed.wrapping_add(generation as u64));
    options.lease = scenario.lease;
    let queue = broker.create(QUEUE, options).expect("a queue as it is drawn");
    let dead_letters = broker.create(DEAD_LETTERS, QueueOptions::default().seed(scenario.seed)).expect("another name");
    (queue, dead_letters)
}
