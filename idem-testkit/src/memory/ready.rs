//! Which messages may be delivered next: a pure structure over their sequence numbers.

use std::collections::{BTreeSet, HashMap};

use idem_core::message::OrderingKey;

use super::options::Order;

/// The messages of one ordering key.
#[derive(Debug, Default)]
struct Key {
    ready: BTreeSet<u64>,
    delayed: usize,
    in_flight: usize,
    /// The one of `ready` that may be delivered now.
    head: Option<u64>,
}

/// Messages that may be delivered, the earliest first. Of each ordering key at most one stands in `next` at a time, so
/// that a key that is kept back costs nothing, however many messages it has.
#[derive(Debug)]
pub(super) struct Ready {
    order: Order,
    next: BTreeSet<u64>,
    keys: HashMap<OrderingKey, Key>,
    waiting: usize,
}

/// Where a message of a key is, besides being ready.
#[derive(Debug, Clone, Copy)]
pub(super) enum Away {
    Delayed,
    InFlight,
}

impl Ready {
    pub(super) fn new(order: Order) -> Self {
        Self { order, next: BTreeSet::new(), keys: HashMap::new(), waiting: 0 }
    }

    /// How many messages are ready, those included that their key keeps back.
    pub(super) fn len(&self) -> usize {
        self.waiting
    }

    /// The message is ready.
    pub(super) fn insert(&mut self, sequence: u64, key: Option<&OrderingKey>) {
        self.waiting += 1;
        match key {
            None => {
                self.next.insert(sequence);
            }
            Some(key) => self.with_key(key, |entry| {
                entry.ready.insert(sequence);
            }),
        }
    }

    /// The next message that may be delivered.
    pub(super) fn first(&self) -> Option<u64> {
        self.next.first().copied()
    }

    /// A random one of the next few.
    pub(super) fn any(&self, rng: &mut fastrand::Rng) -> Option<u64> {
        const WINDOW: usize = 64;
        let window = self.next.len().min(WINDOW);
        if window == 0 { None } else { self.next.iter().nth(rng.usize(..window)).copied() }
    }

    /// The message is no longer ready.
    pub(super) fn remove(&mut self, sequence: u64, key: Option<&OrderingKey>) {
        self.waiting -= 1;
        match key {
            None => {
                self.next.remove(&sequence);
            }
            Some(key) => self.with_key(key, |entry| {
                entry.ready.remove(&sequence);
            }),
        }
    }

    /// A message of the key went away.
    pub(super) fn leave(&mut self, key: Option<&OrderingKey>, to: Away) {
        self.count(key, to, 1);
    }

    /// It came back from there, or is gone for good.
    pub(super) fn come(&mut self, key: Option<&OrderingKey>, from: Away) {
        self.count(key, from, -1);
    }

    fn count(&mut self, key: Option<&OrderingKey>, away: Away, by: isize) {
        let Some(key) = key else { return };
        self.with_key(key, |entry| {
            let counter = match away {
                Away::Delayed => &mut entry.delayed,
                Away::InFlight => &mut entry.in_flight,
            };
            *counter = counter.saturating_add_signed(by);
        });
    }

    /// Changes a key's messages, and then which of them may be delivered.
    fn with_key(&mut self, key: &OrderingKey, change: impl FnOnce(&mut Key)) {
        let entry = self.keys.entry(key.clone()).or_default();
        change(entry);
        let kept_back = match self.order {
            Order::None => false,
            Order::ByKey => entry.delayed > 0,
            Order::ByKeyOneAtATime => entry.delayed > 0 || entry.in_flight > 0,
        };
        let head = if kept_back { None } else { entry.ready.first().copied() };
        if head != entry.head {
            if let Some(old) = entry.head {
                self.next.remove(&old);
            }
            self.next.extend(head);
            entry.head = head;
        }
        if entry.ready.is_empty() && entry.delayed == 0 && entry.in_flight == 0 {
            self.keys.remove(key);
        }
    }
}
