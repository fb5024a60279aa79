//! An inbox that counts its statements, and the time of its looks.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use idem_core::{
    ConsumerName, StoreError,
    inbox::{Granted, HeldSlot, Inbox, InboxBacklog, InboxRow, NewInboxRow, OpenInbox, Reading, Settling},
    store::ScopeId,
};
use tokio::time::Instant;

/// Each call is one statement in a transaction of its own.
pub(super) struct Counting {
    inbox: Arc<dyn Inbox>,
    calls: AtomicU64,
    looks: AtomicU64,
    looked_micros: AtomicU64,
}

impl Counting {
    pub(super) fn new(inbox: Arc<dyn Inbox>) -> Self {
        Self { inbox, calls: AtomicU64::new(0), looks: AtomicU64::new(0), looked_micros: AtomicU64::new(0) }
    }

    pub(super) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// The average time of the looks since the last question.
    pub(super) fn millis_a_look(&self) -> f64 {
        let (looks, micros) = (self.looks.swap(0, Ordering::Relaxed), self.looked_micros.swap(0, Ordering::Relaxed));
        micros as f64 / 1e3 / looks as f64
    }

    fn counted(&self) -> &dyn Inbox {
        self.calls.fetch_add(1, Ordering::Relaxed);
        &*self.inbox
    }
}

#[async_trait]
impl Inbox for Counting {
    async fn open(&self, consumer: &ConsumerName, bound_to: Option<&str>, slots: u16) -> Result<OpenInbox, StoreError> {
        self.counted().open(consumer, bound_to, slots).await
    }

    async fn find(&self, consumer: &ConsumerName) -> Result<Option<OpenInbox>, StoreError> {
        self.counted().find(consumer).await
    }

    async fn put(&self, inbox: ScopeId, rows: &[NewInboxRow]) -> Result<(), StoreError> {
        self.counted().put(inbox, rows).await
    }

    async fn hold_slots(
        &self,
        inbox: ScopeId,
        holder: &str,
        lease: Duration,
        takes: bool,
    ) -> Result<Vec<Granted>, StoreError> {
        self.counted().hold_slots(inbox, holder, lease, takes).await
    }

    async fn release_slots(&self, inbox: ScopeId, holder: &str, slots: &[HeldSlot]) -> Result<(), StoreError> {
        self.counted().release_slots(inbox, holder, slots).await
    }

    async fn next(&self, inbox: ScopeId, reading: Reading<'_>) -> Result<Vec<InboxRow>, StoreError> {
        let began = Instant::now();
        let rows = self.counted().next(inbox, reading).await;
        self.looks.fetch_add(1, Ordering::Relaxed);
        let micros = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.looked_micros.fetch_add(micros, Ordering::Relaxed);
        rows
    }

    async fn remove(&self, inbox: ScopeId, holder: &str, rows: &[Settling]) -> Result<Vec<HeldSlot>, StoreError> {
        self.counted().remove(inbox, holder, rows).await
    }

    async fn backlog(&self, inbox: ScopeId, except: &[i64], enough: u64) -> Result<InboxBacklog, StoreError> {
        self.counted().backlog(inbox, except, enough).await
    }
}
