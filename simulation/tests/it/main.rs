//! The conditions under which the simulation proves anything, and the lives in which it found a defect of idem.

#![allow(clippy::panic, clippy::unwrap_used, reason = "in a test anything unexpected is a failure")]

mod every_poll;
mod found;
mod repeatable;
mod rules;
mod shrinking;
