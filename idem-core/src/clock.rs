//! The one place that asks the time. Deadlines use tokio's clock, which tests can pause and which never jumps.

use std::time::SystemTime;

/// The wall clock, for the age of messages and for what people read; never for expiry, which is the database's.
#[allow(clippy::disallowed_methods, reason = "this is the one place")]
pub(crate) fn wall() -> SystemTime {
    SystemTime::now()
}
