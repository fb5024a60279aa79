//! Builds an [`Idempotency`], refusing settings that break a rule.

use std::{fmt, sync::Arc, time::Duration};

use http::{HeaderName, request::Parts};
use idem_core::{
    ConfigError, Effects, Retention, RunOnce, Store,
    internal::Exactly,
    key::{Header, KEY_FIELD, KeyPolicy},
    once::RunOnceBuilder,
    store::IntoStore,
};
use tokio::sync::Semaphore;

use super::{
    answer::{self, KEPT_BY_DEFAULT},
    counts::Counts,
    fingerprint::{self, HashSecret, Hashing},
    flight::Flights,
    profile::Profile,
    scope::{Authenticated, SenderFn, TenantFn},
    state::{Idempotency, Limits, Shared},
    tenants::{Shares, Tenants},
};

type EngineFn<S> = dyn FnOnce(RunOnceBuilder<S>) -> RunOnceBuilder<S>;

/// Settings of an [`Idempotency`].
pub struct IdempotencyBuilder<S: Store> {
    store: Arc<S>,
    name: String,
    is_single: bool,
    tenant: Option<Arc<TenantFn>>,
    secrets: Vec<HashSecret>,
    plain_hashes: bool,
    profile: Profile,
    keys_for: Option<Retention>,
    key_policy: Option<KeyPolicy>,
    strict_keys: bool,
    wait: Option<Duration>,
    waiting_connections: usize,
    lanes: usize,
    tenant_requests_max: usize,
    tenant_rate_max: Option<u32>,
    tenant_connections_max: Option<usize>,
    requests_bytes_max: usize,
    queue_deadline: Duration,
    handler_deadline: Duration,
    limits: Limits,
    kept_headers: Vec<HeaderName>,
    answers_by_subject: bool,
    coded_after: bool,
    problem_types: String,
    engine: Vec<Box<EngineFn<S>>>,
}

impl<S: Store> Idempotency<S> {
    /// Begins the settings, with this name on this store, or on an [`Arc`] of one that others use too. The name scopes the keys:
    /// all instances of a service have the same name.
    pub fn builder(store: impl IntoStore<S>, name: &str) -> IdempotencyBuilder<S> {
        IdempotencyBuilder::new(store.into_store(), name)
    }
}

impl<S: Store> fmt::Debug for IdempotencyBuilder<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyBuilder")
            .field("name", &self.name)
            .field("profile", &self.profile.name)
            .finish_non_exhaustive()
    }
}

impl<S: Store> IdempotencyBuilder<S> {
    pub(super) fn new(store: Arc<S>, name: &str) -> Self {
        let lanes = store.capabilities().lanes_max.unwrap_or(usize::MAX).min(16);
        Self {
            store,
            name: name.to_owned(),
            is_single: false,
            tenant: None,
            secrets: Vec::new(),
            plain_hashes: false,
            profile: Profile::ietf(),
            keys_for: None,
            key_policy: None,
            strict_keys: false,
            wait: None,
            waiting_connections: 4,
            lanes,
            tenant_requests_max: 1_000,
            tenant_rate_max: None,
            tenant_connections_max: None,
            requests_bytes_max: 256 << 20,
            queue_deadline: Duration::from_secs(30),
            handler_deadline: Duration::from_secs(30),
            limits: Limits {
                body_bytes_max: 1 << 20,
                body_deadline: Duration::from_secs(10),
                headers_max: 100,
                headers_bytes_max: 16 << 10,
                response_bytes_max: idem_core::results::RESULT_BYTES_MAX,
            },
            kept_headers: KEPT_BY_DEFAULT.to_vec(),
            answers_by_subject: false,
            coded_after: false,
            problem_types: "https://github.com/idem-rs/idem/blob/main/docs/http-problems.md#".to_owned(),
            engine: Vec::new(),
        }
    }

