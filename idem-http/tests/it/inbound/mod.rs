//! Events that come in over HTTP, on a real server and a real database.

pub(crate) mod fixture;
mod handled;
mod signed;
mod sns;
