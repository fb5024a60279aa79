//! Ends the source's subscription while intake is closed for long, where the broker counts held messages.
//!
//! A broker with a delivery limit counts each time that it takes a message back from a consumer that does not settle it,
//! and drops the message in the end. So messages that this worker holds through a pause, an outage or an open breaker
//! would be lost although they never failed (B-C3, G15). Giving them back costs one count in all, or none.

use std::time::Duration;

use tokio::time::{Instant, Interval, MissedTickBehavior};

use crate::{
    pause::Pause,
    source::Source,
    store::Store,
    worker::{intake::LaneSenders, lane::Command, shared::Shared},
};

/// The subscription that is wanted from the broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Messages as they come.
    Open,
    /// One now and then, by which the breaker finds out whether handlers work again. Nothing is kept in hand.
    Trickling,
    /// Nothing.
    Ended,
}

/// The call that changes the subscription.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    Nothing,
    /// Give back messages that were not begun.
    End,
    /// The same, and begin anew.
    Restart,
    Resume,
}

#[derive(Debug)]
pub(super) struct Subscription {
    /// `None` where holding messages costs nothing.
    ticks: Option<Interval>,
    after: Duration,
    state: State,
    closed_since: Option<Instant>,
}

impl Subscription {
    pub(super) fn of<S: Store, B: Source>(shared: &Shared<S, B>) -> Self {
        let after = shared.settings.give_back_after;
        let ticks = shared.source.capabilities().pauses.then(|| {
            let mut ticks = tokio::time::interval((after / 4).max(Duration::from_millis(1)));
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            ticks
        });
        Self { ticks, after, state: State::Open, closed_since: None }
    }

    /// Waits until it is time to [look](Self::look) again.
    pub(super) async fn due(&mut self) {
        match &mut self.ticks {
            Some(ticks) => drop(ticks.tick().await),
            None => std::future::pending().await,
        }
    }

    /// Passes the state of intake on to source and lanes. Answers whether all messages that were not begun are to go back.
    pub(super) fn look<S: Store, B: Source>(&mut self, shared: &Shared<S, B>, lanes: &LaneSenders<B::Handle>) -> bool {
        if self.ticks.is_none() || shared.shutdown.is_cancelled() {
            return false;
        }
        let cause = shared.gate.pause();
        let change = self.change(cause.as_ref(), Instant::now());
        match change {
            Change::Nothing => return false,
            Change::Resume => {
                shared.source.resume();
                return false;
            }
            Change::End => shared.source.pause(),
            Change::Restart => {
                shared.source.pause();
                shared.source.resume();
            }
        }
        // A lane that stopped has handed everything back.
        lanes.iter().for_each(|lane| drop(lane.send(Command::GiveBack)));
        tracing::info!(
            idem.consumer = %shared.consumer.name, cause = cause.as_ref().map(tracing::field::display),
            closed_for = ?self.after,
            "intake is closed for long: messages that were not begun go back to the broker, which counts held ones"
        );
        true
    }

    fn change(&mut self, cause: Option<&Pause>, now: Instant) -> Change {
        let wanted = match cause {
            None => State::Open,
            Some(Pause::Breaker) => State::Trickling,
            Some(Pause::Control(..) | Pause::StoreDown(_)) => State::Ended,
        };
        if wanted == State::Open {
            self.closed_since = None;
        } else {
            let since = *self.closed_since.get_or_insert(now);
            if now.duration_since(since) < self.after {
                return Change::Nothing;
            }
        }
        match (std::mem::replace(&mut self.state, wanted), wanted) {
            (State::Open | State::Trickling, State::Open)
            | (State::Trickling, State::Trickling)
            | (State::Ended, State::Ended) => Change::Nothing,
            (State::Open, State::Trickling) => Change::Restart,
            (State::Open | State::Trickling, State::Ended) => Change::End,
            (State::Ended, State::Open | State::Trickling) => Change::Resume,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::ControlState;

    #[test]
    fn g15_the_subscription_ends_after_a_while_and_begins_at_once() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let paused = Pause::Control(ControlState::Paused, String::new());
        let mut subscription =
            Subscription { ticks: None, after: Duration::from_secs(5), state: State::Open, closed_since: None };
        let mut change = |cause: Option<&Pause>, seconds| subscription.change(cause, at(seconds));
        assert_eq!(change(None, 0), Change::Nothing);
        assert_eq!(change(Some(&paused), 1), Change::Nothing);
        assert_eq!(change(None, 2), Change::Nothing, "it was closed for a moment");
        assert_eq!(change(Some(&Pause::StoreDown(1)), 3), Change::Nothing);
        assert_eq!(change(Some(&paused), 7), Change::Nothing);
        assert_eq!(change(Some(&paused), 8), Change::End, "whatever keeps it closed");
        assert_eq!(change(Some(&Pause::StoreDown(1)), 9), Change::Nothing);
        assert_eq!(change(Some(&Pause::Breaker), 10), Change::Resume, "probes need messages");
        assert_eq!(change(Some(&paused), 11), Change::End);
        assert_eq!(change(None, 12), Change::Resume);
        assert_eq!(change(Some(&Pause::Breaker), 13), Change::Nothing);
        assert_eq!(change(Some(&Pause::Breaker), 18), Change::Restart);
        assert_eq!(change(Some(&Pause::Breaker), 30), Change::Nothing);
        assert_eq!(change(None, 31), Change::Nothing);
    }
}
