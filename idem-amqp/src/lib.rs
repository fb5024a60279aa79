#![doc = include_str!("lib.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod attach;
mod channel;
mod confirm;
mod connect;
mod error;
mod events;
mod frames;
mod guard;
mod management;
mod message;
mod options;
mod prefetch;
mod properties;
mod publisher;
mod retry;
mod source;
mod state;
mod wire;

#[cfg(any(fuzzing, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;

pub use idem_core;

pub use self::{
    options::{AmqpOptions, DeliveryLimit},
    publisher::AmqpPublisher,
    source::AmqpSource,
    state::AmqpHandle,
};
