//! [`AmqpSource`]: the source as the worker sees it.

use std::{fmt, sync::Arc, time::Duration};

use futures_util::{StreamExt, stream::FuturesUnordered};
use idem_core::{
    ConfigError, Source, SourceError,
    source::{Attached, Behind, Received, Settle, Settled, SourceCapabilities},
};
use tokio::{
    sync::{Mutex, mpsc, oneshot},
    task::JoinHandle,
    time::{Instant, timeout, timeout_at},
};

use crate::{
    attach,
    channel::{self, ANSWER, Question, Session},
    options::{AmqpOptions, Settings},
    retry::RetryQueue,
    state::{AmqpHandle, Shared},
};

/// One queue. [`AmqpOptions`] makes one.
///
/// The connection lives on a task of its own, from [`Source::attach`] until [`Source::close`] or until the source is
/// dropped.
pub struct AmqpSource {
    settings: Arc<Settings>,
    shared: Arc<Shared>,
    retry: Option<RetryQueue>,
    running: Mutex<Option<Running>>,
}

struct Running {
    attached: Attached,
    questions: mpsc::Sender<Question>,
    task: JoinHandle<()>,
}

impl AmqpOptions {
    /// Checks the settings. Nothing is connected yet.
    ///
    /// # Errors
    /// [`ConfigError`] with field, value and rule.
    pub fn build(&self) -> Result<AmqpSource, ConfigError> {
        let settings = self.check()?;
        let retry = RetryQueue::of(&settings);
        let shared = Arc::new(Shared::new(retry.is_some(), settings.prefetch));
        Ok(AmqpSource { settings: Arc::new(settings), shared, retry, running: Mutex::default() })
    }
}

impl fmt::Debug for AmqpSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AmqpSource").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl Source for AmqpSource {
    type Handle = AmqpHandle;

    fn capabilities(&self) -> SourceCapabilities {
        // A quorum queue with a delivery limit drops messages that it has to take back too often.
        SourceCapabilities::minimal().marks_redelivery(true).pauses(true)
    }

    /// # Errors
    /// [`SourceError::Refused`] for a queue that is [required](crate::AmqpOptions::require_queue) or a vhost that does not exist, rights that are missing, a broker that does not
    /// let this user in, and, where there is a [management URL](crate::AmqpOptions::management_url), for a queue that may
    /// lose messages.
    ///
    /// # Cancel safety
    /// Cancel safe: the connection of a dropped call is closed.
    async fn attach(&self) -> Result<Attached, SourceError> {
        let mut running = self.running.lock().await;
        if let Some(running) = &*running {
            return Ok(running.attached.clone());
        }
        if self.shared.stopping.is_cancelled() {
            return Err(SourceError::refused("the source is closed", "Make a new one"));
        }
        let (attached, keeps) = attach::attached(&self.settings).await?;
        if keeps == attach::Keeps::NotSurely {
            self.shared.be_careful();
        }
        let session = Session::open(&self.settings, &self.shared, &self.settings.needed).await?;
        self.shared.begin(session.channel(), session.counting());
        let (questions, asked) = mpsc::channel(1);
        let (settings, shared) = (Arc::clone(&self.settings), Arc::clone(&self.shared));
        let task = tokio::spawn(async move {
            let gone = shared.gone.clone();
            gone.run_until_cancelled(channel::run(settings, shared, asked, session)).await;
        });
        *running = Some(Running { attached: attached.clone(), questions, task });
        Ok(attached)
    }

    /// # Errors
    /// [`SourceError::Refused`] where the queue was deleted or rights were taken away; [`SourceError::Unavailable`] when
    /// the broker cannot be reached.
    ///
    /// # Cancel safety
    /// Cancel safe: a dropped call loses nothing.
    async fn receive(&self, max: usize) -> Result<Received<AmqpHandle>, SourceError> {
        self.shared.receive(max).await
    }

    /// # Cancel safety
    /// Messages whose settlement a dropped call has not written come back.
    async fn settle(&self, settlements: Vec<(AmqpHandle, Settle)>) -> Vec<Settled> {
        let (channel, current) = self.shared.settling(&settlements);
        let Some(channel) = channel else { return vec![Settled::Stale; settlements.len()] };
        let settle = settlements.into_iter().zip(&current).map(async |((handle, settle), current)| {
            // A tag of an older channel is another message's tag on this one.
            if *current { handle.settle(settle, &channel, self.retry.as_ref()).await } else { Settled::Stale }
        });
        each(settle).await
    }

    /// No message waits in the queue, nor here. Messages that other consumers of the queue hold cannot be seen.
    async fn is_idle(&self) -> bool {
        let Some(questions) = self.running.lock().await.as_ref().map(|running| running.questions.clone()) else {
            return false;
        };
        let (question, answer) = oneshot::channel();
        let asking = async { questions.send(question).await.is_ok() && answer.await.unwrap_or(false) };
        timeout(ANSWER, asking).await.unwrap_or(false)
    }

    fn unreachable_for(&self) -> Option<Duration> {
        self.shared.unreachable_for()
    }

    /// The messages that wait in the queue, without those that a consumer has.
    async fn behind(&self) -> Vec<Behind> {
        let waiting = match self.shared.counting() {
            Some(channel) => channel::waiting(&channel, &self.settings.queue).await,
            None => None,
        };
        vec![Behind::new(self.settings.queue.as_str(), waiting)]
    }

    fn is_full(&self) -> bool {
        self.shared.is_full()
    }

    fn pause(&self) {
        self.shared.pause();
    }

    fn resume(&self) {
        self.shared.resume();
    }

    fn stop(&self) {
        self.shared.stopping.cancel();
    }

    /// # Cancel safety
    /// Cancel safe: the task goes on closing.
    async fn close(&self, deadline: Duration) {
        self.shared.stopping.cancel();
        self.shared.closing.cancel();
        if let Some(running) = &mut *self.running.lock().await
            && !running.task.is_finished()
            && timeout(deadline, &mut running.task).await.is_err()
        {
            // Without the task the connection is dropped, and the broker takes back unsettled messages.
            self.shared.gone.cancel();
            tracing::warn!(queue = self.settings.queue.as_str(), ?deadline, "the broker did not let go in time");
        }
        self.shared.end();
    }
}

