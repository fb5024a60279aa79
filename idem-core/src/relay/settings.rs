//! A relay's routes and settings: [`RelayBuilder`], [`Route`], [`RelaySettings`].

use std::{fmt, sync::Arc, time::Duration};

use crate::{
    config_error::ConfigError,
    names::ConsumerName,
    outbox::{
        event::Destination,
        limits::RECEIVER_KEEPS,
        publisher::{Dispatch, EventPublisher},
        rows::Outbox,
    },
    relay::{
        Relay,
        state::{Describe, State},
    },
    retry::RetryPolicy,
    setters::setters,
    span::Exactly,
    store::{Store, describe::one_line},
};

/// A destination, its publisher, and the settings for it.
#[derive(Clone)]
#[non_exhaustive]
pub struct Route {
    /// The destination's name, as the consumers that publish to it declare it.
    pub destination: String,
    /// The publisher that sends events there.
    pub publisher: Arc<dyn EventPublisher>,
    /// The attempts of an event, and the waits between them. An event that has used them up waits for a person; it is never
    /// discarded. The publisher has the default.
    pub retry: RetryPolicy,
    /// How long its receivers recognise a copy of an event, which is their retention. An event whose first copy may have been
    /// sent that long ago, less an hour, is not sent again but waits for a person, because it could have its effect twice.
    /// Defaults to 7 days; must be more than an hour.
    pub receiver_keeps: Duration,
    /// The publisher's answers, asked for once, because publishers are the application's code.
    pub(super) dispatch: Dispatch,
    pub(super) keeps_order: bool,
}

impl fmt::Debug for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Route")
            .field("destination", &self.destination)
            .field("retry", &self.retry)
            .field("receiver_keeps", &self.receiver_keeps)
            .finish_non_exhaustive()
    }
}

impl Route {
    /// A route for events of this destination to `publisher`.
    pub fn to(destination: impl Into<String>, publisher: impl EventPublisher) -> Self {
        Self::to_shared(destination, Arc::new(publisher))
    }

    /// The same for a shared publisher.
    pub fn to_shared(destination: impl Into<String>, publisher: Arc<dyn EventPublisher>) -> Self {
        let (retry, dispatch, keeps_order) = (publisher.retry(), publisher.dispatch(), publisher.keeps_order());
        let destination = destination.into();
        Self { destination, publisher, retry, receiver_keeps: RECEIVER_KEEPS, dispatch, keeps_order }
    }

    setters! {
        /// Sets the attempts of an event, and the waits between them.
        retry: RetryPolicy,
        /// Sets how long its receivers recognise a copy of an event.
        receiver_keeps: Duration,
    }

    fn check(&self) -> Result<(), ConfigError> {
        Destination::new(&*self.destination).check()?;
        let name = &self.destination;
        if self.retry.attempts == 0 || self.retry.first > self.retry.max {
            let value = format!("{:?} for {name:?}", self.retry);
            return Err(ConfigError::new("relay.retry", value, "at least one attempt, and first is at most max"));
        }
        if self.receiver_keeps <= STALE_MARGIN {
            let value = format!("{} for {name:?}", Exactly(self.receiver_keeps));
            return Err(ConfigError::new("relay.receiver_keeps", value, "it must be more than an hour"));
        }
        Ok(())
    }
}

/// How long before its receivers forget an event it is no longer sent. This covers the difference between two clocks, and the
/// time for which a broker keeps an event before it delivers it.
const STALE_MARGIN: Duration = Duration::from_secs(60 * 60);

/// Whether receivers that recognise a copy for `receiver_keeps` may have forgotten one that was sent this long ago, or forget it while
/// another one is on its way. Relays send no such event, and operators only if they say so.
#[must_use]
pub fn is_stale(first_sent_ago: Duration, receiver_keeps: Duration) -> bool {
    first_sent_ago.saturating_add(STALE_MARGIN) > receiver_keeps
}

/// The settings of a [`Relay`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct RelaySettings {
    /// How long a lease lasts without renewal. After its relay was killed, a destination waits for this long at most, and for the
    /// first confirmation that another relay's publisher gets. The lease is renewed each third of it. Defaults to 1.5 s; 300 ms
    /// to 60 s.
    pub lease: Duration,
    /// How long a publisher may take for one call. Events that a client library still has then are dropped and sent again. Make
    /// the publisher's own limits shorter. Defaults to 10 s; 1 s to 5 min.
    pub publish_deadline: Duration,
    /// How often the outbox is polled while events are found and no commit is announced; more often at a high rate.
    /// Defaults to 100 ms.
    pub poll_busy: Duration,
    /// How often the outbox is polled while no events are found. Defaults to 1 s; at least `poll_busy`.
    pub poll_idle: Duration,
    /// How often waiting events are counted, for metrics and people. Defaults to 10 s.
    pub measure_every: Duration,
}

