#![doc = include_str!("lib.md")]
// The order of a hash map differs between two runs, and ./sim runs a life again from its seed alone.
#![warn(clippy::iter_over_hash_type)]

mod binding;
#[cfg(idem_bugs)]
pub mod bugs;
#[cfg(not(idem_bugs))]
mod bugs;
mod caught;
mod cleanup;
mod clock;
mod config;
mod consumer;
pub mod dead_letter;
mod error;
pub mod failpoint;
mod handler;
mod hash;
mod json;
pub mod key;
mod message;
pub mod outbox;
mod outcome;
mod policy;
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
mod worker;

pub use bytes::Bytes;
pub use uuid::Uuid;

/// For the crates of this workspace.
#[doc(hidden)]
pub use self::spawn::finished;

pub use self::{
    cleanup::{Cleanup, CleanupReport, CleanupSettings, CleanupState, CleanupView, LastCleanup},
    config::{
        Concurrency, ConsumerSettings, DEAD_LETTER_PAYLOAD_BYTES_MAX, DEAD_LETTERS_BYTES_MAX, Effects,
        OlderThanRetention, OnConflict, OnUnkeepable, PAYLOAD_BYTES_CAP, PAYLOAD_BYTES_MAX, WorkerSettings,
    },
    consumer::{
        Decided, DedupConsumer, DedupConsumerBuilder, Keep, KeyState, Once, Ran, RunOnce, RunOnceError, Running,
        SetAside, WorkError, Working,
    },
    dead_letter::{DeadLetter, DeadLetterId, Publisher, Reason, StoredDeadLetter},
    error::{BoxError, ConfigError, ErrorClass, SourceError, StoreError},
    handler::{
        Around, AroundFn, BatchAnswer, BatchHandler, BoxHandler, CannotRepeat, FnHandler, Handler, HandlerError,
        HandlerFn, JsonFn, JsonHandler, Next, TypePlace, chain, handler_fn, json_fn,
    },
    hash::{
        HashFn, HashPayloadError, HashRules, JsonMembers, PayloadHash, PayloadHasher, RawPayload, Unhashed, WithType,
        hash_fn,
    },
    key::{IdempotencyKey, KeyError, KeyPolicy, KeySecret, KeySource, hide_keys_with},
    message::{
        ConsumerName, DecodePayloadError, Headers, Message, OrderingKey, Origin, ParseNameError, Tenant,
        UNREADABLE_HEADERS,
    },
    outbox::{Destination, Event, IdForm, NotKept, PublishError, Relay, ResultBody, Route, StoredResult},
    outcome::{ConflictKind, Decision, Durable, Failure},
    policy::WaitCause,
    retry::RetryPolicy,
    router::{Router, UnknownTypeError},
    source::Source,
    span::{Exactly, Roughly},
    store::{ControlState, HandingIn, Recorded, Retention, Store, Tx},
    worker::{Incident, IncidentKind, Load, Pause, Summary, Wait, Worker, WorkerBuilder, WorkerError, WorkerView},
};
pub use tokio_util::sync::CancellationToken;
