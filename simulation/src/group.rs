//! A topic of several partitions and the group that shares them, as Kafka's coordinator sees it: who is a member, who holds
//! which partition, and how far each is done. A member of which nothing is heard for the length of a session is out, and is
//! told so when it is next heard of.

use std::{
    collections::{BTreeMap, VecDeque},
    ops::Range,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use idem_core::{
    Message,
    message::{OrderingKey, Origin},
};
use idem_testkit::memory::{Faults, Rate};
use tokio::{sync::Notify, time::Instant};

use crate::scenario::{Partitions, Protocol};

/// A part of a rebalance, for one member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    Assign(Vec<i32>),
    /// Still held, until it is let go.
    Revoke(Vec<i32>),
}

/// The group does not know this member, or cannot be reached by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    Unknown,
    Unreachable,
}

#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) settings: Partitions,
    state: Mutex<State>,
    /// Something happened that a member may want to know.
    pub(crate) changed: Notify,
}

#[derive(Debug)]
struct State {
    protocol: Protocol,
    session: Duration,
    partitions: Vec<Partition>,
    members: BTreeMap<u64, Member>,
    last_member: u64,
    /// By how many places partitions are moved on; another number is another assignment.
    shift: usize,
    /// Everything is given back first, where the protocol is eager.
    is_gathering: bool,
    unkeyed: usize,
    /// Until when processes reach nothing.
    cut: BTreeMap<usize, Instant>,
    faults: Faults,
}

#[derive(Debug, Default)]
struct Partition {
    log: Vec<Message>,
    /// The group's position.
    committed: Option<i64>,
    holder: Option<u64>,
    /// Its holder is to give it back.
    is_asked: bool,
}

#[derive(Debug)]
struct Member {
    heard: Instant,
    steps: VecDeque<Step>,
}