    /// Sets the function that identifies the sender of a request, by an extension that the application's own layer has set or by a
    /// token that it checks. `None` is answered with 401, before anything is read or looked up. This,
    /// [`tenant_with`](Self::tenant_with) or [`single_tenant`](Self::single_tenant) is required, because two customers must never share a key.
    #[must_use]
    pub fn tenant(mut self, function: impl Fn(&Parts) -> Option<Authenticated> + Send + Sync + 'static) -> Self {
        self.tenant = Some(Arc::new(TenantFn::AtOnce(Box::new(function))));
        self
    }

    /// The same by an async function that gets the application's state, as when a session is looked up. It may use the application's own
    /// extractors. An error is answered with 503, and logged. The function limits its own time.
    ///
    /// ```
    /// # use axum::{extract::FromRequestParts, http::{StatusCode, request::Parts}};
    /// # use idem_core::{BoxError, Store};
    /// # use idem_http::{Authenticated, IdempotencyBuilder};
    /// # #[derive(Clone)]
    /// # struct App;
    /// # struct Caller { shop: String }
    /// # impl FromRequestParts<App> for Caller {
    /// #     type Rejection = StatusCode;
    /// #     async fn from_request_parts(_: &mut Parts, _: &App) -> Result<Self, StatusCode> { Err(StatusCode::UNAUTHORIZED) }
    /// # }
    /// async fn shop(app: App, parts: &mut Parts) -> Result<Option<Authenticated>, BoxError> {
    ///     let caller = Caller::from_request_parts(parts, &app).await.ok();
    ///     Ok(caller.map(|caller| Authenticated::tenant(caller.shop)))
    /// }
    ///
    /// # fn with<S: Store>(builder: IdempotencyBuilder<S>, app: App) -> IdempotencyBuilder<S> {
    /// builder.tenant_with(app, shop)
    /// # }
    /// ```
    #[must_use]
    pub fn tenant_with<A, F>(mut self, state: A, function: F) -> Self
    where
        A: Clone + Send + Sync + 'static,
        F: for<'p> SenderFn<A, &'p mut Parts>,
    {
        self.tenant = Some(Arc::new(TenantFn::asks(state, function)));
        self
    }

    /// Treats all callers as one tenant, for a service behind another one or for one customer.
    #[must_use]
    pub fn single_tenant(self) -> Self {
        Self { is_single: true, ..self.tenant(|_| Some(Authenticated::tenant(""))) }
    }

    /// Adds a secret for fingerprints. The first secret makes the fingerprints of new records, and the others are for older ones and for
    /// those of instances that have [another one in front](HashSecret). This or [`plain_hashes`](Self::plain_hashes) is required.
    #[must_use]
    pub fn hash_secret(mut self, secret: HashSecret) -> Self {
        self.secrets.push(secret);
        self
    }

    /// Makes fingerprints plain SHA-256, for bodies without data that must not be guessed from its hash, such as a card number
    /// (PCI DSS 3.5.1.1). Where there is a secret too, it makes the fingerprints of new records, and those of the time before it are
    /// known all the same.
    #[must_use]
    pub fn plain_hashes(mut self) -> Self {
        self.plain_hashes = true;
        self
    }

    /// Sets the profile. Defaults to [`Profile::ietf`].
    #[must_use]
    pub fn profile(mut self, profile: Profile) -> Self {
        self.profile = profile;
        self
    }

    /// Sets how long keys are known: a repeat in that time has no effect. The profile has the default.
    #[must_use]
    pub fn keys_for(mut self, retention: Retention) -> Self {
        self.keys_for = Some(retention);
        self
    }

    /// Sets the form that keys must have. The profile has the default. Keys of another form are refused; all others are compared as
    /// bytes, so that one UUID in two cases is two keys.
    #[must_use]
    pub fn key_policy(mut self, policy: KeyPolicy) -> Self {
        self.key_policy = Some(policy);
        self
    }

    /// Accepts only keys that are quoted strings of RFC 9651, as in the IETF's draft. Most clients send keys without quotes.
    #[must_use]
    pub fn strict_keys(mut self) -> Self {
        self.strict_keys = true;
        self
    }

