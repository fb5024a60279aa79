//! A member of the group, as the tests drive it: a source, with bounded waits and words for what went wrong.

use std::time::Duration;

use idem_core::{
    Source, SourceError, chain,
    source::{Attached, Delivery, Received, Revocation, Settle, Settled},
};
use idem_kafka::{KafkaHandle, KafkaOptions, KafkaSource};
use idem_testkit::durables;

use crate::cluster::PATIENCE;

pub(crate) type Deliveries = Vec<Delivery<KafkaHandle>>;

pub(crate) struct Member(pub(crate) KafkaSource);

pub(crate) async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(answer) => answer,
        Err(_) => panic!("{what}: not within {PATIENCE:?}"),
    }
}

impl Member {
    /// As a worker does: brokers that could not be reached are asked again. On a busy machine a connection with TLS and a
    /// login may take longer than one try.
    pub(crate) async fn join(options: KafkaOptions) -> Self {
        let joined = async {
            loop {
                match Self::attach(options.clone()).await {
                    Err(SourceError::Unavailable { .. }) => {}
                    answer => return answer.unwrap().0,
                }
            }
        };
        within("joining", joined).await
    }

    pub(crate) async fn attach(options: KafkaOptions) -> Result<(Self, Attached), SourceError> {
        let source = options.build().unwrap();
        let attached = within("attaching", source.attach()).await?;
        Ok((Self(source), attached))
    }

    pub(crate) async fn receive(&self, max: usize) -> Result<Received<KafkaHandle>, SourceError> {
        within("receiving", self.0.receive(max)).await
    }

    /// Exactly `count` deliveries, and nothing else, but for a broker that cannot be reached for a moment.
    pub(crate) async fn take(&self, count: usize) -> Deliveries {
        let mut taken = Vec::new();
        while taken.len() < count {
            match self.receive(count - taken.len()).await {
                Ok(Received::Deliveries(deliveries)) => taken.extend(deliveries),
                Err(SourceError::Unavailable { .. }) => {}
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

    /// The text with which the source refuses to go on.
    pub(crate) async fn refusal(&self) -> String {
        loop {
            match self.receive(1000).await {
                Err(error @ SourceError::Refused { .. }) => return error.to_string(),
                Err(SourceError::Unavailable { .. }) | Ok(Received::Revoked(_) | Received::Deliveries(_)) => {}
                other => panic!("instead of a refusal came {other:?}"),
            }
        }
    }

    /// The first report of a broker that cannot be used whose text, with its causes, has these words.
    pub(crate) async fn trouble(&self, words: &str) -> String {
        let told = async {
            loop {
                match self.receive(1000).await {
                    Err(error @ SourceError::Unavailable { .. }) => {
                        let text = chain(&error).map(ToString::to_string).collect::<Vec<_>>().join(": ");
                        if text.contains(words) {
                            return text;
                        }
                    }
                    Ok(Received::Revoked(_) | Received::Deliveries(_)) => {}
                    other => panic!("instead of a report came {other:?}"),
                }
            }
        };
        within(words, told).await
    }

    pub(crate) async fn settle(&self, deliveries: Deliveries) -> Vec<Settled> {
        let proofs = durables(deliveries.len()).await;
        let settlement = |(delivery, proof): (Delivery<_>, _)| (delivery.handle, Settle::Acknowledge(proof));
        self.0.settle(deliveries.into_iter().zip(proofs).map(settlement).collect()).await
    }

    pub(crate) async fn acknowledge(&self, deliveries: Deliveries) {
        let answers = self.settle(deliveries).await;
        assert!(answers.iter().all(|answer| *answer == Settled::Settled), "acknowledging answered {answers:?}");
    }

    /// As a worker does: a group that has not taken the positions in time is asked again.
    pub(crate) async fn flush(&self) {
        let flushed = async { while self.0.flush().await.is_err() {} };
        within("flushing", flushed).await;
    }

    pub(crate) async fn idle(&self) {
        let idle = async {
            while !self.0.is_idle().await {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        within("being idle", idle).await;
    }

    pub(crate) async fn close(self) {
        within("closing", self.0.close(PATIENCE)).await;
    }
}

/// What was published with each delivery.
pub(crate) fn payloads(deliveries: &Deliveries) -> Vec<String> {
    let text = |delivery: &Delivery<_>| match delivery.message.payload() {
        Some(payload) => String::from_utf8(payload.to_vec()).unwrap(),
        None => "(none)".to_owned(),
    };
    deliveries.iter().map(text).collect()
}

/// The partition and offset of each delivery.
pub(crate) fn places(deliveries: &Deliveries) -> Vec<(i32, i64)> {
    let place = |delivery: &Delivery<_>| {
        let mut parts = delivery.message.origin().as_str().rsplit('/');
        let offset = parts.next().unwrap().parse().unwrap();
        (parts.next().unwrap().parse().unwrap(), offset)
    };
    deliveries.iter().map(place).collect()
}

/// Splits off the deliveries of one partition.
pub(crate) fn split(deliveries: Deliveries, partition: i32) -> (Deliveries, Deliveries) {
    let (theirs, others): (Vec<_>, Vec<_>) =
        deliveries.into_iter().map(|delivery| vec![delivery]).partition(|one| places(one)[0].0 == partition);
    (theirs.into_iter().flatten().collect(), others.into_iter().flatten().collect())
}
