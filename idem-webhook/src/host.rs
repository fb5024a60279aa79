//! What is on its way to a host, and what waits for it.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Instant,
};

/// The most events in flight to one host.
pub(crate) const AT_ONCE_A_HOST: u32 = 4;

/// The longest time for which events wait in line. A host that answers again gets all of them within it.
const LINE_MAX: Duration = Duration::from_secs(5 * 60);

pub(crate) struct Host {
    places: Arc<Semaphore>,
    /// How long the last calls took.
    takes: Duration,
    /// When the last free place was taken.
    taken_at: Instant,
    /// When the last event in line may try for a place again.
    line_ends_at: Instant,
}

impl Host {
    pub(crate) fn new(now: Instant) -> Self {
        let places = Arc::new(Semaphore::new(AT_ONCE_A_HOST as usize));
        Self { places, takes: Duration::ZERO, taken_at: now, line_ends_at: now }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.places.available_permits() == AT_ONCE_A_HOST as usize
    }

    /// A place, or how long the event waits in line for one.
    ///
    /// Those in line come back one by one, as fast as the host gives places back. If all of them came back at once, the outbox's
    /// relay would be busy with them, the oldest events that it has, and would not get to those of other hosts.
    pub(crate) fn place(&mut self, now: Instant) -> Result<OwnedSemaphorePermit, Duration> {
        if let Ok(place) = Arc::clone(&self.places).try_acquire_owned() {
            self.taken_at = now;
            return Ok(place);
        }
        // A host that hangs has been seen to take this long at least.
        let takes = self.takes.max(now - self.taken_at);
        self.line_ends_at = self.line_ends_at.max(now) + takes / AT_ONCE_A_HOST;
        if self.line_ends_at > now + LINE_MAX {
            self.line_ends_at = now;
        }
        Err(self.line_ends_at - now)
    }

    /// Notes how long a call took.
    pub(crate) fn took(&mut self, time: Duration) {
        self.takes = (self.takes + time) / 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// O16: those that wait come back one by one, at the pace of the host, and none waits for longer than the line is.
    #[test]
    fn o16_events_that_wait_for_a_host_stand_in_line() {
        let begun = Instant::now();
        let mut host = Host::new(begun);
        let places: Vec<_> = (0..AT_ONCE_A_HOST).map(|_| host.place(begun).expect("a place")).collect();
        assert_eq!(host.place(begun).expect_err("no place"), Duration::ZERO, "nothing is known of it yet");
        let seen = begun + 4 * SECOND;
        for in_line in 1..=10 {
            assert_eq!(host.place(seen).expect_err("no place"), in_line * SECOND, "a place in each second");
        }
        let longest = (0..100_000).map(|_| host.place(seen).expect_err("no place")).max();
        assert_eq!(longest, Some(LINE_MAX));
        drop(places);
        let later = seen + LINE_MAX;
        let _places: Vec<_> = (0..AT_ONCE_A_HOST).map(|_| host.place(later).expect("a place")).collect();
        host.took(40 * SECOND);
        (0..20).for_each(|_| host.took(SECOND / 25));
        let in_line = host.place(later).expect_err("no place");
        assert!(in_line < SECOND / 50, "answers are quick again, and the wait is {in_line:?}");
    }
}
