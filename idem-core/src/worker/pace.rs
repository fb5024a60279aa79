//! How many messages are taken in where those that wait here are kept from other workers. Pure: times are passed in.

use std::time::Duration;

/// Messages for each lane, however long they take: one that runs, and some that wait, because keys fall on lanes by chance.
const EACH_LANE: usize = 4;

/// One receive of a broker that hands over ten at a time.
const LEAST: usize = 10;

/// As many messages as are settled within a time. It begins with a few; while they are settled in time and there are as many
/// in hand, each allows one more, so that the number doubles in the time that a message takes. Each second one that took too
/// long takes one away, so that the number in hand shrinks while more are taken in; one that took twice too long takes two.
#[derive(Debug)]
pub(super) struct Pace {
    within: Duration,
    least: usize,
    most: usize,
    now: usize,
    /// Whether the last late one counted.
    late: bool,
}

impl Pace {
    pub(super) fn new(within: Duration, lanes: usize, most: usize) -> Self {
        let least = (lanes * EACH_LANE).max(LEAST).min(most);
        Self { within, least, most, now: least, late: false }
    }

    /// How many may be in hand.
    pub(super) fn now(&self) -> usize {
        self.now
    }

    /// A message was settled so long after it was received, while so many were in hand.
    pub(super) fn settled(&mut self, took: Duration, in_hand: usize) {
        if took > self.within {
            self.late = !self.late;
            let less = if took > self.within * 2 { 2 } else { usize::from(self.late) };
            self.now = self.now.saturating_sub(less).max(self.least);
        } else if in_hand * 2 >= self.now {
            // Where it was not needed, it is unknown whether more would be settled in time.
            self.now = (self.now + 1).min(self.most);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    const WITHIN: Duration = Duration::from_secs(5);

    /// How many are in hand after so many messages of a queue without end, where `lanes` handlers take so long each.
    fn in_hand(pace: &mut Pace, lanes: usize, each: Duration, messages: usize) -> usize {
        let (mut now, mut queue) = (Duration::ZERO, VecDeque::new());
        for _ in 0..messages {
            while queue.len() < pace.now() {
                queue.push_back(now);
            }
            now += each / u32::try_from(lanes).unwrap();
            let received = queue.pop_front().unwrap();
            pace.settled(now - received, queue.len() + 1);
        }
        queue.len()
    }

    #[test]
    fn f15_as_many_are_in_hand_as_are_settled_in_time() {
        for (lanes, millis, expected) in
            [(2, 100, 50..=210), (8, 100, 200..=810), (4, 30_000, 1..=16), (1, 10, 250..=1_010)]
        {
            let mut pace = Pace::new(WITHIN, lanes, 10_000);
            let in_hand = in_hand(&mut pace, lanes, Duration::from_millis(millis), 20_000);
            assert!(expected.contains(&in_hand), "{lanes} lanes, {millis} ms: {in_hand} in hand");
        }
    }

    #[test]
    fn f15_what_was_fast_and_is_slow_gives_up_what_it_was_allowed() {
        let mut pace = Pace::new(WITHIN, 4, 10_000);
        assert_eq!(in_hand(&mut pace, 4, Duration::from_micros(100), 100_000), 9_999);
        let slow = in_hand(&mut pace, 4, Duration::from_millis(400), 20_000);
        assert!((16..=120).contains(&slow), "{slow}");
    }

    #[test]
    fn f15_a_trickle_earns_nothing_and_no_limit_is_passed() {
        let mut pace = Pace::new(WITHIN, 4, 12);
        for _ in 0..100 {
            pace.settled(Duration::ZERO, 1);
        }
        assert_eq!(pace.now(), 12, "four lanes would have sixteen, and the setting says twelve");
        let mut pace = Pace::new(WITHIN, 1, 100);
        (0..100).for_each(|_| pace.settled(Duration::ZERO, 4));
        assert_eq!(pace.now(), 10);
        (0..100).for_each(|_| pace.settled(Duration::ZERO, 100));
        assert_eq!(pace.now(), 100);
    }
}
