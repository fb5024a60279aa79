//! The task that owns the connection. Each channel is an epoch; when it breaks, for whatever reason, the connection is
//! made anew, and the next epoch begins.

use std::{pin::pin, sync::Arc, time::Duration};

use futures_util::{FutureExt, StreamExt, future::join_all, stream::FuturesUnordered};
use idem_core::{BoxError, ErrorClass, SourceError, config::RetryPolicy, source::REFUSAL_GRACE};
use lapin::{
    Channel, Connection, Consumer, ErrorKind,
    message::Delivery,
    options::{BasicCancelOptions, BasicConsumeOptions, BasicGetOptions, BasicQosOptions},
    protocol::{AMQPErrorKind, AMQPHardError},
    types::{AMQPValue, FieldTable, ShortString},
};
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, timeout},
};

use crate::{
    connect::{OPENED, connect, ready},
    error::{classify, cure},
    message::says_stream,
    options::Settings,
    state::{Shared, Wish, give_back},
    wire::Wire,
};

/// How long one answer of the broker may take.
pub(crate) const ANSWER: Duration = Duration::from_secs(5);

/// How long to wait between two attempts to connect.
const RECONNECT: RetryPolicy = RetryPolicy::new(u32::MAX, Duration::from_millis(100), Duration::from_secs(10));

/// The next delivery; never where there is no subscription.
async fn next(consumer: &mut Option<Consumer>) -> Option<Option<lapin::Result<Delivery>>> {
    match consumer {
        Some(consumer) => Some(consumer.next().await),
        None => std::future::pending().await,
    }
}

/// A connection with the channel that consumes.
pub(crate) struct Session {
    wire: Wire,
    channel: Channel,
    /// Asks for the length of the queue: an answer on the other channel would come behind all deliveries.
    counting: Channel,
    /// `None` while the source is paused.
    consumer: Option<Consumer>,
    /// Delivered, and not looked at yet: a smaller prefetch comes first.
    pending: Vec<Delivery>,
    /// How many deliveries may be unsettled: the prefetch, and the rest of the previous subscription.
    allowed: usize,
    /// How many pauses were obeyed.
    pauses: u64,
    /// Whether the broker was asked, and the queue is no stream.
    is_no_stream: bool,
}

/// Why a session ended.
enum End {
    /// It broke, or the broker ended it.
    Lost(BoxError),
    /// The source is to be closed.
    Closing,
}

/// The question whether the queue is at its end, with the place for its answer.
pub(crate) type Question = oneshot::Sender<bool>;

const ASKING: &str = "asking whether the queue is a stream";

/// Takes one message from the queue and gives it back, which streams refuse.
async fn is_a_stream(connection: &Connection, queue: &ShortString) -> lapin::Result<bool> {
    let channel = connection.create_channel().await?;
    let Err(error) = channel.basic_get(queue.clone(), BasicGetOptions::default()).await else {
        // With its channel the message goes back.
        return channel.close(200, "asked".into()).await.map(|()| false);
    };
    if let ErrorKind::ProtocolError(error) = error.kind() {
        return Ok(*error.kind() == AMQPErrorKind::Hard(AMQPHardError::NOTIMPLEMENTED));
    }
    Err(error)
}

impl Session {
    /// Connects, checks that these queues exist, and consumes unless the source is paused.
    pub(crate) async fn open(
        settings: &Settings,
        shared: &Shared,
        needed: &[ShortString],
    ) -> Result<Self, SourceError> {
        let opened = timeout(OPENED, Self::open_now(settings, shared, needed)).await;
        opened.unwrap_or_else(|late| Err(SourceError::unavailable("connecting", late)))
    }

