//! The file of a relay that runs alone.

use std::{path::Path, time::Duration};

use idem_core::{
    BoxError,
    outbox::{CloudEvents, RECEIVER_KEEPS},
};
use idem_sql::SchemaName;
use serde::Deserialize;

use super::parts::{AmqpPart, KafkaPart, SqsPart, WebhookPart};
use crate::{
    logs::LogFormat,
    spans,
    values::{EventFormat, has_password},
    variables,
};

/// Its content. Names are those of the workers' flags, where those exist.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct File {
    /// Else `DATABASE_URL`, or the content of the file that `DATABASE_URL_FILE` names.
    database_url: Option<String>,
    schema: Option<String>,
    pub(crate) admin: Option<String>,
    #[serde(default)]
    pub(crate) admin_host: Vec<String>,
    #[serde(default)]
    log_format: Format,
    pub(crate) kafka: Option<KafkaPart>,
    pub(crate) amqp: Option<AmqpPart>,
    pub(crate) sqs: Option<SqsPart>,
    #[serde(default)]
    pub(crate) destination: Vec<DestinationPart>,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Format {
    #[default]
    Text,
    Json,
}

/// `[[destination]]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct DestinationPart {
    /// As the handlers say it: a topic, a queue, the URL of a queue. One with a webhook may have any.
    pub(crate) name: String,
    /// Needed where the file has several.
    broker: Option<Broker>,
    webhook: Option<WebhookPart>,
    receiver_keeps: Option<String>,
    event_format: Option<EventFormat>,
    event_source: Option<String>,
}

/// The way that brings the events of a destination there.
#[cfg_attr(not(feature = "webhooks"), allow(dead_code, reason = "refused without a look"))]
pub(crate) enum Way<'f> {
    Broker(Broker, CloudEvents),
    /// Without the attributes of CloudEvents, unless the file asks for them: endpoints are often somebody else's.
    Webhook(&'f WebhookPart, Option<CloudEvents>),
}

/// A broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Broker {
    Kafka,
    #[serde(alias = "rabbitmq")]
    Amqp,
    Sqs,
}

/// What serde says of a value that does not fit, less the value, which may be a secret.
fn without_value(message: &str) -> String {
    let quotes = ["invalid type: ", "invalid value: ", "unknown variant "].iter().any(|kind| message.starts_with(kind));
    match message.rsplit_once(", expected ") {
        Some((_, expected)) if quotes => format!("its value must be {expected}"),
        _ => message.to_owned(),
    }
}

impl File {
    /// # Errors
    /// One line that names the file, and shows no value of it: each may be a password.
    pub(crate) fn read(path: &Path) -> Result<Self, String> {
        let of = |why: String| format!("the file {} of --config {why}", path.display());
        let text = std::fs::read_to_string(path).map_err(|error| of(format!("cannot be read: {error}")))?;
        let file: Self = toml::from_str(&text).map_err(|error: toml::de::Error| {
            // The error's own text quotes the line.
            let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
            let line = before.matches('\n').count();
            let key = text.lines().nth(line).and_then(|line| line.split_once('='));
            // An unknown field is named by the error itself.
            let key = key.filter(|_| !error.message().starts_with("unknown field "));
            let key = key.map(|(key, _)| format!("{}: ", key.trim())).unwrap_or_default();
            of(format!("is refused: line {}: {key}{}", line + 1, without_value(error.message())))
        })?;
        if file.destination.is_empty() {
            return Err(of("names no destination: it needs a [[destination]] with its name".to_owned()));
        }
        Ok(file)
    }

    pub(crate) fn log_format(&self) -> LogFormat {
        match self.log_format {
            Format::Text => LogFormat::Text,
            Format::Json => LogFormat::Json,
        }
    }

    /// Whether it holds secrets.
    pub(crate) fn holds_secrets(&self) -> bool {
        let is_password = |(name, value): (&String, &String)| name.contains("password") && !value.starts_with('@');
        let in_kafka = self.kafka.as_ref().is_some_and(|kafka| kafka.settings.iter().any(is_password));
        // The URL of an endpoint may be one too.
        let has_webhooks = self.destination.iter().any(|destination| destination.webhook.is_some());
        let in_url = |url: &Option<String>| url.as_deref().is_some_and(has_password);
        in_url(&self.database_url)
            || in_kafka
            || self.amqp.as_ref().is_some_and(|amqp| in_url(&amqp.url))
            || has_webhooks
    }

    pub(crate) fn database_url(&self) -> Result<String, BoxError> {
        match &self.database_url {
            Some(url) => Ok(url.clone()),
            None => variables::secret("DATABASE_URL")?
                .ok_or_else(|| "database-url is missing, and so are DATABASE_URL and DATABASE_URL_FILE".into()),
        }
    }

    pub(crate) fn schema(&self) -> Result<SchemaName, BoxError> {
        Ok(SchemaName::new(self.schema.as_deref().unwrap_or(SchemaName::DEFAULT))?)
    }

    /// The way to a destination: its webhook, the broker that it names, or the only one in the file.
    pub(crate) fn way_to<'f>(&self, destination: &'f DestinationPart) -> Result<Way<'f>, BoxError> {
        let DestinationPart { name, broker, webhook, event_format, event_source, .. } = destination;
        let form = event_format.unwrap_or_default().cloud_events(event_source.as_deref());
        let form = form.map_err(|error| format!("event-source of {name:?}: it must be {}", error.rule))?;
        if let Some(webhook) = webhook {
            let why = match (broker, event_format, event_source) {
                (Some(_), _, _) => "broker is for destinations without one",
                (None, None, Some(_)) => "event-source needs event-format there",
                (None, Some(_), _) | (None, None, None) => {
                    return Ok(Way::Webhook(webhook, event_format.map(|_| form)));
                }
            };
            return Err(format!("the destination {name:?} has a webhook: {why}").into());
        }
        let of = |broker| Ok(Way::Broker(broker, form));
        if let Some(broker) = *broker {
            return of(broker);
        }
        let there = [
            self.kafka.as_ref().map(|_| Broker::Kafka),
            self.amqp.as_ref().map(|_| Broker::Amqp),
            self.sqs.as_ref().map(|_| Broker::Sqs),
        ];
        match there.into_iter().flatten().collect::<Vec<_>>()[..] {
            [broker] => of(broker),
            [] => Err(format!(
                "nothing brings events to the destination {name:?}: the file needs one of [kafka], [amqp] and [sqs], or the \
                 destination a [destination.webhook]"
            )
            .into()),
            [_, _, ..] => {
                Err(format!("the file has several brokers: the destination {name:?} needs broker = \"kafka\", \"amqp\" or \"sqs\"").into())
            }
        }
    }
}

impl DestinationPart {
    pub(crate) fn receiver_keeps(&self) -> Result<Duration, BoxError> {
        let Some(text) = &self.receiver_keeps else { return Ok(RECEIVER_KEEPS) };
        spans::span(text).map_err(|why| format!("receiver-keeps of {:?}: {why}", self.name).into())
    }
}

#[cfg(test)]
mod tests;