impl Group {
    pub(crate) fn new(settings: Partitions) -> Self {
        let mut partitions = Vec::new();
        partitions.resize_with(settings.count, Partition::default);
        let state = State {
            protocol: settings.protocol,
            session: settings.session,
            partitions,
            members: BTreeMap::new(),
            last_member: 0,
            shift: 0,
            is_gathering: false,
            unkeyed: 0,
            cut: BTreeMap::new(),
            faults: Faults::default(),
        };
        Self { settings, state: Mutex::new(state), changed: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let answer = change(&mut self.lock());
        self.changed.notify_waiters();
        answer
    }

    /// Appends a message to the partition of its record key, or to the next one where it has none. It is ordered within
    /// its partition only, as `idem-kafka` does it.
    pub(crate) fn publish(&self, message: Message) -> Origin {
        self.change(|state| {
            let count = state.partitions.len();
            let key = message.record_key().cloned();
            state.unkeyed += usize::from(key.is_none());
            let place = key.as_ref().map_or(state.unkeyed, |key| key.iter().map(|byte| usize::from(*byte)).sum());
            let number = place % count;
            let log = &mut state.partitions[number].log;
            let origin = origin(number, log.len());
            let mut order = format!("{number}").into_bytes();
            order.extend(key.iter().flat_map(|key| std::iter::once(&b'/').chain(key.iter())));
            log.push(message.with_origin(origin.clone()).with_ordering_key(OrderingKey::new(order)));
            origin
        })
    }

    pub(crate) fn misbehave(&self, faults: Faults) {
        self.lock().faults = faults;
    }

    /// A fault of the broker strikes, or does not.
    pub(crate) fn strikes(&self, fault: impl Fn(&Faults) -> Rate) -> bool {
        match fault(&self.lock().faults) {
            Rate::OneIn(n) if n > 0 => fastrand::u32(0..n) == 0,
            Rate::Always => true,
            Rate::Never | Rate::OneIn(_) => false,
        }
    }

    pub(crate) fn receive_delay(&self) -> Duration {
        self.lock().faults.receive_delay
    }

    /// Whether the group's positions are behind the last message of each partition.
    pub(crate) fn is_drained(&self) -> bool {
        self.lock().partitions.iter().all(|of| of.committed.unwrap_or_default() == length(&of.log))
    }

    /// The partitions with their positions, lengths and holders, for a person.
    pub(crate) fn describe(&self) -> String {
        let state = self.lock();
        let one = |of: &Partition| format!("{:?} of {} with {:?}", of.committed, of.log.len(), of.holder);
        state.partitions.iter().map(one).collect::<Vec<_>>().join(", ")
    }

    /// Moves partitions, although every member is there.
    pub(crate) fn rebalance(&self) {
        self.change(|state| {
            state.shift += 1;
            state.aim();
        });
    }

    /// Turns every member out, as a coordinator does that has lost the group's members.
    pub(crate) fn turn_out(&self) {
        self.change(|state| {
            let members: Vec<u64> = state.members.keys().copied().collect();
            members.into_iter().for_each(|member| state.remove(member));
        });
    }

    /// A process reaches nothing until then.
    pub(crate) fn cut_off(&self, process: usize, until: Instant) {
        self.lock().cut.insert(process, until);
    }

    /// Every process reaches the group again.
    pub(crate) fn heal(&self) {
        self.change(|state| state.cut.clear());
    }

    fn reached_by<T>(&self, process: usize, reached: impl FnOnce(&mut State, Instant) -> T) -> Result<T, Refused> {
        let now = Instant::now();
        let mut state = self.lock();
        if state.cut.get(&process).is_some_and(|until| now < *until) {
            return Err(Refused::Unreachable);
        }
        state.pass(now);
        let answer = reached(&mut state, now);
        drop(state);
        Ok(answer)
    }

    /// A process becomes a member.
    pub(crate) fn join(&self, process: usize) -> Result<u64, Refused> {
        let joined = self.reached_by(process, |state, now| {
            state.last_member += 1;
            state
                .members
                .insert(state.last_member, Member { heard: now, steps: VecDeque::from([Step::Assign(vec![])]) });
            state.aim();
            state.last_member
        });
        if joined.is_ok() {
            self.changed.notify_waiters();
        }
        joined
    }

    /// A member lives.
    pub(crate) fn hear(&self, process: usize, member: u64) -> Result<(), Refused> {
        self.reached_by(process, |state, now| {
            let known = state.members.get_mut(&member).ok_or(Refused::Unknown)?;
            known.heard = now;
            Ok(())
        })?
    }

    /// The member's next step.
    pub(crate) fn step(&self, process: usize, member: u64) -> Option<Step> {
        self.reached_by(process, |state, _| state.members.get_mut(&member)?.steps.pop_front()).ok()?
    }

    /// A member gives partitions back.
    pub(crate) fn let_go(&self, process: usize, member: u64, partitions: &[i32]) -> Result<(), Refused> {
        let gone = self.reached_by(process, |state, _| {
            for partition in state.of(partitions) {
                if partition.holder == Some(member) {
                    (partition.holder, partition.is_asked) = (None, false);
                }
            }
            state.assign();
        });
        if gone.is_ok() {
            self.changed.notify_waiters();
        }
        gone
    }

    /// A member goes.
    pub(crate) fn leave(&self, process: usize, member: u64) {
        // One that is not heard is waited for until its session ends.
        let _ = self.reached_by(process, |state, _| state.remove(member));
        self.changed.notify_waiters();
    }

    /// Whether this member is in the group.
    pub(crate) fn has(&self, member: u64) -> bool {
        self.lock().members.contains_key(&member)
    }

    /// The group's positions.
    pub(crate) fn committed(&self, process: usize, partitions: &[i32]) -> Result<Vec<Option<i64>>, Refused> {
        self.reached_by(process, |state, _| state.of(partitions).map(|of| of.committed).collect())
    }

    /// Stores a position that a member sends. Answers what it has passed now, and whether the member holds the partition:
    /// the group itself asks for its membership alone.
    pub(crate) fn commit(
        &self,
        process: usize,
        member: u64,
        partition: i32,
        position: i64,
    ) -> Result<(Range<i64>, bool), Refused> {
        self.reached_by(process, |state, _| {
            if !state.members.contains_key(&member) {
                return Err(Refused::Unknown);
            }
            let of = state.one(partition).ok_or(Refused::Unknown)?;
            let before = of.committed.replace(position).unwrap_or_default();
            Ok((before..position, of.holder == Some(member)))
        })?
    }

    /// At most so many records of a partition from there on, and whether they reach its end.
    pub(crate) fn fetch(
        &self,
        process: usize,
        partition: i32,
        from: i64,
        max: usize,
    ) -> Result<(Vec<Message>, bool), Refused> {
        self.reached_by(process, |state, _| {
            let log = state.one(partition).map(|of| &of.log[..]).unwrap_or_default();
            let rest = log.get(usize::try_from(from).unwrap_or_default()..).unwrap_or_default();
            (rest.iter().take(max).cloned().collect(), rest.len() <= max)
        })
    }
}

impl State {
    fn of<'s>(&'s mut self, partitions: &'s [i32]) -> impl Iterator<Item = &'s mut Partition> {
        let numbered = self.partitions.iter_mut().zip(0..);
        numbered.filter(|(_, number)| partitions.contains(number)).map(|(partition, _)| partition)
    }

