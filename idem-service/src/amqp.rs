//! Workers on RabbitMQ: its flags, and the source that they make.

use std::{
    ffi::OsString,
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use idem_amqp::{AmqpOptions, AmqpPublisher, AmqpSource, DeliveryLimit};
use idem_core::{BoxError, ConfigError};

use crate::{
    broker::{self, Broker, Built, Events, Own},
    database::Database,
    exit::Exit,
    program::Program,
    relay::parts::AmqpPart,
    service::Parts,
    settings, variables,
    worker_flags::WorkerFlags,
};

/// RabbitMQ, as its flags: `Service::<Amqp, _>`.
#[derive(clap::Args)]
// An application's own settings may have the same name.
#[group(skip)]
#[command(next_help_heading = "RabbitMQ")]
pub struct Amqp {
    /// The broker: amqp://user:password@host:port/vhost, in which the vhost / is written %2f
    #[arg(long, env = "AMQP_URL", value_name = "URL", hide_env_values = true)]
    amqp_url: String,

    /// The queue that is consumed; it is never declared
    #[arg(long, env = "AMQP_QUEUE", value_name = "NAME")]
    queue: String,

    /// Publish dead letters to this queue too [default: they are rows of the database only]
    #[arg(long, env = "AMQP_DEAD_LETTER_QUEUE", value_name = "NAME")]
    dead_letter_queue: Option<String>,

    /// The queue for messages that must wait longer than the consumer_timeout allows; messages that expire there must come back
    /// to --queue [default: they come back at once]
    #[arg(long, hide_short_help = true, env = "AMQP_RETRY_QUEUE", value_name = "NAME")]
    retry_queue: Option<String>,

    /// How many messages are delivered and not settled at most
    #[arg(long, value_name = "COUNT", default_value_t = AmqpOptions::PREFETCH)]
    prefetch: u16,

    /// The management API, http://host:port, which shows whether the queue may drop messages [default: it is unknown]
    #[arg(long, env = "AMQP_MANAGEMENT_URL", value_name = "URL", hide_env_values = true)]
    management_url: Option<String>,

    /// After how many deliveries the queue takes a message away, or none, where no --management-url shows it
    /// [default: it is unknown, and one message at a time is in hand until some have gone well]
    #[arg(long, hide_short_help = true, env = "AMQP_DELIVERY_LIMIT", value_name = "N|none", value_parser = delivery_limit)]
    delivery_limit: Option<DeliveryLimit>,

    /// A file of certificates, as PEM, of authorities that are trusted beside the platform's, for amqps:// and https://
    #[arg(long, hide_short_help = true, env = "AMQP_AUTHORITIES", value_name = "FILE")]
    authorities: Option<PathBuf>,

    /// A further host of the cluster, HOST or HOST:PORT; repeatable, or separated by commas. They are tried in turn
    #[arg(long, hide_short_help = true, env = "AMQP_HOSTS", value_name = "HOST", value_delimiter = ',')]
    amqp_host: Vec<String>,

    /// A file with this client's certificate and those that lead to its authority, as PEM, where the broker asks for one
    #[arg(long, hide_short_help = true, env = "AMQP_CLIENT_CERTIFICATE", value_name = "FILE", requires = "client_key")]
    client_certificate: Option<PathBuf>,

    /// A file with the key of --client-certificate, as PEM
    #[arg(long, hide_short_help = true, env = "AMQP_CLIENT_KEY", value_name = "FILE", requires = "client_certificate")]
    client_key: Option<PathBuf>,

    /// The priority among the queue's consumers (x-priority): those of a lower one get messages only while none of a higher one
    /// has room [default: 0]
    #[arg(
        long,
        hide_short_help = true,
        env = "AMQP_CONSUMER_PRIORITY",
        value_name = "NUMBER",
        allow_negative_numbers = true
    )]
    consumer_priority: Option<i32>,

    #[arg(skip = CONSUMER_TIMEOUT)]
    consumer_timeout: Duration,

    #[command(flatten)]
    worker: WorkerFlags,
}

/// The broker's own default.
const CONSUMER_TIMEOUT: Duration = Duration::from_secs(30 * 60);

impl Amqp {
    /// The `consumer_timeout` of the broker, where it is not the broker's own default of 30 minutes.
    #[must_use]
    pub fn consumer_timeout(mut self, time: Duration) -> Self {
        self.consumer_timeout = time;
        self
    }
}

/// The broker allows 255 bytes for the names that are made of this.
const NAME_MAX: usize = 190;

impl fmt::Debug for Amqp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Both URLs may hold a password.
        f.debug_struct("Amqp")
            .field("queue", &self.queue)
            .field("dead_letter_queue", &self.dead_letter_queue)
            .field("retry_queue", &self.retry_queue)
            .field("prefetch", &self.prefetch)
            .finish_non_exhaustive()
    }
}

impl Broker for Amqp {
    type Source = AmqpSource;
    type Publisher = AmqpPublisher;

