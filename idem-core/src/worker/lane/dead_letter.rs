//! How a lane dead-letters a message that failed for good: a row, then a confirmed publication where there is a publisher, then
//! the settlement. It waits where the breaker is open, or where nothing can keep the message.

use std::{sync::atomic::Ordering, time::Duration};

use crate::{
    bugs::{self, Bug},
    config::OnUnkeepable,
    dead_letter::{
        DeadLetter, DeadLetterId,
        identity::{FailureKind, Fingerprint},
    },
    failpoint,
    outcome::{Durable, Settle},
    policy::WaitCause,
    source::Source,
    store::{Bookkeeping as _, Store},
    worker::{
        job::{Attempt, Counts, DeadLetterCause, DeliveredBy, Job},
        lane::{
            Lane,
            publishing::{Kept, Secured, Unkeepable},
            queue::Next,
        },
        quota::Room,
        unsettled::Place,
        view::incidents::{Incident, IncidentKind},
    },
};

/// For how long a message that failed for good is kept in hand while the breaker is open.
const BREAKER_HOLD_MAX: Duration = Duration::from_secs(600);

impl<S: Store, B: Source> Lane<S, B> {
    /// Sets a message aside: a row, then a confirmed publication where there is a publisher, then the settlement.
    pub(super) async fn dead_letter(&mut self, job: Job<B::Handle>) {
        let Some(dead) = &job.dead else { return self.returned.push(job) };
        if let DeliveredBy::Row(id) = job.from {
            return self.row_failed(id, job).await;
        }
        if let Some(after) = dead.after {
            self.put_aside(job, after).await;
            return;
        }
        if dead.counts == Counts::Handler && self.breaker_holds(&job) {
            if bugs::planted(Bug::OpenBreakerRetries) {
                return self.run_for_ever(job).await;
            }
            let wait = self.breaker_hold_max();
            return self.hold(job, WaitCause::Breaker, wait).await;
        }
        let mut dead_letter = self.letter(&job, dead);
        match self.shared.room_for(&dead_letter).await {
            Room::Whole => {}
            Room::Facts => dead_letter.keep_payload = false,
            Room::Nothing => return self.unkeepable(job, None, &self.shared.no_room()).await,
        }
        let stored = match self.shared.consumer.store.bookkeeping().store_dead_letter(&dead_letter).await {
            Ok(stored) => stored,
            Err(_) if bugs::planted(Bug::DeadLetterWithoutRow) => {
                if let DeliveredBy::Broker(handle) = job.from {
                    self.shared.settle(handle, Settle::DeadLetter(Durable::dead_lettered()), job.permit);
                }
                return;
            }
            Err(error) => {
                if let Some(place) = Place::of(&job) {
                    self.shared.unsettled.unanswered(place, dead, dead_letter.attempts);
                }
                return self.bookkeeping_failed(job, error).await;
            }
        };
        self.succeeded();
        // Its attempts are at an end, also where it comes again while its publication waits.
        let place = Place::of(&job);
        if let Some(place) = &place {
            self.shared.unsettled.written(place.clone(), dead, dead_letter.attempts);
        }
        if stored.waits_until.is_some() {
            return self.stands_for_a_row(job).await;
        }
        // Injected errors stand for a process that stops here: the message comes back and is dead-lettered once.
        if failpoint!(DEAD_LETTER_SENT).is_err() {
            return self.hold_uncharged(job, WaitCause::Bookkeeping).await;
        }
        let waited_long = self.shared.has_waited_long(&job, WaitCause::Publisher);
        match self.shared.secure(&dead_letter, Kept::from(&stored), waited_long).await {
            Secured::Kept => {}
            Secured::NotYet => return self.hold_uncharged(job, WaitCause::Publisher).await,
            Secured::Unkeepable(why) => return self.unkeepable(job, Some(stored.id), &why).await,
        }
        if failpoint!(DEAD_LETTER_OK).is_err() {
            return self.hold_uncharged(job, WaitCause::Publisher).await;
        }
        self.note_dead_letter(dead);
        self.show_dead_letter(dead, &dead_letter, stored.id);
        if let DeliveredBy::Broker(handle) = job.from {
            self.shared.settle_dead_letter(handle, Durable::dead_lettered(), job.permit, place);
            // Behind it, so that a lane that clears this has waited for it.
            self.shared.dead_letter_settled.store(true, Ordering::Relaxed);
        }
    }

