//! [`Confirmed`]: a message to a queue counts as published once the broker has confirmed it.

use std::{
    future::ready as ready_now,
    pin::pin,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use futures_util::StreamExt;
use idem_core::{Bytes, SourceError, outbox::EventError};
use lapin::{
    BasicProperties, Channel, Confirmation, Event,
    options::{BasicPublishOptions, ConfirmSelectOptions},
};
use tokio::{
    sync::Mutex,
    time::{Instant, timeout, timeout_at},
};

use crate::{
    connect::{connect, ready},
    error::{classify, is_too_large},
    options::Settings,
    wire::Wire,
};

/// A queue that is published to through the default exchange, on a connection of its own: the broker blocks connections
/// that publish when it runs out of memory, and settlements must go on.
pub(crate) struct Confirmed {
    pub(crate) settings: Settings,
    doing: &'static str,
    /// Out while a message is under way, so that a channel with an abandoned answer is never used again: the client
    /// library hands a returned message to the next confirmation, whichever that is.
    open: Mutex<Option<Open>>,
}

/// A channel, and the connection that keeps it.
struct Open {
    wire: Wire,
    channel: Channel,
    /// It owes an answer that was abandoned.
    spoilt: bool,
}

impl Open {
    fn is_blocked(&self) -> bool {
        self.wire.connection.status().blocked()
    }
}

impl Confirmed {
    /// To the queue of these settings. `doing` names the operation in errors.
    pub(crate) fn new(settings: Settings, doing: &'static str) -> Self {
        Self { settings, doing, open: Mutex::default() }
    }

    /// Publishes one message, and waits until the broker has confirmed and not returned it.
    pub(crate) async fn publish(
        &self,
        payload: &[u8],
        properties: BasicProperties,
        within: Duration,
    ) -> Result<(), SourceError> {
        let published = timeout(within, async {
            let mut place = self.open.lock().await;
            if place.as_ref().is_some_and(Open::is_blocked) {
                return Err(self.blocked());
            }
            let open = self.connected(place.take()).await?;
            let confirmed = self.confirmed(&open, payload, properties).await;
            // One that is blocked is kept, because it could not even be closed, and there would be more and more of them.
            if confirmed.is_ok() || open.is_blocked() {
                *place = Some(Open { spoilt: confirmed.is_err(), ..open });
            }
            confirmed
        });
        published.await.unwrap_or_else(|late| Err(SourceError::unavailable(self.doing, late)))
    }

    /// Looks whether the queue is there.
    pub(crate) async fn look(&self) -> Result<(), SourceError> {
        let mut place = self.open.lock().await;
        if place.as_ref().is_some_and(Open::is_blocked) {
            return Err(self.blocked());
        }
        let open = self.connected(place.take()).await?;
        let queue = &self.settings.queue;
        ready(&open.channel, queue).await.map_err(|error| classify(&self.settings, self.doing, error))?;
        *place = Some(open);
        Ok(())
    }

    /// Publishes all of these, and then waits for the confirmations: one answer each, in order. Where the broker could not be reached at
    /// all, the answers say that nothing was sent.
    pub(crate) async fn publish_all(
        &self,
        messages: &[(Bytes, BasicProperties)],
        within: Duration,
    ) -> Vec<Result<(), EventError>> {
        let (by, begun) = (Instant::now() + within, AtomicBool::new(false));
        let answers = self.all_answered(messages, by, &begun).await;
        let failed = |error: SourceError| {
            if matches!(error, SourceError::Unavailable { .. }) && !begun.load(Ordering::Relaxed) {
                return EventError::not_sent(error).uncounted();
            }
            error.into()
        };
        answers.into_iter().map(|answer| answer.map_err(failed)).collect()
    }

    async fn all_answered(
        &self,
        messages: &[(Bytes, BasicProperties)],
        by: Instant,
        begun: &AtomicBool,
    ) -> Vec<Result<(), SourceError>> {
        let mut answers: Vec<Option<Result<(), SourceError>>> = messages.iter().map(|_| None).collect();
        let published = timeout_at(by, async {
            let mut place = self.open.lock().await;
            if place.as_ref().is_some_and(Open::is_blocked) {
                return Err(self.blocked());
            }
            let open = self.connected(place.take()).await?;
            let all = self.all_confirmed(&open, messages, &mut answers, begun).await;
            let is_fine = all.is_ok() && answers.iter().all(|answer| matches!(answer, Some(Ok(()))));
            if is_fine || open.is_blocked() {
                *place = Some(Open { spoilt: !is_fine, ..open });
            }
            all
        });
        let left = match published.await {
            Ok(Ok(())) => String::new(),
            // The broker closed the channel over one of them, and does not say which: each by itself shows it.
            Ok(Err(SourceError::DoesNotFit { .. })) => return self.one_by_one(messages, answers, by).await,
            // The whole call failed, and those that are not answered with it.
            Ok(Err(refused @ SourceError::Refused { .. })) => {
                return answers.into_iter().map(|answer| answer.unwrap_or_else(|| Err(again(&refused)))).collect();
            }
            Ok(Err(error)) => {
                idem_core::internal::chain(&error).map(ToString::to_string).collect::<Vec<_>>().join(": ")
            }
            Err(late) => late.to_string(),
        };
        let unanswered = || Err(SourceError::unavailable(self.doing, left.clone()));
        answers.into_iter().map(|answer| answer.unwrap_or_else(unanswered)).collect()
    }

    /// Publishes those that are not answered yet, each with an answer of its own.
    async fn one_by_one(
        &self,
        messages: &[(Bytes, BasicProperties)],
        answers: Vec<Option<Result<(), SourceError>>>,
        by: Instant,
    ) -> Vec<Result<(), SourceError>> {
        let mut all = Vec::with_capacity(messages.len());
        for ((payload, properties), answer) in messages.iter().zip(answers) {
            all.push(match answer {
                Some(answer) => answer,
                None => self.publish(payload, properties.clone(), by.saturating_duration_since(Instant::now())).await,
            });
        }
        all
    }

    async fn all_confirmed(
        &self,
        open: &Open,
        messages: &[(Bytes, BasicProperties)],
        answers: &mut [Option<Result<(), SourceError>>],
        begun: &AtomicBool,
    ) -> Result<(), SourceError> {
        let queue = &self.settings.queue;
        let refused = |error| match is_too_large(&error) {
            true => SourceError::does_not_fit("a message is too large", "Raise max_message_size of the broker"),
            false => classify(&self.settings, self.doing, error),
        };
        let mut blocked = pin!(open.wire.connection.events_listener().filter(|event| {
            let is_blocked = matches!(event, Event::ConnectionBlocked(_));
            ready_now(is_blocked)
        }));
        let all = async {
            // As for one: the queue is asked for first.
            ready(&open.channel, queue).await.map_err(refused)?;
            let mandatory = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
            let (mut confirms, mut unsent) = (Vec::with_capacity(messages.len()), None);
            begun.store(true, Ordering::Relaxed);
            for (payload, properties) in messages {
                match open.channel.basic_publish("".into(), queue.clone(), mandatory, payload, properties.clone()).await
                {
                    Ok(confirm) => confirms.push(confirm),
                    Err(error) => {
                        unsent = Some(error);
                        break;
                    }
                }
            }
            // Where the channel was closed meanwhile, the confirmations that are owed say why, and the sending does not.
            for (confirm, answer) in confirms.into_iter().zip(answers.iter_mut()) {
                *answer = Some(self.stored(confirm.await.map_err(refused)?));
            }
            if let Some(error) = unsent {
                return Err(refused(error));
            }
            Ok(())
        };
        tokio::select! {
            all = all => all,
            Some(_) = blocked.next() => Err(self.blocked()),
        }
    }

    fn blocked(&self) -> SourceError {
        SourceError::unavailable(self.doing, "the broker has blocked the connection: it is out of memory or disk space")
    }

    async fn connected(&self, open: Option<Open>) -> Result<Open, SourceError> {
        let refused = |error| classify(&self.settings, self.doing, error);
        if let Some(open) = open.filter(|open| open.channel.status().connected() && !open.spoilt) {
            return Ok(open);
        }
        let wire = connect(&self.settings).await.map_err(refused)?;
        let channel = wire.connection.create_channel().await.map_err(refused)?;
        channel.confirm_select(ConfirmSelectOptions::default()).await.map_err(refused)?;
        Ok(Open { wire, channel, spoilt: false })
    }

    async fn confirmed(&self, open: &Open, payload: &[u8], properties: BasicProperties) -> Result<(), SourceError> {
        // The broker says so once it is published to.
        let mut blocked = pin!(open.wire.connection.events_listener().filter(|event| {
            let is_blocked = matches!(event, Event::ConnectionBlocked(_));
            ready_now(is_blocked)
        }));
        tokio::select! {
            published = self.published(open, payload, properties) => published,
            Some(_) = blocked.next() => Err(self.blocked()),
        }
    }

    async fn published(&self, open: &Open, payload: &[u8], properties: BasicProperties) -> Result<(), SourceError> {
        let queue = &self.settings.queue;
        // A message that is returned is logged by the client library with its payload and headers, which may be private:
        // so the queue is asked for first, and `mandatory` is for one that goes in between.
        ready(&open.channel, queue).await.map_err(|error| classify(&self.settings, self.doing, error))?;
        let mandatory = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let sent = open.channel.basic_publish("".into(), queue.clone(), mandatory, payload, properties).await;
        let confirmation = match sent {
            Ok(confirm) => confirm.await,
            Err(error) => Err(error),
        };
        match confirmation {
            Ok(confirmation) => self.stored(confirmation),
            // The broker closes the channel over it, and takes the next one.
            Err(error) if is_too_large(&error) => Err(SourceError::DoesNotFit {
                problem: format!("a message of {} bytes is too large for queue \"{queue}\": {error}", payload.len()),
                cure: "Raise max_message_size of the broker".to_owned(),
            }),
            Err(error) => Err(classify(&self.settings, self.doing, error)),
        }
    }

    /// Whether the broker has it. A message that no queue takes is returned, and confirmed all the same.
    fn stored(&self, confirmation: Confirmation) -> Result<(), SourceError> {
        match confirmation {
            Confirmation::Ack(None) => Ok(()),
            Confirmation::Ack(Some(_)) => Err(SourceError::refused(
                format!("queue \"{}\" does not exist any more", self.settings.queue),
                "Declare it, or correct the name; idem declares no queues",
            )),
            Confirmation::Nack(_) => {
                Err(SourceError::unavailable(self.doing, "the broker refused it: the queue may be full"))
            }
            Confirmation::NotRequested => Err(SourceError::unavailable(self.doing, "the channel confirms nothing")),
        }
    }
}

/// The same refusal for another message.
fn again(error: &SourceError) -> SourceError {
    match error {
        SourceError::Refused { problem, cure } => SourceError::refused(problem.clone(), cure.clone()),
        SourceError::DoesNotFit { .. } | SourceError::Unavailable { .. } => {
            SourceError::unavailable("publishing", error.to_string())
        }
        // It grows with idem-core.
        _ => SourceError::unavailable("publishing", error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use lapin::message::{BasicReturnMessage, Delivery};

    use super::*;
    use crate::AmqpOptions;

    #[test]
    fn g8_only_a_confirmation_without_a_returned_message_counts() {
        let options = AmqpOptions::new("amqp://user:x@broker/%2f", "purchases");
        let confirmed = Confirmed::new(options.for_queue("dead_letter_queue", "dead").unwrap(), "publishing");
        let returned = || {
            let delivery = Delivery::mock(0, "".into(), "dead".into(), false, Vec::new());
            Some(BasicReturnMessage { delivery, reply_code: 312, reply_text: "NO_ROUTE".into() })
        };
        assert!(confirmed.stored(Confirmation::Ack(None)).is_ok());
        assert!(matches!(confirmed.stored(Confirmation::Ack(returned())), Err(SourceError::Refused { .. })));
        for confirmation in [Confirmation::Nack(None), Confirmation::Nack(returned()), Confirmation::NotRequested] {
            assert!(matches!(confirmed.stored(confirmation), Err(SourceError::Unavailable { .. })));
        }
    }
}
