//! Workers on SQS: its flags, and the source that they make.

use std::{ffi::OsString, sync::Arc, time::Duration};

use aws_config::BehaviorVersion;
use aws_smithy_http_client::{Builder, tls};
use idem_core::{BoxError, ConfigError, internal::Exactly};
use idem_sqs::{Envelope, SqsOptions, SqsPublisher, SqsSource, aws_sdk_sqs::Client};

use crate::{
    broker::{self, Broker, Built, Events, Own},
    database::Database,
    exit::Exit,
    program::Program,
    service::Parts,
    settings, spans,
    worker_flags::WorkerFlags,
};

/// SQS, as its flags: `Service::<Sqs, _>`. Region, endpoint and credentials come from where the AWS SDK looks for
/// them: `AWS_REGION`, `AWS_ENDPOINT_URL`, `AWS_PROFILE`, roles.
#[derive(Debug, clap::Args)]
// An application's own settings may have the same name.
#[group(skip)]
#[command(next_help_heading = "SQS")]
pub struct Sqs {
    /// The URL of the queue that is consumed; it is never created. Region and credentials come from AWS_REGION,
    /// AWS_ENDPOINT_URL and wherever else the AWS SDK looks for them
    #[arg(long, env = "SQS_QUEUE_URL", value_name = "URL")]
    queue_url: String,

    /// Publish dead letters to this queue too [default: they are rows of the database only]
    #[arg(long, env = "SQS_DEAD_LETTER_QUEUE_URL", value_name = "URL")]
    dead_letter_queue_url: Option<String>,

    /// How long a receive waits for messages, and a stop for the last one: --drain must be 3s longer
    #[arg(long, hide_short_help = true, value_name = "TIME", default_value = "5s", value_parser = spans::span)]
    wait: Duration,

    #[arg(skip)]
    envelope: Option<Envelope>,

    #[arg(skip = VISIBILITY)]
    visibility: Duration,

    #[command(flatten)]
    worker: WorkerFlags,
}

const VISIBILITY: Duration = Duration::from_secs(60);

/// The time that a stop needs beyond a receive's wait, to give back its messages.
const GIVE_BACK: Duration = Duration::from_secs(3);

impl Broker for Sqs {
    type Source = SqsSource;
    type Publisher = SqsPublisher;

    const VARIABLES: &'static str = "SQS_";

    fn place(&self) -> Vec<(&'static str, String)> {
        let shown = broker::shown(&self.queue_url);
        let (host, path) = shown.split_once('/').unwrap_or((shown, ""));
        let (_, queue) = path.rsplit_once('/').unwrap_or(("", path));
        vec![("SQS", host.to_owned()), ("queue", queue.to_owned())]
    }

    fn own(&self, destination: &str) -> Option<Own> {
        let is = |url: &str| account_and_name(url) == account_and_name(destination);
        Own::of([
            (is(&self.queue_url), Own::Source("--queue-url")),
            (self.dead_letter_queue_url.as_deref().is_some_and(is), Own::DeadLetters("--dead-letter-queue-url")),
        ])
    }

    async fn build(self) -> Result<Built<SqsSource, SqsPublisher>, BoxError> {
        self.build_with(&client().await?)
    }

    fn run_on<D: Database>(program: Program<Parts<Self, D::Store>>, arguments: Vec<OsString>) -> Exit {
        D::run_on_sqs(program, arguments)
    }
}

/// The part of a URL by which a client of one region knows the queue: SQS has several host names for it.
fn account_and_name(url: &str) -> &str {
    let path = broker::shown(url).trim_end_matches('/');
    path.rmatch_indices('/').nth(1).map_or(path, |(at, _)| &path[at..])
}

/// A client with the configuration that the AWS SDK finds.
async fn client() -> Result<Client, BoxError> {
    let tls = tls::Provider::Rustls(tls::rustls_provider::CryptoMode::Ring);
    let http = Builder::new().tls_provider(tls).build_https();
    let config = aws_config::defaults(BehaviorVersion::latest()).http_client(http).load().await;
    if config.region().is_none_or(|region| region.as_ref().is_empty()) {
        return Err("there is no AWS region: set AWS_REGION, or the region of the profile".into());
    }
    Ok(Client::new(&config))
}

/// The factory of publishers of events to queues, by their URLs.
fn events(client: Client) -> Events {
    Box::new(move |url, cloud_events| {
        let publisher = SqsPublisher::new(&client, url).map_err(|error| settings::refused_destination(&error))?;
        Ok(Arc::new(publisher.cloud_events(cloud_events)))
    })
}

/// The same for a relay alone.
pub(crate) async fn relayed() -> Result<Events, BoxError> {
    Ok(events(client().await?))
}

impl Sqs {
    /// The envelope around the producer's message. Without it there is none.
    #[must_use]
    pub fn envelope(mut self, envelope: Envelope) -> Self {
        self.envelope = Some(envelope);
        self
    }

    /// How long SQS hides a message from others before it must be extended: 60 s. It must be longer than `--handler-deadline`.
    #[must_use]
    pub fn visibility(mut self, time: Duration) -> Self {
        self.visibility = time;
        self
    }

    fn build_with(self, client: &Client) -> Result<Built<SqsSource, SqsPublisher>, BoxError> {
        let mut options = SqsOptions::new(client.clone(), &self.queue_url)
            .visibility(self.visibility)
            .wait(self.wait)
            .handler_deadline(self.worker.handler_deadline);
        if let Some(envelope) = self.envelope {
            options = options.envelope(envelope);
        }
        let publisher = self.dead_letter_queue_url.as_ref().map(|url| SqsPublisher::new(client, url));
        let publisher = publisher.transpose().map_err(refused)?;
        if let Some(url) = self.dead_letter_queue_url {
            options = options.require_queue(url);
        }
        let source = options.build().map_err(refused)?;
        if self.wait + GIVE_BACK > self.worker.drain {
            let (wait, drain) = (Exactly(self.wait), Exactly(self.worker.drain));
            return Err(format!(
                "--wait is {wait}, but --drain is {drain}: a stop waits for the last receive, and needs 3s more to give \
                 back what that brings; make --wait shorter, or --drain longer"
            )
            .into());
        }
        Ok(Built { events: Some(events(client.clone())), ..Built::new(source).publisher(publisher) })
    }
}

fn refused(error: ConfigError) -> BoxError {
    // It is set in code.
    if error.field == "visibility" { error.into() } else { settings::refused(&error).into() }
}

#[cfg(test)]
mod tests;
