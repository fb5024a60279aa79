//! The setters that the builders of a consumer and of a [`RunOnce`](crate::RunOnce) share, on their [`Setup`](crate::unit::setup::Setup).

macro_rules! setup_setters {
    () => {
        /// The effects of the handler or the work beside its writes through the transaction. Required.
        #[must_use]
        pub fn effects(mut self, effects: $crate::config::Effects) -> Self {
            self.setup.effects = Some(effects);
            self
        }

        /// A name for the handler or the work, to which the consumer is bound at its first start: another one under the same
        /// consumer's name is then refused, because it would see the first one's messages as duplicates. Not bound unless
        /// set; keep it over versions of one handler.
        #[must_use]
        pub fn handler_name(mut self, name: &str) -> Self {
            self.setup.handler_name = Some(name.to_owned());
            self
        }

        /// The application's version, which is noted with each run and so with each record. Defaults to idem's.
        #[must_use]
        pub fn version(mut self, version: &str) -> Self {
            self.setup.version = version.to_owned();
            self
        }

        /// The one tenant of this consumer. Defaults to the empty one.
        #[must_use]
        pub fn tenant(mut self, tenant: $crate::names::Tenant) -> Self {
            self.setup.tenants = $crate::unit::engine::Tenants::One(tenant);
            self
        }

        /// Takes each message's tenant from something that was authenticated, such as a header that only the broker's
        /// gateway can set; `None` makes the message malformed. Never take it from the payload alone.
        #[must_use]
        pub fn tenant_from<F>(mut self, function: F) -> Self
        where
            F: Fn(&$crate::message::Message) -> Option<$crate::names::Tenant> + Send + Sync + 'static,
        {
            self.setup.tenants = $crate::unit::engine::Tenants::Of(std::sync::Arc::new(function));
            self
        }

        /// Where keys come from. Defaults to [`default_key_source`](crate::key::default_key_source).
        #[must_use]
        pub fn key_source(mut self, source: impl $crate::key::KeySource) -> Self {
            self.setup.keys = std::sync::Arc::new(source);
            self
        }

        /// The form that keys must have. Defaults to any token.
        #[must_use]
        pub fn key_policy(mut self, policy: $crate::key::KeyPolicy) -> Self {
            self.setup.key_policy = policy;
            self
        }

        /// How payloads are hashed. Defaults to their raw bytes. Under a [`Router`](crate::Router) the type is hashed with
        /// them, as [`WithType`](crate::hash::WithType) does it.
        #[must_use]
        pub fn hash_rules(mut self, rules: $crate::hash::HashRules) -> Self {
            self.setup.hashes = rules;
            self
        }

        /// Where the handler [publishes](crate::Tx::publish) to: it can publish to nothing else, so an unknown name is found as the
        /// handler runs, and not when the event should leave. Adds to earlier declarations.
        #[must_use]
        pub fn publish_to(
            mut self,
            destinations: impl IntoIterator<Item = impl Into<$crate::outbox::event::Destination>>,
        ) -> Self {
            self.setup.publishing.destinations.extend(destinations.into_iter().map(Into::into));
            self
        }

        /// How many events one message or operation may publish. Defaults to 64.
        #[must_use]
        pub fn events_max(mut self, events: usize) -> Self {
            self.setup.publishing.events_max = events;
            self
        }

        /// How many bytes the payloads, headers and ordering keys of one message's or operation's events may have. Defaults to 4 MiB.
        #[must_use]
        pub fn events_bytes_max(mut self, bytes: usize) -> Self {
            self.setup.publishing.events_bytes_max = bytes;
            self
        }

        /// How large a result may be, in bytes. A larger one is a permanent error, before anything is committed. A `RunOnce` keeps results
        /// of at most [`RESULT_BYTES_MAX`](crate::results::RESULT_BYTES_MAX) without this. A consumer keeps what its handlers set with
        /// [`Tx::set_result`](crate::Tx::set_result) only with it.
        #[must_use]
        pub fn keep_results(mut self, bytes_max: usize) -> Self {
            self.setup.publishing.result_bytes_max = Some(bytes_max);
            self
        }

        /// How long results are kept; their records stay for the [`retention`](Self::retention). Defaults to 24 hours, or to the retention
        /// where that is shorter; from 1 minute to the retention. Cleanup removes older ones, all but kind, status and
        /// [reference](crate::ResultBody::reference): a later call then answers [`NotKept::Expired`](crate::results::NotKept::Expired), and
        /// nothing runs again.
        #[must_use]
        pub fn result_retention(mut self, time: $crate::names::Retention) -> Self {
            self.setup.settings.result_retention = Some(time);
            self
        }

        /// Seals results with AES-256-GCM before they are written, so that they cannot be read in the database, in a replica or in
        /// a backup. Results that were kept before stay readable.
        #[cfg(feature = "seal")]
        #[must_use]
        pub fn encrypt_results(mut self, keys: $crate::results::aes_gcm::ResultKeys) -> Self {
            self.setup.seal = Some(std::sync::Arc::new(keys));
            self
        }

        /// How long records are kept.
        #[must_use]
        pub fn retention(mut self, retention: $crate::names::Retention) -> Self {
            self.setup.settings.retention = retention;
            self
        }

        /// How long one call of the handler or the work may take. Required with [`Effects::Outside`](crate::Effects::Outside).
        #[must_use]
        pub fn handler_deadline(mut self, deadline: std::time::Duration) -> Self {
            self.setup.settings.handler_deadline = deadline;
            self.setup.deadline_was_set = true;
            self
        }

        /// How long a claim waits for others that hold its keys.
        #[must_use]
        pub fn busy_timeout(mut self, timeout: std::time::Duration) -> Self {
            self.setup.settings.busy_timeout = timeout;
            self
        }

        /// How long a commit may take before its outcome counts as unknown.
        #[must_use]
        pub fn commit_timeout(mut self, timeout: std::time::Duration) -> Self {
            self.setup.settings.commit_timeout = timeout;
            self
        }

        /// How long the database may take to answer beyond the limits it was given.
        #[must_use]
        pub fn answer_timeout(mut self, timeout: std::time::Duration) -> Self {
            self.setup.settings.answer_timeout = timeout;
            self
        }

        /// The largest payload, in bytes.
        #[must_use]
        pub fn payload_bytes_max(mut self, bytes: usize) -> Self {
            self.setup.settings.payload_bytes_max = bytes;
            self
        }

        /// The most headers of one message. A message with more is dead-lettered as `too-large`.
        #[must_use]
        pub fn headers_max(mut self, headers: usize) -> Self {
            self.setup.settings.headers_max = headers;
            self
        }

        /// The most bytes of all names and values of one message's headers.
        #[must_use]
        pub fn headers_bytes_max(mut self, bytes: usize) -> Self {
            self.setup.settings.headers_bytes_max = bytes;
            self
        }

        /// How many transactions run side by side, each on a connection of its own. An operation that finds none free waits.
        #[must_use]
        pub fn lanes(mut self, lanes: usize) -> Self {
            self.setup.settings.lanes = lanes;
            self
        }
    };
}
pub(crate) use setup_setters;
