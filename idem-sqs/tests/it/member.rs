//! A source, as the tests drive it: with bounded waits and words for what went wrong.

use std::time::Duration;

use idem_core::{
    Source, SourceError,
    source::{Attached, Delivery, Received, Revocation, Settle, Settled},
};
use idem_sqs::{SqsHandle, SqsOptions, SqsSource};
use idem_testkit::durables;

use crate::server::PATIENCE;

pub(crate) type Deliveries = Vec<Delivery<SqsHandle>>;

pub(crate) struct Member(pub(crate) SqsSource);

pub(crate) async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(answer) => answer,
        Err(_) => panic!("{what}: not within {PATIENCE:?}"),
    }
}

impl Member {
    pub(crate) async fn join(options: &SqsOptions) -> Self {
        Self::attach(options).await.unwrap().0
    }

    pub(crate) async fn attach(options: &SqsOptions) -> Result<(Self, Attached), SourceError> {
        let source = options.build().unwrap();
        let attached = within("attaching", source.attach()).await?;
        Ok((Self(source), attached))
    }

    pub(crate) async fn receive(&self, max: usize) -> Result<Received<SqsHandle>, SourceError> {
        within("receiving", self.0.receive(max)).await
    }

    /// Exactly `count` deliveries, and nothing else.
    pub(crate) async fn take(&self, count: usize) -> Deliveries {
        let mut taken = Vec::new();
        while taken.len() < count {
            match self.receive(count - taken.len()).await.unwrap() {
                Received::Deliveries(deliveries) => taken.extend(deliveries),
                other => panic!("after {} of {count} deliveries came {other:?}", taken.len()),
            }
        }
        taken
    }

    /// The next revocation; nothing is taken in before it.
    pub(crate) async fn revocation(&self) -> Revocation {
        match self.receive(0).await.unwrap() {
            Received::Revoked(revocation) => revocation,
            other => panic!("instead of a revocation came {other:?}"),
        }
    }

    pub(crate) async fn acknowledge(&self, deliveries: Deliveries) -> Vec<Settled> {
        let proofs = durables(deliveries.len()).await;
        let settlement = |(delivery, proof): (Delivery<_>, _)| (delivery.handle, Settle::Acknowledge(proof));
        within("settling", self.0.settle(deliveries.into_iter().zip(proofs).map(settlement).collect())).await
    }

    pub(crate) async fn release(&self, deliveries: Deliveries, after: Duration) -> Vec<Settled> {
        let settlement = |delivery: Delivery<_>| (delivery.handle, Settle::Release { after });
        within("settling", self.0.settle(deliveries.into_iter().map(settlement).collect())).await
    }

    pub(crate) async fn close(self) {
        within("closing", self.0.close(PATIENCE)).await;
    }
}

/// What was sent with each delivery.
pub(crate) fn payloads(deliveries: &Deliveries) -> Vec<String> {
    let text = |delivery: &Delivery<_>| String::from_utf8(delivery.message.payload().unwrap().to_vec()).unwrap();
    deliveries.iter().map(text).collect()
}

pub(crate) fn sorted(deliveries: &Deliveries) -> Vec<String> {
    let mut payloads = payloads(deliveries);
    payloads.sort_unstable();
    payloads
}
