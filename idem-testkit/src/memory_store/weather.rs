//! How a [`MemoryStore`](super::MemoryStore) misbehaves by itself, drawn from a seed.

use std::time::Duration;

use idem_core::ErrorClass;

use super::{Fault, Operation};
use crate::memory::Rate;

/// How often each kind of fault meets an operation of a [`MemoryStore`](super::MemoryStore); everything is off by default.
/// The same seed and the same calls meet the same faults. See [`MemoryStore::weather`](super::MemoryStore::weather).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Weather {
    /// The seed of all choices.
    pub seed: u64,
    /// How often an operation takes longer, before it begins or before its answer arrives.
    pub slow: Rate,
    /// How much longer it then takes at most.
    pub slow_max: Duration,
    /// How often an operation fails and has no effect: the store is not available, or another transaction was in the way; a
    /// statement may also time out.
    pub errors: Rate,
    /// How often the connection breaks before the operation is done.
    pub connections_lost: Rate,
    /// How often it breaks after that, before the answer arrives.
    pub answers_lost: Rate,
    /// How often an operation of a unit is never answered. Operations outside of units are bounded in time by each store, so
    /// they are spared.
    pub hangs: Rate,
    /// How often the server notices late that a session is gone, whose process died or whose connection broke: until then its
    /// keys and rows are held.
    pub lingers: Rate,
    /// How late at most.
    pub lingers_max: Duration,
    /// Whether other tasks run between each operation and its answer, as they do before it.
    pub yields: bool,
}

/// The result of a draw: how much longer the operation takes, and the fault that follows.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Drawn {
    pub(super) delay: Duration,
    pub(super) fault: Option<Fault>,
}

/// The weather, and its choices so far.
#[derive(Debug)]
pub(super) struct Sky {
    weather: Weather,
    rng: fastrand::Rng,
}

impl Sky {
    pub(super) fn new(weather: Weather) -> Self {
        Self { weather, rng: fastrand::Rng::with_seed(weather.seed) }
    }

    pub(super) fn draw(&mut self, operation: Operation) -> Drawn {
        let delay = self.delay();
        let Self { weather, rng } = self;
        let fault = if weather.errors.strikes(rng) {
            Some(Fault::Error(error_of(operation, rng)))
        } else if weather.connections_lost.strikes(rng) {
            Some(Fault::ConnectionLost)
        } else if weather.answers_lost.strikes(rng) {
            Some(Fault::AnswerLost)
        } else if operation != Operation::Bookkeeping && weather.hangs.strikes(rng) {
            Some(Fault::Hang)
        } else {
            None
        };
        Drawn { delay, fault }
    }

    pub(super) fn delay(&mut self) -> Duration {
        self.up_to(self.weather.slow, self.weather.slow_max)
    }

    pub(super) fn yields(&self) -> bool {
        self.weather.yields
    }

    pub(super) fn lingers(&mut self) -> Duration {
        self.up_to(self.weather.lingers, self.weather.lingers_max)
    }

    fn up_to(&mut self, rate: Rate, max: Duration) -> Duration {
        let max = u64::try_from(max.as_millis()).unwrap_or(u64::MAX);
        if max > 0 && rate.strikes(&mut self.rng) {
            Duration::from_millis(self.rng.u64(1..=max))
        } else {
            Duration::ZERO
        }
    }
}

/// A class that a database gives such an operation now and then.
fn error_of(operation: Operation, rng: &mut fastrand::Rng) -> ErrorClass {
    let classes: &[ErrorClass] = match operation {
        Operation::Statement => &[ErrorClass::Transient, ErrorClass::RunUnitAgain, ErrorClass::Infrastructure],
        Operation::Claim | Operation::Append | Operation::Commit => {
            &[ErrorClass::RunUnitAgain, ErrorClass::Infrastructure]
        }
        Operation::Open | Operation::Begin | Operation::Read | Operation::Rollback | Operation::Bookkeeping => {
            &[ErrorClass::Infrastructure]
        }
    };
    classes[rng.usize(..classes.len())]
}
