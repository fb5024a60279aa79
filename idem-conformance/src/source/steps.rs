//! Steps that cases share: those that need the fixture.

use idem_core::{Message, Source};

use super::subject::SourceUnderTest;
use idem_testkit::source_driver::{SourceDriver, within};

/// The steps of a [`SourceDriver`] that need the fixture.
pub(super) trait Steps<S: Source>: Sized {
    async fn open(subject: &impl SourceUnderTest<Source = S>) -> Self;

    /// A released message is delivered again: to this source, or to its successor where the broker keeps positions and
    /// so gives nothing back before the assignment ends.
    async fn after_release(self, subject: &impl SourceUnderTest<Source = S>) -> Self;

    /// Crashes, and starts again.
    async fn restart(self, subject: &impl SourceUnderTest<Source = S>) -> Self;
}

impl<S: Source> Steps<S> for SourceDriver<S> {
    async fn open(subject: &impl SourceUnderTest<Source = S>) -> Self {
        Self::join(subject.source().await).await
    }

    async fn after_release(self, subject: &impl SourceUnderTest<Source = S>) -> Self {
        if subject.features().individual_settle { self } else { self.restart(subject).await }
    }

    async fn restart(self, subject: &impl SourceUnderTest<Source = S>) -> Self {
        subject.crash(self.source).await;
        Self::open(subject).await
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

/// `0`, `1`, … as [`publish`] makes them, sorted as text.
pub(super) fn numbers(count: usize) -> Vec<String> {
    let mut numbers: Vec<String> = (0..count).map(|number| number.to_string()).collect();
    numbers.sort_unstable();
    numbers
}
