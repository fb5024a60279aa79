//! The task that owns the connection. Each channel is an epoch; when it breaks, for whatever reason, the connection is
//! made anew, and the next epoch begins.

use std::{
    io,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures_util::{FutureExt, StreamExt, future::join_all};
use idem_core::{BoxError, ErrorClass, RetryPolicy, SourceError, source::REFUSAL_GRACE};
use lapin::{
    Channel, Connection, ConnectionProperties, Consumer,
    message::Delivery,
    options::{BasicCancelOptions, BasicConsumeOptions, BasicQosOptions, QueueDeclareOptions},
    tcp::{OwnedIdentity, OwnedTLSConfig},
    types::{AMQPValue, FieldTable, ShortString},
    uri::AMQPUri,
};
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, timeout},
};

use crate::{
    error::{classify, cure, is_refused},
    guard,
    options::Settings,
    state::{Shared, Wish},
};

/// How long connecting and subscribing may take together.
const OPENED: Duration = Duration::from_secs(10);

/// How long one answer of the broker may take.
pub(crate) const ANSWER: Duration = Duration::from_secs(5);

/// How long to wait between two attempts to connect.
const RECONNECT: RetryPolicy = RetryPolicy::new(u32::MAX, Duration::from_millis(100), Duration::from_secs(10));

/// The prefetch of a subscription that is careful: what is in hand when a process dies counts against each message of it,
/// and while nothing has gone well, one message at a time runs in this process anyway.
const FIRST: u16 = 1;

/// By how much it grows once messages go well.
const GROWTH: u16 = 8;

/// How many messages must be acknowledged before a subscription with this prefetch is followed by one with a larger.
fn earns(prefetch: u16) -> u64 {
    u64::from(prefetch) * 4
}

/// The next delivery; never where there is no subscription.
async fn next(consumer: &mut Option<Consumer>) -> Option<Option<lapin::Result<Delivery>>> {
    match consumer {
        Some(consumer) => Some(consumer.next().await),
        None => std::future::pending().await,
    }
}

/// A connection with the channel that consumes.
pub(crate) struct Session {
    connection: Connection,
    channel: Channel,
    /// `None` while the source is paused.
    consumer: Option<Consumer>,
    /// That of the subscription.
    prefetch: u16,
    /// How many deliveries may be unsettled: the prefetch, and what is left of the subscription before.
    allowed: usize,
    /// How many pauses were obeyed.
    pauses: u64,
}

/// Why a session ended.
enum End {
    /// It broke, or the broker ended it.
    Lost(BoxError),
    /// The source is to be closed.
    Closing,
}

/// Somebody who wants to know whether the queue is at its end.
pub(crate) type Question = oneshot::Sender<bool>;

/// Connects to the first host that answers. One that refuses speaks for all, as they are one cluster.
pub(crate) async fn connect(settings: &Settings) -> lapin::Result<Connection> {
    let (first, count) = (settings.turn.load(Ordering::Relaxed), settings.uris.len());
    let each = OPENED / u32::try_from(count + 1).unwrap_or(u32::MAX);
    let mut turn = 0;
    loop {
        let at = (first + turn) % count;
        let uri = &settings.uris[at];
        turn += 1;
        let connected = match timeout(each, connect_to(settings, uri)).await {
            Ok(connected) => connected,
            Err(late) => Err(io::Error::from(late).into()),
        };
        match connected {
            Err(error) if turn < count && !is_refused(settings, &error) => {
                let (host, error) = (&uri.authority.host, &error as &dyn std::error::Error);
                tracing::debug!(host, error, "this host cannot be reached; the next is tried");
            }
            connected => {
                settings.turn.store(at, Ordering::Relaxed);
                return connected;
            }
        }
    }
}

async fn connect_to(settings: &Settings, uri: &AMQPUri) -> lapin::Result<Connection> {
    let properties = ConnectionProperties::default().with_connection_name(settings.connection_name.as_str().into());
    let identity = settings.client_certificate.as_ref().map(|identity| OwnedIdentity::PKCS8 {
        pem: identity.certificate.clone().into_bytes(),
        key: identity.key.clone().into_bytes(),
    });
    let tls = OwnedTLSConfig { identity, cert_chain: settings.authorities.clone() };
    guard::connect(uri.clone(), properties, tls).await
}

/// How many messages wait in the queue. The queue is never created.
pub(crate) async fn ready(channel: &Channel, queue: &ShortString) -> lapin::Result<u32> {
    let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
    let queue = channel.queue_declare(queue.clone(), passive, FieldTable::default()).await?;
    Ok(queue.message_count())
}

