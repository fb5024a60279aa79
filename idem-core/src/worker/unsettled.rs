//! Dead letters that the broker may not have taken.
//!
//! Storing a dead letter ends the count of its attempts, so that a producer that sends the message once more gets all of them.
//! A delivery whose settlement came too late, because its lease had run out or its assignment had gone, would get them too: it
//! is the same delivery once more. Where the breaker is open and one message a second runs, that is so of everything in hand,
//! and a message that always fails would run for ever.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use crate::{
    bugs::{self, Bug},
    hash::PayloadHash,
    names::{IdempotencyKey, ScopeId},
    worker::job::{Counts, DeadLetterCause, DeliveredBy, Job},
};

/// The most that are remembered; beyond it the oldest goes, and gets its attempts anew if it comes again.
const MAX: usize = 10_000;

/// One message at one place of its broker: another message may be at a place that was used before.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    origin: Box<str>,
    scope: ScopeId,
    key: IdempotencyKey,
    hash: PayloadHash,
}

impl Place {
    /// `None` for a message without a key, which no handler runs, and for a replay, which is not settled.
    pub(crate) fn of<H>(job: &Job<H>) -> Option<Self> {
        let claim = job.item.claim.as_ref()?;
        match job.from {
            DeliveredBy::Row(_) => None,
            DeliveredBy::Broker(_) => Some(Self {
                origin: job.item.message.origin().as_str().into(),
                scope: claim.scope,
                key: claim.key.clone(),
                hash: claim.hash,
            }),
        }
    }
}

/// Dead letters, from the moment that their rows may be there until the broker says that it has taken their settlements.
#[derive(Debug, Default)]
pub(crate) struct Unsettled {
    /// Nearly always, so that good messages ask nothing more.
    is_used: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    causes: HashMap<Place, (DeadLetterCause, u32)>,
    /// In the order in which they were set aside; some have gone since.
    order: VecDeque<Place>,
}

impl Unsettled {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_empty(&self) -> bool {
        !self.is_used.load(Ordering::Relaxed)
    }

    /// The row of this message is written, after so many attempts.
    pub(crate) fn written(&self, place: Place, cause: &DeadLetterCause, attempts: u32) {
        // Its fault has been counted.
        self.note(place, DeadLetterCause { counts: Counts::Nothing, in_claim: false, ..cause.clone() }, attempts);
    }

    /// The row of this message was to be written after so many attempts, and may be there (J78). Where it is not, another process may
    /// have run it by the time that it comes again: it is set aside in its claim.
    pub(crate) fn unanswered(&self, place: Place, cause: &DeadLetterCause, attempts: u32) {
        if !bugs::planted(Bug::UnansweredRowsAreForgotten) {
            self.note(place, DeadLetterCause { in_claim: true, ..cause.clone() }, attempts);
        }
    }

    fn note(&self, place: Place, cause: DeadLetterCause, attempts: u32) {
        if bugs::planted(Bug::LateDeadLettersBeginAnew) {
            return;
        }
        let mut state = self.state();
        if state.causes.insert(place.clone(), (cause, attempts)).is_none() {
            state.order.push_back(place);
        }
        while state.order.len() > MAX {
            let oldest = state.order.pop_front();
            oldest.map(|place| state.causes.remove(&place));
        }
        self.is_used.store(true, Ordering::Relaxed);
    }

    /// The broker has taken its settlement, or it is no dead letter.
    pub(crate) fn settled(&self, place: &Place) {
        let mut state = self.state();
        if state.causes.remove(place).is_some() {
            state.order.retain(|other| other != place);
        }
        self.is_used.store(!state.causes.is_empty(), Ordering::Relaxed);
    }

    /// Why this message was set aside before, or was about to be, and after how many attempts, where the broker may not know that.
    pub(crate) fn cause(&self, place: &Place) -> Option<(DeadLetterCause, u32)> {
        self.state().causes.get(place).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{dead_letter::Reason, error::ErrorClass};

    fn place(origin: &str) -> Place {
        let key = IdempotencyKey::new("k").unwrap();
        Place { origin: origin.into(), scope: ScopeId(1), key, hash: PayloadHash::of(b"x") }
    }

    fn cause() -> DeadLetterCause {
        DeadLetterCause {
            reason: Reason::Permanent,
            class: ErrorClass::Permanent,
            text: "no".to_owned(),
            code: None,
            key: None,
            hash: None,
            in_claim: false,
            counts: Counts::Handler,
            after: None,
        }
    }

    /// J64: a dead letter is known until its settlement was taken, it says nothing more of the handler, and there is a bound.
    #[test]
    fn j64_what_was_set_aside_is_known_until_the_broker_has_taken_it() {
        let unsettled = Unsettled::default();
        assert!(unsettled.is_empty() && unsettled.cause(&place("q/1")).is_none());
        unsettled.unanswered(place("q/1"), &cause(), 5);
        let (known, _) = unsettled.cause(&place("q/1")).unwrap();
        assert_eq!((known.counts, known.in_claim), (Counts::Handler, true), "its row may not be there");
        unsettled.written(place("q/1"), &cause(), 5);
        let (known, attempts) = unsettled.cause(&place("q/1")).unwrap();
        assert_eq!((known.counts, known.in_claim, attempts), (Counts::Nothing, false, 5));
        assert!(!unsettled.is_empty());
        let other = Place { hash: PayloadHash::of(b"y"), ..place("q/1") };
        assert!(unsettled.cause(&other).is_none(), "another message at the same place");
        unsettled.settled(&place("q/1"));
        assert!(unsettled.is_empty() && unsettled.cause(&place("q/1")).is_none());
        (0..=MAX).for_each(|number| unsettled.written(place(&number.to_string()), &cause(), 1));
        assert!(unsettled.cause(&place("0")).is_none() && unsettled.cause(&place("1")).is_some());
        assert_eq!(unsettled.state().order.len(), MAX);
    }
}
