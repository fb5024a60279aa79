//! Carries out a decision: settle, hold, or dead-letter.

use std::time::Duration;

use crate::{
    bugs::{self, Bug},
    config::OnConflict,
    dead_letter::{DueEnd, Reason},
    error::ErrorClass,
    outcome::{ConflictKind, Decision, Durable, Failure, Settle},
    policy::Seen,
    source::Source,
    store::{
        AuditEntry, Bookkeeping as _, ControlState, Store,
        claim::{Claim, Recorded},
    },
    telemetry,
    unit::decide::conflict_details,
    worker::{
        job::{Counts, DeadLetterCause, DeliveredBy, Job},
        lane::{Lane, failure::Failed},
        settler::Answers,
        view::incidents::{Incident, IncidentKind},
    },
};

impl<S: Store, B: Source> Lane<S, B> {
    /// Deals with the decisions of a unit, in order. Acknowledgements go out together, and before anything that waits.
    /// Once the database was found down over an earlier one, messages that would need it go back to be decided again,
    /// rather than each waiting for an answer in turn.
    pub(super) async fn apply(&mut self, decided: impl IntoIterator<Item = (Job<B::Handle>, Decision)>) {
        let (mut answers, mut counted) = (Answers::default(), Vec::new());
        for (job, decision) in decided {
            if !matches!(decision, Decision::Processed(_) | Decision::Duplicate(..)) {
                self.shared.settle_all(std::mem::take(&mut answers));
            }
            let (durable, end) = match decision {
                Decision::Processed(durable) => {
                    self.note_processed(&job);
                    counted.extend(self.count_to_end(&job).filter(|_| !bugs::planted(Bug::SuccessesCount)));
                    (durable, DueEnd::Processed)
                }
                Decision::Duplicate(recorded, durable) => {
                    self.note_duplicate(&job, recorded);
                    // It was counted before, and committed elsewhere.
                    counted.extend(self.count_to_end(&job));
                    (durable, DueEnd::Duplicate)
                }
                Decision::Conflict(..) | Decision::Busy | Decision::Failed(_) if self.down > 0 => {
                    self.returned.push(job);
                    continue;
                }
                Decision::Conflict(recorded, kind) => {
                    self.conflict(job, recorded, kind).await;
                    continue;
                }
                Decision::Busy => {
                    self.busy(job).await;
                    continue;
                }
                Decision::Failed(failure) => {
                    self.after(vec![job], Seen::Failed(failure.class), Failed::Message(failure)).await;
                    continue;
                }
            };
            match job.from {
                DeliveredBy::Broker(handle) => answers.push(handle, Settle::Acknowledge(durable), job.permit),
                DeliveredBy::Row(id) => self.shared.due.ended(id, end),
            }
        }
        self.shared.settle_all(answers);
        for claim in counted {
            let books = self.shared.consumer.store.bookkeeping();
            if let Err(error) = books.end_attempts(claim.scope, &claim.key, claim.hash).await {
                tracing::debug!(idem.consumer = %self.shared.consumer.name, %error, "a count of attempts could not be ended");
            }
        }
    }

    /// The claim of a message that went well or has done so before, where its count would soon keep it from running when it
    /// comes again after the retention. The first of more than two is left: it leaves enough of them, and is worth no statement.
    fn count_to_end(&self, job: &Job<B::Handle>) -> Option<Claim> {
        let enough = if self.shared.settings.retry.attempts > 2 { 2 } else { 1 };
        // The store may have counted more than it answered.
        let counted = job.attempt.number().saturating_add(job.counts_unanswered);
        if counted < enough { None } else { job.item.claim.clone() }
    }

    pub(super) async fn busy(&mut self, mut job: Job<B::Handle>) {
        self.shared.stats.busy.add(1);
        job.isolate();
        let failure = Failure::new(ErrorClass::Transient, Reason::AttemptsExhausted, "another unit holds the key");
        self.after(vec![job], Seen::Held, Failed::Message(failure)).await;
    }

    fn note_processed(&mut self, job: &Job<B::Handle>) {
        let stats = &self.shared.stats;
        stats.processed.add(1);
        if job.unresolved {
            stats.unknown_resolved.add(1);
        }
        if job.item.claim.is_none() {
            stats.unprotected.add(1);
        }
        self.fresh_succeeded();
        self.remember(job, None);
    }

