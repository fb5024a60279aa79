//! Workers on Kafka: its flags, and the source that they make.

use std::{ffi::OsString, fmt, path::Path, sync::Arc, time::Duration};

use clap::ValueEnum;
use idem_core::{BoxError, ConfigError, source::Behind};
use idem_kafka::{KafkaOptions, KafkaPublisher, KafkaSource, LaneBy};

use crate::{
    broker::{Broker, Built, Events, Own},
    database::Database,
    exit::Exit,
    program::Program,
    relay::parts::KafkaPart,
    secret_files,
    service::Parts,
    settings,
    worker_flags::WorkerFlags,
};

/// Kafka, as its flags: `Service::<Kafka, _>`.
#[derive(clap::Args)]
// An application's own settings may have the same name.
#[group(skip)]
#[command(next_help_heading = "Kafka")]
pub struct Kafka {
    /// The brokers to begin with: host:port, several with commas between them
    #[arg(long, env = "KAFKA_BROKERS", value_name = "LIST")]
    brokers: String,

    /// The topic that is consumed; it is never created
    #[arg(long, env = "KAFKA_TOPIC", value_name = "NAME")]
    topic: String,

    /// The consumer group
    #[arg(long, env = "KAFKA_GROUP", value_name = "NAME")]
    group: String,

    /// Publish dead letters to this topic too [default: they are rows of the database only]
    #[arg(long, env = "KAFKA_DEAD_LETTER_TOPIC", value_name = "NAME")]
    dead_letter_topic: Option<String>,

    /// Where a group without committed offsets starts [default: it is refused]
    #[arg(long, value_name = "WHERE")]
    reset: Option<Reset>,

    /// Log in to Amazon MSK in this region with IAM, by the credentials that the AWS SDK finds
    #[cfg(feature = "msk-iam")]
    #[arg(long, hide_short_help = true, env = "KAFKA_MSK_IAM", value_name = "REGION")]
    msk_iam: Option<String>,

    /// A setting of librdkafka, such as security.protocol=sasl_ssl; repeatable. NAME=@FILE takes the value from a file, such
    /// as sasl.password=@/run/secrets/kafka
    // It may be a password, so it is marked as a secret.
    #[arg(long = "kafka", value_name = "NAME=VALUE", hide_env_values = true, value_parser = name_and_value)]
    settings: Vec<(String, String)>,

    #[arg(skip)]
    lane_by: LaneBy,

    #[command(flatten)]
    worker: WorkerFlags,
}

/// How much longer partitions that move are kept than the worker takes to finish, to commit its last positions.
const LET_GO: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Reset {
    Earliest,
    Latest,
}

