//! The parts of a relay's file that brokers and endpoints read.

use std::{collections::BTreeMap, path::PathBuf};

use serde::Deserialize;

/// `[kafka]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
#[cfg_attr(not(feature = "kafka"), allow(dead_code, reason = "read, and then refused"))]
pub(crate) struct KafkaPart {
    pub(crate) brokers: String,
    /// Settings of librdkafka. A value that begins with `@` names a file.
    #[serde(default)]
    pub(crate) settings: BTreeMap<String, String>,
}

/// `[amqp]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
#[cfg_attr(not(feature = "amqp"), allow(dead_code, reason = "read, and then refused"))]
pub(crate) struct AmqpPart {
    /// Else `AMQP_URL`, or the content of the file that `AMQP_URL_FILE` names.
    pub(crate) url: Option<String>,
    #[serde(default)]
    pub(crate) hosts: Vec<String>,
    pub(crate) authorities: Option<PathBuf>,
    pub(crate) client_certificate: Option<PathBuf>,
    pub(crate) client_key: Option<PathBuf>,
}

/// `[sqs]`. Region, endpoint and credentials come from where the AWS SDK looks for them.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SqsPart {}

/// `[destination.webhook]`: an endpoint over HTTP in place of a broker.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
#[cfg_attr(not(feature = "webhooks"), allow(dead_code, reason = "read, and then refused"))]
pub(crate) struct WebhookPart {
    pub(crate) endpoint: String,
    /// One, or several while a new one replaces an old one. A text that begins with `@` names a file.
    pub(crate) secrets: Vec<String>,
    #[serde(default)]
    pub(crate) private_networks: bool,
    #[serde(default)]
    pub(crate) plaintext: bool,
    /// Whether the endpoint gets the headers that say where an event comes from.
    #[serde(default)]
    pub(crate) origin: bool,
}
