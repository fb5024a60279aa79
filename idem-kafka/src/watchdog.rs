//! Notices a consumer that delivers nothing although there is something: clients have been seen to stall for good, and
//! only a new one helps.

use std::collections::HashMap;

use idem_core::source::Assignment;
use rdkafka::consumer::BaseConsumer;
use tokio::time::{Duration, Instant};

use crate::{
    attach,
    context::Context,
    options::Reset,
    state::{Progress, Shared},
};

#[derive(Debug)]
pub(crate) struct Watchdog {
    stalled_after: Duration,
    look_at: Instant,
    quiet: HashMap<Assignment, Quiet>,
}

/// A partition from which nothing came between two looks, not even that it is at its end.
#[derive(Debug)]
struct Quiet {
    seen: u64,
    /// Where the partition ended at the first look.
    end: i64,
    /// Since when there is something to deliver for certain.
    since: Option<Instant>,
}

impl Watchdog {
    pub(crate) fn new(stalled_after: Duration) -> Self {
        Self { stalled_after, look_at: Instant::now() + stalled_after / 4, quiet: HashMap::new() }
    }

    /// Whether some partition has delivered nothing for too long. `resting`: nothing is to be delivered now.
    pub(crate) fn is_stalled(
        &mut self,
        consumer: &BaseConsumer<Context>,
        topic: &str,
        shared: &Shared,
        resting: bool,
    ) -> bool {
        let now = Instant::now();
        if now < self.look_at {
            return false;
        }
        self.look_at = now + self.stalled_after / 4;
        let mut before = std::mem::take(&mut self.quiet);
        if resting {
            return false;
        }
        let progress = shared.progress();
        let partitions: Vec<_> = progress.iter().map(|progress| progress.partition).collect();
        // Brokers that do not answer are no stall of ours.
        let Ok(ends) = attach::ends(consumer, topic, &partitions, Reset::Latest) else { return false };
        for progress in progress {
            let known = before.remove(&progress.assignment).filter(|quiet| quiet.seen == progress.seen);
            let Some(end) = ends.get(&progress.partition) else { continue };
            let quiet = look(known, &progress, *end, now);
            if quiet.since.is_some_and(|since| now - since >= self.stalled_after) {
                return true;
            }
            self.quiet.insert(progress.assignment, quiet);
        }
        false
    }
}

/// The end of a partition that moves proves that there is something new. One that does not move proves it only where the
/// partition was never at its end: behind the last record there may be markers of transactions, which are not delivered.
fn look(known: Option<Quiet>, progress: &Progress, end: i64, now: Instant) -> Quiet {
    let mut quiet = known.unwrap_or(Quiet { seen: progress.seen, end, since: None });
    if end > quiet.end || (!progress.at_end && end > progress.next) {
        quiet.since.get_or_insert(now);
    }
    quiet
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_certainly_there_counts_as_a_stall() {
        let progress = |at_end, next| Progress { partition: 0, assignment: Assignment(1), next, at_end, seen: 3 };
        let now = Instant::now();
        let look = |known, progress: Progress, end| look(known, &progress, end, now);
        let at_end = look(None, progress(true, 10), 12);
        assert!(at_end.since.is_none(), "two markers behind the last record");
        let at_end = look(Some(at_end), progress(true, 10), 12);
        assert!(at_end.since.is_none());
        assert!(look(Some(at_end), progress(true, 10), 13).since.is_some(), "its end has moved");
        assert!(look(None, progress(false, 10), 12).since.is_some(), "it was never at its end");
        assert!(look(None, progress(false, 12), 12).since.is_none(), "it is empty");
    }
}
