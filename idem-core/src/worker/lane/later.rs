//! How a lane keeps a message that failed as a row until a later try, and how such a row fails again.

use std::{collections::HashMap, sync::atomic::Ordering, time::Duration};

use crate::{
    bugs::{self, Bug},
    dead_letter::{DeadLetter, DeadLetterId, DueEnd, DueFailure, PutAside, Reason},
    error::ErrorClass,
    failpoint,
    outcome::{Durable, Failure},
    policy::{Seen, WaitCause},
    retry::Later,
    source::Source,
    store::{Bookkeeping as _, Store, unit::Ahead},
    worker::{
        job::{Counts, DeliveredBy, HoldKey, Job},
        lane::{
            Lane,
            failure::Failed,
            publishing::{Kept, Secured},
        },
        quota::Room,
        unsettled::Place,
    },
};

/// The longest that a message is held because rows before it are due or run, until that is asked again.
const BEHIND_HOLD: Duration = Duration::from_secs(1);

impl<S: Store, B: Source> Lane<S, B> {
    /// Whether it may be kept as a row until a later try.
    pub(super) fn may_wait(&self, job: &Job<B::Handle>) -> bool {
        self.shared.settings.retry.later.tries() > 0 && self.may_be_a_row(job)
    }

    /// Whether it may be kept as a row: it has a key, and the row its payload.
    fn may_be_a_row(&self, job: &Job<B::Handle>) -> bool {
        let bytes_max = self.shared.settings.dead_letter_payload_bytes_max;
        job.item.claim.is_some() && job.item.message.payload().is_none_or(|payload| payload.len() <= bytes_max)
    }

    /// Messages of a unit, some of which have rows ahead of them in their ordering keys. Behind rows that wait they become rows too. Where the
    /// first row is due or runs they are held: a key that always has new messages would never be without rows.
    pub(super) async fn stand_behind(&mut self, jobs: Vec<Job<B::Handle>>, ahead: Vec<(usize, Ahead)>) {
        let ahead: HashMap<usize, Ahead> = ahead.into_iter().collect();
        let mut wait = Vec::new();
        for (index, mut job) in jobs.into_iter().enumerate() {
            let Some(first) = ahead.get(&index) else {
                self.returned.push(job);
                continue;
            };
            self.uncount(&mut job).await;
            let holds = *first == Ahead::Runs && !self.outlives(&job, BEHIND_HOLD);
            if holds || !self.may_be_a_row(&job) {
                job.waits = job.waits.saturating_add(1);
                let backoff = self.shared.settings.retry.backoff_now(job.waits);
                self.hold(job, WaitCause::Behind, backoff.min(BEHIND_HOLD)).await;
            } else {
                wait.push(job);
            }
        }
        self.put_behind(wait).await;
    }

    /// Keeps messages as rows behind those of their ordering keys, in their order. One that was handled before needs no row.
    async fn put_behind(&mut self, jobs: Vec<Job<B::Handle>>) {
        if jobs.is_empty() {
            return;
        }
        let decisions = match self.look_up(&jobs).await {
            Ok(decisions) => decisions,
            Err(error) => return self.after(jobs, Seen::StoreFailed(error.class()), Failed::Store(error)).await,
        };
        self.succeeded();
        let mut goes_on = true;
        for (mut job, decision) in jobs.into_iter().zip(decisions) {
            match decision {
                Some(decision) => self.apply([(job, decision)]).await,
                // The one before it has no row yet, and may be of the same ordering key.
                None if !goes_on => self.returned.push(job),
                None => {
                    let text = "a message before it in its ordering key waits";
                    let failure = Failure::new(ErrorClass::Transient, Reason::Behind, text);
                    let attempt = job.attempt;
                    self.failed_for(&mut job, failure, false, Some(Duration::ZERO));
                    job.attempt = attempt;
                    if let Some(dead) = &mut job.dead {
                        dead.counts = Counts::Nothing;
                    }
                    goes_on = self.put_aside(job, Duration::ZERO).await;
                }
            }
        }
    }

