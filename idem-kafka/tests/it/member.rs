//! A member of the group, as the tests drive it.

use idem_core::{SourceError, source::Delivery};
use idem_kafka::{KafkaOptions, KafkaSource};
use idem_testkit::source_driver::{self, SourceDriver};
pub(crate) use idem_testkit::source_driver::{payloads, within};

pub(crate) type Deliveries = source_driver::Deliveries<KafkaSource>;
pub(crate) type Member = SourceDriver<KafkaSource>;

pub(crate) async fn attach_when_reachable(options: KafkaOptions) -> Result<Member, SourceError> {
    SourceDriver::attach_when_reachable(options.build().unwrap()).await
}

pub(crate) async fn join(options: KafkaOptions) -> Member {
    SourceDriver::join(options.build().unwrap()).await
}

pub(crate) async fn attach(options: KafkaOptions) -> Result<Member, SourceError> {
    SourceDriver::attach(options.build().unwrap()).await
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
