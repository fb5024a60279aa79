//! Suites that show whether an implementation of one of idem's traits keeps its contract.

pub mod source;
pub mod store;
