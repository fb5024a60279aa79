//! State of the polling thread and the worker's tasks: the buffer, the partitions that are held, and pending announcements.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use idem_core::{
    Message, SourceError,
    source::{Assignment, Delivery, Received, Revocation, Settle, Settled},
};
use tokio::{
    sync::{
        Notify,
        oneshot::{self, error::RecvError},
    },
    time::Instant,
};

use crate::offsets::Offsets;

/// How many messages, and how many bytes of them, wait for the worker before partitions are paused. One more message may
/// exceed the bytes. Half of it must be gone before they are resumed, because a pause throws away what the client library
/// fetched ahead; the other half lasts until it is fetched anew (with 10,000 messages a fast worker ran dry: 45,000 a second
/// instead of 105,000).
const BUFFER_MESSAGES: usize = 40_000;
const BUFFER_BYTES: usize = 16 << 20;

/// The handle that settles one delivery.
#[derive(Debug)]
pub struct KafkaHandle {
    partition: i32,
    offset: i64,
    assignment: Assignment,
}

type KafkaDelivery = Delivery<KafkaHandle>;

/// Held by the thread and the source together.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    state: Mutex<State>,
    /// There is something for `receive`.
    arrived: Notify,
    /// The thread is done.
    ended: Notify,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    buffer: VecDeque<KafkaDelivery>,
    buffer_bytes: usize,
    held: BTreeMap<i32, Held>,
    revocations: VecDeque<Revocation>,
    failure: Option<SourceError>,
    /// Since when no broker can be reached.
    unreachable_since: Option<Instant>,
    /// Callers that wait until the group has the positions of this moment. One that is dropped did not get them.
    flushes: Vec<oneshot::Sender<()>>,
    /// The group has given this member its share, which may be nothing.
    joined: bool,
    assignments: u64,
    stopped: bool,
    ending: Option<Ending>,
    running: bool,
}

/// How the thread is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Commit finished positions, and leave the group.
    Close,
    /// Only leave the group, as the source was dropped.
    Drop,
}

/// One partition under one assignment.
#[derive(Debug)]
struct Held {
    assignment: Assignment,
    offsets: Offsets,
    /// The last record that the broker has was delivered.
    at_end: bool,
    /// It moves to another member: nothing more is taken from it.
    draining: bool,
    /// A record was dropped, so that the client library is ahead of the last delivery.
    dropped: bool,
    /// The position that the group has, as it was last read.
    committed: Option<i64>,
    /// Records and ends of the partition that were seen; the watchdog asks whether it moves.
    seen: u64,
    /// Where the partition ended when the brokers were last asked.
    end: Option<i64>,
}

/// How far a partition is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Position {
    pub(crate) partition: i32,
    pub(crate) offset: i64,
}

/// Where a partition starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Start {
    pub(crate) partition: i32,
    pub(crate) offset: i64,
    /// The group has it already.
    pub(crate) committed: bool,
}

/// The group's position in a partition, compared with the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Heard {
    Same,
    Moved,
    /// The group had one, and has none now.
    Vanished,
}

