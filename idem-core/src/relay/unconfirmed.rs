//! Tries that were not confirmed, because the event or its endpoint is at fault: what the log and the view tell of them.

use std::time::Duration;

use tokio::time::Instant;

/// How often the log repeats why the destination receives nothing.
pub(super) const TOLD_EVERY: Duration = Duration::from_secs(60);

/// How many errors the log names within [`TOLD_EVERY`], of as many endpoints.
pub(super) const TOLD_MAX: usize = 10;

/// From how many tries in vain on, with none that was confirmed between them, it is the destination that stands, for all that is known.
const STANDS_FROM: u64 = 3;

/// Events of a step that were not confirmed for the same reason.
#[derive(Debug)]
pub(super) struct Unconfirmed {
    pub(super) error: String,
    pub(super) events: u64,
    /// How often the first of them was tried.
    pub(super) tries: u32,
}

/// The errors that the log has named of late.
#[derive(Debug, Default)]
pub(super) struct Told(Vec<(Instant, String)>);

impl Told {
    /// Whether the log names this error now: each once in a while, and few in all, however many endpoints fail.
    pub(super) fn is_due(&mut self, error: &str) -> bool {
        let now = Instant::now();
        self.0.retain(|(at, _)| now.duration_since(*at) < TOLD_EVERY);
        let is_due = self.0.len() < TOLD_MAX && self.0.iter().all(|(_, told)| told != error);
        if is_due {
            self.0.push((now, error.to_owned()));
        }
        is_due
    }
}

/// Tries in a row that were not confirmed.
#[derive(Debug)]
pub(super) struct InVain {
    since: Instant,
    tries: u64,
    error: String,
}

impl InVain {
    /// These tries, the last of which ended with this error, and those before them.
    pub(super) fn add(before: Option<Self>, tries: u64, error: &str) -> Self {
        let (since, earlier) = before.map_or((Instant::now(), 0), |before| (before.since, before.tries));
        Self { since, tries: earlier.saturating_add(tries), error: error.to_owned() }
    }

    /// Why the destination stands, and for how long it has; `None` while it may be an endpoint alone.
    pub(super) fn trouble(&self) -> Option<(String, Duration)> {
        let why = || format!("none of the last {} tries was confirmed: {}", self.tries, self.error);
        (self.tries >= STANDS_FROM).then(|| (why(), self.since.elapsed()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::relay::carrier::Judged;

    /// O106: neither one endpoint that is tried again and again fills the log, nor a thousand that are down at once.
    #[tokio::test(start_paused = true)]
    async fn o106_the_log_names_each_error_once_a_minute_and_ten_at_most() {
        let mut told = Told::default();
        assert_eq!([told.is_due("a"), told.is_due("a"), told.is_due("b")], [true, false, true]);
        let others = (0..100).filter(|number| told.is_due(&number.to_string())).count();
        assert_eq!(others, TOLD_MAX - 2);
        tokio::time::advance(TOLD_EVERY).await;
        assert!(told.is_due("a"));
    }

    #[tokio::test(start_paused = true)]
    async fn o106_a_few_tries_in_a_row_are_a_destination_that_stands() {
        let first = InVain::add(None, STANDS_FROM - 1, "it answered 503");
        assert_eq!(first.trouble(), None);
        tokio::time::advance(Duration::from_secs(5)).await;
        let why = "none of the last 3 tries was confirmed: it answered 500".to_owned();
        assert_eq!(InVain::add(Some(first), 1, "it answered 500").trouble(), Some((why, Duration::from_secs(5))));
    }

    /// O106: of endpoints that fail at once, none hides another.
    #[test]
    fn o106_each_reason_of_a_step_is_told() {
        let mut judged = Judged::default();
        for (tries, error) in [(4, "a"), (1, "b"), (7, "a")] {
            judged.unconfirmed(tries, error);
        }
        let told = judged.unconfirmed.iter().map(|why| (&*why.error, why.events, why.tries));
        assert_eq!(told.collect::<Vec<_>>(), [("a", 2, 4), ("b", 1, 1)]);
        (0..100).for_each(|number| judged.unconfirmed(1, &number.to_string()));
        assert_eq!(judged.unconfirmed.len(), TOLD_MAX);
    }
}
