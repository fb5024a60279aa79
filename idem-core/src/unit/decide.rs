//! The facts known of each message of a unit, and the decision they lead to.

use std::{borrow::Borrow, collections::HashMap};

use crate::{
    dead_letter::Reason,
    error::ErrorClass,
    names::{Retention, RunId},
    outcome::{self, Decision, Durable, Failure, Verdict},
    store::{
        Store,
        claim::{Claim, Recorded},
    },
    unit::{engine::Engine, fold, identify::Item},
};

pub(super) fn decision(verdict: Verdict) -> Option<Decision> {
    match verdict {
        Verdict::Duplicate(recorded, durable) => Some(Decision::Duplicate(recorded, durable)),
        Verdict::Conflict(recorded, kind) => Some(Decision::Conflict(recorded, kind)),
        Verdict::Collision(_) => {
            let text = "the record of its id in the store is of another key, or damaged; nothing ran";
            Some(Decision::Failed(Failure::new(ErrorClass::Permanent, Reason::KeyCollision, text)))
        }
        Verdict::Fresh(_) | Verdict::Unanswered => None,
    }
}

/// The decision about a message of which nothing else is known. One without a verdict is a bug; handing it back loses
/// nothing.
fn last(verdict: Option<Verdict>) -> Decision {
    verdict.and_then(decision).unwrap_or(Decision::Busy)
}

/// The text of the audit trail about a key that was used for two operations.
pub(crate) fn conflict_details(claim: &Claim, recorded: &Recorded, origin: &str) -> String {
    format!(
        "recorded hash {} (rule {}, run {}), found hash {} (rule {}) from {origin}",
        recorded.hash, recorded.hash_rule, recorded.processed_by, claim.hash, claim.hash_rule
    )
}

/// The facts known of each message of a unit, until every one has its decision.
pub(super) struct Outcomes {
    verdicts: Vec<Option<Verdict>>,
    committed: Vec<bool>,
}

impl Outcomes {
    pub(super) fn new(items: usize) -> Self {
        Self { verdicts: (0..items).map(|_| None).collect(), committed: vec![false; items] }
    }

    pub(super) fn note(&mut self, index: usize, verdict: Verdict) {
        self.verdicts[index] = Some(verdict);
    }

    /// The messages whose records show them to be duplicates, with these records.
    pub(super) fn duplicates(&self) -> impl Iterator<Item = (usize, &Recorded)> {
        self.verdicts.iter().enumerate().filter_map(|(index, verdict)| match verdict {
            Some(Verdict::Duplicate(recorded, _)) => Some((index, recorded)),
            Some(Verdict::Fresh(_) | Verdict::Conflict(..) | Verdict::Collision(_) | Verdict::Unanswered) | None => {
                None
            }
        })
    }

    pub(super) fn committed(&mut self, index: usize) {
        self.committed[index] = true;
    }

    /// Decides every message. Followers are compared with the record that their leader left or met (D10).
    pub(super) fn decide<S: Store, J: Borrow<Item>>(
        mut self,
        engine: &Engine<S>,
        items: &[J],
        fold: &fold::Fold,
        run: RunId,
    ) -> Vec<Decision> {
        let followers = fold.leader.iter().enumerate();
        let followed = followers.filter_map(|(index, leader)| leader.filter(|leader| *leader != index));
        let record = |leader: usize| Some((leader, self.record(engine, items[leader].borrow(), leader, run)?));
        let records: HashMap<usize, Recorded> = followed.filter_map(record).collect();
        (0..items.len())
            .map(|index| {
                if self.committed[index] {
                    return Decision::Processed(Durable::committed());
                }
                if let Some(decision) = self.verdicts[index].take().and_then(decision) {
                    return decision;
                }
                let item: &Item = items[index].borrow();
                let recorded = fold.leader[index].and_then(|leader| records.get(&leader).cloned());
                let verdict = item.claim.as_ref().zip(recorded).map(|(claim, recorded)| {
                    outcome::compare(claim, recorded, |rule| engine.rehash(&item.message, rule))
                });
                last(verdict)
            })
            .collect()
    }

    /// The record that a leader left or met.
    fn record<S: Store>(&self, engine: &Engine<S>, item: &Item, index: usize, run: RunId) -> Option<Recorded> {
        if self.committed[index] {
            let claim = item.claim.as_ref()?;
            let processed_at = engine.clock.now();
            let expires_at = match engine.settings.retention {
                Retention::For(time) => processed_at.checked_add(time),
                Retention::Forever => None,
            };
            let (key, hash, hash_rule) = (claim.key.clone(), claim.hash, claim.hash_rule);
            return Some(Recorded { key, hash, hash_rule, processed_at, processed_by: run, expires_at });
        }
        match self.verdicts[index].as_ref()? {
            Verdict::Duplicate(recorded, _) | Verdict::Conflict(recorded, _) | Verdict::Collision(recorded) => {
                Some(recorded.clone())
            }
            Verdict::Fresh(_) | Verdict::Unanswered => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rule 1: a message of which nothing is known is not acknowledged.
    #[test]
    fn a_message_without_a_verdict_is_handed_back() {
        for verdict in [None, Some(Verdict::Unanswered), Some(Verdict::Fresh(outcome::unprotected()))] {
            assert!(matches!(last(verdict), Decision::Busy));
        }
    }
}
