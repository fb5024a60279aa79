//! Makes sure that a dead letter is whole in its row, or published, before its message is settled. A message that is in
//! neither place is not acknowledged.

use tracing::Instrument as _;

use crate::{
    bugs::{self, Bug},
    dead_letter::{self, DeadLetter, DeadLetterId, Publisher, StoredDeadLetter},
    error::{ErrorClass, SourceError, with_causes},
    policy::WaitCause,
    source::Source,
    store::{Bookkeeping as _, Store},
    telemetry::spans,
    worker::{shared::Shared, view::incidents::IncidentKind},
};

/// Whether the message of a dead letter may be settled.
pub(super) enum Secured {
    /// The row or a publication has it whole, or an operator has accepted that it is lost.
    Kept,
    /// The publication was not confirmed, and is tried again later.
    NotYet,
    /// Neither the row nor a publisher can take it whole.
    Unkeepable(Unkeepable),
}

/// What the row of a dead letter has.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kept {
    pub(super) row: DeadLetterId,
    pub(super) payload: bool,
    pub(super) is_published: bool,
    pub(super) loss_accepted: bool,
}

impl From<&StoredDeadLetter> for Kept {
    fn from(stored: &StoredDeadLetter) -> Self {
        Self {
            row: stored.id,
            payload: stored.payload_kept,
            is_published: stored.published_at.is_some(),
            loss_accepted: stored.loss_accepted,
        }
    }
}

/// Why a message cannot be kept.
pub(super) struct Unkeepable {
    pub(super) cause: WaitCause,
    pub(super) problem: String,
}

impl Unkeepable {
    pub(super) fn cure(&self) -> &'static str {
        if self.cause == WaitCause::DeadLetterQuota {
            "drop or replay dead letters (`idem dead-letters groups` counts them), raise dead_letters_bytes_max, or give a \
             topic or queue for dead letters"
        } else {
            "raise dead_letter_payload_bytes_max, give a topic or queue for dead letters that takes it, or give it up with \
             `idem dead-letters accept-loss`"
        }
    }
}

impl<S: Store, B: Source> Shared<S, B> {
    /// Publishes a dead letter that has its row, where there is a publisher. One that has `waited_long` for a confirmation
    /// waits no longer where the row has it whole: whatever the publisher's fault is, it stops no key for ever (J57).
    pub(super) async fn secure(&self, dead_letter: &DeadLetter, kept: Kept, waited_long: bool) -> Secured {
        let is_safe = kept.payload || kept.loss_accepted;
        let Some(publisher) = &self.publisher else {
            return if is_safe { Secured::Kept } else { Secured::Unkeepable(self.beyond(dead_letter)) };
        };
        // The row stands for exactly this content, so a confirmed copy of it is a confirmation of this one.
        if kept.is_published {
            return Secured::Kept;
        }
        let mut published = self.publish(&**publisher, dead_letter).await;
        if let Err(error) = &published
            && error.class() == ErrorClass::Permanent
            && kept.payload
        {
            published = self.publish_without_payload(&**publisher, dead_letter, kept.row, error).await;
        }
        if published.is_err() && bugs::planted(Bug::RefusedIsPublished) {
            published = Ok(());
        }
        match published {
            Ok(()) => {
                self.mark_published(kept.row).await;
                Secured::Kept
            }
            Err(error) if kept.payload && (waited_long || error.class() == ErrorClass::Permanent) => {
                self.unpublished(dead_letter, kept.row, &error);
                Secured::Kept
            }
            // An accepted loss does not wait for a broker.
            Err(_) if kept.loss_accepted && !kept.payload => Secured::Kept,
            Err(error) if error.class() == ErrorClass::Permanent => {
                let mut why = self.beyond(dead_letter);
                why.problem = format!("{}, and {}", why.problem, with_causes(&error));
                Secured::Unkeepable(why)
            }
            Err(error) => self.not_yet(&error),
        }
    }

    async fn publish(&self, publisher: &dyn Publisher, dead_letter: &DeadLetter) -> Result<(), SourceError> {
        let span = spans::send_dead_letter(self.consumer.source.get(), dead_letter, &self.consumer.name);
        let published = dead_letter::publish(publisher, dead_letter).instrument(span.clone()).await;
        if published.is_err() {
            spans::failed(&span, "unconfirmed");
        }
        published
    }

    /// The topic or queue can never take this dead letter, and the row has it. Readers of the topic or queue get the facts.
    async fn publish_without_payload(
        &self,
        publisher: &dyn Publisher,
        dead_letter: &DeadLetter,
        row: DeadLetterId,
        refused: &SourceError,
    ) -> Result<(), SourceError> {
        self.publish(publisher, &dead_letter.without_payload(row)).await?;
        if let Some(left_out) = self.lines.unrecorded.pass() {
            tracing::warn!(
                idem.consumer = %self.consumer.name, row = row.0, origin = %dead_letter.message.origin(),
                error = with_causes(refused), left_out,
                "a dead letter was published without its payload, which its row has"
            );
        }
        Ok(())
    }

    /// The row alone is the dead letter.
    fn unpublished(&self, dead_letter: &DeadLetter, row: DeadLetterId, error: &SourceError) {
        self.metrics.unpublished.increment(1);
        let why = if error.class() == ErrorClass::Permanent {
            "cannot be published, not even without its payload"
        } else {
            "was not confirmed by its topic or queue in all the time that a message waits for that"
        };
        if let Some(left_out) = self.lines.unpublished.pass() {
            let origin = dead_letter.message.origin();
            tracing::error!(
                idem.consumer = %self.consumer.name, row = row.0, origin = %origin, error = with_causes(error), left_out,
                "a dead letter {why}; its row alone has it"
            );
            let text = format!("its row {} alone has the dead letter, which {why}", row.0);
            self.recent.note(IncidentKind::Error, dead_letter.key.as_ref(), Some(origin), text);
        }
    }

    fn not_yet(&self, error: &SourceError) -> Secured {
        if let Some(left_out) = self.lines.unrecorded.pass() {
            tracing::warn!(
                idem.consumer = %self.consumer.name, error = with_causes(error), left_out,
                "a dead letter was not confirmed; it is published again later"
            );
        }
        Secured::NotYet
    }

    async fn mark_published(&self, row: DeadLetterId) {
        if let Err(error) = self.consumer.store.bookkeeping().mark_published(row).await {
            tracing::debug!(idem.consumer = %self.consumer.name, %error, "a dead letter could not be marked as published");
        }
    }

    fn beyond(&self, dead_letter: &DeadLetter) -> Unkeepable {
        let (bytes, max) =
            (dead_letter.message.payload().map_or(0, bytes::Bytes::len), self.settings.dead_letter_payload_bytes_max);
        if bytes > max {
            let problem = format!("its payload has {bytes} bytes, and dead_letter_payload_bytes_max is {max}");
            Unkeepable { cause: WaitCause::Unkeepable, problem }
        } else if dead_letter.keep_payload {
            let problem = "its row was written without the payload".to_owned();
            Unkeepable { cause: WaitCause::Unkeepable, problem }
        } else {
            self.no_room()
        }
    }

    pub(super) fn no_room(&self) -> Unkeepable {
        let max = self.settings.dead_letters_bytes_max.unwrap_or_default();
        let problem =
            format!("the dead letters of {} take the {max} bytes of dead_letters_bytes_max", self.consumer.name);
        Unkeepable { cause: WaitCause::DeadLetterQuota, problem }
    }
}
