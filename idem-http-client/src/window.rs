//! The time in which an intent may be tried: until the deadline, and always before the provider may forget the key.

use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use super::{clock::wall_clock, ended::Undecided, intent::Intent, profile::Profile, retries::Retries};

/// The window begins at the first try. Of two clocks the one that shows more time passed counts: the monotonic one stands still while a
/// machine is suspended, and the other may be set back.
#[derive(Debug)]
pub(super) struct Window {
    begun: Instant,
    begun_at: SystemTime,
    /// The time of the intent's first try, in any process.
    pub(super) since: SystemTime,
    deadline: Duration,
    /// How long the provider certainly remembers the key, counted from the beginning of this call.
    remembered: Duration,
    margin: Duration,
    try_within: Duration,
}

impl Window {
    /// Opens the window, at the first try or for a later one.
    ///
    /// # Errors
    /// [`Undecided::Clock`] if the first try lies further in the future than two clocks may differ.
    pub(super) fn open(profile: &Profile, retries: &Retries, intent: &Intent) -> Result<Self, Undecided> {
        let (begun, begun_at) = (Instant::now(), wall_clock());
        let since = intent.tried_first().unwrap_or(begun_at);
        let ago = match begun_at.duration_since(since) {
            Ok(ago) => ago,
            Err(ahead) if ahead.duration() <= profile.margin() => Duration::ZERO,
            Err(_) => return Err(Undecided::Clock),
        };
        let remembered = profile.memory().saturating_sub(profile.margin()).saturating_sub(ago);
        let (deadline, margin, try_within) = (retries.deadline, profile.margin(), retries.try_within);
        Ok(Self { begun, begun_at, since, deadline, remembered, margin, try_within })
    }

    fn passed(&self) -> Duration {
        self.begun.elapsed().max(wall_clock().duration_since(self.begun_at).unwrap_or_default())
    }

    /// How long a try that begins `after` this may take.
    ///
    /// # Errors
    /// The reason why no time is left for a try.
    pub(super) fn time_for_a_try(&self, after: Duration) -> Result<Duration, Undecided> {
        let at = self.passed().saturating_add(after);
        let (memory, deadline) = (self.remembered.saturating_sub(at), self.deadline.saturating_sub(at));
        if memory.is_zero() {
            Err(Undecided::Memory)
        } else if deadline.is_zero() {
            Err(Undecided::Deadline)
        } else {
            Ok(self.try_within.min(deadline).min(memory))
        }
    }

    /// The same beyond the deadline, to fetch an answer that is known to exist. If the server has said until when it knows the key, that
    /// counts too, because it may remember for longer than the profile says. `None` if no time is left.
    pub(super) fn time_to_fetch(&self, key_expires: Option<SystemTime>) -> Option<Duration> {
        let told = key_expires.and_then(|until| until.duration_since(wall_clock()).ok()).unwrap_or_default();
        let memory = self.remembered.saturating_sub(self.passed()).max(told.saturating_sub(self.margin));
        Some(self.try_within.min(memory)).filter(|within| !within.is_zero())
    }
}
