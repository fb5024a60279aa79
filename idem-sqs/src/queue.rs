//! The requests to SQS. The callers retry, for as long as that makes sense; the SDK does not.

use std::{
    collections::HashMap,
    sync::{Arc, OnceLock},
    time::Duration,
};

use aws_sdk_sqs::{
    Client,
    config::{
        ConfigBag, Intercept, RuntimeComponents, interceptors::BeforeTransmitInterceptorContextRef, retry::RetryConfig,
        timeout::TimeoutConfig,
    },
    error::{ProvideErrorMetadata, SdkError},
    operation::get_queue_attributes::GetQueueAttributesError,
    types::{
        BatchResultErrorEntry, ChangeMessageVisibilityBatchRequestEntry as ChangeEntry,
        DeleteMessageBatchRequestEntry as DeleteEntry, Message, MessageSystemAttributeName as Name, QueueAttributeName,
    },
};
use idem_core::{BoxError, SourceError};

use crate::{
    error::classify,
    options::{SqsOptions, is_fifo, queue_name},
};

/// How many messages a request may be about.
pub(crate) const AT_ONCE: usize = 10;

/// How long SQS may take to answer; a receive takes its wait on top. A receive may hang for ever without it. A request that
/// keeps a message or settles it gets at most a quarter of the visibility, so that one that hangs is sent again in time.
const ANSWER: Duration = Duration::from_secs(10);

/// The attributes asked for by name with each message; SQS sends no others.
const NAMES: [Name; 5] = [
    Name::ApproximateReceiveCount,
    Name::ApproximateFirstReceiveTimestamp,
    Name::SentTimestamp,
    Name::MessageGroupId,
    Name::MessageDeduplicationId,
];

/// A queue, as it is asked.
#[derive(Debug)]
pub(crate) struct Queue {
    client: Client,
    asking: Client,
    receiving: Client,
    url: String,
    pub(crate) name: String,
    pub(crate) fifo: bool,
    visibility: i32,
    wait: i32,
    asked: Asked,
}

/// What SQS says of a queue.
pub(crate) type Attributes = HashMap<QueueAttributeName, String>;

/// Where requests go: to the endpoint of the client, whatever the URL of the queue says.
#[derive(Debug, Clone, Default)]
struct Asked(Arc<OnceLock<String>>);

impl Intercept for Asked {
    fn name(&self) -> &'static str {
        "idem-asked"
    }

    fn read_before_transmit(
        &self,
        context: &BeforeTransmitInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        self.0.get_or_init(|| context.request().uri().to_owned());
        Ok(())
    }
}

/// The request about a message: delete it, or change its visibility.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    Delete,
    /// Others see it after this many seconds.
    Visible(i32),
}

/// The outcome of one entry of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    Done,
    /// The receipt is no good any more.
    Gone,
    /// It did not happen, and may if it is asked again.
    Again,
    /// SQS will not, however often it is asked.
    Refused,
}

/// How many messages the queue has, as far as SQS knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) waiting: u64,
    pub(crate) in_flight: u64,
    pub(crate) delayed: u64,
}

/// Whole seconds, as SQS counts. All spans are at most 12 h.
pub(crate) fn seconds(time: Duration) -> i32 {
    i32::try_from(time.as_secs()).unwrap_or(i32::MAX)
}

/// The same client, which asks once and waits at most `limit`.
pub(crate) fn limited(client: &Client, limit: Duration) -> Client {
    let config = client.config();
    let timeouts = config.timeout_config().map_or_else(TimeoutConfig::builder, TimeoutConfig::to_builder);
    let timeouts = timeouts.read_timeout(limit).operation_attempt_timeout(limit).operation_timeout(limit);
    let config = config.to_builder().retry_config(RetryConfig::disabled()).timeout_config(timeouts.build());
    Client::from_conf(config.build())
}

