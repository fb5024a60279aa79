//! The event of a serverless runtime and the answer that it wants, by its own names.

use std::collections::HashMap;

use idem_core::{
    Message,
    message::{OrderingKey, Origin},
};
use serde::{Deserialize, Serialize};

/// Messages of one queue.
#[derive(Debug, Deserialize)]
pub(crate) struct Event {
    #[serde(rename = "Records")]
    pub(crate) records: Vec<Record>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Record {
    message_id: String,
    body: String,
    #[serde(default)]
    attributes: HashMap<String, String>,
    #[serde(default)]
    message_attributes: HashMap<String, Attribute>,
    #[serde(rename = "eventSourceARN")]
    queue_arn: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Attribute {
    string_value: Option<String>,
}

/// The messages that are to come back. The runtime deletes the others. Switch `ReportBatchItemFailures` on, or it reads
/// none of this and deletes all.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct BatchResponse {
    pub(crate) batch_item_failures: Vec<BatchItemFailure>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct BatchItemFailure {
    pub(crate) item_identifier: String,
}

impl From<Record> for Message {
    fn from(mut record: Record) -> Self {
        let mut message = Self::new(record.body).with_id(&record.message_id);
        message = message.with_origin(Origin::new(&format!("{}/{}", record.queue_arn, record.message_id)));
        for (name, attribute) in record.message_attributes {
            if let Some(value) = attribute.string_value {
                message = message.with_header(&name, value);
            }
        }
        // Groups of a standard queue order nothing.
        match record.attributes.remove("MessageGroupId").filter(|_| record.queue_arn.ends_with(".fifo")) {
            Some(group) => message.with_ordering_key(OrderingKey::new(group)),
            None => message,
        }
    }
}
