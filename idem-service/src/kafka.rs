//! Workers on Kafka: its flags, and the source that they make.

use std::fmt;

use clap::ValueEnum;
use idem_core::{BoxError, ConfigError};
use idem_kafka::{KafkaOptions, KafkaPublisher, KafkaSource};

use crate::{
    broker::{Broker, Built},
    settings,
};

/// Kafka, as its flags: `Service::run::<Kafka>()`.
#[derive(clap::Args)]
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

    /// Which messages are handled in turn: those with one record key, or all of a partition
    #[arg(long, value_name = "WHAT", default_value = "key")]
    lane_by: LaneBy,

    /// Where a group that knows nothing of the topic begins [default: it is refused]
    #[arg(long, value_name = "WHERE")]
    reset: Option<Reset>,

    /// Log in to Amazon MSK in this region with IAM, by the credentials that the AWS SDK finds
    #[cfg(feature = "msk-iam")]
    #[arg(long, env = "KAFKA_MSK_IAM", value_name = "REGION")]
    msk_iam: Option<String>,

    /// A setting of librdkafka, such as security.protocol=sasl_ssl; repeatable
    // It may be a password, so it is marked as a secret.
    #[arg(long = "kafka", value_name = "NAME=VALUE", hide_env_values = true, value_parser = name_and_value)]
    settings: Vec<(String, String)>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum LaneBy {
    Partition,
    Key,
}

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

    fn partitions(source: &KafkaSource) -> Option<Vec<String>> {
        let topic = source.topic();
        Some(source.partitions().into_iter().map(|partition| format!("{topic}/{partition}")).collect())
    }

    async fn build(self) -> Result<Built<KafkaSource, KafkaPublisher>, BoxError> {
        let mut options = KafkaOptions::new(&self.brokers, &self.topic, &self.group).lane_by(match self.lane_by {
            LaneBy::Partition => idem_kafka::LaneBy::Partition,
            LaneBy::Key => idem_kafka::LaneBy::Key,
        });
        if let Some(reset) = self.reset {
            options = options.reset(match reset {
                Reset::Earliest => idem_kafka::Reset::Earliest,
                Reset::Latest => idem_kafka::Reset::Latest,
            });
        }
        for (name, value) in &self.settings {
            options = options.set(name, value);
        }
        #[cfg(feature = "msk-iam")]
        if let Some(region) = self.msk_iam {
            options = options.tokens(msk_iam(region).await?);
        }
        let source = options.build().map_err(refused)?;
        let publisher = self.dead_letter_topic.map(|topic| KafkaPublisher::new(&options, &topic));
        Ok(Built::new(source).publisher(publisher.transpose().map_err(refused)?))
    }
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

/// What the adapter says of a setting that it refuses, under the name of the flag.
fn refused(error: ConfigError) -> BoxError {
    let field = if error.field == "set" { "kafka" } else { error.field };
    settings::refused(&ConfigError { field, ..error }).into()
}

#[cfg(test)]
mod tests;
