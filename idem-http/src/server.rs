//! Protected routes.

mod answer;
mod ask;
mod axum_layer;
mod builder;
mod counts;
mod digest;
mod error;
mod fingerprint;
mod flight;
#[cfg(any(fuzzing, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod gates;
mod key;
mod made;
mod problem;
mod profile;
mod request_key;
mod route;
mod run;
mod scope;
mod scoped_key;
mod step_error;
mod tenants;
mod verify_digest;

use std::{fmt, sync::Arc, time::Duration};

use http::HeaderName;
use idem_core::{KeyPolicy, Retention, RunOnce, StoreError, store::Store};
use tokio::sync::Semaphore;

pub use self::{
    answer::{ALLOWED_HEADERS, EXPOSED_HEADERS},
    ask::AskService,
    axum_layer::{Idem, IdempotencyLayer, Idempotent},
    builder::IdempotencyBuilder,
    counts::{RouteCounts, WaitingRepeats},
    digest::check_digests,
    fingerprint::{Fingerprint, HashSecret},
    profile::Profile,
    request_key::RequestKey,
    scope::Authenticated,
    scoped_key::ScopedKey,
    step_error::StepError,
    verify_digest::{DigestVerified, VerifiedBody, VerifyDigest},
};
use self::{builder::Limits, counts::Counts, fingerprint::Hashing, flight::Flights, scope::TenantFn, tenants::Tenants};

/// `Idempotency-Key` for the routes of a service: the effect of a request, the record of its key and its answer are committed in
/// one transaction.
///
/// One value serves all routes of a service, with one pool of connections. Cloning is cheap, and clones share everything.
pub struct Idempotency<S: Store>(pub(crate) Arc<Shared<S>>);

pub(crate) struct Shared<S: Store> {
    engine: RunOnce<S>,
    tenant: Arc<TenantFn>,
    hashings: Vec<Hashing>,
    profile: Profile,
    keys_for: Retention,
    key_policy: KeyPolicy,
    strict_keys: bool,
    wait: Duration,
    /// Whether a key that cannot be claimed is one whose request runs.
    waits_per_key: bool,
    waiting: Arc<Semaphore>,
    tenants: Arc<Tenants>,
    flights: Arc<Flights>,
    handler_deadline: Duration,
    limits: Limits,
    kept_headers: Vec<HeaderName>,
    answers_by_subject: bool,
    coded_after: bool,
    problem_types: String,
    counts: Counts,
    told_of_unused: std::sync::Once,
}

impl<S: Store> Clone for Idempotency<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S: Store> fmt::Debug for Idempotency<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Idempotency").field("engine", &self.0.engine).finish_non_exhaustive()
    }
}

impl<S: Store> Idempotency<S> {
    /// Begins the settings, with this name on this store. The name scopes the keys: all instances of a service have the same name.
    pub fn builder(store: S, name: &str) -> IdempotencyBuilder<S> {
        Self::builder_shared(Arc::new(store), name)
    }

    /// The same on a shared store.
    pub fn builder_shared(store: Arc<S>, name: &str) -> IdempotencyBuilder<S> {
        IdempotencyBuilder::new(store, name)
    }

    /// Checks the schema and registers the name. The first request does so too; calling this finds set-up errors at start-up.
    ///
    /// # Errors
    /// [`StoreError`] with the cure in its text.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn start(&self) -> Result<(), StoreError> {
        self.0.engine.start().await
    }

    /// How many requests that have claimed their key, or are about to, run in this process, with or without their client.
    #[must_use]
    pub fn running(&self) -> usize {
        self.0.flights.count()
    }

    /// Waits until no request runs in this process that has claimed its key, or is about to.
    ///
    /// A request that was begun goes on in a task of its own when its client is gone, and no server counts it among its connections. A
    /// process that stops waits for its server first, which takes nothing new, and then for this, as long as its stop may take:
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use idem_core::store::Store;
    /// # use idem_http::Idempotency;
    /// # async fn stop() {}
    /// # async fn serve<S: Store>(
    /// #     payments: &Idempotency<S>,
    /// #     listener: tokio::net::TcpListener,
    /// #     app: axum::Router,
    /// # ) -> std::io::Result<()> {
    /// axum::serve(listener, app).with_graceful_shutdown(stop()).await?;
    /// if tokio::time::timeout(Duration::from_secs(20), payments.idle()).await.is_err() {
    ///     tracing::warn!("{} requests are broken off and roll back", payments.running());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Those that are broken off leave nothing, but for what was committed, as in a crash: their clients ask again with their keys.
    /// Operations that were called through the [`engine`](Self::engine) are their callers' to wait for.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn idle(&self) {
        self.0.flights.none_left().await;
    }

    /// Whether the fingerprints of new records are made with a [secret](IdempotencyBuilder::hash_secret).
    #[must_use]
    pub fn is_keyed(&self) -> bool {
        matches!(self.0.hashings.first(), Some(Hashing::Keyed(_)))
    }

    /// For how long an expired record may be left to the cleanup, if the profile sets a time by which records are gone: 24 hours after
    /// their requests, in [`guardia`](Profile::guardia).
    #[must_use]
    pub fn cleanup_lag_max(&self) -> Option<Duration> {
        match (self.0.profile.keys_within, self.0.keys_for) {
            (Some((_, most)), Retention::For(time)) => Some((most + profile::OF_CLEANUP).saturating_sub(time)),
            (_, _) => None,
        }
    }

    /// The engine, for operations that do not come as HTTP requests and share the name of the keys; see
    /// [`RunOnce::once`]. Keys of requests are stored there joined with tenant and route.
    #[must_use]
    pub fn engine(&self) -> &RunOnce<S> {
        &self.0.engine
    }
}
