//! One delivery on its way through the worker.

use std::{
    borrow::Borrow,
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    bugs::{self, Bug},
    dead_letter::{DeadLetterId, Reason},
    error::ErrorClass,
    hash::PayloadHash,
    names::{HashRuleId, IdempotencyKey, OrderingKey, ScopeId},
    policy::WaitCause,
    source::Assignment,
    unit::identify::Item,
    worker::{in_flight::Permit, view::waits::Waiting},
};

/// The key by which messages are held: the ordering key, else the idempotency key, else the message itself. Messages with equal hold
/// keys share a lane, so that copies of one message never wait for each other in the database.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum HoldKey {
    Order(OrderingKey),
    /// Of rows: those of the broker that are held until they have run hold none of them.
    Rows(OrderingKey),
    Key(ScopeId, IdempotencyKey),
    /// By its origin.
    Itself(Box<str>),
}

impl HoldKey {
    pub(crate) fn of(item: &Item) -> Self {
        match (item.message.ordering_key(), &item.claim) {
            (Some(order), _) if item.from_row => Self::Rows(order.clone()),
            (Some(order), _) => Self::Order(order.clone()),
            (None, Some(claim)) => Self::Key(claim.scope, claim.key.clone()),
            (None, None) => Self::Itself(item.message.origin().as_str().into()),
        }
    }
}

/// The delivery that waits for the settlement, or the row of a dead letter that runs again.
#[derive(Debug)]
pub(crate) enum DeliveredBy<H> {
    Broker(H),
    Row(DeadLetterId),
}

/// That a message is to be set aside, and why.
#[derive(Debug, Clone)]
pub(crate) struct DeadLetterCause {
    pub(crate) reason: Reason,
    pub(crate) class: ErrorClass,
    pub(crate) text: String,
    pub(crate) code: Option<String>,
    pub(crate) key: Option<IdempotencyKey>,
    pub(crate) hash: Option<(PayloadHash, HashRuleId)>,
    /// Whether it is set aside only while its key is claimed, because it may be running under another delivery.
    pub(crate) in_claim: bool,
    /// The fault that it counts as.
    pub(crate) counts: Counts,
    /// Until its later try, where it has one: it is kept as a row until then, and is no dead letter.
    pub(crate) after: Option<Duration>,
}

/// The fault that a dead letter counts as, beyond its own message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Counts {
    /// A handler failed on a fresh message: many of these open the breaker.
    Handler,
    /// No handler could ever see it: many of these are an alarm, and keep no message waiting.
    Producer,
    /// Nothing: a conflict, or a message that is too old.
    Nothing,
}

/// With whom a message runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Isolation {
    /// In a unit with others.
    None,
    /// In a unit of its own, its attempt counted before it runs: it failed in a batch, or was delivered before.
    Unit,
    /// The same, beside no other such message in the process: it may have ended an earlier process, as its source says,
    /// and it has not run in this one.
    Process,
}

/// How far the count of a message's attempts is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Attempt {
    /// None was counted.
    Uncounted,
    /// This one was counted and has not come to a verdict yet.
    Open(u32),
    /// This one came to a verdict, or cannot be taken back.
    Ended(u32),
}

impl Attempt {
    /// Its number; 0 where none was counted.
    pub(crate) fn number(self) -> u32 {
        match self {
            Self::Uncounted => 0,
            Self::Open(number) | Self::Ended(number) => number,
        }
    }