    const VARIABLES: &'static str = "AMQP_";

    fn place(&self) -> Vec<(&'static str, String)> {
        let hosts = std::iter::once(broker::shown(&self.amqp_url)).chain(self.amqp_host.iter().map(String::as_str));
        vec![("RabbitMQ", hosts.collect::<Vec<_>>().join(", ")), ("queue", self.queue.clone())]
    }

    fn own(&self, destination: &str) -> Option<Own> {
        Own::of([
            (self.queue == destination, Own::Source("--queue")),
            (self.retry_queue.as_deref() == Some(destination), Own::Source("--retry-queue")),
            (self.dead_letter_queue.as_deref() == Some(destination), Own::DeadLetters("--dead-letter-queue")),
        ])
    }

    async fn build(self) -> Result<Built<AmqpSource, AmqpPublisher>, BoxError> {
        let mut options = AmqpOptions::new(&self.amqp_url, &self.queue)
            .prefetch(self.prefetch)
            .consumer_timeout(self.consumer_timeout);
        if let Some(url) = &self.management_url {
            options = options.management_url(url);
        }
        if let Some(limit) = self.delivery_limit {
            options = options.delivery_limit(limit);
        }
        if let Some(queue) = &self.retry_queue {
            options = options.retry_queue(queue);
        }
        if let Some(priority) = self.consumer_priority {
            options = options.consumer_priority(priority);
        }
        if let Some(file) = &self.authorities {
            options = options.authorities(read("authorities", file)?);
        }
        for host in &self.amqp_host {
            options = options.host(host);
        }
        if let (Some(certificate), Some(key)) = (&self.client_certificate, &self.client_key) {
            options = options.client_certificate(read("client-certificate", certificate)?, read("client-key", key)?);
        }
        let consumer = &self.worker.consumer;
        options = options.connection_name(format!("idem {}", &consumer[..consumer.floor_char_boundary(NAME_MAX)]));
        let publisher = self.dead_letter_queue.as_ref().map(|queue| AmqpPublisher::new(&options, queue));
        let publisher = publisher.transpose().map_err(refused)?;
        if let Some(queue) = &self.dead_letter_queue {
            options = options.require_queue(queue);
        }
        let events = Some(events(options.clone()));
        Ok(Built { events, ..Built::new(options.build().map_err(refused)?).publisher(publisher) })
    }

    fn run_on<D: Database>(program: Program<Parts<Self, D::Store>>, arguments: Vec<OsString>) -> Exit {
        D::run_on_amqp(program, arguments)
    }
}

/// The factory of publishers of events to queues of this broker.
fn events(options: AmqpOptions) -> Events {
    Box::new(move |queue, cloud_events| {
        let publisher = AmqpPublisher::new(&options, queue).map_err(|error| settings::refused_destination(&error))?;
        Ok(Arc::new(publisher.cloud_events(cloud_events)))
    })
}

/// The same for a relay alone.
pub(crate) fn relayed(part: &AmqpPart) -> Result<Events, BoxError> {
    let url = match &part.url {
        Some(url) => url.clone(),
        None => variables::secret("AMQP_URL")?
            .ok_or("the url of [amqp] is missing, and so are AMQP_URL and AMQP_URL_FILE")?,
    };
    // The queue is a consumer's.
    let mut options = AmqpOptions::new(&url, "events").connection_name("idem relay");
    if let Some(file) = &part.authorities {
        options = options.authorities(read("authorities", file)?);
    }
    for host in &part.hosts {
        options = options.host(host);
    }
    match (&part.client_certificate, &part.client_key) {
        (None, None) => {}
        (Some(certificate), Some(key)) => {
            options = options.client_certificate(read("client-certificate", certificate)?, read("client-key", key)?);
        }
        (Some(_), None) | (None, Some(_)) => {
            return Err("client-certificate and client-key of [amqp] go together".into());
        }
    }
    Ok(events(options))
}

fn delivery_limit(text: &str) -> Result<DeliveryLimit, String> {
    match (text, text.parse()) {
        ("none", _) => Ok(DeliveryLimit::Unlimited),
        (_, Ok(limit)) => Ok(DeliveryLimit::Of(limit)),
        (_, Err(_)) => Err("it must be a number of deliveries, or none".to_owned()),
    }
}

fn read(flag: &str, file: &Path) -> Result<String, BoxError> {
    std::fs::read_to_string(file)
        .map_err(|error| format!("--{flag} is {}, which cannot be read: {error}", file.display()).into())
}

/// The adapter's refusal of a setting, under the name of the flag.
fn refused(error: ConfigError) -> BoxError {
    // It is set in code.
    if error.field == "consumer_timeout" {
        return error.into();
    }
    let field = match error.field {
        "url" => "amqp_url",
        "host" => "amqp_host",
        field => field,
    };
    settings::refused(&ConfigError { field, ..error }).into()
}

#[cfg(test)]
mod tests;
