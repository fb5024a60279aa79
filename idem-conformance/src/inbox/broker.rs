//! The inbox in the place of a broker.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use idem_core::{
    ConsumerName, Message, SourceError,
    inbox::{Inbox, InboxSettings, InboxSource, NewInboxRow, OpenInbox},
    message::{OrderingKey, Origin},
};

use super::{InboxUnderTest, SlotChange};
use crate::source::{Features, SourceUnderTest, Unsupported};
use idem_testkit::memory::Revoke;

/// An inbox that plays the broker of the [source suite](crate::source).
#[derive(Debug)]
pub struct InboxBroker<T> {
    subject: T,
    open: OpenInbox,
    published: AtomicU64,
    /// The inbox of each source by its holder. A source that was dropped has it until its last request ends.
    sources: Mutex<HashMap<String, Weak<dyn Inbox>>>,
}

pub(super) fn name(consumer: &str) -> ConsumerName {
    ConsumerName::new(consumer).expect("a name")
}

/// Slots go from one source to another within moments.
pub(super) fn settings() -> InboxSettings {
    InboxSettings::default().lease(Duration::from_secs(20)).hold_every(Duration::from_millis(40))
}

impl<T: InboxUnderTest> InboxBroker<T> {
    /// Makes the inbox of a consumer, and that of another.
    ///
    /// # Panics
    /// Where the store refuses.
    pub async fn open(subject: T) -> Self {
        let inbox = subject.inbox();
        let open = inbox.open(&name("orders"), Some("queue orders"), 16).await.expect("open");
        inbox.open(&name("another"), Some("queue another"), 16).await.expect("open");
        Self { subject, open, published: AtomicU64::new(0), sources: Mutex::default() }
    }

    fn source_of(&self, consumer: &str) -> InboxSource {
        let inbox = self.subject.inbox();
        let used = Arc::downgrade(&inbox);
        let source = InboxSource::with_settings(inbox, name(consumer), settings());
        self.sources.lock().unwrap_or_else(PoisonError::into_inner).insert(source.holder().to_owned(), used);
        source
    }
}

impl<T: InboxUnderTest> SourceUnderTest for InboxBroker<T> {
    type Source = InboxSource;

    fn features(&self) -> Features {
        Features::default().ordered(true).counts_attempts(false).revokes(true)
    }

    async fn publish(&self, message: Message) -> Result<(), SourceError> {
        let number = self.published.fetch_add(1, Ordering::Relaxed);
        let mut message = message.with_origin(Origin::new(&format!("orders/0/{number}")));
        if let Some(key) = message.record_key().cloned() {
            message = message.with_ordering_key(OrderingKey::new(key));
        }
        let row = NewInboxRow::new(message, None, self.open.slots);
        let put = self.subject.inbox().put(self.open.id, &[row]).await;
        put.map_err(|error| SourceError::unavailable("publishing", error))
    }

    async fn source(&self) -> InboxSource {
        self.source_of("orders")
    }

    async fn source_of_another_queue(&self) -> InboxSource {
        self.source_of("another")
    }

    async fn source_of_an_unknown_queue(&self, name: &str) -> InboxSource {
        self.source_of(name)
    }

    async fn crash(&self, source: InboxSource) {
        let holder = source.holder().to_owned();
        drop(source);
        // A request that is under way may take slots, or wait for one as a member does.
        let used = self.sources.lock().unwrap_or_else(PoisonError::into_inner).remove(&holder);
        while used.as_ref().is_some_and(|used| used.strong_count() > 0) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        self.subject.change_slots(self.open.id, SlotChange::Expired(&holder)).await;
    }

    async fn unsettled(&self, _expected: u64) -> u64 {
        self.subject.inbox().backlog(self.open.id, &[], u64::from(u32::MAX)).await.expect("count").rows
    }

    async fn formed(&self, sources: usize) {
        let is_formed = |holders: &[(String, usize)]| {
            let counts = || holders.iter().map(|(_, slots)| *slots);
            holders.len() == sources && counts().max() <= counts().min().map(|least| least + 1)
        };
        while !is_formed(&self.subject.holders(self.open.id).await) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn revoke(&self, how: Revoke) -> Result<(), Unsupported> {
        let change = match how {
            Revoke::Drained => SlotChange::Wanted,
            Revoke::Lost => SlotChange::Lost,
        };
        self.subject.change_slots(self.open.id, change).await;
        Ok(())
    }
}
