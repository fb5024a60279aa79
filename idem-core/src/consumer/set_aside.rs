//! Dead letters of callers that keep their own receive loop.

use crate::{
    config::{DEAD_LETTER_PAYLOAD_BYTES_MAX, DEAD_LETTERS_BYTES_MAX},
    consumer::DedupConsumer,
    dead_letter::{
        DeadLetter, Reason,
        identity::{FailureKind, Fingerprint},
    },
    error::{ErrorClass, StoreError},
    message::Message,
    outcome::{ConflictKind, Decision},
    store::{AuditEntry, Bookkeeping as _, Store},
    unit::decide::conflict_details,
};

/// How much of a message is kept where it is set aside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// The payload too, so that the message is safe here and its sender may forget it.
    Payload,
    /// The facts: key, reason, hash, headers and origin. Its sender keeps the message.
    Facts,
}

/// The outcome for a message that was to be set aside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "a sender may forget only a message that was kept whole"]
pub enum SetAside {
    /// It is a dead letter, and its payload is kept, or it had none.
    Whole,
    /// It is a dead letter without its payload: as was asked for, or because the payload is larger than
    /// [`DEAD_LETTER_PAYLOAD_BYTES_MAX`].
    Facts,
    /// Nothing was kept: the consumer's dead letters take all of [`DEAD_LETTERS_BYTES_MAX`].
    NoRoom,
    /// Nothing was kept, because nothing has to be: it was handled, or it may go better another time.
    Nothing,
}

/// Why a message is set aside.
struct Cause<'d> {
    reason: Reason,
    class: ErrorClass,
    text: String,
    code: Option<&'d str>,
    attempts: u32,
}

impl<S: Store> DedupConsumer<S> {
    /// Keeps a message that [`process`](Self::process) has given back, where its decision is one that no other attempt changes: a conflict, which
    /// is noted in the audit trail too, or a failure that does not [come again](crate::consumer::Failure::comes_again) and is not the set-up's. A
    /// [`Worker`](crate::Worker) does this by itself. A copy of an earlier dead letter is counted with it.
    ///
    /// # Errors
    /// [`StoreError`] where it is not certain that it was kept. The message stays with its sender, and may be set aside again.
    ///
    /// # Cancel safety
    /// A dropped call may or may not have kept it. Call it again.
    pub async fn set_aside(&self, message: &Message, decision: &Decision, keep: Keep) -> Result<SetAside, StoreError> {
        let Some(cause) = cause(decision) else { return Ok(SetAside::Nothing) };
        let engine = &self.engine;
        let registered = engine.register(None).await?;
        let claim = match engine.identify(message.clone(), message.key().cloned()).await {
            Ok(item) => item.claim,
            Err(_) => None,
        };
        if let (Decision::Conflict(recorded, _), Some(claim)) = (decision, &claim) {
            let details = conflict_details(claim, recorded, message.origin().as_str());
            let who = format!("run {}", registered.run);
            let entry = AuditEntry::new(who, "conflict", claim.scope, details).key(Some(claim.key.clone()));
            engine.store.bookkeeping().audit(&entry).await?;
        }
        let size = message.payload().map_or(0, bytes::Bytes::len);
        let keep_payload = keep == Keep::Payload && size <= DEAD_LETTER_PAYLOAD_BYTES_MAX;
        let letter = DeadLetter {
            consumer: engine.name.clone(),
            scope: claim.as_ref().map_or(registered.scope, |claim| claim.scope),
            message: message.clone(),
            key: claim.as_ref().map(|claim| claim.key.clone()).or_else(|| message.key().cloned()),
            hash: claim.as_ref().map(|claim| (claim.hash, claim.hash_rule)),
            reason: cause.reason,
            attempts: cause.attempts,
            error: cause.text,
            fingerprint: Fingerprint::of(&FailureKind {
                reason: cause.reason,
                class: cause.class,
                code: cause.code,
                handler: engine.handler_name.as_deref(),
                message_type: message.message_type(),
            }),
            keep_payload,
            payload_omitted: None,
        };
        let taken = engine.store.bookkeeping().dead_letter_bytes(&engine.name, DEAD_LETTERS_BYTES_MAX / 2).await?;
        let payload = if keep_payload { size as u64 } else { 0 };
        if taken.saturating_add(payload).saturating_add(letter.bytes_without_payload()) > DEAD_LETTERS_BYTES_MAX {
            return Ok(SetAside::NoRoom);
        }
        let stored = engine.store.bookkeeping().store_dead_letter(&letter).await?;
        tracing::warn!(
            idem.consumer = %engine.name, idem.key = letter.key.as_ref().map(tracing::field::display),
            origin = %letter.message.origin(), reason = %letter.reason, error = letter.error, "set aside as a dead letter"
        );
        Ok(if stored.payload_kept { SetAside::Whole } else { SetAside::Facts })
    }
}

/// Why, or `None` where it is not set aside.
fn cause(decision: &Decision) -> Option<Cause<'_>> {
    match decision {
        Decision::Conflict(_, kind) => {
            let reason = match kind {
                ConflictKind::OtherPayload => Reason::Conflict,
                ConflictKind::UnknownRule => Reason::HashUnknown,
            };
            let text = kind.as_str().to_owned();
            Some(Cause { reason, class: ErrorClass::Permanent, text, code: None, attempts: 0 })
        }
        Decision::Failed(failure) => match failure.class {
            ErrorClass::Permanent => Some(Cause {
                reason: failure.reason,
                class: failure.class,
                text: failure.text.clone(),
                code: failure.code.as_deref(),
                attempts: u32::from(failure.error.is_some()),
            }),
            // A wrong set-up is no message's fault.
            ErrorClass::Fatal | ErrorClass::RunUnitAgain | ErrorClass::Transient | ErrorClass::Infrastructure => None,
        },
        Decision::Processed(_) | Decision::Duplicate(..) | Decision::Busy => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::Failure;

    /// What another attempt may change stays with its sender, and so does what is the set-up's fault.
    #[test]
    fn only_what_fails_for_good_by_its_own_fault_is_set_aside() {
        let all = [
            (ErrorClass::Permanent, true),
            (ErrorClass::Fatal, false),
            (ErrorClass::RunUnitAgain, false),
            (ErrorClass::Transient, false),
            (ErrorClass::Infrastructure, false),
        ];
        for (class, expected) in all {
            let decision = Decision::Failed(Failure::new(class, Reason::Malformed, "no JSON"));
            let cause = cause(&decision);
            assert_eq!(cause.is_some(), expected, "{class:?}");
            if let Some(cause) = cause {
                assert_eq!((cause.reason, cause.text.as_str(), cause.attempts), (Reason::Malformed, "no JSON", 0));
            }
        }
        assert!(cause(&Decision::Busy).is_none());
    }
}
