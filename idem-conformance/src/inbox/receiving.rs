//! Cases: the receiver, from the broker in memory to the inbox under test.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use idem_core::{
    CancellationToken, ConsumerName, Message, StoreError,
    inbox::{
        Granted, HeldSlot, Inbox, InboxBacklog, InboxRow, InboxSource, NewInboxRow, OpenInbox, Reading, Receiver,
        ReceiverSettings, Settling,
    },
    store::ScopeId,
};
use tokio::{sync::Notify, task::JoinHandle};

use super::{
    InboxUnderTest,
    broker::{name, settings},
};
use idem_testkit::{
    memory::{Broker, Faults, Queue, QueueOptions, Rate, Revoke},
    source_driver::{SourceDriver, payloads, sorted, within},
};

/// An inbox whose database cannot be written to until that is over, and which counts calls.
pub(super) struct Outage {
    inbox: Arc<dyn Inbox>,
    is_over: AtomicBool,
    tries: AtomicUsize,
    counts: AtomicUsize,
    /// Whether answers about slots wait until they are let through.
    pub(super) holds_grants: AtomicBool,
    /// An answer waits.
    pub(super) granted: Notify,
    pub(super) lets_through: Notify,
}

impl Outage {
    pub(super) fn of(inbox: Arc<dyn Inbox>) -> Arc<Self> {
        Arc::new(Self {
            inbox,
            is_over: AtomicBool::new(false),
            tries: AtomicUsize::new(0),
            counts: AtomicUsize::new(0),
            holds_grants: AtomicBool::new(false),
            granted: Notify::new(),
            lets_through: Notify::new(),
        })
    }

    fn end(&self) {
        self.is_over.store(true, Ordering::SeqCst);
    }

    fn tries(&self) -> usize {
        self.tries.load(Ordering::SeqCst)
    }
}

#[async_trait]
impl Inbox for Outage {
    async fn open(&self, consumer: &ConsumerName, bound_to: Option<&str>, slots: u16) -> Result<OpenInbox, StoreError> {
        self.inbox.open(consumer, bound_to, slots).await
    }

    async fn find(&self, consumer: &ConsumerName) -> Result<Option<OpenInbox>, StoreError> {
        self.inbox.find(consumer).await
    }

    async fn put(&self, inbox: ScopeId, rows: &[NewInboxRow]) -> Result<(), StoreError> {
        self.tries.fetch_add(1, Ordering::SeqCst);
        if self.is_over.load(Ordering::SeqCst) {
            return self.inbox.put(inbox, rows).await;
        }
        Err(StoreError::unavailable("writing to the inbox", "the disk is full"))
    }

    async fn hold_slots(
        &self,
        inbox: ScopeId,
        holder: &str,
        lease: Duration,
        takes: bool,
    ) -> Result<Vec<Granted>, StoreError> {
        let granted = self.inbox.hold_slots(inbox, holder, lease, takes).await;
        if self.holds_grants.load(Ordering::SeqCst) {
            self.granted.notify_one();
            self.lets_through.notified().await;
        }
        granted
    }

    async fn release_slots(&self, inbox: ScopeId, holder: &str, slots: &[HeldSlot]) -> Result<(), StoreError> {
        self.inbox.release_slots(inbox, holder, slots).await
    }

    async fn next(&self, inbox: ScopeId, reading: Reading<'_>) -> Result<Vec<InboxRow>, StoreError> {
        self.inbox.next(inbox, reading).await
    }

    async fn remove(&self, inbox: ScopeId, holder: &str, rows: &[Settling]) -> Result<Vec<HeldSlot>, StoreError> {
        self.inbox.remove(inbox, holder, rows).await
    }

    async fn backlog(&self, inbox: ScopeId, except: &[i64], enough: u64) -> Result<InboxBacklog, StoreError> {
        let counted = self.inbox.backlog(inbox, except, enough).await;
        self.counts.fetch_add(1, Ordering::SeqCst);
        counted
    }
}

struct Running {
    stop: CancellationToken,
    task: JoinHandle<u64>,
}

impl Running {
    fn begin(queue: &Queue, inbox: Arc<dyn Inbox>, settings: ReceiverSettings) -> Self {
        let receiver = Receiver::new(queue.source(), inbox, name("orders")).settings(settings);
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let task = tokio::spawn(async move { receiver.run(stopped.cancelled_owned()).await.expect("received") });
        Self { stop, task }
    }

    async fn end(self) -> u64 {
        self.stop.cancel();
        within("the end of the receiver", self.task).await.expect("no panic")
    }
}

fn queue() -> Queue {
    // Longer than any case: a revocation that is not answered must not end by itself.
    let options = QueueOptions::default().revoke_within(Duration::from_secs(3_600));
    Broker::new().create("orders", options).expect("a queue")
}

fn publish(queue: &Queue, numbers: std::ops::Range<usize>) {
    for number in numbers {
        let message = Message::new(number.to_string()).with_header(idem_core::key::KEY_FIELD, format!("key-{number}"));
        queue.publish(message).expect("published");
    }
}

fn numbers(count: usize) -> Vec<String> {
    let mut numbers: Vec<String> = (0..count).map(|number| number.to_string()).collect();
    numbers.sort_unstable();
    numbers
}

