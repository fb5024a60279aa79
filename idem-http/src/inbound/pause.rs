//! The operators' control of the consumer, which nothing else reads here.

use std::time::Duration;

use idem_core::{ControlState, DedupConsumer, Store, store::Control};
use tokio::{sync::Mutex, time::Instant};

/// How long a control that was read is obeyed, as by a worker.
const READ_EVERY: Duration = Duration::from_secs(2);

/// The state that was read last, and when.
#[derive(Debug, Default)]
pub(super) struct Pauses(Mutex<Option<(Instant, ControlState)>>);

impl Pauses {
    /// Whether an operator has paused or halted the consumer. One delivery in two seconds asks, and the others wait for it.
    ///
    /// # Cancel safety
    /// Cancel safe: the next one asks.
    pub(super) async fn is_paused<S: Store>(&self, consumer: &DedupConsumer<S>) -> bool {
        let mut last = self.0.lock().await;
        if last.is_none_or(|(read_at, _)| read_at.elapsed() >= READ_EVERY) {
            match consumer.control().await {
                Ok(Control { state, .. }) => *last = Some((Instant::now(), state)),
                // The state that was read last is obeyed on. Without one the database will refuse the event too.
                Err(error) => {
                    tracing::warn!(idem.consumer = %consumer.name(), error = &error as &dyn std::error::Error, "the consumer's control cannot be read");
                }
            }
        }
        last.is_some_and(|(_, state)| state != ControlState::Running)
    }
}
