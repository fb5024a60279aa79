//! How far this member is behind the ends of its partitions, for people who look at it.

use std::sync::Arc;

use rdkafka::consumer::BaseConsumer;
use tokio::time::{Duration, Instant};

use crate::{
    attach,
    context::Context,
    open_transactions::OpenTransactions,
    options::{KafkaOptions, Reset},
    state::Shared,
};

/// How often the brokers are asked where partitions end. The ends known from the last fetch would not do: a paused worker
/// fetches nothing, and it is the one that is behind.
const EVERY: Duration = Duration::from_secs(5);

/// How long their answer is waited for. Nothing is polled meanwhile.
const WAITS: Duration = Duration::from_millis(300);

/// Asks for the ends of the held partitions, now and then.
#[derive(Debug)]
pub(crate) struct Ends {
    ask_at: Instant,
    open: OpenTransactions,
}

impl Ends {
    pub(crate) fn new() -> Self {
        Self { ask_at: Instant::now(), open: OpenTransactions::default() }
    }

    /// Asks if that is due. Without an answer, the last known ends stay.
    pub(crate) fn ask(&mut self, consumer: &BaseConsumer<Context>, options: &Arc<KafkaOptions>, shared: &Shared) {
        let partitions = shared.partitions();
        if Instant::now() < self.ask_at || partitions.is_empty() || shared.unreachable_for().is_some() {
            return;
        }
        if let Ok(ends) = attach::ends_within(consumer, &options.topic, &partitions, Reset::Latest, WAITS) {
            shared.ends(&self.open.beyond(options, ends));
        }
        self.ask_at = Instant::now() + EVERY;
    }
}
