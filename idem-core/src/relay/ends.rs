//! Turns a destination's answer into an event's outcome: pure functions.

use std::time::Duration;

use crate::{
    bugs::{Bug, planted},
    outbox::{
        publisher::EventError,
        rows::{EventEnd, OutgoingEvent},
    },
    relay::{
        settings::{Route, is_stale},
        told,
    },
    retry::RetryPolicy,
    span::{Exactly, Roughly},
};

/// The outcome of an event.
#[derive(Debug)]
pub(super) enum Became {
    /// An outcome that is to be noted.
    Noted(EventEnd),
    /// No outcome: the destination accepts no events at all, for this reason.
    Refused(String),
}

impl Became {
    /// The same of an event of which it is not certain that it was not sent.
    pub(super) fn may_be_sent(mut self) -> Self {
        if let Self::Noted(EventEnd::Later { may_be_sent, .. } | EventEnd::Failed { may_be_sent, .. }) = &mut self {
            *may_be_sent = true;
        }
        self
    }
}

/// The waits of an event that was not confirmed, and is not at fault.
const UNCOUNTED: RetryPolicy = RetryPolicy::new(u32::MAX, Duration::from_secs(1), UNCOUNTED_MAX);
pub(super) const UNCOUNTED_MAX: Duration = Duration::from_secs(5);

/// The outcome of an event. `tries` is the number of consecutive steps in which the destination confirmed nothing.
pub(super) fn of(event: &OutgoingEvent, answer: Result<(), EventError>, retry: &RetryPolicy, tries: u32) -> Became {
    let error = match answer {
        Ok(()) => return Became::Noted(EventEnd::Published),
        Err(error) => error,
    };
    let text = told(&error);
    Became::Noted(match error {
        EventError::Later { may_be_sent: true, .. } if planted(Bug::SilenceConfirms) => EventEnd::Published,
        EventError::Refused { .. } => return Became::Refused(text),
        EventError::DoesNotFit { .. } => EventEnd::Failed { error: text, may_be_sent: false },
        EventError::Later { may_be_sent, after, counted: true, .. } => {
            let attempt = event.attempts.saturating_add(1);
            if attempt >= retry.attempts {
                EventEnd::Failed { error: format!("attempt {attempt} of {attempt}: {text}"), may_be_sent }
            } else {
                let after = after.unwrap_or_else(|| retry.between_attempts(attempt));
                EventEnd::Later { after, error: text, may_be_sent, counted: true }
            }
        }
        EventError::Later { may_be_sent, after, counted: false, .. } => {
            let after = after.unwrap_or_else(|| UNCOUNTED.backoff_now(tries.max(1)));
            EventEnd::Later { after, error: text, may_be_sent, counted: false }
        }
    })
}

/// The outcome of an event whose destination accepts nothing, where one must be noted.
pub(super) fn not_sent(error: String, tries: u32) -> EventEnd {
    EventEnd::Later { after: UNCOUNTED.backoff_now(tries.max(1)), error, may_be_sent: false, counted: false }
}

/// An event whose receivers may have forgotten its first copy is not sent again (O25): they could not recognise the copy, and
/// it would have its effect twice.
pub(super) fn stale(event: &OutgoingEvent, route: &Route) -> Option<EventEnd> {
    let first = event.first_sent_ago?;
    let keeps = route.receiver_keeps;
    is_stale(first, keeps).then(|| EventEnd::Failed {
        error: format!(
            "stale: a copy of it may have been sent {} ago, and its receivers forget it after {}, so another one could have \
             its effect twice; see whether they have it, then skip it or send it with `idem outbox`",
            Roughly(first),
            Exactly(keeps)
        ),
        may_be_sent: true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::relay::tests::{Silent, event};

    fn end(attempts: u32, error: EventError) -> EventEnd {
        let mut event = event(1, None);
        event.attempts = attempts;
        match of(&event, Err(error), &RetryPolicy::new(3, Duration::from_secs(1), Duration::from_secs(8)), 4) {
            Became::Noted(end) => end,
            Became::Refused(why) => panic!("refused: {why}"),
        }
    }

    #[test]
    fn o9_only_what_counts_uses_attempts_up() {
        let EventEnd::Later { after, counted: true, may_be_sent: true, error } =
            end(1, EventError::unconfirmed("late"))
        else {
            panic!("the second attempt of three");
        };
        assert!(after > Duration::from_secs(6) && after <= Duration::from_secs(8), "{after:?}");
        assert!(error.ends_with("late"), "{error}");
        let failed = end(2, EventError::not_sent("no"));
        assert!(matches!(failed, EventEnd::Failed { may_be_sent: false, .. }), "{failed:?}");
        let outage = end(1_000, EventError::unconfirmed("away").uncounted());
        assert!(matches!(outage, EventEnd::Later { counted: false, .. }), "{outage:?}");
        let asked = Duration::from_secs(77);
        let wanted = EventError::Later { source: "busy".into(), may_be_sent: true, after: Some(asked), counted: true };
        assert!(matches!(end(0, wanted), EventEnd::Later { after, .. } if after == asked));
    }

    /// O25: an event is sent again only while its receivers still know it.
    #[test]
    fn o25_an_event_that_its_receivers_may_have_forgotten_is_stale() {
        let hours = |hours: u64| Duration::from_secs(hours * 60 * 60);
        let route = Route::to("a", Silent).receiver_keeps(hours(24));
        let mut event = event(1, None);
        assert!(stale(&event, &route).is_none(), "it was never sent");
        for (ago, is_stale) in [(hours(0), false), (hours(23), false), (hours(23) + Duration::from_secs(1), true)] {
            event.first_sent_ago = Some(ago);
            assert_eq!(stale(&event, &route).is_some(), is_stale, "{ago:?}");
        }
        let Some(EventEnd::Failed { error, .. }) = stale(&event, &route) else { panic!("stale") };
        assert!(
            error
                .starts_with("stale: a copy of it may have been sent 23 h ago, and its receivers forget it after 1d, "),
            "{error}"
        );
    }
}
