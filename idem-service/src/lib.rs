#![doc = include_str!("lib.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod admin;
#[cfg(feature = "amqp")]
mod amqp;
mod beside;
mod broker;
mod cleanup;
mod command_line;
mod config;
mod connections;
mod database;
mod descriptors;
mod exit;
mod flags;
#[cfg(feature = "http")]
mod http;
mod inbox;
#[cfg(feature = "kafka")]
mod kafka;
mod key_secret;
mod keys;
mod life;
mod logs;
mod metrics;
#[cfg(feature = "otel")]
mod otel;
mod page;
mod program;
mod rates;
mod refusal;
mod relay;
mod run;
mod runtime;
mod secret_files;
mod served;
mod service;
mod settings;
mod signals;
mod sizes;
mod spans;
#[cfg(feature = "sqs")]
mod sqs;
mod status;
pub mod values;
mod variables;
#[cfg(any(feature = "amqp", feature = "kafka", feature = "sqs"))]
mod worker_flags;

/// The programs in the guide compile.
#[cfg(doctest)]
mod guide {
    #[doc = include_str!("../../docs/guide/events-out.md")]
    struct EventsOut;
    #[doc = include_str!("../../docs/guide/inbox.md")]
    struct Inbox;
    #[doc = include_str!("../../docs/guide/keys-and-retention.md")]
    struct KeysAndRetention;
    #[doc = include_str!("../../docs/guide/situations.md")]
    struct Situations;
}

#[cfg(any(fuzzing, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;

#[cfg(feature = "axum")]
pub use axum;
pub use clap;
#[cfg(feature = "amqp")]
pub use idem_amqp;
pub use idem_core::{self, Effects};
#[cfg(feature = "dynamodb")]
pub use idem_dynamodb::{self, DynamoStore};
#[cfg(feature = "http")]
pub use idem_http;
#[cfg(feature = "kafka")]
pub use idem_kafka;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub use idem_sqlx;
#[cfg(feature = "postgres")]
pub use idem_sqlx::PostgresStore;
#[cfg(feature = "sqlite")]
pub use idem_sqlx::SqliteStore;
#[cfg(feature = "sqs")]
pub use idem_sqs;
#[cfg(feature = "tokio-postgres")]
pub use idem_tokio_postgres;

#[cfg(feature = "amqp")]
pub use self::amqp::Amqp;
#[cfg(feature = "http")]
pub use self::http::{HttpService, Opened};
#[cfg(feature = "kafka")]
pub use self::kafka::Kafka;
#[cfg(feature = "sqs")]
pub use self::sqs::Sqs;
pub use self::{
    broker::{Broker, Built, Own},
    database::{Database, DatabaseSettings},
    exit::Exit,
    keys::key as key_rule,
    program::FromArgs,
    relay::relay,
    service::Service,
};

/// The names that a worker's program begins with: `use idem_service::prelude::*;`.
pub mod prelude {
    pub use idem_core::{Effects, Event, Handler, HandlerError, Message, Tx, handler_fn, json_fn};

    #[cfg(feature = "amqp")]
    pub use crate::Amqp;
    #[cfg(feature = "dynamodb")]
    pub use crate::DynamoStore;
    #[cfg(feature = "http")]
    pub use crate::HttpService;
    #[cfg(feature = "kafka")]
    pub use crate::Kafka;
    #[cfg(feature = "postgres")]
    pub use crate::PostgresStore;
    pub use crate::Service;
    #[cfg(feature = "sqlite")]
    pub use crate::SqliteStore;
    #[cfg(feature = "sqs")]
    pub use crate::Sqs;
}
