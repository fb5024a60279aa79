#![doc = include_str!("lib.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]
// The order of a hash map differs between two runs, and ./sim runs a life again from its seed alone.
#![warn(clippy::iter_over_hash_type)]

#[cfg(idem_bugs)]
pub mod bugs;
#[cfg(not(idem_bugs))]
mod bugs;
mod caught;
pub mod cleanup;
mod clock;
pub mod config;
mod config_error;
pub mod consumer;
pub mod copies;
pub mod dead_letter;
mod derive;
mod error;
pub mod failpoint;
pub mod handler;
mod handler_error;
pub mod hash;
pub mod inbox;
mod json;
pub mod key;
pub mod message;
mod message_type;
mod names;
pub mod once;
pub mod outbox;
mod outcome;
mod pause;
mod policy;
pub mod relay;
pub mod results;
mod retry;
mod router;
#[cfg(feature = "failpoints")]
pub mod scratch;
mod setters;
pub mod source;
mod span;
mod spawn;
pub mod standing;
pub mod store;
pub mod telemetry;
mod unit;
pub mod worker;

pub use bytes::Bytes;
pub use tokio_util::sync::CancellationToken;
pub use uuid::Uuid;

pub use self::{
    config::{Concurrency, Effects},
    config_error::ConfigError,
    consumer::DedupConsumer,
    error::{BoxError, ErrorClass, SourceError, StoreError},
    handler::{
        Handler,
        function::{handler_fn, json_fn},
    },
    handler_error::HandlerError,
    message::Message,
    names::{ConsumerName, IdempotencyKey, Retention, Tenant},
    once::RunOnce,
    outbox::event::Event,
    outcome::Decision,
    results::result::ResultBody,
    router::Router,
    source::Source,
    store::{Store, tx::Tx},
    worker::Worker,
};

/// The names that a program begins with: `use idem_core::prelude::*;`.
pub mod prelude {
    pub use crate::{
        config::Effects,
        consumer::DedupConsumer,
        handler::{
            Handler,
            function::{handler_fn, json_fn},
        },
        handler_error::HandlerError,
        message::Message,
        once::RunOnce,
        outbox::event::Event,
        outcome::Decision,
        results::result::ResultBody,
        store::tx::Tx,
        worker::Worker,
    };
}

/// For the crates of this workspace.
#[doc(hidden)]
pub mod internal {
    pub use crate::{
        error::chain,
        handler::{
            around::AroundFn,
            function::{FnHandler, HandlerFn, JsonFn, JsonHandler},
        },
        message::UNREADABLE_HEADERS,
        message_type::TypePlace,
        once::operation::{Lender, Whereabouts},
        span::{Exactly, Roughly},
        spawn::finished,
    };
}
