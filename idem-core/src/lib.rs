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
    cleanup::{
        CleanupSettings, LastCleanup,
        runner::{Cleanup, CleanupReport, CleanupState, CleanupView},
    },
    config::{
        Concurrency, ConsumerSettings, DEAD_LETTER_PAYLOAD_BYTES_MAX, DEAD_LETTERS_BYTES_MAX, Effects,
        OlderThanRetention, OnConflict, OnUnkeepable, PAYLOAD_BYTES_CAP, PAYLOAD_BYTES_MAX, WorkerSettings,
    },
    consumer::{
        DedupConsumer,
        answers::Decided,
        builder::DedupConsumerBuilder,
        guard::{Once, Running},
        run_once::{KeyState, Ran, RunOnce, RunOnceError, WorkError, Working},
        set_aside::{Keep, SetAside},
    },
    dead_letter::{DeadLetter, DeadLetterId, Publisher, Reason, StoredDeadLetter},
    error::{BoxError, ConfigError, ErrorClass, SourceError, StoreError},
    handler::{
        BatchAnswer, BatchHandler, BoxHandler, Handler, TypePlace,
        around::{Around, AroundFn, Next},
        error::{CannotRepeat, HandlerError, chain},
        function::{FnHandler, HandlerFn, JsonFn, JsonHandler, handler_fn, json_fn},
    },
    hash::{
        HashFn, HashPayloadError, HashRules, JsonMembers, PayloadHash, PayloadHasher, RawPayload, Unhashed, WithType,
        hash_fn,
    },
    key::{
        IdempotencyKey, KeyError, KeyPolicy, KeySource,
        shown::{KeySecret, hide_keys_with},
    },
    message::{
        ConsumerName, Message, OrderingKey, Origin, ParseNameError, Tenant, UNREADABLE_HEADERS,
        decode_error::DecodePayloadError, headers::Headers,
    },
    outbox::{
        event::{Destination, Event, PublishError},
        id::IdForm,
        relay::{Relay, settings::Route},
        result::{NotKept, ResultBody, StoredResult},
    },
    outcome::{ConflictKind, Decision, Durable, Failure},
    policy::WaitCause,
    retry::RetryPolicy,
    router::{Router, UnknownTypeError},
    source::Source,
    span::{Exactly, Roughly},
    store::{
        ControlState, Retention, Store,
        claim::Recorded,
        tx::{HandingIn, Tx},
    },
    worker::{
        Worker, WorkerError,
        builder::WorkerBuilder,
        pause::Pause,
        view::{
            Load, WorkerView,
            incidents::{Incident, IncidentKind},
            stats::Summary,
            waits::Wait,
        },
    },
};
pub use tokio_util::sync::CancellationToken;
