//! The clock of SQLite's records: the process's own, because there is no server that could have one.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The value of `expires_at` for "for ever".
pub(super) const FOREVER: i64 = i64::MAX;

const MINUTE: i64 = 60_000_000;

/// Now, in microseconds since the Unix epoch.
#[allow(clippy::disallowed_methods, reason = "an embedded database has no clock of its own, and says so")]
pub(super) fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, micros)
}

/// A span in microseconds, the largest where it has more.
pub(super) fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}

/// An instant from its microseconds.
pub(super) fn instant(micros: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

/// When a record that is made `now` expires, rounded up to the full minute, as every store of idem does.
pub(super) fn expiry(now: i64, retention: Duration) -> i64 {
    let exact = now.saturating_add(micros(retention));
    exact.checked_add(MINUTE - 1).map_or(FOREVER, |padded| padded - padded % MINUTE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expiry_is_rounded_up_and_never_overflows() {
        assert_eq!(expiry(0, Duration::ZERO), 0);
        assert_eq!(expiry(1, Duration::ZERO), MINUTE);
        assert_eq!(expiry(MINUTE, Duration::from_secs(60)), 2 * MINUTE);
        assert_eq!(expiry(5, Duration::MAX), FOREVER);
        assert_eq!(instant(1_500_000), UNIX_EPOCH + Duration::from_millis(1500));
    }
}