impl Queue {
    pub(crate) fn new(options: &SqsOptions) -> Self {
        Self {
            client: limited(&options.client, ANSWER.min(options.visibility / 4).max(Duration::from_secs(1))),
            asking: limited(&options.client, ANSWER),
            receiving: limited(&options.client, options.wait + ANSWER),
            url: options.queue_url.clone(),
            name: queue_name(&options.queue_url).to_owned(),
            fifo: is_fifo(&options.queue_url),
            visibility: seconds(options.visibility),
            wait: seconds(options.wait),
            asked: Asked::default(),
        }
    }

    /// For how long SQS hides received messages from others.
    pub(crate) fn visibility(&self) -> Duration {
        Duration::from_secs(self.visibility.unsigned_abs().into())
    }

    /// Receives this many messages at most, up to [`AT_ONCE`], and waits for them. A FIFO queue answers an attempt that it knows with the same
    /// messages again.
    pub(crate) async fn receive(&self, attempt_id: &str, count: usize) -> Result<Vec<Message>, SourceError> {
        let count = i32::try_from(count).unwrap_or(1);
        let request = self.receiving.receive_message().queue_url(&self.url).max_number_of_messages(count);
        let request = request.wait_time_seconds(self.wait).visibility_timeout(self.visibility);
        let request = request.set_message_system_attribute_names(Some(NAMES.to_vec())).message_attribute_names("All");
        let request = request.set_receive_request_attempt_id(self.fifo.then(|| attempt_id.to_owned()));
        match request.send().await {
            Ok(output) => Ok(output.messages.unwrap_or_default()),
            Err(error) if error.code().is_some_and(|code| code.ends_with("OverLimit")) => {
                let doing = "receiving, because the queue has too many messages in flight";
                Err(SourceError::Unavailable { doing, source: Box::new(error) })
            }
            Err(error) => Err(classify(&self.url, "receiving", error)),
        }
    }

    /// The host, maybe with its port, that was asked for attributes without TLS.
    pub(crate) fn asked_in_plaintext(&self) -> Option<String> {
        plaintext_host(self.asked.0.get()?).map(str::to_owned)
    }

    pub(crate) async fn attributes(&self, doing: &'static str) -> Result<Attributes, SourceError> {
        self.attributes_of(&self.url).await.map_err(|error| classify(&self.url, doing, error))
    }

    /// Those of a queue that the same client may ask for.
    pub(crate) async fn attributes_of(&self, url: &str) -> Result<Attributes, SdkError<GetQueueAttributesError>> {
        let request = self.asking.get_queue_attributes().queue_url(url);
        let request = request.attribute_names(QueueAttributeName::All).customize();
        let output = request.interceptor(self.asked.clone()).send().await?;
        Ok(output.attributes.unwrap_or_default())
    }

    /// `None` where they are not known now.
    pub(crate) async fn counts(&self) -> Option<Counts> {
        let attributes = self.attributes("counting the queue's messages").await.ok()?;
        let count = |name| attributes.get(&name)?.parse().ok();
        Some(Counts {
            waiting: count(QueueAttributeName::ApproximateNumberOfMessages)?,
            in_flight: count(QueueAttributeName::ApproximateNumberOfMessagesNotVisible)?,
            delayed: count(QueueAttributeName::ApproximateNumberOfMessagesDelayed)?,
        })
    }

    /// One change for at most ten messages. One answer each, in order: SQS answers 200 also where entries failed (F5).
    pub(crate) async fn change(&self, receipts: &[&str], change: Change) -> Vec<Answer> {
        match change {
            Change::Delete => self.delete(receipts).await,
            Change::Visible(after) => self.change_visibility(receipts, after).await,
        }
    }

