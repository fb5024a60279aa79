#![doc = include_str!("lib.md")]

mod addresses;
mod endpoint;
mod publisher;
mod signature;

pub use idem_core as core;

pub use self::{
    endpoint::{Endpoint, Endpoints},
    publisher::WebhookPublisher,
    signature::{ParseSecretError, Secret},
};