/// The watchdog's view of one partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Progress {
    pub(crate) partition: i32,
    pub(crate) assignment: Assignment,
    pub(crate) next: i64,
    pub(crate) at_end: bool,
    pub(crate) seen: u64,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing in here panics between two changes that belong together.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next thing to hand over. Nothing is lost if the caller is dropped: whatever is taken is returned at once.
    pub(crate) async fn receive(&self, max: usize) -> Result<Received<KafkaHandle>, SourceError> {
        loop {
            if let Some(answer) = self.lock().next(max) {
                return answer;
            }
            self.arrived.notified().await;
        }
    }

    pub(crate) fn settle(&self, settlements: Vec<(KafkaHandle, Settle)>) -> Vec<Settled> {
        let mut state = self.lock();
        settlements.into_iter().map(|(handle, settle)| state.settle(&handle, settle)).collect()
    }

    /// Waits until the group has the positions of this moment; an error if they were not committed.
    pub(crate) async fn flush(&self) -> Result<(), RecvError> {
        let (done, flushed) = oneshot::channel();
        self.lock().await_flush(done);
        flushed.await
    }

    /// The callers that began to wait for a commit since the last call.
    pub(crate) fn take_flushes(&self) -> Vec<oneshot::Sender<()>> {
        std::mem::take(&mut self.lock().flushes)
    }

    pub(crate) fn holds_back(&self, handle: &KafkaHandle) -> bool {
        self.asks(handle, |offsets| offsets.holds_back(handle.offset))
    }

    pub(crate) fn is_held_back(&self, handle: &KafkaHandle) -> bool {
        self.asks(handle, |offsets| offsets.is_held_back(handle.offset))
    }

    /// Asks the offsets of a delivery's assignment; `false` where that is over.
    fn asks(&self, handle: &KafkaHandle, asked: impl FnOnce(&Offsets) -> bool) -> bool {
        let state = self.lock();
        let held = state.held.get(&handle.partition).filter(|held| held.assignment == handle.assignment);
        held.is_some_and(|held| asked(&held.offsets))
    }

    /// Whether the group has given this member its share, which may be nothing.
    pub(crate) fn has_joined(&self) -> bool {
        self.lock().joined
    }

    pub(crate) fn is_idle(&self) -> bool {
        let state = self.lock();
        let at_end = |held: &Held| held.at_end && !held.draining && held.offsets.in_hand() == 0;
        state.running && state.joined && state.held.values().all(at_end)
    }

    /// Nothing more is handed over; the buffer goes back.
    pub(crate) fn stop(&self) {
        let mut state = self.lock();
        state.stopped = true;
        state.empty_buffer(|_| true);
        drop(state);
        self.arrived.notify_one();
    }

    /// The thread runs from now on, unless the source was closed meanwhile.
    pub(crate) fn begin(&self) -> bool {
        let mut state = self.lock();
        state.running = state.ending.is_none();
        state.running
    }

    pub(crate) fn end(&self, how: Ending) {
        let mut state = self.lock();
        state.ending.get_or_insert(how);
        state.stopped = true;
        drop(state);
        self.arrived.notify_one();
    }

    /// How the thread is to end, once it is.
    pub(crate) fn ending(&self) -> Option<Ending> {
        self.lock().ending
    }

    /// Waits until the thread has ended.
    pub(crate) async fn ended(&self) {
        let ended = self.ended.notified();
        tokio::pin!(ended);
        // Registered before the look, so that an end in between is not missed.
        ended.as_mut().enable();
        if self.lock().running {
            ended.await;
        }
    }

    /// The thread has ended, or is not waited for any longer: every handle is over.
    pub(crate) fn over(&self, failure: Option<SourceError>) {
        let mut state = self.lock();
        state.running = false;
        state.held.clear();
        state.empty_buffer(|_| true);
        state.revocations.clear();
        state.flushes.clear();
        state.failure = state.failure.take().or(failure);
        drop(state);
        self.arrived.notify_one();
        self.ended.notify_waiters();
    }

    /// Takes in records, each with its partition and offset. Those that are not wanted are dropped, and come again.
    pub(crate) fn deliver(&self, records: Vec<(i32, i64, Message)>) {
        if records.is_empty() {
            return;
        }
        let mut state = self.lock();
        let state = &mut *state;
        state.unreachable_since = None;
        for (partition, offset, message) in records {
            let Some(held) = state.held.get_mut(&partition) else { continue };
            if state.stopped || held.draining {
                held.dropped = true;
                continue;
            }
            if !held.offsets.deliver(offset) {
                continue;
            }
            held.at_end = false;
            held.seen += 1;
            let assignment = held.assignment;
            let handle = KafkaHandle { partition, offset, assignment };
            state.buffer_bytes += message.bytes();
            state.buffer.push_back(Delivery {
                message,
                attempt: 1,
                redelivered: false,
                suspect: false,
                assignment,
                handle,
            });
        }
        self.arrived.notify_one();
    }

    pub(crate) fn reached_end(&self, partition: i32) {
        if let Some(held) = self.lock().held.get_mut(&partition) {
            held.at_end = true;
            held.seen += 1;
        }
    }

    /// How far the client library has handed over: behind the last record there may be markers of transactions and records
    /// of aborted ones, which are never delivered.
    pub(crate) fn passed(&self, partition: i32, offset: i64) {
        if let Some(held) = self.lock().held.get_mut(&partition) {
            // Before the first record or end the library may still know where the assignment before this one was.
            if held.seen > 0 && !held.dropped {
                held.offsets.pass(offset);
            }
        }
    }

    pub(crate) fn fail(&self, failure: SourceError) {
        self.lock().failure = Some(failure);
        self.arrived.notify_one();
    }

    /// No broker can be reached.
    pub(crate) fn unreachable(&self) {
        self.lock().unreachable_since.get_or_insert_with(Instant::now);
    }

    /// A broker answers.
    pub(crate) fn reachable(&self) {
        self.lock().unreachable_since = None;
    }

    pub(crate) fn unreachable_for(&self) -> Option<Duration> {
        self.lock().unreachable_since.map(|since| since.elapsed())
    }

    /// Whether partitions must be paused, or resumed; `None` in between.
    pub(crate) fn full(&self) -> Option<bool> {
        let state = self.lock();
        if state.stopped || state.is_full() {
            return Some(true);
        }
        let low = state.buffer.len() <= BUFFER_MESSAGES / 2 && state.buffer_bytes <= BUFFER_BYTES / 2;
        low.then_some(false)
    }

    /// Partitions begin.
    pub(crate) fn assign(&self, starts: &[Start]) {
        let mut state = self.lock();
        state.joined = true;
        for start in starts {
            state.assignments += 1;
            let held = Held {
                assignment: Assignment(state.assignments),
                offsets: Offsets::new(start.offset),
                at_end: false,
                draining: false,
                dropped: false,
                committed: start.committed.then_some(start.offset),
                seen: 0,
                end: None,
            };
            state.held.insert(start.partition, held);
        }
    }

    /// Partitions are to end, and are still held: nothing more is taken from them. Answered when the worker has finished.
    pub(crate) fn drain(&self, partitions: &[i32]) -> oneshot::Receiver<()> {
        let mut state = self.lock();
        let (drained, answer) = oneshot::channel();
        let assignments = state.ending_assignments(partitions);
        // An eager group revokes everything from every member at each rebalance, also from one that has nothing.
        if assignments.is_empty() {
            return answer;
        }
        state.revocations.push_back(Revocation { assignments, drained: Some(drained) });
        drop(state);
        self.arrived.notify_one();
        answer
    }

    /// Whether no caller is left to answer a drain, and no message that it would wait for.
    pub(crate) fn is_drained(&self, partitions: &[i32]) -> bool {
        let state = self.lock();
        let out_of_hand = |partition| state.held.get(partition).is_none_or(|held| held.offsets.in_hand() == 0);
        state.stopped && partitions.iter().all(out_of_hand)
    }

    /// Partitions are over. Those that were not announced before are announced as lost.
    pub(crate) fn forget(&self, partitions: &[i32]) {
        let mut state = self.lock();
        let told = partitions.iter().all(|partition| state.held.get(partition).is_none_or(|held| held.draining));
        let assignments = state.ending_assignments(partitions);
        partitions.iter().for_each(|partition| drop(state.held.remove(partition)));
        if !told {
            state.revocations.push_back(Revocation { assignments, drained: None });
            drop(state);
            self.arrived.notify_one();
        }
    }

    /// The partitions that are held and not about to end.
    pub(crate) fn partitions(&self) -> Vec<i32> {
        let state = self.lock();
        state.held.iter().filter(|(_, held)| !held.draining).map(|(partition, _)| *partition).collect()
    }

    /// The positions that the group does not have yet, as far as it is known.
    pub(crate) fn changed(&self, among: &impl Fn(i32) -> bool) -> Vec<Position> {
        let state = self.lock();
        let changed = |(partition, held): (&i32, &Held)| {
            let offset = held.offsets.position();
            (held.committed != Some(offset) && among(*partition)).then_some(Position { partition: *partition, offset })
        };
        state.held.iter().filter_map(changed).collect()
    }

    /// Notes the position that the group has.
    pub(crate) fn committed(&self, partition: i32, theirs: Option<i64>) -> Heard {
        let mut state = self.lock();
        let Some(held) = state.held.get_mut(&partition) else { return Heard::Same };
        let heard = match theirs {
            None if held.committed.is_some() => Heard::Vanished,
            _ if theirs == held.committed => Heard::Same,
            _ => Heard::Moved,
        };
        held.committed = theirs.or(held.committed);
        heard
    }

    /// Where partitions end now, behind their last records.
    pub(crate) fn ends(&self, ends: &BTreeMap<i32, i64>) {
        let mut state = self.lock();
        for (partition, end) in ends {
            if let Some(held) = state.held.get_mut(partition) {
                held.end = Some(*end);
            }
        }
    }

    /// The partitions that are held and not about to end, in order, each with how many of its records are not finished.
    /// Records that compaction or an aborted transaction removed count until they are passed.
    pub(crate) fn lag(&self) -> Vec<(i32, Option<u64>)> {
        let behind = |held: &Held| {
            let position = held.offsets.position();
            // More may have been delivered since the brokers were asked.
            held.end.map(|end| u64::try_from(end.max(held.offsets.next()) - position).unwrap_or_default())
        };
        let state = self.lock();
        let kept = state.held.iter().filter(|(_, held)| !held.draining);
        let mut lag: Vec<_> = kept.map(|(partition, held)| (*partition, behind(held))).collect();
        lag.sort_unstable();
        lag
    }

    pub(crate) fn progress(&self) -> Vec<Progress> {
        let progress = |(partition, held): (&i32, &Held)| Progress {
            partition: *partition,
            assignment: held.assignment,
            next: held.offsets.next(),
            at_end: held.at_end,
            seen: held.seen,
        };
        self.lock().held.iter().map(progress).collect()
    }
}

