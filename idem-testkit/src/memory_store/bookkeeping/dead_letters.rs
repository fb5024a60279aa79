//! Dead letters as rows.

use std::time::SystemTime;

use idem_core::{
    Bytes, ConsumerName, Message,
    dead_letter::{DEAD_LETTER_ROW_BYTES, DeadLetter, DeadLetterId, DeadLetterIdentity, StoredDeadLetter},
    hash::PayloadHash,
    message::Origin,
    store::{RunId, ScopeId},
};

use super::{Books, storable};

#[derive(Debug, Clone)]
pub(super) struct DeadLetterRow {
    pub(super) seen: StoredDeadLetter,
    pub(super) consumer: ConsumerName,
    pub(super) scope: ScopeId,
    pub(super) identity: DeadLetterIdentity,
    pub(super) hash: PayloadHash,
    pub(super) last_origin: String,
    pub(super) last_at: SystemTime,
    /// The first copy, as a replay brings it; without its payload where that was not kept, and then it cannot be replayed.
    pub(super) message: Message,
    pub(super) state: RowState,
    /// Whether it waits for a later try, not for a replay that an operator asked for.
    pub(super) waits: bool,
    /// The lease of a row that runs.
    pub(super) taken: Option<(SystemTime, RunId)>,
}

/// The message as a database keeps it, with this payload.
fn stored_message(message: &Message, payload: Option<Bytes>) -> Message {
    let mut stored = payload.map_or_else(Message::tombstone, Message::new);
    stored =
        stored.with_origin(Origin::new(&storable(message.origin().as_str()))).with_headers(message.headers().clone());
    if let Some(id) = message.id() {
        stored = stored.with_id(&storable(id));
    }
    if let Some(message_type) = message.message_type() {
        stored = stored.with_type(&storable(message_type));
    }
    if let Some(key) = message.record_key() {
        stored = stored.with_record_key(key.clone());
    }
    match message.ordering_key() {
        Some(key) => stored.with_ordering_key(key.clone()),
        None => stored,
    }
}

impl DeadLetterRow {
    /// The row as it is listed.
    pub(super) fn listed(&self) -> StoredDeadLetter {
        let waits_until = match self.state {
            RowState::Due(at) | RowState::Behind(at) if self.waits => Some(at),
            RowState::Over | RowState::Due(_) | RowState::Behind(_) => None,
        };
        StoredDeadLetter { waits_until, ..self.seen.clone() }
    }

    /// The size that its row would have.
    pub(super) fn bytes(&self) -> u64 {
        let payload = self.message.payload().map_or(0, Bytes::len);
        let headers = self.message.headers().bytes();
        DEAD_LETTER_ROW_BYTES + (payload + headers + self.seen.error.len()) as u64
    }

    /// Whether a replay has handled it.
    pub(super) fn is_handled(&self) -> bool {
        self.seen.replayed.as_deref().is_some_and(|outcome| ["processed", "duplicate"].contains(&outcome))
    }
}

/// Which dead letters are one row.
#[derive(Debug, Clone, Copy)]
pub(super) enum Folding {
    ByIdentity,
    /// The defect of a store that takes an origin for the message.
    ByOrigin,
    Never,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RowState {
    Over,
    /// It runs from this instant on.
    Due(SystemTime),
    /// It runs behind another row of its ordering key.
    Behind(SystemTime),
}

/// A dead letter as a [`MemoryStore`](super::super::MemoryStore) keeps it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct KeptDeadLetter {
    /// The row as [`dead_letters`](idem_core::store::Bookkeeping::dead_letters) lists it.
    pub row: StoredDeadLetter,
    /// Its scope.
    pub scope: ScopeId,
    /// The message; `None` where its payload was not kept.
    pub message: Option<Message>,
    /// Whether a replay was asked for and has not ended.
    pub replaying: bool,
}

impl Books {
    pub(super) fn store_dead_letter(
        &mut self,
        dead_letter: &DeadLetter,
        now: SystemTime,
        folding: Folding,
    ) -> StoredDeadLetter {
        let origin = storable(dead_letter.message.origin().as_str());
        let identity = dead_letter.identity();
        let kept = dead_letter.keep_payload || dead_letter.message.payload().is_none();
        let known =
            self.dead_letters.iter_mut().filter(|stored| stored.scope == dead_letter.scope).find(
                |stored| match folding {
                    Folding::ByIdentity => stored.identity == identity,
                    Folding::ByOrigin => stored.seen.origin == origin || stored.identity == identity,
                    Folding::Never => false,
                },
            );
        if let Some(stored) = known {
            if stored.seen.origin != origin && stored.last_origin != origin {
                stored.seen.copies += 1;
                stored.last_origin = origin;
                // A replay that has ended does not stand for a copy that came after it.
                stored.seen.replayed = None;
            }
            if kept && !stored.seen.payload_kept {
                stored.message = stored_message(&stored.message, dead_letter.message.payload().cloned());
                stored.seen.payload_kept = true;
            }
            (stored.seen.reason, stored.seen.attempts, stored.last_at) =
                (dead_letter.reason, dead_letter.attempts, now);
            stored.seen.error = storable(&dead_letter.error);
            stored.seen.fingerprint = Some(dead_letter.fingerprint);
            return stored.seen.clone();
        }
        self.dead_letters_ever += 1;
        let seen = StoredDeadLetter {
            id: DeadLetterId(self.dead_letters_ever),
            key: dead_letter.key.clone(),
            origin: origin.clone(),
            reason: dead_letter.reason,
            attempts: dead_letter.attempts,
            error: storable(&dead_letter.error),
            fingerprint: Some(dead_letter.fingerprint),
            copies: 1,
            first_at: now,
            payload_kept: kept,
            published_at: None,
            loss_accepted: false,
            replayed: None,
            waits_until: None,
        };
        self.dead_letters.push(DeadLetterRow {
            seen: seen.clone(),
            consumer: dead_letter.consumer.clone(),
            scope: dead_letter.scope,
            identity,
            hash: dead_letter.payload_hash().0,
            last_origin: origin,
            last_at: now,
            message: stored_message(&dead_letter.message, dead_letter.message.payload().filter(|_| kept).cloned()),
            state: RowState::Over,
            waits: false,
            taken: None,
        });
        seen
    }
}