    async fn open_now(settings: &Settings, shared: &Shared, needed: &[ShortString]) -> Result<Self, SourceError> {
        let refused = |doing| move |error| classify(settings, doing, error);
        let wire = connect(settings).await.map_err(refused("connecting"))?;
        let channel = wire.connection.create_channel().await.map_err(refused("opening a channel"))?;
        for queue in [&settings.queue].into_iter().chain(needed) {
            let of_this = Settings { queue: queue.clone(), ..settings.clone() };
            ready(&channel, queue).await.map_err(|error| classify(&of_this, "asking for the queue", error))?;
        }
        let counting = wire.connection.create_channel().await.map_err(refused("opening a channel"))?;
        let (consumer, pending, pauses) = (None, Vec::new(), shared.pauses());
        let mut session = Self { wire, channel, counting, consumer, pending, allowed: 0, pauses, is_no_stream: false };
        if !shared.is_paused() {
            session.subscribe(settings, shared, shared.first_prefetch()).await?;
        }
        Ok(session)
    }

    /// The prefetch counts for a subscription from its beginning on, so another one takes another subscription.
    async fn subscribe(&mut self, settings: &Settings, shared: &Shared, prefetch: u16) -> Result<(), SourceError> {
        let refused = |doing| move |error| classify(settings, doing, error);
        // Before the first delivery and on every channel: without it the broker sends the whole queue.
        let limit = self.channel.basic_qos(prefetch, BasicQosOptions::default()).await;
        limit.map_err(refused("setting the prefetch"))?;
        self.allowed = usize::from(prefetch) + shared.subscribed(prefetch);
        let (acknowledging, mut arguments) = (BasicConsumeOptions::default(), FieldTable::default());
        if let Some(priority) = settings.consumer_priority {
            arguments.insert("x-priority".into(), AMQPValue::LongInt(priority));
        }
        // Another one for each subscription of the channel: the one before may still be known.
        let tag = format!("{} {:08x}", settings.connection_name, fastrand::u32(..));
        let consumer = self.channel.basic_consume(settings.queue.clone(), tag.into(), acknowledging, arguments).await;
        self.consumer = Some(consumer.map_err(refused("subscribing"))?);
        Ok(())
    }

    pub(crate) fn channel(&self) -> Channel {
        self.channel.clone()
    }

    pub(crate) fn counting(&self) -> Channel {
        self.counting.clone()
    }

    /// Hands over deliveries until the session ends.
    async fn serve(&mut self, settings: &Settings, shared: &Shared, questions: &mut mpsc::Receiver<Question>) -> End {
        loop {
            tokio::select! {
                biased;
                () = shared.stopping.cancelled() => {
                    if let Err(error) = self.stop(settings, shared).await {
                        let error = &error as &dyn std::error::Error;
                        tracing::debug!(error, "the subscription could not be cancelled");
                    }
                    // Messages that run may still be settled.
                    shared.closing.cancelled().await;
                    return End::Closing;
                }
                Some(question) = questions.recv() => {
                    // The answer comes behind all deliveries that the count leaves out, on one and the same channel. A
                    // delivery is an answer too, and the deliveries behind it may be too many to wait for.
                    let (none, first) = tokio::select! {
                        biased;
                        ready = timeout(ANSWER, ready(&self.channel, &settings.queue)) => (matches!(ready, Ok(Ok(0))), None),
                        Some(next) = next(&mut self.consumer) => (false, Some(next)),
                    };
                    if let Err(end) = self.take(first, settings, shared).await {
                        return end;
                    }
                    // The caller may have given up.
                    let _ = question.send(none && self.pending.is_empty() && shared.is_empty());
                }
                wish = shared.wish(self.pauses, self.consumer.is_some()) => {
                    if let Err(error) = self.obey(wish, settings, shared).await {
                        return End::Lost(error.into());
                    }
                }
                Some(next) = next(&mut self.consumer) => {
                    if let Err(end) = self.take(Some(next), settings, shared).await {
                        return end;
                    }
                }
            }
        }
    }