impl Default for RelaySettings {
    fn default() -> Self {
        Self {
            lease: Duration::from_millis(1_500),
            publish_deadline: Duration::from_secs(10),
            poll_busy: Duration::from_millis(100),
            poll_idle: Duration::from_secs(1),
            measure_every: Duration::from_secs(10),
        }
    }
}

impl RelaySettings {
    fn check(&self) -> Result<(), ConfigError> {
        let millis = |from, to| Duration::from_millis(from)..=Duration::from_millis(to);
        for (field, value, allowed, rule) in [
            ("relay.lease", self.lease, millis(300, 60_000), "300 ms to 60 s"),
            ("relay.publish_deadline", self.publish_deadline, millis(1_000, 300_000), "1 s to 5 min"),
            ("relay.poll_busy", self.poll_busy, millis(1, 60_000), "1 ms to 60 s"),
            ("relay.poll_idle", self.poll_idle, self.poll_busy..=Duration::from_secs(60), "poll_busy to 60 s"),
            ("relay.measure_every", self.measure_every, millis(100, 3_600_000), "100 ms to 1 h"),
        ] {
            if !allowed.contains(&value) {
                return Err(ConfigError::span(field, value, rule));
            }
        }
        Ok(())
    }
}

/// Builds a [`Relay`], refusing settings that break a rule.
#[derive(Debug)]
#[must_use]
pub struct RelayBuilder {
    outbox: Outboxes,
    routes: Vec<Route>,
    settings: RelaySettings,
    name: String,
    describe: Describe,
}

/// The outbox, whose `Debug` shows none of its content.
struct Outboxes(Arc<dyn Outbox>);

impl fmt::Debug for Outboxes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Outbox")
    }
}

impl RelayBuilder {
    pub(super) fn new(outbox: Arc<dyn Outbox>) -> Self {
        let settings = RelaySettings::default();
        Self {
            outbox: Outboxes(outbox),
            routes: Vec::new(),
            settings,
            name: "relay".to_owned(),
            describe: |error| error.to_string(),
        }
    }

    /// Sends events of this destination to `publisher`, with the defaults of a [`Route`].
    pub fn to(self, destination: impl Into<String>, publisher: impl EventPublisher) -> Self {
        self.route(Route::to(destination, publisher))
    }

    /// Adds this route.
    pub fn route(mut self, route: Route) -> Self {
        self.routes.push(route);
        self
    }

    /// Sets the relay's name for people, such as its host and process: `idem outbox list` shows which relay has a destination. A
    /// random part is appended, because two relays of one name would both have the same lease. Defaults to `relay`.
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Changes any of the settings.
    pub fn settings(mut self, set: impl FnOnce(&mut RelaySettings)) -> Self {
        set(&mut self.settings);
        self
    }

    /// Sets the store of the outbox, so that the log says with each error of the database its cause, in
    /// [words](crate::store::describe) without any value of a row. Otherwise the causes are left out. A worker's relay has it
    /// already.
    pub fn of_store<S: Store>(mut self) -> Self {
        self.describe = one_line::<S>;
        self
    }

    /// Builds the relay. It does not connect yet.
    ///
    /// # Errors
    /// [`ConfigError`] with field, value and rule if there is no route, if a destination has two, or if a setting is out of
    /// bounds.
    pub fn build(self) -> Result<Relay, ConfigError> {
        self.build_for(None)
    }

    /// The same for a worker, which waits for the events of its consumer before it is idle.
    pub(crate) fn build_for(self, consumer: Option<ConsumerName>) -> Result<Relay, ConfigError> {
        let Self { outbox: Outboxes(outbox), routes, settings, name, describe } = self;
        settings.check()?;
        if routes.is_empty() {
            return Err(ConfigError::new("relay", "no destination", "a relay has one at least: .to(…)"));
        }
        for (at, route) in routes.iter().enumerate() {
            route.check()?;
            if routes[..at].iter().any(|other| other.destination == route.destination) {
                let rule = "each destination has one route";
                return Err(ConfigError::new("relay", format!("{:?}", route.destination), rule));
            }
        }
        if name.is_empty() || name.len() > 200 || name.chars().any(char::is_control) {
            let rule = "a relay's name has 1 to 200 bytes without control characters";
            return Err(ConfigError::new("relay.named", format!("{name:?}"), rule));
        }
        let name = format!("{name}/{:08x}", fastrand::u32(..));
        let state = Arc::new(State::new(outbox, consumer, describe, routes.iter().map(|route| &*route.destination)));
        Ok(Relay { routes, settings, name: name.into(), state, published: None })
    }
}
