#![doc = include_str!("lib.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]
// The order of a hash map differs between two runs, and ./sim runs a life again from its seed alone.
#![warn(clippy::iter_over_hash_type)]

#[cfg(idem_bugs)]
pub mod bugs;
#[cfg(not(idem_bugs))]
mod bugs;
mod caught;
mod cleanup;
mod clock;
mod config;
mod config_error;
mod consumer;
pub mod dead_letter;
mod derive;
mod error;
pub mod failpoint;
mod handler;
mod handler_error;
mod hash;
pub mod inbox;
mod json;
pub mod key;
mod message;
mod message_type;
mod names;
mod once;
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
pub mod store;
pub mod telemetry;
mod unit;
mod worker;

pub use bytes::Bytes;
pub use uuid::Uuid;

/// For the crates of this workspace.
#[doc(hidden)]
pub use self::{
    once::operation::{Lender, Whereabouts},
    spawn::finished,
};

pub use self::{
    cleanup::{
        CleanupSettings, LastCleanup,
        runner::{Cleanup, CleanupReport, CleanupState, CleanupView},
    },
    config::{
        Concurrency, ConsumerSettings, DEAD_LETTER_PAYLOAD_BYTES_MAX, DEAD_LETTERS_BYTES_MAX, Effects,
        OlderThanRetention, OnConflict, OnUnkeepable, PAYLOAD_BYTES_CAP, PAYLOAD_BYTES_MAX, WorkerSettings,
    },
    config_error::ConfigError,
    consumer::{
        DedupConsumer,
        builder::DedupConsumerBuilder,
        set_aside::{Keep, SetAside},
    },
    dead_letter::{DeadLetter, DeadLetterId, Publisher, Reason, StoredDeadLetter},
    derive::IdForm,
    error::{BoxError, ErrorClass, SourceError, StoreError, chain},
    handler::{
        BatchAnswer, BatchHandler, BoxHandler, Handler,
        around::{Around, AroundFn, Next},
        function::{FnHandler, HandlerFn, JsonFn, JsonHandler, handler_fn, json_fn},
    },
    handler_error::{CannotRepeat, HandlerError, UnknownTypeError},
    hash::{
        HashFn, HashPayloadError, HashRules, JsonMembers, PayloadHash, PayloadHasher, RawPayload, Unhashed, WithType,
        hash_fn,
    },
    key::{KeyPolicy, KeySource},
    message::{Message, UNREADABLE_HEADERS, decode_error::DecodePayloadError, headers::Headers},
    message_type::TypePlace,
    names::{
        ConsumerName, IdempotencyKey, KeyError, OrderingKey, Origin, ParseNameError, Retention, Tenant,
        shown::{KeySecret, hide_keys_with},
    },
    once::{
        Ran, RunOnce, RunOnceError, WorkError, Working,
        builder::RunOnceBuilder,
        operation::{Begun, Operation, OperationTx},
    },
    outbox::event::{Destination, Event, PublishError},
    outcome::{ConflictKind, Decision, Durable, Failure},
    pause::Pause,
    policy::WaitCause,
    relay::{Relay, settings::Route},
    results::result::{NotKept, ResultBody, StoredResult},
    retry::RetryPolicy,
    router::Router,
    source::Source,
    span::{Exactly, Roughly},
    store::{
        ControlState, Store,
        claim::Recorded,
        tx::{HandingIn, Tx},
    },
    unit::answers::{Decided, KeyState},
    worker::{
        Worker,
        builder::WorkerBuilder,
        error::WorkerError,
        view::{
            Load, WorkerView,
            incidents::{Incident, IncidentKind},
            stats::Summary,
            waits::Wait,
        },
    },
};
pub use tokio_util::sync::CancellationToken;
