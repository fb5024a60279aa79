//! The part that a broker adds to a worker: its flags, and the source that they make.

use std::{ffi::OsString, fmt, future::Future, sync::Arc};

use idem_core::{
    BoxError, Source,
    dead_letter::Publisher,
    outbox::{CloudEvents, EventPublisher},
    source::Behind,
};

use crate::{database::Database, exit::Exit, program::Program, run, service::Parts};

/// A broker, as its flags: `#[derive(clap::Args)]` on a struct of them. A worker on it is a
/// [`Service<Self, _>`](crate::Service).
///
/// A flag with `hide_env_values = true` may hold a secret: its value is in no message and no log.
///
/// ```
/// use idem_core::BoxError;
/// use idem_service::{Broker, Built};
/// use idem_testkit::memory::{RemotePublisher, RemoteSource};
///
/// #[derive(Debug, clap::Args)]
/// struct Memory {
///     /// Where the broker listens
///     #[arg(long, env = "MEMORY_SOCKET")]
///     socket: String,
///     /// The queue that is consumed
///     #[arg(long)]
///     queue: String,
/// }
///
/// impl Broker for Memory {
///     type Source = RemoteSource;
///     type Publisher = RemotePublisher;
///
///     const VARIABLES: &'static str = "MEMORY_";
///
///     async fn build(self) -> Result<Built<RemoteSource, RemotePublisher>, BoxError> {
///         Ok(Built::new(RemoteSource::connect(&self.socket, &self.queue).await))
///     }
/// }
/// ```
pub trait Broker: clap::Args + Send + 'static {
    /// The source of the messages.
    type Source: Source;
    /// The publisher of dead letters, where the flags ask for one.
    type Publisher: Publisher;

    /// The prefix of the broker's variables, such as `KAFKA_`. Others with this prefix are refused if they resemble a setting,
    /// and otherwise warned of.
    const VARIABLES: &'static str;

    /// Checks the flags and builds the source and the publishers. It waits for no broker: that is [`Source::attach`], which is
    /// tried again until the start-up time-out.
    ///
    /// # Errors
    /// A wrong setting: the worker says so and ends with status 2. The text names the flag and holds no secret.
    fn build(self) -> impl Future<Output = Result<Built<Self::Source, Self::Publisher>, BoxError>> + Send;

    /// Where messages come from, for the worker's page: a kind and a name, such as `("topic", "orders")`. No secret.
    fn place(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    /// The part of this worker that a destination of this name is at the broker; `None` where it is another's. Events that the
    /// worker would bring there are refused at the start.
    fn own(&self, destination: &str) -> Option<Own> {
        let _ = destination;
        None
    }

    /// This worker's share of the queue or topic now, such as partitions, for `/readyz` and the page; `None` where the broker
    /// does not hand out parts. It must not wait.
    fn partitions(source: &Self::Source) -> Option<Vec<Behind>> {
        let _ = source;
        None
    }

    /// Runs a worker. For this crate, which has compiled it for its own brokers and databases; another's is compiled where
    /// the worker is.
    #[doc(hidden)]
    fn run_on<D: Database>(program: Program<Parts<Self, D::Store>>, arguments: Vec<OsString>) -> Exit {
        run::run::<Self, D>(program, arguments)
    }
}

/// A queue or topic that a worker has already, with the flag that names it, such as `--queue`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Own {
    /// Its messages come from there, or come back from there.
    Source(&'static str),
    /// Its dead letters go there.
    DeadLetters(&'static str),
}

impl Own {
    /// The first that is there.
    #[cfg(any(feature = "kafka", feature = "amqp", feature = "sqs"))]
    pub(crate) fn of<const N: usize>(parts: [(bool, Self); N]) -> Option<Self> {
        parts.into_iter().find_map(|(is_there, own)| is_there.then_some(own))
    }
}

/// The parts of a URL that may be shown: host, port and path, without login, scheme and options.
#[cfg(any(feature = "amqp", feature = "sqs"))]
pub(crate) fn shown(url: &str) -> &str {
    let url = url.split_once("://").map_or(url, |(_, rest)| rest);
    let url = url.split(['?', '#']).next().unwrap_or_default();
    url.rsplit_once('@').map_or(url, |(_, rest)| rest)
}

/// Makes the publisher that brings events, in this format, to the destination of this name.
pub(crate) type Events = Box<dyn Fn(&str, CloudEvents) -> Result<Arc<dyn EventPublisher>, BoxError> + Send + Sync>;

/// The source and publisher that a [`Broker`] builds.
pub struct Built<B, P> {
    pub(crate) source: B,
    pub(crate) publisher: Option<P>,
    pub(crate) events: Option<Events>,
}

impl<B: Source, P: Publisher> Built<B, P> {
    /// A worker on this source, whose dead letters are rows only, and whose handlers cannot publish to this broker.
    pub fn new(source: B) -> Self {
        Self { source, publisher: None, events: None }
    }

    /// Dead letters are published with this too, where there is one.
    #[must_use]
    pub fn publisher(mut self, publisher: Option<P>) -> Self {
        self.publisher = publisher;
        self
    }

    /// Makes the publisher for a destination that has none of its own, from its name, such as a topic, and how events are written. It
    /// is called once a destination, before anything is connected; its error ends the worker with status 2.
    #[must_use]
    pub fn events(
        mut self,
        make: impl Fn(&str, CloudEvents) -> Result<Arc<dyn EventPublisher>, BoxError> + Send + Sync + 'static,
    ) -> Self {
        self.events = Some(Box::new(make));
        self
    }
}

impl<B: fmt::Debug, P: fmt::Debug> fmt::Debug for Built<B, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Built")
            .field("source", &self.source)
            .field("publisher", &self.publisher)
            .field("events", &self.events.is_some())
            .finish()
    }
}