impl State {
    fn await_flush(&mut self, done: oneshot::Sender<()>) {
        // A thread that has ended would never answer.
        if self.running {
            self.flushes.push(done);
        }
    }

    fn next(&mut self, max: usize) -> Option<Result<Received<KafkaHandle>, SourceError>> {
        if let Some(failure) = self.failure.take() {
            return Some(Err(failure));
        }
        if let Some(revocation) = self.revocations.pop_front() {
            return Some(Ok(Received::Revoked(revocation)));
        }
        if self.stopped {
            return Some(Ok(Received::End));
        }
        let count = max.min(self.buffer.len());
        if count == 0 {
            return None;
        }
        let deliveries: Vec<_> = self.buffer.drain(..count).collect();
        self.buffer_bytes -= deliveries.iter().map(|delivery| delivery.message.bytes()).sum::<usize>();
        Some(Ok(Received::Deliveries(deliveries)))
    }

    fn settle(&mut self, handle: &KafkaHandle, settle: Settle) -> Settled {
        let held = self.held.get_mut(&handle.partition).filter(|held| held.assignment == handle.assignment);
        let Some(held) = held else { return Settled::Stale };
        let settled = match settle {
            Settle::Acknowledge(_) | Settle::DeadLetter(_) => held.offsets.finish(handle.offset),
            // A position says nothing of a single message: it stays behind this one, and under the next assignment the
            // message comes back. Core releases at a stop and at the end of an assignment only.
            Settle::Release { .. } => held.offsets.release(handle.offset),
        };
        if settled { Settled::Settled } else { Settled::Stale }
    }

