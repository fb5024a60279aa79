//! What a worker knows of its own state, as the facts that its page shows and that it reports to its store.

use std::time::{Duration, SystemTime};

use crate::{
    cleanup::runner::CleanupState,
    names::RunId,
    policy::WaitCause,
    standing::{Condition, Fact, Tables},
    worker::view::{WorkerView, incidents::IncidentKind},
};

/// From when on an open transaction is shown, at the latest.
const OPEN_LONG: Duration = Duration::from_secs(60);

impl WorkerView {
    /// The conditions that this worker is in. The tables know others: [`tables`](Self::tables).
    #[must_use]
    pub fn facts(&self) -> Vec<Fact> {
        let now = self.now();
        let mut facts: Vec<Fact> =
            self.dead_task().map(|task| Fact::of(Condition::TaskDied).subject(task)).into_iter().collect();
        facts.extend(self.gate.facts());
        if self.has_joined() {
            let down = self.broker_unreachable_for();
            facts.extend(
                down.map(|time| Fact::of(Condition::BrokerDown).detail(self.gate.broker_error()).lasting(time, now)),
            );
        }
        let of_cause = |cause| {
            Some(match cause {
                WaitCause::Unkeepable => Condition::Unkeepable,
                WaitCause::DeadLetterQuota => Condition::DeadLettersFull,
                WaitCause::KeyHeld => Condition::KeyHeld,
                WaitCause::Database | WaitCause::Bookkeeping => Condition::DatabaseRefuses,
                WaitCause::Publisher => Condition::Unpublished,
                WaitCause::Retry | WaitCause::Broker | WaitCause::Behind | WaitCause::Breaker => return None,
            })
        };
        facts.extend(
            self.waits().into_iter().filter_map(|wait| {
                Some(Fact::of(of_cause(wait.cause)?).count(wait.messages).lasting(wait.longest, now))
            }),
        );
        let open = self.load().oldest_transaction.filter(|time| *time >= OPEN_LONG.min(self.handler_deadline / 2));
        facts.extend(open.map(|time| Fact::of(Condition::OpenTransaction).lasting(time, now)));
        facts.extend(self.relay.iter().flat_map(|relay| relay.facts(now)));
        let cleanup = self.cleanup().filter(CleanupState::is_alarming);
        facts.extend(cleanup.map(|state| Fact::of(Condition::CleanupFails).count(state.failed_cycles)));
        // A full disk or a refused password is known by its text alone.
        let error =
            self.recent(IncidentKind::Error).into_iter().find(|error| error.key.is_none()).map(|error| error.text);
        let needs = |fact: &&mut Fact| matches!(fact.condition, Condition::DatabaseDown | Condition::DatabaseRefuses);
        for fact in facts.iter_mut().filter(needs) {
            fact.detail = error.clone().unwrap_or_default();
        }
        facts
    }

    /// The database's clock, by which facts have their times.
    #[must_use]
    pub fn now(&self) -> SystemTime {
        self.gate.now()
    }

    /// What the tables knew when they were last read, a few seconds ago; `None` before the first time, and where the store keeps
    /// no such thing.
    #[must_use]
    pub fn tables(&self) -> Option<Tables> {
        self.gate.tables()
    }

    /// All that is known of the consumer: this worker's facts, those of its other workers, and those of the tables.
    #[must_use]
    pub fn all_facts(&self) -> Vec<Fact> {
        let mut facts = self.facts();
        let own: Option<RunId> = self.run();
        let (mut others, is_controlled) =
            (self.tables().map(|tables| tables.all(own)).unwrap_or_default(), self.gate.is_paused());
        // Who paused it is in the tables, and whether it still is this worker knows better.
        let control = |fact: &Fact| matches!(fact.condition, Condition::Paused | Condition::Halted);
        others.retain(|fact| is_controlled || !control(fact));
        if others.iter().any(control) {
            facts.retain(|fact| !control(fact));
        }
        facts.extend(others);
        facts
    }
}
