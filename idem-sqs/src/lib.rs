#![doc = include_str!("lib.md")]

mod attach;
mod config;
mod dead_letter;
mod envelope;
mod error;
mod fifo;
mod keeper;
mod message;
mod queue;
mod receiver;
mod settle;
mod source;
mod state;

pub use aws_sdk_sqs;
pub use idem_core as core;

pub use self::{
    config::SqsOptions,
    dead_letter::SqsPublisher,
    envelope::Envelope,
    fifo::{deduplicated, deduplication_id},
    source::SqsSource,
    state::SqsHandle,
};
