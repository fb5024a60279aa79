//! [`Prefetch`]: how many messages a subscription may have in hand. The broker counts messages, and memory is counted in
//! bytes: so the largest of the last messages says how many of them fit into [`IN_HAND_BYTES`].

use crate::AmqpOptions;

/// How many bytes of payloads a subscription may be handed before some are settled. One message that is larger is alone.
const IN_HAND_BYTES: usize = AmqpOptions::IN_HAND_BYTES;

/// The most of that in this process when a smaller prefetch takes effect. Messages beyond it go back.
pub(crate) const UNSETTLED_BYTES_MAX: usize = 2 * IN_HAND_BYTES;

/// The prefetch of each subscription at its beginning: nothing is known of its messages, and where the queue has a limit,
/// the death of a process counts against each message in hand.
const FIRST: u16 = 1;

/// By how much it grows.
const GROWTH: u16 = 8;

/// How many acknowledged messages earn a larger prefetch, for each that the prefetch allows.
const EARNED_BY: u64 = 4;

/// How many messages are forgotten together: the largest of the last 256 to 512 counts.
const FORGOTTEN: u16 = 256;

/// The prefetch of the subscription that is, and whether another one would be better.
#[derive(Debug, Default)]
pub(crate) struct Prefetch {
    /// The most that the settings allow.
    max: u16,
    /// Whether a larger one is earned by messages that went well.
    is_careful: bool,
    now: u16,
    /// Of this subscription: the unsettled messages, whether they were all it allows, and the successes since it began.
    in_hand: u64,
    was_full: bool,
    acknowledged: u64,
    sizes: Sizes,
}

/// A prefetch that needs a new subscription.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Better {
    /// A larger one.
    More(u16),
    /// A smaller one: messages have become larger.
    Less(u16),
}

/// The largest payload of the last messages.
#[derive(Debug, Default)]
struct Sizes {
    /// Of the last 256 that were counted together, and of those since then.
    before: usize,
    since: usize,
    count: u16,
}

impl Prefetch {
    /// At most `max` messages, of which there is at least one.
    pub(crate) fn new(max: u16) -> Self {
        Self { max: max.max(1), ..Self::default() }
    }

    /// From now on only messages that go well earn a larger prefetch, step by step.
    pub(crate) fn be_careful(&mut self) {
        self.is_careful = true;
    }

    /// The prefetch of a subscription about which nothing is known.
    pub(crate) fn first(&self) -> u16 {
        FIRST
    }

    /// A subscription begins with this prefetch. The sizes seen so far stay known.
    pub(crate) fn begin(&mut self, prefetch: u16) {
        (self.now, self.in_hand, self.was_full, self.acknowledged) = (prefetch, 0, false, 0);
    }

    /// A message with a payload of this many bytes has arrived.
    pub(crate) fn delivered(&mut self, bytes: usize) {
        self.in_hand += 1;
        self.was_full |= self.in_hand >= u64::from(self.now);
        self.sizes.note(bytes);
    }

    /// Whether the broker sends nothing more until one of its messages is settled.
    pub(crate) fn is_full(&self) -> bool {
        self.in_hand >= u64::from(self.now) && !matches!(self.better(), Some(Better::More(_)))
    }

    /// A message of this subscription is settled, well or not.
    pub(crate) fn settled(&mut self) {
        self.in_hand = self.in_hand.saturating_sub(1);
    }

    /// This many messages succeeded.
    pub(crate) fn acknowledged(&mut self, count: u64) {
        self.acknowledged += count;
    }

    /// The prefetch of the subscription that should take this one's place, if one should.
    pub(crate) fn better(&self) -> Option<Better> {
        let fitting = self.fitting();
        if self.now > fitting {
            return Some(Better::Less(fitting));
        }
        let next = self.step().min(fitting);
        // Each change costs three answers of the broker, so a little more is not worth it.
        let is_worth_it = next > self.now && (next == self.max || next / 2 >= self.now);
        (is_worth_it && self.is_earned()).then_some(Better::More(next))
    }

    /// How many messages fit that are as large as the largest of the last ones.
    fn fitting(&self) -> u16 {
        let count = IN_HAND_BYTES / self.sizes.largest().max(1);
        u16::try_from(count).unwrap_or(u16::MAX).clamp(1, self.max.max(1))
    }

    /// The next one where sizes allow it: 1, 8, and then all, or one power of eight after the other.
    fn step(&self) -> u16 {
        let step = if self.is_careful || self.now < GROWTH { self.now.saturating_mul(GROWTH) } else { self.max };
        step.min(self.max)
    }

    fn is_earned(&self) -> bool {
        // Without a limit of deliveries nothing has to go well: a message that is held for a retry would keep all others out
        // of this process. But while the broker has none on the way, because the subscription is full, none is lost with it.
        if self.is_careful { self.acknowledged >= u64::from(self.now) * EARNED_BY } else { self.was_full }
    }

    /// Whether buffered messages have to wait until a larger prefetch has begun. A quorum queue takes back the messages on
    /// their way to a subscription that ends, and counts a delivery for each; while nothing is handed over, nothing is
    /// settled, and no more are on their way.
    pub(crate) fn holds_back(&self) -> bool {
        !self.is_careful && matches!(self.better(), Some(Better::More(_)))
    }
}

impl Sizes {
    fn note(&mut self, bytes: usize) {
        self.since = self.since.max(bytes);
        self.count += 1;
        if self.count == FORGOTTEN {
            *self = Self { before: self.since, ..Self::default() };
        }
    }

    fn largest(&self) -> usize {
        self.before.max(self.since)
    }
}

#[cfg(test)]
mod tests;
