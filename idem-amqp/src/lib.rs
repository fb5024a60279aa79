#![doc = include_str!("lib.md")]

mod channel;
mod config;
mod confirm;
mod dead_letter;
mod error;
mod frames;
mod guard;
mod management;
mod message;
mod properties;
mod retry;
mod source;
mod state;
mod topology;

pub use idem_core as core;

pub use self::{
    config::{AmqpOptions, DeliveryLimit},
    dead_letter::AmqpPublisher,
    source::AmqpSource,
    state::AmqpHandle,
};
