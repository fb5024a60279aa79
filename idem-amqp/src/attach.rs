//! The broker's facts about the queue beyond the protocol: whether it may lose messages, and when it takes one away.

use std::time::Duration;

use idem_core::{SourceError, source::Attached};
use lapin::uri::AMQPScheme;
use serde_json::Value;

use crate::{
    management::Management,
    options::{DeliveryLimit, Settings},
};

/// The delivery limit of a quorum queue that has none of its own, from RabbitMQ 4.0 on.
const DELIVERY_LIMIT: u32 = 20;

/// The management API's facts about a queue.
#[derive(Debug, Default, PartialEq, Eq)]
struct Facts {
    kind: String,
    durable: bool,
    auto_delete: bool,
    delivery_limit: Option<u32>,
    dead_letter_exchange: Option<String>,
    dead_letter_routing_key: Option<String>,
    at_least_once_dead_letters: bool,
    message_ttl: Option<Duration>,
    /// Its length is bounded, and messages beyond that are dropped.
    drops_overflow: bool,
    consumer_timeout: Option<Duration>,
    /// It is deleted with its messages when it has been unused for a while.
    expires: bool,
}

/// Whether the queue keeps a message however often it is delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keeps {
    Surely,
    /// It has a limit, or may have one.
    NotSurely,
}

/// A stream is refused: acknowledging means nothing to it, and each subscription begins where it likes.
pub(crate) fn stream(queue: &str) -> SourceError {
    SourceError::refused(
        format!("queue {queue:?} is a stream, from which nothing is acknowledged one by one"),
        "Consume a quorum or classic queue",
    )
}

/// The facts known of the queue before it is consumed.
pub(crate) async fn attached(settings: &Settings) -> Result<(Attached, Keeps), SourceError> {
    let (vhost, queue) = (&settings.uri.vhost, settings.queue.as_str());
    // No host and no cluster: a cluster has many names, moves, and is still the same queue.
    let mut attached = Attached::new(format!("rabbitmq:{vhost}/{queue}"));
    attached.server = Some(format!("{}:{}", settings.uri.authority.host, settings.uri.authority.port));
    let mut consumer_timeout = settings.consumer_timeout;
    let told = settings.delivery_limit;
    attached.delivery_limit = match told {
        Some(DeliveryLimit::Of(limit)) => Some(limit),
        Some(DeliveryLimit::Unlimited) | None => None,
    };
    let mut keeps = if told == Some(DeliveryLimit::Unlimited) { Keeps::Surely } else { Keeps::NotSurely };
    let unknown = "the delivery limit, the dead-letter exchange and the policies of the queue are unknown";
    match &settings.management {
        None if told.is_some() => {}
        None => attached.warnings.push(format!(
            "{unknown}, and the broker may drop messages because of them, so one message at a time is in hand until some have \
             gone well: set management_url (--management-url), or delivery_limit (--delivery-limit N|none)"
        )),
        Some(management) => match management.queue(vhost, queue).await {
            Err(error) => attached.warnings.push(format!("{unknown} ({error}): check the management URL and the user's tags")),
            Ok(answer) => {
                // Without the version, only the facts that depend on it are left out.
                let version = management.version().await.unwrap_or_default();
                let facts = Facts::read(&answer, &version);
                attached.warnings = facts.judge(queue, told)?;
                attached.delivery_limit = facts.delivery_limit;
                keeps = if facts.delivery_limit.is_none() { Keeps::Surely } else { Keeps::NotSurely };
                attached.redelivery_horizon = facts.message_ttl;
                consumer_timeout = facts.consumer_timeout.unwrap_or(consumer_timeout);
            }
        },
    }
    warn_of_plaintext(&mut attached, settings);
    if let Some(retry) = &settings.retry_queue {
        attached.warnings.extend(retry_queue(settings, retry.as_str()).await?);
    }
    // The broker looks once a minute; a tenth is for the way there.
    attached.hold_max = Some(consumer_timeout.mul_f64(0.9));
    Ok((attached, keeps))
}

/// User and password go to the broker and to its management API.
fn warn_of_plaintext(attached: &mut Attached, settings: &Settings) {
    let in_plaintext = settings.uris.iter().filter(|uri| uri.scheme == AMQPScheme::AMQP);
    attached.warn_of_plaintext(in_plaintext.map(|uri| uri.authority.host.as_str()), "write amqps:// in its URL");
    let host = settings.management.as_ref().and_then(Management::plaintext_host);
    attached.warn_of_plaintext(host, "write https:// in the management URL");
}

/// The facts known of the retry queue; the protocol shows whether it exists.
async fn retry_queue(settings: &Settings, retry: &str) -> Result<Vec<String>, SourceError> {
    let queue = settings.queue.as_str();
    let unknown = format!(
        "whether a message that expires in the retry queue {retry:?} comes back to queue {queue:?} is unknown, and it is lost \
         if it does not: "
    );
    let Some(management) = &settings.management else {
        return Ok(vec![format!("{unknown}give idem the management URL")]);
    };
    match management.queue(&settings.uri.vhost, retry).await {
        Ok(answer) => Facts::read(&answer, &[]).judge_retry(retry, queue),
        Err(error) => Ok(vec![format!("{unknown}{error}")]),
    }
}