    fn one(&mut self, partition: i32) -> Option<&mut Partition> {
        self.partitions.get_mut(usize::try_from(partition).ok()?)
    }

    /// Members that were not heard for the length of a session are out.
    fn pass(&mut self, now: Instant) {
        let silent = |(id, member): (&u64, &Member)| (now >= member.heard + self.session).then_some(*id);
        let silent: Vec<u64> = self.members.iter().filter_map(silent).collect();
        silent.into_iter().for_each(|member| self.remove(member));
    }

    fn remove(&mut self, member: u64) {
        if self.members.remove(&member).is_none() {
            return;
        }
        for partition in self.partitions.iter_mut().filter(|of| of.holder == Some(member)) {
            (partition.holder, partition.is_asked) = (None, false);
        }
        self.aim();
    }

    /// Who is to hold the partition.
    fn holder_of(&self, partition: usize) -> Option<u64> {
        let count = self.members.len();
        (count > 0).then(|| self.members.keys().nth((partition + self.shift) % count).copied())?
    }

    /// The members, or their shares, are others: asks for what moves, which is everything where the protocol is eager.
    fn aim(&mut self) {
        let is_eager = self.protocol == Protocol::Eager;
        self.is_gathering = is_eager;
        let mut asked: BTreeMap<u64, Vec<i32>> = BTreeMap::new();
        for number in 0..self.partitions.len() {
            let to = self.holder_of(number);
            let partition = &mut self.partitions[number];
            if let Some(holder) = partition.holder
                && !partition.is_asked
                && (is_eager || to != Some(holder))
            {
                partition.is_asked = true;
                asked.entry(holder).or_default().push(i32::try_from(number).unwrap_or_default());
            }
        }
        for (member, partitions) in asked {
            self.tell(member, Step::Revoke(partitions));
        }
        self.assign();
    }

    /// Assigns what is free; where the protocol is eager, once everything is.
    fn assign(&mut self) {
        if self.is_gathering && self.partitions.iter().any(|of| of.holder.is_some()) {
            return;
        }
        self.is_gathering = false;
        let mut given: BTreeMap<u64, Vec<i32>> = BTreeMap::new();
        for number in 0..self.partitions.len() {
            let to = self.holder_of(number);
            let partition = &mut self.partitions[number];
            if let (None, Some(to)) = (partition.holder, to) {
                partition.holder = Some(to);
                given.entry(to).or_default().push(i32::try_from(number).unwrap_or_default());
            }
        }
        for (member, partitions) in given {
            self.tell(member, Step::Assign(partitions));
        }
    }

    fn tell(&mut self, member: u64, step: Step) {
        if let Some(member) = self.members.get_mut(&member) {
            member.steps.push_back(step);
        }
    }
}

fn origin(partition: usize, offset: usize) -> Origin {
    Origin::new(&format!("orders/{partition}/{offset}"))
}

/// The origin of a message, of which the world knows the number.
pub(crate) fn origin_of(partition: i32, offset: i64) -> String {
    format!("orders/{partition}/{offset}")
}

fn length(log: &[Message]) -> i64 {
    i64::try_from(log.len()).unwrap_or(i64::MAX)
}
