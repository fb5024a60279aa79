//! One unit of work: the transaction in which keys are claimed, handlers run and events are written, and which commits all of it or
//! nothing. It knows none of its callers.

pub(crate) mod alone;
pub(crate) mod answers;
mod append;
mod behind;
mod claim;
pub(crate) mod close;
pub(crate) mod decide;
mod destinations;
pub(crate) mod engine;
mod fold;
pub(crate) mod handlers;
pub(crate) mod identify;
pub(crate) mod kept;
pub(crate) mod lookup;
pub(crate) mod open;
pub(crate) mod open_units;
#[cfg(idem_bugs)]
mod planted;
mod registration;
pub(crate) mod run;
pub(crate) mod session;
pub(crate) mod setters;
pub(crate) mod setup;
pub(crate) mod unused_tx;