    async fn delete(&self, receipts: &[&str]) -> Vec<Answer> {
        let entry = |(number, receipt): (usize, &&str)| {
            DeleteEntry::builder().id(number.to_string()).receipt_handle(*receipt).build()
        };
        let entries: Result<Vec<_>, _> = receipts.iter().enumerate().map(entry).collect();
        // Both fields are set, so this does not fail.
        let Ok(entries) = entries else { return vec![Answer::Refused; receipts.len()] };
        match self.client.delete_message_batch().queue_url(&self.url).set_entries(Some(entries)).send().await {
            Ok(output) => answers(receipts.len(), output.successful.iter().map(|entry| entry.id()), &output.failed),
            Err(error) => vec![self.failed("deleting messages", error); receipts.len()],
        }
    }

    async fn change_visibility(&self, receipts: &[&str], after: i32) -> Vec<Answer> {
        let entry = |(number, receipt): (usize, &&str)| {
            let entry = ChangeEntry::builder().id(number.to_string()).receipt_handle(*receipt);
            entry.visibility_timeout(after).build()
        };
        let entries: Result<Vec<_>, _> = receipts.iter().enumerate().map(entry).collect();
        let Ok(entries) = entries else { return vec![Answer::Refused; receipts.len()] };
        let request = self.client.change_message_visibility_batch().queue_url(&self.url);
        match request.set_entries(Some(entries)).send().await {
            Ok(output) => answers(receipts.len(), output.successful.iter().map(|entry| entry.id()), &output.failed),
            Err(error) => vec![self.failed("changing visibility", error); receipts.len()],
        }
    }

    /// The meaning, for each of its entries, of a request that failed as a whole.
    fn failed<E>(&self, doing: &'static str, error: SdkError<E>) -> Answer
    where
        E: ProvideErrorMetadata + std::error::Error + Send + Sync + 'static,
    {
        let error = classify(&self.url, doing, error);
        if matches!(error, SourceError::Refused { .. }) {
            tracing::error!(queue = self.name, %error, "SQS refuses what becomes of messages; they come back");
            return Answer::Refused;
        }
        tracing::debug!(queue = self.name, error = &error as &dyn std::error::Error, "SQS did not answer");
        Answer::Again
    }
}

fn plaintext_host(uri: &str) -> Option<&str> {
    uri.strip_prefix("http://")?.split(['/', '?']).next()
}

/// The answers in the order of the entries, which are numbered. One that was not answered may have been done or not.
fn answers<'a>(
    count: usize,
    successful: impl Iterator<Item = &'a str>,
    failed: &[BatchResultErrorEntry],
) -> Vec<Answer> {
    let mut answers = vec![Answer::Again; count];
    let mut set = |id: &str, answer| {
        if let Some(place) = id.parse().ok().and_then(|number: usize| answers.get_mut(number)) {
            *place = answer;
        }
    };
    successful.for_each(|id| set(id, Answer::Done));
    for entry in failed {
        // Throttling may be called the sender's fault, and still passes.
        let is_final = entry.sender_fault() && !entry.code().contains("Throttl");
        set(entry.id(), if is_final { Answer::Gone } else { Answer::Again });
    }
    answers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s9_only_http_is_in_plaintext() {
        for (uri, host) in [
            ("http://sqs.example.org:9324/", Some("sqs.example.org:9324")),
            ("http://[::1]:9324", Some("[::1]:9324")),
            ("http://localhost/?Action=x", Some("localhost")),
            ("https://sqs.eu-central-1.amazonaws.com/", None),
        ] {
            assert_eq!(plaintext_host(uri), host);
        }
    }

    #[test]
    fn f5_each_entry_has_its_own_answer_and_a_missing_one_is_asked_again() {
        let failed = |id: &str, fault, code: &str| {
            BatchResultErrorEntry::builder().id(id).sender_fault(fault).code(code).build().unwrap()
        };
        let failed = [
            failed("3", true, "ReceiptHandleIsInvalid"),
            failed("0", false, "InternalError"),
            failed("4", true, "RequestThrottled"),
            failed("9", false, "InternalError"),
        ];
        let expected = [Answer::Again, Answer::Done, Answer::Again, Answer::Gone, Answer::Again];
        assert_eq!(answers(5, ["1"].into_iter(), &failed), expected);
    }
}
