//! The options of a queue, and how it misbehaves.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Which order a queue keeps.
///
/// The ordering key of a message is the one it was published with, else its record key; one without either is ordered
/// with nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Order {
    /// None is promised: deliveries carry no ordering key.
    #[default]
    None,
    /// As Kafka does it: messages of one key are delivered in order, also while an earlier one is unsettled. One that
    /// waits for its delay keeps its key back.
    ByKey,
    /// As a FIFO queue does it: a key with an unsettled delivery is not delivered further.
    ByKeyOneAtATime,
}

/// The options of a queue; see [`Broker::create`](super::Broker::create).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct QueueOptions {
    /// Which order it keeps. Defaults to [`Order::None`].
    pub order: Order,
    /// Whether consumers acknowledge positions, as with a Kafka topic of one partition, rather than single messages:
    /// a message leaves once it and all before it are settled; a release does nothing until the assignment ends, and
    /// then everything from the position on is delivered again; one consumer gets all, and the next one when it goes.
    /// Needs [`Order::ByKey`]; knows neither lease, delivery limit, delay nor marks. Defaults to no.
    pub positions: bool,
    /// How long a delivery may stay unsettled before it returns by itself. Defaults to `None`, for ever; a consumer
    /// that goes away gives its deliveries back either way.
    pub lease: Option<Duration>,
    /// After how many deliveries the broker takes a message off the queue by itself. Defaults to `None`, never.
    pub delivery_limit: Option<u32>,
    /// Where a message goes at its delivery limit. Defaults to `None`: it is dropped, as RabbitMQ does it.
    pub dead_letter_queue: Option<String>,
    /// Whether a release may be delayed. Defaults to yes; without it a delay counts as zero.
    pub delayed_release: bool,
    /// Whether deliveries say that they are redeliveries, and count attempts. Defaults to yes.
    pub marks_redelivery: bool,
    /// How long a consumer may take to finish what it holds when its assignment is
    /// [revoked](super::Queue::revoke). Defaults to 10 s.
    pub revoke_within: Duration,
    /// How many messages it holds. Defaults to 1,000,000; publishing more is refused.
    pub messages_max: usize,
    /// How many bytes of messages it holds. Defaults to 1 GiB; publishing more is refused.
    pub bytes_max: usize,
    /// For how many messages what happened to each is remembered, the latest. Defaults to 100,000.
    pub history_max: usize,
    /// The seed of its random choices. Defaults to 0; the same seed and the same calls give the same choices.
    pub seed: u64,
}

impl Default for QueueOptions {
    fn default() -> Self {
        Self {
            order: Order::None,
            positions: false,
            lease: None,
            delivery_limit: None,
            dead_letter_queue: None,
            delayed_release: true,
            marks_redelivery: true,
            revoke_within: Duration::from_secs(10),
            messages_max: 1_000_000,
            bytes_max: 1 << 30,
            history_max: 100_000,
            seed: 0,
        }
    }
}

macro_rules! setters {
    ($($(#[$doc:meta])* $field:ident: $type:ty => $value:expr),* $(,)?) => {$(
        $(#[$doc])*
        #[must_use]
        pub fn $field(mut self, $field: $type) -> Self {
            self.$field = $value;
            self
        }
    )*};
}

impl QueueOptions {
    setters! {
        /// Sets [`order`](Self::order).
        order: Order => order,
        /// Sets [`positions`](Self::positions).
        positions: bool => positions,
        /// Sets [`lease`](Self::lease).
        lease: Duration => Some(lease),
        /// Sets [`delivery_limit`](Self::delivery_limit).
        delivery_limit: u32 => Some(delivery_limit),
        /// Sets [`dead_letter_queue`](Self::dead_letter_queue), which must exist.
        dead_letter_queue: &str => Some(dead_letter_queue.to_owned()),
        /// Sets [`delayed_release`](Self::delayed_release).
        delayed_release: bool => delayed_release,
        /// Sets [`marks_redelivery`](Self::marks_redelivery).
        marks_redelivery: bool => marks_redelivery,
        /// Sets [`revoke_within`](Self::revoke_within).
        revoke_within: Duration => revoke_within,
        /// Sets [`messages_max`](Self::messages_max).
        messages_max: usize => messages_max,
        /// Sets [`bytes_max`](Self::bytes_max).
        bytes_max: usize => bytes_max,
        /// Sets [`history_max`](Self::history_max).
        history_max: usize => history_max,
        /// Sets [`seed`](Self::seed).
        seed: u64 => seed,
    }
}

/// How often something goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Rate {
    /// Never.
    #[default]
    Never,
    /// Every time.
    Always,
    /// Once in this many times on average, by the queue's seed. `OneIn(0)` is never.
    OneIn(u32),
}

impl Rate {
    /// Draws. Never touches `rng` when off, so that turning one fault on leaves another's choices alone as far as
    /// possible.
    pub(crate) fn strikes(self, rng: &mut fastrand::Rng) -> bool {
        match self {
            Self::Never | Self::OneIn(0) => false,
            Self::Always => true,
            Self::OneIn(n) => rng.u32(0..n) == 0,
        }
    }
}

/// How a queue misbehaves; everything is off by default. Set by [`Queue::misbehave`](super::Queue::misbehave).
///
/// ```
/// use idem_testkit::memory::{Faults, Rate};
///
/// let faults = Faults { resurrected: Rate::OneIn(10), ..Faults::default() };
/// # assert_eq!(faults.acks_lost, Rate::Never);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Faults {
    /// An acknowledgement is answered with [`Settled::Settled`](idem_core::source::Settled) and was lost: the message returns.
    pub acks_lost: Rate,
    /// A settlement is answered with [`Settled::Unknown`](idem_core::source::Settled) and was not done: the message returns.
    /// Drawn for each entry, so that a batch is answered in parts.
    pub settles_lost: Rate,
    /// A settlement is answered with [`Settled::Unknown`](idem_core::source::Settled) and was done.
    pub answers_lost: Rate,
    /// A settlement is answered with [`Settled::Stale`](idem_core::source::Settled) and was not done, as if its lease had
    /// just passed: the message returns.
    pub receipts_stale: Rate,
    /// A message that was acknowledged is delivered once more, at most once for each message.
    pub resurrected: Rate,
    /// Messages are delivered in random order. Only where the order is [`Order::None`].
    pub reordered: Rate,
    /// Receiving fails with [`SourceError::Unavailable`](idem_core::SourceError). Drawn for each call.
    pub receives_failed: Rate,
    /// How much longer each receive takes.
    pub receive_delay: Duration,
    /// Publishing stores the message and answers with an error: the confirmation was lost.
    pub confirms_lost: Rate,
    /// Publishing stores nothing and answers with an error.
    pub publishes_refused: Rate,
    /// Nothing is answered: attaching, receiving, settling and closing wait until this is off again.
    pub hangs: bool,
}
