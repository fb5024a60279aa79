//! The task that owns the connection. Each channel is an epoch; when it breaks, for whatever reason, the connection is
//! made anew, and the next epoch begins.

use std::{sync::Arc, time::Duration};

use futures_util::{FutureExt, StreamExt, future::join_all};
use idem_core::{BoxError, ErrorClass, RetryPolicy, SourceError};
use lapin::{
    Channel, Connection, ConnectionProperties, Consumer,
    message::Delivery,
    options::{BasicCancelOptions, BasicConsumeOptions, BasicQosOptions, QueueDeclareOptions},
    tcp::OwnedTLSConfig,
    types::{FieldTable, ShortString},
};
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, timeout},
};

use crate::{
    config::Settings,
    error::{classify, cure, unavailable},
    guard,
    state::Shared,
};

/// How long connecting and subscribing may take together.
const OPENED: Duration = Duration::from_secs(10);

/// How long one answer of the broker may take.
pub(crate) const ANSWER: Duration = Duration::from_secs(5);

/// How long a queue may be gone before a person must act. A deployment may declare it anew, and after a failover it may
/// take a moment to be there.
const GONE: Duration = Duration::from_secs(10);

/// How long to wait between two attempts to connect.
const RECONNECT: RetryPolicy =
    RetryPolicy { attempts: u32::MAX, first: Duration::from_millis(100), max: Duration::from_secs(10) };

/// A connection with the channel that consumes.
pub(crate) struct Session {
    connection: Connection,
    channel: Channel,
    consumer: Consumer,
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

pub(crate) async fn connect(settings: &Settings) -> lapin::Result<Connection> {
    let properties = ConnectionProperties::default().with_connection_name("idem".into());
    let tls = OwnedTLSConfig { identity: None, cert_chain: settings.authorities.clone() };
    guard::connect(settings.uri.clone(), properties, tls).await
}

/// How many messages wait in the queue. The queue is never created.
pub(crate) async fn ready(channel: &Channel, queue: &ShortString) -> lapin::Result<u32> {
    let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
    let queue = channel.queue_declare(queue.clone(), passive, FieldTable::default()).await?;
    Ok(queue.message_count())
}

impl Session {
    /// Connects, and consumes where these queues exist too.
    pub(crate) async fn open(settings: &Settings, needed: &[ShortString]) -> Result<Self, SourceError> {
        let opened = timeout(OPENED, Self::open_now(settings, needed)).await;
        opened.unwrap_or_else(|late| Err(unavailable("connecting", late)))
    }

    async fn open_now(settings: &Settings, needed: &[ShortString]) -> Result<Self, SourceError> {
        let refused = |doing| move |error| classify(settings, doing, error);
        let connection = connect(settings).await.map_err(refused("connecting"))?;
        let channel = connection.create_channel().await.map_err(refused("opening a channel"))?;
        for queue in [&settings.queue].into_iter().chain(needed) {
            let of_this = Settings { queue: queue.clone(), ..settings.clone() };
            ready(&channel, queue).await.map_err(|error| classify(&of_this, "asking for the queue", error))?;
        }
        // Before the first delivery and on every channel: without it the broker sends the whole queue.
        let limit = channel.basic_qos(settings.prefetch, BasicQosOptions::default()).await;
        limit.map_err(refused("setting the prefetch"))?;
        let (acknowledging, none) = (BasicConsumeOptions::default(), FieldTable::default());
        let consumer = channel.basic_consume(settings.queue.clone(), "".into(), acknowledging, none).await;
        Ok(Self { consumer: consumer.map_err(refused("subscribing"))?, connection, channel })
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
                    self.stop(shared).await;
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
                next = self.consumer.next() => {
                    if let Err(end) = self.take(Some(next), settings, shared) {
                        return end;
                    }
                }
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
        let mut next = first.or_else(|| self.consumer.next().now_or_never());
        while let Some(item) = next {
            match item {
                Some(Ok(delivery)) => deliveries.push(delivery),
                Some(Err(error)) => end = Some(End::Lost(error.into())),
                None => end = Some(End::Lost("the broker cancelled the subscription".into())),
            }
            next = if end.is_none() { self.consumer.next().now_or_never() } else { None };
        }
        let unsettled = shared.deliver(deliveries);
        if unsettled > usize::from(settings.prefetch) {
            end = Some(End::Lost("the broker delivers more than the prefetch allows".into()));
        }
        end.map_or(Ok(()), Err)
    }

    /// Ends the subscription and gives back what was not handed over. What was can still be settled.
    async fn stop(&mut self, shared: &Shared) {
        let tag = self.consumer.tag();
        let cancelled = timeout(ANSWER, self.channel.basic_cancel(tag, BasicCancelOptions::default())).await;
        if let Ok(Err(error)) = cancelled {
            tracing::debug!(%error, "the subscription could not be cancelled");
        }
        while let Some(Some(Ok(delivery))) = self.consumer.next().now_or_never() {
            shared.deliver(vec![delivery]);
        }
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
        let error = match Session::open(settings, &[]).await {
            Ok(session) => return session,
            Err(error) => error,
        };
        tracing::debug!(attempt, error = &error as &dyn std::error::Error, "not connected yet");
        let report = if error.class() == ErrorClass::Fatal { begun.elapsed() >= GONE } else { !reported };
        if report {
            reported = true;
            shared.fail(error);
        }
    }
}
