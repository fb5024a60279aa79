//! A consumer of the queue, as the tests drive it.

use idem_amqp::{AmqpOptions, AmqpSource};
use idem_core::{SourceError, source::Attached};
use idem_testkit::source_driver::SourceDriver;
pub(crate) use idem_testkit::source_driver::{sorted, within};

use crate::broker::Queue;

pub(crate) type Member = SourceDriver<AmqpSource>;

pub(crate) async fn join(options: &AmqpOptions) -> Member {
    SourceDriver::attach(options.build().unwrap()).await.unwrap()
}

/// The facts that a source of these options finds out. It is closed again.
pub(crate) async fn attached(options: &AmqpOptions) -> Result<Attached, SourceError> {
    let member = SourceDriver::attach(options.build().unwrap()).await?;
    let attached = member.attached.clone();
    member.close().await;
    Ok(attached)
}

/// The error with which a source of these options does not attach.
pub(crate) async fn refusal(options: &AmqpOptions) -> SourceError {
    SourceDriver::attach(options.build().unwrap()).await.unwrap_err()
}

/// Ends the member, whose unsettled messages come back, and looks whether there are any.
pub(crate) async fn assert_all_settled(member: Member, queue: &Queue) {
    member.close().await;
    assert_eq!(queue.declared().await.message_count(), 0, "something was not settled");
}

/// `000`, `001`, … in their order as text.
pub(crate) fn numbers(numbers: std::ops::Range<usize>) -> Vec<String> {
    numbers.map(|number| format!("{number:03}")).collect()
}
