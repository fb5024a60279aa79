//! [`Events`]: the statements on events, which each database has in its own dialect.

use std::future::Future;

use idem_core::outbox::EventName;

use crate::{exit::Failure, report::Table};

/// The statements of a database, each with its line in the audit trail.
pub(crate) trait Events {
    /// Those that exist among these: `number`, `key`, `destination`, `state` (by its number), `set_aside` (a relay found it stale),
    /// `first_sent_ago` and `receiver_keeps` in microseconds or NULL, `in_hand` and `may_be_sent`.
    fn found(&mut self, events: &[EventName]) -> impl Future<Output = Result<Table, Failure>>;

    /// `number` and `key` of those that have failed for a destination; `None` where there is no such destination.
    fn failed(&mut self, destination: &str) -> impl Future<Output = Result<Option<Table>, Failure>>;

    /// Notes that an event is read; answers how many there are.
    fn note_read(&mut self, event: &EventName, called: &str) -> impl Future<Output = Result<i64, Failure>>;

    fn described(&mut self, event: &EventName) -> impl Future<Output = Result<Table, Failure>>;

    /// `payload`, in hexadecimal digits, and `headers`.
    fn content(&mut self, event: &EventName) -> impl Future<Output = Result<Table, Failure>>;

    /// Lets them go; where stale ones are meant, the time for which their receivers know a copy starts again.
    fn retry(&mut self, events: &[EventName], with_stale: bool) -> impl Future<Output = Result<i64, Failure>>;

    fn skip(&mut self, events: &[EventName], because: &str) -> impl Future<Output = Result<i64, Failure>>;

    /// Answers how many destinations there are of this name.
    fn pause(&mut self, destination: &str, reason: &str) -> impl Future<Output = Result<i64, Failure>>;

    /// `destination` and `because` of those that are paused, as the trail has it.
    fn paused(&mut self) -> impl Future<Output = Result<Table, Failure>>;

    fn resume(&mut self, destination: &str) -> impl Future<Output = Result<i64, Failure>>;
}
