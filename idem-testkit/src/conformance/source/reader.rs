//! A consumer for the cases: a source with bounded waits and words for what went wrong.

use std::{future::Future, time::Duration};

use idem_core::{
    Message, Source, SourceError,
    source::{Attached, Delivery, Received, Revocation, Settle, Settled},
};

use super::subject::SourceUnderTest;
use crate::proof::durables;

/// No case waits longer for one thing than this. It is long because the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(180);

/// What a source gets for closing.
const CLOSED_WITHIN: Duration = Duration::from_secs(30);

pub(super) async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(answer) => answer,
        Err(_) => panic!("{what} did not happen within {PATIENCE:?}"),
    }
}

pub(super) type Deliveries<S> = Vec<Delivery<<S as Source>::Handle>>;

/// An attached source.
pub(super) struct Reader<S: Source> {
    pub(super) source: S,
    pub(super) attached: Attached,
}

impl<S: Source> Reader<S> {
    pub(super) async fn open(subject: &impl SourceUnderTest<Source = S>) -> Self {
        Self::on(subject.source().await).await
    }

    /// A broker that is slow to answer is asked again, as a worker does it.
    pub(super) async fn on(source: S) -> Self {
        let attached = within("attach", async {
            loop {
                match source.attach().await {
                    Err(SourceError::Unavailable { .. }) => tokio::time::sleep(Duration::from_millis(100)).await,
                    attached => break attached,
                }
            }
        });
        let attached = attached.await.expect("attach");
        Self { source, attached }
    }

    /// A source may report that its broker is slow to answer, and is then asked again (contract 6).
    pub(super) async fn receive(&self, max: usize) -> Received<S::Handle> {
        let received = within("receive", async {
            loop {
                match self.source.receive(max).await {
                    Err(SourceError::Unavailable { .. }) => {}
                    received => break received,
                }
            }
        });
        received.await.expect("receive")
    }

    /// Exactly `count` deliveries, over as many receives as it takes.
    pub(super) async fn take(&self, count: usize) -> Deliveries<S> {
        let mut taken = Vec::new();
        while taken.len() < count {
            match self.receive(count - taken.len()).await {
                Received::Deliveries(deliveries) => taken.extend(deliveries),
                other => panic!("after {} of {count} deliveries came {other:?}", taken.len()),
            }
        }
        assert_eq!(taken.len(), count, "receive handed over more than it was asked for");
        taken
    }

    /// The same where the broker may still be sharing out: what belongs to an assignment that ends comes again.
    pub(super) async fn take_while_shared_out(&self, count: usize) -> Deliveries<S> {
        let mut taken: Deliveries<S> = Vec::new();
        while taken.len() < count {
            match self.receive(count - taken.len()).await {
                Received::Deliveries(deliveries) => taken.extend(deliveries),
                Received::Revoked(Revocation { assignments, drained }) => {
                    taken.retain(|delivery| !assignments.contains(&delivery.assignment));
                    drop(drained);
                }
                other => panic!("after {} of {count} deliveries came {other:?}", taken.len()),
            }
        }
        taken
    }

    /// The next revocation. Deliveries that arrive before it are handed to `meanwhile`.
    pub(super) async fn revocation(&self, meanwhile: &mut Deliveries<S>) -> Revocation {
        loop {
            match self.receive(100).await {
                Received::Revoked(revocation) => return revocation,
                Received::Deliveries(deliveries) => meanwhile.extend(deliveries),
                other => panic!("instead of a revocation came {other:?}"),
            }
        }
    }

    pub(super) async fn settle(&self, settlements: Vec<(S::Handle, Settle)>) -> Vec<Settled> {
        let count = settlements.len();
        let answers = within("settle", self.source.settle(settlements)).await;
        assert_eq!(answers.len(), count, "settle must answer one per entry (contract 4)");
        answers
    }

    pub(super) async fn try_acknowledge(&self, deliveries: Deliveries<S>) -> Vec<Settled> {
        let proofs = durables(deliveries.len()).await;
        let settlement = |(delivery, proof): (Delivery<_>, _)| (delivery.handle, Settle::Acknowledge(proof));
        self.settle(deliveries.into_iter().zip(proofs).map(settlement).collect()).await
    }

    pub(super) async fn acknowledge(&self, deliveries: Deliveries<S>) {
        let answers = self.try_acknowledge(deliveries).await;
        assert!(answers.iter().all(|answer| *answer == Settled::Settled), "acknowledging answered {answers:?}");
    }

    pub(super) async fn release(&self, deliveries: Deliveries<S>, after: Duration) {
        let settlement = |delivery: Delivery<_>| (delivery.handle, Settle::Release { after });
        let answers = self.settle(deliveries.into_iter().map(settlement).collect()).await;
        assert!(answers.iter().all(|answer| *answer == Settled::Settled), "releasing answered {answers:?}");
    }

    /// A broker that is slow to take it is asked again, as a worker does it.
    pub(super) async fn flush(&self) {
        let flushed = async {
            while let Err(error) = self.source.flush().await {
                assert!(matches!(error, SourceError::Unavailable { .. }), "flushing answered {error:?}");
            }
        };
        within("flush", flushed).await;
    }

    pub(super) async fn close(self) {
        within("close", self.source.close(CLOSED_WITHIN)).await;
    }

    /// What was released is delivered again: to this reader, or to its successor where the broker keeps positions and
    /// so gives nothing back before the assignment ends.
    pub(super) async fn after_release(self, subject: &impl SourceUnderTest<Source = S>) -> Self {
        if subject.features().individual_settle { self } else { self.restart(subject).await }
    }

    /// Crashes, and starts again.
    pub(super) async fn restart(self, subject: &impl SourceUnderTest<Source = S>) -> Self {
        subject.crash(self.source).await;
        Self::open(subject).await
    }

    /// Waits until the source says that it is idle; brokers may need a moment to notice.
    pub(super) async fn idle(&self) {
        within("is_idle", async {
            while !self.source.is_idle().await {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    }
}

/// Publishes `count` messages with the payloads `0`, `1`, …
pub(super) async fn publish(subject: &impl SourceUnderTest, count: usize) {
    for number in 0..count {
        put(subject, Message::new(number.to_string())).await;
    }
}

pub(super) async fn put(subject: &impl SourceUnderTest, message: Message) {
    within("publishing", subject.publish(message)).await.expect("publishing");
}

pub(super) async fn left(subject: &impl SourceUnderTest, expected: u64) {
    let left = within("counting", subject.unsettled(expected)).await;
    assert_eq!(left, expected, "messages that are not settled for good");
}

/// The payloads as text, sorted where the order means nothing.
pub(super) fn payloads<H>(deliveries: &[Delivery<H>]) -> Vec<String> {
    let text = |delivery: &Delivery<H>| match delivery.message.payload() {
        Some(payload) => String::from_utf8_lossy(payload).into_owned(),
        None => "(none)".to_owned(),
    };
    deliveries.iter().map(text).collect()
}

pub(super) fn sorted<H>(deliveries: &[Delivery<H>]) -> Vec<String> {
    let mut payloads = payloads(deliveries);
    payloads.sort_unstable();
    payloads
}

/// `0`, `1`, … as [`publish`] makes them, sorted as text.
pub(super) fn numbers(count: usize) -> Vec<String> {
    let mut numbers: Vec<String> = (0..count).map(|number| number.to_string()).collect();
    numbers.sort_unstable();
    numbers
}