impl Facts {
    /// `answer` is that of `/api/queues/VHOST/QUEUE`. A policy counts where the queue has no argument of its own, and
    /// from limits of both the lower one.
    fn read(answer: &Value, version: &[u32]) -> Self {
        let policy = |name: &str| &answer["effective_policy_definition"][name];
        let argument = |name: &str| &answer["arguments"][format!("x-{name}")];
        let number = |name| {
            let both = [argument(name).as_i64(), policy(name).as_i64()];
            both.into_iter().flatten().filter_map(|number| u64::try_from(number).ok()).min()
        };
        let text = |name| argument(name).as_str().or_else(|| policy(name).as_str());
        let kind = answer["type"].as_str().unwrap_or("classic").to_owned();
        // Minus one is unlimited, also where the default would count.
        let unlimited =
            [argument("delivery-limit"), policy("delivery-limit")].iter().any(|limit| limit.as_i64() == Some(-1));
        let by_default = (kind == "quorum" && version.first() >= Some(&4) && !unlimited).then_some(DELIVERY_LIMIT);
        let delivery_limit = number("delivery-limit").map(|limit| u32::try_from(limit).unwrap_or(u32::MAX));
        Self {
            durable: answer["durable"].as_bool().unwrap_or(true),
            auto_delete: answer["auto_delete"].as_bool().unwrap_or(false),
            delivery_limit: delivery_limit.or(by_default),
            dead_letter_exchange: text("dead-letter-exchange").map(str::to_owned),
            dead_letter_routing_key: text("dead-letter-routing-key").map(str::to_owned),
            at_least_once_dead_letters: text("dead-letter-strategy") == Some("at-least-once"),
            message_ttl: number("message-ttl").map(Duration::from_millis),
            drops_overflow: (number("max-length").is_some() || number("max-length-bytes").is_some())
                && text("overflow").is_none_or(|overflow| overflow == "drop-head"),
            consumer_timeout: number("consumer-timeout").map(Duration::from_millis),
            expires: number("expires").is_some(),
            kind,
        }
    }

    /// Warnings, or a refusal if messages that expire in this retry queue would not come back to `queue`.
    fn judge_retry(&self, retry: &str, queue: &str) -> Result<Vec<String>, SourceError> {
        let back = (self.dead_letter_exchange.as_deref(), self.dead_letter_routing_key.as_deref());
        if back != (Some(""), Some(queue)) {
            return Err(SourceError::refused(
                format!("a message that expires in the retry queue {retry:?} does not come back to queue {queue:?}"),
                format!("Declare it with x-dead-letter-exchange \"\" and x-dead-letter-routing-key {queue:?}"),
            ));
        }
        if self.expires {
            return Err(SourceError::refused(
                format!(
                    "the retry queue {retry:?} is deleted with its messages when it has no consumer: it has x-expires"
                ),
                "Remove x-expires; it never has a consumer",
            ));
        }
        let warnings = [
            (!self.at_least_once_dead_letters).then(|| {
                format!(
                    "messages that come back from the retry queue {retry:?} may get lost on their way: make it a quorum queue \
                     with dead-letter-strategy=at-least-once and overflow=reject-publish"
                )
            }),
            (!self.durable).then(|| format!("the retry queue {retry:?} is not durable: a restart of the broker loses it")),
        ];
        Ok(warnings.into_iter().flatten().collect())
    }

    /// Warnings, or a refusal where messages would be lost although this consumer does everything right.
    ///
    /// For a limit that is configured it is enough that it exceeds the attempts.
    fn judge(&self, queue: &str, told: Option<DeliveryLimit>) -> Result<Vec<String>, SourceError> {
        if self.kind == "stream" {
            return Err(stream(queue));
        }
        let limit = self.delivery_limit.map_or(DeliveryLimit::Unlimited, DeliveryLimit::Of);
        if let Some(told) = told.filter(|told| *told != limit) {
            return Err(SourceError::refused(
                format!(
                    "queue {queue:?} has the delivery limit {}, and delivery_limit says {}",
                    shown(limit),
                    shown(told)
                ),
                "Correct delivery_limit (--delivery-limit), or leave it out: the management API shows it",
            ));
        }
        if let (Some(limit), false, None) = (self.delivery_limit, self.dead_letter_exchange.is_some(), told) {
            return Err(SourceError::refused(
                format!("queue {queue:?} drops a message after {limit} deliveries: it has no dead-letter exchange"),
                format!(
                    "Give it one, or set the policy delivery-limit=-1: idem counts attempts itself; or accept it with \
                     delivery_limit (--delivery-limit {limit})"
                ),
            ));
        }
        if self.drops_overflow && self.dead_letter_exchange.is_none() {
            return Err(SourceError::refused(
                format!("queue {queue:?} drops its oldest messages when it is full: its overflow is drop-head"),
                "Set overflow=reject-publish, with which producers wait, or give it a dead-letter exchange",
            ));
        }
        let warnings = [
            (self.delivery_limit.is_some() && self.dead_letter_exchange.is_some() && !self.at_least_once_dead_letters)
                .then(|| {
                    "messages past the delivery limit may get lost on their way to the dead-letter exchange: set \
                 dead-letter-strategy=at-least-once and overflow=reject-publish"
                        .to_owned()
                }),
            self.message_ttl.map(|ttl| {
                format!(
                    "the broker removes what waits for longer than {ttl:?}: idem never sees it; remove the message-ttl"
                )
            }),
            (!self.durable).then(|| "the queue is not durable: a restart of the broker loses it".to_owned()),
            self.auto_delete.then(|| "the queue is deleted with its last consumer: remove auto-delete".to_owned()),
        ];
        Ok(warnings.into_iter().flatten().collect())
    }
}

fn shown(limit: DeliveryLimit) -> String {
    match limit {
        DeliveryLimit::Unlimited => "none".to_owned(),
        DeliveryLimit::Of(limit) => limit.to_string(),
    }
}

#[cfg(test)]
mod tests;