fn name_and_value(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("it must be NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

impl fmt::Debug for Kafka {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kafka")
            .field("brokers", &self.brokers)
            .field("topic", &self.topic)
            .field("group", &self.group)
            .field("settings", &self.settings.iter().map(|(name, _)| name).collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

impl Broker for Kafka {
    type Source = KafkaSource;
    type Publisher = KafkaPublisher;

    const VARIABLES: &'static str = "KAFKA_";

    fn place(&self) -> Vec<(&'static str, String)> {
        vec![("Kafka", self.brokers.clone()), ("topic", self.topic.clone()), ("group", self.group.clone())]
    }

    fn own(&self, destination: &str) -> Option<Own> {
        Own::of([
            (self.topic == destination, Own::Source("--topic")),
            (self.dead_letter_topic.as_deref() == Some(destination), Own::DeadLetters("--dead-letter-topic")),
        ])
    }

    fn partitions(source: &KafkaSource) -> Option<Vec<Behind>> {
        let topic = source.topic();
        let part = |(partition, messages)| Behind::new(format!("{topic}/{partition}"), messages);
        Some(source.lag().into_iter().map(part).collect())
    }

    async fn build(self) -> Result<Built<KafkaSource, KafkaPublisher>, BoxError> {
        let options = self.options()?;
        #[cfg(feature = "msk-iam")]
        let options = match self.msk_iam {
            Some(region) => options.tokens(msk_iam(region).await?),
            None => options,
        };
        let source = options.build().map_err(|error| refused(error, self.worker.drain))?;
        let publisher = self.dead_letter_topic.map(|topic| KafkaPublisher::new(&options, &topic));
        let publisher = publisher.transpose().map_err(|error| refused(error, self.worker.drain))?;
        Ok(Built { events: Some(events(options)), ..Built::new(source).publisher(publisher) })
    }

    fn run_on<D: Database>(program: Program<Parts<Self, D::Store>>, arguments: Vec<OsString>) -> Exit {
        D::run_on_kafka(program, arguments)
    }
}

/// The factory of publishers of events to topics of these brokers.
fn events(options: KafkaOptions) -> Events {
    Box::new(move |topic, cloud_events| {
        let publisher = KafkaPublisher::new(&options, topic).and_then(KafkaPublisher::for_events);
        let publisher = publisher.map_err(|error| settings::refused_destination(&error))?;
        Ok(Arc::new(publisher.cloud_events(cloud_events)))
    })
}

/// The same for a relay alone.
pub(crate) fn relayed(part: &KafkaPart) -> Result<Events, BoxError> {
    // Topic and group are a consumer's.
    let mut options =
        KafkaOptions::new(&part.brokers, "events", "idem-relay").set("client.id", client_id("idem-relay"));
    for (name, value) in &part.settings {
        options = set(options, name, value)?;
    }
    Ok(events(options))
}

/// The part of a service that only sends events.
#[cfg(feature = "http")]
#[derive(clap::Args)]
// An application's own settings may have the same name.
#[group(skip)]
#[command(next_help_heading = "Kafka")]
pub(crate) struct Announcing {
    /// The brokers that events go to: host:port, several with commas between them [default: none, and no events]
    #[arg(long, env = "KAFKA_BROKERS", value_name = "LIST")]
    brokers: Option<String>,

    /// A setting of librdkafka, such as security.protocol=sasl_ssl; repeatable. NAME=@FILE takes the value from a file, such
    /// as sasl.password=@/run/secrets/kafka
    // It may be a password, so it is marked as a secret.
    #[arg(long = "kafka", value_name = "NAME=VALUE", hide_env_values = true, value_parser = name_and_value)]
    settings: Vec<(String, String)>,
}

#[cfg(feature = "http")]
impl fmt::Debug for Announcing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Announcing").field("brokers", &self.brokers).finish_non_exhaustive()
    }
}

#[cfg(feature = "http")]
impl Announcing {
    /// The factory of publishers of events; none without brokers.
    pub(crate) fn events(&self) -> Result<Option<Events>, BoxError> {
        let Some(brokers) = &self.brokers else { return Ok(None) };
        // Topic and group are a consumer's.
        let mut options = KafkaOptions::new(brokers, "events", "idem-relay").set("client.id", client_id("idem-relay"));
        for (name, value) in &self.settings {
            options = set(options, name, value)?;
        }
        Ok(Some(events(options)))
    }
}

/// The name by which brokers know this process, in their logs, metrics and quotas: whose it is, and on which host.
fn client_id(group: &str) -> String {
    format!("{group}-{}", idem_sql::host_name())
}

/// Sets a setting of the client library, from a file where the value names one.
fn set(options: KafkaOptions, name: &str, value: &str) -> Result<KafkaOptions, BoxError> {
    Ok(match value.strip_prefix('@') {
        Some(file) => options.set(name, secret(name, Path::new(file))?),
        None => options.set(name, value),
    })
}

impl Kafka {
    /// Which messages are handled in turn: those of one record key, the default, or all of a partition.
    #[must_use]
    pub fn lane_by(mut self, lane_by: LaneBy) -> Self {
        self.lane_by = lane_by;
        self
    }

    fn options(&self) -> Result<KafkaOptions, BoxError> {
        let mut options = KafkaOptions::new(&self.brokers, &self.topic, &self.group)
            .set("client.id", client_id(&self.group))
            .lane_by(self.lane_by)
            .drain(self.worker.drain + LET_GO);
        if let Some(reset) = self.reset {
            options = options.reset(match reset {
                Reset::Earliest => idem_kafka::Reset::Earliest,
                Reset::Latest => idem_kafka::Reset::Latest,
            });
        }
        for (name, value) in &self.settings {
            options = set(options, name, value)?;
        }
        Ok(options)
    }
}

/// The text of a file without the end of its last line. Errors leave out the text behind the `@`: it may be a password that
/// begins so.
fn secret(name: &str, file: &Path) -> Result<String, BoxError> {
    let text = std::fs::read_to_string(file).map_err(|error| {
        format!("--kafka {name}=@… names a file (it is not shown) that cannot be read: {error}; a value that begins with @ itself has to stand in a file")
    })?;
    secret_files::warn_if_others_may(file, &format!("--kafka {name}"));
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

/// Credentials come from where the AWS SDK looks for them: variables, profiles, roles.
#[cfg(feature = "msk-iam")]
async fn msk_iam(region: String) -> Result<idem_kafka::MskIam, BoxError> {
    use aws_smithy_http_client::{Builder, tls};

    let tls = tls::Provider::Rustls(tls::rustls_provider::CryptoMode::Ring);
    let http = Builder::new().tls_provider(tls).build_https();
    let config = aws_config::defaults(aws_config::BehaviorVersion::latest()).http_client(http).load().await;
    let credentials = config.credentials_provider().ok_or("the AWS SDK knows of no credentials for --msk-iam")?;
    Ok(idem_kafka::MskIam::new(region, credentials))
}

/// The adapter's refusal of a setting, under the name of the flag.
fn refused(error: ConfigError, drain: Duration) -> BoxError {
    let error = match error.field {
        "set" => ConfigError { field: "kafka", ..error },
        "drain" => ConfigError::new(
            "drain",
            format!("{drain:?}"),
            "with 5s more to let go of partitions it must be at most half of --kafka max.poll.interval.ms (5 minutes where \
             that is not set), after which the group goes on without this member",
        ),
        _ => error,
    };
    settings::refused(&error).into()
}

#[cfg(test)]
mod tests;
