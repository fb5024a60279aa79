//! The steps that both take. A number names the id of this place among those that the store has answered so far, counted
//! round, so that a sequence stays valid when steps are left out.

use std::time::Duration;

use idem_core::{Reason, Retention, store::Expiring};

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
    MarkPublished(usize),
    RequestReplay(Vec<usize>),
    TakeReplays(u32),
    FinishReplay(usize, End),
    SetControl(Wish),
    Audit {
        key: Option<usize>,
        details: &'static str,
    },
    /// Time goes by.
    Age(Duration),
    Clean(Expiring),
}

impl Step {
    /// Whether it may change the view that operators and workers have of a consumer without claiming anything. The rest is
    /// looked at in the end.
    pub(super) fn can_be_seen(&self) -> bool {
        match self {
            Self::Register { .. }
            | Self::Store(_)
            | Self::MarkPublished(_)
            | Self::RequestReplay(_)
            | Self::TakeReplays(_)
            | Self::FinishReplay(..)
            | Self::SetControl(_)
            | Self::Age(_)
            | Self::Clean(_) => true,
            Self::Scope { .. }
            | Self::Unit(_)
            | Self::Meet(..)
            | Self::Count(_)
            | Self::Uncount(_)
            | Self::EndAttempts(_)
            | Self::Audit { .. } => false,
        }
    }
}

/// One unit of work: it claims, writes an effect for each key that it won, and ends.
#[derive(Debug, Clone)]
pub(super) struct Unit {
    pub(super) claims: Vec<(Payload, Retention)>,
    /// Whether it writes an effect that belongs to no key.
    pub(super) writes: bool,
    pub(super) ends: UnitEnd,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum UnitEnd {
    Commit,
    Rollback,
    /// The session is dropped, as by a process that dies.
    Dropped,
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
    pub(super) state: idem_core::ControlState,
    pub(super) by: &'static str,
    pub(super) reason: &'static str,
}
