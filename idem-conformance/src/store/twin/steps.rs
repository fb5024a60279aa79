//! The steps that both take. A number names the id of this place among those that the store has answered so far, counted
//! round, so that a sequence stays valid when steps are left out.

use std::time::Duration;

use idem_core::{
    Retention,
    cleanup::Expiring,
    dead_letter::Reason,
    outbox::{EventEnd, IdForm},
};

/// One step of a sequence.
#[derive(Debug, Clone)]
pub(super) enum Step {
    Register {
        tenant: usize,
        bound_to: Option<&'static str>,
        handler: Option<&'static str>,
        key_rule: &'static str,
        hash_rules: Vec<&'static str>,
    },
    /// The scope of a tenant, of this consumer or of an unregistered one.
    Scope {
        tenant: usize,
        registered: bool,
    },
    Unit(Unit),
    /// The second begins and claims while the first is open, and ends after it.
    Meet(Unit, Unit),
    Count(Payload),
    Uncount(Payload),
    EndAttempts(Payload),
    Store(Box<Letter>),
    Replay(ReplayStep),
    SetControl(Wish),
    Audit {
        key: Option<usize>,
        details: &'static str,
    },
    /// Time goes by.
    Age(Duration),
    Clean(Expiring),
    Outbox(OutboxStep),
}

impl Step {
    /// The view that it may change without claiming anything. The rest is looked at in the end.
    pub(super) fn changes(&self) -> Option<View> {
        match self {
            Self::Register { .. }
            | Self::Scope { .. }
            | Self::Store(_)
            | Self::Replay(_)
            | Self::SetControl(_)
            | Self::Age(_)
            | Self::Clean(_) => Some(View::Books),
            Self::Outbox(_) => Some(View::Outbox),
            Self::Unit(_)
            | Self::Meet(..)
            | Self::Count(_)
            | Self::Uncount(_)
            | Self::EndAttempts(_)
            | Self::Audit { .. } => None,
        }
    }

    /// Whether it needs an outbox or results.
    pub(super) fn hands_in(&self) -> bool {
        let hands_in = |unit: &Unit| !unit.events.is_empty() || unit.answer.is_some() || unit.is_refused;
        match self {
            Self::Unit(unit) => hands_in(unit),
            Self::Meet(first, second) => hands_in(first) || hands_in(second),
            Self::Clean(kind) => *kind == Expiring::Answers,
            Self::Outbox(_) => true,
            Self::Register { .. }
            | Self::Scope { .. }
            | Self::Count(_)
            | Self::Uncount(_)
            | Self::EndAttempts(_)
            | Self::Store(_)
            | Self::Replay(_)
            | Self::SetControl(_)
            | Self::Audit { .. }
            | Self::Age(_) => false,
        }
    }
}

/// The acts of workers and operators on dead letters.
#[derive(Debug, Clone)]
pub(super) enum ReplayStep {
    MarkPublished(usize),
    Request(Vec<usize>),
    Take(u32),
    Renew(usize),
    Finish(usize, End),
}

/// The acts of relays and their operators.
#[derive(Debug, Clone)]
pub(super) enum OutboxStep {
    /// A program declares a destination, which was declared with the default form.
    Declare {
        destination: usize,
        form: IdForm,
    },
    Lease {
        destination: usize,
        relay: usize,
        time: Duration,
        receiver_keeps: Duration,
    },
    Release {
        destination: usize,
        relay: usize,
    },
    /// A relay takes this many events at most, and one where they are of more than this many bytes.
    Next {
        destination: usize,
        events: u32,
        bytes: u64,
    },
    /// The ends of events that were taken, as ends of their own destination's or of the other one's.
    Settle {
        ends: Vec<(Named, EventEnd)>,
        elsewhere: bool,
    },
    Retry(Vec<Named>),
    Skip(Vec<Named>),
    Pause {
        destination: usize,
        is_paused: bool,
    },
}

/// A part of the state that operators and workers see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum View {
    /// Controls and dead letters.
    Books,
    /// Events and destinations.
    Outbox,
}

/// One unit of work: it claims, writes an effect for each key that it won, and ends.
#[derive(Debug, Clone)]
pub(super) struct Unit {
    pub(super) claims: Vec<(Payload, Retention)>,
    /// Whether it writes an effect that belongs to no key.
    pub(super) writes: bool,
    /// Whether it writes no effects, and its answers are errors.
    pub(super) is_refused: bool,
    pub(super) events: Vec<Sent>,
    /// The answer of each key that it won.
    pub(super) answer: Option<Answer>,
    pub(super) ends: UnitEnd,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UnitEnd {
    Commit,
    Rollback,
    /// The session is dropped, as by a process that dies.
    Dropped,
}

/// An event that a unit appends.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sent {
    pub(super) scope: usize,
    pub(super) destination: usize,
    pub(super) key: usize,
    pub(super) text: &'static str,
    pub(super) ordering_key: Option<&'static str>,
    /// Whether it has a type, a media type and a header.
    pub(super) is_typed: bool,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Answer {
    pub(super) text: &'static str,
    pub(super) status: Option<u16>,
    pub(super) content_type: Option<&'static str>,
    pub(super) header: Option<&'static str>,
    pub(super) reference: Option<&'static str>,
    pub(super) sealed_with: u16,
    pub(super) kept_for: Option<Duration>,
}

/// A name of an event: the number of one, and its key or that of another one, as after a restore.
#[derive(Debug, Clone, Copy)]
pub(super) struct Named {
    pub(super) event: usize,
    pub(super) key_of: Option<usize>,
}

/// A payload under a key of a scope.
#[derive(Debug, Clone, Copy)]
pub(super) struct Payload {
    pub(super) scope: usize,
    pub(super) key: usize,
    pub(super) text: &'static str,
    pub(super) rule: usize,
}

#[derive(Debug, Clone)]
pub(super) struct Letter {
    pub(super) scope: usize,
    pub(super) key: Option<usize>,
    /// `None` for a tombstone.
    pub(super) payload: Option<&'static str>,
    /// Whether the consumer's rule could hash it.
    pub(super) hashed: bool,
    pub(super) keep_payload: bool,
    pub(super) origin: &'static str,
    pub(super) header: Option<&'static str>,
    pub(super) id: Option<&'static str>,
    pub(super) message_type: Option<&'static str>,
    pub(super) record_key: Option<&'static str>,
    pub(super) ordering_key: Option<&'static str>,
    pub(super) is_dated: bool,
    pub(super) reason: Reason,
    pub(super) attempts: u32,
    pub(super) error: &'static str,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum End {
    Processed,
    Duplicate,
    Failed(&'static str),
    Released,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Wish {
    pub(super) scope: usize,
    pub(super) state: idem_core::store::ControlState,
    pub(super) by: &'static str,
    pub(super) reason: &'static str,
}