    /// Sets how long a repeat waits for the first request to end before it is answered with 409, up to a minute. It waits in
    /// memory; if another process runs the first one, [some](Self::waiting_connections) wait at the database. The profile has the
    /// default: no wait in `ietf` and `stripe`, 2 seconds in `guardia`.
    #[must_use]
    pub fn wait_for_owner(mut self, wait: Duration) -> Self {
        self.wait = Some(wait);
        self
    }

    /// Sets how many requests may wait at the database for one that another process runs, after a first wait of half a second, which
    /// each has by itself, on its lane, to learn that the key is held; the others queue in memory. Defaults to 4.
    #[must_use]
    pub fn waiting_connections(mut self, connections: usize) -> Self {
        self.waiting_connections = connections;
        self
    }

    /// Sets how many requests of all routes run at once, each on its own connection. Defaults to 16, or to the store's limit if
    /// that is lower.
    #[must_use]
    pub fn lanes(mut self, lanes: usize) -> Self {
        self.lanes = lanes;
        self
    }

    /// Sets how many requests of one tenant may be in progress at once, repeats included; more are answered with 429. Defaults to 1,000.
    #[must_use]
    pub fn tenant_requests_max(mut self, requests: usize) -> Self {
        self.tenant_requests_max = requests;
        self
    }

    /// Sets how many requests of one tenant may come in a second, as a mean, repeats and questions about keys included; those that come
    /// sooner are answered with 429 before their body is read. After a pause as many may come at once, and the next ones as the time
    /// passes, so up to one less than twice as many within that second. Each process counts by
    /// itself, so a tenant has this rate in every instance. Defaults to no limit.
    #[must_use]
    pub fn tenant_rate_max(mut self, requests: u32) -> Self {
        self.tenant_rate_max = Some(requests);
        self
    }

    /// Sets how many connections the requests of one tenant may use at once; further requests queue. Defaults to all
    /// [lanes](Self::lanes) with a single tenant, and to all but a quarter of them where there are several, which leaves one at least to
    /// others. A store with one lane has none to leave.
    #[must_use]
    pub fn tenant_connections_max(mut self, connections: usize) -> Self {
        self.tenant_connections_max = Some(connections);
        self
    }

    /// Sets how many bytes of headers and bodies all requests in progress may hold together, repeats that wait included, since one of
    /// those runs if the first leaves nothing; a single tenant may hold all of it, one of several three quarters. A request beyond it is
    /// answered with 503. Defaults to 256 MiB.
    #[must_use]
    pub fn requests_bytes_max(mut self, bytes: usize) -> Self {
        self.requests_bytes_max = bytes;
        self
    }

    /// Sets how long a request may queue for a connection; then it is answered with 503, without having run. Defaults to 30 seconds.
    #[must_use]
    pub fn queue_deadline(mut self, deadline: Duration) -> Self {
        self.queue_deadline = deadline;
        self
    }

    /// Sets how long a handler may take. Defaults to 30 seconds.
    #[must_use]
    pub fn handler_deadline(mut self, deadline: Duration) -> Self {
        self.handler_deadline = deadline;
        self
    }

    /// Sets the largest body of a request, in bytes; a larger one is answered with 413. Defaults to 1 MiB.
    #[must_use]
    pub fn body_bytes_max(mut self, bytes: usize) -> Self {
        self.limits.body_bytes_max = bytes;
        self
    }

    /// Sets how long a body may take to arrive; a slower one is answered with 408. Defaults to 10 seconds.
    #[must_use]
    pub fn body_deadline(mut self, deadline: Duration) -> Self {
        self.limits.body_deadline = deadline;
        self
    }

    /// Sets the most bytes of a request's header names and values; more are answered with 431. Defaults to 16 KiB. In addition, no
    /// request may have more than 100 headers.
    #[must_use]
    pub fn headers_bytes_max(mut self, bytes: usize) -> Self {
        self.limits.headers_bytes_max = bytes;
        self
    }

    /// Sets the largest body of a response, in bytes; a larger one is answered with 500, and its effects are rolled back. Defaults to
    /// 256 KiB.
    #[must_use]
    pub fn response_bytes_max(mut self, bytes: usize) -> Self {
        self.limits.response_bytes_max = bytes;
        self
    }

