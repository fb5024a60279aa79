//! Writes the events and results of a unit's handlers, before its seal.

use std::borrow::Borrow;

use crate::{
    bugs::{Bug, planted},
    dead_letter::Reason,
    error::{ErrorClass, StoreError},
    failpoint,
    outbox::rows::{AppendError, Appended, NewEvent},
    outcome::Failure,
    results::{encrypt::OfRecord, rows::NewResult},
    store::{
        Store,
        describe::{code, one_line},
        unit::UnitOfWork,
    },
    unit::{
        destinations::fits,
        engine::Engine,
        handlers::{AllHandedIn, HandlingError, TransactionState},
        identify::Item,
        session::{answered, inject},
    },
};

/// Appends the events and results, and passes the failpoint between them and the seal.
pub(super) async fn append_all<S: Store, J: Borrow<Item> + Sync>(
    engine: &Engine<S>,
    unit: &mut S::Unit,
    items: &[J],
    handed_in: AllHandedIn,
) -> Result<(), HandlingError> {
    let (appended, events_of, messages) = rows(engine, &*unit, items, handed_in)?;
    if appended.is_empty() {
        return Ok(());
    }
    fits(engine, &appended, &events_of).await?;
    let limit = engine.settings.answer_timeout;
    let appending = async {
        match unit.append(&appended).await {
            Ok(()) => Ok(Ok(())),
            Err(AppendError::Conflict { event }) => Ok(Err(event)),
            Err(AppendError::Store(error)) => Err(error),
        }
    };
    match answered(limit, "writing events and results", appending).await {
        Ok(Ok(())) => {}
        Ok(Err(event)) => {
            let index = events_of.get(event).copied().unwrap_or_default();
            return Err(HandlingError::one(index, conflict(&appended, event), TransactionState::Clean));
        }
        Err(error @ StoreError::Unsealed { .. }) => return Err(HandlingError::Unsealed(error)),
        Err(error) => return Err(failed::<S>(error, &messages)),
    }
    failpoint!(APPENDED).map_err(|injected| HandlingError::Store(inject(injected)))
}

/// The rows, beside them the message of each event, and the messages that have any.
fn rows<S: Store, J: Borrow<Item>>(
    engine: &Engine<S>,
    unit: &S::Unit,
    items: &[J],
    handed_in: AllHandedIn,
) -> Result<(Appended, Vec<usize>, Vec<usize>), HandlingError> {
    let (mut appended, mut events_of, mut messages) = (Appended::default(), Vec::new(), Vec::new());
    appended.is_shared = items.len() > 1;
    let kept_for = engine.settings.answers_kept_for();
    let destinations = engine.destinations.ids();
    for (index, handed) in handed_in {
        let item: &Item = items[index].borrow();
        // A message without a claim could hand nothing in.
        let Some(claim) = &item.claim else { continue };
        messages.push(index);
        appended.runs_once |= handed.runs_once;
        for event in handed.events {
            // No effect is committed without its event.
            let Some(event) = NewEvent::of(claim.scope, destinations, &item.message, event) else {
                let what = "publish to a destination that it was not asked to declare";
                return Err(HandlingError::Store(StoreError::Unsupported { what }));
            };
            if planted(Bug::PkIdOnly) && appended.events.iter().any(|other| other.key == event.key) {
                continue;
            }
            events_of.push(index);
            appended.events.push(event);
        }
        let Some(result) = handed.result else { continue };
        let mut result = NewResult::new(claim.scope, claim.key.clone(), handed.is_error, result);
        result.kept_for = kept_for;
        let Some(seal) = engine.seal.as_deref() else {
            appended.results.push(result);
            continue;
        };
        let Some(processed_at) = unit.processed_at(claim) else {
            let what = "say when a record was processed, to which a sealed result is bound";
            return Err(HandlingError::Store(StoreError::Unsupported { what }));
        };
        appended.results.push(match seal.seal(OfRecord::inserted(claim, processed_at), result) {
            Ok(sealed) => sealed,
            Err(error) => {
                let failure =
                    Failure::new(ErrorClass::Transient, Reason::AttemptsExhausted, error.to_string()).of("not-sealed");
                return Err(HandlingError::one(index, failure, TransactionState::Clean));
            }
        });
    }
    Ok((appended, events_of, messages))
}

fn conflict(appended: &Appended, event: usize) -> Failure {
    let key = appended.events.get(event).map(|event| event.key.to_string()).unwrap_or_default();
    let text = format!(
        "the outbox holds an event with the id {key} and another content: the same key was handled before, its record has expired, \
         was forgotten or was lost in a restore, and this run gave another event than that one; send or skip the first event with \
         `idem outbox`, then replay the message, or ask again with the same key"
    );
    Failure::new(ErrorClass::Permanent, Reason::OutboxConflict, text)
}

/// The failure of the statement: where the database is not at fault, the messages of its rows run alone, so that only the
/// culprit is charged.
fn failed<S: Store>(error: StoreError, messages: &[usize]) -> HandlingError {
    match error.class() {
        class @ (ErrorClass::Permanent | ErrorClass::Transient) => {
            let reason = if class == ErrorClass::Permanent { Reason::Permanent } else { Reason::AttemptsExhausted };
            let failure = Failure::new(class, reason, one_line::<S>(&error)).with_code(code::<S>(&error));
            let failed = messages.iter().map(|index| (*index, failure.clone_text())).collect();
            HandlingError::Handlers { failed, left: TransactionState::Clean }
        }
        ErrorClass::RunUnitAgain | ErrorClass::Infrastructure | ErrorClass::Fatal => HandlingError::Store(error),
    }
}
