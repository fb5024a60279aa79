#![cfg_attr(feature = "publish", doc = include_str!("lib.md"))]
#![cfg_attr(
    not(feature = "publish"),
    doc = "Secrets and signatures of Standard Webhooks; the publisher is the feature `publish`."
)]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "publish")]
mod addresses;
#[cfg(feature = "publish")]
mod endpoint;
#[cfg(feature = "publish")]
mod line;
#[cfg(feature = "publish")]
mod lookups;
#[cfg(feature = "publish")]
mod places;
#[cfg(feature = "publish")]
mod publisher;
mod signature;

#[cfg(feature = "publish")]
pub use idem_core as core;

pub use self::signature::{ParseSecretError, Secret, sign, verify};
#[cfg(feature = "publish")]
pub use self::{
    endpoint::{Endpoint, Endpoints},
    publisher::WebhookPublisher,
};
