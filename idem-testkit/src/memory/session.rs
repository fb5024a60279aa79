//! A consumer's connection to a queue, as the broker sees it. It is the same whether the consumer is in this process or
//! at the other end of a socket.

use std::{collections::VecDeque, time::Duration};

use idem_core::{
    SourceError,
    source::{Attached, Settled, SourceCapabilities},
};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::{
    broker::{Broker, Inner, Queue, Revoke, Seat, wait},
    options::QueueOptions,
    state::{Answer, Handed, Receipt},
};

/// The answer to a receive.
#[derive(Debug)]
pub(super) enum Got {
    Deliveries(Vec<Handed>),
    Revoked(u64, Revoke),
    /// The consumer has stopped.
    End,
    /// The connection is gone.
    Gone,
    Failed(SourceError),
}

/// The answer to attaching.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Facts {
    pub(super) seat: u64,
    pub(super) positions: bool,
    pub(super) marks_redelivery: bool,
    pub(super) lease: Option<Duration>,
    pub(super) delivery_limit: Option<u32>,
    pub(super) drops_at_limit: bool,
}

impl Queue {
    pub(super) fn facts(&self) -> Facts {
        Facts::of(&self.lock().state.options)
    }
}

impl Facts {
    fn of(options: &QueueOptions) -> Self {
        Self {
            seat: 0,
            positions: options.positions,
            marks_redelivery: options.marks_redelivery && !options.positions,
            lease: options.lease,
            delivery_limit: options.delivery_limit,
            drops_at_limit: options.delivery_limit.is_some() && options.dead_letter_queue.is_none(),
        }
    }

    pub(super) fn attached(&self, bound_to: String) -> Attached {
        let mut attached = Attached::new(bound_to);
        attached.hold_max = self.lease;
        attached.delivery_limit = self.delivery_limit;
        if self.drops_at_limit {
            attached.warnings.push(
                "the queue drops messages at its delivery limit: give it a dead_letter_queue, or no delivery_limit"
                    .to_owned(),
            );
        }
        attached
    }

    pub(super) fn capabilities(&self) -> SourceCapabilities {
        SourceCapabilities::minimal().marks_redelivery(self.marks_redelivery)
    }
}

/// A consumer's seat at a queue. Dropping it leaves.
#[derive(Debug)]
pub(super) struct Session {
    queue: Queue,
    seat: u64,
}

impl Session {
    pub(super) fn unknown(queue: &str) -> SourceError {
        SourceError::Refused {
            problem: format!("queue {queue:?} does not exist"),
            cure: "Create it on the broker, or correct the name".into(),
        }
    }

    /// Takes a seat.
    pub(super) async fn attach(broker: &Broker, queue: &str) -> Result<(Self, Facts), SourceError> {
        let queue = broker.queue(queue).ok_or_else(|| Self::unknown(queue))?;
        answering(&queue).await;
        // A seat is named after its first assignment, which is unique.
        let seat = broker.next_assignment();
        let facts = queue.change(|inner| {
            let taken = Seat { assignment: seat, stopped: false, revoking: None, unheard: VecDeque::new() };
            inner.seats.insert(seat, taken);
            Facts { seat, ..Facts::of(&inner.state.options) }
        });
        Ok((Self { queue, seat }, facts))
    }

    /// Waits for something to hand over; with no `max`, for what is no delivery.
    ///
    /// Cancel safe: deliveries are taken in the same poll in which they are answered.
    pub(super) async fn receive(&self, max: usize) -> Got {
        let delay = self.queue.lock().state.faults.receive_delay;
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        let failed = self.queue.change_quietly(|inner| {
            let faults = inner.state.faults;
            faults.receives_failed.strikes(&mut inner.state.rng)
        });
        if failed {
            let source = "a fault".into();
            return Got::Failed(SourceError::Unavailable { doing: "receiving", source });
        }
        loop {
            let changed = self.queue.slot.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let (got, timer) = self.queue.change_quietly(|inner| (self.look(inner, max), inner.next_timer()));
            if let Some(got) = got {
                if matches!(got, Got::Deliveries(_)) {
                    // A caller that waits for deliveries is woken.
                    self.queue.slot.changed.notify_waiters();
                }
                return got;
            }
            wait(changed, timer).await;
        }
    }

    fn look(&self, inner: &mut Inner, max: usize) -> Option<Got> {
        let Inner { state, seats } = inner;
        if state.faults.hangs {
            return None;
        }
        let first = seats.first_key_value().is_some_and(|(first, _)| *first == self.seat);
        let Some(seat) = seats.get_mut(&self.seat) else { return Some(Got::Gone) };
        if let Some((assignment, how)) = seat.unheard.pop_front() {
            return Some(Got::Revoked(assignment, how));
        }
        if seat.stopped {
            return Some(Got::End);
        }
        // One consumer has all of a topic that keeps positions.
        if seat.revoking.is_some() || (state.options.positions && !first) {
            return None;
        }
        let handed = state.take(seat.assignment, max, Instant::now());
        if handed.is_empty() { None } else { Some(Got::Deliveries(handed)) }
    }

    /// One answer for each, in order. Nothing is done before the broker answers at all.
    pub(super) async fn settle(&self, settlements: Vec<(Receipt, Answer)>) -> Vec<Settled> {
        answering(&self.queue).await;
        let now = Instant::now();
        self.queue.change(|inner| {
            let assignment = inner.seats.get(&self.seat).map(|seat| seat.assignment);
            let one = |(receipt, answer): (Receipt, Answer)| {
                // A handle of another assignment is over, even where the same message is in flight again.
                let valid = Some(receipt.assignment) == assignment;
                inner.state.settle(if valid { receipt } else { Receipt { number: 0, ..receipt } }, answer, now)
            };
            settlements.into_iter().map(one).collect()
        })
    }

    /// The consumer has settled what it held of this assignment.
    pub(super) fn drained(&self, assignment: u64) {
        self.queue.change(|inner| {
            let Inner { state, seats } = inner;
            if let Some(seat) = seats.get_mut(&self.seat)
                && seat.assignment == assignment
                && seat.revoking.is_some()
            {
                seat.renew(state, &self.queue.broker);
            }
        });
    }

    /// Whether every message that is not settled for good is in this consumer's own hands.
    pub(super) async fn is_idle(&self) -> bool {
        answering(&self.queue).await;
        self.queue.change_quietly(|inner| {
            inner.seats.get(&self.seat).is_some_and(|seat| inner.state.is_idle(seat.assignment))
        })
    }

    /// Receives nothing more.
    pub(super) fn stop(&self) {
        self.queue.change(|inner| {
            if let Some(seat) = inner.seats.get_mut(&self.seat) {
                seat.stopped = true;
            }
        });
    }

    /// Leaves, once the broker answers.
    pub(super) async fn leave(&self) {
        answering(&self.queue).await;
        self.go();
    }

    /// Leaves: its messages return.
    pub(super) fn go(&self) {
        self.queue.change(|inner| {
            if let Some(seat) = inner.seats.remove(&self.seat) {
                inner.state.end_assignment(seat.assignment);
            }
        });
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.go();
    }
}

/// Waits until the queue answers at all.
async fn answering(queue: &Queue) {
    loop {
        let changed = queue.slot.changed.notified();
        tokio::pin!(changed);
        changed.as_mut().enable();
        if !queue.lock().state.faults.hangs {
            return;
        }
        changed.await;
    }
}