    /// Keeps a message as a row until its later try.
    pub(super) async fn try_later(&mut self, mut job: Job<B::Handle>, failure: Failure, after: Duration) {
        self.shared.stats.retries.add(1);
        self.failed_for(&mut job, failure, false, Some(after.min(Later::LONGEST.mul_f64(1.5))));
        self.dead_letter(job).await;
    }

    /// Writes the row of a message, and settles it then: false where that has to be tried again. Without room for the row the message is
    /// held: neither its payload nor its later tries may be lost.
    pub(super) async fn put_aside(&mut self, job: Job<B::Handle>, after: Duration) -> bool {
        let Some(dead) = &job.dead else {
            self.returned.push(job);
            return false;
        };
        let letter = self.letter(&job, dead);
        if self.shared.room_for(&letter).await != Room::Whole {
            let why = self.shared.no_room().problem;
            self.wait_for(job, WaitCause::DeadLetterQuota, &why).await;
            return false;
        }
        if bugs::planted(Bug::SettlesBeforeTheRow) {
            self.settle_row(job);
            self.shared.flush().await;
            if failpoint!(PUT_ASIDE).is_ok() {
                let _ = self.shared.consumer.store.bookkeeping().put_aside(&letter, after).await;
            }
            return true;
        }
        let row = match self.shared.consumer.store.bookkeeping().put_aside(&letter, after).await {
            Ok(row) => row,
            Err(error) => {
                if let Some(place) = Place::of(&job) {
                    self.shared.unsettled.unanswered(place, dead, letter.attempts);
                }
                self.bookkeeping_failed(job, error).await;
                return false;
            }
        };
        self.succeeded();
        if job.item.message.own_ordering_key().is_some() {
            self.shared.consumer.anything_waits.store(true, Ordering::Relaxed);
        }
        // A process that stops here leaves a row, and a message that is redelivered and finds it.
        if failpoint!(PUT_ASIDE).is_err() {
            self.hold_uncharged(job, WaitCause::Bookkeeping).await;
            return false;
        }
        if let Some(place) = Place::of(&job) {
            self.shared.unsettled.written(place, dead, letter.attempts);
        }
        if matches!(row, PutAside::Written(_)) {
            self.note_dead_letter(dead);
        }
        tracing::debug!(
            idem.consumer = %self.shared.consumer.name, idem.key = dead.key.as_ref().map(tracing::field::display), row = row.id().0,
            attempts = letter.attempts, error = dead.text, "the message is a row until {after:?} have passed"
        );
        self.settle_row(job);
        true
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
        if dead.after.is_none() && job.was_put_aside {
            let kept = Kept { row: id, payload: true, is_published: false, loss_accepted: false };
            let waited_long = self.shared.has_waited_long(&job, WaitCause::Publisher);
            if let Secured::NotYet = self.shared.secure(&letter, kept, waited_long).await {
                return self.hold_uncharged(job, WaitCause::Publisher).await;
            }
            self.show_dead_letter(dead, &letter, id);
        }
        if dead.after.is_some() {
            self.give_followers_back(&job);
        }
        let DeadLetter { reason, attempts, error, fingerprint, .. } = letter;
        let failure = DueFailure { reason, attempts, error, fingerprint: Some(fingerprint) };
        let end = match dead.after {
            Some(after) => DueEnd::Again { after, failure },
            None => DueEnd::Failed(failure),
        };
        self.shared.due.ended(id, end);
    }

    /// A row waits again, and with it those behind it in its ordering key that were taken with it.
    fn give_followers_back(&mut self, job: &Job<B::Handle>) {
        if job.item.message.ordering_key().is_none() || bugs::planted(Bug::RunsFollowersOfARowThatFailed) {
            return;
        }
        let (key, turn) = (HoldKey::of(&job.item), job.turn);
        let follows = |other: &Job<B::Handle>| other.is_row() && other.turn != turn && HoldKey::of(&other.item) == key;
        let (mut followers, returned): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.returned).into_iter().partition(follows);
        self.returned = returned;
        followers.extend(self.queue.remove(follows));
        for job in followers {
            self.owe(&job);
            self.shared.release(job, Duration::ZERO);
        }
    }
}
