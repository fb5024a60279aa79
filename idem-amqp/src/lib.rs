#![doc = include_str!("lib.md")]

mod channel;
mod config;
mod confirm;
mod error;
mod management;
mod message;
mod source;
mod state;
mod topology;

pub use idem_core as core;

pub use self::{config::AmqpOptions, confirm::AmqpPublisher, source::AmqpSource, state::AmqpHandle};