    async fn obey(&mut self, wish: Wish, settings: &Settings, shared: &Shared) -> Result<(), SourceError> {
        let queue = settings.queue.as_str();
        match wish {
            Wish::End { pauses } => {
                self.stop(settings, shared).await?;
                self.pauses = pauses;
                Ok(())
            }
            // The cause that closed intake may close it again.
            Wish::Begin => self.subscribe_again(settings, shared, shared.first_prefetch()).await,
            Wish::More(prefetch) => {
                self.unsubscribe(settings, shared).await?;
                tracing::debug!(queue, prefetch, "more messages are taken in");
                self.subscribe_again(settings, shared, prefetch).await
            }
            Wish::Less(prefetch) => {
                self.unsubscribe(settings, shared).await?;
                tracing::debug!(queue, prefetch, "messages are large: fewer are taken in");
                self.subscribe_again(settings, shared, prefetch).await
            }
        }
    }

    async fn subscribe_again(
        &mut self,
        settings: &Settings,
        shared: &Shared,
        prefetch: u16,
    ) -> Result<(), SourceError> {
        let subscribed = timeout(ANSWER, self.subscribe(settings, shared, prefetch)).await;
        subscribed.unwrap_or_else(|late| Err(SourceError::unavailable("subscribing", late)))
    }

    /// Takes in this delivery and all that are there behind it, as long as they are not too large.
    async fn take(
        &mut self,
        first: Option<Option<lapin::Result<Delivery>>>,
        settings: &Settings,
        shared: &Shared,
    ) -> Result<(), End> {
        let (mut end, mut unsettled) = (None, 0);
        let mut now = || self.consumer.as_mut()?.next().now_or_never();
        let mut next = first.or_else(&mut now);
        while let Some(item) = next {
            match item {
                Some(Ok(delivery)) => {
                    unsettled = shared.note(delivery.data.len());
                    self.pending.push(delivery);
                }
                Some(Err(error)) => end = Some(End::Lost(error.into())),
                None => end = Some(End::Lost("the broker cancelled the subscription".into())),
            }
            next = if end.is_none() && !shared.wants_less() { now() } else { None };
        }
        if !shared.wants_less() {
            self.hand_over(settings, shared).await.map_err(|error| End::Lost(error.into()))?;
        }
        if unsettled > self.allowed {
            end = Some(End::Lost("the broker delivers more than the prefetch allows".into()));
        }
        end.map_or(Ok(()), Err)
    }

    /// # Errors
    /// A delivery says that it comes from a stream, and the broker says whether that is so.
    async fn hand_over(&mut self, settings: &Settings, shared: &Shared) -> Result<(), SourceError> {
        if !self.is_no_stream && self.pending.iter().any(|delivery| says_stream(&delivery.properties)) {
            let asked = timeout(ANSWER, is_a_stream(&self.wire.connection, &settings.queue)).await;
            let asked = asked.map_err(|late| SourceError::unavailable(ASKING, late))?;
            if asked.map_err(|error| classify(settings, ASKING, error))? {
                shared.is_a_stream(settings.queue.as_str());
                self.pending.clear();
                return Ok(());
            }
            self.is_no_stream = true;
        }
        shared.deliver(self.pending.drain(..));
        Ok(())
    }

