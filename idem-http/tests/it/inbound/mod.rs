//! Events that come in over HTTP, on a real server and a real database.

mod crowded;
mod faults;
pub(crate) mod fixture;
mod handled;
mod signed;
mod sns;
