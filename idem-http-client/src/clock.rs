//! The clock of the times that come from elsewhere.

use std::time::SystemTime;

#[allow(
    clippy::disallowed_methods,
    reason = "the time of a first try comes from other processes, and machines are suspended"
)]
pub(super) fn wall_clock() -> SystemTime {
    SystemTime::now()
}