    /// Marks the partitions, and drops their messages that were not handed over.
    fn ending_assignments(&mut self, partitions: &[i32]) -> Vec<Assignment> {
        let mut assignments = Vec::new();
        for partition in partitions {
            if let Some(held) = self.held.get_mut(partition) {
                held.draining = true;
                assignments.push(held.assignment);
            }
        }
        self.empty_buffer(|delivery| assignments.contains(&delivery.assignment));
        assignments
    }

    fn is_full(&self) -> bool {
        self.buffer.len() >= BUFFER_MESSAGES || self.buffer_bytes >= BUFFER_BYTES
    }

    fn empty_buffer(&mut self, of: impl Fn(&KafkaDelivery) -> bool) {
        let kept = self.buffer.drain(..).filter_map(|delivery| {
            if !of(&delivery) {
                return Some(delivery);
            }
            self.buffer_bytes -= delivery.message.bytes();
            if let Some(held) = self.held.get_mut(&delivery.handle.partition) {
                held.offsets.release(delivery.handle.offset);
            }
            None
        });
        self.buffer = kept.collect();
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot::error::TryRecvError;

    use super::*;

    #[test]
    fn e8_the_end_of_nothing_is_announced_to_nobody() {
        let shared = Shared::default();
        assert_eq!(shared.drain(&[0, 1]).try_recv(), Err(TryRecvError::Closed), "it is answered at once");
        assert!(shared.lock().revocations.is_empty());
    }

    /// J81: the lag counts unfinished records, in hand or not fetched yet, and is unknown before the brokers answered.
    #[test]
    fn j81_a_partition_is_behind_by_what_is_not_finished() {
        let shared = Shared::default();
        let start = |partition, offset| Start { partition, offset, committed: false };
        shared.assign(&[start(1, 0), start(0, 5)]);
        assert_eq!(shared.lag(), [(0, None), (1, None)]);
        shared.ends(&BTreeMap::from([(0, 9), (1, 0), (2, 7)]));
        assert_eq!(shared.lag(), [(0, Some(4)), (1, Some(0))]);
        shared.deliver((5..12).map(|offset| (0, offset, Message::new("x"))).collect());
        assert_eq!(shared.lag(), [(0, Some(7)), (1, Some(0))], "more came since the brokers were asked");
        let _ending = shared.drain(&[0]);
        assert_eq!(shared.lag(), [(1, Some(0))]);
    }

    /// Dropped messages come again, however far the client library is.
    #[test]
    fn e22_positions_pass_only_what_was_not_dropped() {
        let shared = Shared::default();
        let position = || shared.changed(&|_| true)[0].offset;
        let message = || Message::new("x");
        shared.assign(&[Start { partition: 0, offset: 5, committed: false }]);
        shared.passed(0, 9);
        assert_eq!(position(), 5, "that may be where the assignment before this one was");
        shared.reached_end(0);
        shared.passed(0, 9);
        assert_eq!(position(), 9);
        shared.deliver(vec![(0, 9, message())]);
        shared.passed(0, 12);
        assert_eq!(position(), 9, "it is in hand");
        let Some(Ok(Received::Deliveries(held))) = shared.lock().next(1) else { panic!("nothing was delivered") };
        shared.settle(
            held.into_iter().map(|delivery| (delivery.handle, Settle::Release { after: Duration::ZERO })).collect(),
        );
        assert_eq!(position(), 9, "nobody has it, and it comes again");
        shared.assign(&[Start { partition: 0, offset: 9, committed: false }]);
        shared.reached_end(0);
        shared.stop();
        shared.deliver(vec![(0, 9, message())]);
        shared.passed(0, 10);
        assert_eq!(position(), 9, "it was dropped");
    }
}