    /// Counts a dead letter, and shows it in the log and on the page.
    pub(super) fn show_dead_letter(&self, dead: &DeadLetterCause, letter: &DeadLetter, row: DeadLetterId) {
        self.shared.stats.dead_lettered.add(1);
        self.shared.metrics.dead_lettered(dead.reason);
        if let Some(left_out) = self.shared.lines.dead_letters.pass() {
            tracing::warn!(
                idem.consumer = %self.shared.consumer.name, idem.key = dead.key.as_ref().map(tracing::field::display),
                origin = %letter.message.origin(), reason = %dead.reason, attempts = letter.attempts, error = dead.text,
                left_out, "set aside as a dead letter"
            );
            let (key, origin) = (dead.key.as_ref(), Some(letter.message.origin()));
            let mut incident = Incident::new(IncidentKind::DeadLetter, key, origin, &*dead.text);
            (incident.reason, incident.dead_letter) = (Some(dead.reason), Some(row));
            self.shared.recent.keep(incident);
        }
    }

    /// Marks messages that were set aside before and came again as failed for good.
    pub(super) fn recognise(&mut self, jobs: &mut [Job<B::Handle>]) {
        if self.shared.unsettled.is_empty() {
            return;
        }
        for job in jobs {
            self.came_again |= self.was_set_aside(job);
        }
    }

    /// Whether it was set aside before; it is then marked so again.
    fn was_set_aside(&self, job: &mut Job<B::Handle>) -> bool {
        let place = Place::of(job).filter(|_| job.dead.is_none());
        let Some((cause, attempts)) = place.and_then(|place| self.shared.unsettled.cause(&place)) else { return false };
        (job.dead, job.attempt) = (Some(Box::new(cause)), Attempt::Ended(attempts));
        true
    }

    /// Sets messages aside again that were set aside before, ahead of any wait for the breaker, which lets one message a second
    /// pass: where leases run out meanwhile, each settlement would be late again, for ever.
    pub(super) async fn set_aside_again(&mut self) {
        // While the database is down, it has its turn in the queue.
        if !std::mem::take(&mut self.came_again) || self.down > 0 || bugs::planted(Bug::LateDeadLettersWait) {
            return;
        }
        let again = |job: &Job<B::Handle>| {
            job.waiting.is_none() && job.dead.as_ref().is_some_and(|dead| dead.counts == Counts::Nothing)
        };
        for job in self.queue.remove(again) {
            self.set_aside_later(job).await;
        }
    }

    /// Takes out messages that were set aside before and came again because their settlements were late: they are set aside
    /// once more, and do not run. Each row is written again, which changes nothing where it is there.
    pub(super) async fn without_set_aside(&mut self, next: Next<Job<B::Handle>>) -> Next<Job<B::Handle>> {
        if self.shared.unsettled.is_empty() {
            return next;
        }
        match next {
            Next::Nothing => Next::Nothing,
            Next::Together(jobs) => Next::Together(self.not_set_aside(jobs).await),
            Next::Look(jobs) => Next::Look(self.not_set_aside(jobs).await),
            Next::Alone(job) => match self.not_set_aside(vec![job]).await.pop() {
                Some(job) => Next::Alone(job),
                None => Next::Together(Vec::new()),
            },
        }
    }

    async fn not_set_aside(&mut self, jobs: Vec<Job<B::Handle>>) -> Vec<Job<B::Handle>> {
        let mut left = Vec::with_capacity(jobs.len());
        for mut job in jobs {
            if self.was_set_aside(&mut job) {
                self.set_aside_later(job).await;
            } else {
                left.push(job);
            }
        }
        left
    }

    /// A planted bug.
    async fn run_for_ever(&mut self, mut job: Job<B::Handle>) {
        job.dead = None;
        if let Some(claim) = &job.item.claim {
            let _ = self.shared.consumer.store.bookkeeping().end_attempts(claim.scope, &claim.key, claim.hash).await;
        }
        self.hold(job, WaitCause::Breaker, Duration::from_secs(1)).await;
    }

