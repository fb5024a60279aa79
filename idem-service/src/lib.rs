#![doc = include_str!("lib.md")]

mod admin;
#[cfg(feature = "amqp")]
pub mod amqp;
mod beside;
mod broker;
mod cleanup;
mod command_line;
mod config;
mod connections;
pub mod database;
mod descriptors;
mod exit;
mod flags;
#[cfg(feature = "http")]
mod http;
#[cfg(feature = "kafka")]
pub mod kafka;
mod key_secret;
mod keys;
mod kinds;
mod life;
mod logs;
mod metrics;
mod page;
mod private;
mod rates;
mod refusal;
mod relay;
mod run;
mod served;
mod service;
mod settings;
mod signals;
mod sizes;
mod spans;
#[cfg(feature = "sqs")]
pub mod sqs;
mod stack;
mod status;
mod stores;
mod values;
mod variables;
#[cfg(any(feature = "amqp", feature = "kafka", feature = "sqs"))]
mod worker_flags;

/// The programs in the guide compile.
#[cfg(doctest)]
mod guide {
    #[doc = include_str!("../../docs/guide/events-out.md")]
    struct EventsOut;
    #[doc = include_str!("../../docs/guide/keys-and-retention.md")]
    struct KeysAndRetention;
    #[doc = include_str!("../../docs/guide/situations.md")]
    struct Situations;
}

#[cfg(any(fuzzing, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;

pub use axum;
pub use clap;
pub use idem_core::{self, Effects};
#[cfg(feature = "http")]
pub use idem_http;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub use idem_sqlx;
#[cfg(feature = "tokio-postgres")]
pub use idem_tokio_postgres;

#[cfg(feature = "http")]
pub use self::http::{Api, HttpConfigured, HttpService, Opened};
pub use self::{
    broker::{Broker, Built, Lag, Own},
    exit::Exit,
    keys::key as key_rule,
    relay::relay,
    service::{Build, Configured, Handlers, Service},
    stores::{On, Stores},
};
