#![doc = include_str!("mod.md")]

mod clock;
mod eventbridge;
#[cfg(feature = "reqwest")]
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
    sender::{NotAdmitted, Opened, Sender},
    service::Inbound,
    sns::{Fetch, Sns},
    standard_webhooks::{Secret, StandardWebhooks},
    stripe::Stripe,
};
