//! The order in which a step's events go to a publisher that may lose one event and still send the next.

use std::collections::{HashMap, VecDeque};

use crate::{names::OrderingKey, outbox::rows::OutgoingEvent};

/// The events of a step, in rounds. Each round has the next event of each ordering key, and the first also has all events
/// without one. So a publisher never has two unconfirmed events of one key, and a failed event holds back those behind it (O24).
pub(super) struct Rounds {
    /// The places of the events that are left, by ordering key. One without a key is a queue of its own.
    queues: Vec<VecDeque<usize>>,
    /// The queue of each event, by its place.
    queue_of: Vec<usize>,
}

impl Rounds {
    /// Makes rounds of events, which are in the order of their numbers.
    pub(super) fn of(events: &[OutgoingEvent]) -> Self {
        let mut queues: Vec<VecDeque<usize>> = Vec::new();
        let mut by_key: HashMap<&OrderingKey, usize> = HashMap::new();
        let queue_of = events.iter().enumerate().map(|(place, event)| {
            let new = queues.len();
            let queue = event.ordering_key.as_ref().map_or(new, |key| *by_key.entry(key).or_insert(new));
            if queue == new {
                queues.push(VecDeque::new());
            }
            queues[queue].push_back(place);
            queue
        });
        let queue_of = queue_of.collect();
        Self { queues, queue_of }
    }

    /// Makes one round of all events, for a publisher that keeps order itself.
    pub(super) fn at_once(events: &[OutgoingEvent]) -> Self {
        let queues = (0..events.len()).map(|place| VecDeque::from([place])).collect();
        Self { queues, queue_of: (0..events.len()).collect() }
    }

    /// The places of the next round's events, in order; empty if none are left.
    pub(super) fn next(&mut self) -> Vec<usize> {
        let mut places: Vec<usize> = self.queues.iter_mut().filter_map(VecDeque::pop_front).collect();
        places.sort_unstable();
        places
    }

    /// Removes the events behind one that was not confirmed.
    pub(super) fn hold_behind(&mut self, place: usize) {
        self.queues[self.queue_of[place]].clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::relay::tests::event;

    fn events(keys: &[&str]) -> Vec<OutgoingEvent> {
        (0..).zip(keys).map(|(number, key)| event(number, Some(key).filter(|key| !key.is_empty()).copied())).collect()
    }

    #[test]
    fn o24_a_round_has_one_event_of_a_key_and_a_failure_keeps_those_behind_it_back() {
        let events = events(&["a", "", "a", "b", "", "a", "b"]);
        let mut rounds = Rounds::of(&events);
        assert_eq!(rounds.next(), [0, 1, 3, 4]);
        rounds.hold_behind(3);
        assert_eq!(rounds.next(), [2]);
        rounds.hold_behind(2);
        assert_eq!(rounds.next(), [0; 0]);
        let mut at_once = Rounds::at_once(&events);
        assert_eq!(at_once.next(), [0, 1, 2, 3, 4, 5, 6]);
        assert_eq!(at_once.next(), [0; 0]);
    }
}