    /// Also keeps this header of responses, in addition to `content-type`, `location`, `etag`, `content-language`, `content-location` and
    /// `link`.
    #[must_use]
    pub fn keeps_header(mut self, name: HeaderName) -> Self {
        self.kept_headers.push(name);
        self
    }

    /// Gives an answer only to the [subject](Authenticated::with_subject) whose request was the first; another subject of the tenant gets
    /// 403. Needs a [secret](Self::hash_secret).
    ///
    /// A caller without a subject is the tenant itself: it may [ask](crate::Idempotency::asks) about each of the tenant's keys, and read the
    /// answer. Give each caller a subject where that is not meant.
    ///
    /// Set it before the first request. Later, a subject that repeats a request from before gets 403 until its record is gone, and during
    /// the deploy an instance without it answers 503 to repeats of requests to one that has it. Nothing is done twice.
    #[must_use]
    pub fn answers_by_subject(mut self) -> Self {
        self.answers_by_subject = true;
        self
    }

    /// Says that a layer outside of idem's changes the bytes of responses, as compression does. They then have no `Content-Digest`, which
    /// would be of other bytes than those that are sent.
    #[must_use]
    pub fn responses_are_coded_after(mut self) -> Self {
        self.coded_after = true;
        self
    }

    /// Sets the beginning of a problem's `type`, which the problem's name completes. Defaults to a page of this project.
    #[must_use]
    pub fn problem_types(mut self, prefix: &str) -> Self {
        self.problem_types = prefix.to_owned();
        self
    }

    /// Changes other settings of the engine, such as the destinations of events, sealing of answers, and how long answers are kept. How long
    /// keys are known is set by [`keys_for`](Self::keys_for) alone.
    ///
    /// ```
    /// # use idem_core::{Store, outbox::Destination};
    /// # fn with_events<S: Store>(builder: idem_http::IdempotencyBuilder<S>) -> idem_http::IdempotencyBuilder<S> {
    /// builder.engine(|engine| engine.publish_to(["payments"]).events_max(8))
    /// # }
    /// ```
    #[must_use]
    pub fn engine(mut self, settings: impl FnOnce(RunOnceBuilder<S>) -> RunOnceBuilder<S> + 'static) -> Self {
        self.engine.push(Box::new(settings));
        self
    }

    /// Builds the [`Idempotency`]. It does not connect yet.
    ///
    /// # Errors
    /// [`ConfigError`] with field, value and rule.
    pub fn build(self) -> Result<Idempotency<S>, ConfigError> {
        let rule = "two customers must never meet on one key: call .tenant(…) or .tenant_with(…), or .single_tenant() where there is one";
        let tenant = self.tenant.clone().ok_or_else(|| ConfigError::new("tenant", "not set", rule))?;
        let rule =
            "fingerprints are made with a secret: call .hash_secret(…), or .plain_hashes() where bodies are no secret";
        let plain = self.plain_hashes.then_some(Hashing::Plain);
        // In whatever order they were named, plain hashes are for older records only.
        let hashings: Vec<_> = self.secrets.iter().cloned().map(Hashing::Keyed).chain(plain).collect();
        let rules = fingerprint::rules(&hashings).ok_or_else(|| ConfigError::new("hash_secret", "not set", rule))?;
        self.check()?;
        let capabilities = self.store.capabilities();
        let keys_for = self.keys_for.unwrap_or(self.profile.keys_for);
        // A claim waits at the database only briefly; longer waits are in memory. Where one unit writes at a time, the wait is for the
        // database and not for the key.
        let busy = if capabilities.waits_per_key { Duration::from_millis(500) } else { Duration::from_secs(5) };
        let engine = RunOnce::builder(Arc::clone(&self.store), &self.name)
            .effects(Effects::InTransaction)
            .allow_final_errors()
            .handler_name("http")
            .key_source(Header::new(KEY_FIELD))
            .hash_rules(rules)
            .busy_timeout(busy)
            .handler_deadline(self.handler_deadline)
            .lanes(self.lanes)
            // The headers count too.
            .keep_results(self.limits.response_bytes_max.saturating_add(16 << 10));
        let engine = self.engine.into_iter().fold(engine, |engine, settings| settings(engine));
        // Answers state how long keys are known, so no other setting may change it.
        let engine = engine.retention(keys_for).build()?;
        let connections = self.tenant_connections_max.unwrap_or(if self.is_single {
            self.lanes
        } else {
            // One at least, wherever there are two.
            self.lanes - (self.lanes / 4).max(usize::from(self.lanes > 1))
        });
        let bytes_max = self.requests_bytes_max;
        let bytes = if self.is_single { bytes_max } else { bytes_max - bytes_max / 4 };
        let (requests, rate) = (self.tenant_requests_max, self.tenant_rate_max);
        let shares = Shares { requests, rate, runs: connections, bytes };
        Ok(Idempotency(Arc::new(Shared {
            counts: Counts::new(engine.name().as_str(), self.waiting_connections),
            told_of_unused: std::sync::Once::new(),
            engine,
            tenant,
            hashings,
            wait: self.wait.unwrap_or(self.profile.wait),
            waits_per_key: capabilities.waits_per_key,
            key_policy: self.key_policy.unwrap_or(self.profile.key_policy),
            profile: self.profile,
            keys_for,
            strict_keys: self.strict_keys,
            waiting: Arc::new(Semaphore::new(self.waiting_connections)),
            tenants: Arc::new(Tenants::new(shares, self.lanes, bytes_max, self.queue_deadline)),
            flights: Arc::new(Flights::default()),
            handler_deadline: self.handler_deadline,
            limits: self.limits,
            kept_headers: self.kept_headers,
            answers_by_subject: self.answers_by_subject,
            coded_after: self.coded_after,
            problem_types: self.problem_types,
        })))
    }

