//! A source, as the tests drive it.

use idem_core::SourceError;
use idem_sqs::{SqsOptions, SqsSource};
use idem_testkit::source_driver::{self, SourceDriver};
pub(crate) use idem_testkit::source_driver::{payloads, sorted, within};

pub(crate) type Deliveries = source_driver::Deliveries<SqsSource>;
pub(crate) type Member = SourceDriver<SqsSource>;

pub(crate) async fn join(options: &SqsOptions) -> Member {
    attach(options).await.unwrap()
}

pub(crate) async fn attach(options: &SqsOptions) -> Result<Member, SourceError> {
    SourceDriver::attach(options.build().unwrap()).await
}
