//! How a lane keeps a message that failed as a row until a later try, and how such a row fails again.

use std::time::Duration;

use crate::{
    bugs::{self, Bug},
    dead_letter::{DeadLetter, DeadLetterId, DueEnd, DueFailure, PutAside},
    failpoint,
    outcome::{Durable, Failure},
    policy::WaitCause,
    retry::Later,
    source::Source,
    store::{Bookkeeping as _, Store},
    worker::{
        job::{Counts, DeliveredBy, Job},
        lane::{
            Lane,
            publishing::{Kept, Secured},
        },
        quota::Room,
        unsettled::Place,
    },
};

impl<S: Store, B: Source> Lane<S, B> {
    /// Whether it may be kept as a row while other messages go on: later tries are on, no message must wait for it, and a row keeps its
    /// payload.
    pub(super) fn waits_alone(&self, job: &Job<B::Handle>) -> bool {
        let (settings, message) = (&self.shared.settings, &job.item.message);
        settings.retry.later.tries() > 0
            && job.item.claim.is_some()
            && message.ordering_key().is_none()
            && message.payload().is_none_or(|payload| payload.len() <= settings.dead_letter_payload_bytes_max)
    }

    /// Keeps a message as a row until its later try.
    pub(super) async fn try_later(&mut self, mut job: Job<B::Handle>, failure: Failure, after: Duration) {
        self.shared.stats.retries.add(1);
        self.failed_for(&mut job, failure, false, Some(after.min(Later::LONGEST.mul_f64(1.5))));
        self.dead_letter(job).await;
    }

    /// Writes the row of a message, and settles it then. Without room for the row the message is held: neither its payload nor its later
    /// tries may be lost.
    pub(super) async fn put_aside(&mut self, job: Job<B::Handle>, after: Duration) {
        let Some(dead) = &job.dead else { return self.returned.push(job) };
        let letter = self.letter(&job, dead);
        if self.shared.room_for(&letter).await != Room::Whole {
            let why = self.shared.no_room().problem;
            return self.wait_for(job, WaitCause::DeadLetterQuota, &why).await;
        }
        if bugs::planted(Bug::SettlesBeforeTheRow) {
            self.settle_row(job);
            self.shared.flush().await;
            if failpoint!(PUT_ASIDE).is_ok() {
                let _ = self.shared.consumer.store.bookkeeping().put_aside(&letter, after).await;
            }
            return;
        }
        let row = match self.shared.consumer.store.bookkeeping().put_aside(&letter, after).await {
            Ok(row) => row,
            Err(error) => {
                if let Some(place) = Place::of(&job) {
                    self.shared.unsettled.unanswered(place, dead, letter.attempts);
                }
                return self.bookkeeping_failed(job, error).await;
            }
        };
        self.succeeded();
        // A process that stops here leaves a row, and a message that is redelivered and finds it.
        if failpoint!(PUT_ASIDE).is_err() {
            return self.hold_uncharged(job, WaitCause::Bookkeeping).await;
        }
        if let Some(place) = Place::of(&job) {
            self.shared.unsettled.written(place, dead, letter.attempts);
        }
        if matches!(row, PutAside::Written(_)) {
            self.note_dead_letter(dead);
        }
        tracing::debug!(
            idem.consumer = %self.shared.consumer.name, idem.key = dead.key.as_ref().map(tracing::field::display), row = row.id().0,
            attempts = letter.attempts, error = dead.text, "the message waits for a later try, in {after:?}"
        );
        self.settle_row(job);
    }

    /// A message that is to be dead-lettered is the row that waits for a later try: it was redelivered, or it is a copy. The row decides
    /// what becomes of it. The attempt that was counted for this delivery is the row's again.
    pub(super) async fn stands_for_a_row(&mut self, job: Job<B::Handle>) {
        let is_counted = job.dead.as_ref().is_some_and(|dead| dead.counts == Counts::Handler);
        if let Some(claim) = job.item.claim.as_ref().filter(|_| is_counted) {
            let books = self.shared.consumer.store.bookkeeping();
            if let Err(error) = books.uncount_attempt(claim.scope, &claim.key, claim.hash).await {
                tracing::debug!(idem.consumer = %self.shared.consumer.name, %error, "an attempt could not be taken back");
            }
        }
        self.settle_row(job);
    }

    fn settle_row(&self, job: Job<B::Handle>) {
        let place = Place::of(&job);
        if let DeliveredBy::Broker(handle) = job.from {
            self.shared.settle_dead_letter(handle, Durable::dead_lettered(), job.permit, place);
        }
    }

    /// The try of a row failed: it has another one, or it is a dead letter, which is published before that is noted. The breaker has counted
    /// it when it was put aside.
    pub(super) async fn row_failed(&mut self, id: DeadLetterId, job: Job<B::Handle>) {
        let Some(dead) = &job.dead else { return self.returned.push(job) };
        let letter = self.letter(&job, dead);
        if bugs::planted(Bug::LaterTriesOpenTheBreaker) {
            self.note_dead_letter(dead);
        }
        if let Some(claim) = job.item.claim.as_ref().filter(|_| bugs::planted(Bug::LaterTriesStartOver)) {
            let _ = self.shared.consumer.store.bookkeeping().end_attempts(claim.scope, &claim.key, claim.hash).await;
        }
        if dead.after.is_none() && job.attempts_before > 0 {
            let kept = Kept { row: id, payload: true, is_published: false, loss_accepted: false };
            let waited_long = self.shared.has_waited_long(&job, WaitCause::Publisher);
            if let Secured::NotYet = self.shared.secure(&letter, kept, waited_long).await {
                return self.hold_uncharged(job, WaitCause::Publisher).await;
            }
            self.show_dead_letter(dead, &letter, id);
        }
        let DeadLetter { reason, attempts, error, fingerprint, .. } = letter;
        let failure = DueFailure { reason, attempts, error, fingerprint: Some(fingerprint) };
        let end = match dead.after {
            Some(after) => DueEnd::Again { after, failure },
            None => DueEnd::Failed(failure),
        };
        self.shared.due.ended(id, end);
    }
}
