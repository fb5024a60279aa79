//! The code that the tests share.

pub(crate) mod child;
pub(crate) mod database;
pub(crate) mod postgres;