    fn note_duplicate(&mut self, job: &Job<B::Handle>, recorded: Recorded) {
        let stats = &self.shared.stats;
        if job.unresolved {
            stats.unknown_resolved.add(1);
        }
        // A record that this run wrote under a lost answer is the message itself, processed.
        if job.unresolved && recorded.processed_by == self.shared.run {
            stats.processed.add(1);
        } else {
            self.shared.skipped(job, &recorded, self.probation > 0);
        }
        self.remember(job, Some(recorded));
    }

    /// Notes a record that is committed, `read` or just written, unless it may be removed before its time in memory is
    /// over. Only the consumer's own scope has an epoch that is watched.
    pub(super) fn remember(&self, job: &Job<B::Handle>, read: Option<Recorded>) {
        let (Some(cache), Some(before)) = (&self.shared.cache, self.before) else { return };
        let Some(claim) = job.item.claim.as_ref().filter(|claim| claim.scope == self.shared.scope) else { return };
        let recorded = read.unwrap_or_else(|| self.shared.recorded(claim));
        let stays = recorded
            .expires_at
            .is_none_or(|expires_at| expires_at > self.shared.consumer.clock.now() + cache.keep_for());
        if stays {
            cache.note(before, recorded);
        }
    }

    /// Gives a message back at a stop.
    pub(super) async fn hand_back(&mut self, mut job: Job<B::Handle>) {
        self.uncount(&mut job).await;
        self.shared.release(job, Duration::ZERO);
    }

    /// The key was used before for another payload: audited, and then as the policy says.
    async fn conflict(&mut self, mut job: Job<B::Handle>, recorded: Recorded, kind: ConflictKind) {
        let Some(claim) = job.item.claim.clone() else { return self.returned.push(job) };
        let who = format!("run {}", self.shared.run);
        let reason = match kind {
            ConflictKind::OtherPayload => Reason::Conflict,
            ConflictKind::UnknownRule => Reason::HashUnknown,
        };
        let policy = self.shared.settings.on_conflict;
        let action = if policy == OnConflict::Halt { "halt" } else { "conflict" };
        let details = conflict_details(&claim, &recorded, job.item.message.origin().as_str());
        let entry = AuditEntry { who: who.clone(), action, scope: claim.scope, key: Some(claim.key.clone()), details };
        if let Err(error) = self.shared.consumer.store.bookkeeping().audit(&entry).await {
            return self.bookkeeping_failed(job, error).await;
        }
        if let Some(left_out) = self.shared.lines.conflicts.pass() {
            tracing::warn!(
                target: telemetry::AUDIT,
                {
                    idem.consumer = %self.shared.consumer.name, idem.key = %claim.key, recorded = %recorded.hash.prefix(),
                    found = %claim.hash.prefix(), who, action, left_out
                },
                "the key was used before for another payload; its handler does not run"
            );
            let (origin, run) = (job.item.message.origin(), recorded.processed_by);
            let text = format!("recorded by run {run} with another payload");
            let mut incident = Incident::new(IncidentKind::Conflict, Some(&claim.key), Some(origin), text);
            incident.reason = Some(reason);
            self.shared.recent.keep(incident);
        }
        match policy {
            OnConflict::Acknowledge => {
                self.shared.stats.conflicts.add(1);
                match job.from {
                    DeliveredBy::Broker(handle) => {
                        self.shared.settle(handle, Settle::Acknowledge(Durable::audited()), job.permit);
                    }
                    DeliveredBy::Row(id) => self.shared.due.ended(id, DueEnd::Duplicate),
                }
            }
            OnConflict::DeadLetter => {
                self.shared.stats.conflicts.add(1);
                let text = format!("the key was recorded at run {} with another payload", recorded.processed_by);
                let hash = Some((claim.hash, claim.hash_rule));
                let (key, class, counts) = (Some(claim.key), ErrorClass::Permanent, Counts::Nothing);
                job.dead = Some(Box::new(DeadLetterCause {
                    reason,
                    class,
                    text,
                    code: None,
                    key,
                    hash,
                    in_claim: false,
                    counts,
                    after: None,
                }));
                self.dead_letter(job).await;
            }
            OnConflict::Halt => {
                let reason = format!("conflict on key {}", claim.key);
                if bugs::planted(Bug::HaltsTheTenant) {
                    let books = self.shared.consumer.store.bookkeeping();
                    let _ = books.set_control(claim.scope, ControlState::Halted, &who, &reason).await;
                    self.shared.gate.set_control(ControlState::Halted, &reason);
                } else {
                    self.shared.halt(&who, &reason).await;
                }
                self.returned.push(job);
            }
        }
    }
}
