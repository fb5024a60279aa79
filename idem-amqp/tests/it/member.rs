//! A consumer of the queue, as the tests drive it: a source, with bounded waits and words for what went wrong.

use std::time::Duration;

use idem_amqp::{AmqpHandle, AmqpOptions, AmqpSource};
use idem_core::{
    Source, SourceError,
    source::{Delivery, Received, Settle, Settled},
};
use idem_testkit::durables;

use crate::broker::{PATIENCE, Queue};

pub(crate) type Deliveries = Vec<Delivery<AmqpHandle>>;

pub(crate) struct Member(pub(crate) AmqpSource);

pub(crate) async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(answer) => answer,
        Err(_) => panic!("{what}: not within {PATIENCE:?}"),
    }
}

/// The error with which a source of these options does not attach.
pub(crate) async fn refusal(options: &AmqpOptions) -> SourceError {
    within("attaching", options.build().unwrap().attach()).await.unwrap_err()
}

impl Member {
    pub(crate) async fn join(options: &AmqpOptions) -> Self {
        let source = options.build().unwrap();
        within("attaching", source.attach()).await.unwrap();
        Self(source)
    }

    pub(crate) async fn receive(&self, max: usize) -> Result<Received<AmqpHandle>, SourceError> {
        within("receiving", self.0.receive(max)).await
    }

    /// Exactly `count` deliveries. Ends of assignments and an unreachable broker are taken as they come.
    pub(crate) async fn take(&self, count: usize) -> Deliveries {
        let mut taken = Vec::new();
        while taken.len() < count {
            match self.receive(count - taken.len()).await {
                Ok(Received::Deliveries(deliveries)) => taken.extend(deliveries),
                Ok(Received::Revoked(_)) | Err(SourceError::Unavailable { .. }) => {}
                other => panic!("after {} of {count} deliveries came {other:?}", taken.len()),
            }
        }
        taken
    }

    /// Waits for the end of the channel; nothing is taken in before it.
    pub(crate) async fn lost(&self) {
        match self.receive(0).await.unwrap() {
            Received::Revoked(revocation) if revocation.drained.is_none() => {}
            other => panic!("instead of a loss came {other:?}"),
        }
    }

    pub(crate) async fn settle(&self, deliveries: Deliveries) -> Vec<Settled> {
        let proofs = durables(deliveries.len()).await;
        let settlement = |(delivery, proof): (Delivery<_>, _)| (delivery.handle, Settle::Acknowledge(proof));
        self.0.settle(deliveries.into_iter().zip(proofs).map(settlement).collect()).await
    }

    pub(crate) async fn release(&self, deliveries: Deliveries, after: Duration) -> Vec<Settled> {
        let settlement = |delivery: Delivery<_>| (delivery.handle, Settle::Release { after });
        self.0.settle(deliveries.into_iter().map(settlement).collect()).await
    }

    pub(crate) async fn acknowledge(&self, deliveries: Deliveries) {
        let answers = self.settle(deliveries).await;
        assert!(answers.iter().all(|answer| *answer == Settled::Settled), "acknowledging answered {answers:?}");
    }
}

/// Ends the member, whose unsettled messages come back, and looks whether there are any.
pub(crate) async fn assert_all_settled(member: Member, queue: &Queue) {
    within("closing", member.0.close(PATIENCE)).await;
    assert_eq!(queue.declared().await.message_count(), 0, "something was not settled");
}

/// What was published with each delivery, sorted.
pub(crate) fn payloads(deliveries: &Deliveries) -> Vec<String> {
    let text = |delivery: &Delivery<_>| String::from_utf8(delivery.message.payload().unwrap().to_vec()).unwrap();
    let mut payloads: Vec<_> = deliveries.iter().map(text).collect();
    payloads.sort_unstable();
    payloads
}

/// `000`, `001`, … in their order as text.
pub(crate) fn numbers(numbers: std::ops::Range<usize>) -> Vec<String> {
    numbers.map(|number| format!("{number:03}")).collect()
}
