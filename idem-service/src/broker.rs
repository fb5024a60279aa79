//! The part that a broker adds to a worker: its flags, and the source that they make.

use std::future::Future;

use idem_core::{BoxError, Publisher, Source};

/// A broker, as its flags: `#[derive(clap::Args)]` on a struct of them. A worker on it is
/// [`Service::run`](crate::Service::run).
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

    /// How the names of the broker's variables begin, such as `KAFKA_`. Others that begin so are refused where they
    /// resemble a setting, and else warned of.
    const VARIABLES: &'static str;

    /// Checks the flags and builds what they ask for. It waits for no broker: that is [`Source::attach`], which is
    /// tried again until the start-up time-out.
    ///
    /// # Errors
    /// A wrong setting: the worker says so and ends with status 2. The text names the flag and holds no secret.
    fn build(self) -> impl Future<Output = Result<Built<Self::Source, Self::Publisher>, BoxError>> + Send;

    /// This worker's share of the queue or topic now, such as partitions, for `/readyz`; `None` where the broker does
    /// not hand out parts.
    fn partitions(source: &Self::Source) -> Option<Vec<String>> {
        let _ = source;
        None
    }
}

/// The source and publisher that a [`Broker`] builds.
#[derive(Debug)]
pub struct Built<B, P> {
    pub(crate) source: B,
    pub(crate) publisher: Option<P>,
}

impl<B: Source, P: Publisher> Built<B, P> {
    /// A worker on this source, whose dead letters are rows only.
    pub fn new(source: B) -> Self {
        Self { source, publisher: None }
    }

    /// Dead letters are published with this too, where there is one.
    #[must_use]
    pub fn publisher(mut self, publisher: Option<P>) -> Self {
        self.publisher = publisher;
        self
    }
}