    fn check(&self) -> Result<(), ConfigError> {
        if let Some((least, most)) = self.profile.keys_within {
            let rule = "this profile keeps keys for 2 to 24 hours, and the last one is left to the cleanup: at most 23";
            let keys_for = self.keys_for.unwrap_or(self.profile.keys_for);
            let value = match keys_for {
                Retention::For(time) if (least..=most).contains(&time) => None,
                Retention::For(time) => Some(Exactly(time).to_string()),
                Retention::Forever => Some("for ever".to_owned()),
            };
            if let Some(value) = value {
                return Err(ConfigError::new("keys_for", value, rule));
            }
        }
        if let Some(number) = fingerprint::shared_number(&self.secrets) {
            let rule = "two different secrets have this number, by which records tell them apart: give each its own";
            return Err(ConfigError::new("hash_secret", number, rule));
        }
        if self.answers_by_subject && self.secrets.is_empty() {
            let rule = "with plain hashes it tells no subjects apart, because a name with another's hash can be found by trying: call \
                        .hash_secret(…), or give --hash-secret 1=FILE";
            return Err(ConfigError::new("answers_by_subject", "set", rule));
        }
        if let Some(name) = self.kept_headers.iter().find(|name| !answer::may_be_kept(name)) {
            let rule = "this header is for one connection, client or moment: no repeat may get it";
            return Err(ConfigError::new("keeps_header", name, rule));
        }
        if let Some(wait) = self.wait.filter(|wait| *wait > Duration::from_secs(60)) {
            return Err(ConfigError::span("wait_for_owner", wait, "it must be at most a minute"));
        }
        if let Some(rate) = self.tenant_rate_max.filter(|rate| !(1..=1_000_000).contains(rate)) {
            return Err(ConfigError::new("tenant_rate_max", rate, "it must be from 1 to 1,000,000 a second"));
        }
        for (field, value) in [
            ("waiting_connections", self.waiting_connections),
            ("tenant_requests_max", self.tenant_requests_max),
            ("tenant_connections_max", self.tenant_connections_max.unwrap_or(1)),
            ("requests_bytes_max", self.requests_bytes_max),
            ("lanes", self.lanes),
        ] {
            if value == 0 {
                return Err(ConfigError::new(field, value, "at least 1"));
            }
        }
        Ok(())
    }
}
