//! The clock of this process, in whole microseconds. DynamoDB has none to ask.

use std::{
    sync::atomic::{AtomicI64, Ordering},
    time::{Duration, SystemTime},
};

/// Microseconds since 1970.
pub(crate) type Micros = i64;

/// Later than at every earlier call of this process, also where the machine's clock was set back.
pub(crate) fn now() -> Micros {
    static LAST: AtomicI64 = AtomicI64::new(0);
    #[allow(clippy::disallowed_methods, reason = "the instants of items are of the clock of their writer")]
    let now = micros(SystemTime::now());
    let last = LAST.fetch_max(now, Ordering::Relaxed);
    if now > last { now } else { LAST.fetch_add(1, Ordering::Relaxed) + 1 }
}

pub(crate) fn micros(time: SystemTime) -> Micros {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, span)
}

/// A span in microseconds.
pub(crate) fn span(span: Duration) -> Micros {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}

pub(crate) fn time(micros: Micros) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_micros(u64::try_from(micros).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_goes_forward_and_times_are_read_back() {
        let all: Vec<_> = (0..1_000).map(|_| now()).collect();
        assert!(all.is_sorted_by(|one, next| one < next));
        assert_eq!(micros(time(all[0])), all[0]);
    }
}