    /// Whether a message that failed for good is kept in hand, because so many failed that the cause may lie elsewhere. It
    /// never runs again; where the breaker stays open, where the broker would take the message back, or send no other to try while it
    /// is in hand, it is dead-lettered anyway, and those who wait for room get some.
    fn breaker_holds(&self, job: &Job<B::Handle>) -> bool {
        let (waits, wait) = (job.waiting.as_ref().filter(|_| job.is_held_by_breaker()), self.breaker_hold_max());
        self.shared.gate.breaker_is_open()
            && !self.shared.source.is_full()
            && waits.is_none_or(|waiting| waiting.since.elapsed() < wait)
            && self.shared.hold_max.is_none_or(|max| job.received_at.elapsed() + wait < max)
    }

    fn breaker_hold_max(&self) -> Duration {
        self.shared.hold_max.map_or(BREAKER_HOLD_MAX, |max| BREAKER_HOLD_MAX.min(max / 2))
    }

    /// Counts a dead letter for the breaker, or for the alarm about messages that no handler can see.
    pub(super) fn note_dead_letter(&self, dead: &DeadLetterCause) {
        let (consumer, gate) = (&self.shared.consumer.name, &self.shared.gate);
        match dead.counts {
            Counts::Handler if self.shared.settings.breaker && gate.fresh_failed() => tracing::error!(
                idem.consumer = %consumer, reason = %dead.reason, error = dead.text,
                "more than half of the last 50 fresh messages became dead letters; intake pauses, and one message a \
                 second is tried until one goes well"
            ),
            Counts::Producer if bugs::planted(Bug::JunkOpensTheBreaker) && self.shared.settings.breaker => {
                gate.fresh_failed();
            }
            Counts::Producer if gate.unreadable() => {
                let text = "more than half of the last 50 fresh messages could not be given to any handler; they are \
                            set aside, and the others go on: look at who produces them";
                tracing::error!(idem.consumer = %consumer, reason = %dead.reason, error = dead.text, "{text}");
                self.shared.recent.note(IncidentKind::Error, None, None, text.to_owned());
            }
            Counts::Handler | Counts::Producer | Counts::Nothing => {}
        }
    }

    pub(super) fn letter(&self, job: &Job<B::Handle>, dead: &DeadLetterCause) -> DeadLetter {
        let size = job.item.message.payload().map_or(0, bytes::Bytes::len);
        DeadLetter {
            consumer: self.shared.consumer.name.clone(),
            scope: job.item.claim.as_ref().map_or(self.shared.scope, |claim| claim.scope),
            message: job.item.message.clone(),
            key: dead.key.clone(),
            hash: dead.hash,
            reason: dead.reason,
            attempts: job.attempt.number(),
            error: dead.text.clone(),
            fingerprint: Fingerprint::of(&FailureKind {
                reason: dead.reason,
                class: dead.class,
                code: dead.code.as_deref(),
                handler: self.shared.consumer.handler_name.as_deref(),
                message_type: job.item.message.message_type(),
            }),
            keep_payload: size <= self.shared.settings.dead_letter_payload_bytes_max,
            payload_omitted: None,
        }
    }

    /// Holds a message whose payload is nowhere else, or halts the consumer over it. It is never acknowledged.
    async fn unkeepable(&mut self, mut job: Job<B::Handle>, row: Option<DeadLetterId>, why: &Unkeepable) {
        let origin = job.item.message.origin();
        let told = format!("the message from {origin} cannot be kept: {}", why.problem);
        if self.shared.settings.on_unkeepable == OnUnkeepable::Halt {
            let who = format!("run {}", self.shared.run);
            self.shared.halt(&who, &told).await;
            return self.returned.push(job);
        }
        // The first time, and then ever more rarely.
        if job.waits.saturating_add(1).is_power_of_two()
            && let Some(left_out) = self.shared.lines.unkeepable.pass()
        {
            let (key, reason) = job.dead.as_ref().map_or((None, None), |dead| (dead.key.as_ref(), Some(dead.reason)));
            tracing::error!(
                idem.consumer = %self.shared.consumer.name, idem.key = key.map(tracing::field::display), origin = %origin,
                row = row.map(|row| row.0), reason = reason.map(tracing::field::display), why = why.problem, left_out,
                "a message cannot be kept and is held, not acknowledged: {}", why.cure()
            );
            self.shared.recent.note(IncidentKind::Error, key, Some(origin), format!("held: {told}"));
        }
        if let Some(permit) = &mut job.permit {
            permit.set_aside();
        }
        self.hold_uncharged(job, why.cause).await;
    }
}
