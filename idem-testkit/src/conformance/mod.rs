//! Suites that show whether an implementation of one of idem's traits keeps its contract.

pub mod postgres;
pub mod source;
pub mod store;
