//! Every setting with its default and limits. A setting that would break the guarantee is refused, with the reason.

use std::{fmt, time::Duration};

use aws_sdk_sqs::Client;
use idem_core::{ConfigError, internal::Exactly};

use crate::envelope::Envelope;

/// The longest time that SQS keeps a message from others, counted from its receive; no extension goes beyond.
pub(crate) const VISIBILITY_MAX: Duration = Duration::from_secs(12 * 3600);

/// The settings of an [`SqsSource`](crate::SqsSource).
#[derive(Clone)]
pub struct SqsOptions {
    pub(crate) client: Client,
    pub(crate) queue_url: String,
    pub(crate) visibility: Duration,
    pub(crate) handler_deadline: Duration,
    pub(crate) wait: Duration,
    pub(crate) receivers: usize,
    pub(crate) envelope: Option<Envelope>,
    pub(crate) needed: Vec<String>,
}

impl SqsOptions {
    /// The default [wait](Self::wait).
    pub const WAIT: Duration = Duration::from_secs(5);

    /// One queue, by its URL, over a client of the caller's: region, credentials, endpoint and HTTP are its own. Retries
    /// and time-outs are idem's.
    pub fn new(client: Client, queue_url: impl Into<String>) -> Self {
        Self {
            client,
            queue_url: queue_url.into(),
            visibility: Duration::from_secs(60),
            handler_deadline: Duration::from_secs(30),
            wait: Self::WAIT,
            receivers: 4,
            envelope: None,
            needed: Vec::new(),
        }
    }

    /// How long SQS hides a message from others before it must be extended. Defaults to 60 s, whatever the queue's own
    /// setting is; from 2 s to 12 h. It is extended at half of that until the message is settled, and after a crash it is
    /// how long the messages stay away.
    #[must_use]
    pub fn visibility(mut self, time: Duration) -> Self {
        self.visibility = time;
        self
    }

    /// How long one call of the handler may take: the consumer's setting. Defaults to 30 s, as there. It must be
    /// shorter than [`visibility`](Self::visibility): an extension may fail, and then another worker runs the same
    /// message beside a handler that still runs.
    #[must_use]
    pub fn handler_deadline(mut self, deadline: Duration) -> Self {
        self.handler_deadline = deadline;
        self
    }

    /// How long a receive waits for messages. Defaults to 5 s; from 1 s to 20 s, the most that SQS allows. A receive is
    /// not abandoned, because its messages would be away until their visibility passes: a stop waits for it, and has time
    /// enough where this is 3 s shorter than the worker's `drain`. With 20 s an idle worker asks a quarter as often.
    #[must_use]
    pub fn wait(mut self, time: Duration) -> Self {
        self.wait = time;
        self
    }

    /// How many receives, of ten messages each, run side by side. Defaults to 4; from 1 to 64.
    #[must_use]
    pub fn receivers(mut self, count: usize) -> Self {
        self.receivers = count;
        self
    }

    /// The envelope around the producer's message. Defaults to none.
    #[must_use]
    pub fn envelope(mut self, envelope: Envelope) -> Self {
        self.envelope = Some(envelope);
        self
    }

    /// The URL of a further queue that must exist at the start, such as that of a [`SqsPublisher`](crate::SqsPublisher).
    #[must_use]
    pub fn require_queue(mut self, queue_url: impl Into<String>) -> Self {
        self.needed.push(queue_url.into());
        self
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        check_url("queue_url", &self.queue_url)?;
        let span = |field, value: Duration, min, max, rule| {
            if (min..=max).contains(&value) { Ok(()) } else { Err(ConfigError::span(field, value, rule)) }
        };
        for url in &self.needed {
            check_url("require_queue", url)?;
        }
        let seconds = Duration::from_secs;
        span("visibility", self.visibility, seconds(2), VISIBILITY_MAX, "it must be from 2 s to 12 h")?;
        span("wait", self.wait, seconds(1), seconds(20), "it must be from 1 s to 20 s")?;
        if self.visibility <= self.handler_deadline {
            let value =
                format!("{} with a handler_deadline of {}", Exactly(self.visibility), Exactly(self.handler_deadline));
            let rule = "it must be longer than the handler_deadline, or others get a message that still runs here";
            return Err(ConfigError::new("visibility", value, rule));
        }
        if !(1..=64).contains(&self.receivers) {
            return Err(ConfigError::new("receivers", self.receivers.to_string(), "it must be from 1 to 64"));
        }
        Ok(())
    }
}

impl fmt::Debug for SqsOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqsOptions")
            .field("queue_url", &self.queue_url)
            .field("visibility", &self.visibility)
            .field("handler_deadline", &self.handler_deadline)
            .field("wait", &self.wait)
            .field("receivers", &self.receivers)
            .field("envelope", &self.envelope)
            .field("needed", &self.needed)
            .finish_non_exhaustive()
    }
}

/// A name or an ARN in its place would only be refused by SQS, and less clearly.
pub(crate) fn check_url(field: &'static str, url: &str) -> Result<(), ConfigError> {
    let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
    let has_path = rest.and_then(|rest| rest.split_once('/')).is_some_and(|(host, path)| {
        let name = path.rsplit('/').next().unwrap_or_default();
        !host.is_empty() && !name.is_empty()
    });
    if has_path && !url.contains(char::is_whitespace) {
        Ok(())
    } else {
        let rule = "it must be a queue's URL, such as https://sqs.eu-central-1.amazonaws.com/123456789012/orders";
        Err(ConfigError::new(field, format!("{url:?}"), rule))
    }
}

/// The queue's name is the end of its URL.
pub(crate) fn queue_name(url: &str) -> &str {
    url.rsplit('/').next().unwrap_or(url)
}

/// SQS itself distinguishes the two kinds of queues by their names.
pub(crate) fn is_fifo(url: &str) -> bool {
    queue_name(url).ends_with(".fifo")
}

#[cfg(test)]
mod tests;
