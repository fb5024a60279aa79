//! [`SourceDriver`]: a source in a test, with bounded waits and words for what went wrong.

#![allow(
    clippy::panic,
    clippy::expect_used,
    clippy::wildcard_enum_match_arm,
    reason = "it is for tests, in which anything unexpected is a failure"
)]

use std::{future::Future, time::Duration};

use idem_core::{
    Source, SourceError,
    internal::chain,
    source::{Attached, Delivery, Received, Revocation, Settle, Settled},
};

use crate::proof::durables;

/// Long, because the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(300);

/// The time a source gets for closing.
const CLOSED_WITHIN: Duration = Duration::from_secs(30);

/// The answer of `future`.
///
/// # Panics
/// Where it takes five minutes; `what` names it.
///
/// # Cancel safety
/// As cancel safe as `future` is.
pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(answer) => answer,
        Err(_) => panic!("{what} did not happen within {PATIENCE:?}"),
    }
}

/// Deliveries of a source.
pub type Deliveries<S> = Vec<Delivery<<S as Source>::Handle>>;

/// An attached source, driven by a test in the place of a worker.
///
/// Every wait is bounded by five minutes, and an unexpected answer is a panic that says what came instead. As a worker
/// does it, most calls ask again where the source reports [`SourceError::Unavailable`]; [`receive`](Self::receive) and
/// [`attach`](Self::attach) hand it out.
///
/// ```
/// use idem_core::{Message, SourceError};
/// use idem_testkit::{
///     memory::{Broker, QueueOptions},
///     source_driver::{SourceDriver, payloads},
/// };
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), SourceError> {
/// let queue = Broker::new().create("orders", QueueOptions::default())?;
/// queue.publish(Message::new("first"))?;
/// let driver = SourceDriver::join(queue.source()).await;
/// let deliveries = driver.take(1).await;
/// assert_eq!(payloads(&deliveries), ["first"]);
/// driver.acknowledge(deliveries).await;
/// driver.idle().await;
/// # Ok(())
/// # }
/// ```
///
/// # Panics
/// Each call panics where the source does not do as its documentation says.
///
/// # Cancel safety
/// As that of the [`Source`]; calls that take several deliveries lose those that they have when they are dropped.
#[derive(Debug)]
pub struct SourceDriver<S: Source> {
    /// The source, for everything that is not here.
    pub source: S,
    /// The source's answer when it attached.
    pub attached: Attached,
}

impl<S: Source> SourceDriver<S> {
    /// Attaches a source, with one try.
    ///
    /// # Errors
    /// Those of the source.
    pub async fn attach(source: S) -> Result<Self, SourceError> {
        let attached = within("attaching", source.attach()).await?;
        Ok(Self { source, attached })
    }

    /// Attaches a source. A broker that cannot be reached is asked again.
    ///
    /// # Errors
    /// Those of the source but for [`SourceError::Unavailable`].
    pub async fn attach_when_reachable(source: S) -> Result<Self, SourceError> {
        let attached = within("attaching", async {
            loop {
                match source.attach().await {
                    Err(SourceError::Unavailable { .. }) => tokio::time::sleep(Duration::from_millis(100)).await,
                    attached => break attached,
                }
            }
        });
        Ok(Self { attached: attached.await?, source })
    }

    /// The same for a source that is not refused.
    pub async fn join(source: S) -> Self {
        Self::attach_when_reachable(source).await.expect("attach")
    }

    /// One answer of the source, of any kind.
    ///
    /// # Errors
    /// Those of the source.
    pub async fn receive(&self, max: usize) -> Result<Received<S::Handle>, SourceError> {
        within("receiving", self.source.receive(max)).await
    }

    /// The next thing that the source hands over.
    pub async fn next(&self, max: usize) -> Received<S::Handle> {
        let received = within("receiving", async {
            loop {
                match self.source.receive(max).await {
                    Err(SourceError::Unavailable { .. }) => {}
                    received => break received,
                }
            }
        });
        received.await.expect("receive")
    }

    /// Exactly `count` deliveries, over as many receives as it takes, and nothing else.
    pub async fn take(&self, count: usize) -> Deliveries<S> {
        let mut taken = Vec::new();
        while taken.len() < count {
            match self.next(count - taken.len()).await {
                Received::Deliveries(deliveries) => taken.extend(deliveries),
                other => panic!("after {} of {count} deliveries came {other:?}", taken.len()),
            }
        }
        assert_eq!(taken.len(), count, "receive handed over more than it was asked for");
        taken
    }

    /// The same from a broker that answers each time: an outage that the source reports is a failure too.
    pub async fn take_without_outage(&self, count: usize) -> Deliveries<S> {
        let mut taken = Vec::new();
        while taken.len() < count {
            match self.receive(count - taken.len()).await {
                Ok(Received::Deliveries(deliveries)) => taken.extend(deliveries),
                other => panic!("after {} of {count} deliveries came {other:?}", taken.len()),
            }
        }
        assert_eq!(taken.len(), count, "receive handed over more than it was asked for");
        taken
    }

    /// As [`take`](Self::take) where assignments may end meanwhile, because a group is sharing out or connections break:
    /// messages of one that ends come again.
    pub async fn take_over_revocations(&self, count: usize) -> Deliveries<S> {
        let mut taken: Deliveries<S> = Vec::new();
        while taken.len() < count {
            match self.next(count - taken.len()).await {
                Received::Deliveries(deliveries) => taken.extend(deliveries),
                Received::Revoked(revocation) => {
                    taken.retain(|delivery| !revocation.assignments.contains(&delivery.assignment));
                }
                other => panic!("after {} of {count} deliveries came {other:?}", taken.len()),
            }
        }
        taken
    }

    /// The next revocation, which the source must report before anything else; no message is taken in before it.
    pub async fn revocation(&self) -> Revocation {
        match self.receive(0).await {
            Ok(Received::Revoked(revocation)) => revocation,
            other => panic!("instead of a revocation came {other:?}"),
        }
    }

    /// The next revocation. Deliveries that arrive before it are handed to `meanwhile`.
    pub async fn revocation_after(&self, meanwhile: &mut Deliveries<S>) -> Revocation {
        loop {
            match self.next(100).await {
                Received::Revoked(revocation) => return revocation,
                Received::Deliveries(deliveries) => meanwhile.extend(deliveries),
                other => panic!("instead of a revocation came {other:?}"),
            }
        }
    }

    /// Waits for the end of an assignment that is lost already; no message is taken in before it.
    pub async fn lost(&self) {
        let revocation = self.revocation().await;
        assert!(revocation.drained.is_none(), "instead of a loss came {revocation:?}");
    }

    /// The [`SourceError::Refused`] with which a running source ends. Anything before it is dropped.
    pub async fn refusal(&self) -> SourceError {
        self.error("a refusal", |error| matches!(error, SourceError::Refused { .. })).await
    }

    /// The text of the first report of an unusable broker that has these words, in itself or in its causes. Earlier reports are
    /// dropped.
    pub async fn outage(&self, words: &str) -> String {
        let is_it = |error: &_| matches!(error, SourceError::Unavailable { .. }) && text(error).contains(words);
        text(&self.error(words, is_it).await)
    }

    async fn error(&self, what: &str, is_it: impl Fn(&SourceError) -> bool) -> SourceError {
        let reported = async {
            loop {
                match self.source.receive(1000).await {
                    Err(error) if is_it(&error) => return error,
                    Err(SourceError::Unavailable { .. }) | Ok(Received::Revoked(_) | Received::Deliveries(_)) => {}
                    other => panic!("instead of {what} came {other:?}"),
                }
            }
        };
        within(what, reported).await
    }

    /// Settles, and answers the outcome of each.
    pub async fn settle(&self, settlements: Vec<(S::Handle, Settle)>) -> Vec<Settled> {
        let count = settlements.len();
        let answers = within("settling", self.source.settle(settlements)).await;
        assert_eq!(answers.len(), count, "settle must answer one per entry (contract 4)");
        answers
    }

    /// Acknowledges, and answers the outcome of each.
    pub async fn try_acknowledge(&self, deliveries: Deliveries<S>) -> Vec<Settled> {
        let proofs = durables(deliveries.len()).await;
        let settlement = |(delivery, proof): (Delivery<_>, _)| (delivery.handle, Settle::Acknowledge(proof));
        self.settle(deliveries.into_iter().zip(proofs).map(settlement).collect()).await
    }

    /// Acknowledges, which the broker must take.
    pub async fn acknowledge(&self, deliveries: Deliveries<S>) {
        let answers = self.try_acknowledge(deliveries).await;
        assert!(answers.iter().all(|answer| *answer == Settled::Settled), "acknowledging answered {answers:?}");
    }

    /// Gives back, and answers the outcome of each.
    pub async fn try_release(&self, deliveries: Deliveries<S>, after: Duration) -> Vec<Settled> {
        let settlement = |delivery: Delivery<_>| (delivery.handle, Settle::Release { after });
        self.settle(deliveries.into_iter().map(settlement).collect()).await
    }

    /// Gives back, which the broker must take.
    pub async fn release(&self, deliveries: Deliveries<S>, after: Duration) {
        let answers = self.try_release(deliveries, after).await;
        assert!(answers.iter().all(|answer| *answer == Settled::Settled), "releasing answered {answers:?}");
    }

    /// Waits until the broker has what was settled.
    pub async fn flush(&self) {
        let flushed = async {
            while let Err(error) = self.source.flush().await {
                assert!(matches!(error, SourceError::Unavailable { .. }), "flushing answered {error:?}");
            }
        };
        within("flushing", flushed).await;
    }

    /// Waits until the source says that it is idle; brokers may need a moment to notice.
    pub async fn idle(&self) {
        within("being idle", async {
            while !self.source.is_idle().await {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    }

    /// Closes the source, for which it has thirty seconds.
    pub async fn close(self) {
        within("closing", self.source.close(CLOSED_WITHIN)).await;
    }
}

/// An error with its causes.
fn text(error: &SourceError) -> String {
    chain(error).map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// The payloads as text; `(none)` for a message without one.
#[must_use]
pub fn payloads<H>(deliveries: &[Delivery<H>]) -> Vec<String> {
    let text = |delivery: &Delivery<H>| match delivery.message.payload() {
        Some(payload) => String::from_utf8_lossy(payload).into_owned(),
        None => "(none)".to_owned(),
    };
    deliveries.iter().map(text).collect()
}

/// The payloads as text, sorted, where the order means nothing.
#[must_use]
pub fn sorted<H>(deliveries: &[Delivery<H>]) -> Vec<String> {
    let mut payloads = payloads(deliveries);
    payloads.sort_unstable();
    payloads
}
