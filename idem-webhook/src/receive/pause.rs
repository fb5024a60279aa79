//! The operators' control of the consumer, which nothing else reads here.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use idem_core::{
    DedupConsumer, Store,
    store::{Control, ControlState},
};
use tokio::{sync::Mutex, time::Instant};

/// How long a control that was read is obeyed, as by a worker.
const READ_EVERY: Duration = Duration::from_secs(2);

/// The state that was read last, and when.
#[derive(Debug, Default)]
pub(super) struct Pauses {
    last: Mutex<Option<(Instant, ControlState)>>,
    /// How many looks have ended, with or without a state.
    looks: AtomicU64,
}

impl Pauses {
    /// Whether the consumer runs, or an operator has paused or halted it; `None` where that was never read, and cannot be now. One
    /// delivery in two seconds looks, and the others wait for that look and take its result, a failure too: else each of them would wait
    /// for its turn to fail (W165).
    ///
    /// # Cancel safety
    /// Cancel safe: the next one looks.
    pub(super) async fn state<S: Store>(&self, consumer: &DedupConsumer<S>) -> Option<ControlState> {
        let looks = self.looks.load(Ordering::Relaxed);
        let mut last = self.last.lock().await;
        let was_told = self.looks.load(Ordering::Relaxed) != looks;
        if !was_told && last.is_none_or(|(read_at, _)| read_at.elapsed() >= READ_EVERY) {
            match consumer.control().await {
                Ok(Control { state, .. }) => *last = Some((Instant::now(), state)),
                // The state that was read last is obeyed on.
                Err(error) => {
                    tracing::warn!(idem.consumer = %consumer.name(), error = &error as &dyn std::error::Error, "the consumer's control cannot be read");
                }
            }
            self.looks.fetch_add(1, Ordering::Relaxed);
        }
        last.map(|(_, state)| state)
    }
}
