//! [`Idempotency`], and what its clones share.

use std::{fmt, sync::Arc, time::Duration};

use http::HeaderName;
use idem_core::{Retention, RunOnce, Store, StoreError, key::KeyPolicy};
use tokio::sync::Semaphore;

use super::{
    counts::{Counts, RouteCounts, WaitingRepeats},
    fingerprint::Hashing,
    flight::Flights,
    profile::{self, Profile},
    scope::TenantFn,
    tenants::Tenants,
};

/// `Idempotency-Key` for the routes of a service: the effect of a request, the record of its key and its answer are committed in
/// one transaction.
///
/// One value serves all routes of a service, with one pool of connections. Cloning is cheap, and clones share everything.
pub struct Idempotency<S: Store>(pub(crate) Arc<Shared<S>>);

pub(crate) struct Shared<S: Store> {
    pub(super) engine: RunOnce<S>,
    pub(super) tenant: Arc<TenantFn>,
    pub(super) hashings: Vec<Hashing>,
    pub(super) profile: Profile,
    pub(super) keys_for: Retention,
    pub(super) key_policy: KeyPolicy,
    pub(super) strict_keys: bool,
    pub(super) wait: Duration,
    /// Whether a key that cannot be claimed is one whose request runs.
    pub(super) waits_per_key: bool,
    pub(super) waiting: Arc<Semaphore>,
    pub(super) tenants: Arc<Tenants>,
    pub(super) flights: Arc<Flights>,
    pub(super) handler_deadline: Duration,
    pub(super) limits: Limits,
    pub(super) kept_headers: Vec<HeaderName>,
    pub(super) answers_by_subject: bool,
    pub(super) coded_after: bool,
    pub(super) problem_types: String,
    pub(super) counts: Counts,
    pub(super) told_of_unused: std::sync::Once,
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

/// The limits of requests and responses.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) body_bytes_max: usize,
    pub(crate) body_deadline: Duration,
    pub(crate) headers_max: usize,
    pub(crate) headers_bytes_max: usize,
    pub(crate) response_bytes_max: usize,
}

impl<S: Store> Idempotency<S> {
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
    /// # use idem_core::Store;
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

    /// Whether the fingerprints of new records are made with a [secret](crate::IdempotencyBuilder::hash_secret).
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
    /// [`RunOnce::begin`]. Keys of requests are stored there joined with tenant and route.
    #[must_use]
    pub fn engine(&self) -> &RunOnce<S> {
        &self.0.engine
    }

    /// The counts of each route that had requests, in the order of their names.
    #[must_use]
    pub fn routes(&self) -> Vec<RouteCounts> {
        self.0.counts.routes()
    }

    /// How many repeats wait now.
    #[must_use]
    pub fn waiting(&self) -> WaitingRepeats {
        self.0.counts.waiting()
    }
}
