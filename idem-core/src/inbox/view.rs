//! [`ReceiverView`]: a receiver as seen from outside, while it runs and after it has ended.

use std::{
    fmt,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;

use crate::{
    inbox::rows::InboxBacklog,
    names::ConsumerName,
    source::{Attached, Behind, Source, behind::LastBehind},
    telemetry::handles::InboxMetrics,
};

/// What waits in an inbox, as it was last counted.
#[derive(Debug)]
pub(super) struct Counted {
    pub(super) metrics: InboxMetrics,
    last: Mutex<Option<InboxBacklog>>,
}

impl Counted {
    pub(super) fn of(consumer: &ConsumerName) -> Self {
        Self { metrics: InboxMetrics::of(consumer), last: Mutex::new(None) }
    }

    #[allow(clippy::cast_precision_loss, reason = "gauges are floating")]
    pub(super) fn set(&self, backlog: InboxBacklog) {
        self.metrics.rows.set(backlog.rows as f64);
        self.metrics.oldest.set(backlog.oldest.unwrap_or_default().as_secs_f64());
        self.metrics.free_slots.set(f64::from(backlog.free_slots));
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(backlog);
    }

    pub(super) fn last(&self) -> Option<InboxBacklog> {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How far a receiver is.
#[derive(Debug)]
pub(super) struct Progress {
    /// The broker's facts, once the inbox is there too.
    pub(super) attached: OnceLock<Attached>,
    /// Messages received and not settled.
    pub(super) in_hand: AtomicUsize,
    pub(super) written: AtomicU64,
    /// The last write has failed.
    pub(super) cannot_write: AtomicBool,
    pub(super) counted: Counted,
    pub(super) behind: LastBehind,
}

impl Progress {
    pub(super) fn of(consumer: &ConsumerName) -> Self {
        Self {
            attached: OnceLock::new(),
            in_hand: AtomicUsize::new(0),
            written: AtomicU64::new(0),
            cannot_write: AtomicBool::new(false),
            counted: Counted::of(consumer),
            behind: LastBehind::of(consumer),
        }
    }
}

/// The calls of a source that a view needs.
#[async_trait]
pub(super) trait Broker: Send + Sync {
    async fn is_idle(&self) -> bool;
    fn takes_part(&self) -> bool;
    fn unreachable_for(&self) -> Option<Duration>;
}

/// A source of any type.
pub(super) struct Of<B>(pub(super) Arc<B>);

#[async_trait]
impl<B: Source> Broker for Of<B> {
    async fn is_idle(&self) -> bool {
        self.0.is_idle().await
    }

    fn takes_part(&self) -> bool {
        self.0.takes_part()
    }

    fn unreachable_for(&self) -> Option<Duration> {
        self.0.unreachable_for()
    }
}

/// A [`Receiver`](crate::inbox::Receiver) as seen from outside, while it runs and after it has ended.
#[derive(Clone)]
pub struct ReceiverView {
    pub(super) progress: Arc<Progress>,
    pub(super) broker: Arc<dyn Broker>,
}

impl fmt::Debug for ReceiverView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReceiverView").field("progress", &self.progress).finish_non_exhaustive()
    }
}

impl ReceiverView {
    /// How many messages it has written.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.progress.written.load(Ordering::Relaxed)
    }

    /// Whether it has joined its queue or topic, and the inbox is there.
    #[must_use]
    pub fn has_joined(&self) -> bool {
        self.attached().is_some() && self.broker.takes_part()
    }

    /// For how long the broker cannot be used for receiving; `None` while it can.
    #[must_use]
    pub fn unreachable_for(&self) -> Option<Duration> {
        self.broker.unreachable_for()
    }

    /// Whether its last write has reached the database; before the first write too.
    #[must_use]
    pub fn can_write(&self) -> bool {
        !self.progress.cannot_write.load(Ordering::Relaxed)
    }

    /// What waits in the inbox, as it was last counted.
    #[must_use]
    pub fn backlog(&self) -> Option<InboxBacklog> {
        self.progress.counted.last()
    }

    /// How far it is behind in each part of its queue or topic, as the broker last answered, a few seconds ago. Empty before the first
    /// answer, and where the source cannot know.
    #[must_use]
    pub fn behind(&self) -> Vec<Behind> {
        self.progress.behind.parts()
    }

    /// Whether everything that the broker had is written and acknowledged.
    pub async fn is_idle(&self) -> bool {
        self.attached().is_some() && self.holds_none() && self.broker.is_idle().await && self.holds_none()
    }

    fn holds_none(&self) -> bool {
        self.progress.in_hand.load(Ordering::Acquire) == 0
    }

    pub(super) fn attached(&self) -> Option<&Attached> {
        self.progress.attached.get()
    }
}