impl Session {
    /// Connects, and consumes where these queues exist too, unless the source is paused.
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
        let connection = connect(settings).await.map_err(refused("connecting"))?;
        let channel = connection.create_channel().await.map_err(refused("opening a channel"))?;
        for queue in [&settings.queue].into_iter().chain(needed) {
            let of_this = Settings { queue: queue.clone(), ..settings.clone() };
            ready(&channel, queue).await.map_err(|error| classify(&of_this, "asking for the queue", error))?;
        }
        let mut session =
            Self { connection, channel, consumer: None, prefetch: 0, allowed: 0, pauses: shared.pauses() };
        if !shared.is_paused() {
            let first = if shared.is_careful() { FIRST } else { settings.prefetch };
            session.subscribe(settings, shared, first).await?;
        }
        Ok(session)
    }

    /// The prefetch counts for a subscription from its beginning on, so another one takes another subscription.
    async fn subscribe(&mut self, settings: &Settings, shared: &Shared, prefetch: u16) -> Result<(), SourceError> {
        let refused = |doing| move |error| classify(settings, doing, error);
        // Before the first delivery and on every channel: without it the broker sends the whole queue.
        let limit = self.channel.basic_qos(prefetch, BasicQosOptions::default()).await;
        limit.map_err(refused("setting the prefetch"))?;
        let left = shared.subscribed((prefetch < settings.prefetch).then(|| earns(prefetch)));
        (self.prefetch, self.allowed) = (prefetch, usize::from(prefetch) + left);
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

    /// Hands over what is delivered until the session ends.
    async fn serve(&mut self, settings: &Settings, shared: &Shared, questions: &mut mpsc::Receiver<Question>) -> End {
        loop {
            tokio::select! {
                biased;
                () = shared.stopping.cancelled() => {
                    self.stop(settings, shared).await;
                    shared.closing.cancelled().await;
                    return End::Closing;
                }
                Some(question) = questions.recv() => {
                    // The answer comes behind all deliveries that the count leaves out, on one and the same channel.
                    let none = matches!(timeout(ANSWER, ready(&self.channel, &settings.queue)).await, Ok(Ok(0)));
                    if let Err(end) = self.take(None, settings, shared) {
                        return end;
                    }
                    // Who asked may have given up.
                    let _ = question.send(none && shared.is_empty());
                }
                wish = shared.wish(self.pauses, self.consumer.is_some()) => {
                    if let Err(error) = self.obey(wish, settings, shared).await {
                        return End::Lost(error.into());
                    }
                }
                Some(next) = next(&mut self.consumer) => {
                    if let Err(end) = self.take(Some(next), settings, shared) {
                        return end;
                    }
                }
            }
        }
    }

    async fn obey(&mut self, wish: Wish, settings: &Settings, shared: &Shared) -> Result<(), SourceError> {
        match wish {
            Wish::End { pauses } => {
                self.stop(settings, shared).await;
                self.pauses = pauses;
                Ok(())
            }
            // Whatever closed intake may close it again.
            Wish::Begin => self.subscribe(settings, shared, FIRST.min(settings.prefetch)).await,
            Wish::More => {
                self.unsubscribe(settings, shared).await;
                let more = self.prefetch.saturating_mul(GROWTH).min(settings.prefetch);
                tracing::debug!(
                    queue = settings.queue.as_str(),
                    prefetch = more,
                    "messages went well: more are taken in"
                );
                self.subscribe(settings, shared, more).await
            }
        }
    }

    /// Takes in this delivery and all that are there behind it.
    fn take(
        &mut self,
        first: Option<Option<lapin::Result<Delivery>>>,
        settings: &Settings,
        shared: &Shared,
    ) -> Result<(), End> {
        let (mut deliveries, mut end) = (Vec::new(), None);
        let mut now = || self.consumer.as_mut()?.next().now_or_never();
        let mut next = first.or_else(&mut now);
        while let Some(item) = next {
            match item {
                Some(Ok(delivery)) => deliveries.push(delivery),
                Some(Err(error)) => end = Some(End::Lost(error.into())),
                None => end = Some(End::Lost("the broker cancelled the subscription".into())),
            }
            next = if end.is_none() { now() } else { None };
        }
        let unsettled = shared.deliver(deliveries, settings.queue.as_str());
        if unsettled > self.allowed {
            end = Some(End::Lost("the broker delivers more than the prefetch allows".into()));
        }
        end.map_or(Ok(()), Err)
    }

    /// Ends the subscription. What was delivered can still be settled.
    async fn unsubscribe(&mut self, settings: &Settings, shared: &Shared) {
        let queue = settings.queue.as_str();
        let Some(mut consumer) = self.consumer.take() else { return };
        let cancelled = timeout(ANSWER, self.channel.basic_cancel(consumer.tag(), BasicCancelOptions::default())).await;
        if let Ok(Err(error)) = cancelled {
            tracing::debug!(%error, "the subscription could not be cancelled");
        }
        while let Some(Some(Ok(delivery))) = consumer.next().now_or_never() {
            shared.deliver(vec![delivery], queue);
        }
    }

    /// The same, and gives back what was not handed over.
    async fn stop(&mut self, settings: &Settings, shared: &Shared) {
        self.unsubscribe(settings, shared).await;
        let back = shared.take_buffer().into_iter().map(|handle| handle.give_back(&self.channel));
        // What is not written comes back with the end of the connection.
        let _ = timeout(ANSWER, join_all(back)).await;
    }

    async fn close(self) {
        if let Err(error) = self.connection.close(200, "closing".into()).await {
            tracing::debug!(%error, "the connection ended before it was closed");
        }
    }
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
        shared.begin(session.channel());
        tracing::info!(queue, "consuming again");
    }
}

/// Tries until it succeeds. What a person must see is reported through `receive`.
async fn reconnect(settings: &Settings, shared: &Shared) -> Session {
    let (begun, mut attempt, mut reported) = (Instant::now(), 0, false);
    loop {
        attempt += 1;
        tokio::time::sleep(RECONNECT.backoff(attempt, fastrand::f64())).await;
        // Further queues are looked for at the start alone: what one of them is for waits until it is there again.
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