async fn rows(inbox: &dyn Inbox) -> u64 {
    let Some(open) = inbox.find(&name("orders")).await.unwrap() else { return 0 };
    inbox.backlog(open.id, &[], 1_000_000).await.unwrap().rows
}

async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    within(what, waiting).await;
}

/// N2: a message is acknowledged once its row is committed. While the database cannot be written to, the broker keeps everything.
pub async fn nothing_is_acknowledged_before_its_row<T: InboxUnderTest>(subject: &T) {
    let (queue, inbox) = (queue(), subject.inbox());
    let outage = Outage::of(subject.inbox());
    publish(&queue, 0..20);
    let running = Running::begin(&queue, Arc::clone(&outage) as Arc<dyn Inbox>, ReceiverSettings::default());
    until("a third try", async || outage.tries() > 2).await;
    assert_eq!((queue.stats().acknowledged, queue.stats().unsettled()), (0, 20));
    outage.end();
    until("acknowledgements", async || queue.stats().unsettled() == 0).await;
    assert_eq!((running.end().await, rows(&*inbox).await), (20, 20));
    let reader = SourceDriver::join(InboxSource::with_settings(subject.inbox(), name("orders"), settings())).await;
    let taken = reader.take(20).await;
    assert_eq!(sorted(&taken), numbers(20));
    let keys: Vec<_> = taken.iter().filter_map(|one| one.message.headers().text(idem_core::key::KEY_FIELD)).collect();
    assert_eq!(keys.len(), 20);
}

/// N3: at its bound the receiver stops receiving, and nothing is dropped or dead-lettered.
pub async fn a_full_inbox_stops_receiving_and_drops_nothing<T: InboxUnderTest>(subject: &T) {
    let (queue, inbox) = (queue(), subject.inbox());
    let settings_of = || ReceiverSettings::default().rows_max(10).count_every(Duration::from_millis(30));
    publish(&queue, 0..12);
    let counted = Outage::of(subject.inbox());
    counted.end();
    let running = Running::begin(&queue, Arc::clone(&counted) as Arc<dyn Inbox>, settings_of());
    until("the first rows", async || rows(&*inbox).await == 12).await;
    let counts = async |more: usize| {
        let before = counted.counts.load(Ordering::SeqCst);
        until("counts", async || counted.counts.load(Ordering::SeqCst) >= before + more).await;
    };
    counts(3).await;
    publish(&queue, 12..20);
    counts(3).await;
    assert_eq!((queue.stats().unsettled(), rows(&*inbox).await), (8, 12), "they wait with the broker");
    let reader = SourceDriver::join(InboxSource::with_settings(subject.inbox(), name("orders"), settings())).await;
    let mut seen = Vec::new();
    while seen.len() < 20 {
        let next = reader.take(1).await;
        seen.extend(payloads(&next));
        reader.acknowledge(next).await;
    }
    seen.sort_unstable();
    assert_eq!(seen, numbers(20));
    until("acknowledgements", async || queue.stats().unsettled() == 0).await;
    assert_eq!(running.end().await, 20);
}

/// N4: a settlement that is lost brings a copy, which is a row of its own and a duplicate for the engine. It is in the same slot.
pub async fn settlements_that_were_lost_leave_copies<T: InboxUnderTest>(subject: &T) {
    let (queue, inbox) = (queue(), subject.inbox());
    queue.misbehave(Faults { acks_lost: Rate::Always, ..Faults::default() });
    publish(&queue, 0..5);
    let running = Running::begin(&queue, subject.inbox(), ReceiverSettings::default());
    until("copies", async || rows(&*inbox).await >= 10).await;
    queue.misbehave(Faults::default());
    until("acknowledgements", async || queue.stats().unsettled() == 0).await;
    let written = running.end().await;
    assert_eq!(rows(&*inbox).await, written);
    let reader = SourceDriver::join(InboxSource::with_settings(subject.inbox(), name("orders"), settings())).await;
    let taken = reader.take(usize::try_from(written).unwrap()).await;
    for first in &taken {
        let copies = || taken.iter().filter(|other| other.message.origin().as_str() == first.message.origin().as_str());
        assert!(copies().count() >= 2);
        assert!(copies().all(|copy| copy.assignment == first.assignment), "copies are in one slot");
    }
}

/// N6: a revocation that comes while the database cannot be written to is answered, and its messages are another receiver's.
pub async fn revoked_messages_are_left_to_their_next_receiver<T: InboxUnderTest>(subject: &T) {
    let (queue, inbox) = (queue(), subject.inbox());
    let outage = Outage::of(subject.inbox());
    publish(&queue, 0..10);
    let running = Running::begin(&queue, Arc::clone(&outage) as Arc<dyn Inbox>, ReceiverSettings::default());
    until("a try", async || outage.tries() > 0).await;
    queue.revoke(Revoke::Drained);
    until("the end of the assignment", async || queue.stats().revoked > 0).await;
    assert_eq!(queue.stats().unsettled(), 10);
    outage.end();
    until("acknowledgements", async || queue.stats().unsettled() == 0).await;
    assert_eq!((running.end().await >= 10, rows(&*inbox).await >= 10), (true, true));
    let reader = SourceDriver::join(InboxSource::with_settings(subject.inbox(), name("orders"), settings())).await;
    let written = usize::try_from(rows(&*inbox).await).unwrap();
    let mut seen = sorted(&reader.take(written).await);
    seen.dedup();
    assert_eq!(seen, numbers(10));
}