    pub(crate) fn ended(self) -> Self {
        match self {
            Self::Open(number) => Self::Ended(number),
            Self::Uncounted | Self::Ended(_) => self,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Job<H> {
    pub(crate) item: Item,
    pub(crate) from: DeliveredBy<H>,
    pub(crate) assignment: Assignment,
    /// Whether the broker says that it may have delivered this message before.
    pub(crate) redelivered: bool,
    pub(crate) isolation: Isolation,
    /// The attempts before it was kept as a row until now; it has one more, however many it gets at once.
    pub(crate) attempts_before: u32,
    /// It is a row, and no replay: it was never a dead letter.
    pub(crate) was_put_aside: bool,
    /// It is known that no record of its key existed a moment ago.
    pub(crate) looked_up: bool,
    /// The answer to the commit of its handler's writes was lost. A copy in the same unit is not marked, nor is a message that
    /// had its record before.
    pub(crate) unresolved: bool,
    pub(crate) attempt: Attempt,
    /// Counts of an attempt whose answer was lost, so that it is unknown whether they were done.
    pub(crate) counts_unanswered: u32,
    /// How often in a row its unit ran again after a conflict with another transaction, since it was last charged.
    pub(crate) again: u32,
    /// Connections that were lost under its handler when it ran alone.
    pub(crate) lost: u32,
    /// Waits in a row that charge nothing.
    pub(crate) waits: u32,
    /// Boxed, because few messages ever wait.
    pub(crate) waiting: Option<Box<Waiting>>,
    /// Boxed, because nearly every message is a good one.
    pub(crate) dead: Option<Box<DeadLetterCause>>,
    pub(crate) received_at: Instant,
    /// Its number among the messages of its lane, in the order in which they came.
    pub(crate) turn: u64,
    /// `None` for a row, of which a bounded number is taken at a time.
    pub(crate) permit: Option<Permit>,
}

impl<H> Job<H> {
    pub(crate) fn new(mut item: Item, from: DeliveredBy<H>, assignment: Assignment, permit: Option<Permit>) -> Self {
        item.from_row = matches!(from, DeliveredBy::Row(_));
        Self {
            item,
            from,
            assignment,
            redelivered: false,
            isolation: Isolation::None,
            attempts_before: 0,
            was_put_aside: false,
            looked_up: false,
            unresolved: false,
            attempt: Attempt::Uncounted,
            counts_unanswered: 0,
            again: 0,
            lost: 0,
            waits: 0,
            waiting: None,
            dead: None,
            received_at: permit.as_ref().map_or_else(Instant::now, Permit::arrived),
            turn: 0,
            permit,
        }
    }

    /// The lane, out of `lanes`, that serves it.
    pub(crate) fn lane(&self, lanes: usize) -> usize {
        if lanes == 1 {
            return 0;
        }
        let mut hasher = DefaultHasher::new();
        let key = match HoldKey::of(&self.item) {
            HoldKey::Rows(order) => HoldKey::Order(order),
            key @ (HoldKey::Order(_) | HoldKey::Key(..) | HoldKey::Itself(_)) => key,
        };
        key.hash(&mut hasher);
        usize::try_from(hasher.finish() % lanes.max(1) as u64).unwrap_or(0)
    }

    /// The number of its next attempt, which the store counted as `number`. Counts whose answer was lost may be among them, of
    /// attempts that never began. Where the broker says that the message was delivered before, another process may have died of
    /// each, so all stay counted.
    pub(crate) fn attempt_counted(&self, number: u32) -> u32 {
        let before = self.attempt.number();
        let may_have_run = self.redelivered || self.is_row();
        if (before == 0 && may_have_run) || bugs::planted(Bug::LostCountsCount) {
            return number;
        }
        number.saturating_sub(self.counts_unanswered).max(before + 1)
    }

    /// From now on it runs in a unit of its own.
    pub(crate) fn isolate(&mut self) {
        if self.isolation == Isolation::None {
            self.isolation = Isolation::Unit;
        }
    }

    /// Whether it has failed for good, and is held because the breaker is open.
    pub(crate) fn is_held_by_breaker(&self) -> bool {
        self.waiting.as_ref().is_some_and(|waiting| waiting.cause == WaitCause::Breaker)
    }

    /// Whether nothing is lost where it goes back to the broker and comes again: it was not found to fail for good, and no
    /// connection was lost under it, which is counted in memory only.
    pub(crate) fn may_go_back(&self) -> bool {
        !self.is_row() && self.dead.is_none() && self.lost == 0
    }

    pub(crate) fn is_row(&self) -> bool {
        matches!(self.from, DeliveredBy::Row(_))
    }
}

impl<H> Borrow<Item> for Job<H> {
    fn borrow(&self) -> &Item {
        &self.item
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Message;

    /// D36: an attempt that may not have begun is not counted, but no attempt has the number of one that was before.
    #[test]
    fn d36_counts_whose_answer_was_lost_are_no_attempts_and_attempts_go_on() {
        use Attempt::{Ended, Uncounted};
        // What was before, whether it was delivered before, lost answers, the store's number, and which attempt that is.
        let cases = [
            (Uncounted, false, 0, 1, 1),
            (Uncounted, false, 1, 2, 1),
            (Uncounted, false, 1, 1, 1),
            (Uncounted, true, 1, 2, 2),
            (Ended(2), false, 0, 3, 3),
            (Ended(2), true, 1, 4, 3),
            (Ended(2), false, 1, 3, 3),
        ];
        for (before, redelivered, unanswered, number, expected) in cases {
            let item = Item { message: Message::new(""), claim: None, from_row: false };
            let mut job = Job::new(item, DeliveredBy::Broker(()), Assignment::default(), None);
            (job.attempt, job.redelivered, job.counts_unanswered) = (before, redelivered, unanswered);
            let case = format!("{before:?}, {redelivered}, {unanswered} lost, {number}");
            assert_eq!(job.attempt_counted(number), expected, "{case}");
        }
    }
}
