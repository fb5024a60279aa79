//! Workers on SQS: its flags, and the source that they make.

use std::time::Duration;

use aws_config::BehaviorVersion;
use aws_smithy_http_client::{Builder, tls};
use clap::{ArgMatches, Command, FromArgMatches, ValueEnum, error::ErrorKind};
use idem_core::{BoxError, ConfigError};
use idem_sqs::{SqsOptions, SqsPublisher, SqsSource, aws_sdk_sqs::Client};

use crate::{
    broker::{Broker, Built},
    settings, spans,
};

/// SQS, as its flags: `Service::run::<Sqs>()`. Region, endpoint and credentials come from where the AWS SDK looks for
/// them: `AWS_REGION`, `AWS_ENDPOINT_URL`, `AWS_PROFILE`, roles.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "SQS")]
pub struct Sqs {
    /// The URL of the queue that is consumed; it is never created. Region and credentials come from AWS_REGION,
    /// AWS_ENDPOINT_URL and wherever else the AWS SDK looks for them
    #[arg(long, env = "SQS_QUEUE_URL", value_name = "URL")]
    queue_url: String,

    /// Publish dead letters to this queue too [default: they are rows of the database only]
    #[arg(long, env = "SQS_DEAD_LETTER_QUEUE_URL", value_name = "URL")]
    dead_letter_queue_url: Option<String>,

    /// What the producer's message is wrapped in [default: nothing]
    #[arg(long, value_name = "WHAT")]
    envelope: Option<Envelope>,

    /// How long SQS keeps a message from others before it must hear of us again; longer than --handler-deadline
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = spans::span)]
    visibility: Duration,

    /// How long a receive waits for messages, and a stop for the last one
    #[arg(long, value_name = "TIME", default_value = "20s", value_parser = spans::span)]
    wait: Duration,

    #[command(flatten)]
    handler_deadline: HandlerDeadline,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Envelope {
    Sns,
    #[value(name = "eventbridge")]
    EventBridge,
}

/// The worker's own `--handler-deadline`, which the visibility must outlast. It is no flag of SQS, and only read.
#[derive(Debug, Clone, Copy)]
struct HandlerDeadline(Duration);

impl clap::Args for HandlerDeadline {
    fn augment_args(command: Command) -> Command {
        command
    }

    fn augment_args_for_update(command: Command) -> Command {
        command
    }
}

impl FromArgMatches for HandlerDeadline {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let told = matches.try_get_one::<Duration>("handler_deadline").ok().flatten();
        told.copied().map(Self).ok_or_else(|| clap::Error::new(ErrorKind::MissingRequiredArgument))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Broker for Sqs {
    type Source = SqsSource;
    type Publisher = SqsPublisher;

    const VARIABLES: &'static str = "SQS_";

    async fn build(self) -> Result<Built<SqsSource, SqsPublisher>, BoxError> {
        let tls = tls::Provider::Rustls(tls::rustls_provider::CryptoMode::Ring);
        let http = Builder::new().tls_provider(tls).build_https();
        let config = aws_config::defaults(BehaviorVersion::latest()).http_client(http).load().await;
        self.build_with(&Client::new(&config))
    }
}

impl Sqs {
    fn build_with(self, client: &Client) -> Result<Built<SqsSource, SqsPublisher>, BoxError> {
        let mut options = SqsOptions::new(client.clone(), &self.queue_url)
            .visibility(self.visibility)
            .wait(self.wait)
            .handler_deadline(self.handler_deadline.0);
        if let Some(envelope) = self.envelope {
            options = options.envelope(match envelope {
                Envelope::Sns => idem_sqs::Envelope::Sns,
                Envelope::EventBridge => idem_sqs::Envelope::EventBridge,
            });
        }
        let publisher = self.dead_letter_queue_url.as_ref().map(|url| SqsPublisher::new(client, url));
        let publisher = publisher.transpose().map_err(refused)?;
        if let Some(url) = self.dead_letter_queue_url {
            options = options.needs(url);
        }
        Ok(Built::new(options.build().map_err(refused)?).publisher(publisher))
    }
}

fn refused(error: ConfigError) -> BoxError {
    settings::refused(&error).into()
}

#[cfg(test)]
mod tests;
