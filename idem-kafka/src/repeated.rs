//! Errors that the client library reports again and again while it goes on trying: passed on, but not each time.

use rdkafka::types::RDKafkaErrorCode as Code;
use tokio::time::{Duration, Instant};

/// How often the same error is reported while it lasts: often enough for an alert on `idem.broker_failures` over ten
/// minutes, and seldom enough that the pause that intake makes after each costs nothing.
const EVERY: Duration = Duration::from_secs(30);

/// An error that we have no words for is reported when it comes again. Sooner than this it is the same event, which each
/// partition reports; later it is another one.
const AGAIN: Duration = Duration::from_secs(1);
const ANOTHER: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(crate) struct RepeatedErrors(Vec<Reported>);

/// The reports under one code.
#[derive(Debug)]
struct Reported {
    code: Code,
    first: Instant,
    last: Instant,
    told: Option<Instant>,
}

impl RepeatedErrors {
    /// Notes a report, and says whether it is to be passed on. `serious`: it does not pass by itself.
    pub(crate) fn is_told(&mut self, code: Code, serious: bool, now: Instant) -> bool {
        self.0.retain(|reported| now - reported.last < ANOTHER);
        let at = self.0.iter().position(|reported| reported.code == code).unwrap_or_else(|| {
            self.0.push(Reported { code, first: now, last: now, told: None });
            self.0.len() - 1
        });
        let reported = &mut self.0[at];
        reported.last = now;
        let lasts = serious || now - reported.first >= AGAIN;
        let is_told = lasts && reported.told.is_none_or(|told| now - told >= EVERY);
        if is_told {
            reported.told = Some(now);
        }
        is_told
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e21_an_error_is_told_of_when_it_comes_again_and_then_every_half_a_minute() {
        let (mut repeated, start) = (RepeatedErrors::default(), Instant::now());
        let mut is_told = |serious, millis| {
            let code = if serious { Code::NotImplemented } else { Code::CoordinatorLoadInProgress };
            repeated.is_told(code, serious, start + Duration::from_millis(millis))
        };
        assert!(is_told(true, 0), "what has a cure is told of at once");
        assert!(!is_told(true, 500) && !is_told(true, 29_500));
        assert!(is_told(true, 30_000));
        assert!(!is_told(false, 30_000) && !is_told(false, 30_100), "two partitions report one event");
        assert!(is_told(false, 31_000));
        assert!(!is_told(false, 60_000) && is_told(false, 61_000));
        assert!(!is_told(false, 200_000), "another event, which may pass");
    }
}
