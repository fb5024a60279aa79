#![doc = include_str!("mod.md")]

mod clock;
mod eventbridge;
mod fetch;
mod pause;
mod places;
mod sender;
mod service;
mod settle;
mod sns;
mod standard_webhooks;
mod stripe;

pub use self::{
    eventbridge::EventBridge,
    fetch::Fetch,
    sender::{NotAdmitted, Opened, Sender},
    service::Inbound,
    sns::Sns,
    standard_webhooks::StandardWebhooks,
    stripe::Stripe,
};