    /// Ends the subscription. Messages delivered before can still be settled; those that are too large to be kept go back.
    ///
    /// # Errors
    /// The broker has not confirmed its end: it may deliver more to this channel.
    async fn unsubscribe(&mut self, settings: &Settings, shared: &Shared) -> Result<(), SourceError> {
        let Some(mut consumer) = self.consumer.take() else { return Ok(()) };
        let (channel, doing) = (self.channel.clone(), "cancelling the subscription");
        let mut cancelled = pin!(channel.basic_cancel(consumer.tag(), BasicCancelOptions::default()));
        let mut back = FuturesUnordered::new();
        let (mut is_answered, mut is_over, mut is_full) = (false, false, false);
        while !(is_answered && is_over && back.is_empty()) {
            // The broker may send all of the prefetch before it answers, so each delivery is a sign of life.
            let delivery = timeout(ANSWER, async {
                tokio::select! {
                    // First, because messages given back before the broker knows of the end are delivered anew.
                    biased;
                    answer = &mut cancelled, if !is_answered => {
                        is_answered = true;
                        answer.map(|()| None)
                    }
                    Some(_) = back.next() => Ok(None),
                    delivery = consumer.next(), if !is_over => {
                        // It ends behind the messages delivered before the answer.
                        is_over = delivery.is_none();
                        delivery.transpose()
                    }
                }
            });
            let delivery = delivery.await.map_err(|late| SourceError::unavailable(doing, late))?;
            let Some(delivery) = delivery.map_err(|error| classify(settings, doing, error))? else { continue };
            // Nothing is kept behind one that goes back, so all come again in their order.
            is_full |= !shared.has_room(delivery.data.len());
            if is_full {
                back.push(give_back(&channel, delivery.delivery_tag));
            } else {
                shared.note(delivery.data.len());
                self.pending.push(delivery);
            }
        }
        self.hand_over(settings, shared).await
    }

    /// The same, and gives back the messages that were not handed over.
    async fn stop(&mut self, settings: &Settings, shared: &Shared) -> Result<(), SourceError> {
        let ended = self.unsubscribe(settings, shared).await;
        let back = shared.take_buffer().into_iter().map(|tag| give_back(&self.channel, tag));
        // Messages whose return is not written come back with the end of the connection.
        let _ = timeout(ANSWER, join_all(back)).await;
        ended
    }

    async fn close(self) {
        if let Err(error) = self.wire.connection.close(200, "closing".into()).await {
            tracing::debug!(%error, "the connection ended before it was closed");
        }
    }
}

/// How many messages wait in the queue; `None` where the broker does not answer.
pub(crate) async fn waiting(channel: &Channel, queue: &ShortString) -> Option<u64> {
    timeout(ANSWER, ready(channel, queue)).await.ok()?.ok().map(u64::from)
}

/// Runs until the source is closed.
pub(crate) async fn run(
    settings: Arc<Settings>,
    shared: Arc<Shared>,
    mut questions: mpsc::Receiver<Question>,
    mut session: Session,
) {
    loop {
        let end = session.serve(&settings, &shared, &mut questions).await;
        shared.end();
        let End::Lost(error) = end else { return session.close().await };
        let queue = settings.queue.as_str();
        tracing::warn!(queue, error = &*error as &dyn std::error::Error, cure = cure(&*error), "the channel is lost");
        // It may be the broker's channel alone that is over. A connection that hangs is not waited for.
        drop(session);
        session = tokio::select! {
            session = reconnect(&settings, &shared) => session,
            () = shared.stopping.cancelled() => return,
        };
        shared.begin(session.channel(), session.counting());
        tracing::info!(queue, "consuming again");
    }
}

/// Tries until it succeeds. Problems that need a person are reported through `receive`.
async fn reconnect(settings: &Settings, shared: &Shared) -> Session {
    let (begun, mut attempt, mut reported) = (Instant::now(), 0, false);
    loop {
        attempt += 1;
        tokio::time::sleep(RECONNECT.backoff(attempt, fastrand::f64())).await;
        // Further queues are checked only at the start: messages for a missing one wait until it is there again.
        let error = match Session::open(settings, shared, &[]).await {
            Ok(session) => return session,
            Err(error) => error,
        };
        tracing::debug!(attempt, error = &error as &dyn std::error::Error, "not connected yet");
        // A deployment may declare the queue anew, and after a failover it may take a moment to be there.
        let is_final = error.class() == ErrorClass::Fatal && begun.elapsed() >= REFUSAL_GRACE;
        if is_final || !std::mem::replace(&mut reported, true) {
            let passes = error.class() == ErrorClass::Fatal && !is_final;
            shared.fail(if passes { SourceError::unavailable("receiving", error) } else { error });
        }
    }
}
