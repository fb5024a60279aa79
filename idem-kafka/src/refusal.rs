//! Refusals while the consumer runs: for how long one counts as an outage, and how it is found out whether it still holds.

use idem_core::source::REFUSAL_GRACE;
use tokio::time::{Duration, Instant};

/// How long a fetch that was asked for may take to be answered, and after which time without a refusal an answer counts:
/// records fetched earlier come behind a refusal, and a broker may name the end of a partition beside one.
const LOOK: Duration = Duration::from_secs(5);

/// Whether the brokers refuse a request that they allowed before.
#[derive(Debug, Default)]
pub(crate) struct Refusals(Option<Refusal>);

/// The client library reports a refusal once, and goes on trying in silence.
#[derive(Debug)]
struct Refusal {
    since: Instant,
    asked: Asked,
    /// Since when fetches are answered.
    answered: Option<Instant>,
}

#[derive(Debug, Clone, Copy)]
enum Asked {
    /// It is an outage so far.
    No,
    /// The same consumer was made to fetch where it is.
    Fetch(Instant),
    /// A new consumer was made. A refusal of that one holds.
    Anew(Instant),
}

/// How to find out whether a refusal still holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ask {
    /// By a fetch, which is answered by the end of a partition where there is no record.
    Fetch,
    /// By a new consumer.
    Anew,
}

impl Refusals {
    /// Something was refused. Whether it is so for good.
    pub(crate) fn refused(&mut self, now: Instant) -> bool {
        let refusal = self.0.get_or_insert(Refusal { since: now, asked: Asked::No, answered: None });
        refusal.answered = None;
        matches!(refusal.asked, Asked::Anew(_))
    }

    /// A fetch was answered, by a record or the end of a partition.
    pub(crate) fn answered(&mut self, now: Instant) {
        if let Some(refusal) = &mut self.0 {
            refusal.answered.get_or_insert(now);
        }
    }

    /// What to ask now. A request that is answered, or a new consumer that was refused nothing for as long as the grace,
    /// counts as allowed again: the next refusal is another one, with a grace of its own.
    pub(crate) fn due(&mut self, now: Instant) -> Option<Ask> {
        let refusal = self.0.as_mut()?;
        if let Some(at) = refusal.answered {
            if now - at >= LOOK {
                self.0 = None;
            }
            return None;
        }
        match refusal.asked {
            Asked::No if now - refusal.since >= REFUSAL_GRACE => {
                refusal.asked = Asked::Fetch(now);
                Some(Ask::Fetch)
            }
            Asked::Fetch(at) if now - at >= LOOK => {
                // Again after as long, where no new consumer can be made.
                refusal.asked = Asked::Fetch(now);
                Some(Ask::Anew)
            }
            Asked::Anew(at) if now - at >= REFUSAL_GRACE => {
                self.0 = None;
                None
            }
            Asked::No | Asked::Fetch(_) | Asked::Anew(_) => None,
        }
    }

    /// A new consumer was made.
    pub(crate) fn begun_anew(&mut self, now: Instant) {
        if let Some(refusal) = &mut self.0 {
            refusal.asked = Asked::Anew(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: u64 = REFUSAL_GRACE.as_secs();
    const LOOKS: u64 = LOOK.as_secs();

    /// Asks in each of these seconds, and returns those in which there was something to ask.
    fn asked(refusals: &mut Refusals, start: Instant, seconds: std::ops::Range<u64>) -> Vec<(u64, Ask)> {
        seconds.filter_map(|second| Some((second, refusals.due(start + Duration::from_secs(second))?))).collect()
    }

    #[test]
    fn e27_a_refusal_is_an_outage_until_a_new_consumer_is_refused_too() {
        let (start, mut refusals) = (Instant::now(), Refusals::default());
        let at = |second| start + Duration::from_secs(second);
        assert!(!refusals.refused(start));
        assert_eq!(asked(&mut refusals, start, 0..GRACE + LOOKS), [(GRACE, Ask::Fetch)]);
        assert!(!refusals.refused(at(GRACE + 1)), "it is not known yet whether it holds");
        assert_eq!(refusals.due(at(GRACE + LOOKS)), Some(Ask::Anew));
        refusals.begun_anew(at(GRACE + LOOKS));
        assert!(refusals.refused(at(GRACE + LOOKS + 1)));
    }

    #[test]
    fn e30_a_consumer_that_could_not_be_replaced_proves_nothing() {
        let (start, mut refusals) = (Instant::now(), Refusals::default());
        refusals.refused(start);
        let anew = [(GRACE, Ask::Fetch), (GRACE + LOOKS, Ask::Anew), (GRACE + 2 * LOOKS, Ask::Anew)];
        assert_eq!(asked(&mut refusals, start, 0..GRACE + 3 * LOOKS), anew);
        assert!(!refusals.refused(start + Duration::from_secs(GRACE + 3 * LOOKS)), "nothing was asked anew");
    }

    #[test]
    fn e31_a_fetch_that_is_answered_ends_the_refusal() {
        let (start, mut refusals) = (Instant::now(), Refusals::default());
        refusals.refused(start);
        assert_eq!(asked(&mut refusals, start, 0..GRACE + 1), [(GRACE, Ask::Fetch)]);
        refusals.answered(start + Duration::from_secs(GRACE + 1));
        assert_eq!(asked(&mut refusals, start, GRACE + 1..10 * GRACE), []);
    }

    #[test]
    fn e31_an_answer_with_a_refusal_behind_it_is_none() {
        let (start, mut refusals) = (Instant::now(), Refusals::default());
        let at = |second| start + Duration::from_secs(second);
        refusals.refused(start);
        assert_eq!(asked(&mut refusals, start, 0..GRACE + 1), [(GRACE, Ask::Fetch)]);
        refusals.answered(at(GRACE));
        assert!(!refusals.refused(at(GRACE)));
        assert_eq!(asked(&mut refusals, start, GRACE..GRACE + LOOKS + 1), [(GRACE + LOOKS, Ask::Anew)]);
        refusals.begun_anew(at(GRACE + LOOKS));
        refusals.answered(at(GRACE + LOOKS + 1));
        assert!(refusals.refused(at(GRACE + LOOKS + 1)));
    }

    #[test]
    fn e32_another_refusal_has_a_grace_of_its_own() {
        for is_answered in [true, false] {
            let (start, mut refusals) = (Instant::now(), Refusals::default());
            refusals.refused(start);
            let anew = GRACE + LOOKS;
            assert_eq!(asked(&mut refusals, start, 0..anew + 1).len(), 2);
            refusals.begun_anew(start + Duration::from_secs(anew));
            let second = if is_answered {
                refusals.answered(start + Duration::from_secs(anew));
                anew + LOOKS
            } else {
                anew + GRACE
            };
            assert_eq!(asked(&mut refusals, start, anew..second + 1), []);
            let second = start + Duration::from_secs(second);
            assert!(!refusals.refused(second));
            assert_eq!(asked(&mut refusals, second, 0..GRACE + 1), [(GRACE, Ask::Fetch)]);
        }
    }
}