/// How long a call waits in all, however many it settles.
const ANSWERS: Duration = Duration::from_secs(60);

/// Waits for all of them, for as long as one after the other is done: a call may settle thousands, and those that are done are
/// known even if the rest hangs.
async fn each(settlements: impl Iterator<Item = impl Future<Output = Settled>>) -> Vec<Settled> {
    let numbered = settlements.enumerate().map(async |(place, settle)| (place, settle.await));
    // Frames are queued in this order, and none waits for the one before it.
    let mut pending: FuturesUnordered<_> = numbered.collect();
    let mut settled = vec![Settled::Unknown; pending.len()];
    let end = Instant::now() + ANSWERS;
    while let Ok(Some((place, done))) = timeout_at(end.min(Instant::now() + ANSWER), pending.next()).await {
        settled[place] = done;
    }
    settled
}

impl Drop for AmqpSource {
    fn drop(&mut self) {
        self.shared.gone.cancel();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn after(time: Duration) -> Settled {
        tokio::time::sleep(time).await;
        Settled::Settled
    }

    /// G50: a call of thousands took no longer than one answer may, and reported none of those that were done.
    #[tokio::test(start_paused = true)]
    async fn g50_settling_many_takes_as_long_as_one_after_the_other_is_done() {
        let many = each((1..=1_000).map(|number| after(ANSWER / 100 * number))).await;
        assert!(many.iter().all(|settled| *settled == Settled::Settled));
        let begun = Instant::now();
        let endless = each((1..=1_000).map(|number| after((ANSWER / 2 + Duration::from_millis(1)) * number))).await;
        assert_eq!(begun.elapsed(), ANSWERS);
        assert_eq!(endless.iter().filter(|settled| **settled == Settled::Settled).count(), 23);
        let hang = each([ANSWER / 2, ANSWER * 100, ANSWER].into_iter().map(after)).await;
        assert_eq!(hang, [Settled::Settled, Settled::Unknown, Settled::Settled]);
    }
}
