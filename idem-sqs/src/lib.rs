#![doc = include_str!("lib.md")]

mod attach;
mod envelope;
mod error;
mod events;
mod fifo;
mod keeper;
mod message;
mod options;
mod publisher;
mod queue;
mod receiver;
mod settle;
mod source;
mod state;

pub use aws_sdk_sqs;
pub use idem_core;

pub use self::{
    envelope::Envelope,
    fifo::{deduplicated, deduplication_id},
    options::SqsOptions,
    publisher::SqsPublisher,
    source::SqsSource,
    state::SqsHandle,
};
