#![doc = include_str!("mod.md")]

mod addresses;
mod endpoint;
mod line;
mod lookups;
mod places;
mod publisher;

pub use self::{
    endpoint::{Endpoint, Endpoints},
    publisher::WebhookPublisher,
};
