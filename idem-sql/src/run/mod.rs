//! The code that runs the texts, written against a driver.

pub(crate) mod bookkeeping;
mod candidates;
pub(crate) mod claims;
pub(crate) mod cleaner;
pub(crate) mod driver;
pub(crate) mod headers;
pub(crate) mod host;
pub(crate) mod inbox;
pub(crate) mod limit;
pub(crate) mod migrator;
pub(crate) mod outbox;
mod postgres;
pub(crate) mod role_default;
pub(crate) mod row;
